"""Migrates a table to stable row ids: assigns one to every row, in one transaction.

Only the manifest changes. `table.apply.stable_row_ids` defines the ids and row versions, and what
prevents a migration. The ids depend on the whole table, so the migration, which is quick, is
planned again whenever another writer has committed a version.
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
        InvalidInputError: The table has indices.
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
            check=_check_is_newest(newest.version),
            creation=Creation(newest.manifest.data_format, stable_row_ids=True),
        ).table

    return replan_on_conflict(attempt)


def _check_is_newest(version: int) -> Callable[[Manifest], None]:
    """Return a check that raises on a newer version, which may have new rows or indices."""

    def check(newest: Manifest) -> None:
        if newest.version != version:
            raise RetryableConflictError(
                f"the migration to stable row ids was planned on version {version}, but the newest "
                f"version is now {newest.version}. Plan it again",
                newest.version,
            )

    return check
