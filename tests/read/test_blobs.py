"""Blob columns: bytes read on demand, side files that are complete or absent, and damage."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError, NotFoundError
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    UntrustedLocationError,
)
from lance_stream.read import blob_locations
from lance_stream.read.blobs import take_blobs
from lance_stream.read.fragment import BATCH_BYTES
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.blobs import DESCRIPTION_V2, PREPARED_V2, as_v1, as_v2
from lance_stream.schema.fields import Field, Schema, assign_ids
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.locations import open_store
from lance_stream.table.paths import blob_file_path
from lance_stream.write.blob_files import BlobFiles

SMALL = {
    "lance-encoding:blob": "true",
    "lance-encoding:blob-inline-size-threshold": "10",
    "lance-encoding:blob-dedicated-size-threshold": "100",
    "lance-encoding:blob-pack-file-size-threshold": "150",
}
"""Thresholds that small blobs pass."""

SIZES = [0, 10, 11, None, 100, 101, 60, 3, 60, None, 0, 500, 40]
VALUES = [
    None if size is None else bytes([location + 1]) * size for location, size in enumerate(SIZES)
]
VERSIONS = ["2.0", "2.1", "2.2"]


def schema_of(metadata: dict[str, str] = SMALL) -> pa.Schema:
    return pa.schema(
        [pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=metadata)]
    )


def rows_of(values: Sequence[bytes | None], first: int = 0) -> pa.Table:
    ids = pa.array(range(first, first + len(values)), pa.int64())
    return pa.table({"id": ids, "b": pa.array(values, pa.large_binary())})


def table_of(folder: Path, version: str, values: Sequence[bytes | None] = VALUES) -> Any:
    ds = lance_stream.create_dataset(folder / "t", schema_of(), version)
    return ds.append(rows_of(values))


def side_files(folder: Path) -> list[int]:
    return sorted(path.stat().st_size for path in folder.rglob("*.blob"))


class Counted:
    """Counts the requests to every local store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[str, ByteRange]] = []
        plain = LocalStore.read_ranges

        def counted(store: LocalStore, path: str, ranges: Sequence[ByteRange]) -> Any:
            self.ranges += [(path, span) for span in ranges]
            return plain(store, path, ranges)

        monkeypatch.setattr(LocalStore, "read_ranges", counted)

    @property
    def num_bytes(self) -> int:
        return sum(file.size_bytes for _, file in self.ranges)


@pytest.mark.floors
@pytest.mark.parametrize("version", VERSIONS)
def test_blobs_round_trip_in_every_form(tmp_path: Path, version: str) -> None:
    """Null, empty, inline, packed and dedicated blobs are stored differently, and all ways of
    reading must agree.
    """
    ds = table_of(tmp_path, version)
    assert ds.schema.field("b").type == pa.large_binary()
    assert ds.to_table()["b"].to_pylist() == VALUES
    assert ds.take([11, 3, 5])["b"].to_pylist() == [VALUES[11], None, VALUES[5]]
    descriptors = ds.to_table(["b"], blob_handling="descriptors")["b"]
    assert [descriptor and descriptor["size"] for descriptor in descriptors.to_pylist()] == SIZES
    files = ds.take_blobs("b", row_ids=[5, 0, 3, 5])
    assert [file and file.size for file in files] == [101, 0, None, 101]
    assert [file and file.read() for file in files] == [VALUES[5], b"", None, VALUES[5]]
    assert ds.to_table(["id"], "b IS NULL")["id"].to_pylist() == [3, 9]
    assert ds.verify() == []


def test_large_blobs_use_side_files(tmp_path: Path) -> None:
    """File version 2.2 stores large blobs outside of the data file."""
    ds = table_of(tmp_path, "2.2")
    kinds = ds.to_table(["b"], blob_handling="descriptors")["b"].to_pylist()
    assert [kind and (kind["kind"], kind["blob_id"], kind["position"]) for kind in kinds[1:]] == [
        (0, 0, 0), (1, 1, 0), None, (1, 1, 11), (2, 2, 0), (1, 3, 0), (0, 0, 10), (1, 3, 60), None,
        (0, 0, 13), (2, 4, 0), (1, 5, 0),
    ]  # fmt: skip
    assert side_files(tmp_path) == [40, 101, 111, 120, 500]


