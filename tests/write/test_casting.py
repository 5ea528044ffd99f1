"""What is cast to a table's types, and what is refused because values would change."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import BLOB_KEY
from lance_stream.schema.types.json_columns import as_jsonb, with_text
from lance_stream.write.casting import cast_batch, check_castable, check_rows_fit


def sent(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch as read from an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()


def cast(values: list[Any], incoming: pa.DataType, target: pa.DataType) -> pa.Array:
    array = pa.array(values, incoming)
    table = pa.schema([("a", target)])
    batch = pa.RecordBatch.from_arrays([array], names=["a"])
    check_castable(batch.schema, table)
    whole = cast_batch(batch, table)
    whole.validate(full=True)
    assert whole.schema.equals(table, check_metadata=True)
    for start in range(len(values) + 1):  # a slice is cast like the whole, also as Spark sends it
        for part in (batch.slice(start), sent(batch.slice(start))):
            result = cast_batch(part, table)
            result.validate(full=True)
            assert result.column(0).to_pylist() == whole.column(0).to_pylist()[start:]
    return whole.column(0)


FLOAT = pa.float32()
VECTORS = pa.list_(FLOAT)
LISTS_OF_INT8 = pa.list_(pa.list_(pa.int8()))
STRUCT_OF_INT8 = pa.struct([("p", pa.list_(pa.int8()))])

EXACT_CASTS = [
    ([1, None, 127], pa.int8(), pa.int64()),
    ([1, None, 200], pa.int16(), pa.uint8()),
    ([1, None, 2**32 - 1], pa.int64(), pa.uint32()),
    ([1, None, 5], pa.int32(), pa.float64()),
    ([1, None, 2**60], pa.int64(), pa.decimal128(38, 2)),
    ([1, None, -(10**8) + 1], pa.int64(), pa.decimal128(10, 2)),
    ([2**64 - 1, None, 0], pa.uint64(), pa.decimal256(22, 1)),
    ([Decimal(2**64 - 1), None, Decimal(0)], pa.decimal128(20, 0), pa.uint64()),
    ([1.5, None, -0.25], pa.float32(), pa.float16()),
    ([1, None, 2048], pa.int64(), pa.float16()),
    ([np.float16(1.5), None, np.float16(-0.25)], pa.float16(), pa.float64()),
    ([Decimal("1.50"), None], pa.decimal128(38, 18), pa.decimal128(10, 2)),
    (["a", None, "bc"], pa.string(), pa.large_string()),
    (["a", None, "bc"], pa.string_view(), pa.string()),
    ([None, None], pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.string())),
    (["a", None, "bc"], pa.string(), pa.dictionary(pa.int8(), pa.string())),
    (["a", None, "bc"], pa.dictionary(pa.int32(), pa.string()), pa.string()),
    (
        ["a", None, "a"],
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.uint8(), pa.large_string()),
    ),
    ([b"ab", None, b"cd"], pa.binary(), pa.binary(2)),
    ([b"ab", None, b"cd"], pa.large_binary(), pa.binary(2)),
    ([b"ab", None, b"cd"], pa.binary(2), pa.binary()),
    ([b"ab", None, b"cd"], pa.binary_view(), pa.binary(2)),
    ([b"ab", None, b"cd"], pa.binary_view(), pa.large_binary()),
    ([b"ab", None, b"ab"], pa.dictionary(pa.int8(), pa.binary(2)), pa.binary(2)),
    ([date(2020, 1, 1), None], pa.date32(), pa.date64()),
    ([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
    ([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32()), pa.list_(pa.float16(), 2)),
    ([None, None], pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
    (
        [{"v": None}, {"v": None}],
        pa.struct([("v", VECTORS)]),
        pa.struct([("v", pa.list_(FLOAT, 2))]),
    ),
    ([None, [None, None]], pa.list_(VECTORS), pa.list_(pa.list_(pa.float32(), 2))),
    ([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2), pa.list_(pa.float64())),
    ([[1], None, [], [2, None]], pa.list_(pa.int8()), pa.large_list(pa.int64())),
    # slices that begin behind lists without items: their first offset is 0, too
    ([None, [1, 2], None, [3]], pa.list_(pa.int8()), pa.list_(pa.int64())),
    ([[], [[], [1]], None, [[2], None]], LISTS_OF_INT8, pa.large_list(pa.list_(pa.int64()))),
    (
        [{"p": []}, {"p": [1]}, {"p": None}],
        STRUCT_OF_INT8,
        pa.struct([("p", pa.list_(pa.int16()))]),
    ),
    (
        [[("a", [1])], None, [], [("b", None), ("c", [])]],
        pa.map_(pa.string(), pa.list_(pa.int8())),
        pa.map_(pa.large_string(), pa.large_list(pa.int64())),
    ),
    (
        [[{"x": 1}, {"x": None}], None, [{"x": 2}, None]],
        pa.list_(pa.struct([("x", pa.int32())])),
        pa.list_(pa.struct([("x", pa.int64())]), 2),
    ),
    ([[1], None, [], [2, None]], pa.large_list(pa.int16()), pa.list_(pa.uint8())),
    (
        [[{"x": 1}], None, [], [None, {"x": None}]],
        pa.list_(pa.struct([("x", pa.int32())])),
        pa.list_(pa.struct([("x", pa.int64())])),
    ),
    ([None, None], pa.null(), pa.list_(pa.int32(), 3)),
    (
        [[[1], [2, 3]], None, [None, []]],
        pa.list_(pa.list_(pa.int32())),
        pa.large_list(pa.large_list(pa.int64())),
    ),
]


@pytest.mark.floors
@pytest.mark.parametrize(("values", "incoming", "target"), EXACT_CASTS, ids=str)
def test_casts_keep_every_value(
    values: list[Any], incoming: pa.DataType, target: pa.DataType
) -> None:
    """Incoming types often differ slightly from the table's, and a cast is only allowed if it is
    exact.
    """
    assert cast(values, incoming, target).to_pylist() == values


@pytest.mark.floors
@pytest.mark.parametrize("num_hidden", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "expected",
    [pa.list_(FLOAT, 2), pa.large_list(FLOAT), pa.list_(pa.float64()), pa.list_(pa.float16(), 2)],
    ids=str,
)
def test_items_behind_null_lists_are_dropped(num_hidden: int, expected: pa.DataType) -> None:
    """Arrow allows a null list to have items, whose number must not shift those of others."""
    items = pa.array([1.0, 2.0, *[9.0] * num_hidden, 3.0, 4.0], FLOAT)
    offsets = pa.array([0, 2, 2 + num_hidden, 4 + num_hidden], pa.int32())
    bitmap = pa.py_buffer(bytes([0b101]))
    lists = pa.Array.from_buffers(VECTORS, 3, [bitmap, offsets.buffers()[1]], children=[items])
    batch = pa.RecordBatch.from_arrays([lists], names=["a"])
    result = cast_batch(batch, pa.schema([("a", expected)]))
    result.validate(full=True)
    assert result.column(0).to_pylist() == [[1.0, 2.0], None, [3.0, 4.0]]


@pytest.mark.parametrize(
    "target",
    [pa.list_(pa.uint8()), pa.large_list(pa.uint8()), pa.list_(pa.uint8(), 1), "map"],
    ids=str,
)
@pytest.mark.parametrize("is_hidden", [True, False])
def test_values_behind_nulls_are_ignored(target: pa.DataType | str, is_hidden: bool) -> None:
    """No row has them, so they must not fail a write, however wrong they are."""
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    buffers = [pa.py_buffer(bytes([0b110 if is_hidden else 0b111])), offsets.buffers()[1]]
    numbers = pa.array([999, 1, 3], pa.int16())
    vectors = pa.FixedSizeListArray.from_arrays(
        numbers, 1, mask=pa.array([is_hidden, False, False])
    )
    lists = pa.Array.from_buffers(pa.list_(pa.int16()), 3, buffers, children=[numbers])
    arrays: list[pa.Array] = [lists, vectors]
    expected: list[Any] = [None, [1], [3]]
    if target == "map":
        target = pa.map_(pa.string(), pa.uint8())
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.int16())])
        keys = pa.array([None, "b", "c"])
        pairs = pa.StructArray.from_arrays([keys, numbers], fields=list(pair))
        expected = [None, [("b", 1)], [("c", 3)]]
        entry = [pair.field("key").with_nullable(False), pair.field("value")]
        keys = pa.array(["a", "b", "c"])  # Arrow itself has no maps with null keys
        entries = pa.StructArray.from_arrays([keys, numbers], fields=entry)
        kind = pa.map_(pa.string(), pa.int16())
        arrays = [
            pa.Array.from_buffers(pa.list_(pair), 3, buffers, children=[pairs]),
            pa.Array.from_buffers(kind, 3, buffers, children=[entries]),
        ]
    for array in arrays:
        batch = pa.record_batch({"a": array})
        assert cast_batch(batch[:0], pa.schema([("a", target)])).num_rows == 0
        if is_hidden:
            (column,) = cast_batch(batch, pa.schema([("a", target)])).columns
            column.validate(full=True)
            assert column.to_pylist() == expected
        else:
            with pytest.raises(InvalidInputError, match="column 'a"):
                cast_batch(batch, pa.schema([("a", target)]))


def test_timestamps_keep_their_instant() -> None:
    """Another zone or unit must not shift the moment."""
    source = pa.timestamp("us", "America/New_York")
    result = cast([0, None, 1_000_000], source, pa.timestamp("ms", "UTC"))
    assert result.cast(pa.int64()).to_pylist() == [0, None, 1000]


def test_floats_are_rounded_to_float16() -> None:
    """Spark has no float16, so its floats seldom have one exactly; integers are not rounded."""
    assert cast([0.1, None, 65519.0], pa.float32(), pa.float16()).to_pylist() == [
        float(np.float16(0.1)),
        None,
        65504.0,
    ]


def test_days_become_their_start() -> None:
    """A timestamp without a zone has the day's midnight."""
    days = [date(2020, 1, 1), None, date(1969, 12, 31)]
    result = cast(days, pa.date32(), pa.timestamp("ms"))
    assert result.cast(pa.int64()).to_pylist() == [1577836800000, None, -86400000]


