"""Merges the properties that new rows declare into the columns that a table already has.

Rows that replace all rows of a table may have the same columns, and declare other properties of
them. Declared properties are stored; all others stay as they are:

    metadata of the schema and of fields    key by key
    an extension type                       replaces another one, with its parameters
    a blob column                           a large_binary column becomes one; a blob column stays
                                            one
    a non-nullable column                   a nullable column becomes one; a non-nullable column
                                            stays one, because nullable is Arrow's default
    a primary key                           replaces the table's

Source:  observed in the reference.
Differs: The reference replaces all declarations, so rows without any drop the table's primary key.
"""

from collections.abc import Iterable
from dataclasses import replace

from lance_stream.schema.arrow_schemas import (
    PRIMARY_KEY_METADATA,
    PRIMARY_KEY_POSITION_METADATA,
    field_to_arrow,
)
from lance_stream.schema.blobs import EXTENSION_METADATA_KEY, as_v1
from lance_stream.schema.fields import BLOB_KEY, EXTENSION_NAME_KEY, Field, Schema

_EXTENSION = (EXTENSION_NAME_KEY, EXTENSION_METADATA_KEY)
_PRIMARY_KEY = (PRIMARY_KEY_METADATA, PRIMARY_KEY_POSITION_METADATA)


def with_declarations(table: Schema, incoming: Schema) -> Schema | None:
    """Return a table's columns with the properties that new rows declare.

    Args:
        table: The table's columns.
        incoming: The columns of the rows, without ids.

    Returns:
        The columns with the table's ids; columns that become blobs are as in tables up to 2.1. None
        if the columns of the rows differ in their names, order or types.
    """
    if table.names != incoming.names:
        return None
    columns: Iterable[Field] = table.fields
    if any(field.primary_key_position is not None for field in incoming.walk()):
        columns = map(_without_key, columns)
    fields = tuple(
        _declared(column, field) for column, field in zip(columns, incoming.fields, strict=True)
    )
    if None in fields:
        return None
    return Schema(fields, {**table.metadata, **incoming.metadata})  # type: ignore[arg-type]  # None was excluded


def _declared(column: Field, incoming: Field) -> Field | None:
    """Return a column with the properties of a field; None if their names or types differ."""
    old, new = as_v1(column), as_v1(incoming)
    if old.name != new.name or len(old.children) != len(new.children):
        return None
    if not old.children and field_to_arrow(old).type != field_to_arrow(new).type:
        return None
    if old.children and old.logical_type != new.logical_type:
        return None
    children = tuple(
        _declared(part, other) for part, other in zip(old.children, new.children, strict=True)
    )
    if None in children:
        return None
    metadata = dict(old.metadata)
    if EXTENSION_NAME_KEY in new.metadata:
        metadata = {key: value for key, value in metadata.items() if key not in _EXTENSION}
    metadata |= new.metadata
    if column.is_blob_v2:
        metadata = {key: value for key, value in metadata.items() if key != BLOB_KEY}
        extension = {key: column.metadata[key] for key in _EXTENSION if key in column.metadata}
        return replace(
            column, nullable=column.nullable and new.nullable, metadata={**metadata, **extension}
        )
    return replace(
        old,
        logical_type=new.logical_type if new.extension_name else old.logical_type,
        nullable=old.nullable and new.nullable,
        children=children,  # type: ignore[arg-type]  # None was excluded
        metadata=metadata,
        extension_name=new.extension_name or old.extension_name,
        primary_key_position=(
            old.primary_key_position
            if new.primary_key_position is None
            else new.primary_key_position
        ),
    )


def _without_key(column: Field) -> Field:
    metadata = {key: value for key, value in column.metadata.items() if key not in _PRIMARY_KEY}
    return replace(
        column,
        metadata=metadata,
        primary_key_position=None,
        children=tuple(map(_without_key, column.children)),
    )
