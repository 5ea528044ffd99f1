"""Deleting rows: what a condition chooses dies, in new deletion files; no data file is touched.

Only the columns of the condition are read. A deletion file is complete: it holds the rows that
were dead before, too. A fragment of which every row is dead leaves the table.
"""

from dataclasses import dataclass

from lance_stream.commit.committer import Skipped
from lance_stream.commit.world import REAL_WORLD, World
from lance_stream.dataset.changed_rows import chosen_rows, delete_deletion_files, without_rows
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.storage.store import Store
from lance_stream.table.operations import Delete


@dataclass(frozen=True)
class PlannedDelete:
    """A delete that was planned on a version, its deletion files written.

    Attributes:
        operation: What is to be committed.
        num_rows: How many rows die by it.
    """

    operation: Delete
    num_rows: int

    def delete_files(self, store: Store) -> None:
        """Delete the files of a plan that is known not to have been committed, best effort."""
        delete_deletion_files(store, self.operation.updated_fragments)


def delete(table: TableVersion, predicate: str, world: World = REAL_WORLD) -> TableVersion:
    """Delete the rows for which a condition is true; see `Dataset.delete`.

    Args:
        table: Any version; the rows of the newest one are deleted.
        predicate: A SQL expression.
        world: Clock and chance.
    """

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        plan = plan_delete(newest, predicate, world)
        if not plan.num_rows:
            return newest
        try:
            result = commit_operation(table.log, newest.version, plan.operation)
        except CommitConflictError:
            plan.delete_files(table.store)  # known to have failed
            raise
        if isinstance(result, Skipped):
            raise InvalidInputError(f"nothing was deleted: {result.reason}")
        return table.at(result.manifest)

    return planning_again(attempt)


def plan_delete(table: TableVersion, predicate: str, world: World) -> PlannedDelete:
    """Find the rows for which a condition is true, and write the deletion files that say so.

    Raises:
        NotFoundError: The condition names a column that is not there.
        InvalidInputError: The condition is not understood.
    """
    addresses = chosen_rows(table, predicate)
    updated, removed = without_rows(table, addresses, world)
    return PlannedDelete(Delete(updated, removed, predicate), len(addresses))