def test_struct_fields_match_by_name() -> None:
    """Missing fields become null."""
    incoming = pa.struct([("b", pa.int16()), ("a", pa.string())])
    expected = pa.struct([("a", pa.large_string()), ("c", pa.int8()), ("b", pa.int64())])
    result = cast([{"b": 1, "a": "x"}, None, {"b": None, "a": None}], incoming, expected)
    assert result.to_pylist() == [
        {"a": "x", "c": None, "b": 1},
        None,
        {"a": None, "c": None, "b": None},
    ]


PAIR = pa.struct([("x", pa.string()), ("y", pa.int8())])
REFUSED_BY_TYPE = [
    (pa.int64(), pa.int32()),
    (pa.int64(), pa.uint16()),
    (pa.uint64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.binary(), pa.string()),
    (pa.binary(3), pa.binary(2)),
    (pa.bool_(), pa.int8()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.date32()),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.float64()), pa.list_(pa.float32())),
    (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int8())])),
    (pa.list_(pa.struct([("x", pa.int64())]), 2), pa.list_(pa.struct([("x", pa.int8())]))),
    (pa.map_(pa.int64(), pa.string()), pa.map_(pa.int8(), pa.string())),
    (pa.map_(pa.string(), pa.list_(pa.int64())), pa.map_(pa.string(), pa.list_(pa.int8()))),
    (pa.int8(), pa.list_(pa.int8())),
    (pa.list_(pa.int8()), pa.struct([("x", pa.int8())])),
    (pa.struct([("x", pa.int8())]), pa.int8()),
    (pa.struct([("x", pa.int8())]), pa.list_(pa.int8())),
    (pa.map_(pa.string(), pa.int8()), pa.int8()),
    (pa.map_(pa.string(), pa.int8()), pa.list_(PAIR)),
    (pa.list_(PAIR), pa.string()),
    (pa.list_(pa.struct([*PAIR, ("z", pa.int8())])), pa.map_(pa.string(), pa.int8())),
    (pa.list_(pa.struct([("x", pa.string())])), pa.map_(pa.string(), pa.int8())),
]


