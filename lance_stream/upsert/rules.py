"""The user's rules for an upsert, checked as far as possible without a batch or a table."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lance_stream.arguments import as_flag, repeated_names
from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import parse_expression, with_fixed_time

FOR_GOOD: Final = timedelta.max
"""The age of tombstones that never expire."""

SEQUENCE: Final = "__SEQUENCE"
"""The sequence column of tables that do not store the sequence as one of the user's columns."""

START_AT: Final = "__START_AT"
"""The column of a history with the sequence of a row's first event."""

END_AT: Final = "__END_AT"
"""The column of a history with the sequence at which a row ends; null in current rows."""

UPDATE: Final = "update"
"""The default of `when_matched`: update the stored row."""

INSERT: Final = "insert"
"""The default of `when_not_matched`: insert the row."""

IGNORE: Final = "ignore"
"""Skip the row."""

SOURCE: Final = "source"
"""The name of the incoming row in conditions."""

TARGET: Final = "target"
"""The name of the table's row in conditions."""


@dataclass(frozen=True)
class HistoryRules:
    """The rules for rows that are events of a history; see `histories`.

    Attributes:
        tracked: The columns whose changes start a new row; None for all stored columns except keys
            and `untracked`.
        untracked: The columns whose changes overwrite the current row.
    """

    tracked: tuple[str, ...] | None = None
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpsertRules:
    """The user's rules for the incoming rows.

    Attributes:
        on: The key columns.
        sequence_by: The column that orders rows of one key; None if a key occurs once.
        delete_when: A SQL condition on an incoming row, true if the row deletes. None: no row
            deletes.
        except_columns: Columns of the incoming rows that are not stored.
        skip_unchanged: Whether rows whose values would not change are left untouched.
        tombstones: How long deletes are remembered. A row that is older than a remembered delete
            of its key changes nothing, even if it arrives later. None: deletes are not remembered.
        applies_changes: Whether the rows come from a change feed, whose columns define the order
            and the deletes. Then `sequence_by`, `delete_when` and `tombstones` are None, and
            `except_columns` includes the feed's columns.
        deletes_win: Whether a delete is newer than other rows of its key with the same sequence;
            otherwise two such rows are an error.
        history: How the table keeps the history of its keys (`histories`); None if it keeps only
            their current rows.
        when_matched: What happens to the stored row if the incoming row does not delete: `UPDATE`,
            `IGNORE`, or a SQL condition over `source.<column>` and `target.<column>` that is true
            for rows to update.
        when_not_matched: What happens if there is no stored row: `INSERT`, `IGNORE`, or a
            condition over `source.<column>`.
    """

    on: tuple[str, ...]
    sequence_by: str | None = None
    delete_when: str | None = None
    except_columns: tuple[str, ...] = ()
    skip_unchanged: bool = False
    tombstones: timedelta | None = None
    applies_changes: bool = False
    deletes_win: bool = False
    history: HistoryRules | None = None
    when_matched: str = UPDATE
    when_not_matched: str = INSERT

    def __post_init__(self) -> None:
        as_flag("skip_unchanged", self.skip_unchanged)
        for name in repeated_names(self.on):
            raise InvalidInputError(f"the key column {name!r} is named twice")


def check_conditions(when_matched: str | None, when_not_matched: str | None) -> None:
    """Raise unless both conditions can be parsed. `prepare` checks that their columns exist.

    Args:
        when_matched: As in `UpsertRules`; None to update.
        when_not_matched: As in `UpsertRules`; None to insert.

    Raises:
        InvalidInputError: A condition cannot be parsed.
    """
    for value, default in ((when_matched, UPDATE), (when_not_matched, INSERT)):
        if value not in (None, default, IGNORE):
            parse_expression(str(value))


def with_one_time(condition: str | None, default: str) -> str:
    """Return a condition whose current time is fixed to the time of this call."""
    if condition is None:
        return default
    if not isinstance(condition, str) or condition in (default, IGNORE):
        return condition  # other types than text are refused later
    return with_fixed_time(condition)


def check_can_remember(
    tombstones: timedelta | None, sequence_by: str | None, delete_when: str | None
) -> None:
    """Raise if deletes are to be remembered, but the rules define no deletes or no order.

    Raises:
        InvalidInputError: `sequence_by` or `delete_when` is missing.
    """
    if tombstones is not None and (sequence_by is None or delete_when is None):
        raise InvalidInputError(
            "tombstones remember deletes and their order: set the condition for deletes "
            "(delete_when) and the column that orders rows of one key (sequence_by), or omit "
            "tombstones"
        )
