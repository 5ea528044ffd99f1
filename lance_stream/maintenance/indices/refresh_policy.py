"""Decides when a sink updates an index: `keep_indices_fresh`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from numbers import Real
from typing import Final

from lance_stream.arguments import as_number
from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.indices.coverage import IndexCoverage

MIN_ROWS_FOR_FRACTION: Final = 1000
"""The limit `fraction` does not apply to fewer unindexed rows: scanning them takes no time."""


@dataclass(frozen=True)
class RefreshPolicy:
    """When an index is due for an update: as soon as one of the limits is reached.

    Attributes:
        fraction: The fraction of rows that the index lacks, above 0 and at most 1. It applies from
            `MIN_ROWS_FOR_FRACTION` unindexed rows on.
        rows: The number of rows that the index lacks.
        age: The time since the last update, if the index lacks any row. An index without a recorded
            time counts as old.
    """

    fraction: float | None = None
    rows: int | None = None
    age: timedelta | None = None

    def reason(self, index: IndexCoverage, now: datetime) -> str | None:
        """Return why an index is due, in a few words; None if it is not due."""
        missing = index.rows_unindexed
        if not missing:  # none, or unknown
            return None
        fraction = missing / ((index.rows_indexed or 0) + missing)
        exceeds_fraction = (
            self.fraction is not None
            and fraction >= self.fraction
            and missing >= MIN_ROWS_FOR_FRACTION
        )
        exceeds_rows = self.rows is not None and missing >= self.rows
        age = index.age(now)
        is_old = self.age is not None and (age is None or age >= self.age)
        if not (exceeds_fraction or exceeds_rows or is_old):
            return None
        return f"{index.name} lacks {missing} rows ({fraction:.1%})"

    def due(self, indices: Sequence[IndexCoverage], now: datetime) -> dict[str, str]:
        """Return the names of the indices that are due, with the reasons."""
        reasons = {index.name: self.reason(index, now) for index in indices}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def seconds_until_due(self, indices: Sequence[IndexCoverage], now: datetime) -> float | None:
        """Return the seconds until the first index is due if nothing is written until then.

        Args:
            indices: Indices that are not due yet.
            now: The time.

        Returns:
            None if no index becomes due by its age.
        """
        if self.age is None:
            return None
        ages = [index.age(now) for index in indices if index.rows_unindexed]
        seconds = [(self.age - age).total_seconds() for age in ages if age is not None]
        return max(0.0, min(seconds)) if seconds else None


DEFAULT: Final = RefreshPolicy(fraction=0.01)
"""The policy of `keep_indices_fresh=True`."""

_LIMITS: Final = ("fraction", "rows", "age")


def as_refresh_policy(value: object) -> RefreshPolicy | None:
    """Return when indices are due for an update; None for never.

    Args:
        value: True, False or None; or a mapping of some of "fraction", "rows" and "age".

    Raises:
        InvalidInputError: The value has another type, or a limit is invalid.
    """
    if value is None or value is False:
        return None
    if value is True:
        return DEFAULT
    if isinstance(value, RefreshPolicy):
        return value
    if not isinstance(value, Mapping) or not value:
        raise InvalidInputError(
            "keep_indices_fresh must be True, or a mapping of limits such as "
            f"{{'fraction': 0.05, 'age': '10 minutes'}}, not {value!r:.200}"
        )
    unknown = [key for key in value if key not in _LIMITS]
    if unknown:
        raise InvalidInputError(
            f"keep_indices_fresh has no limit {unknown[0]!r}; it has: {', '.join(_LIMITS)}"
        )
    fraction, rows, age = (value.get(limit) for limit in _LIMITS)
    if fraction is None and rows is None and age is None:
        raise InvalidInputError(
            f"keep_indices_fresh has no limit: {dict(value)!r:.200}. Set one, such as "
            "{'fraction': 0.05}, or pass False to leave indices as they are"
        )
    is_number = isinstance(fraction, Real) and not isinstance(fraction, bool)
    if fraction is not None and not (is_number and 0 < fraction <= 1):
        raise InvalidInputError(
            "the limit 'fraction' of keep_indices_fresh must be above 0 and at most 1, such as "
            f"0.05, not {fraction!r:.200}"
        )
    number = as_number(rows)
    if rows is not None and (number is None or number < 1):
        raise InvalidInputError(
            "the limit 'rows' of keep_indices_fresh must be an integer of at least 1, such as "
            f"100_000, not {rows!r:.200}"
        )
    try:
        parsed = None if age is None else parse_age(age)
    except InvalidInputError as error:
        raise InvalidInputError(f"the limit 'age' of keep_indices_fresh: {error}") from error
    return RefreshPolicy(None if fraction is None else float(fraction), number, parsed)