@pytest.mark.parametrize(("incoming", "target"), REFUSED_BY_TYPE, ids=str)
def test_narrowing_types_are_refused_up_front(incoming: pa.DataType, target: pa.DataType) -> None:
    """Refusing by type needs no row, so a stream fails at its start and not months later."""
    with pytest.raises(InvalidInputError, match="column 'a"):
        check_castable(pa.schema([("a", incoming)]), pa.schema([("a", target)]))


TYPES = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(),
    "u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(),
    "f16": pa.float16(), "f32": pa.float32(), "f64": pa.float64(),
    "d128": pa.decimal128(20, 2), "d256": pa.decimal256(50, 2), "bool": pa.bool_(),
    "text": pa.string(), "TEXT": pa.large_string(), "words": pa.dictionary(pa.int8(), pa.string()),
    "bytes": pa.binary(), "BYTES": pa.large_binary(), "two": pa.binary(2), "three": pa.binary(3),
    "day": pa.date32(), "DAY": pa.date64(), "at": pa.timestamp("us"), "AT": pa.timestamp("ms"),
    "zoned": pa.timestamp("us", "UTC"), "paris": pa.timestamp("ms", "Europe/Paris"),
    "time": pa.time32("s"), "TIME": pa.time64("us"), "span": pa.duration("s"),
    "SPAN": pa.duration("us"),
}  # fmt: skip
NUMBERS = "f16 f32 f64 d128 d256"
SAME_MEANING = {
    "i8": f"i8 i16 i32 i64 u8 u16 u32 u64 {NUMBERS}",
    "i16": f"i16 i32 i64 u8 u16 u32 u64 {NUMBERS}",
    "i32": f"i32 i64 u16 u32 u64 {NUMBERS}",
    "i64": f"i64 u32 u64 {NUMBERS}",
    "u8": f"u8 u16 u32 u64 i16 i32 i64 {NUMBERS}",
    "u16": f"u16 u32 u64 i32 i64 {NUMBERS}",
    "u32": f"u32 u64 i64 {NUMBERS}",
    "u64": f"u64 {NUMBERS}",
    "f16": "f16 f32 f64", "f32": "f16 f32 f64", "f64": "f64",
    "d128": "d128 d256 u64", "d256": "d128 d256 u64", "bool": "bool",
    **dict.fromkeys(["text", "TEXT", "words"], "text TEXT words"),
    "bytes": "bytes BYTES two three", "BYTES": "bytes BYTES two three",
    "two": "bytes BYTES two", "three": "bytes BYTES three",
    "day": "day DAY at AT", "DAY": "day DAY at AT", "at": "at AT", "AT": "at AT",
    "zoned": "zoned paris", "paris": "zoned paris", "time": "time TIME", "TIME": "time TIME",
    "span": "span SPAN", "SPAN": "span SPAN",
}  # fmt: skip


