"""Changes a table's config, and the metadata of the table, its schema and its columns.

All of them map strings to strings, and later versions inherit them. One UpdateConfig lists the
entries to set and remove, or replaces a map as a whole; no data file is touched.

Source:  transaction.proto; measured on the reference.
Differs: The reference lets a user change the metadata that determines how the values of a column
         are stored, and then misreads the column or cannot read it. It commits a version even if
         nothing changes.
"""

from collections.abc import Callable, Mapping
from typing import Final

from lance_stream.arguments import as_flag, as_mapping
from lance_stream.errors import InvalidInputError
from lance_stream.file.encoding_options import check_encoding_options
from lance_stream.schema.blobs import EXTENSION_METADATA_KEY
from lance_stream.schema.fields import (
    BLOB_KEY,
    EXTENSION_NAME_KEY,
    PACKED_KEYS,
    Schema,
)
from lance_stream.schema.primary_keys import check_primary_key
from lance_stream.schema.projections import find
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.config import update_config as apply_update
from lance_stream.table.config.auto_cleanup import check_auto_cleanup
from lance_stream.table.config.lineage_limits import check_entries
from lance_stream.table.config.manifest_store_mark import check_not_marked
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.write.planning import commit_planned, replan_on_conflict

_STORAGE_KEYS: Final = (BLOB_KEY, EXTENSION_NAME_KEY, EXTENSION_METADATA_KEY, *PACKED_KEYS)


def update_config(table: TableVersion, entries: Mapping[str, str | None]) -> TableVersion:
    """Set or remove config entries; see `Dataset.update_config`."""
    update = _map_update("config", entries, replace=False)
    check_entries(entries)
    check_auto_cleanup(entries)
    check_not_marked(entries)
    return _update(table, lambda _: UpdateConfig(config=update))


def update_metadata(
    table: TableVersion,
    entries: Mapping[str, str | None] | None = None,
    *,
    schema: Mapping[str, str | None] | None = None,
    fields: Mapping[str, Mapping[str, str | None]] | None = None,
    replace: bool = False,
) -> TableVersion:
    """Set, remove or replace metadata; see `Dataset.update_metadata`."""
    if entries is None and schema is None and fields is None:
        raise InvalidInputError(
            "pass the metadata to change: of the table, update_metadata({'owner': 'ana'}), of its "
            "schema, update_metadata(schema={...}), or of columns, "
            "update_metadata(fields={'price': {'unit': 'EUR'}})"
        )
    as_flag("replace", replace)
    of_table = None if entries is None else _map_update("the table's metadata", entries, replace)
    of_schema = None if schema is None else _map_update("the schema's metadata", schema, replace)
    of_fields = {} if fields is None else fields
    as_mapping(
        of_fields, "fields maps columns to their metadata, fields={'price': {'unit': 'EUR'}}"
    )
    by_path = {
        path: _map_update(f"the metadata of the column {path!r}", of_fields[path], replace)
        for path in of_fields
    }

    def plan(newest: TableVersion) -> UpdateConfig:
        by_id: dict[int, MapUpdate] = {}
        for path, update in by_path.items():
            field = find(newest.schema, path)[-1]
            if field.id in by_id:
                raise InvalidInputError(f"the metadata of the column {path!r} is given twice")
            by_id[field.id] = update
        return UpdateConfig(
            table_metadata=of_table, schema_metadata=of_schema, field_metadata=by_id
        )

    return _update(table, plan)


def _map_update(what: str, entries: Mapping[str, str | None], replace: bool) -> MapUpdate:
    as_mapping(entries, f"{what} must be a mapping from text to text, {{'key': 'value'}}")
    for key, value in entries.items():
        if not isinstance(key, str) or not key or not (value is None or isinstance(value, str)):
            raise InvalidInputError(
                f"{what} must be a mapping from text to text, but has {key!r}: {value!r}"
            )
    return MapUpdate(tuple(entries.items()), replace)


def _update(table: TableVersion, plan: Callable[[TableVersion], UpdateConfig]) -> TableVersion:
    """Commit an update that is planned on the newest version, unless it changes nothing."""

    def attempt() -> TableVersion:
        newest = newest_version_of(table)
        operation = plan(newest)
        before, after = newest.manifest, apply_update(newest.manifest, operation)
        if (before.config, before.table_metadata) == (after.config, after.table_metadata) and (
            before.schema == after.schema
        ):
            return newest
        _check_fields(before.schema, after.schema)
        return commit_planned(newest, operation).table

    return replan_on_conflict(attempt)


def _check_fields(before: Schema, after: Schema) -> None:
    """Raise unless the values of all columns can be read and written as before.

    Raises:
        InvalidInputError: The metadata that determines how values are stored would change, the new
            metadata names an unknown encoding, or makes a nullable column part of the primary key.
    """
    for old, new in zip(before.walk(), after.walk(), strict=True):
        for key in _STORAGE_KEYS:
            value = old.metadata.get(key)
            if value != new.metadata.get(key):
                current = "none" if value is None else repr(value.decode(errors="replace"))
                raise InvalidInputError(
                    f"the metadata {key!r} of the column {new.name!r} ({current}) cannot change: "
                    "it determines how the values are stored. Pass the current value if you "
                    "replace all entries. For another representation add a column, or overwrite "
                    "the table"
                )
    for old, new in zip(before.fields, after.fields, strict=True):
        if old != new:
            check_encoding_options(new)
    if _primary_key(before) != _primary_key(after):
        check_primary_key(after.fields)


def _primary_key(schema: Schema) -> list[int | None]:
    return [field.primary_key_position for field in schema.walk()]
