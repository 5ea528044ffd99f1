"""Values are compared by one order and one equality, whatever their type."""

import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.keys.value_comparison import (
    are_less,
    check_can_order,
    dense_ranks,
    same_rows,
    same_values,
    show_value,
)

FLOATS = [0.0, -0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, None]
NUMBERS = [None, 0, 1, -1, 2]
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "float64": (pa.float64(), FLOATS),
    "float32": (pa.float32(), FLOATS),
    "float16": (pa.float16(), [None if x is None else np.float16(x) for x in FLOATS]),
    "int8": (pa.int8(), NUMBERS),
    "uint64": (pa.uint64(), [None, 0, 2**63, 2**64 - 1]),
    "decimal128": (pa.decimal128(30, 2), [None, Decimal("-1.50"), Decimal("1e20"), Decimal(0)]),
    "decimal256": (pa.decimal256(60, 0), [None, Decimal(10**50), Decimal(-(10**50)), Decimal(1)]),
    "bool": (pa.bool_(), [None, True, False]),
    "text": (pa.string(), [None, "", "a", "b", "ab", "é", "z", "￿", "\U0001f600"]),
    "large text": (pa.large_string(), [None, "", "a", "ab"]),
    "text in a dictionary": (pa.dictionary(pa.int8(), pa.string()), [None, "b", "a"]),
    "bytes": (pa.binary(), [None, b"", b"\0", b"\xff", b"a"]),
    "bytes of one size": (pa.binary(2), [None, b"ab", b"\0\xff", b"\xff\0"]),
    "date": (pa.date32(), [None, 0, -1, 2**31 - 1]),
    "timestamp": (pa.timestamp("us", "UTC"), [None, 0, -1, 2**63 - 1, -(2**63)]),
    "time": (pa.time64("ns"), [None, 0, 1]),
    "duration": (pa.duration("us"), [None, 0, -1, 2**63 - 1]),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.float64())]),
        [None, *({"a": a, "b": b} for a in (None, 1, 2) for b in (None, math.nan, 0.0, -0.0))],
    ),
    "list": (
        pa.list_(pa.int8()),
        [None, [], [None], [1], [1, None], [1, 1], [2], [None, 5], [1, 2, 3]],
    ),
    "large list of structs": (
        pa.large_list(pa.struct([("x", pa.string())])),
        [None, [], [None], [{"x": None}], [{"x": "a"}], [{"x": "a"}, {"x": "b"}]],
    ),
    "list of fixed size": (pa.list_(pa.int8(), 2), [None, [1, 2], [1, None], [None, 1]]),
}
VIEWS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text view": (pa.string_view(), [None, "", "b", "a", "longer than twelve bytes"]),
    "bytes view": (pa.binary_view(), [None, b"", b"\xff", b"a", b"longer than twelve bytes"]),
}
MAPS = pa.map_(pa.string(), pa.float64())
ONLY_EQUAL: dict[str, tuple[pa.DataType, list[Any]]] = {
    "map": (MAPS, [None, [], [("a", 1.0)], [("a", math.nan)], [("a", None), ("b", 1.0)]]),
    "null": (pa.null(), [None]),
}


def order_of(value: Any) -> tuple[Any, ...]:
    """Return what Python orders values by, as Spark does; nulls come first."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *map(order_of, value.values()))
    if isinstance(value, list):
        return (1, *map(order_of, value))
    if isinstance(value, tuple):
        return tuple(map(order_of, value))
    if isinstance(value, float | np.float16) and math.isnan(value):
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def pairs_of(
    kind: pa.DataType, values: list[Any]
) -> tuple[list[Any], pa.Array, list[Any], pa.Array]:
    left = [one for one in values for _ in values]
    right = values * len(values)
    chance = random.Random(1)
    # a slice, with neighbours that must not be looked at
    pad = [chance.choice(values) for _ in range(3)]
    return left, _array(pad + left, kind)[3:], right, _array(right + pad, kind)[: len(right)]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("name", [*TYPES, *VIEWS, *ONLY_EQUAL])
def test_equality_follows_python_values(name: str) -> None:
    """Unchanged rows are skipped by this comparison, so NaN, nulls and nested values must compare
    by value.
    """
    kind, values = {**TYPES, **VIEWS, **ONLY_EQUAL}[name]
    left, one, right, other = pairs_of(kind, values)
    expected = [order_of(a) == order_of(b) for a, b in zip(left, right, strict=True)]
    assert same_values(one, other).tolist() == expected


@pytest.mark.floors
@pytest.mark.parametrize("name", [*TYPES, *VIEWS])
def test_ordering_follows_spark(name: str) -> None:
    """Sequences decide which row is newest, and a user checks the result with Spark's `max`."""
    kind, values = {**TYPES, **VIEWS}[name]
    check_can_order("x", kind)
    left, one, right, other = pairs_of(kind, values)
    expected = [
        a is not None and b is not None and order_of(a) < order_of(b)
        for a, b in zip(left, right, strict=True)
    ]
    assert are_less(one, other).tolist() == expected
    distinct = sorted({order_of(value) for value in left if value is not None})
    ranks = [0 if value is None else distinct.index(order_of(value)) + 1 for value in left]
    assert dense_ranks(one).tolist() == ranks