def test_side_file_names_reverse_their_bits() -> None:
    """pylance expects side files under these names."""
    assert blob_file_path("data/abc.lance", 1) == f"data/abc/1{'0' * 31}.blob"
    assert blob_file_path("data/abc.lance", 6) == f"data/abc/011{'0' * 29}.blob"


@pytest.mark.parametrize("version", VERSIONS)
def test_blob_files_read_requested_bytes(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of a video need parts of it; all of it would not fit into memory."""
    large = np.random.default_rng(1).bytes(5_000_000)
    schema = schema_of({"lance-encoding:blob": "true"})
    ds = lance_stream.create_dataset(tmp_path / "t", schema, version)
    ds = ds.append(rows_of([b"", large, None]))
    counted = Counted(monkeypatch)
    empty, blob, missing = ds.take_blobs("b", row_offsets=[0, 1, 2])
    assert missing is None
    assert empty is not None
    assert blob is not None
    assert counted.num_bytes < 100_000
    assert blob.size == len(large)
    counted.ranges.clear()
    blob.seek(-1000, io.SEEK_END)
    assert blob.read(10) == large[-1000:-990]
    assert blob.tell() == len(large) - 990
    assert counted.num_bytes == 10
    assert len(counted.ranges) == 1
    assert blob.seek(1_000_000) == 1_000_000
    target = bytearray(7)
    assert blob.readinto(target) == 7
    assert target == large[1_000_000:1_000_007]
    assert io.BufferedReader(blob, 4096).peek(1)[:3] == large[1_000_007:1_000_010]
    assert empty.read() == b""


@pytest.mark.floors
def test_blob_files_behave_like_files(tmp_path: Path) -> None:
    """Libraries for images and videos expect the contract of `io.RawIOBase`, also at the end and
    after close.
    """
    ds = table_of(tmp_path, "2.2", [b"0123456789"])
    (blob,) = ds.take_blobs("b", [0])
    assert blob is not None
    with blob:
        assert blob.readable()
        assert blob.seekable()
        assert not blob.writable()
        assert blob.seek(4) == 4
        assert blob.seek(2, io.SEEK_CUR) == 6
        assert blob.read() == b"6789"
        assert blob.read(5) == b""
        assert blob.seek(99) == 99
        assert blob.readall() == b""
        with pytest.raises(ValueError, match="before the start"):
            blob.seek(-1)
        with pytest.raises(ValueError, match="whence"):
            blob.seek(0, 9)
    for use in (blob.read, blob.tell, blob.readable):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_descriptors_are_read_without_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors allow planning reads without reading the bytes."""
    ds = table_of(tmp_path, "2.2")
    counted = Counted(monkeypatch)
    ds.to_table(blob_handling="descriptors")
    assert {path.rpartition(".")[2] for path, _ in counted.ranges} == {"lance"}


@pytest.mark.floors
def test_batches_are_limited_by_blob_bytes(tmp_path: Path) -> None:
    """A few rows with large blobs fill the memory, while descriptors and plain columns need no
    limit.
    """
    schema = schema_of({"lance-encoding:blob": "true"})
    ds = lance_stream.create_dataset(tmp_path / "t", schema, "2.2")
    ds = ds.append(rows_of([bytes(BATCH_BYTES // 4)] * 9))
    assert [batch.num_rows for batch in ds.scan()] == [4, 4, 1]
    assert [batch.num_rows for batch in ds.scan(blob_handling="descriptors")] == [9]
    assert [batch.num_rows for batch in ds.scan(["id"])] == [9]


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_changed_blobs_are_in_the_feed(tmp_path: Path, version: str) -> None:
    """The change feed returns the bytes of blobs, not their descriptions."""
    ds = table_of(tmp_path, version)
    ds = ds.delete("id = 5")
    changes = ds.changes(1).read_all().sort_by("id")
    assert changes["b"].to_pylist()[5:7] == [VALUES[5], VALUES[5]]
    assert ds.to_table()["b"].to_pylist() == VALUES[:5] + VALUES[6:]


@pytest.mark.floors
@pytest.mark.parametrize("first", [0, 1, 3, 4])
@pytest.mark.parametrize("form", ["binary", "struct"])
def test_binary_and_struct_blobs_round_trip(tmp_path: Path, form: str, first: int) -> None:
    """Slices are written correctly, although `if_else` of some Arrow releases corrupts them."""
    ds = lance_stream.create_dataset(tmp_path / "t", schema_of(), "2.2")
    blobs = pa.array(VALUES, pa.binary())
    if form == "struct":
        data = pa.array(VALUES, pa.large_binary())
        missing = data.is_null()
        blobs = pa.StructArray.from_arrays(
            [data, pa.nulls(len(data), pa.string())], names=["data", "uri"], mask=missing
        )
    ds = ds.append(pa.table({"b": blobs.slice(first)}))
    assert ds.to_table()["b"].to_pylist() == VALUES[first:]


def test_writing_uris_is_refused(tmp_path: Path) -> None:
    """Readers would need access to the other location, so writers must pass the bytes."""
    ds = lance_stream.create_dataset(tmp_path / "t", schema_of(), "2.2")
    blobs = pa.array(
        [{"data": None, "uri": "file:///tmp/x"}],
        pa.struct([("data", pa.large_binary()), ("uri", pa.string())]),
    )
    with pytest.raises(InvalidInputError, match="pass their bytes as data"):
        ds.append(pa.table({"b": blobs}))
    nothing = pa.array([{"data": None, "uri": None}], blobs.type)
    with pytest.raises(InvalidInputError, match="neither data nor URI"):
        ds.append(pa.table({"b": nothing}))


def test_failed_writes_leave_no_side_file(tmp_path: Path) -> None:
    """Nothing refers to the side files of a failed write, and they would stay until a cleanup."""
    ds = lance_stream.create_dataset(tmp_path / "t", schema_of(), "2.2")

    def batches() -> Any:
        yield rows_of(VALUES).to_batches()[0]
        raise KeyError("the source broke")

    reader = pa.RecordBatchReader.from_batches(rows_of(VALUES).schema, batches())
    with pytest.raises(KeyError):
        ds.append(reader)
    assert side_files(tmp_path) == []
    assert not list((tmp_path / "t").rglob("*.lance"))


def test_deleted_fragments_leave_no_side_files(tmp_path: Path) -> None:
    """If the write fails later, no file references them."""
    from lance_stream.write.fragments import delete_files, write_fragments, write_target

    ds = lance_stream.create_dataset(tmp_path / "t", schema_of(), "2.2")
    target = write_target(ds.table)
    fragments = write_fragments(rows_of(VALUES).to_batches(), target)
    assert len(side_files(tmp_path)) == 5
    delete_files(target.store, fragments)
    assert side_files(tmp_path) == []


def test_failed_side_files_delete_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data file is not complete without all of its side files."""
    plain: Callable[..., Any] = LocalStore.open_writer

    def failing(store: LocalStore, path: str) -> Any:
        if "/001" in path:
            raise OSError("the disk is full")
        return plain(store, path)

    monkeypatch.setattr(LocalStore, "open_writer", failing)
    ds = lance_stream.create_dataset(tmp_path / "t", schema_of(), "2.2")
    with pytest.raises(OSError, match="full"):
        ds.append(rows_of(VALUES))
    assert side_files(tmp_path) == []


def test_large_blobs_leave_the_batch(tmp_path: Path) -> None:
    """Blobs above 64 KiB go to a side file, as in pylance, and must not be stored twice."""
    store = LocalStore(str(tmp_path))
    schema = Schema(
        (as_v2(Field("b", "large_binary", 0, metadata={"lance-encoding:blob": b"true"})),)
    )
    array = pa.array([b"x" * (64 << 10), b"y" * ((64 << 10) + 1)], pa.large_binary())
    with BlobFiles(store, "data/a.lance", schema) as files:
        batch = files.prepare(pa.RecordBatch.from_arrays([array], names=["b"]))
        files.close()
    assert batch.column(0).type == PREPARED_V2
    assert [len(row["data"]) for row in batch.column(0).to_pylist()] == [64 << 10, 0]
    assert side_files(tmp_path) == [(64 << 10) + 1]


# --- what is refused


@pytest.mark.parametrize(
    ("field", "match"),
    [
        (pa.field("b", pa.int32(), metadata=SMALL), "large_binary, not int32"),
        (
            pa.field("b", pa.list_(pa.field("item", pa.large_binary(), metadata=SMALL))),
            "top-level column",
        ),
        (
            pa.field(
                "b",
                pa.large_binary(),
                metadata={**SMALL, "lance-encoding:blob-inline-size-threshold": "-1"},
            ),
            "number of bytes",
        ),
    ],
    ids=["numbers", "lists", "threshold"],
)
def test_invalid_blob_columns_are_refused(tmp_path: Path, field: pa.Field, match: str) -> None:
    """A blob column of another type or in a list could be written, but not read."""
    with pytest.raises(InvalidInputError, match=match):
        lance_stream.create_dataset(tmp_path / "t", pa.schema([field]), "2.2")


def test_invalid_arguments_have_distinct_errors(tmp_path: Path) -> None:
    """A missing column, a missing row and a wrong argument have different remedies."""
    ds = table_of(tmp_path, "2.2")
    with pytest.raises(InvalidInputError, match="no blobs; columns with blobs: b"):
        ds.take_blobs("id", [0])
    with pytest.raises(NotFoundError, match="no column 'x'"):
        ds.take_blobs("x", [0])
    with pytest.raises(NotFoundError, match="row 99 does not exist"):
        ds.take_blobs("b", [99])
    with pytest.raises(InvalidInputError, match="either row_offsets or row_ids"):
        ds.take_blobs("b")
    with pytest.raises(InvalidInputError, match="'bytes' or 'descriptors'"):
        ds.to_table(blob_handling="all_binary")
    with pytest.raises(NotFoundError):
        ds.to_table(["b.data"])


def test_both_blob_forms_convert_both_ways() -> None:
    """Reading a table of one form and writing the other must not change the field."""
    one = Field("b", "large_binary", 3, False, metadata={"lance-encoding:blob": b"true"})
    assert as_v1(as_v2(one)) == one
    assert as_v2(Field("x", "large_binary")) == Field("x", "large_binary")


# --- damage


@pytest.mark.parametrize("harm", ["missing", "short", "long"])
@pytest.mark.parametrize("which", [101, 111])
def test_damaged_side_files_are_named(tmp_path: Path, which: int, harm: str) -> None:
    """The user has to restore that file, so the error must name it, its column and its
    data file.
    """
    table_of(tmp_path, "2.2")
    (path,) = [path for path in tmp_path.rglob("*.blob") if path.stat().st_size == which]
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes(which - 1 if harm == "short" else which + 1))
    ds = lance_stream.open_dataset(tmp_path / "t")
    if harm == "long" and which == 111:
        assert ds.to_table().num_rows == len(VALUES)
        return
    for use in (ds.to_table, lambda: ds.take_blobs("b", [4, 5])):
        with pytest.raises(CorruptDataError, match=path.name) as refused:
            use()
        assert any("'b'" in note and ".lance" in note for note in refused.value.__notes__)


def descriptions(**changed: Any) -> pa.Array:
    row = {"kind": 0, "position": 0, "size": 1, "blob_id": 0, "blob_uri": ""}
    types = {"uint8": pa.uint8(), "uint64": pa.uint64(), "uint32": pa.uint32()}
    fields = [
        pa.field(entry.name, types.get(entry.logical_type, pa.string())) for entry in DESCRIPTION_V2
    ]
    return pa.array([row, {**row, **changed}], pa.struct(fields))


@pytest.mark.parametrize(
    "changed",
    [
        {"position": 10**6},
        {"size": 10**6},
        {"size": 2**63},
        {"position": 2**64 - 1},
        {"position": 2**62, "size": 2**62},
        {"kind": 1, "blob_id": 77},
        {"kind": 2, "blob_id": 2**32 - 1},
        {"kind": 2, "blob_id": 2, "size": 3},
        {"kind": 3, "blob_uri": "no uri"},
        {"kind": 3, "blob_uri": "file:///nowhere/x", "size": 5},
        {"kind": 3, "blob_id": 9, "blob_uri": "x"},
        {"kind": 4, "blob_uri": "data/x"},
        {"kind": 200},
    ],
    ids=str,
)
def test_absurd_descriptions_allocate_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Sizes in a damaged file are not trusted: a terabyte must be refused before it
    is allocated.
    """
    ds = table_of(tmp_path, "2.2")
    file = next(iter(ds.table.manifest.fragments)).files[0]
    with pytest.raises(BadDataError):
        blob_locations.blob_locations(descriptions(**changed), file, ds.table.files)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "x",
        "data/x",
        "/etc/hosts",
        "file:///",
        "file:///a/..",
        "file:///a/.",
        "file:///a/b\0",
        "s3:x",
    ],
)
def test_external_blobs_have_absolute_uris(tmp_path: Path, uri: str) -> None:
    """A relative path would be resolved against the reader's working directory."""
    ds = table_of(tmp_path, "2.2")
    file = next(iter(ds.table.manifest.fragments)).files[0]
    with pytest.raises(CorruptDataError, match="which is not absolute"):
        blob_locations.blob_locations(descriptions(kind=3, blob_uri=uri), file, ds.table.files)


def test_overlapping_blobs_are_bad_data(tmp_path: Path) -> None:
    """Many descriptions of the same bytes would multiply a small file into a huge result."""
    ds = table_of(tmp_path, "2.2")
    file = next(iter(ds.table.manifest.fragments)).files[0]
    size = file.size_bytes or 0
    rows = pa.concat_arrays([descriptions(size=size)] * 3)
    with pytest.raises(CorruptDataError, match="in total should be in"):
        blob_locations.blob_locations(rows, file, ds.table.files)


def test_external_blobs_are_read_by_uri(tmp_path: Path) -> None:
    """The specification allows positions in external files, where size zero means up to the end."""
    ds = table_of(tmp_path, "2.2")
    (tmp_path / "outside.bin").write_bytes(b"0123456789")
    ds = lance_stream.open_dataset(ds.uri, trusted_locations=[str(tmp_path)])
    file = next(iter(ds.table.manifest.fragments)).files[0]
    uri = (tmp_path / "outside.bin").as_uri()
    for changed, expected in (
        ({"position": 2, "size": 3}, b"234"),
        ({"size": 0}, b"0123456789"),
        ({"position": 4, "size": 0}, b"456789"),
    ):
        rows = descriptions(kind=3, blob_uri=uri, **changed)
        locations = blob_locations.blob_locations(rows, file, ds.table.files)
        assert blob_locations.read_blobs(locations).to_pylist()[1] == expected
    rows = pa.concat_arrays([descriptions(kind=3, blob_uri=uri, size=6)[1:]] * 2)
    locations = blob_locations.blob_locations(rows, file, ds.table.files)  # of 12 bytes in total
    assert blob_locations.read_blobs(locations).to_pylist() == [b"012345"] * 2


def test_batches_may_have_no_blob(tmp_path: Path) -> None:
    """All rows of a batch may be null, or deleted."""
    ds = table_of(tmp_path, "2.2")
    file = next(iter(ds.table.manifest.fragments)).files[0]
    for rows in (descriptions()[:0], pa.nulls(2, descriptions().type)):
        locations = blob_locations.blob_locations(rows, file, ds.table.files)
        assert blob_locations.read_blobs(locations).to_pylist() == [None] * len(rows)


def test_batches_may_have_only_deleted_blobs(tmp_path: Path) -> None:
    """The size of a batch depends on the blobs in it, of which there may be none."""
    schema = schema_of({"lance-encoding:blob": "true"})
    ds = lance_stream.create_dataset(tmp_path / "t", schema, "2.2")
    ds = ds.append(rows_of([b"a", b"b", b"c", b"d"])).delete("id < 2")
    assert [batch["b"].to_pylist() for batch in ds.scan(batch_size=2)] == [[b"c", b"d"]]


def test_external_local_blobs_must_be_trusted(tmp_path: Path) -> None:
    """Otherwise a downloaded table could read its reader's keys into its rows."""
    ds = table_of(tmp_path, "2.2")
    file = next(iter(ds.table.manifest.fragments)).files[0]
    (tmp_path / "t-2").mkdir()
    for location in ("key.pem", "t-2/key.pem", "t/key.pem"):
        (tmp_path / location).write_bytes(b"0123456789")
    (tmp_path / "t" / "link.pem").symlink_to("../key.pem")
    cases = ("key.pem", "t-2/key.pem", "t/link.pem")
    for location in cases:
        rows = descriptions(kind=3, blob_uri=(tmp_path / location).as_uri(), size=5)
        with pytest.raises(UntrustedLocationError, match=r"trusted_locations=\['/"):
            blob_locations.blob_locations(rows, file, ds.table.files)
    inside = descriptions(kind=3, blob_uri=(tmp_path / "t" / "key.pem").as_uri(), size=5)
    locations = blob_locations.blob_locations(inside, file, ds.table.files)
    assert blob_locations.read_blobs(locations).to_pylist()[1] == b"01234"


def test_symlinks_are_not_blob_files(tmp_path: Path) -> None:
    """A link in an unpacked table could expose any file that the reader may open."""
    ds = table_of(tmp_path, "2.2")
    file = next(iter(ds.table.manifest.fragments)).files[0]
    (tmp_path / "key.pem").write_bytes(b"0123456789")
    link = tmp_path / "t" / blob_file_path(f"data/{file.path}", 77)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "key.pem")
    for kind in (1, 2):
        rows = descriptions(kind=kind, blob_id=77, size=10)
        with pytest.raises(UntrustedLocationError, match="is a link"):
            blob_locations.blob_locations(rows, file, ds.table.files)


@pytest.mark.floors
def test_remote_tables_cannot_name_local_files() -> None:
    """The writer of a shared table must not be able to read the disks of its readers."""
    ds = lance_stream.create_dataset("memory://blobs-elsewhere/t", schema_of(), "2.2")
    ds = ds.append(rows_of(VALUES))
    assert ds.to_table()["b"].to_pylist() == VALUES
    file = next(iter(ds.table.manifest.fragments)).files[0]
    rows = descriptions(kind=3, blob_uri="file:///etc/hostname")
    with pytest.raises(UntrustedLocationError, match="the reader's own disk"):
        blob_locations.blob_locations(rows, file, ds.table.files)


def test_nested_blob_sizes_add_up() -> None:
    """Batches of nested blobs are as large as those of plain ones. A description may state any
    size, and a slice has other rows' items before it.
    """
    blob = Field("b", "large_binary", id=1, metadata={"lance-encoding:blob": "true"})
    sizes = pa.array([1, 2, None, 4, 900, 16], pa.uint64())
    items = pa.StructArray.from_arrays([sizes, sizes], ["position", "size"])

    def total(field: Field, array: pa.Array) -> list[int]:
        return blob_locations.sizes_of_blobs(field, array, 100).tolist()

    assert total(blob, items) == [1, 2, 0, 4, 100, 16]
    pair = Field("p", "struct", children=(blob, Field("n", "int64", id=2), blob))
    structs = pa.StructArray.from_arrays([items, pa.array(range(6)), items], ["b", "n", "c"])
    assert total(pair, structs) == [2, 4, 0, 8, 200, 32]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, None, 4, 6], pa.int32()), structs)
    of_lists = Field("l", "list", children=(pair,))
    assert total(of_lists, lists) == [2, 12, 0, 232]
    assert total(of_lists, lists.slice(1)) == [12, 0, 232]
    vectors = Field("v", "fixed_size_list:struct:2", children=(pair,))
    assert total(vectors, pa.FixedSizeListArray.from_arrays(structs, 2).slice(1)) == [8, 232]
    assert total(Field("n", "int64"), pa.array([1, 2])) == [0, 0]


