"""Values under another type: the same value or null, anywhere in an array."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.feed.value_conversion import ValueSource, convert

POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
SWAPPED = pa.struct([("y", pa.string()), ("z", pa.int8()), ("x", pa.int8())])
OF_POINT = ValueSource(0, (ValueSource(1), None, ValueSource(0)), is_whole=False)
LIST = ValueSource(0, (OF_POINT,), is_whole=False)

CASES: list[tuple[pa.DataType, list[Any], pa.DataType, list[Any], ValueSource]] = [
    (pa.int64(), [1, None, 300], pa.int8(), [1, None, None], ValueSource(0)),
    (pa.uint64(), [1, 2**64 - 1], pa.int64(), [1, None], ValueSource(0)),
    (pa.int64(), [-1, 7], pa.uint8(), [None, 7], ValueSource(0)),
    (pa.int64(), [2**53, 2**53 + 1], pa.float64(), [2.0**53, None], ValueSource(0)),
    (pa.int32(), [5, 2049], pa.float16(), [5.0, None], ValueSource(0)),
    (pa.float64(), [1.0, 1.5, None, 1e300], pa.int64(), [1, None, None, None], ValueSource(0)),
    (
        pa.float64(),
        [0.5, 0.1, float("inf")],
        pa.float32(),
        [0.5, None, float("inf")],
        ValueSource(0),
    ),
    (pa.float32(), [0.5, None, 70000.0], pa.float16(), [0.5, None, None], ValueSource(0)),
    (
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("1.25"), None],
        pa.decimal128(5, 1),
        [Decimal("1.5"), None, None],
        ValueSource(0),
    ),
    (pa.int64(), [3, 10**9], pa.decimal128(5, 1), [Decimal("3.0"), None], ValueSource(0)),
    (pa.decimal128(5, 1), [Decimal("3.0"), Decimal("3.5")], pa.int8(), [3, None], ValueSource(0)),
    (pa.string(), ["a", None], pa.large_string(), ["a", None], ValueSource(0)),
    (pa.string(), ["a", None], pa.dictionary(pa.int8(), pa.string()), ["a", None], ValueSource(0)),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], pa.string(), ["a", "b"], ValueSource(0)),
    (pa.binary(), [b"ab", b"abc", None], pa.binary(2), [b"ab", None, None], ValueSource(0)),
    (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1), ("b", 300)], None, []],
        pa.map_(pa.string(), pa.int8()),
        [[("a", 1), ("b", None)], None, []],
        ValueSource(0),
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1), ("b", 300)], None, []],
        pa.map_(pa.string(), pa.int8()),
        [[("a", None), ("b", None)], None, []],
        ValueSource(0, (ValueSource(0), None), is_whole=False),
    ),
    (pa.binary(), [b"ab", None], pa.large_binary(), [b"ab", None], ValueSource(0)),
    (pa.binary(2), [b"ab", None], pa.binary(), [b"ab", None], ValueSource(0)),
    (pa.date32(), [date(2026, 1, 2)], pa.timestamp("s"), [datetime(2026, 1, 2)], ValueSource(0)),
    (
        pa.timestamp("s"),
        [datetime(2026, 1, 2), datetime(2026, 1, 2, 3)],
        pa.date32(),
        [date(2026, 1, 2), None],
        ValueSource(0),
    ),
    (pa.timestamp("s"), [datetime(2500, 1, 1)], pa.timestamp("ns"), [None], ValueSource(0)),
    (pa.timestamp("us"), [datetime(2026, 1, 2)], pa.timestamp("us", "UTC"), [None], ValueSource(0)),
    (pa.string(), ["1"], pa.int64(), [None], ValueSource(0)),
    (
        POINT,
        [{"x": 1, "y": "a"}, None, {"x": 300, "y": None}],
        SWAPPED,
        [{"y": "a", "z": None, "x": 1}, None, {"y": None, "z": None, "x": None}],
        OF_POINT,
    ),
    (
        pa.list_(POINT),
        [[{"x": 1, "y": "a"}], None, [], [None, {"x": 2, "y": "b"}]],
        pa.large_list(SWAPPED),
        [[{"y": "a", "z": None, "x": 1}], None, [], [None, {"y": "b", "z": None, "x": 2}]],
        LIST,
    ),
    (
        pa.list_(pa.int64()),
        [[1, 2], None, [3], [4, 500]],
        pa.list_(pa.int8(), 2),
        [[1, 2], None, None, [4, None]],
        ValueSource(0),
    ),
    (pa.list_(pa.int8(), 2), [[1, 2], None], pa.list_(pa.int64()), [[1, 2], None], ValueSource(0)),
    (
        pa.map_(pa.int64(), POINT),
        [[(1, {"x": 1, "y": "a"})], None, [], [(300, None), (2, None)], [(3, None)]],
        pa.map_(pa.int8(), SWAPPED),
        [[(1, {"y": "a", "z": None, "x": 1})], None, [], None, [(3, None)]],
        ValueSource(0, (ValueSource(0), OF_POINT), is_whole=False),
    ),
    (POINT, [{"x": 1, "y": "a"}, None], pa.struct([]), [{}, None], ValueSource(0, is_whole=False)),
    (POINT, [{"x": 1, "y": "a"}], pa.struct([]), [{}], ValueSource(0, is_whole=False)),
    (pa.int64(), [1], POINT, [None], ValueSource(0, (None, None))),
    (POINT, [{"x": 1, "y": "a"}], pa.int64(), [None], ValueSource(0)),
    (pa.null(), [None], POINT, [None], ValueSource(0, (None, None))),
    (pa.int64(), [1, None], pa.list_(pa.int64()), [None, None], ValueSource(0)),
    (pa.int64(), [1, None], pa.map_("string", "int8"), [None, None], ValueSource(0)),
    (pa.float64(), [1.5, None], pa.decimal128(5, 1), [None, None], ValueSource(0)),
    (pa.decimal128(5, 1), [Decimal("1.5"), None], pa.float64(), [None, None], ValueSource(0)),
    (pa.string_view(), ["a", None], pa.large_string(), ["a", None], ValueSource(0)),
    (pa.binary_view(), [b"a", None], pa.binary(), [b"a", None], ValueSource(0)),
    (pa.string(), ["a", None], pa.binary(), [None, None], ValueSource(0)),
    (pa.binary(), [b"a", None], pa.string(), [None, None], ValueSource(0)),
]


@pytest.mark.floors
@pytest.mark.parametrize(("before", "values", "now", "expected", "source"), CASES)
def test_values_under_another_type_or_null(
    before: pa.DataType,
    values: list[Any],
    now: pa.DataType,
    expected: list[Any],
    source: ValueSource,
) -> None:
    """Values that the type cannot hold become null."""
    read = pa.array(values, before)
    actual = convert(read, source, now)
    actual.validate(full=True)
    assert (actual.type, actual.to_pylist()) == (now, expected)
    twice = pa.concat_arrays([read, read])
    for start in range(len(values)):
        part = convert(twice.slice(start, len(values)), source, now)
        part.validate(full=True)
        assert part.to_pylist() == expected[start:] + expected[:start]
    assert convert(read.slice(0, 0), source, now).to_pylist() == []


def test_extension_types_convert_their_storage() -> None:
    """Another version may have the same values without the name of the type."""
    storage = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2]), storage)
    converted = convert(tensors, ValueSource(0), pa.list_(pa.float64()))
    assert converted.to_pylist() == [[1.0, 2.0], None]


INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32()]
INTEGERS += [pa.int64(), pa.uint64()]
EXACT = {pa.float16(): 1 << 11, pa.float32(): 1 << 24, pa.float64(): 1 << 53}
"""Up to where each float type has all integers."""


def limits_of(kind: pa.DataType) -> tuple[int, int]:
    if kind in EXACT:
        return -EXACT[kind], EXACT[kind]
    bits = kind.bit_width
    return (0, (1 << bits) - 1) if str(kind)[0] == "u" else (-1 << bits - 1, (1 << bits - 1) - 1)


@pytest.mark.parametrize("before", [*INTEGERS, *EXACT])
def test_integers_convert_up_to_the_limit(before: pa.DataType) -> None:
    """A value beyond the limit becomes null, never another number."""
    kinds = [*INTEGERS, *EXACT]
    edges = {edge + step for kind in kinds for edge in limits_of(kind) for step in (-1, 0, 1)}
    low, high = limits_of(before)
    values = sorted(edge for edge in edges if low <= edge <= high)
    array = pa.array([None, *values], pa.float64() if before in EXACT else before).cast(before)
    for now in kinds:
        low, high = limits_of(now)
        if before in EXACT and now in EXACT:
            with np.errstate(over="ignore"):
                cast = np.array(values, float).astype(now.to_pandas_dtype()).tolist()
            fitting = [value for value, there in zip(values, cast, strict=True) if value == there]
        else:
            fitting = [value for value in values if low <= value <= high or before == now]
        output = convert(array, ValueSource(0), now)
        assert output.type == now
        expected = [None, *(value if value in fitting else None for value in values)]
        assert output.to_pylist() == expected, now


@pytest.mark.parametrize("now", INTEGERS)
def test_whole_floats_become_integers(now: pa.DataType) -> None:
    """The largest 64-bit integers have no exact float, so the next float is out of range."""
    floats = [0.0, -0.5, float("nan"), float("inf")]
    floats += [sign * 2.0**power for power in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (-1, 1)]
    low, high = limits_of(now)
    expected = [
        int(number) if number.is_integer() and low <= int(number) <= high else None
        for number in floats
    ]
    assert convert(pa.array(floats), ValueSource(0), now).to_pylist() == expected


def test_dictionaries_fill_their_indices() -> None:
    """The largest index is one less than the number of values: the others become null."""
    texts = [str(number) for number in range(130)]
    array = convert(pa.array(texts), ValueSource(0), pa.dictionary(pa.int8(), pa.string()))
    assert array.to_pylist() == [*texts[:128], None, None]
