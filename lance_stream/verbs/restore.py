"""Restores an older version's rows, columns and config as the newest version.

Until the new version exists, a tag protects the older one from a cleanup, which could otherwise
delete its files between reading its manifest and publishing the new one.
"""

from lance_stream.arguments import as_number
from lance_stream.errors import InvalidInputError
from lance_stream.ledger.foreign_restores import KEEPS_LEDGER
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.resolving import VersionSpec, version_on_branch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import hold_version
from lance_stream.table.detached import check_is_attached
from lance_stream.table.operations.versions import Restore
from lance_stream.write.planning import commit_planned, replan_on_conflict


def restore(table: TableVersion, version: VersionSpec) -> TableVersion:
    """Bring back the contents of an older version; see `Dataset.restore`.

    Args:
        table: Any version.
        version: The older one.

    Raises:
        NotFoundError: The version does not exist, or no longer exists.
        InvalidInputError: The version belongs to another branch.
        CommitError: Every attempt conflicted with other commits.
    """
    number = _number_of(table, version)
    check_is_attached(number)

    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        settings = {KEEPS_LEDGER: "true"}
        return commit_planned(newest, Restore(number), properties=settings).table

    table.log.read(number)  # if it was removed, the error lists the existing ones
    with hold_version(table.refs, number):
        return replan_on_conflict(attempt)


def _number_of(table: TableVersion, version: VersionSpec) -> int:
    """Return the number of a version, which must be on the table's branch."""
    number = as_number(version)
    if version is None or (number is not None and number < 1):
        raise InvalidInputError(
            "restore takes an older version: a whole number from 1, a tag or a timestamp; not "
            f"{version!r:.200}"
        )
    if number is not None:
        return number
    return version_on_branch(table, version)
