"""What reading costs: rounds of requests and bytes, counted."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.file.column_metadata import columns_of

NUM_ROWS = 60_000
"""Enough that no column lies in the end of a file, which is read when it is opened."""


def offsets_of(num_lists: int, seed: int) -> pa.Array:
    lengths = np.random.default_rng(seed).integers(0, 4, num_lists)
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())


def lists(items: Any, num_lists: int, seed: int = 0) -> pa.Array:
    offsets = offsets_of(num_lists, seed)
    return pa.ListArray.from_arrays(offsets, items(offsets[-1].as_py()))


def texts(count: int) -> pa.Array:
    return pa.array([f"text number {n}" for n in range(count)], pa.string())


def nulled(array: pa.Array) -> pa.Array:
    return array.take(pa.array(np.arange(len(array)), mask=np.arange(len(array)) % 7 == 3))


def structs(count: int) -> pa.Array:
    return pa.StructArray.from_arrays(
        [texts(count), nulled(texts(count)), pa.array(np.arange(count))], ["a", "b", "c"]
    )


def codes(count: int) -> pa.Array:
    return texts(count).dictionary_encode()


def flags(count: int) -> pa.Array:
    return pa.array(np.arange(count) % 3 == 0)


COLUMNS = {
    "numbers": lambda: nulled(pa.array(np.arange(NUM_ROWS))),
    "flags": lambda: nulled(flags(20 * NUM_ROWS)),
    "texts": lambda: nulled(texts(NUM_ROWS)),
    "few texts": lambda: pa.array([f"{'long' * 30} {n % 90}" for n in range(4 * NUM_ROWS)]),
    "vectors": lambda: pa.FixedSizeListArray.from_arrays(
        nulled(pa.array(np.arange(4.0 * NUM_ROWS))), 4
    ),
    # A dictionary is read whole.
    "codes": lambda: codes(NUM_ROWS // 4),
    "lists of numbers": lambda: nulled(lists(lambda n: pa.array(np.arange(n)), NUM_ROWS)),
    "lists of texts": lambda: nulled(lists(texts, NUM_ROWS)),
    "lists of codes": lambda: lists(codes, NUM_ROWS // 12),
    "lists of lists": lambda: lists(lambda n: lists(texts, n, 1), NUM_ROWS),
    "lists of lists of lists": lambda: lists(
        lambda n: lists(lambda k: lists(texts, k, 2), n, 1), NUM_ROWS // 3
    ),
    "lists of structs": lambda: lists(structs, NUM_ROWS),
    "structs": lambda: structs(NUM_ROWS),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_single_rows_need_two_rounds(files: Any, kind: str) -> None:
    """Random access needs one round for positions and one for bytes, whatever the type."""
    column = COLUMNS[kind]()
    data, written = files.write(pa.table({"c": column}))
    assert written.size_bytes > 200_000
    for row in (0, 1, len(column) // 2, len(column) - 1):
        opened = files.open(data)
        opened.take([0])
        opened.rounds.clear()
        (array,) = opened.take([row])
        assert array.to_pylist() == column.slice(row, 1).to_pylist()
        assert len(opened.rounds) <= 2
        assert opened.bytes_read < 700_000


def test_reading_ahead_is_limited(files: Any) -> None:
    """Across many pages a third round costs less than their whole indices."""
    column = lists(texts, 4 * NUM_ROWS)
    opened = files.open(files.write(pa.table({"c": column}))[0])
    rows = list(range(0, 4 * NUM_ROWS, 20_000))
    opened.rounds.clear()
    (array,) = opened.take(rows)
    assert array.to_pylist() == column.take(pa.array(rows)).to_pylist()
    assert len(opened.rounds) == 3
    assert opened.bytes_read < 200_000


def test_a_long_list_costs_two_rounds(files: Any) -> None:
    """The items of a long list must not be fetched one by one."""
    column = pa.array([["first"], [f"text {n}" for n in range(150_000)], ["last"]])
    opened = files.open(files.write(pa.table({"c": column}))[0])
    opened.rounds.clear()
    (array,) = opened.take([1])
    assert array.to_pylist() == column.slice(1, 1).to_pylist()
    assert len(opened.rounds) == 2


def test_one_column_reads_only_its_bytes(files: Any) -> None:
    """A projection of one column in a hundred must cost a hundredth."""
    table = pa.table({f"c{number}": pa.array(np.arange(2000) + number) for number in range(100)})
    opened = files.open(files.write(table)[0])
    opened.rounds.clear()
    (array,) = opened.read(0, 2000, ["c7"])
    assert array.equals(table["c7"].chunk(0))
    assert len(opened.rounds) == 1
    assert opened.bytes_read == 8 * 2000


@pytest.mark.floors
def test_child_indices_limit_list_pages(files: Any) -> None:
    """A page of lists ends where the columns below it have enough indices."""

    def num_pages(column: pa.Array) -> list[int]:
        opened = files.written(pa.table({"c": column}))
        columns = range(len(opened.reader.metadata.column_ranges))
        loaded = columns_of(opened.reader, columns, opened.read_ranges)
        return [len(column.pages) for column in loaded]

    assert num_pages(lists(lambda n: pa.array(np.arange(n)), NUM_ROWS)) == [1, 1]
    of_texts, _ = num_pages(lists(texts, NUM_ROWS))
    assert of_texts == 3
    assert num_pages(pa.array([["x"] * 100_000, [], ["y"] * 100_000, ["z"]])) == [4, 1]
    outer, inner, _ = num_pages(lists(lambda n: lists(texts, n, 1), NUM_ROWS))
    assert inner == outer == 7
