"""Results of functions are stored unchanged, or refused."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.derived.returned import _is_same, as_outputs
from lance_stream.errors import InvalidInputError

DAYS = np.array(["2020-01-01", "2020-01-02", "NaT"], "M8[D]")
FIRST, SECOND = datetime(2020, 1, 1), datetime(2020, 1, 2)
MASKED = np.ma.masked_array(np.arange(4.0).reshape(2, 2), mask=[[False, False], [False, True]])
POINT_OF_TIME = pa.struct([("t", pa.timestamp("ns"))])
MAP = pa.map_(pa.string(), pa.int64())
EAST = timezone(timedelta(hours=2))
NOON = datetime(2020, 1, 1, 12)
NANOS = pd.Timestamp("2020-01-01 00:00:00.123456789")
POINT = pa.struct([("a", pa.int64()), ("b", pa.float32())])
PAIR = pa.struct([("p", POINT), ("q", POINT)])
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2])


class WithColumns(dict[str, Any]):
    """A mapping with an attribute that data frames also have."""

    columns = ("o", "n")


def returned(values: Any, kind: pa.DataType) -> list[Any]:
    batch = as_outputs(values, pa.schema([("o", kind)]), len(values))
    batch.validate(full=True)
    assert batch.schema.types == [kind]
    stored: list[Any] = batch.column(0).to_pylist()
    return stored


@pytest.mark.floors
@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (DAYS, pa.timestamp("us"), [FIRST, SECOND, None]),
        (DAYS, pa.date32(), [FIRST.date(), SECOND.date(), None]),
        (DAYS[:2], pa.int32(), [18262, 18263]),
        (DAYS[:2].astype("M8[ns]"), pa.timestamp("s"), [FIRST, SECOND]),
        (np.array([90], "m8[m]"), pa.duration("s"), [timedelta(minutes=90)]),
        (MASKED, pa.list_(pa.float32(), 2), [[0, 1], [2, None]]),
        (MASKED, pa.list_(pa.float64()), [[0, 1], [2, None]]),
        ([*MASKED], pa.list_(pa.float32(), 2), [[0, 1], [2, None]]),
        (np.array([b"a", b"b"]), pa.string(), ["a", "b"]),
        (np.array(["a", "b"]), pa.binary(), [b"a", b"b"]),
        (np.array([True, False]), pa.bool_(), [True, False]),
        (np.array([1, 2]), pa.date32(), [date(1970, 1, 2), date(1970, 1, 3)]),
        (MASKED.reshape(-1), pa.float32(), [0, 1, 2, None]),
        (np.zeros((2, 2, 1)), pa.list_(pa.list_(pa.int8())), [[[0], [0]]] * 2),
        (np.array([1.0, None, 3], object), pa.int64(), [1, None, 3]),
        (np.array([0.1, np.inf, np.nan]), pa.float64(), [0.1, np.inf, np.nan]),
        ([0.1, 16777217.5, None], pa.float32(), [np.float32(0.1), 16777218.0, None]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([{"a": 1}, {"b": 2.5}, None], POINT, [{"a": 1, "b": None}, {"a": None, "b": 2.5}, None]),
        ([{"a": 1, "more": None}], pa.struct([("a", pa.int8())]), [{"a": 1}]),
        ([[("k", 1)], []], pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
        ([DAYS[:2].astype("M8[s]")], pa.list_(pa.timestamp("us")), [[FIRST, SECOND]]),
        ([DAYS[:2]], pa.list_(pa.date32()), [[FIRST.date(), SECOND.date()]]),
        ([DAYS[:2].astype("M8[ns]")], pa.list_(pa.timestamp("ns"), 2), [[FIRST, SECOND]]),
        ([{"k": 1}, None], pa.map_(pa.string(), pa.int64()), [[("k", 1)], None]),
        ([FIRST, None], pa.date32(), [FIRST.date(), None]),
        (
            np.array(["2020-01", "2021-01"], "M8[M]"),
            pa.date32(),
            [date(2020, 1, 1), date(2021, 1, 1)],
        ),
        ([NOON.replace(tzinfo=UTC)], pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)]),
        ([NOON.replace(tzinfo=EAST)], pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=EAST)]),
        ([Decimal("1.50")], pa.decimal128(5, 3), [Decimal("1.500")]),
        (["a", None, "a"], pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
        ([b"ab", "cd"], pa.binary(), [b"ab", b"cd"]),
        ([2**63], pa.uint64(), [2**63]),
        (pd.Series([1.0, 2.0]), pa.int64(), [1, 2]),
        (pd.Series([1, None], dtype="Int64"), pa.int64(), [1, None]),
        (pd.Series(["a", None], dtype="string"), pa.string(), ["a", None]),
        (pd.Series([True, None], dtype="boolean"), pa.bool_(), [True, None]),
        (pd.Series(["a", None], dtype="category"), pa.string(), ["a", None]),
        (pd.Series(pd.to_datetime(["2020-01-01", None])), pa.timestamp("ns"), [FIRST, None]),
        (pd.Series([{"a": 1}, None]), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
        ([pd.NA, pd.NaT, 1], pa.int64(), [None, None, 1]),
        ([[FIRST, pd.NaT]], pa.list_(pa.timestamp("ns")), [[FIRST, None]]),
        ([{"b": 0.1}], POINT, [{"a": None, "b": np.float32(0.1)}]),
        ([{"a": pd.NaT}], pa.struct([("a", pa.timestamp("us"))]), [{"a": None}]),
        ([NANOS], pa.timestamp("ns"), [NANOS]),
        (pd.Series([NANOS]), pa.timestamp("ns"), [NANOS]),
        ([pd.Timedelta(1, "ns")], pa.duration("ns"), [pd.Timedelta(1, "ns")]),
        ([np.datetime64("2020-01-01")], pa.date32(), [FIRST.date()]),
        ([np.datetime64("2020-01-01T00")], pa.timestamp("us"), [FIRST]),
        (np.array([("2020-01-01",)], [("t", "M8[ns]")]), POINT_OF_TIME, [{"t": FIRST}]),
        (
            [np.ma.masked_array(DAYS[:2].astype("M8[ns]"), [0, 1])],
            pa.list_(pa.timestamp("ns")),
            [[FIRST, None]],
        ),
        *(
            (
                np.array([("2020-01-01",), ("NaT",)], [("t", f"M8[{unit}]")]),
                pa.struct([("t", kind)]),
                [{"t": FIRST.date() if kind == pa.date32() else FIRST}, {"t": None}],
            )
            for kind, units in ((pa.timestamp("ns"), "s us ns"), (pa.date32(), "Y M D s us"))
            for unit in units.split()
        ),
        (
            np.array([(90,)], [("t", "m8[m]")]),
            pa.struct([("t", pa.duration("ns"))]),
            [{"t": timedelta(minutes=90)}],
        ),
        (
            np.array([(["2020-01-01", "2020-01-02"],)], [("t", "M8[ns]", (2,))]),
            pa.struct([("t", pa.list_(pa.timestamp("ns")))]),
            [{"t": [FIRST, SECOND]}],
        ),
        (
            [np.array([("2020-01-01",)], [("t", "M8[ns]")])],
            pa.list_(POINT_OF_TIME),
            [[{"t": FIRST}]],
        ),
        ([(1, 2.5), None, (None, 0.5)], POINT, [{"a": 1, "b": 2.5}, None, {"a": None, "b": 0.5}]),
        ([((1, 2.5), (3, 4.5))], PAIR, [{"p": {"a": 1, "b": 2.5}, "q": {"a": 3, "b": 4.5}}]),
        ([[("a", 1), ("b", 2.5)]], POINT, [{"a": 1, "b": 2.5}]),
        ([np.float32(1.5)], pa.float16(), [1.5]),
        (
            [{"a": np.zeros((2, 1))}],
            pa.struct([("a", pa.list_(pa.list_(pa.int8())))]),
            [{"a": [[0]] * 2}],
        ),
        ([{"a": MASKED[1]}], pa.struct([("a", pa.list_(pa.float64()))]), [{"a": [2, None]}]),
        (
            [{"a": {"b": MASKED[1]}}, {"a": None}],
            pa.struct([("a", pa.struct([("b", pa.list_(pa.float64()))]))]),
            [{"a": {"b": [2, None]}}, {"a": None}],
        ),
        ([{"a": DAYS[:1]}], pa.struct([("a", pa.list_(pa.date32()))]), [{"a": [FIRST.date()]}]),
        (pd.DataFrame({"o": [1.5]}), pa.float32(), [1.5]),
        (pd.DataFrame({"o": [1]}), pa.int32(), [1]),
        (pd.DataFrame({"o": [np.array([1.0, 2.0])]}), pa.list_(pa.float32(), 2), [[1, 2]]),
        (pa.array([1.5, None]), pa.float32(), [1.5, None]),
        (pa.chunked_array([[1], [2]]), pa.int8(), [1, 2]),
        ([np.array([1.0, 2.0], np.float32)], pa.list_(pa.float32(), 2), [[1, 2]]),
        (WithColumns(o=[1, 2], n=[3, 4]), pa.int8(), [1, 2]),
    ],
)
def test_returned_values_are_stored_unchanged(
    values: Any, kind: pa.DataType, expected: list[Any]
) -> None:
    """Many libraries return dates, masks and nested arrays, and none may be shifted, rounded or
    filled.
    """
    np.testing.assert_equal(returned(values, kind), expected)


@pytest.mark.parametrize(
    ("values", "kind", "problem"),
    [
        (np.array([1.5, None], object), pa.int64(), "1.5 would become 1"),
        ([1.5], pa.int8(), "1.5 would become 1"),
        (pd.Series([1.5]), pa.int64(), "1.5.* truncated"),
        ([[1, 2.5]], pa.list_(pa.int64()), "2.5 would become 2"),
        ([[[1, 2.5]]], pa.large_list(pa.list_(pa.int64(), 2)), "2.5 would become 2"),
        ([{"a": 1.5}], POINT, "1.5}? would become {'a': 1,"),
        ([(1.5, 2)], POINT, "1.5, 2. would become {'a': 1,"),
        ([[("a", 1.5)]], POINT, "1.5.. would become {'a': 1,"),
        ([((1, 2.5), (3.5, 4))], PAIR, "would become"),
        ([[{"a": 1.5}]], pa.list_(POINT), "1.5}. would become .{'a': 1,"),
        ([{"A": 1}], POINT, "field 'A' does not exist in the type, which has: a, b"),
        ([1e300], pa.float32(), "1e.300 would become inf"),
        (np.array([[1e300]]), pa.list_(pa.float32(), 1), "1e.300 would become inf"),
        (np.array([1, 300]), pa.binary(), ""),
        (np.array([1.5]), pa.binary(), ""),
        (np.array([1, 300]), pa.bool_(), ""),
        (np.array([1.5]), pa.bool_(), ""),
        (np.array([1.5]), pa.timestamp("s"), ""),
        (DAYS[:2], pa.string(), ""),
        (DAYS[:2].astype("M8[s]"), pa.timestamp("us", "UTC"), "would become"),
        ([np.array([0, 1], "M8[ps]")], pa.list_(pa.timestamp("us")), ""),
        ([np.datetime64("2020-01-01", "fs")], pa.timestamp("us"), ""),
        ([[1e300]], pa.list_(pa.float16(), 1), ""),
        ([1e300], pa.float16(), "1e.300 would become inf"),
        ([[1e300, 1.0]], TENSOR, "1e.300 would become inf"),
        (np.array([b"abc"], "V3"), POINT, ""),
        ([datetime(2020, 1, 1, 5)], pa.date32(), "05:00:00 would become 2020-01-01"),
        ([datetime(2020, 1, 1, 5, 0, 0, 7)], pa.timestamp("s"), "000007 would become"),
        (
            np.array(["2020-01-01T05"], "M8[h]"),
            pa.date32(),
            "time in the unit 'h' would be truncated",
        ),
        ([[("k", 1.5)]], pa.map_(pa.string(), pa.int64()), "1.5.. would become"),
        ([{"m": {"k": 1.5}}], pa.struct([("m", MAP)]), "1.5}} would become"),
        ([[{"k": 1.5}]], pa.list_(MAP), "1.5}. would become"),
        ([{"a": 1.5, "m": [("k", 1)]}], pa.struct([("a", pa.int8()), ("m", MAP)]), "would become"),
        ([(1.5, 2.0)], POINT, "1.5, 2.0. would become"),
        ([[("a", 1.5)]], pa.struct([("a", pa.int64())]), "would become"),
        ([date(2020, 1, 1), NOON], pa.date32(), "12:00:00 would become 2020-01-01"),
        ([[NOON, date(2020, 1, 1)]], pa.list_(pa.date32()), "would become"),
        ([Decimal(1), 2.5], pa.int64(), "2.5 would become 2"),
        ([np.array(1.5)], pa.int64(), "1.5 would become 1"),
        ([pd.Timestamp("2020-01-01 00:00:00.123456789")], pa.timestamp("us"), "123456789"),
        (pd.Series(pd.to_datetime(["2020-01-01 00:00:00.000000789"])), pa.timestamp("us"), "lose"),
        ([pd.Timedelta(1, "ns")], pa.duration("us"), "would become"),
        (
            np.array([(1, 3)], [("a", "i8"), ("c", "i8")]),
            pa.struct([("a", pa.int64())]),
            "field 'c'",
        ),
        ([time(5, tzinfo=EAST)], pa.time64("us"), "would become"),
        ([NOON.replace(tzinfo=EAST)], pa.timestamp("us"), "12:00:00.02:00 would become"),
        ([NOON], pa.timestamp("us", "UTC"), "would become"),
        ([{"k": 1.5}], MAP, "1.5} would become"),
        ([DAYS[:2]], pa.list_(pa.timestamp("us")), "date"),
        ([1.5], pa.date32(), "1.5 would become 1"),
        ([1.5], pa.timestamp("s"), "1.5 would become 1"),
        ([2**53 + 1], pa.float64(), "9007199254740993"),
        ([2**24 + 1], pa.float32(), "16777217"),
        ([{"b": 2**24 + 1}], POINT, "16777217"),
    ],
)
def test_lossy_results_are_refused(values: Any, kind: pa.DataType, problem: str) -> None:
    """pyarrow would truncate such values silently, at any depth."""
    with pytest.raises(InvalidInputError, match=f"'o' .*fit the .*{problem}"):
        returned(values, kind)


def test_arrow_numbers_do_not_become_texts() -> None:
    """Arrow casts them, but a stored number can be read as one."""
    with pytest.raises(InvalidInputError, match="'o' is int64, but string in the table"):
        returned(pa.array([1]), pa.string())


WHOLE = [pa.int8(), pa.int16(), pa.uint32(), pa.int64()]
OTHER = [pa.float32(), pa.float64(), pa.date32(), pa.timestamp("s"), pa.string(), pa.bool_()]


@given(
    st.lists(
        st.none()
        | st.booleans()
        | st.integers(-(2**40), 2**40)
        | st.floats(allow_nan=False)
        | st.datetimes()
        | st.dates()
        | st.text(max_size=3),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(WHOLE + OTHER),
    st.booleans(),
)
def test_accepted_results_equal_their_input(
    values: list[Any], kind: pa.DataType, is_array: bool
) -> None:
    """For arbitrary values and types a result is either stored exactly or refused."""
    if pa.types.is_temporal(kind):  # where numbers are days or seconds
        values = [value for value in values if not isinstance(value, int | float)]
    incoming = np.array(values, object) if is_array else values
    try:
        actual = returned(incoming, kind)
    except InvalidInputError:
        return
    for value, stored in zip(values, actual, strict=True):
        if isinstance(value, date) and not isinstance(value, datetime) and stored is not None:
            assert stored in (value, datetime(value.year, value.month, value.day))
        elif isinstance(value, datetime) and type(stored) is date:
            assert datetime(stored.year, stored.month, stored.day) == value
        elif pa.types.is_float32(kind) and isinstance(value, float):
            assert stored == np.float32(value)
        else:
            assert stored == value


ARRAYS = [
    np.array([True, False]),
    np.array([1, 2], "i1"),
    np.array([1, 300], "i8"),
    np.array([1, 2], "u8"),
    np.array([1.5, 2.0]),
    np.array([1.0, 2.0], "f4"),
    np.array([1.5, 2], "f2"),
    np.array(["a", "1"]),
    np.array([b"a", b"1"]),
    np.array(["2020-01-01T05", "2020-01-02T00"], "M8[s]"),
    DAYS[:2],
    np.array([1, 2], "M8[ns]"),
    np.array([5, 7], "m8[s]"),
]
PLAIN = [pa.bool_(), pa.int64(), pa.uint16(), pa.string(), pa.binary(), pa.decimal128(10, 2)]
TIMES = [pa.date64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us")]
NUMBERS = [pa.int8(), pa.float16(), pa.float64(), pa.duration("s")]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_numpy_arrays_convert_exactly_or_fail(array: npt.NDArray[Any]) -> None:
    """numpy's types have units and sizes that Arrow reads as plain numbers."""
    num_accepted = 0
    for kind in {*PLAIN, *TIMES, *NUMBERS, *OTHER}:
        try:
            actual = returned(array, kind)
        except InvalidInputError:
            continue
        num_accepted += 1
        for value, stored in zip(array, actual, strict=True):
            if array.dtype.kind in "mM" and not isinstance(stored, int):
                comparable = stored.to_numpy() if isinstance(stored, pd.Timestamp) else stored
                assert np.array([comparable], array.dtype)[0] == value, kind
            elif pa.types.is_temporal(kind) or array.dtype.kind in "mM":
                assert array.dtype.kind in "iumM", kind  # a number of days or units
            elif isinstance(value, str | bytes):
                text = value.decode() if isinstance(value, bytes) else value
                assert stored in (text, text.encode()), kind
            else:
                assert stored == value.item(), kind
    assert num_accepted


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([[1], [2]]))), pa.int8(), [1, 2]),
        (np.array([[1, 2], [3, 4]], np.float32), TENSOR, [[1, 2], [3, 4]]),
        ([[1, 2], np.array([3.0, 4.0])], TENSOR, [[1, 2], [3, 4]]),
        (np.array([b"abc"], "V3"), pa.binary(), [b"abc"]),
    ],
)
def test_unusual_containers_are_accepted(
    values: Any, kind: pa.DataType, expected: list[Any]
) -> None:
    """A series of pandas may have Arrow's chunks, a tensor is a list with a shape, and numpy's void
    is bytes.
    """
    assert returned(values, kind) == expected


