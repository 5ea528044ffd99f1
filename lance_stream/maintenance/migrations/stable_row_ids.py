"""Migrates a table to stable row ids: every row gets one, in one transaction.

Only the manifest changes. `table.apply.stable_row_ids` defines what rows and versions get, and what
prevents a migration. The ids depend on the whole table, so the migration is planned again whenever
another version was committed in between; it is quick.
"""

from collections.abc import Callable
from dataclasses import replace

from lance_stream.errors import RetryableConflictError
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import Creation
from lance_stream.table.apply.stable_row_ids import check_can_have_row_ids, with_row_ids
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.columns import Merge
from lance_stream.write.planning import commit_planned, replan_on_conflict


def migrate(table: TableVersion) -> TableVersion:
    """Give every row of a table a stable id; see `lance_stream.migrate_to_stable_row_ids`.

    Args:
        table: Any version; the newest one is migrated.

    Raises:
        InvalidInputError: There are indices.
        CommitError: Every attempt conflicted with other commits.
    """

    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        if newest.has_stable_row_ids:
            return newest
        check_can_have_row_ids(newest.manifest)
        sized = [
            replace(fragment, physical_rows=newest.physical_rows(fragment))
            for fragment in newest.manifest.fragments
        ]
        fragments, _ = with_row_ids(sized, newest.manifest.next_row_id)
        operation = Merge(tuple(fragments), newest.schema, preserves_nullability=True)
        return commit_planned(
            newest,
            operation,
            check=_is_still(newest.version),
            creation=Creation(newest.manifest.data_format, stable_row_ids=True),
        ).table

    return replan_on_conflict(attempt)


def _is_still(version: int) -> Callable[[Manifest], None]:
    """Return a check that raises on a newer version, which may have new rows or indices."""

    def check(newest: Manifest) -> None:
        if newest.version != version:
            raise RetryableConflictError(
                f"stable row ids were planned on version {version}, but version {newest.version} "
                "is the newest now. Plan them again",
                newest.version,
            )

    return check