@pytest.mark.parametrize("gap", [0, 1, blob_locations.JOIN_BELOW + 1])
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_blobs_are_read_in_any_order(tmp_path: Path, order: Sequence[int], gap: int) -> None:
    """A compaction or another writer stores blobs in another order than their rows."""
    values = [b"a" * 3, b"bb", b"", b"cccc", b"d"]
    rows = [(0, 1, 3, 4)[number] for number in order]
    positions, data = np.zeros(5, np.int64), bytearray()
    for row in rows:
        positions[row] = len(data)
        data += values[row] + bytes(gap)
    store = open_store(tmp_path)
    store.write("f", bytes(data))
    spans = blob_locations.BlobSpans(
        np.ones(5, np.bool_),
        [blob_locations.BlobSource(store, "f", len(data))],
        np.array([0, 0, -1, 0, 0]),
        positions,
        np.array(list(map(len, values))),
    )
    assert blob_locations.read_blobs(spans).to_pylist() == values


def test_empty_blobs_need_no_bytes(tmp_path: Path) -> None:
    """An empty external file has none either."""
    store = open_store(tmp_path)
    store.write("f", b"")
    spans = blob_locations.BlobSpans(
        np.array([True, False]),
        [blob_locations.BlobSource(store, "f", 0)],
        np.array([0, -1]),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
    )
    assert blob_locations.read_blobs(spans).to_pylist() == [b"", None]


