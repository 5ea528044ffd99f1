"""Blob columns: bytes that are stored apart, and descriptions of where they are.

To users, a blob column is large_binary with the metadata `lance-encoding:blob`, in every file
version. In a table's schema it is

    up to 2.1    the same: large_binary with that metadata
    from 2.2     a struct of the extension type lance.blob.v2: what the reference takes as input,
                 data large_binary, uri string, perhaps position u64 and size u64

and its column in a data file holds descriptions:

    up to 2.1    position u64, size u64                 bytes of the data file
    from 2.2     kind u8, position u64, size u64, blob_id u32, blob_uri string

    kind         position, size         blob_id                    blob_uri
    0 inline     of the data file       0                          ""
    1 packed     of the side file       number of the side file    ""
    2 dedicated  0, all of it           number of the side file    ""
    3 external   of what the URI names  0, or a base path's id     URI, or path below the base;
                 (size 0: all of it)                               0: absolute

Source:  lance-core, datatypes; files that the reference wrote.
Differs: The reference shows a blob column of 2.2 as its extension type.
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import is_
from typing import Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import (
    BLOB_KEY,
    BLOB_V2_NAME,
    EXTENSION_NAME_KEY,
    Field,
    Schema,
)

EXTENSION_METADATA_KEY: Final = "ARROW:extension:metadata"

INLINE: Final = 0
PACKED: Final = 1
DEDICATED: Final = 2
EXTERNAL: Final = 3

INLINE_THRESHOLD_KEY: Final = "lance-encoding:blob-inline-size-threshold"
DEDICATED_THRESHOLD_KEY: Final = "lance-encoding:blob-dedicated-size-threshold"
PACK_FILE_THRESHOLD_KEY: Final = "lance-encoding:blob-pack-file-size-threshold"

_DEFAULT_THRESHOLDS: Final = {
    INLINE_THRESHOLD_KEY: 64 << 10,
    DEDICATED_THRESHOLD_KEY: 4 << 20,
    PACK_FILE_THRESHOLD_KEY: 1 << 30,
}

DESCRIPTION: Final = (
    Field("position", "uint64"),
    Field("size", "uint64"),
)
"""The parts of a description up to 2.1."""

DESCRIPTION_V2: Final = (
    Field("kind", "uint8", nullable=False),
    Field("position", "uint64", nullable=False),
    Field("size", "uint64", nullable=False),
    Field("blob_id", "uint32", nullable=False),
    Field("blob_uri", "string", nullable=False),
)
"""The parts of a description from 2.2 on."""

PREPARED_V2: Final = pa.struct(
    [
        pa.field("kind", pa.uint8()),
        pa.field("data", pa.large_binary()),
        pa.field("position", pa.uint64()),
        pa.field("size", pa.uint64()),
        pa.field("blob_id", pa.uint32()),
    ]
)
"""The input of a file's writer: the bytes of inline blobs, the locations of the others."""


def surface_field(field: Field) -> pa.Field:
    """Return the Arrow field that users see for a blob column from 2.2 on."""
    metadata = {
        key: value
        for key, value in field.metadata.items()
        if key not in (EXTENSION_NAME_KEY, EXTENSION_METADATA_KEY)
    }
    return pa.field(
        field.name, pa.large_binary(), field.nullable, metadata={**metadata, BLOB_KEY: b"true"}
    )


def is_description(field: Field) -> bool:
    """Return whether a field is a result of `description_of`."""
    return field.logical_type == "struct" and BLOB_KEY in field.metadata


def description_of(field: Field) -> Field:
    """Return the field of a blob column's descriptions, with the same id."""
    return Field(
        name=field.name,
        logical_type="struct",
        id=field.id,
        nullable=field.nullable,
        children=DESCRIPTION_V2 if field.is_blob_v2 else DESCRIPTION,
        metadata={BLOB_KEY: b"true", "lance-encoding:packed": b"true"},
    )


def with_descriptions(schema: Schema) -> Schema:
    """Return a schema with blob columns replaced by their descriptions."""
    fields = tuple(map(described, schema.fields))
    return schema if all(map(is_, fields, schema.fields)) else replace(schema, fields=fields)


def described(field: Field) -> Field:
    """Return a column with descriptions in place of its blobs, at any depth.

    A column without blobs is returned itself, because values are cached by its identity.
    """
    if field.is_blob:
        return field if is_description(field) else description_of(field)
    children = tuple(map(described, field.children))
    return field if all(map(is_, children, field.children)) else replace(field, children=children)


def as_v2(field: Field) -> Field:
    """Return a blob column in the form of tables from 2.2 on; other fields unchanged.

    The new fields below it have no ids.
    """
    if not field.is_blob or field.is_blob_v2:
        return field
    metadata = {key: value for key, value in field.metadata.items() if key != BLOB_KEY}
    return replace(
        field,
        logical_type="struct",
        children=(Field("data", "large_binary"), Field("uri", "string")),
        metadata={**metadata, EXTENSION_NAME_KEY: BLOB_V2_NAME.encode()},
        extension_name=BLOB_V2_NAME,
    )


def as_v1(field: Field) -> Field:
    """Return a blob column in the form of tables up to 2.1; other fields unchanged."""
    if not field.is_blob:
        return field
    if not field.is_blob_v2:
        return replace(field, logical_type="large_binary")
    arrow = surface_field(field)
    metadata = {key.decode(): value for key, value in (arrow.metadata or {}).items()}
    return replace(
        field, logical_type="large_binary", children=(), metadata=metadata, extension_name=""
    )


def check_blobs(schema: Schema) -> None:
    """Raise unless all blobs are top-level columns of bytes.

    Raises:
        InvalidInputError: One is not; the message names the column.
    """
    for top in schema.fields:
        for field in top.walk():
            if not field.is_blob:
                continue
            if field is not top:
                raise InvalidInputError(
                    f"column {top.name!r}: blobs inside of structs and lists are not supported; "
                    f"make {field.name!r} a top-level column, or omit {BLOB_KEY!r}"
                )
            if not field.is_blob_v2 and field.logical_type not in ("large_binary", "binary"):
                raise InvalidInputError(
                    f"column {top.name!r}: blobs are large_binary, not {field.logical_type}"
                )
            for key in _DEFAULT_THRESHOLDS:
                threshold(field.metadata, key, top.name)


def threshold(metadata: Mapping[str, bytes], key: str, name: str) -> int:
    """Return a number of bytes from a column's metadata, or the default.

    Raises:
        InvalidInputError: It is not a valid number.
    """
    if key not in metadata:
        return _DEFAULT_THRESHOLDS[key]
    text = metadata[key].decode(errors="replace")
    minimum = 0 if key == INLINE_THRESHOLD_KEY else 1
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text) < 1 << 63:
        raise InvalidInputError(
            f"column {name!r}: the metadata {key!r} must be a number of bytes of at least "
            f"{minimum}, not {text!r}"
        )
    return int(text)
