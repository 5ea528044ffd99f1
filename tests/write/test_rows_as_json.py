"""Rows become JSON and the same rows again."""

import json
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.ledger.row_digests import add_up, digest_of
from lance_stream.write.rows_as_json import rows_from_json, rows_to_json

INT64 = st.integers(-(2**63), 2**63 - 1)

LEAVES = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), INT64),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.float16(), st.floats(width=16)),
    (pa.decimal128(38, 10), st.integers(-(10**38) + 1, 10**38 - 1)),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.large_binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.time32("s"), st.integers(0, 86_400 - 1)),
    (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1)),
    (pa.timestamp("us"), st.integers(-(2**62), 2**62)),
    (pa.timestamp("ns", tz="UTC"), st.integers(-(2**63) + 1, 2**63 - 1)),
    (pa.duration("us"), INT64),
]


def _array(kind, values):
    if pa.types.is_decimal(kind):
        digits = [None if value is None else Decimal(f"{value}E-10") for value in values]
        return pa.array([None if digit is None else str(digit) for digit in digits]).cast(kind)
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(kind)
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(value) for value in values], kind)
    return pa.array(values, kind)


VALUES: dict[pa.DataType, list[object]] = {
    pa.bool_(): [True, False],
    pa.float64(): [0.1, float("-inf")],
    pa.float32(): [0.5, float("nan")],
    pa.float16(): [0.5, float("inf")],
    pa.string(): ["", "\u00e9\x00"],
    pa.large_string(): ["x", "\U0001f600"],
    pa.binary(): [b"", b"\xff"],
    pa.large_binary(): [b"\x00", b"abc"],
    pa.binary(3): [b"abc", b"\x00\x00\xff"],
}
"""Two values of each type that is no number; of numbers, -1 or 1 and a larger one."""

SHAPES = ["leaf", "list", "large list", "struct", "map", "vector", "dictionary"]


def shaped(shape, flat):
    """Return four rows from four values, the second one null or without values."""
    if shape == "list":
        return pa.ListArray.from_arrays(pa.array([0, 3, None, 3, 4], pa.int32()), flat)
    if shape == "large list":
        return pa.LargeListArray.from_arrays(pa.array([0, 3, None, 3, 4], pa.int64()), flat)
    if shape == "struct":
        mask = pa.array([False, True, False, False])
        return pa.StructArray.from_arrays([flat, flat], ["a", "b"], mask=mask)
    if shape == "map":
        keys = pa.array(["x", "y", "x", "z"])
        return pa.MapArray.from_arrays([0, 2, 2, 3, 4], keys, flat)
    if shape == "vector":
        twice = pa.concat_arrays([flat, flat])
        mask = pa.array([False, True, False, False])
        return pa.FixedSizeListArray.from_arrays(twice, 2, mask=mask)
    if shape == "dictionary" and not pa.types.is_float16(flat.type):
        return pa.DictionaryArray.from_arrays(pa.array([3, None, 0, 1]), flat)
    return flat


@st.composite
def columns(draw):
    kind, value = draw(st.sampled_from(LEAVES))
    flat = _array(kind, draw(st.lists(st.none() | value, min_size=4, max_size=4)))
    return shaped(draw(st.sampled_from(SHAPES)), flat)


def check_round_trip(batch):
    texts, types = rows_to_json(batch)
    assert all(json.loads(text) is not None for text in texts)
    again = rows_from_json(texts, types)
    assert digest_of(batch) == add_up(map(digest_of, again.to_batches()))
    assert again.column_names == batch.schema.names
    return again


