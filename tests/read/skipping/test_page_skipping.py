"""Pages of old files that a filter excludes are not read; the rows stay the same."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.expressions.predicates import parse_expression
from lance_stream.read.fragment import read_unit
from lance_stream.read.scan import plan_scan
from lance_stream.read.skipping.page_skipping import (
    RowRanges,
    ValueBounds,
    may_match,
    pages_that_may_match,
)
from lance_stream.snapshot.files.open_files import OpenFiles

NUM_ROWS = 40_960  # five pages
PAGE = 8192


def rows() -> pa.Table:
    numbers = np.arange(NUM_ROWS)
    random = np.random.default_rng(0)
    return pa.table(
        {
            "i": numbers,
            "f": np.where(numbers % 11 == 0, np.nan, numbers / 2),
            "s": pa.array([None if n % 9 == 0 else f"s{n:06d}" for n in range(NUM_ROWS)]),
            "part": pa.StructArray.from_arrays([pa.array(numbers % 10_000)], names=["a"]),
            "d": pa.array(numbers // 100, pa.int32()).cast(pa.date32()),
            "b": numbers >= 2 * PAGE,
            "big": random.standard_normal(NUM_ROWS),
        }
    )


ROWS = rows()


@pytest.fixture(scope="module")
def ds() -> Dataset:
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", ROWS.schema, file_version="0.1"
    )
    return dataset.append(ROWS)


@pytest.fixture(scope="module")
def plain() -> Dataset:
    """Return the same rows in a file without bounds."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", ROWS.schema)
    return dataset.append(ROWS)


