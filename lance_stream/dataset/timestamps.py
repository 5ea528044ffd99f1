"""When versions were committed, and how users say when: always in UTC."""

from datetime import UTC, datetime, timedelta

from lance_stream.errors import InvalidInputError
from lance_stream.table.manifest import Manifest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_of(manifest: Manifest) -> datetime | None:
    """Return when a version was committed, to the microsecond; None if its writer did not say."""
    if manifest.timestamp_nanos is None:
        return None
    return _EPOCH + timedelta(microseconds=manifest.timestamp_nanos // 1000)


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
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