@pytest.mark.parametrize("shape", SHAPES)
def test_types_round_trip_in_all_shapes(shape):
    """Random cases may miss the only type that reaches a branch."""
    arrays = []
    for kind, _ in LEAVES:
        low, high = VALUES.get(kind, [1 if "uint" in str(kind) else -1, 100])
        if pa.types.is_time(kind):
            low = 86_399
        arrays.append(shaped(shape, _array(kind, [low, None, high, low])))
    batch = pa.RecordBatch.from_arrays(arrays, [str(number) for number in range(len(arrays))])
    again = check_round_trip(batch)
    check_round_trip(batch.slice(1, 2))
    for array, column in zip(arrays, again.columns, strict=True):
        plain = (
            array.type.value_type
            if shape == "dictionary" and pa.types.is_dictionary(array.type)
            else array.type
        )
        assert column.type == plain


def test_nulls_and_empty_values_come_back():
    """Types without values have no bytes, and must still be restored with each null."""
    mask = np.array([False, True, False])
    tensor = pa.fixed_shape_tensor(pa.int8(), [1])
    arrays = [
        pa.nulls(3),
        pa.array([{}, None, {}], pa.struct([])),
        pa.array([date(2024, 2, 29), None, date(1969, 12, 31)], pa.date64()),
        pa.ExtensionArray.from_storage(tensor, pa.array([[1], None, [2]], tensor.storage_type)),
        pa.array([[], None, []], pa.list_(pa.int8())),
        pa.array([1, 2, 3], mask=mask),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, list("abcdef"))
    texts, types = rows_to_json(batch)
    again = rows_from_json(texts, types)
    expected = [[None] * 3, [{}, None, {}]]
    expected += [[date(2024, 2, 29), None, date(1969, 12, 31)], [[1], None, [2]]]
    expected += [[[], None, []], [1, None, 3]]
    assert [column.to_pylist() for column in again.columns] == expected
    assert json.loads(texts[1]) == dict.fromkeys("abcdef")


def test_rows_without_columns_are_damage():
    """A quarantined row had at least one column."""
    texts, types = rows_to_json(pa.RecordBatch.from_pydict({"a": [1]}))
    assert rows_from_json(texts, types).num_rows == 1
    _, no_types = rows_to_json(pa.RecordBatch.from_pydict({}))
    with pytest.raises(CorruptDataError, match="a row in quarantine has no columns"):
        rows_from_json(["{}"], no_types)


def test_maps_may_be_null():
    """A null map has no entries, unlike an empty one."""
    column = pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64()))
    batch = pa.RecordBatch.from_arrays([column], ["m"])
    assert rows_from_json(*rows_to_json(batch)).to_pylist() == batch.to_pylist()


def test_rows_with_repeated_names_are_refused():
    """One JSON object cannot hold both values."""
    ones = pa.array([1])
    struct = pa.StructArray.from_arrays([ones, ones], ["x", "x"])
    for arrays, names in ([ones, ones], ["x", "x"]), ([struct], ["s"]):
        with pytest.raises(InvalidInputError, match="two columns or fields 'x'"):
            rows_to_json(pa.RecordBatch.from_arrays(arrays, names))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), True),
        (pa.int8(), 128),
        (pa.bool_(), 1),
        (pa.float64(), "Infinite"),
        (pa.float64(), [1]),
        (pa.decimal128(5, 2), "1.2.3"),
        (pa.string(), 1),
        (pa.string(), {"base64": "%"}),
        (pa.binary(), "%%%%"),
        (pa.date32(), "2024-02-30"),
        (pa.date32(), 5),
        (pa.time32("s"), "25:00:00"),
        (pa.duration("s"), "2"),
        (pa.list_(pa.int8()), 1),
        (pa.list_(pa.int8(), 2), [1]),
        (pa.list_(pa.int8(), 2), [1, 2, 3]),
        (pa.map_("string", "string"), [["a"]]),
        (pa.struct({"a": pa.int8()}), {"b": 1}),
    ],
)
def test_values_of_another_type_are_refused(kind, value):
    """A damaged quarantine must not be replayed with values that Arrow guesses."""
    _, types = rows_to_json(pa.RecordBatch.from_arrays([pa.nulls(1, kind)], ["a"]))
    with pytest.raises(CorruptDataError, match="damaged"):
        rows_from_json([json.dumps({"a": value})], types)


