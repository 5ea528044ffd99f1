"""The number of rows that each version changed; compares manifests where they do not state it."""

from contextlib import suppress

from lance_stream.errors import BadDataError, NotFoundError
from lance_stream.feed.row_differences import RowDifferences
from lance_stream.snapshot.history import VersionInfo, list_versions
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.changes.row_counts import ChangedRowCounts


def list_counted_versions(table: TableVersion, limit: int | None = None) -> list[VersionInfo]:
    """Return the existing versions of a table with their row counts, the newest last.

    Where a manifest does not state the counts, it is compared with the previous manifest, and
    deletion files are read. Counts remain unknown for versions whose previous version no longer
    exists, and for changes of existing rows in tables without stable row ids.

    Args:
        table: Any version.
        limit: How many of the newest versions to return, at least 1; None for all.
    """
    differences = RowDifferences(table)
    return [
        version if version.row_counts else _with_counts(table, version, differences)
        for version in list_versions(table, limit)
    ]


def _with_counts(
    table: TableVersion, info: VersionInfo, differences: RowDifferences
) -> VersionInfo:
    with suppress(NotFoundError, BadDataError):
        newer = table.read_at(info.version)
        older = table.read_at(info.version - 1) if info.version > 1 else None
        return info.with_row_counts(ChangedRowCounts.of(differences.changes(older, newer)))
    return info
