"""Lineage in hidden columns of data files: what is read, and damaged columns."""

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import CorruptDataError, NotFoundError
from lance_stream._proto import table_pb2
from lance_stream.arrays import U64s
from lance_stream.schema.fields import Field
from lance_stream.snapshot.files.hidden_columns import (
    MIN_ROWS_PER_VALUE,
    HiddenColumn,
    clear_hidden_columns,
)
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.table.fragments.fragment import DataFile, LineageColumn
from tests.dataset.manifest_edits import edit_manifest

CONFIG = {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "0"}
FILE = DataFile("f.lance", (0, -3, -4), (0, 1, 2), (2, 1))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Fragment 0 has 4 rows; a second one 5, which version 3 changed, with hidden lineage."""
    ds = lance_stream.create_dataset(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("s", pa.string())]), config=CONFIG
    )
    ds = ds.append(pa.table({"id": range(9), "s": list("abcdefghi")}))
    ds.upsert(pa.table({"id": [7, 1, 0, 4, 2], "s": list("ABCDE")}), on="id")
    return tmp_path / "t"


def lineage_file(manifest: table_pb2.Manifest) -> table_pb2.DataFile:
    return manifest.fragments[1].files[1]


def without_it(manifest: table_pb2.Manifest) -> None:
    del manifest.fragments[1].files[1]


def in_two_files(manifest: table_pb2.Manifest) -> None:
    manifest.fragments[1].files.add().CopyFrom(lineage_file(manifest))


def twice_in_a_file(manifest: table_pb2.Manifest) -> None:
    file = lineage_file(manifest)
    file.fields.append(-3)
    file.column_indices.append(0)


def past_the_columns(manifest: table_pb2.Manifest) -> None:
    lineage_file(manifest).column_indices[0] = 7


def without_a_column(manifest: table_pb2.Manifest) -> None:
    lineage_file(manifest).column_indices[0] = -1


def of_texts(manifest: table_pb2.Manifest) -> None:
    file = lineage_file(manifest)
    file.CopyFrom(manifest.fragments[1].files[0])
    file.fields[:] = [-2, -3]


def of_another_fragment(manifest: table_pb2.Manifest) -> None:
    file = lineage_file(manifest)
    file.CopyFrom(manifest.fragments[0].files[0])
    file.fields[:] = [-3, -2]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (without_it, "which no data files of the fragment contain"),
        (in_two_files, "which 2 data files of the fragment contain"),
        (twice_in_a_file, "twice"),
        (past_the_columns, "column"),
        (without_a_column, "column"),
        (of_texts, "byte strings are stored in a column of the type uint64"),
        (of_another_fragment, "has 9 values"),
    ],
)
def test_damaged_lineage_columns_are_reported(
    table: Path, damage: Callable[[table_pb2.Manifest], None], problem: str
) -> None:
    """Plain reads must still work without lineage, and whatever needs it must fail rather than
    use wrong ids.
    """
    edit_manifest(table, damage)
    ds = lance_stream.open_dataset(table)
    if damage is not twice_in_a_file:
        assert ds.to_table(columns=["id"]).num_rows == 9
    for read in (
        lambda: ds.to_table(with_row_id=True),
        lambda: ds.to_table(columns=["id"], filter="_rowid = 1"),
        lambda: ds.take(row_ids=[1]),
        lambda: ds.changes(2).read_all(),
        lambda: ds.compact(),
        lambda: ds.upsert(pa.table({"id": [1], "s": ["x"]}), on="id"),
    ):
        with pytest.raises((CorruptDataError, NotFoundError)) as caught:
            read()
        assert problem in str(caught.value)
    assert any(problem in finding.message for finding in ds.verify())


def test_missing_lineage_files_are_explained(table: Path) -> None:
    """A file that the newest version names cannot have been cleaned up, so the table is damaged."""
    ds = lance_stream.open_dataset(table)
    (hidden,) = {
        fragment.row_ids for fragment in ds.table.manifest.fragments if fragment.has_hidden_lineage
    }
    assert isinstance(hidden, LineageColumn)
    assert hidden.file is not None
    (table / "data" / hidden.file.path).unlink()
    for read in (lambda: ds.to_table(with_row_id=True), lambda: ds.take(row_ids=[1])):
        with pytest.raises(NotFoundError, match="the table is damaged"):
            read()
    assert ds.verify() != []


def test_verify_finds_impossible_lineage(table: Path) -> None:
    """Numbers can be readable and still impossible: versions of the future, or ids beyond the
    counter.
    """

    def ids_as_versions(manifest: table_pb2.Manifest) -> None:
        manifest.next_row_id = 7
        manifest.fragments[1].files.add().CopyFrom(lineage_file(manifest))
        first, second = manifest.fragments[1].files[1:]
        first.fields[:] = [field if field == -3 else -2 for field in first.fields]
        second.fields[:] = [-4, -2]

    edit_manifest(table, ids_as_versions)
    messages = [finding.message for finding in lance_stream.open_dataset(table).verify()]
    assert any("a row has version 7, but this is version 3" in value for value in messages)
    assert any("a row has version 0" in value for value in messages)
    assert any("the next row id is 7, but 8 is in use" in value for value in messages)


def column_of(num_rows: int, requests: list[tuple[str, int]]) -> HiddenColumn:
    values = pa.array(np.arange(num_rows, dtype=np.uint64))

    def read(_file: object, _field: object, start: int, stop: int) -> pa.Array:
        requests.append(("read", stop - start))
        return values.slice(start, stop - start)

    def take(_file: object, _field: object, offsets: np.ndarray) -> pa.Array:
        requests.append(("take", len(offsets)))
        return values.take(pa.array(offsets))

    stored = LineageColumn.among(-3, [FILE])
    return HiddenColumn(stored, lambda _: num_rows, read, take, lambda file: file.path)


def test_only_large_reads_are_cached() -> None:
    """A lookup of one row must not read millions of ids, while a scan should read them only
    once.
    """
    clear_hidden_columns()
    num_rows = 10 * MIN_ROWS_PER_VALUE
    requests: list[tuple[str, int]] = []
    column = column_of(num_rows, requests)
    assert column.take(np.array([7, 900])).tolist() == [7, 900]
    assert column.slice(3, 5).tolist() == [3, 4]
    assert requests == [("take", 2), ("read", 2)]
    offsets = np.arange(0, num_rows, MIN_ROWS_PER_VALUE)
    assert column.take(offsets).tolist() == offsets.tolist()
    assert requests[2:] == [("read", num_rows)]
    again = column_of(num_rows, requests)
    assert again.to_array().tolist() == list(range(num_rows))
    assert again.take(np.array([5])).dtype == np.uint64
    assert len(requests) == 3


def test_equal_columns_ignore_their_files_others() -> None:
    """Dropping another column of the file must not look like a change of lineage."""
    dropped = DataFile("f.lance", (-2, -3, -4), (0, 1, 2), (2, 1))
    assert LineageColumn.among(-3, [FILE]) == LineageColumn.among(-3, [dropped])
    assert LineageColumn.among(-3, [FILE]) != LineageColumn.among(-4, [FILE])
    assert LineageColumn.among(-5, [FILE]).num_files == 0


def test_column_filters_open_no_lineage_file(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that asks for no row ids must not pay for lineage in hidden columns."""
    opened: list[DataFile] = []
    real = OpenFiles.reader

    def reader(files: OpenFiles, file: DataFile) -> object:
        opened.append(file)
        return real(files, file)

    monkeypatch.setattr(OpenFiles, "reader", reader)
    ds = lance_stream.open_dataset(table)
    assert ds.to_table(filter="id = 4")["s"].to_pylist() == ["D"]
    assert opened
    assert not any(set(file.field_ids) & {-3, -4, -5} for file in opened)


