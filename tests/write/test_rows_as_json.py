"""Rows become JSON and the same rows again."""

import json
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.ledger.row_digests import digest_of
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
        import numpy as np

        return pa.array([None if value is None else np.float16(value) for value in values], kind)
    return pa.array(values, kind)


@st.composite
def columns(draw):
    kind, value = draw(st.sampled_from(LEAVES))
    flat = _array(kind, draw(st.lists(st.none() | value, min_size=4, max_size=4)))
    shape = draw(
        st.sampled_from(["leaf", "list", "large list", "struct", "map", "vector", "dictionary"])
    )
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
        return pa.FixedSizeListArray.from_arrays(twice, 2)
    if shape == "dictionary" and not (pa.types.is_float16(kind) or pa.types.is_nested(kind)):
        return pa.DictionaryArray.from_arrays(pa.array([3, None, 0, 1]), flat)
    return flat


@settings(max_examples=50, deadline=None)
@given(columns(), columns(), st.integers(0, 3))
def test_rows_come_back_exactly_from_json(first, second, start):
    """Quarantined rows are stored as JSON and replayed later, so not a bit may change."""
    batch = pa.RecordBatch.from_arrays([first, second], ["a", 'q"x']).slice(start)
    texts, types = rows_to_json(batch)
    assert all(json.loads(text) is not None for text in texts)
    again = rows_from_json(texts, types).combine_chunks().to_batches()
    assert digest_of(batch) == sum((digest_of(value) for value in again[1:]), digest_of(again[0]))


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


def test_types_without_json_form_are_refused():
    """A row that could not be replayed must not be quarantined."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, pa.month_day_nano_interval())], ["i"])
    with pytest.raises(InvalidInputError, match="month_day_nano"):
        rows_to_json(batch)