class CountingStore:
    """Counts the bytes that are read from another store."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self.num_bytes += sum(span.size_bytes for span in ranges)
        buffers: list[Buffer] = self._inner.read_ranges(path, ranges)
        return buffers


def bytes_read(ds: Dataset, predicate: str, columns: list[str]) -> int:
    """Return the bytes read for a filter, without the end of the file and the page table."""
    (unit,) = plan_scan(ds.table, columns, filter=predicate)
    store: Any = CountingStore(ds.table.store)
    unit = replace(unit, files=OpenFiles(store))
    list(read_unit(replace(unit, filter="i < 0")))
    list(read_unit(replace(unit, start=0, stop=1, filter=f"({predicate}) OR TRUE")))
    store.num_bytes = 0
    list(read_unit(unit))
    return int(store.num_bytes)


@pytest.mark.parametrize(
    ("predicate", "num_pages"),
    [
        ("i < 0", 0),
        ("i < 5", 1),
        ("5 > i", 1),
        ("i >= 32768", 1),
        ("i = 10000", 1),
        ("i IN (3, 40000)", 2),
        ("i BETWEEN 8000 AND 8200", 2),
        ("i < 5 AND i > 40000", 0),
        ("i < 5 OR i > 40000", 2),
        ("(i < 5 OR i > 40000) AND i + 1 > 0", 2),
        ("i = 10000 OR (i < 5 AND i > 40000)", 1),
        ("i < 100 OR i % 2 = 0", 5),
        ("NOT (i < 100)", 5),
        ("i <> 5", 5),
        ("i < 0 OR i IS NULL", 5),
    ],
)
def test_unmatchable_pages_are_not_read(ds: Dataset, predicate: str, num_pages: int) -> None:
    """Version 0.1 stores the bounds of pages, and too wide a selection would only show in the
    bytes read.
    """
    read = bytes_read(ds, predicate, ["i"])
    assert num_pages * PAGE * 8 <= read <= num_pages * PAGE * 8 + 2000


def test_skipped_pages_skip_other_columns_too(ds: Dataset) -> None:
    """Skipping saves most on large columns."""
    assert bytes_read(ds, "i >= 32768", ["i", "big"]) <= 2 * PAGE * 8 + 2000


PREDICATES = [
    "i < 5",
    "f > 20000.5",
    "f <= 3 OR f >= 20400",
    "s = 's000100'",
    "s > 's040000'",
    "s < 's000005'",
    "s IS NULL AND i < 30",
    "part.a = 777",
    "part.a > 9990 AND i < 20000",
    "d >= DATE '1971-02-01'",
    "b = FALSE AND i > 16000",
    "b AND i < 16500",
    "NOT b AND i > 16380",
    "i IN (1, 9000, 99999999)",
    "i = 10000.0",
    "i > 1e4 AND i < 10010",
    "CAST(i AS double) = 9.0",
    "i = 5 OR s LIKE 's00001%'",
    "i NOT IN (1, 2) AND i < 5",
    "i NOT BETWEEN 3 AND 40950",
    f"s IN ({', '.join(repr(f's{n:06d}') for n in range(0, 40_000, 1000))})",
]


@pytest.mark.floors
@pytest.mark.parametrize("predicate", PREDICATES)
def test_bounds_change_no_rows(ds: Dataset, plain: Dataset, predicate: str) -> None:
    """Bounds of nulls, NaN and truncated strings are easy to get wrong, which would lose rows."""
    table = ds.to_table(filter=predicate)
    assert table.num_rows
    expected = plain.to_table(filter=predicate)
    np.testing.assert_array_equal(table["f"].to_numpy(), expected["f"].to_numpy())
    assert table.drop_columns(["f"]) == expected.drop_columns(["f"])


def test_nulls_stored_as_values_are_found(tmp_path: Any) -> None:
    """File version 0.1 has no nulls: its writer stores zeros."""
    lance = pytest.importorskip("lance")
    table = pa.table({"i": pa.array([7, None, 9])})
    lance.write_dataset(table, str(tmp_path / "t"), data_storage_version="legacy")
    opened = lance_stream.open_dataset(str(tmp_path / "t"))
    assert opened.to_table()["i"].to_pylist() == [7, 0, 9]
    assert opened.to_table(filter="i = 0").num_rows == 1


ranges_of = st.sets(st.integers(0, 60)).map(
    lambda chosen: RowRanges.of_pages(
        np.arange(62), np.isin(np.arange(61), np.array(sorted(chosen), np.int64))
    )
)


def rows_of(ranges: RowRanges) -> set[int]:
    return {row for start, stop in ranges.ranges for row in range(start, stop)}


@settings(deadline=None)
@given(ranges_of, ranges_of, st.sets(st.integers(0, 60)))
def test_ranges_are_sets_of_rows(one: RowRanges, other: RowRanges, row_numbers: set[int]) -> None:
    """Python's sets are the model: a range that is off by one would lose rows of a filter."""
    assert rows_of(one.intersection(other)) == rows_of(one) & rows_of(other)
    offsets = np.array(sorted(row_numbers), np.int64)
    assert set(one.choose(offsets).tolist()) == rows_of(one) & row_numbers


