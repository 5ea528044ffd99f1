"""When a sink brings an index up to date: `keep_indices_fresh`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from numbers import Real
from typing import Final

from lance_stream.arguments import as_number
from lance_stream.durations import parse_age
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.indices.coverage import IndexCoverage

FEW_ROWS: Final = 1000
"""As long as fewer rows are missing, no share is too large: to scan them takes no time."""


@dataclass(frozen=True)
class FreshIndices:
    """From when on an index is brought up to date: one limit that is reached suffices.

    Attributes:
        fraction: The share of the rows that it misses, above 0 and at most 1, from `FEW_ROWS` rows
            on.
        rows: How many rows it misses.
        age: How long ago it was brought up to date, if it misses any row; an index whose writer did
            not record when counts as old.
    """

    fraction: float | None = None
    rows: int | None = None
    age: timedelta | None = None

    def reason(self, index: IndexCoverage, now: datetime) -> str | None:
        """Return in a few words why an index is to be brought up to date; None if it is not."""
        missing = index.rows_unindexed
        if not missing:  # none, or unknown
            return None
        share = missing / ((index.rows_indexed or 0) + missing)
        is_large = self.fraction is not None and share >= self.fraction and missing >= FEW_ROWS
        is_many = self.rows is not None and missing >= self.rows
        age = index.age(now)
        is_old = self.age is not None and (age is None or age >= self.age)
        if not (is_large or is_many or is_old):
            return None
        return f"{index.name} misses {missing} rows ({share:.1%})"

    def due(self, indices: Sequence[IndexCoverage], now: datetime) -> dict[str, str]:
        """Return the names of the indices to be brought up to date, each with the reason."""
        found = {index.name: self.reason(index, now) for index in indices}
        return {name: reason for name, reason in found.items() if reason is not None}

    def seconds_until_due(self, indices: Sequence[IndexCoverage], now: datetime) -> float | None:
        """Return after how many seconds the first index is due, if nothing is written until then.

        Args:
            indices: Those that are not due yet.
            now: The time.

        Returns:
            None if none will be.
        """
        if self.age is None:
            return None
        ages = [index.age(now) for index in indices if index.rows_unindexed]
        left = [(self.age - age).total_seconds() for age in ages if age is not None]
        return max(0.0, min(left)) if left else None


USUAL: Final = FreshIndices(fraction=0.01)
"""What `keep_indices_fresh=True` stands for."""

_LIMITS: Final = ("fraction", "rows", "age")


def as_policy(value: object) -> FreshIndices | None:
    """Return from when on indices are brought up to date; None for never.

    Args:
        value: True, False or None; or a mapping of some of "fraction", "rows" and "age".

    Raises:
        InvalidInputError: It is none of these, or a limit is invalid.
    """
    if value is None or value is False:
        return None
    if value is True:
        return USUAL
    if isinstance(value, FreshIndices):
        return value
    if not isinstance(value, Mapping) or not value:
        raise InvalidInputError(
            "keep_indices_fresh is True, or says from when on an index is brought up to date: "
            f"{{'fraction': 0.05, 'age': '10 minutes'}}, not {value!r:.200}"
        )
    unknown = [each for each in value if each not in _LIMITS]
    if unknown:
        raise InvalidInputError(
            f"keep_indices_fresh has no limit {unknown[0]!r}; it has: {', '.join(_LIMITS)}"
        )
    fraction, rows, age = (value.get(limit) for limit in _LIMITS)
    if fraction is None and rows is None and age is None:
        raise InvalidInputError(
            f"keep_indices_fresh has no limit: {dict(value)!r:.200}. Give one that is not None, "
            "such as {'fraction': 0.05}; False to leave indices as they are"
        )
    is_share = isinstance(fraction, Real) and not isinstance(fraction, bool)
    if fraction is not None and not (is_share and 0 < fraction <= 1):
        raise InvalidInputError(
            "the limit 'fraction' of keep_indices_fresh is a share of the rows, above 0 and at "
            f"most 1, such as 0.05; not {fraction!r:.200}"
        )
    number = as_number(rows)
    if rows is not None and (number is None or number < 1):
        raise InvalidInputError(
            "the limit 'rows' of keep_indices_fresh is a whole number from 1, such as 100_000; not "
            f"{rows!r:.200}"
        )
    try:
        parsed = None if age is None else parse_age(age)
    except InvalidInputError as error:
        raise InvalidInputError(f"the limit 'age' of keep_indices_fresh: {error}") from error
    return FreshIndices(None if fraction is None else float(fraction), number, parsed)
