"""Intervals of the feed: the versions after one and through another, or between timestamps.

`after` is exclusive and `through` inclusive; 0 is before the first version.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from lance_stream.arguments import as_number
from lance_stream.caches import Cache
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import moment_at, nanos_of, with_zone
from lance_stream.table.detached import check_is_attached

CLOCK_SKEW: Final = 60 * 10**9
"""How many nanoseconds the clocks of a table's writers may differ by."""

_LOOK_BACK: Final = 16
_MICROSECOND: Final = 1000
_MAX_CACHED: Final = 1024

_commit_times: Final[Cache[tuple[str, int, int], datetime]] = Cache(_MAX_CACHED)


def checked_interval(table: TableVersion, after: object, through: object) -> tuple[int, int]:
    """Return the ends of an interval.

    Raises:
        InvalidInputError: They are not numbers, or not an interval of existing versions.
    """
    first, last = as_number(after), as_number(through)
    if first is None or last is None:
        raise InvalidInputError(
            f"the ends of an interval are version numbers, not {after!r} and {through!r}"
        )
    for version in (table.version, first, last):
        check_is_attached(version)
    if not 0 <= first <= last or not last:
        raise InvalidInputError(
            f"changes after version {first} and through version {last} are not an interval: after "
            "is exclusive, 0 is before the first version, and through is a version, not less than "
            "after"
        )
    if last > table.version and last > (latest := table.log.latest()):
        raise InvalidInputError(
            f"changes through version {last} were requested, but the newest version is {latest}"
        )
    return first, last


def version_of_interval(
    table: TableVersion, version: int, after: int, through: int
) -> TableVersion:
    """Return one version of an interval.

    Raises:
        NotFoundError: It no longer exists; the message says where an interval can start.
    """
    if version == table.version:
        return table
    try:
        return table.read_at(version)
    except NotFoundError as error:
        versions = [version for version in table.log.versions() if version <= through]
        reason = "which has been cleaned up"
        if table.manifest.base_paths:
            reason += ", or is in the history that this branch or clone started from"
        raise NotFoundError(
            f"the changes after version {after} and through version {through} need "
            f"version {version}, {reason}; existing versions through {through}: "
            f"{_as_ranges(versions)}. {_start_that_works(versions, through)}"
        ) from error


def _as_ranges(versions: Sequence[int]) -> str:
    """Return ascending versions in words: "1, 5 to 7"; a tag keeps one whose neighbors are gone."""
    ranges: list[list[int]] = []
    for version in versions:
        if ranges and ranges[-1][-1] == version - 1:
            ranges[-1] = [ranges[-1][0], version]
        else:
            ranges.append([version])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges) or "none"


def _start_that_works(versions: Sequence[int], through: int) -> str:
    """Return what to do instead of an interval that starts before the versions that are left."""
    existing = set(versions)
    if through not in existing:
        return "Start after the newest version, with a snapshot of it"
    first = through
    while first - 1 in existing:
        first -= 1
    return (
        f"Start after version {first}, with a snapshot of it (in Spark, startingVersion "
        f"{first + 1}: it is the first version whose changes are read)"
    )


def first_version_since(table: TableVersion, moment: datetime) -> int:
    """Return the first version committed at or after a moment; the newest plus 1 if none was."""
    versions = table.log.versions()
    index = _first_index(table, versions, nanos_of(moment))
    return versions[index] if index < len(versions) else versions[-1] + 1


def last_version_until(table: TableVersion, moment: datetime) -> int:
    """Return the last version committed at or before a moment.

    Raises:
        InvalidInputError: The moment is before the oldest version left.
    """
    versions = table.log.versions()
    index = _first_index(table, versions, nanos_of(moment) + _MICROSECOND)
    if not index:
        raise InvalidInputError(
            f"no version existed at {with_zone(moment).isoformat()}; the oldest one is "
            f"version {versions[0]}"
        )
    return versions[index - 1]


def commit_time(table: TableVersion) -> datetime:
    """Return the commit timestamp that a version's changes show: never before an older one's.

    The clocks of writers differ, so a version may claim to be older than its predecessor.
    """
    stamp = table.manifest.timestamp_nanos or 0
    cached = _commit_times.get((table.uri, table.version, stamp))
    if cached is None:
        latest = stamp
        for version in range(table.version - 1, max(table.version - 1 - _LOOK_BACK, 0), -1):
            try:
                nanos = table.log.read(version).timestamp_nanos or 0
            except NotFoundError:
                break
            latest = max(latest, nanos)
            if nanos < stamp - CLOCK_SKEW:
                break
        cached = moment_at(latest // _MICROSECOND)
        remember_commit_time(table, cached)
    return cached


def remember_commit_time(table: TableVersion, moment: datetime) -> None:
    """Keep the timestamp of a version's changes, so that the next one need not look back."""
    key = table.uri, table.version, table.manifest.timestamp_nanos or 0
    _commit_times.put(key, moment)


def _first_index(table: TableVersion, versions: Sequence[int], nanos: int) -> int:
    """Return the index of the first version that was committed at or after a moment.

    Timestamps ascend except for clock skew: all versions within the skew before are examined.
    """
    index = candidate = bisect_left(versions, nanos, key=lambda version: _nanos(table, version))
    while candidate and (timestamp := _nanos(table, versions[candidate - 1])) >= nanos - CLOCK_SKEW:
        candidate -= 1
        if timestamp >= nanos:
            index = candidate
    return index


def _nanos(table: TableVersion, version: int) -> int:
    """Return when a version was committed, in nanoseconds, rounded down to microseconds."""
    timestamp = table.log.read(version).timestamp_nanos or 0
    return timestamp // _MICROSECOND * _MICROSECOND
