"""Work units, random access, and the number of their requests."""

import pickle
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    BadDataError,
    CorruptDataError,
    Dataset,
    InvalidInputError,
    NotFoundError,
)
from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.read.fragment import read_unit
from lance_stream.read.scan import plan_scan
from lance_stream.read.selections import Selection
from lance_stream.read.take import take
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import size_of, sizes_of, unit_of
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import decode_fragment
from tests.contracts.watched_stores import WatchedStore

NUM_ROWS = 20_000
VERSIONS = ["0.1", "2.0", "2.1", "2.2"]


def make_rows(num_rows: int = NUM_ROWS) -> pa.Table:
    numbers = np.arange(num_rows)
    return pa.table(
        {
            "id": numbers,
            "x": numbers / 3,
            "name": pa.array([f"name {number}" for number in range(num_rows)]),
            "part": pa.array([{"a": number, "b": -number} for number in range(num_rows)]),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(4 * num_rows, dtype=np.float32)), 4
            ),
        }
    )


ROWS = make_rows()


@pytest.fixture(scope="module", params=VERSIONS)
def ds(request: pytest.FixtureRequest) -> Dataset:
    """Two fragments, with one row in a hundred deleted."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", ROWS.schema, file_version=request.param
    )
    half = NUM_ROWS // 2
    dataset = dataset.append(ROWS.slice(0, half)).append(ROWS.slice(half))
    return dataset.delete("id % 100 = 7")


LIVE = ROWS.filter(pa.array(np.arange(NUM_ROWS) % 100 != 7))


def watched(ds: Dataset) -> tuple[TableVersion, WatchedStore]:
    store = WatchedStore(ds.table.store)
    return replace(ds.table, store=store), store


def test_scans_return_live_rows_in_order(ds: Dataset) -> None:
    """Rows come in order of insertion, without deleted ones, from several fragments."""
    assert ds.to_table() == LIVE
    assert ds.count_rows() == LIVE.num_rows


@pytest.mark.parametrize("batch_size", [1000, 4097])
def test_batch_sizes_do_not_change_rows(ds: Dataset, batch_size: int) -> None:
    """Batches that end inside pages, or around deleted rows, are where rows get lost
    or repeated.
    """
    table = ds.to_table(columns=["id", "part.b"], batch_size=batch_size)
    assert table["id"].to_pylist() == LIVE["id"].to_pylist()
    assert table["part"].combine_chunks().field(0).to_pylist() == [
        -id_ for id_ in LIVE["id"].to_pylist()
    ]


@pytest.mark.parametrize(
    "condition",
    ["id % 2 = 0", "id > 19000", "id = 4711", "x < 0", "name LIKE 'name 1%' AND part.a < 50"],
)
def test_filters_keep_matching_rows(ds: Dataset, condition: str) -> None:
    """Both dense matches and sparse ones, whose other columns are read by offset."""
    ids = LIVE["id"].to_numpy()
    names = np.array(LIVE["name"].to_pylist())
    mask = {
        "id % 2 = 0": ids % 2 == 0,
        "id > 19000": ids > 19000,
        "id = 4711": ids == 4711,
        "x < 0": ids < 0,
        "name LIKE 'name 1%' AND part.a < 50": np.char.startswith(names, "name 1") & (ids < 50),
    }[condition]
    assert ds.to_table(filter=condition) == LIVE.filter(pa.array(mask))


def test_work_units_can_be_pickled(ds: Dataset) -> None:
    """Spark sends work units from the driver to its executors."""
    units = plan_scan(ds.table, ["name"], "id % 5 = 0", system_columns=["_rowid"])
    batches = [batch for unit in units for batch in read_unit(pickle.loads(pickle.dumps(unit)))]
    table = pa.Table.from_batches(batches)
    expected = ds.to_table(columns=["name"], filter="id % 5 = 0", with_row_id=True)
    assert table == expected
    assert batches[0].schema.equals(units[0].arrow_schema)


def test_work_units_can_read_parts(ds: Dataset) -> None:
    """A large fragment is split among tasks, and wrong offsets must not return other rows."""
    (unit, _) = plan_scan(ds.table, ["id"])
    part = pa.Table.from_batches(read_unit(replace(unit, start=95, stop=110)))
    assert part["id"].to_pylist() == [number for number in range(95, 110) if number != 107]
    chosen = replace(unit, offsets=np.array([3, 7, 9000], np.uint32))
    assert pa.Table.from_batches(read_unit(chosen))["id"].to_pylist() == [3, 7, 9000]
    with pytest.raises(CorruptDataError, match="row offset 99999"):
        list(read_unit(replace(unit, offsets=np.array([99999], np.uint32))))


def test_rows_are_taken_in_any_order(ds: Dataset) -> None:
    """The result follows the request, with repetitions, as in Arrow's `take`."""
    random = np.random.default_rng(3)
    positions = random.integers(0, LIVE.num_rows, 500)
    for some in (positions, np.sort(positions), np.unique(positions)):
        assert ds.take(row_offsets=some) == LIVE.take(pa.array(some)).combine_chunks()
    ids = LIVE["id"].to_numpy()[positions]  # a row's id is its number: rows were appended in order
    assert ds.take(row_ids=ids, columns=["x", "name"]) == (
        LIVE.select(["x", "name"]).take(pa.array(positions)).combine_chunks()
    )


