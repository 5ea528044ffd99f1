"""The rules of a sink as the quarantine stores them with each row, for a replay.

They are a JSON object with the sink's arguments: `mode`, `on`, `sequence_by`, `except_columns`,
`expect`, and for upserts `tombstones` in seconds, `skip_unchanged`, `when_matched` and
`when_not_matched`. `expect` maps the name of a check to its `condition` and the names in it, by the
batch's `columns`. `derive` adds the `function_version`, which a replay does not need.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from lance_stream.arguments import repeated_names
from lance_stream.errors import CorruptDataError
from lance_stream.schema.system_columns import DELETES
from lance_stream.upsert.rules import INSERT, UPDATE, UpsertRules, with_one_time
from lance_stream.write.row_checks import Check
from lance_stream.write.rows_as_json import CORRUPT_REMEDY

_UPSERT: Final = "upsert"

_LONGEST_SECONDS: Final = timedelta.max.total_seconds()

_NEVER_REPLAYED: Final = {
    "overwrite": "their batch overwrote the table, as every later batch does: correct the query",
    "derive": "a function failed for them: correct it and change its version; derive() computes "
    "these rows again and removes them from the quarantine",
}
"""Modes whose rows are only listed, with the reason."""

_WITHOUT_ORDER: Final = (
    "without sequence_by, they may be older than the rows of the table; replace_existing=True "
    "writes them"
)


@dataclass(frozen=True)
class RecordedRules:
    """How a sink would have written a row.

    Attributes:
        mode: "append", "upsert", "overwrite" or "derive".
        on: The key columns of an upsert.
        sequence_by: The column that orders rows of one key; None without one.
        except_columns: Columns of the row that are not stored.
        expect: The checks, by name; parsed by `checks`.
        tombstones: How long deletes are remembered; None if they are not.
        skip_unchanged: As in `UpsertRules`.
        when_matched: As in `UpsertRules`; None to update.
        when_not_matched: As in `UpsertRules`; None to insert.
    """

    mode: str
    on: tuple[str, ...]
    sequence_by: str | None
    except_columns: tuple[str, ...]
    expect: Mapping[str, Any]
    tombstones: timedelta | None = None
    skip_unchanged: bool = False
    when_matched: str | None = None
    when_not_matched: str | None = None

    @property
    def is_upsert(self) -> bool:
        """Whether the row is upserted by its key."""
        return self.mode == _UPSERT

    @property
    def needs_batch_order(self) -> bool:
        """Whether only the order of batches tells which of two rows of a key is newer."""
        return self.is_upsert and not self.sequence_by

    def refusal(self, *, replace_existing: bool) -> str | None:
        """Return why the row stays in the quarantine, whatever its values; None if it need not.

        Args:
            replace_existing: Whether the row may replace a newer one.
        """
        if self.needs_batch_order and not replace_existing:
            return _WITHOUT_ORDER
        return _NEVER_REPLAYED.get(self.mode)

    def checks(self) -> tuple[Check, ...]:
        """Return the checks of the row.

        Raises:
            CorruptDataError: They are invalid.
        """
        try:
            return tuple(
                Check(name, condition["condition"], tuple(condition["columns"].items()))
                for name, condition in self.expect.items()
            )
        except (TypeError, KeyError, AttributeError):
            raise CorruptDataError(
                f"the checks of a quarantined row are damaged: {str(self.expect)[:200]}"
            ) from None

    def upsert_rules(self, hidden: Sequence[str]) -> UpsertRules:
        """Return the rules of an upsert of rows that are marked if they delete (`DELETES`).

        Args:
            hidden: Columns of the rows that are not stored.
        """
        return UpsertRules(
            on=self.on,
            sequence_by=self.sequence_by,
            delete_when=f"{DELETES} = true",
            except_columns=tuple(hidden),
            skip_unchanged=self.skip_unchanged,
            tombstones=self.tombstones,
            when_matched=with_one_time(self.when_matched, UPDATE),
            when_not_matched=with_one_time(self.when_not_matched, INSERT),
        )


def parse_rules(text: str) -> RecordedRules:
    """Parse the rules of a quarantined row.

    Raises:
        CorruptDataError: They are invalid.
    """
    try:
        return _rules_of(json.loads(text))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise CorruptDataError(
            f"the rules of a quarantined row are damaged: {text[:200]!r}. {CORRUPT_REMEDY}"
        ) from None


def _rules_of(rules: Mapping[str, Any]) -> RecordedRules:
    mode, sequence_by, expect = rules["mode"], rules["sequence_by"], rules["expect"]
    if mode not in ("append", _UPSERT, *_NEVER_REPLAYED):
        raise ValueError(mode)
    if not isinstance(sequence_by, str | None) or not isinstance(expect, dict):
        raise TypeError(sequence_by, expect)
    return RecordedRules(
        mode,
        _names(rules["on"]),
        sequence_by,
        _names(rules["except_columns"]),
        expect,
        _age(rules.get("tombstones")),
        bool(rules.get("skip_unchanged")),
        rules.get("when_matched"),
        rules.get("when_not_matched"),
    )


def _names(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise TypeError(values)
    if repeated_names(values):
        raise ValueError(values)
    return tuple(values)


def _age(seconds: object) -> timedelta | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(seconds)
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(seconds)
    # Its seconds as a float are rounded up.
    return timedelta.max if seconds == _LONGEST_SECONDS else timedelta(seconds=seconds)