def is_castable(incoming: pa.DataType, target: pa.DataType) -> bool:
    try:
        check_castable(pa.schema([("a", incoming)]), pa.schema([("a", target)]))
    except InvalidInputError:
        return False
    return True


@pytest.mark.parametrize("incoming", TYPES)
def test_only_the_same_meaning_is_cast(incoming: str) -> None:
    """Each pair of types, also within a dictionary, whose values count."""
    for kind in TYPES[incoming], pa.dictionary(pa.int8(), TYPES[incoming]):
        if pa.types.is_dictionary(TYPES[incoming]) and kind != TYPES[incoming]:
            continue
        accepted = {name for name, target in TYPES.items() if is_castable(kind, target)}
        assert accepted == set(SAME_MEANING[incoming].split())


LISTS: list[Callable[[pa.DataType], pa.DataType]] = [
    pa.list_, pa.large_list, lambda item: pa.list_(item, 2),
]  # fmt: skip


@pytest.mark.parametrize("incoming", LISTS)
@pytest.mark.parametrize("target", LISTS)
@pytest.mark.parametrize(
    ("item", "items"),
    [
        (pa.int32(), pa.array([1, 2, None, 4], pa.int32())),
        (pa.int64(), pa.array([1, 2, None, 4], pa.int32())),
        (pa.int32(), pa.array([1, 2, None, 4], pa.int32()).dictionary_encode("encode")),
        (
            pa.dictionary(pa.int32(), pa.int32()),
            pa.array([1, 2, None, 4], pa.int32()).dictionary_encode("encode"),
        ),
    ],
    ids=["same", "wider", "dictionary", "null in a dictionary"],
)
def test_lists_of_each_kind_become_others(
    incoming: Callable[[pa.DataType], pa.DataType],
    target: Callable[[pa.DataType], pa.DataType],
    item: pa.DataType,
    items: pa.Array,
) -> None:
    """Three types of lists occur in both schemas, with items that need a cast or not."""
    kind = incoming(items.type)
    if pa.types.is_fixed_size_list(kind):
        mask = pa.array([False, True, False])
        hidden = pa.concat_arrays([items[:2], items[:2], items[2:]])
        lists = pa.FixedSizeListArray.from_arrays(hidden, 2, mask=mask)
    else:
        list_class = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
        lists = list_class.from_arrays(pa.array([0, None, 2, 4], width), items)
    table = pa.schema([("a", target(item))])
    for part, expected in (
        (lists, [[1, 2], None, [None, 4]]),
        (lists[1:], [None, [None, 4]]),
        (lists[:0], []),
    ):
        (column,) = cast_batch(pa.record_batch({"a": part}), table).columns
        column.validate(full=True)
        assert column.to_pylist() == expected
        leaves = column.flatten()
        if pa.types.is_dictionary(leaves.type):
            assert not leaves.dictionary.null_count


