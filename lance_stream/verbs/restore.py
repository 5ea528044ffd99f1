"""Restores an older version's rows, columns and config as the newest version.

Until the new version exists, a tag protects the older one: its files must not be cleaned up between
reading its manifest and publishing the new one.
"""

from lance_stream.arguments import as_number
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.opening import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import holding
from lance_stream.table.operations import Restore
from lance_stream.write.micro_batches import KEEPS_LEDGER
from lance_stream.write.planning import commit_planned, planning_again


def restore(table: TableVersion, version: int) -> TableVersion:
    """Bring back the contents of an older version; see `Dataset.restore`.

    Args:
        table: Any version.
        version: The older one.

    Raises:
        NotFoundError: The version does not exist (any more).
        InvalidInputError: It is not a number.
        CommitError: Every attempt conflicted with other commits.
    """
    number = as_number(version)
    if number is None or number < 1:
        raise InvalidInputError(
            "restore takes a version, a whole number from 1: for a tag or a moment it is "
            f"checkout(...).version; not {version!r:.200}"
        )

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        kept = {KEEPS_LEDGER: "true"}
        return commit_planned(newest, Restore(number), properties=kept).table

    table.log.read(number)  # if it is gone, the error lists the existing ones
    with holding(table.refs, number):
        return planning_again(attempt)
