"""JSON columns: binary JSON in files and within lance-stream, text to users.

    to users          string of the extension type arrow.json      {"a":1}
    stored, inside    large_binary, and in the field's metadata the extension name lance.json:
                      `jsonb`

They may be parts of structs, lists and maps. Operations that move rows (a compaction, an update of
other columns) copy the bytes, which may contain values that JSON text cannot express.

Source:  lance-arrow's json.rs; files of pylance 14.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.schema.types.jsonb import HEADER_BYTES, are_headers, decode_jsonb, encode_jsonb
from lance_stream.schema.types.logical_types import EXTENSION_NAME

STORED_NAME: Final = "lance.json"
"""The extension name of JSON columns in tables."""

TEXT_NAME: Final = "arrow.json"
"""Arrow's own extension type of JSON text."""

_KEY: Final = EXTENSION_NAME.encode()


def is_json(field: pa.Field) -> bool:
    """Return whether a field is a JSON column as it is stored."""
    return (
        pa.types.is_large_binary(field.type)
        and (field.metadata or {}).get(_KEY) == STORED_NAME.encode()
    )


def has_json(field: pa.Field) -> bool:
    """Return whether a field, or a part of it, is a JSON column as it is stored."""
    kind = field.type
    return is_json(field) or any(has_json(kind.field(index)) for index in range(_num_parts(kind)))


def text_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which JSON columns are text."""
    if not any(map(has_json, schema)):
        return schema
    return pa.schema(map(_text_field, schema), metadata=schema.metadata)


def with_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch in which JSON columns are text.

    Raises:
        CorruptDataError: A value is damaged.
        UnsupportedFeatureError: A value is not one that JSON has.
    """
    if not any(map(has_json, batch.schema)):
        return batch
    columns = map(_as_text, batch.columns, batch.schema)
    return pa.RecordBatch.from_arrays(list(columns), schema=text_schema(batch.schema))


def as_jsonb(array: pa.Array) -> pa.Array:
    """Return JSON texts, or bytes that are binary JSON already, as a JSON column stores them.

    Raises:
        InvalidInputError: A text is not JSON, or the bytes are not binary JSON.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_binary(array.type) or pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    if pa.types.is_large_binary(array.type):
        _check_headers(array)
        return array
    texts = array.to_pylist()
    stored = [None if text is None else encode_jsonb(text) for text in texts]
    return pa.array(stored, pa.large_binary())


def _check_headers(array: pa.Array) -> None:
    """Raise if bytes do not begin with the header of JSONB, as no text does.

    Raises:
        InvalidInputError: A value does not.
    """
    valid = array.drop_null() if array.null_count else array
    if not len(valid):
        return
    offsets = np.frombuffer(valid.buffers()[1], np.int64)[valid.offset :][: len(valid) + 1]
    sizes = np.diff(offsets)
    if sizes.min() >= HEADER_BYTES:
        data = np.frombuffer(valid.buffers()[2], np.uint8)
        at = offsets[:-1, np.newaxis] + np.arange(HEADER_BYTES)
        headers = np.ascontiguousarray(data[at]).view(">u4")[:, 0]
        if are_headers(headers, sizes).all():
            return
    raise InvalidInputError(
        "bytes in a JSON column must be binary JSON (lance.json); pass JSON texts as strings"
    )


def _num_parts(kind: pa.DataType) -> int:
    return 0 if pa.types.is_dictionary(kind) else kind.num_fields


def _text_field(field: pa.Field) -> pa.Field:
    if is_json(field):
        metadata = {**field.metadata, _KEY: TEXT_NAME.encode()}
        return pa.field(field.name, pa.string(), field.nullable, metadata=metadata)
    return field.with_type(_text_type(field)) if has_json(field) else field


def _text_type(field: pa.Field) -> pa.DataType:
    kind = field.type
    if pa.types.is_struct(kind):
        return pa.struct(list(map(_text_field, kind)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, _text_field(kind.item_field), kind.keys_sorted)
    item = _text_field(kind.value_field)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


def _as_text(array: pa.Array, field: pa.Field) -> pa.Array:
    if is_json(field):
        values = array.to_pylist()
        texts = [None if value is None else decode_jsonb(value) for value in values]
        return pa.array(texts, pa.string())
    if not has_json(field):
        return array
    target = _text_type(field)
    if pa.types.is_struct(target):
        parts = [_as_text(*pair) for pair in zip(array.flatten(), field.type, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)
    if pa.types.is_fixed_size_list(target):
        return _vectors_as_text(array, target)
    return _lists_as_text(array, target)


def _vectors_as_text(array: pa.Array, target: pa.FixedSizeListType) -> pa.Array:
    """Return lists of one size; items under a null list are null."""
    size = target.list_size
    is_hidden = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
    positions = array.offset * size + np.arange(len(array) * size)
    items = array.values.take(pa.array(positions, mask=is_hidden))
    mask = array.is_null() if array.null_count else None
    texts = _as_text(items, array.type.value_field)
    return pa.FixedSizeListArray.from_arrays(texts, type=target, mask=mask)


def _lists_as_text(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return lists or maps; items under a null list are dropped."""
    valid = array.is_valid()
    bounds = np.asarray(array.offsets).astype(np.int64)
    lengths = np.diff(bounds) * np.asarray(valid)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(offsets[-1]) + np.repeat(bounds[:-1] - offsets[:-1], lengths)
    values = array.values.take(pa.array(positions))
    if pa.types.is_map(target):
        items = _entries_as_text(values, array.type, target)
    else:
        items = _as_text(values, array.type.value_field)
    width = np.int64 if pa.types.is_large_list(target) else np.int32
    validity = valid.buffers()[1] if array.null_count else None
    buffers = [validity, pa.py_buffer(offsets.astype(width))]
    return pa.Array.from_buffers(target, len(array), buffers, children=[items])


def _entries_as_text(entries: pa.StructArray, kind: pa.MapType, target: pa.MapType) -> pa.Array:
    keys, values = entries.flatten()
    if keys.null_count:  # which counts them, too: Arrow 18 aborts at keys whose nulls are unknown
        raise CorruptDataError("the keys of a map contain a null")
    texts = _as_text(values, kind.item_field)
    return pa.StructArray.from_arrays([keys, texts], fields=[target.key_field, target.item_field])