JSON = pa.field("a", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"})


@pytest.mark.parametrize(
    "column",
    [
        pa.array(['{"b":[1]}', None, "7"]),
        pa.array(['{"b":[1]}', None, "7"], pa.large_string()),
        pa.array(['{"b":[1]}', None, "7"], pa.string_view()),
        pa.array(['{"b":[1]}', None, "7"]).dictionary_encode(),
        as_jsonb(pa.array(['{"b":[1]}', None, "7"])),
        as_jsonb(pa.array(['{"b":[1]}', None, "7"])).cast(pa.binary()),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_become_json(column: pa.Array) -> None:
    """Spark has JSON as text, and rows that are moved have it as it is stored."""
    batch = pa.record_batch({"a": column})
    stored = cast_batch(batch, pa.schema([JSON]))
    assert with_text(stored).column(0).to_pylist() == ['{"b":[1]}', None, "7"]


@pytest.mark.parametrize(
    ("column", "error"),
    [
        (pa.array(["{"]), "column 'a': "),
        (pa.array([b"{}"], pa.large_binary()), "column 'a': "),
        (pa.array([7]), "column 'a' is int64, but JSON in the table"),
        (pa.array([True]), "column 'a' is bool, but JSON"),
    ],
)
def test_other_values_are_no_json(column: pa.Array, error: str) -> None:
    """A value that no reader can parse would fail each later query of the column."""
    with pytest.raises(InvalidInputError, match=error):
        cast_batch(pa.record_batch({"a": column}), pa.schema([JSON]))


BLOB = pa.field("a", pa.large_binary(), metadata={BLOB_KEY: "true"})
BLOB_INPUT = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
LONG_BLOB_INPUT = pa.struct([*BLOB_INPUT, ("position", pa.uint64()), ("size", pa.uint64())])


class BlobType(pa.ExtensionType):
    """An extension type as that of the reference's input."""

    def __init__(self) -> None:
        super().__init__(BLOB_INPUT, "test.blob")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


@pytest.mark.parametrize("form", ["struct", "long struct", "extension", "bytes"])
def test_blobs_by_value_become_bytes(form: str) -> None:
    """The reference takes blobs as structs of bytes or a URI; a null struct is a null blob."""
    rows: list[Any] = [{"data": b"one", "uri": None}, {"data": b"", "uri": None}]
    for values in rows, [*rows, None], [None, *rows], [None], []:
        array = pa.array(values, LONG_BLOB_INPUT if form == "long struct" else BLOB_INPUT)
        if form == "extension":
            array = pa.ExtensionArray.from_storage(BlobType(), array)
        if form == "bytes":
            array = pa.array([value and value["data"] for value in values], pa.binary())
        batch = pa.record_batch({"a": array})
        check_castable(batch.schema, pa.schema([BLOB]))
        result = cast_batch(batch, pa.schema([BLOB])).column(0)
        assert result.to_pylist() == [value and value["data"] for value in values]
        assert result.type == pa.large_binary()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([{"data": b"1", "uri": None}, {"data": None, "uri": "s3://b/k"}], "blobs by URI"),
        ([{"data": b"1", "uri": "s3://b/k"}], "blobs by URI"),
        ([{"data": None, "uri": None}, None], "blobs with neither data nor URI; use a null struct"),
    ],
)
def test_blobs_without_bytes_are_refused(values: list[Any], error: str) -> None:
    """Bytes at a URI may change or disappear."""
    batch = pa.record_batch({"a": pa.array(values, BLOB_INPUT)})
    with pytest.raises(InvalidInputError, match=f"column 'a' has {error}"):
        cast_batch(batch, pa.schema([BLOB]))


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("data", pa.binary())]),
        pa.struct([("uri", pa.string()), ("data", pa.binary())]),
        pa.string(),
    ],
)
def test_other_structs_are_no_blobs(kind: pa.DataType) -> None:
    """Only the reference's types of input are known to mean blobs, and only in columns of these."""
    with pytest.raises(InvalidInputError, match="column 'a' is"):
        check_castable(pa.schema([("a", kind)]), pa.schema([BLOB]))
    plain = pa.schema([("a", pa.large_binary())])
    for metadata in None, {"other": "key"}:
        with pytest.raises(InvalidInputError, match="column 'a' is struct"):
            check_castable(
                pa.schema([("a", BLOB_INPUT)]), pa.schema([plain.field(0).with_metadata(metadata)])
            )