@settings(max_examples=50, deadline=None)
@given(columns(), columns(), st.integers(0, 3))
def test_rows_come_back_exactly_from_json(first, second, start):
    """Quarantined rows are stored as JSON and replayed later, so not a bit may change."""
    batch = pa.RecordBatch.from_arrays([first, second], ["a", 'q"x']).slice(start)
    check_round_trip(batch)


def test_json_values_are_readable_and_exact():
    """People read these rows, while floats, decimals and bytes must not lose anything."""
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "price": Decimal("12.50"),
                "day": date(2024, 2, 29),
                "data": b"\xff",
                "wait": timedelta(seconds=2),
                "f": float("nan"),
            }
        ],
        schema=pa.schema(
            [
                ("price", pa.decimal128(10, 2)),
                ("day", pa.date32()),
                ("data", pa.binary()),
                ("wait", pa.duration("ms")),
                ("f", pa.float64()),
            ]
        ),
    )
    texts, _ = rows_to_json(batch)
    assert json.loads(texts[0]) == {
        "price": "12.50",
        "day": "2024-02-29",
        "data": "/w==",
        "wait": 2000,
        "f": "NaN",
    }


def test_only_instants_have_a_zone() -> None:
    """A reader must see whether a time is local; all are written in UTC."""
    kinds = pa.timestamp("s"), pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Paris")
    arrays = [pa.array([0, None], kind) for kind in kinds]
    texts, _ = rows_to_json(pa.RecordBatch.from_arrays(arrays, ["a", "b", "c"]))
    assert json.loads(texts[0]) == {
        "a": "1970-01-01T00:00:00",
        "b": "1970-01-01T00:00:00Z",
        "c": "1970-01-01T00:00:00.000Z",
    }


def test_vectors_of_other_lengths_are_refused() -> None:
    """Items must not move into the next row, although their total number fits."""
    empty = pa.nulls(0, pa.list_(pa.int8(), 2))
    _, types = rows_to_json(pa.RecordBatch.from_arrays([empty], ["a"]))
    texts = [json.dumps({"a": value}) for value in ([1], [2, 3, 4], [5, 6])]
    with pytest.raises(CorruptDataError, match="a list does not have 2 items"):
        rows_from_json(texts, types)


def test_invalid_utf8_survives_json():
    """JSON holds Unicode only, and the invalid text is the very reason for the quarantine."""
    plain = pa.array([b"\xff\xfe", b"ok", None])
    text = pa.Array.from_buffers(pa.string(), 3, plain.buffers(), 1)
    texts, types = rows_to_json(pa.RecordBatch.from_arrays([text], ["s"]))
    assert json.loads(texts[0]) == {"s": {"base64": "//4="}}
    again = rows_from_json(texts, types)["s"].combine_chunks()
    assert again.cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"ok", None]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": "x"}', '{"a": [1]}', "[" * 100_000])
def test_damaged_json_rows_are_refused(text):
    """Stored bytes are not trusted, deep nesting included."""
    _, types = rows_to_json(pa.RecordBatch.from_pydict({"a": [1]}))
    with pytest.raises(CorruptDataError):
        rows_from_json([text], types)


def test_damaged_types_are_refused() -> None:
    """They decide what the values mean."""
    texts, types = rows_to_json(pa.RecordBatch.from_pydict({"a": [1]}))
    for damaged in ("", "AAAA", types[:40], f"{types[:8]}%%%%{types[8:]}"):
        with pytest.raises(CorruptDataError, match="a row in quarantine is damaged"):
            rows_from_json(texts, damaged)


def test_types_without_json_form_are_refused():
    """A row that could not be replayed must not be quarantined."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, pa.month_day_nano_interval())], ["i"])
    with pytest.raises(InvalidInputError, match="month_day_nano"):
        rows_to_json(batch)