def stored_column(values: pa.Array) -> tuple[HiddenColumn, list[str]]:
    """Return a column that is in no file, and what is read of it."""
    calls: list[str] = []
    clear_hidden_columns()

    def read(_file: DataFile, _field: Field, start: int, stop: int) -> pa.Array:
        calls.append(f"{start}-{stop}")
        return values[start:stop]

    def take(_file: DataFile, _field: Field, offsets: U64s) -> pa.Array:
        calls.append(f"{len(offsets)} values")
        return values.take(pa.array(offsets))

    stored = LineageColumn(-3, FILE)
    name = uuid.uuid4().hex
    return HiddenColumn(stored, lambda _: len(values), read, take, lambda _: name), calls


@pytest.mark.parametrize(
    ("offsets", "call"),
    [
        ([7], "1 values"),
        ([3, 7], "2 values"),
        ([3, 7, 9], "0-513"),  # more than one in so many rows
        ([7, 3], "0-513"),  # a reader takes only ascending offsets
        ([7, 7], "0-513"),
    ],
)
def test_a_few_values_are_taken(offsets: list[int], call: str) -> None:
    """Reading the whole column for each row of a query would cost its whole size."""
    column, calls = stored_column(pa.array(range(100, 613), pa.uint64()))
    rows = np.array(offsets)
    assert 2 * MIN_ROWS_PER_VALUE < 513
    for _ in range(2):
        assert column.take(rows).tolist() == [100 + offset for offset in offsets]
    assert calls == ([call] if "-" in call else [call, call])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (pa.array([1, 2], pa.int64()), "but has int64 values with 0 nulls"),
        (pa.array([1, None], pa.uint64()), "but has uint64 values with 1 nulls"),
        (pa.array([1, 2], pa.uint64()), None),
        (pa.array([], pa.uint64()), None),
    ],
)
def test_values_are_numbers(values: pa.Array, problem: str | None) -> None:
    """A row without an id would get that of another row."""
    column, _ = stored_column(values)
    for read in (column.to_array, lambda: column.slice(0, len(values))):
        if problem is None:
            assert read().tolist() == values.to_pylist()
        else:
            with pytest.raises(CorruptDataError, match=f"of data file 'f.lance' .*{problem}"):
                read()