HAS_NULLS = np.array([False, True, True, False])
LOW, HIGH = [0, 10, None, 30], [9, 19, None, 39]
BOUNDS = {
    ("i",): ValueBounds(pa.array(LOW), pa.array(HIGH), has_nulls=HAS_NULLS),
    ("n",): ValueBounds(pa.array(LOW), pa.array(HIGH)),
    ("f",): ValueBounds(pa.array(LOW, pa.float64()), pa.array(HIGH, pa.float64())),
    ("g",): ValueBounds(pa.array(LOW, pa.float64()), pa.array(HIGH, pa.float64()), False),
    ("s", "x"): ValueBounds(pa.array(LOW), pa.array(HIGH)),
    ("b",): ValueBounds(
        pa.array([False, False, None, True]), pa.array([False, True, None, True]), True, ~HAS_NULLS
    ),
}
"""The values of four pages: 0 to 9, 10 to 19, unknown, 30 to 39."""
MANY = ", ".join(map(str, range(100, 117)))


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("i < 10", "0 2"),
        ("i <= 10", "0 1 2"),
        ("10 > i", "0 2"),
        ("10 >= i", "0 1 2"),
        ("i > 19", "2 3"),
        ("i >= 19", "1 2 3"),
        ("19 < i", "2 3"),
        ("19 <= i", "1 2 3"),
        ("i = 19", "1 2"),
        ("10 = i", "1 2"),
        ("i = 25", "2"),
        ("i <> 5", "0 1 2 3"),
        ("i = NULL", "0 1 2 3"),
        ("i <=> 5", "0 1 2 3"),
        ("NOT i < 5", "0 1 2 3"),
        ("i + 1 < 5", "0 1 2 3"),
        ("i IS NULL", "1 2"),
        ("n IS NULL", "0 1 2 3"),
        ("unknown IS NULL", "0 1 2 3"),
        ("i IS NOT NULL", "0 1 2 3"),
        ("b IS TRUE", "0 1 2 3"),
        ("b = TRUE", "1 2 3"),
        ("(i < 10)", "0 2"),
        ("i < 10 OR i > 35", "0 2 3"),
        ("i > 5 AND i < 25", "0 1 2"),
        ("i BETWEEN 12 AND 14", "1 2"),
        ("i BETWEEN 19 AND 30", "1 2 3"),
        ("unknown BETWEEN 1 AND 2", "0 1 2 3"),
        # two columns, and columns without bounds
        ("i < n", "0 1 2 3"),
        ("i < n + 1", "0 1 2 3"),
        ("i < unknown", "0 1 2 3"),
        ("unknown < 5", "0 1 2 3"),
        ("s.x = 35", "2 3"),
        ("(s).x = 35", "0 1 2 3"),
        # NaN is greater than all numbers
        ("f < 10", "0 2"),
        ("f <= 10", "0 1 2"),
        ("f > 100", "0 1 2 3"),
        ("f >= 100", "0 1 2 3"),
        ("f = 5", "0 2"),
        ("f = 5.5", "0 2"),
        ("f = 5.5D", "0 2"),
        ("f = CAST('nan' AS double)", "0 1 2 3"),
        ("f = CAST('x' AS double)", "0 1 2 3"),
        ("f < CAST('nan' AS double)", "0 1 2 3"),
        ("g > 100", "2"),
        ("g >= 19", "1 2 3"),
        ("g = CAST('nan' AS double)", "2"),
        ("i > CAST('x' AS double)", "0 1 2 3"),
        # one of several
        ("i IN (5, 35)", "0 2 3"),
        ("i IN (5, NULL)", "0 1 2 3"),
        ("i IN (5, n)", "0 1 2 3"),
        ("f IN (5, CAST('nan' AS double))", "0 1 2 3"),
        (f"i IN ({MANY})", "2"),
        (f"i IN (19, {MANY})", "1 2"),
        (f"i IN (30, 9, {MANY})", "0 2 3"),
        (f"i IN (NULL, {MANY})", "0 1 2 3"),
        (f"i IN (5.5, {MANY})", "0 1 2 3"),
        (f"unknown IN ({MANY})", "0 1 2 3"),
        (f"f IN ({MANY})", "0 1 2 3"),
        (f"s.x IN (30, {MANY})", "2 3"),
        (f"i NOT IN ({MANY})", "0 1 2 3"),
    ],
)
def test_bounds_exclude_pages_exactly(text: str, pages: str) -> None:
    """One page too few loses rows, and one too many is read for nothing."""
    mask = pages_that_may_match(parse_expression(text).node, BOUNDS, 4)
    assert " ".join(map(str, np.flatnonzero(mask))) == pages


@pytest.mark.parametrize(
    ("text", "zones"),
    [
        ("a = 5", "0 1"),
        ("a % 2 = 1", "0 1 2"),
        ("a % 2 = 0", "1 2"),
        ("a + other = 1", "0 1 2"),
        ("1 = 2", "1 2"),
        ("a = 5 AND CAST('x' AS int) = 1", "0 1"),
    ],
)
def test_single_values_decide_filters(text: str, zones: str) -> None:
    """The value of zone 0 is 5, and 1 and 2 have several: for zone 0 the filter itself decides."""
    bounds = {"a": (np.array([5, 4, 8], np.uint64), np.array([5, 6, 9], np.uint64))}
    mask = may_match(parse_expression(text), bounds, 3)
    assert " ".join(map(str, np.flatnonzero(mask))) == zones


def test_filters_without_bounds_exclude_nothing() -> None:
    """No column of the filter is known."""
    for text in ("1 = 2", "a = 1"):
        assert may_match(parse_expression(text), {}, 3).tolist() == [True] * 3
