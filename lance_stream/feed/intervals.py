"""Intervals of the feed: their ends are versions, tags or commit timestamps.

`after` is exclusive, `through` is inclusive, and 0 is before the first version.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from lance_stream.arguments import as_number
from lance_stream.caches import Cache
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.snapshot.resolving import version_on_branch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import moment_at, nanos_of, with_zone
from lance_stream.table.detached import check_is_attached

IntervalEnd: TypeAlias = int | str | datetime
"""A version's number, a tag, or a commit timestamp (in UTC if it has no zone)."""

CLOCK_SKEW: Final = 60 * 10**9
"""The maximum difference between the clocks of a table's writers, in nanoseconds."""

_LOOK_BACK: Final = 16
"""How many earlier versions are read for the commit timestamp of a version."""

_MICROSECOND: Final = 1000
_MAX_CACHED: Final = 1024

_commit_times: Final[Cache[tuple[str, int, int], datetime]] = Cache(_MAX_CACHED)


def checked_interval(table: TableVersion, after: object, through: object) -> tuple[int, int]:
    """Validate the ends of an interval and return them as numbers.

    Args:
        table: The table.
        after: See `version_before`.
        through: See `last_version`.

    Raises:
        NotFoundError: There is no such tag.
        InvalidInputError: They are not ends of an interval, are in the wrong order, or are after
            the newest version.
    """
    if isinstance(after, datetime) and isinstance(through, datetime):
        _check_order(after, through)
    first, last = version_before(table, after), last_version(table, through)
    for version in (table.version, first, last):
        check_is_attached(version)
    if not 0 <= first <= last or not last:
        raise InvalidInputError(
            f"after version {first} and through version {last} is not an interval: 'after' is "
            "exclusive, from 0 (before the first version); 'through' is inclusive, at least 1 and "
            f"not less than 'after'. The newest version is {table.log.latest()}"
        )
    if last > table.version and last > (latest := table.log.latest()):
        raise InvalidInputError(
            f"changes through version {last} were requested, but the newest version is {latest}"
        )
    return first, last


def _check_order(after: datetime, through: datetime) -> None:
    if with_zone(through) < with_zone(after):
        raise InvalidInputError(
            f"the interval ends ({with_zone(through).isoformat()}) before it starts "
            f"({with_zone(after).isoformat()})"
        )


def version_before(table: TableVersion, after: object) -> int:
    """Return the version after which an interval begins.

    Args:
        table: The table.
        after: The version's number or tag; or a time, at or after which the first commit of the
            interval was made.

    Raises:
        NotFoundError: There is no such tag.
        InvalidInputError: It is none of them, or a tag of another branch.
    """
    if isinstance(after, datetime):
        return first_version_since(table, after) - 1
    return _number(table, after, "after")


def check_is_past(moment: datetime, name: str, remedy: str) -> None:
    """Raise if a reader that waits for versions would start or end at a future time.

    Args:
        moment: The time.
        name: The argument or option, for the message.
        remedy: What to do instead, for the message.

    Raises:
        InvalidInputError: The time is in the future.
    """
    moment = with_zone(moment)
    if moment > datetime.now(UTC):
        raise InvalidInputError(f"{name} is {moment.isoformat()}, which is in the future; {remedy}")


def check_can_follow(uri: str, after: int, newest: int) -> None:
    """Raise unless a reader that waits for versions can start after a version.

    Args:
        uri: The table, for the message.
        after: The version; 0 is before the first.
        newest: The newest version.

    Raises:
        InvalidInputError: The version is negative or newer.
    """
    if not 0 <= after <= newest:
        raise InvalidInputError(
            f"cannot follow {uri} after version {after}: its newest version is {newest}. "
            "Start after version 0 (before the first one) or any version up to the newest"
        )


def last_version(table: TableVersion, through: object) -> int:
    """Return the last version of an interval.

    Args:
        table: The table.
        through: The version's number or tag; or a time, at or before which the last commit of the
            interval was made.

    Raises:
        NotFoundError: There is no such tag; or versions that may have been committed by the time
            have been cleaned up.
        InvalidInputError: It is none of them, or a tag of another branch; or all versions are newer
            than the time.
    """
    if isinstance(through, datetime):
        return last_version_until(table, through)
    return _number(table, through, "through")


def _number(table: TableVersion, version: object, name: str) -> int:
    if isinstance(version, str):
        return version_on_branch(table, version)
    number = as_number(version)
    if number is None:
        raise InvalidInputError(
            f"{name} must be a version's number, a tag or a datetime, not {version!r:.200}"
        )
    return number


