"""The description of a table that `show` prints, as JSON values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_stream.dataset import Dataset
from lance_stream.maintenance.consumers import Consumer, consumers_among, is_consumer_tag
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.schema.projections import ids_by_path
from lance_stream.snapshot.references import Branch, read_branches
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import TagListing, read_tags
from lance_stream.snapshot.write_ahead_logs import unmerged_files
from lance_stream.table.config.ledger_entries import read_entries
from lance_stream.table.config.tombstones import read_tombstones
from lance_stream.table.manifest import Manifest

_EXTENSION = "ARROW:extension:"
"""The prefix of metadata that repeat a column's type."""


@dataclass(frozen=True)
class TableContext:
    """The versions of a table and the references to them; each takes one listing to read.

    Attributes:
        versions: The existing versions, ascending.
        tags: The tags of the table and its branches.
        branches: The branches by the paths of their files; an error for each damaged file.
        consumers: The consumers of the branch.
    """

    versions: Sequence[int]
    tags: TagListing
    branches: Mapping[str, Branch | Exception]
    consumers: Sequence[Consumer]


def read_context(table: TableVersion) -> TableContext:
    """Read the versions, tags, branches and consumers of a table."""
    refs = table.refs
    tags = read_tags(refs)
    return TableContext(
        table.log.versions(), tags, read_branches(refs), consumers_among(tags.tags, refs.branch)
    )


def describe(ds: Dataset, context: TableContext) -> dict[str, Any]:
    """Return a description of a table at a version.

    It opens a data or deletion file only if the manifest does not state its number of rows.
    """
    table, manifest = ds.table, ds.table.manifest
    versions, tags, branches = context.versions, context.tags, context.branches
    fragments = manifest.fragments
    physical, live = (int(row_count.sum()) for row_count in table.row_counts)
    return {
        "uri": ds.uri,
        "version": ds.version,
        "timestamp": ds.timestamp,
        "file_version": ds.file_version,
        "stable_row_ids": ds.has_stable_row_ids,
        "versions": {"count": len(versions), "oldest": versions[0], "newest": versions[-1]},
        "num_rows": live,
        "num_deleted_rows": physical - live,
        "num_fragments": len(fragments),
        "num_deletion_files": int(fragments.numbers.has_deletion_file.sum()),
        "num_data_files": int(fragments.file_sizes.num_files.sum()),
        "data_bytes": fragments.file_sizes.total,
        "columns": [
            {"name": name, "type": str(ds.schema.field(name).type), "nullable": field.nullable}
            for name, field in zip(table.schema.names, table.schema.fields, strict=True)
        ],
        "metadata": _metadata(ds),
        "indices": _indices(table),
        "config": {k: v for k, v in sorted(ds.config.items()) if not k.startswith("lance_stream.")},
        "remembered_deletes": _remembered_deletes(manifest),
        "write_ahead_log": _write_ahead_log(table),
        "streams": describe_streams(manifest.config),
        "branch": ds.branch,
        "branches": [
            {"name": branch.name, "from": _version_of(branch.parent, branch.parent_version)}
            for branch in branches.values()
            if isinstance(branch, Branch)
        ],
        "tags": {
            tag.name: _version_of(tag.branch, tag.version)
            for tag in sorted(tags.tags, key=lambda tag: tag.name)
            if not is_consumer_tag(tag.name)
        },
        "unreadable": {
            **{path: str(error) for path, error in tags.unreadable.items()},
            **{
                f"{table.refs.root.uri}/{path}": str(error)
                for path, error in branches.items()
                if not isinstance(error, Branch)
            },
        },
        "consumers": [
            {
                "name": consumer.name,
                "version": consumer.version,
                "is_beginning": consumer.is_beginning,
                "versions_behind": sum(version > consumer.version for version in versions),
                "updated_at": consumer.updated_at,
            }
            for consumer in context.consumers
        ],
    }


def describe_streams(config: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a description of each stream in a table's ledger."""
    return [
        {
            "app_id": app_id,
            "batch": entry.batch_id,
            "version": entry.version,
            "query": entry.query_id,
            "rows": entry.num_rows,
            "digest": entry.digest or None,
        }
        for app_id, entry in sorted(read_entries(config).items())
    ]


def _metadata(ds: Dataset) -> list[dict[str, Any]]:
    """Return the metadata of the table, its schema and its columns, which are named by path."""
    schema = ds.table.schema
    field_ids = {field_id: path for path, field_id in ids_by_path(schema.fields).items()}
    metadata_maps: list[tuple[str, str | None, Mapping[str, bytes]]] = [
        ("table", None, {key: value.encode() for key, value in ds.metadata.items()}),
        ("schema", None, schema.metadata),
        *(("column", ".".join(field_ids[field.id]), field.metadata) for field in schema.walk()),
    ]
    return [
        {"of": of, "column": column, "key": key, "value": value.decode(errors="replace")}
        for of, column, entries in metadata_maps
        for key, value in sorted(entries.items())
        if not key.startswith(_EXTENSION)
    ]


def _version_of(branch: str | None, version: int) -> int | str:
    """Return a version's number, prefixed by its branch if it has one."""
    return version if branch is None else f"{branch}:{version}"


def _indices(table: TableVersion) -> list[dict[str, Any]]:
    return [
        {
            "name": index.name,
            "kind": index.kind,
            "columns": list(index.columns),
            "rows_indexed": index.rows_indexed,
            "rows_unindexed": index.rows_unindexed,
            "built_at": index.built_at,
            "bytes": index.size_bytes,
        }
        for index in index_coverage(table)
    ]


def _remembered_deletes(manifest: Manifest) -> dict[str, Any] | None:
    tombstones = read_tombstones(manifest.config)
    if tombstones is None:
        return None
    return {
        "on": list(tombstones.on),
        "sequence_by": tombstones.sequence_by,
        "num_rows": sum(file.num_rows for file in tombstones.files),
    }


def _write_ahead_log(table: TableVersion) -> dict[str, int] | None:
    files = unmerged_files(table)
    return None if files is None else {"num_files": files.num_files, "bytes": files.num_bytes}