@pytest.mark.parametrize("kind", [MAPS, pa.struct([("m", MAPS)]), pa.list_(MAPS), pa.struct([])])
def test_unordered_values_are_refused(kind: pa.DataType) -> None:
    """Maps have no order in Spark, so no row could be the newest."""
    with pytest.raises(InvalidInputError, match="'x' cannot order rows"):
        check_can_order("x", kind)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.scalar(2**31 - 1, pa.date32()), "out of range: 2147483647"),
        (pa.scalar(2**63 - 1, pa.timestamp("us")), "out of range: 9223372036854775807"),
        (pa.scalar(1, pa.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
        (pa.scalar([2**63 - 1], pa.list_(pa.timestamp("us"))), "list"),
        (pa.scalar("a"), "'a'"),
    ],
    ids=["date", "timestamp", "nanosecond", "list", "text"],
)
def test_values_python_lacks_can_be_shown(value: pa.Scalar, text: str) -> None:
    """An error message shows values, and a second error while formatting it
    would hide the first.
    """
    assert text in show_value(value)


@pytest.mark.parametrize("name", TYPES)
def test_dense_ranks_are_zero_for_nulls(name: str) -> None:
    """Ranks of several columns are combined, and 0 means null."""
    kind, values = TYPES[name]
    column = _array(values, kind)
    ones = pa.array(np.ones(len(column), np.int64))
    everywhere = np.ones(len(column), np.bool_)
    for ranked, is_valid in (
        (column, np.asarray(column.is_valid())),
        (column.drop_null(), everywhere[: len(column) - column.null_count]),
        (pa.StructArray.from_arrays([column], ["a"]), everywhere),
        (pa.StructArray.from_arrays([ones, ones], ["a", "b"]), everywhere),
    ):
        ranks = dense_ranks(ranked)
        assert ((ranks > 0) == is_valid).all()
        assert sorted({*ranks[is_valid].tolist()}) == list(range(1, len({*ranks[is_valid]}) + 1))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("num_rows", [0, 2])
def test_nulls_alone_have_no_rank(name: str, num_rows: int) -> None:
    """A batch may lack a value in all rows, or have no row."""
    nulls = _array([None] * num_rows, TYPES[name][0])
    assert dense_ranks(nulls).tolist() == [0] * num_rows
    assert same_values(nulls, nulls).tolist() == [True] * num_rows
    assert are_less(nulls, nulls).tolist() == [False] * num_rows


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.string()), MAPS])
def test_lists_without_items_are_equal(kind: pa.DataType) -> None:
    """An empty list equals another one, but not null."""
    lists, others = pa.array([[], [], None], kind), pa.array([[], None, []], kind)
    assert same_values(lists, others).tolist() == [True, False, False]
    if kind != MAPS:
        assert dense_ranks(lists).tolist() == [1, 1, 0]


def test_rows_differ_by_any_column() -> None:
    """A row that wrongly counts as unchanged is not written."""
    columns = {"a": [1, 2, 3, None], "b": ["x", None, "z", "x"]}
    batch = pa.RecordBatch.from_pydict(columns)
    assert same_rows(batch, batch).tolist() == [True] * 4
    for name, values, same in (
        ("a", [1, 9, 3, 0], [True, False, True, False]),
        ("b", [None, None, "z", "y"], [False, True, True, False]),
    ):
        assert (
            same_rows(batch, pa.RecordBatch.from_pydict(columns | {name: values})).tolist() == same
        )
    other = pa.RecordBatch.from_pydict({"a": [1, 9, 3, None], "b": ["y", None, "z", "x"]})
    assert same_rows(batch, other).tolist() == [False, False, True, True]


def test_extensions_compare_by_their_storage() -> None:
    """Keys may be UUIDs, which Arrow's functions do not accept."""
    storage = pa.array([b"b" * 16, b"a" * 16, None, b"b" * 16], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    assert dense_ranks(uuids).tolist() == dense_ranks(storage).tolist() == [2, 1, 0, 2]
    other = uuids.take(pa.array([0, 0, 0, 2]))
    assert same_values(uuids, other).tolist() == [True, False, False, False]
    assert are_less(uuids, other).tolist() == [False, True, False, False]
