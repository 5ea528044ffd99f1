"""Restoring: an older version's rows, columns and config once more, as the newest version.

Until the new version is there, a tag holds the older one: its files must not be cleaned up between
the look at what it has and the publication.
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
    """Bring back what an older version had; see `Dataset.restore`.

    Args:
        table: Any version.
        version: The older one.

    Raises:
        NotFoundError: There is no such version (any more).
        InvalidInputError: It is no number.
        CommitError: Others were in the way each time.
    """
    number = as_number(version)
    if number is None or number < 1:
        raise InvalidInputError(
            "what is restored is a version, a whole number from 1: that of a tag or moment is "
            f"checkout(...).version; not {version!r:.200}"
        )

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        kept = {KEEPS_LEDGER: "true"}
        return commit_planned(newest, Restore(number), properties=kept).table

    table.log.read(number)  # if it is gone, this says which ones there are
    with holding(table.refs, number):
        return planning_again(attempt)