def version_of_interval(
    table: TableVersion, version: int, after: int, through: int
) -> TableVersion:
    """Return one version of an interval.

    Raises:
        NotFoundError: The version no longer exists; the message suggests where to start.
    """
    if version == table.version:
        return table
    try:
        return table.read_at(version)
    except NotFoundError as error:
        versions = [version for version in table.log.versions() if version <= through]
        reason = "which has been cleaned up"
        if table.manifest.base_paths:
            reason += ", or belongs to the history from which this branch or clone started"
        raise NotFoundError(
            f"the changes after version {after} and through version {through} need "
            f"version {version}, {reason}; existing versions through {through}: "
            f"{_as_ranges(versions)}. {_suggested_start(versions, through)}"
        ) from error


def _as_ranges(versions: Sequence[int]) -> str:
    """Return ascending versions as text, such as "1, 5 to 7"; tags leave isolated versions."""
    ranges: list[list[int]] = []
    for version in versions:
        if ranges and ranges[-1][-1] == version - 1:
            ranges[-1] = [ranges[-1][0], version]
        else:
            ranges.append([version])
    return ", ".join(" to ".join(map(str, ends)) for ends in ranges) or "none"


def _suggested_start(versions: Sequence[int], through: int) -> str:
    """Return the remedy for an interval that starts before the existing versions."""
    if not versions or versions[-1] != through:
        return "Read a snapshot of the newest version, and start after it"
    first = first_without_gaps(versions)
    return (
        f"Read a snapshot of version {first}, and start after it (in Spark, startingVersion "
        f"{first + 1}, which is the first version whose changes are read)"
    )


def first_without_gaps(versions: Sequence[int]) -> int:
    """Return the first version from which on none is missing, up to the last of some versions.

    Args:
        versions: Existing versions, ascending; at least one.
    """
    index = len(versions) - 1
    while index and versions[index - 1] == versions[index] - 1:
        index -= 1
    return versions[index]


def first_version_since(table: TableVersion, moment: datetime) -> int:
    """Return the first version committed at or after a moment, or one past the newest version."""
    versions = table.log.versions()
    index = _first_index(table, versions, nanos_of(moment))
    return versions[index] if index < len(versions) else versions[-1] + 1


def last_version_until(table: TableVersion, moment: datetime) -> int:
    """Return the last version committed at or before a moment.

    Raises:
        InvalidInputError: The moment is before the oldest existing version.
        NotFoundError: Later versions may have been committed by the moment, but have been cleaned
            up.
    """
    versions = table.log.versions()
    index = _first_index(table, versions, nanos_of(moment) + _MICROSECOND)
    if not index:
        raise InvalidInputError(
            f"no version existed at {with_zone(moment).isoformat()}; the oldest one is "
            f"version {versions[0]}"
        )
    last = versions[index - 1]
    is_gap = index < len(versions) and versions[index] != last + 1
    if is_gap and _nanos(table, last) < nanos_of(moment):
        raise NotFoundError(
            f"the last version committed at or before {with_zone(moment).isoformat()} is unknown: "
            f"the versions between {last} and {versions[index]} have been cleaned up. End "
            f"the interval with version {last} or {versions[index]} instead"
        )
    return last


def commit_time(table: TableVersion) -> datetime:
    """Return the commit timestamp of a version's changes, which never precedes an older version's.

    The clocks of writers differ, so the manifest of a version may state an earlier time than that
    of its predecessor.
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
        cache_commit_time(table, cached)
    return cached


def cache_commit_time(table: TableVersion, moment: datetime) -> None:
    """Cache the commit timestamp of a version's changes."""
    key = table.uri, table.version, table.manifest.timestamp_nanos or 0
    _commit_times.put(key, moment)


def _first_index(table: TableVersion, versions: Sequence[int], nanos: int) -> int:
    """Return the index of the first version that was committed at or after a moment.

    Timestamps ascend except for clock skew. So a binary search finds a candidate, and then all
    versions before it are examined whose timestamps are within the skew.
    """
    index = candidate = bisect_left(versions, nanos, key=lambda version: _nanos(table, version))
    while candidate and (timestamp := _nanos(table, versions[candidate - 1])) >= nanos - CLOCK_SKEW:
        candidate -= 1
        if timestamp >= nanos:
            index = candidate
    return index


def _nanos(table: TableVersion, version: int) -> int:
    """Return the commit time of a version in nanoseconds, rounded down to microseconds."""
    timestamp = table.log.read(version).timestamp_nanos or 0
    return timestamp // _MICROSECOND * _MICROSECOND
