"""Data files: how rows are cut into them, and that a failed write leaves none."""

import pickle
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError, UnsupportedFeatureError
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.blobs import as_v2
from lance_stream.schema.fields import Field, Schema, assign_ids
from lance_stream.storage.locations import open_store
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.storage.store import BytesLike
from lance_stream.table.fragments.fragment import decode_fragment, encode_fragment
from lance_stream.verbs.append import append_fragments
from lance_stream.write import fragments as fragments_module
from lance_stream.write.fragments import (
    WriteTarget,
    _BatchQueue,
    _cast,
    _Rows,
    delete_files,
    write_fragments,
    write_target,
)
from lance_stream.write.uploads import Uploads

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.float32())])


def target(folder: Path, **limits: int) -> WriteTarget:
    schema = assign_ids(from_arrow(SCHEMA))
    return WriteTarget(open_store(folder), schema, FileVersion.V2_2, **limits)


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"id": range(start, start + size)})
        start += size


@pytest.mark.parametrize(
    ("sizes", "files"),
    [
        ((10,), [10]),
        ((25,), [10, 10, 5]),
        ((4, 4, 4, 4), [10, 6]),
        ((10, 10), [10, 10]),
        ((0, 3, 0), [3]),
        ((0,), []),
        ((), []),
    ],
)
def test_files_are_cut_by_rows(tmp_path: Path, sizes: tuple[int, ...], files: list[int]) -> None:
    """Batches and files end at different rows, and the manifest must state the size of each
    file.
    """
    fragments = write_fragments(batches(*sizes), target(tmp_path, max_rows_per_file=10))
    assert [fragment.physical_rows for fragment in fragments] == files
    stored = sorted(path.stat().st_size for path in tmp_path.glob("data/*.lance"))
    assert stored == sorted(fragment.files[0].size_bytes for fragment in fragments)


@pytest.mark.parametrize(("max_bytes", "files"), [(100, [300, 300, 300]), (1 << 20, [900])])
def test_files_are_cut_by_bytes(
    tmp_path: Path, max_bytes: int, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million wide rows would make files too large for an object store."""
    monkeypatch.setattr(fragments_module, "FileWriter", partial(FileWriter, max_page_bytes=200))
    rows = batches(300, 300, 300)
    fragments = write_fragments(rows, target(tmp_path, max_bytes_per_file=max_bytes))
    assert [fragment.physical_rows for fragment in fragments] == files


def test_files_of_one_row_are_allowed(tmp_path: Path) -> None:
    """The smallest limits are of use in tests."""
    for limits, files in (
        ({"max_bytes_per_file": 1}, [7]),  # nothing is flushed before the end
        ({"max_rows_per_file": 1}, [1] * 7),
    ):
        fragments = write_fragments(batches(3, 4), target(tmp_path, **limits))
        assert [fragment.physical_rows for fragment in fragments] == files


@pytest.mark.parametrize(("size_bytes", "num_batches"), [(99, 2), (100, 1), (101, 1)])
def test_a_file_ends_at_its_size(tmp_path: Path, size_bytes: int, num_batches: int) -> None:
    """The size that the writer reports counts, not that of the rows."""
    rows = _Rows(
        _BatchQueue(_cast(batches(3, 4), target(tmp_path))),
        target(tmp_path, max_bytes_per_file=100),
    )
    taken = 0
    for _ in rows:
        taken += 1
        rows.size_bytes = size_bytes
    assert taken == num_batches


def test_all_pages_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before the last one are written while rows arrive, and a hole would be other rows."""
    monkeypatch.setattr(fragments_module, "FileWriter", partial(FileWriter, max_page_bytes=200))
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    fragments = write_fragments(batches(300, 1, 300), write_target(ds.table))
    (path,) = (tmp_path / "t" / "data").iterdir()
    assert path.stat().st_size == fragments[0].files[0].size_bytes
    ds = lance_stream.Dataset(append_fragments(ds.table, fragments).table)
    assert ds.to_table()["id"].to_pylist() == list(range(601))


BLOB_LIMITS = {"lance-encoding:blob": "true", "lance-encoding:blob-inline-size-threshold": "3"}
BLOBS = [b"12345", None, b"678901", b"abcd", b"xy"]


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        ({}, [5]),
        ({"max_rows_per_file": 3}, [3, 2]),
        ({"max_rows_per_file": 1}, [1] * 5),
        ({"max_bytes_per_file": 5}, [1, 2, 2]),
        ({"max_bytes_per_file": 6}, [3, 2]),
        ({"max_bytes_per_file": 11}, [3, 2]),
        ({"max_bytes_per_file": 12}, [4, 1]),
        ({"max_bytes_per_file": 16}, [5]),
    ],
)
def test_blobs_count_for_a_files_size(
    tmp_path: Path, limits: dict[str, Any], files: list[int]
) -> None:
    """Their bytes are beside the data file, also if a file ends in the middle of a batch."""
    field = pa.field("b", pa.large_binary(), metadata=BLOB_LIMITS)
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([field]))
    column = pa.array(BLOBS, pa.large_binary())
    rows = [pa.record_batch({"b": column})]
    if "max_bytes_per_file" in limits:
        rows = [pa.record_batch({"b": column[at : at + 1]}) for at in range(len(BLOBS))]
    fragments = write_fragments(rows, replace(write_target(ds.table), **limits))
    assert [fragment.physical_rows for fragment in fragments] == files
    ds = lance_stream.Dataset(append_fragments(ds.table, fragments).table)
    assert [blob and bytes(blob) for blob in ds.to_table()["b"].to_pylist()] == BLOBS


