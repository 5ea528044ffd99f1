"""Restoring: an older version's rows, columns and config once more, as the newest version."""

from lance_stream.commit.committer import Skipped
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError
from lance_stream.table.operations import Restore


def restore(table: TableVersion, version: int) -> TableVersion:
    """Bring back what an older version had; see `Dataset.restore`.

    Args:
        table: Any version.
        version: The older one.

    Raises:
        NotFoundError: There is no such version (any more).
        CommitError: Others were in the way each time.
    """

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        result = commit_operation(table.log, newest.version, Restore(version))
        if isinstance(result, Skipped):
            raise InvalidInputError(f"nothing was restored: {result.reason}")
        return table.at(result.manifest)

    return planning_again(attempt)
