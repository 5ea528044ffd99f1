"""Config and metadata: entries are set or removed, or a map is replaced as a whole.

Differs: Replacing the whole config keeps our entries. Without the ledger, a stream would write its
         last batches twice; without the tombstones, a late row would undo a delete; without the
         mark of a manifest store, other writers would publish elsewhere. An entry can still be
         removed by its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field, Schema
from lance_stream.table.config import ledger_entries, manifest_store_mark, tombstones
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig

_PROTECTED_PREFIXES = (ledger_entries.PREFIX, tombstones.CONFIG_KEY, manifest_store_mark.CONFIG_KEY)
_PRIMARY_KEY = (
    "lance-schema:unenforced-primary-key",
    "lance-schema:unenforced-primary-key:position",
)


def update_config(start: Manifest, operation: UpdateConfig) -> Manifest:
    """Return the version with other config and metadata.

    Raises:
        InvalidInputError: A field does not exist, or the primary key would change.
    """
    config = dict(start.config)
    config.update(operation.old_upserts)
    for key in operation.old_delete_keys:
        config.pop(key, None)
    if operation.config is not None:
        protected = {
            key: value for key, value in config.items() if key.startswith(_PROTECTED_PREFIXES)
        }
        if operation.config.replace:
            config = protected
        config = _updated(config, replace(operation.config, replace=False), str)
    return replace(
        start,
        config=config,
        table_metadata=_updated(start.table_metadata, operation.table_metadata, str),
        schema=_with_metadata(start.schema, operation),
    )


def _with_metadata(schema: Schema, operation: UpdateConfig) -> Schema:
    metadata: Mapping[str, bytes] = schema.metadata
    if operation.old_schema_metadata:
        metadata = {key: value.encode() for key, value in operation.old_schema_metadata.items()}
    metadata = _updated(metadata, operation.schema_metadata, str.encode)
    updates = {
        **{
            field_id: MapUpdate(tuple(entries.items()), replace=True)
            for field_id, entries in operation.old_field_metadata.items()
        },
        **operation.field_metadata,
    }
    for field_id in updates:
        if schema.field_by_id(field_id) is None:
            raise InvalidInputError(f"the table has no field with the id {field_id}")
    if any(field.primary_key_position is not None for field in schema.walk()):
        changed_keys = {key for update in updates.values() for key, _ in update.entries}
        if not changed_keys.isdisjoint(_PRIMARY_KEY) or any(
            update.replace for update in updates.values()
        ):
            raise InvalidInputError("the primary key of a table cannot be changed once it is set")
    return Schema(tuple(_field_with_metadata(field, updates) for field in schema.fields), metadata)


def _field_with_metadata(field: Field, updates: Mapping[int, MapUpdate]) -> Field:
    children = tuple(_field_with_metadata(child, updates) for child in field.children)
    update = updates.get(field.id)
    if update is None:
        return field if children == field.children else replace(field, children=children)
    metadata = _updated(field.metadata, update, str.encode)
    changed_keys = {key for key, _ in update.entries}
    if changed_keys.isdisjoint(_PRIMARY_KEY):
        return replace(field, children=children, metadata=metadata)
    return replace(
        field,
        children=children,
        metadata=metadata,
        primary_key_position=_primary_key_position(metadata),
    )


def _primary_key_position(metadata: Mapping[str, bytes]) -> int | None:
    flag, position = (metadata.get(key, b"").decode(errors="replace") for key in _PRIMARY_KEY)
    if position.isdecimal():
        return int(position)
    if flag.lower() in ("true", "1", "yes", "on"):
        return 0
    raise InvalidInputError(
        f"{flag or position!r} does not make a field part of the primary key: {_PRIMARY_KEY[0]} "
        f"must be 'true', or {_PRIMARY_KEY[1]} a number"
    )


def _updated(
    values: Mapping[str, Any], update: MapUpdate | None, convert: Callable[[str], Any]
) -> dict[str, Any]:
    updated = {} if update is not None and update.replace else dict(values)
    for key, value in update.entries if update is not None else ():
        if value is None:
            updated.pop(key, None)
        else:
            updated[key] = convert(value)
    return updated
