"""Deletes the rows that match a condition by writing deletion files; no data file is touched.

Only the columns of the condition are read. A new deletion file also contains the rows that were
already deleted. A fragment whose rows are all deleted is removed from the table.
"""

from lance_stream.environment import MACHINE, Environment
from lance_stream.row_updates.changed_rows import chosen_rows, without_rows
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.operations.rows import Delete
from lance_stream.write.planning import StagedFiles, commit_planned, replan_on_conflict


def delete(table: TableVersion, predicate: str, environment: Environment = MACHINE) -> TableVersion:
    """Delete the rows for which a condition is true; see `Dataset.delete`.

    Args:
        table: Any version; the rows of the newest one are deleted.
        predicate: A SQL expression.
        environment: The clock and randomness; sleeps between two attempts.

    Raises:
        NotFoundError: The condition names a column that does not exist.
        InvalidInputError: The condition is invalid.
    """

    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        check_may_write(newest.manifest)
        addresses = chosen_rows(newest, predicate)
        if not len(addresses):
            return newest
        updated, removed = without_rows(newest, addresses, environment)
        operation = Delete(updated, removed, predicate)
        staged = StagedFiles(with_deletion_files=updated)
        return commit_planned(newest, operation, staged, environment=environment).table

    return replan_on_conflict(attempt, environment=environment)