REFUSED_BY_VALUE = [
    ([-1], pa.int16(), pa.uint8()),
    ([2**53 + 1], pa.int64(), pa.float64()),
    ([70000.0], pa.float32(), pa.float16()),
    ([1, None, 2049], pa.int64(), pa.float16()),
    ([-70000], pa.int32(), pa.float16()),
    ([2**24 + 1], pa.int32(), pa.float16()),
    ([Decimal("1.25")], pa.decimal128(10, 2), pa.decimal128(10, 1)),
    ([1500], pa.timestamp("us"), pa.timestamp("ms")),
    ([b"abc"], pa.binary(), pa.binary(2)),
    ([[1, 2, 3]], pa.list_(pa.int8()), pa.list_(pa.int8(), 2)),
    ([[], None], pa.list_(pa.int8()), pa.list_(pa.int8(), 2)),
    ([[-1]], pa.list_(pa.int16()), pa.list_(pa.uint8())),
    ([str(i) for i in range(200)], pa.string(), pa.dictionary(pa.int8(), pa.string())),
]


@pytest.mark.floors
@pytest.mark.parametrize(("values", "incoming", "target"), REFUSED_BY_VALUE, ids=str)
def test_values_out_of_range_are_refused(
    values: list[Any], incoming: pa.DataType, target: pa.DataType
) -> None:
    """Where types permit, each value decides, and none may wrap around or be rounded."""
    with pytest.raises(InvalidInputError, match="column 'a"):
        cast(values, incoming, target)


def test_columns_match_by_name() -> None:
    """Missing nullable columns become null."""
    table = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, 2], pa.int32())})
    assert cast_batch(batch, table).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}]


def test_unknown_columns_are_refused_by_name() -> None:
    """Dropping a column silently would lose data; parts of structs count as well."""
    for check in check_castable, check_rows_fit:
        with pytest.raises(InvalidInputError, match=r"no column 'c'; it has: a"):
            check(pa.schema([("a", pa.int64()), ("c", pa.int8())]), pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidInputError, match=r"no column 'a\.y'"):
        check_castable(
            pa.schema([("a", pa.struct([("y", pa.int8())]))]),
            pa.schema([("a", pa.struct([("x", pa.int8())]))]),
        )


def test_missing_required_columns_are_named() -> None:
    """A non-nullable column cannot be filled with nulls; all are listed, to be added at once."""
    a, b = pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64(), nullable=False)
    data = pa.schema([("c", pa.string())])
    with pytest.raises(InvalidInputError, match=r"'a' must not be null .* is missing .* let it be"):
        check_castable(data, pa.schema([a, *data]))
    with pytest.raises(InvalidInputError, match=r"'a', 'b' must not be null .* let them be"):
        check_castable(data, pa.schema([a, b, *data]))