STRUCT = pa.struct([("a", pa.int64())])


def struct_batches(columns: str) -> list[pa.RecordBatch]:
    """Return a batch per word, with a column per letter: null structs (-), or others."""
    kinds = {"-": [None, None], "x": [{"a": 1}, {"a": 2}], "n": [1, None], "0": [None, None]}
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(kinds[letter], pa.int64() if letter in "n0" else STRUCT) for letter in word],
            [f"c{at}" for at in range(len(word))],
        )
        for word in columns.split()
    ]


@pytest.mark.parametrize(
    ("columns", "files"),
    [
        ("xn xn", [(4, ["c0", "c1"])]),
        ("x0 xn", [(4, ["c0", "c1"])]),
        ("-n -n", [(4, ["c1"])]),
        ("n- n-", [(4, ["c0"])]),
        ("xn -n -n xn", [(2, ["c0", "c1"]), (4, ["c1"]), (2, ["c0", "c1"])]),
        ("x- -x", [(2, ["c0"]), (2, ["c1"])]),
        ("-x- xx- xxx", [(2, ["c1"]), (2, ["c0", "c1"]), (2, ["c0", "c1", "c2"])]),
    ],
)
def test_null_structs_are_omitted(
    tmp_path: Path, columns: str, files: list[tuple[int, list[str]]]
) -> None:
    """Files of version 2.0 cannot have a null struct, so a file has those batches whose null
    columns are the same.
    """
    rows = struct_batches(columns)
    schema = rows[0].schema
    ds = lance_stream.create_dataset(tmp_path / "t", schema, file_version="2.0")
    fragments = write_fragments(rows, write_target(ds.table))
    ids = {field.name: field.id for field in ds.table.schema.fields}
    assert [
        (fragment.physical_rows, [name for name in ids if ids[name] in fragment.files[0].field_ids])
        for fragment in fragments
    ] == files
    ds = lance_stream.Dataset(append_fragments(ds.table, fragments).table)
    assert ds.to_table() == pa.Table.from_batches(rows)
    whole = replace(write_target(ds.table), file_version=FileVersion.V2_1)
    assert len(write_fragments(rows, whole)) == 1