@pytest.mark.parametrize(
    ("position", "size", "stored"), [(0, 0, 10), (4, 0, 6), (10, 0, 0), (4, 6, 6), (0, 10, 10)]
)
def test_external_files_are_read_whole(
    tmp_path: Path, position: int, size: int, stored: int
) -> None:
    """A size of zero stands for the rest of the file."""
    source = blob_locations.BlobSource(open_store(tmp_path), "f", 10)
    spans = blob_locations.BlobSpans(
        np.array([True]), [source], np.array([0]), np.array([position]), np.array([size])
    )
    blob_locations._check(spans, np.array([blob_locations.EXTERNAL]))
    assert spans.sizes.tolist() == [stored]
    for beyond, more in ((11, 0), (4, 7), (11, 1)):
        wrong = spans._replace(positions=np.array([beyond]), sizes=np.array([more]))
        with pytest.raises(CorruptDataError, match="which has only 10 bytes"):
            blob_locations._check(wrong, np.array([blob_locations.EXTERNAL]))


def test_blobs_behave_like_files(tmp_path: Path) -> None:
    """A blob is read like a file: the oracle is Python's own."""
    (blob, none, empty) = table_of(tmp_path, "2.2", [b"0123456789", None, b""]).take_blobs(
        "b", row_offsets=[0, 1, 2]
    )
    assert none is None
    for stream, oracle in ((blob, io.BytesIO(b"0123456789")), (empty, io.BytesIO())):
        for size in (0, None, 3, 1, 0, -1, 5, -7, 100):
            for position in (0, 4, 10, 12):
                assert stream.seek(position) == oracle.seek(position)
                assert stream.read(size) == oracle.read(size)
                assert stream.tell() == oracle.tell()
        with pytest.raises(ValueError, match="before the start"):
            stream.seek(-1)


