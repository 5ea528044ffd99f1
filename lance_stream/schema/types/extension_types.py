"""Arrow's extension types: stored as their storage types, with a name in the field's metadata.

    to users          extension<arrow.uuid>
    stored, inside    fixed_size_binary[16], and in the field's metadata ARROW:extension:name and
                      ARROW:extension:metadata

Within lance-stream, columns always have storage types. Types that are registered with pyarrow are
returned to users as such; names of other types stay in the metadata. JSON columns are returned as
text (`json_columns`).

Source: "Extension Types" in Arrow's format; the Arrow C data interface, struct ArrowSchema.
"""

import ctypes
from typing import Final

import pyarrow as pa

from lance_stream.errors import CorruptDataError
from lance_stream.schema.types.json_columns import text_schema, with_text
from lance_stream.schema.types.logical_types import EXTENSION_METADATA, EXTENSION_NAME

_MAX_QUOTED: Final = 200


def storage_field(field: pa.Field) -> pa.Field:
    """Return a field with storage types in place of extension types, at any depth."""
    arrow, metadata = field.type, dict(field.metadata or {})
    if isinstance(arrow, pa.BaseExtensionType):
        metadata[EXTENSION_NAME.encode()] = arrow.extension_name.encode()
        metadata[EXTENSION_METADATA.encode()] = _parameters_of(arrow)
    return pa.field(field.name, storage_type(arrow), field.nullable, metadata=metadata or None)


def storage_type(arrow: pa.DataType) -> pa.DataType:
    """Return a type with storage types in place of extension types, at any depth."""
    types = pa.types
    if isinstance(arrow, pa.BaseExtensionType):
        return storage_type(arrow.storage_type)
    if types.is_struct(arrow):
        return pa.struct([storage_field(part) for part in arrow])
    if types.is_map(arrow):
        return pa.map_(
            storage_field(arrow.key_field), storage_field(arrow.item_field), arrow.keys_sorted
        )
    if types.is_fixed_size_list(arrow):
        return pa.list_(storage_field(arrow.value_field), arrow.list_size)
    if types.is_list(arrow):
        return pa.list_(storage_field(arrow.value_field))
    if types.is_large_list(arrow):
        return pa.large_list(storage_field(arrow.value_field))
    return arrow


def has_extensions(schema: pa.Schema) -> bool:
    """Return whether metadata in a schema name a registered extension type."""
    return not schema.equals(with_extensions(schema))


def with_extensions(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the extension types that are registered with pyarrow.

    Raises:
        CorruptDataError: A type does not fit its storage type, or its parameters are invalid.
    """
    schema = text_schema(schema)
    # `pa.schema` imports through the C data interface, where pyarrow looks up extension names.
    try:
        return pa.schema(schema)
    except Exception as error:  # types registered in Python can raise any error
        raise CorruptDataError(
            f"the metadata of {_damaged_column(schema)} names an extension type that does not fit "
            f"its storage, or has invalid parameters: {str(error)[:_MAX_QUOTED]!r}. Read other "
            "columns"
        ) from error


def _damaged_column(schema: pa.Schema) -> str:
    names = [
        f"{field.name[:_MAX_QUOTED]!r} ({str(field.type)[:_MAX_QUOTED]!r})"
        for field in schema
        if not _is_valid(field)
    ]
    return f"the column {names[0]}" if names else "a column"


def _is_valid(field: pa.Field) -> bool:
    try:
        pa.schema(pa.schema([field]))
    except Exception:  # types registered in Python can raise any error
        return False
    return True


def reader_with_extensions(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return a stream of batches with the registered extension types, without a copy."""
    if not has_extensions(reader.schema):
        return reader
    return pa.RecordBatchReader.from_batches(
        with_extensions(reader.schema), map(batch_with_extensions, reader)
    )


def table_with_extensions(table: pa.Table) -> pa.Table:
    """Return a table with the registered extension types, without a copy."""
    return reader_with_extensions(table.to_reader()).read_all()


def batch_with_extensions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the registered extension types; only JSON is converted."""
    return pa.record_batch(with_text(batch))


class _ArrowSchema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _parameters_of(arrow: pa.BaseExtensionType) -> bytes:
    """Return the serialized parameters of an extension type.

    Types in Python return them; pyarrow's built-in types pass them only to other libraries.
    """
    if isinstance(arrow, pa.ExtensionType):
        return bytes(arrow.__arrow_ext_serialize__())
    capsule = arrow.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    exported = _ArrowSchema.from_address(pointer_of(capsule, b"arrow_schema"))
    return _parse_metadata(exported.metadata)[EXTENSION_METADATA.encode()]


def _parse_metadata(address: int) -> dict[bytes, bytes]:
    """Return exported metadata: i32 pairs, and for each i32 bytes of key, key, i32, value."""

    def take_number() -> int:
        nonlocal address
        number = ctypes.c_int32.from_address(address).value
        address += 4
        return number

    def take_bytes() -> bytes:
        nonlocal address
        size = take_number()
        names = ctypes.string_at(address, size)
        address += size
        return names

    return {take_bytes(): take_bytes() for _ in range(take_number())}
