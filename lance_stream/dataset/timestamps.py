"""When versions were committed, and how users say when: always in UTC."""

from datetime import UTC, datetime, timedelta

from lance_stream.errors import InvalidInputError
from lance_stream.table.manifest import Manifest

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment that stands for one which nobody knows."""


def timestamp_of(manifest: Manifest) -> datetime | None:
    """Return when a version was committed, to the microsecond; None if its writer did not say."""
    if manifest.timestamp_nanos is None:
        return None
    return LONG_AGO + timedelta(microseconds=manifest.timestamp_nanos // 1000)


def nanos_of(moment: datetime) -> int:
    """Return a moment as nanoseconds since 1970-01-01 UTC.

    Raises:
        InvalidInputError: It has no time zone, so that nobody knows which moment is meant.
    """
    if moment.tzinfo is None:
        raise InvalidInputError(
            f"{moment.isoformat()} has no time zone; say which moment you mean, for example with "
            "datetime(..., tzinfo=UTC)"
        )
    return (moment - LONG_AGO) // timedelta(microseconds=1) * 1000


def as_rfc3339(nanos: int) -> str:
    """Return a moment as text, with 0, 3, 6 or 9 digits of the second: as few as tell it.

    Args:
        nanos: Nanoseconds since 1970-01-01 UTC.
    """
    seconds, rest = divmod(nanos, 1_000_000_000)
    text = (LONG_AGO + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    if rest == 0:
        return f"{text}Z"
    digits = next(each for each in (3, 6, 9) if rest % 10 ** (9 - each) == 0)
    return f"{text}.{rest // 10 ** (9 - digits):0{digits}}Z"