NOT_NULL = pa.field("item", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("values", "field", "named"),
    [
        ([1, None], pa.field("a", pa.int64(), nullable=False), "'a'"),
        ([[1], [None]], pa.field("a", pa.list_(NOT_NULL)), r"'a\.item'"),
        (
            [{"item": 1}, {"item": None}],
            pa.field("a", pa.struct([NOT_NULL])),
            r"'a\.item'",
        ),
        (
            [{"b": {"item": 1}}, None, {"b": {"item": None}}],
            pa.field("a", pa.struct([("b", pa.struct([NOT_NULL]))])),
            r"'a\.b\.item'",
        ),
        ([[[1]], [[None]]], pa.field("a", pa.list_(pa.list_(NOT_NULL))), r"'a\.item\.item'"),
        (
            [{"b": [{"item": None}]}],
            pa.field("a", pa.struct([("b", pa.list_(pa.struct([NOT_NULL])))])),
            r"'a\.b\.item\.item'",
        ),
    ],
)
def test_nulls_in_required_columns_are_named(
    values: list[Any], field: pa.Field, named: str
) -> None:
    """Arrow does not enforce nullability, so nulls could enter at any depth."""
    for column in pa.array(values), pa.array(values, field.type):
        batch = pa.RecordBatch.from_arrays([column], names=["a"])
        with pytest.raises(InvalidInputError, match=f"column {named} must not be null"):
            cast_batch(batch, pa.schema([field]))


def test_nulls_below_a_null_are_allowed() -> None:
    """A child under a null parent has no value of its own, whatever its buffer contains."""
    expected = pa.schema([("a", pa.struct([NOT_NULL])), ("b", pa.list_(NOT_NULL))])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([{"item": 1}, None]), pa.array([[1], None])], names=["a", "b"]
    )
    assert cast_batch(batch, expected).to_pylist() == batch.to_pylist()


FORBIDDEN_NULLS = {
    "struct": pa.array([{"item": 1}, {"item": None}, {"item": 3}], pa.struct([NOT_NULL])),
    "list": pa.array([[1, 2], [None], [3]], pa.list_(NOT_NULL)),
    "large list": pa.array([[1, 2], [None], [3]], pa.large_list(NOT_NULL)),
    "vector": pa.array([[1], [None], [3]], pa.list_(NOT_NULL, 1)),
    "map": pa.array([[("a", 1), ("b", 2)], [("c", None)], [("d", 3)]], pa.map_("string", NOT_NULL)),
}


@pytest.mark.parametrize("kind", FORBIDDEN_NULLS)
def test_only_nulls_of_the_rows_count(kind: str) -> None:
    """A batch is often a slice, whose buffers have the values of other rows, too."""
    column = FORBIDDEN_NULLS[kind]
    table = pa.schema([pa.field("a", column.type)])
    for start, stop in (0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 0), (3, 3):
        batch = pa.record_batch({"a": column[start:stop]})
        if start <= 1 < stop:
            with pytest.raises(InvalidInputError, match=r"column 'a\.item' must not be null"):
                cast_batch(batch, table)
        else:
            assert cast_batch(batch, table)["a"].to_pylist() == column.to_pylist()[start:stop]


@pytest.mark.parametrize("kind", FORBIDDEN_NULLS)
def test_hidden_nulls_are_not_forbidden(kind: str) -> None:
    """A null struct, list or map may have any values below it."""
    column = FORBIDDEN_NULLS[kind]
    buffers = [pa.py_buffer(bytes([0b101]))]
    below = column.field(0) if kind == "struct" else column.values
    if kind not in ("struct", "vector"):
        buffers.append(column.offsets.buffers()[1])
    hidden = pa.Array.from_buffers(column.type, 3, buffers, children=[below])
    rows = cast_batch(pa.record_batch({"a": hidden}), pa.schema([pa.field("a", column.type)]))
    first, _, last = column.to_pylist()
    assert rows["a"].to_pylist() == [first, None, last]


def test_fitting_values_are_not_copied() -> None:
    """Most input fits, and copying it would double the memory of a write."""
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    result = cast_batch(batch, batch.schema)
    assert result.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


