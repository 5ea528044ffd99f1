"""Which versions an interval of the feed has: after one, through another; or from moment to moment.

`after` is exclusive and `through` inclusive; 0 stands before the first version.
"""

from bisect import bisect_left, bisect_right
from datetime import datetime

from lance_stream.dataset.opening import as_number
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.timestamps import nanos_of
from lance_stream.errors import InvalidInputError, NotFoundError


def checked_interval(table: TableVersion, after: object, through: object) -> tuple[int, int]:
    """Return the ends of an interval.

    Raises:
        InvalidInputError: They are no numbers, or no interval of versions that are there.
    """
    first, last = as_number(after), as_number(through)
    if first is None or last is None:
        raise InvalidInputError(
            f"an interval has numbers of versions at its ends, not {after!r} and {through!r}"
        )
    if not 0 <= first <= last:
        raise InvalidInputError(
            f"changes after version {first} and through version {last} are no interval: after "
            "is exclusive, 0 stands before the first version, and through is not less than it"
        )
    if last > table.version and last > (latest := table.log.latest()):
        raise InvalidInputError(
            f"changes through version {last} are asked for, but the newest version is {latest}"
        )
    return first, last


def version_of_interval(
    table: TableVersion, version: int, after: int, through: int
) -> TableVersion:
    """Return one version of an interval.

    Raises:
        NotFoundError: It is gone; the message says which versions are left.
    """
    if version == table.version:
        return table
    try:
        return table.at(table.log.read(version))
    except NotFoundError as error:
        versions = [each for each in table.log.versions() if each <= through]
        there = f"{versions[0]} to {versions[-1]}" if versions else "none of them"
        raise NotFoundError(
            f"the changes after version {after} and through version {through} need version "
            f"{version}, which has been cleaned up; of the versions through {through} there are "
            f"still {there}. Begin at a version that is there, with a snapshot of it"
        ) from error


def first_version_since(table: TableVersion, moment: datetime) -> int:
    """Return the first version committed at or after a moment; the newest plus 1 if none was.

    Raises:
        InvalidInputError: The moment has no time zone.
    """
    versions = table.log.versions()
    place = bisect_left(versions, nanos_of(moment), key=lambda each: _micros(table, each))
    return versions[place] if place < len(versions) else versions[-1] + 1


def last_version_until(table: TableVersion, moment: datetime) -> int:
    """Return the last version committed at or before a moment.

    Raises:
        InvalidInputError: The moment has no time zone, or is before the oldest version left.
    """
    versions = table.log.versions()
    place = bisect_right(versions, nanos_of(moment), key=lambda each: _micros(table, each))
    if not place:
        raise InvalidInputError(
            f"no version was there at {moment.isoformat()}; the oldest one left is version "
            f"{versions[0]}"
        )
    return versions[place - 1]


def _micros(table: TableVersion, version: int) -> int:
    """Return when a version was committed, in nanoseconds, of which whole microseconds count."""
    return (table.log.read(version).timestamp_nanos or 0) // 1000 * 1000