def test_whole_half_floats_become_integers() -> None:
    """They are compared with what they become, although Arrow compares no half floats."""
    halves = np.array([1, 2048], np.float16)
    assert returned(halves, pa.int16()) == returned(pa.array(halves), pa.int16()) == [1, 2048]


def test_tables_are_mappings_of_columns() -> None:
    """Many libraries return their own frames, in chunks or without a row."""
    outputs = pa.schema([("o", pa.int8())])
    whole = pa.table({"more": ["a", "b"], "o": pa.chunked_array([[1], [2]])})
    for frame in (whole, whole.to_batches()[0], OldFrame({"o": [1, 2]})):
        assert as_outputs(frame, outputs, len(frame)).column(0).to_pylist() == [1, 2][: len(frame)]
    with pytest.raises(InvalidInputError, match=r"expected 2 values of 'o' .* got 0 in"):
        as_outputs(whole.slice(2), outputs, 2)


class OldFrame(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A frame of pandas before 2.2, which offers no stream."""

    @property
    def __arrow_c_stream__(self) -> None:
        raise AttributeError


def test_structured_array_fields_keep_their_unit() -> None:
    """As plain numbers, a nanosecond would become a microsecond."""
    rows = np.array([(np.datetime64(1, "ns"),)], [("t", "M8[ns]")])
    assert returned([rows], pa.list_(POINT_OF_TIME)) == [[{"t": pd.Timestamp(1)}]]
    with pytest.raises(InvalidInputError, match="do not fit"):
        returned([rows], pa.list_(pa.struct([("t", pa.timestamp("us"))])))


def in_object_array(value: Any) -> npt.NDArray[Any]:
    array = np.empty(1, object)
    array[0] = value
    return array


CONTAINERS: list[tuple[Any, Any, Any]] = [
    (lambda value: [value], lambda kind: kind, lambda value: value),
    (in_object_array, lambda kind: kind, lambda value: value),
    (lambda value: pd.Series([value], dtype=object), lambda kind: kind, lambda value: value),
    (lambda value: [[value, value]], pa.list_, lambda value: [value, value]),
    (lambda value: [(value, value)], lambda kind: pa.list_(kind, 2), lambda value: [value, value]),
    (lambda value: [{"a": value}], lambda kind: pa.struct({"a": kind}), lambda value: {"a": value}),
    (
        lambda value: [{"a": [value]}],
        lambda kind: pa.struct({"a": pa.list_(kind)}),
        lambda value: {"a": [value]},
    ),
    (
        lambda value: [[{"a": value}]],
        lambda kind: pa.list_(pa.struct({"a": kind})),
        lambda value: [{"a": value}],
    ),
    (
        lambda value: [[("k", value)]],
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: [("k", value)],
    ),
]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.bool_(True), pa.bool_(), True),
        (np.int8(3), pa.int64(), 3),
        (np.uint64(3), pa.int32(), 3),
        (np.int64(3), pa.decimal128(5, 2), Decimal(3)),
        (np.float16(1.5), pa.float32(), 1.5),
        (np.float32(0.5), pa.float64(), 0.5),
        (np.datetime64("2020-01-01"), pa.date32(), FIRST.date()),
        (np.datetime64("2020-01", "M"), pa.date32(), FIRST.date()),
        (np.datetime64("2020-01-01T00", "h"), pa.timestamp("us"), FIRST),
        (np.datetime64("2020-01-01T00:00:00", "us"), pa.timestamp("us"), FIRST),
        (NANOS.to_datetime64(), pa.timestamp("ns"), NANOS),
        (np.timedelta64(90, "m"), pa.duration("s"), timedelta(minutes=90)),
        (np.datetime64("NaT"), pa.timestamp("us"), None),
        (pd.NaT, pa.timestamp("us"), None),
        (pd.NA, pa.int64(), None),
        (np.str_("a"), pa.string(), "a"),
        (np.bytes_(b"a"), pa.binary(), b"a"),
        (pd.Timestamp(FIRST), pa.timestamp("us"), FIRST),
        (Decimal("1.50"), pa.decimal128(5, 2), Decimal("1.50")),
        (3, pa.float64(), 3.0),
        (None, pa.int8(), None),
    ],
)
def test_containers_do_not_change_values(value: Any, kind: pa.DataType, expected: Any) -> None:
    """A function may return its values one by one, or in lists, dicts and pairs."""
    for contain, kind_of_column, stored in CONTAINERS:
        assert returned(contain(value), kind_of_column(kind)) == [stored(expected)]


@pytest.mark.parametrize(
    ("value", "stored", "kind", "is_same"),
    [
        *((None, None, pa.int64(), True), (None, 0, pa.int64(), False)),
        (1, None, pa.int64(), False),
        *((1, 1, pa.int64(), True), (1, 2, pa.int64(), False)),
        *((0.1, float(np.float32(0.1)), pa.float32(), True), (2, 3.0, pa.float64(), False)),
        (float("inf"), float("inf"), pa.float64(), True),
        *((1e300, float("inf"), pa.float32(), False), (float("inf"), 1.0, pa.float32(), False)),
        (1.0, float("nan"), pa.float32(), False),
        *(([1, 2], [1, 2], pa.list_(pa.int64()), True), ([1], [1, 2], pa.list_(pa.int64()), False)),
        ([1, 2], [1, 3], pa.list_(pa.int64()), False),
        *(({"a": 1}, [("a", 1)], MAP, True), ({"a": 1}, [("b", 1)], MAP, False)),
        *(({"a": 1}, [("a", 2)], MAP, False), ({"a": 1, "b": 2}, [("a", 1)], MAP, False)),
        *((FIRST, FIRST.date(), pa.date32(), True), (NOON, FIRST.date(), pa.date32(), False)),
        (FIRST + timedelta(days=1), FIRST.date(), pa.date32(), False),
        (pd.Timestamp(FIRST) + pd.Timedelta(1, "ns"), FIRST.date(), pa.date32(), False),
        *((NOON, NOON, pa.timestamp("us"), True), (NOON, FIRST, pa.timestamp("us"), False)),
        (NOON, NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC"), False),
        (NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC"), True),
        (FIRST.date(), FIRST, pa.timestamp("us"), False),
        *((time(1), time(1), pa.time64("us"), True), (time(1), time(2), pa.time64("us"), False)),
        (time(1, tzinfo=UTC), time(1), pa.time64("us"), False),
        (time(1, tzinfo=ZoneInfo("Europe/Berlin")), time(1), pa.time64("us"), False),
        *(("a", b"a", pa.binary(), True), ("a", b"b", pa.binary(), False)),
        *((b"a", "a", pa.string(), True), (b"a", "b", pa.string(), False)),
        (bytearray(b"a"), b"a", pa.binary(), True),
        (memoryview(b"a"), b"b", pa.binary(), False),
        (memoryview(np.array([1], "<u2")), b"\1\0", pa.binary(), True),
        ({"t": FIRST}, None, POINT_OF_TIME, False),
        *((pd.NaT, None, pa.timestamp("us"), True), (pd.NA, None, pa.int64(), True)),
        ("a", "a", pa.dictionary(pa.int8(), pa.string()), True),
    ],
)
def test_only_rounding_may_change_values(
    value: Any, stored: Any, kind: pa.DataType, is_same: bool
) -> None:
    """Arrow truncates many values silently, so each is compared with what is stored."""
    assert _is_same(value, stored, kind) is is_same


class Countless:
    """Values in an order, without their number."""

    def __init__(self, *values: int) -> None:
        self._values = values

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)


@pytest.mark.parametrize(
    "values",
    [Countless(1, 2), pa.chunked_array([[1], [2]]), pa.chunked_array([[1, 2]]), pa.array([1, 2])],
    ids=lambda values: type(values).__name__,
)
@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float32()])
def test_values_may_come_in_parts(values: Any, kind: pa.DataType) -> None:
    """Arrow's columns have chunks, and an iterable need not know its length."""
    batch = as_outputs(values, pa.schema([("o", kind)]), 2)
    assert batch.column(0).equals(pa.array([1, 2], kind))
    with pytest.raises(InvalidInputError, match="expected 3 values of 'o'"):
        as_outputs(values, pa.schema([("o", kind)]), 3)


def test_chunks_are_converted_without_loss() -> None:
    """The value that does not fit may be in any chunk."""
    values = pa.chunked_array([[1], [300]])
    with pytest.raises(InvalidInputError, match="300"):
        as_outputs(values, pa.schema([("o", pa.int8())]), 2)
