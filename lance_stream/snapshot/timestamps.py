"""Commit timestamps, and times that users specify.

A time without a zone is in UTC: in Python's datetimes, options, the command line, and literals in
SQL. It is never in the zone of the machine or of the Spark session, which the processes that read
options do not know; decision 030 explains why.

Times are limited to the range of Python's datetimes, years 1 to 9999, and clamped to it.
"""

from datetime import UTC, datetime, timedelta

from lance_stream.table.manifest import Manifest

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""The time that represents an unknown one."""

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def timestamp_of(manifest: Manifest) -> datetime | None:
    """Return the commit time of a version in microseconds; None if its writer did not record it."""
    if manifest.timestamp_nanos is None:
        return None
    return moment_at(manifest.timestamp_nanos // 1000)


def moment_at(micros: int) -> datetime:
    """Return a time in UTC, clamped to the range of datetime.

    Args:
        micros: Microseconds since 1970-01-01 UTC.
    """
    first, last = (_FIRST - LONG_AGO) // _MICROSECOND, (_LAST - LONG_AGO) // _MICROSECOND
    return LONG_AGO + timedelta(microseconds=min(max(micros, first), last))


def parse_moment(text: str) -> datetime:
    """Parse an ISO 8601 time; without a zone it is in UTC.

    Raises:
        ValueError: The text is not an ISO 8601 time.
    """
    return with_zone(datetime.fromisoformat(text.strip()))


def with_zone(moment: datetime) -> datetime:
    """Return a time with a zone: UTC if it has none."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def in_utc(moment: datetime) -> datetime:
    """Convert a time to UTC, clamped to the range of datetime.

    `0001-01-01T00:00:00+14:00` in UTC is in the year before the first.
    """
    return moment_at((with_zone(moment) - LONG_AGO) // _MICROSECOND)


def nanos_of(moment: datetime) -> int:
    """Return a time as nanoseconds since 1970-01-01 UTC; without a zone it is in UTC."""
    return (with_zone(moment) - LONG_AGO) // _MICROSECOND * 1000


def as_rfc3339(nanos: int) -> str:
    """Format a time with 0, 3, 6 or 9 fractional digits, as few as are exact.

    Args:
        nanos: Nanoseconds since 1970-01-01 UTC.
    """
    seconds, rest = divmod(nanos, 1_000_000_000)
    text = (LONG_AGO + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    if rest == 0:
        return f"{text}Z"
    digits = next(num_digits for num_digits in (3, 6, 9) if rest % 10 ** (9 - num_digits) == 0)
    return f"{text}.{rest // 10 ** (9 - digits):0{digits}}Z"