def test_files_have_at_least_one_column(tmp_path: Path) -> None:
    """A batch of nothing but null structs cannot be stored in version 2.0."""
    rows = struct_batches("--")
    ds = lance_stream.create_dataset(tmp_path / "t", rows[0].schema, file_version="2.0")
    with pytest.raises(InvalidInputError, match="null"):
        write_fragments(rows, write_target(ds.table))
    assert list((tmp_path / "t").rglob("*.lance")) == []


def test_unknown_encodings_are_not_used(tmp_path: Path) -> None:
    """Another program may have set an option that only it knows, which must not fail writes."""
    to = target(tmp_path)
    first, second = to.schema.fields
    unknown = replace(second, metadata={"lance-encoding:compression": b"brotli"})
    schema = replace(to.schema, fields=(first, unknown))
    (written,) = write_fragments(batches(3), replace(to, schema=schema))
    assert written.physical_rows == 3
    assert written.files[0].field_ids == (first.id, second.id)


@pytest.mark.parametrize("limit", [{"max_rows_per_file": 0}, {"max_bytes_per_file": 0}])
def test_file_limits_are_at_least_one(tmp_path: Path, limit: dict[str, int]) -> None:
    """A limit of zero would create files without end."""
    with pytest.raises(InvalidInputError, match="at least 1"):
        target(tmp_path, **limit)


def test_files_of_failed_writes_are_deleted(tmp_path: Path) -> None:
    """A bad row in a later batch must not leave the files of the earlier ones."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(10, 10)
        yield pa.RecordBatch.from_pydict({"id": pa.array([1, None], pa.int64())})

    with pytest.raises(InvalidInputError, match="'id' must not be null"):
        write_fragments(rows(), target(tmp_path, max_rows_per_file=10))
    assert list((tmp_path / "data").iterdir()) == []


def test_failed_writes_delete_side_files(tmp_path: Path) -> None:
    """The large blobs of a data file are in a folder of their own."""
    limits = {"lance-encoding:blob": b"true", "lance-encoding:blob-inline-size-threshold": b"3"}
    fields = (as_v2(Field("b", "large_binary", metadata=limits)), Field("id", "int64"))
    to = replace(target(tmp_path, max_rows_per_file=1), schema=assign_ids(Schema(fields)))

    def files() -> list[Path]:
        return [path for path in (tmp_path / "data").rglob("*") if path.is_file()]

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"b": pa.array([b"12345"] * 2, pa.large_binary()), "id": [1, 2]})
        assert len(files()) == 4
        yield pa.record_batch({"id": ["three"]})

    with pytest.raises(InvalidInputError, match="column 'id' is string"):
        write_fragments(rows(), to)
    assert files() == []


class SlowStore(MemoryStore):
    """Files are closed in the background, and exist only some time later."""

    def __init__(self) -> None:
        super().__init__(f"/{uuid.uuid4()}")
        self.may_close = threading.Event()

    @property
    def closes_slowly(self) -> bool:
        return True

    def write(self, path: str, data: BytesLike, *, is_hint: bool = False) -> None:
        assert self.may_close.wait(10)
        super().write(path, data, is_hint=is_hint)


def test_files_are_closed_in_the_background(tmp_path: Path) -> None:
    """A request to a remote store takes as long as many rows."""
    store = SlowStore()
    with Uploads(store) as uploads:
        to = replace(target(tmp_path, max_rows_per_file=2), store=store)
        fragments = write_fragments(batches(3), to, uploads)
        assert [fragment.physical_rows for fragment in fragments] == [2, 1]
        assert list(store.list("")) == []
        store.may_close.set()
        uploads.wait()
    assert store.list_names("data") == sorted(fragment.files[0].path for fragment in fragments)


def test_failed_writes_wait_for_their_files(tmp_path: Path) -> None:
    """A file that is closed only after the others were deleted would stay."""
    store = SlowStore()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(1, 1)
        threading.Timer(0.1, store.may_close.set).start()
        yield pa.RecordBatch.from_pydict({"id": ["three"]})

    to = replace(target(tmp_path, max_rows_per_file=1), store=store)
    with Uploads(store) as uploads, pytest.raises(InvalidInputError, match="column 'id' is string"):
        write_fragments(rows(), to, uploads)
    assert store.may_close.is_set()
    assert list(store.list("")) == []


def test_unknown_columns_create_no_file(tmp_path: Path) -> None:
    """The schema is checked before the first file is opened, also that of batches without rows."""
    rows = pa.RecordBatch.from_pydict({"id": [1], "y": [2]})
    for batch in rows, rows[:0]:
        with pytest.raises(InvalidInputError, match="no column 'y'"):
            write_fragments([batch], target(tmp_path))
    assert not (tmp_path / "data").exists()
    with pytest.raises(InvalidInputError, match="no column 'y'"):
        write_fragments([*batches(1), rows[:0]], target(tmp_path))
    assert list((tmp_path / "data").iterdir()) == []


def test_only_writable_tables_are_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that no commit can add must not be written."""
    table = lance_stream.create_dataset(tmp_path / "t", SCHEMA).table
    newer = replace(table.manifest, writer_feature_flags=1 << 40)
    with pytest.raises(UnsupportedFeatureError, match="cannot be written"):
        write_target(table.at(newer))
    error = InvalidInputError("its versions are published elsewhere")
    monkeypatch.setattr(type(table.log), "check_may_follow", Mock(side_effect=error))
    with pytest.raises(InvalidInputError, match="published elsewhere"):
        write_target(table)