def test_later_blob_columns_are_null(tmp_path: Path) -> None:
    """Fragments from before have no file with the column; others have it in a second file."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1, 2]}))
    ds = ds.add_columns(schema_of().field("b"))
    assert ds.take_blobs("b", row_offsets=[0, 1]) == [None, None]
    ds = ds.append(rows_of([b"x" * 20]))
    first, second = ds.take_blobs("b", row_offsets=[2, 0])
    assert first is not None
    assert (first.read(), second) == (b"x" * 20, None)
    with pytest.raises(InvalidInputError, match="column 'id' has no blobs; columns with blobs: b"):
        ds.take_blobs("id", row_offsets=[0])


def test_nested_blobs_have_paths(tmp_path: Path) -> None:
    """The reference writes blobs in structs, and those in lists have no number of a row."""
    table = lance_stream.create_dataset(tmp_path / "t", schema_of()).table
    nested = pa.struct([pa.field("c", pa.large_binary(), metadata=SMALL), ("d", pa.int8())])
    schema = pa.schema({"s": nested, "t": pa.struct({"u": nested}), "l": pa.list_(nested)})
    fields = assign_ids(from_arrow(schema))
    table = replace(table, manifest=replace(table.manifest, schema=fields))
    for column in ("s.c", "t.u.c"):
        assert take_blobs(table, column, row_offsets=[]) == []
    for column in ("s", "s.d", "t.u", "l", "l.c"):
        with pytest.raises(InvalidInputError, match=r"has no blobs; .* with blobs: s\.c, t\.u\.c$"):
            take_blobs(table, column, row_offsets=[])


def test_truncated_blob_files_are_reported(tmp_path: Path) -> None:
    """The manifest states the size of the file, and a part of the blob would look whole."""
    store = open_store(tmp_path)
    store.write("f", b"01234")
    source = blob_locations.BlobSource(store, "f", 10)
    assert bytes(blob_locations.read_range(source, 1, 5)) == b"1234"
    with pytest.raises(CorruptDataError):
        blob_locations.read_range(source, 1, 6)
    with pytest.raises(CorruptDataError, match="does not exist"):
        blob_locations.read_range(source._replace(path="g"), 1, 5)