@pytest.mark.floors
def test_lists_of_pairs_become_maps() -> None:
    """Several libraries export maps as lists of pairs, whose keys must not be null."""
    expected = pa.map_(pa.string(), pa.int64())
    pair = pa.struct([("k", pa.string()), ("v", pa.int8())])
    rows = [[{"k": "a", "v": 1}], None, [], [{"k": "b", "v": None}]]
    array = cast(rows, pa.list_(pair), expected)
    assert array.to_pylist() == [[("a", 1)], None, [], [("b", None)]]
    for bad in ([[None]], [[{"k": None, "v": 1}]]):
        with pytest.raises(InvalidInputError, match=r"'a'.*null"):
            cast(bad, pa.list_(pair), expected)
    hidden = pa.array([True, False])  # the first pair is null, although its key has a value
    pairs = pa.StructArray.from_arrays(
        [pa.array(["a", "b"]), pa.array([1, 2], pa.int8())], fields=list(pair), mask=hidden
    )
    batch = pa.record_batch({"a": pa.ListArray.from_arrays([0, 2], pairs)})
    with pytest.raises(InvalidInputError, match=r"'a'.*null"):
        cast_batch(batch, pa.schema([("a", expected)]))


def test_map_values_are_checked_like_columns() -> None:
    """Values of maps must not be narrowed, nor be null where the table requires values."""
    wide, narrow = pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8())
    with pytest.raises(InvalidInputError, match=r"'a\.value'"):
        cast([[("k", 1)]], wide, narrow)
    with pytest.raises(InvalidInputError, match="'a'"):
        cast([[1]], pa.list_(pa.int64()), wide)
    there = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    with pytest.raises(InvalidInputError, match=r"'a\.value' must not be null"):
        cast([[], None, [("k", None)]], wide, there)
    below = pa.map_(pa.string(), pa.struct([NOT_NULL]))
    loose = pa.map_(pa.string(), pa.struct([("item", pa.int64())]))
    with pytest.raises(InvalidInputError, match=r"'a\.value\.item' must not be null"):
        cast([[("k", {"item": None})]], loose, below)


def test_extension_types_cast_as_their_storage() -> None:
    """A column of plain bytes accepts UUIDs, also within lists."""
    storage = pa.array([b"0123456789abcdef", None], pa.binary(16))
    named = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    incoming = pa.record_batch({"a": named, "l": pa.ListArray.from_arrays([0, 2, 2], named)})
    table = pa.schema([("a", pa.binary(16)), ("l", pa.list_(pa.binary(16)))])
    batch = cast_batch(incoming, table)
    assert batch.column("a").equals(storage)
    assert batch.column("l").to_pylist() == [storage.to_pylist(), []]


@pytest.mark.parametrize(("low", "high"), [(-1, 0), (0, 2), (-3, 7)])
def test_indices_outside_a_dictionary_are_refused(low: int, high: int) -> None:
    """Other readers reject a file with such an index, and Arrow does not check it."""
    buffers = [None, pa.array([low, 1, high], pa.int8()).buffers()[1]]
    indices = pa.Array.from_buffers(pa.int8(), 3, buffers)
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    for target in column.type, pa.string():
        with pytest.raises(InvalidInputError, match=f"the index {low if low < 0 else high} of a"):
            cast_batch(batch, pa.schema([("c", target)]))


def test_indices_behind_nulls_may_be_anything() -> None:
    """No row has their values."""
    indices = pa.array([0, 99, 1], pa.int8(), mask=np.array([False, True, False]))
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    for target in column.type, pa.string():
        cast = cast_batch(batch, pa.schema([("c", target)]))
        assert cast["c"].to_pylist() == ["a", None, "b"]
        cast.validate(full=True)


def test_repeated_column_names_are_refused() -> None:
    """Choosing one of the two values would be a guess."""
    ones = pa.array([1])
    inner = pa.StructArray.from_arrays([ones, ones], ["x", "x"])
    target = pa.schema([("s", pa.struct([("x", pa.int64())])), ("a", pa.int64())])
    for arrays, names, name in (
        ([ones, ones], ["a", "a"], "'a'"),
        ([inner], ["s"], r"s\.'x'"),
    ):
        with pytest.raises(InvalidInputError, match=f"the column {name} occurs more than once"):
            cast_batch(pa.RecordBatch.from_arrays(arrays, names), target)