def test_columns_are_lists_of_names(ds: Dataset) -> None:
    """The letters of a name would be read as names of columns."""
    assert ds.to_table(["id"]).column_names == ["id"]
    with pytest.raises(InvalidInputError, match=r"must be a list of names: \['id'\], not 'id'"):
        ds.to_table("id")


def test_units_may_have_no_rows(ds: Dataset) -> None:
    """A task may get the units of which a filter, or another reader, has left no row."""
    unit = unit_of(ds.table, 0, columns=("id",))
    empty = [
        replace(unit, offsets=np.empty(0, np.uint32)),
        replace(unit, start=3, stop=3),
        replace(unit, filter="id < 0"),
    ]
    few = replace(unit, offsets=np.array([0, 1], np.uint32))
    for units in ([*empty, few], [few, *empty], [*empty, unit]):
        num_rows = sum(batch.num_rows for batch in read_units(units))
        assert num_rows == sum(batch.num_rows for one in units for batch in read_unit(one))
    assert list(read_units(empty)) == []


def test_sizes_of_units_are_estimated(ds: Dataset) -> None:
    """Tasks and batches are divided by them; parts of a fragment count as parts of its bytes."""
    unit = unit_of(ds.table, 0, columns=("id",))
    num_rows, num_bytes = size_of(unit)
    assert num_rows == decode_fragment(unit.fragment).physical_rows
    parts = [
        replace(unit, start=1),
        replace(unit, start=1, stop=num_rows - 1),
        replace(unit, start=5, stop=3),
        replace(unit, offsets=np.array([0, 2], np.uint32)),
    ]
    expected = [(rows, num_bytes * rows // num_rows) for rows in (num_rows - 1, num_rows - 2, 0, 2)]
    assert [size_of(part) for part in parts] == sizes_of(parts) == expected


def test_opening_and_taking_costs_three_requests(ds: Dataset) -> None:
    """It takes at most one to open the file, and two for the row."""
    table, store = watched(ds)
    take(table, row_offsets=[12_345], columns=["id", "x", "name", "vector"])
    data = [path for call, path in store.calls if call == "read_ranges"]
    assert len(set(data)) == 1, "one file has the row"
    assert len(data) <= 3, "one to open it, two for the row"


def test_taking_another_row_costs_two_requests(ds: Dataset) -> None:
    """The file is open, so at most two requests are needed for the row."""
    table, store = watched(ds)
    take(table, row_offsets=[12_345])
    store.calls.clear()
    take(table, row_offsets=[15_000, 12_346])
    assert len(store.calls) <= 2


class CountedStore:
    """Counts the bytes that are read from another store."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        answers = self._inner.read_ranges(path, ranges)
        self.num_bytes += sum(len(answer) for answer in answers)
        return answers


def test_a_projection_reads_only_its_columns(ds: Dataset) -> None:
    """The columnar format pays off only if other columns cost no bytes."""
    read = {}
    for name, columns in {"one": ["id"], "two": ["id", "vector"], "all": None}.items():
        store: Any = CountedStore(ds.table.store)
        for unit in plan_scan(replace(ds.table, store=store), columns):
            list(read_unit(unit))
        read[name] = store.num_bytes
    other_bytes = 2 * (64 << 10) + 20_000  # the ends of two files, chunk tables, padding
    assert read["one"] <= 8 * NUM_ROWS + other_bytes
    assert read["two"] <= 24 * NUM_ROWS + other_bytes
    assert read["all"] > read["two"]


def test_plain_scans_read_each_file_once(ds: Dataset) -> None:
    """Once files are open, without deletions or row ids to read."""
    table, store = watched(ds)
    for unit in plan_scan(table, ["id"]):
        list(read_unit(unit))
    store.calls.clear()
    for unit in plan_scan(table, ["id"]):
        list(read_unit(unit))
    assert [call for call, _ in store.calls] in ([], ["read_ranges"] * 2), "files stay open"


def test_counting_rows_opens_no_data_file(ds: Dataset) -> None:
    """The manifest contains the numbers of rows and of deleted rows."""
    from lance_stream.read.scan import count_rows

    table, store = watched(ds)
    assert count_rows(table) == LIVE.num_rows
    assert store.calls == []


def test_wrong_file_sizes_are_named(ds: Dataset) -> None:
    """A wrong size makes the reader look for the footer elsewhere, so the error must name the
    file.
    """
    fragment = ds.table.manifest.fragments[0]
    files = OpenFiles(ds.table.store)
    wrong = replace(fragment.files[0], size_bytes=fragment.files[0].size_bytes + 8)
    if ds.file_version == "0.1":  # writers noted wrong sizes of these, so their size is asked
        (array,) = files.read(wrong, ds.table.schema.fields[:1], 0, 5)
        assert array.to_pylist() == [0, 1, 2, 3, 4]
        return
    with pytest.raises(BadDataError) as caught:
        files.read(wrong, ds.table.schema.fields[:1], 0, 5)
    assert any(wrong.path in note for note in caught.value.__notes__)


def test_contiguous_selections_become_ranges() -> None:
    """Ranges are decoded by slices, which is much cheaper than single offsets."""
    every = Selection(10, 20)
    assert every.where(np.ones(10, np.bool_)) is every
    middle = every.where(np.array([0, 0, 1, 1, 1, 0, 0, 0, 0, 0], np.bool_))
    assert (middle.start, middle.stop, middle.offsets) == (12, 15, None)
    ends = every.where(np.array([1, 0, 0, 0, 0, 0, 0, 0, 0, 1], np.bool_))
    assert ends.offsets is not None
    assert ends.offsets.tolist() == [10, 19]
    none = every.where(np.zeros(10, np.bool_))
    assert none.num_rows == 0


@pytest.mark.parametrize("stable", [True, False])
def test_rows_taken_must_exist(stable: bool) -> None:
    """A row of another fragment or beyond the end would be another row."""
    table = pa.table({"id": [0, 1, 2]})
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", table, stable_row_ids=stable
    ).append(table)
    ds = ds.delete("id = 1")
    ids = ds.to_table(["id"], with_row_id=True)
    row_ids = ids["_rowid"].to_pylist()
    assert ds.take(row_ids=row_ids)["id"].to_pylist() == [0, 2, 0, 2]
    for missing in [1, 4, 6, 7] if stable else [1, 3, 4, (1 << 32) + 1, (1 << 32) + 3, 2 << 32]:
        with pytest.raises(NotFoundError, match=f"for example {missing}"):
            ds.take(row_ids=[row_ids[0], missing])
    for missing in (4, 5, 1 << 40):
        with pytest.raises(NotFoundError, match=f"row {missing} does not exist: .* has 4 rows"):
            ds.take([0, missing])


def test_empty_tables_have_no_rows() -> None:
    """Neither does the first one."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    assert ds.take([]).num_rows == 0
    with pytest.raises(NotFoundError, match="row 0 does not exist: version 1 has 0 rows"):
        ds.take([0])
    with pytest.raises(InvalidInputError, match="take needs at least one column"):
        ds.take([], columns=[])
    with pytest.raises(InvalidInputError, match="a scan needs at least one column"):
        ds.to_table([])
    assert ds.append(pa.table({"id": [7]})).to_table([], with_row_id=True).num_rows == 1


@pytest.mark.parametrize(
    "numbers",
    [
        [2, 0],
        np.array([2, 0]),
        np.array([2, 0], np.uint8),
        np.array([2, 0], np.int8),
        pa.array([2, 0]),
        pa.array([2, 0], pa.uint32()),
        pa.chunked_array([[2], [0]]),
    ],
)
def test_numbers_of_rows_have_many_types(numbers: Any) -> None:
    """Whatever computes the positions, they are whole numbers."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [5, 6, 7]}))
    assert ds.take(numbers)["id"].to_pylist() == [7, 5]


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([-1, 2], "must not be negative, but -1 is"),
        (np.array([3, -7], np.int8), "must not be negative, but -7 is"),
        ([1.0], "must be a list of whole numbers"),
        ([[1]], "must be a list of whole numbers"),
        (["1"], "must be a list of whole numbers"),
        ([True], "must be a list of whole numbers"),
        (pa.array([1, None]), "must not contain nulls"),
        (pa.chunked_array([[1], [None]], pa.int64()), "must not contain nulls"),
    ],
)
def test_other_numbers_of_rows_are_refused(numbers: Any, why: str) -> None:
    """A rounded or wrapped number is another row."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [5, 6, 7]}))
    with pytest.raises(InvalidInputError, match=why):
        ds.take(numbers)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("column", ["_row_created_at_version", "_row_last_updated_at_version"])
def test_row_versions_need_stable_ids(stable: bool, column: str) -> None:
    """Without them no version is recorded, and a condition would match rows by chance."""
    uri = f"memory://{uuid.uuid4()}/t"
    ds = lance_stream.create_dataset(uri, pa.table({"n": [1, 2]}), stable_row_ids=stable)
    assert ds.count_rows("_rowid >= 0 AND n > 1") == 1
    if stable:
        assert ds.count_rows(f"{column} = 1 AND n > 1") == 1
        return
    with pytest.raises(InvalidInputError, match=f"filter names '{column}', but .* no stable row"):
        ds.count_rows(f"n > 1 AND {column} = 1")
