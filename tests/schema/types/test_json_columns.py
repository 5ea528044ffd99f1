"""JSON columns between the text that users see and the bytes that are stored."""

from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.types.extension_types import batch_with_extensions
from lance_stream.schema.types.json_columns import as_jsonb, is_json, text_schema, with_text
from lance_stream.write.casting import cast_batch

JSON = pa.field("item", pa.string(), metadata={"ARROW:extension:name": "arrow.json"})

NESTED = {
    "column": (JSON, ['{"a":1}', None, "[]"]),
    "struct": (
        pa.field("x", pa.struct([JSON, ("n", pa.int64())])),
        [{"item": "1", "n": 1}, None, {"item": None, "n": 2}],
    ),
    "list": (pa.field("x", pa.list_(JSON)), [["1", None], None, [], ['{"b":[2]}']]),
    "large list": (pa.field("x", pa.large_list(JSON)), [["1"], None, ["2", "3"]]),
    "map": (pa.field("x", pa.map_(pa.string(), JSON)), [[("k", "1")], None, [("l", None)]]),
    "list of structs": (
        pa.field("x", pa.list_(pa.struct([JSON, ("n", pa.int64())]))),
        [[{"item": "1", "n": 1}, None], None, [{"item": None, "n": None}]],
    ),
}


@pytest.mark.floors
@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_nested_json_comes_back(kind: str, start: int) -> None:
    """Whatever it is part of, and in slices, whose offsets do not begin at 0."""
    field, values = NESTED[kind]
    schema = pa.schema([field.with_name("x")])
    stored = to_arrow(from_arrow(schema))
    batch = cast_batch(pa.RecordBatch.from_pylist([{"x": v} for v in values], schema), stored)
    converted = batch_with_extensions(batch.slice(start))
    converted.validate(full=True)
    assert converted.column(0).to_pylist() == values[start:]


def test_values_behind_nulls_are_not_read() -> None:
    """Arrow lets them be anything, and so do other writers."""
    field = to_arrow(from_arrow(pa.schema([pa.field("x", pa.struct([JSON]))]))).field(0)
    hidden = pa.StructArray.from_arrays(
        [pa.array([b"no JSONB", b"\x80\0\0\0"], pa.large_binary())],
        fields=list(field.type),
        mask=pa.array([True, False]),
    )
    batch = pa.RecordBatch.from_arrays([hidden], schema=pa.schema([field]))
    assert with_text(batch).column(0).to_pylist() == [None, {"item": "[]"}]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_json_in_vectors_is_text(start: int) -> None:
    """Other writers may store it there; items behind a null vector may be anything."""
    item = to_arrow(from_arrow(pa.schema([JSON]))).field(0)
    data = [b"\x80\0\0\0", None, b"no JSONB", b"no JSONB", b"\x40\0\0\0", b"\x80\0\0\0"]
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(data, pa.large_binary()),
        type=pa.list_(item, 2),
        mask=pa.array([False, True, False]),
    )
    batch = pa.RecordBatch.from_arrays([vectors], schema=pa.schema([("x", vectors.type)]))
    converted = with_text(batch.slice(start))
    converted.validate(full=True)
    assert converted.column(0).to_pylist() == [["[]", None], None, ["{}", "[]"]][start:]


def test_only_marked_large_bytes_are_json() -> None:
    """Bytes of users stay bytes, whatever their metadata."""
    marked = to_arrow(from_arrow(pa.schema([JSON]))).field(0)
    assert is_json(marked)
    assert not is_json(marked.with_type(pa.binary()))
    assert not is_json(marked.remove_metadata())
    other = marked.with_metadata({**marked.metadata, b"ARROW:extension:name": b"lance.blob.v2"})
    assert not is_json(other)
    schema = pa.schema([other, pa.field("x", pa.list_(marked))], metadata={"k": "v"})
    assert text_schema(schema).field("x").type.value_type == pa.string()
    assert text_schema(schema).field(0) == other
    assert text_schema(schema).metadata == {b"k": b"v"}


@pytest.mark.parametrize(
    "texts",
    [
        pa.array(["1", None, '{"a": 1}']),
        pa.array(["1", None, '{"a": 1}'], pa.large_string()),
        pa.array(["1", None, '{"a": 1}'], pa.string_view()),
        pa.array(["1", None, '{"a": 1}']).dictionary_encode(),
    ],
    ids=lambda texts: str(texts.type),
)
def test_all_kinds_of_text_are_encoded(texts: pa.Array) -> None:
    """Every Arrow type of text must give the same bytes."""
    assert as_jsonb(texts).equals(as_jsonb(pa.array(["1", None, '{"a":1}'])))


@pytest.mark.parametrize(
    "values",
    [
        [b'{"a":1}'],
        [b" 1"],
        [b""],
        [b"\x20\x00"],
        [None, b"[1,2,3]"],
        [b"\x80\0\0\0", b"7"],
        [b"\x20\0\0\0"],
        [b"\x80\0\0\x02\0\0\0\0"],
        [b"\x40\0\0\x01\0\0\0\0"],
        [b"\x20\0\0\x01\0\0\0\0"],
    ],
)
def test_invalid_binary_json_is_refused(values: Any) -> None:
    """A column with such bytes could not be read back."""
    for kind in (pa.binary(), pa.large_binary()):
        with pytest.raises(InvalidInputError, match="binary JSON"):
            as_jsonb(pa.array(values, kind))


def test_binary_json_is_stored_unchanged() -> None:
    """It may contain values that JSON text cannot express."""
    infinity = bytes.fromhex("200000002000000120")
    fixed = pa.array([b"\x40\0\0\0", None], pa.binary(4))
    assert as_jsonb(fixed).equals(fixed.cast(pa.large_binary()))
    values = pa.array([infinity, None, b"\x40\0\0\0"], pa.large_binary())
    assert as_jsonb(values).equals(values)
    assert as_jsonb(values.slice(1)).equals(values.slice(1))