def test_workers_write_and_the_driver_commits(tmp_path: Path) -> None:
    """Target and fragments travel as bytes; row ids are given by the commit."""
    table = lance_stream.create_dataset(tmp_path / "t", SCHEMA).table
    sent = pickle.dumps(write_target(table))

    def work(first: int) -> list[bytes]:
        rows = [pa.RecordBatch.from_pydict({"id": [first, first + 1]})]
        return [
            encode_fragment(write_fragment)
            for write_fragment in write_fragments(rows, pickle.loads(sent))
        ]

    fragments = [decode_fragment(value) for first in (0, 10) for value in work(first)]
    assert [(fragment.id, fragment.row_ids) for fragment in fragments] == [(0, None), (0, None)]
    result = lance_stream.Dataset(append_fragments(table, fragments).table)
    assert result.to_table(with_row_id=True).to_pylist() == [
        {"id": number, "x": None, "_rowid": row_id} for row_id, number in enumerate([0, 1, 10, 11])
    ]
    assert result.verify() == []


def test_deleting_missing_files_is_harmless(tmp_path: Path) -> None:
    """Clean-up after a failure may run twice."""
    to = target(tmp_path)
    fragments = write_fragments(batches(3), to)
    delete_files(to.store, fragments)
    delete_files(to.store, fragments)
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("version", [FileVersion.V0_1, FileVersion.V2_0])
def test_only_old_files_need_stated_dictionaries(tmp_path: Path, version: FileVersion) -> None:
    """Version 0.1 keeps a dictionary's values in the manifest, where the first rows cannot go."""
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = assign_ids(from_arrow(pa.schema([("s", pa.struct([("word", kind)]))])))
    store = open_store(tmp_path)
    if version is FileVersion.V0_1:
        with pytest.raises(InvalidInputError, match="'word' has a dictionary"):
            WriteTarget(store, schema, version)
        (word,) = schema.fields[0].children
        dictionaries = {word.id: pa.array(["a"])}
        stated = WriteTarget(store, schema, version, dictionaries=dictionaries)
        assert stated.dictionaries == dictionaries
    else:
        assert WriteTarget(store, schema, version).dictionaries == {}
