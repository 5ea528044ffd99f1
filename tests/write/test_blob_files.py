"""Where blobs are stored: in the data file, in a pack, or in a side file of their own."""

import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.schema.blobs import DEDICATED, INLINE, PACKED, as_v2
from lance_stream.schema.fields import Field, Schema
from lance_stream.storage.locations import open_store
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.table.paths import blob_file_path
from lance_stream.write.blob_files import BlobFiles

LIMITS = {
    "lance-encoding:blob": b"true",
    "lance-encoding:blob-inline-size-threshold": b"3",
    "lance-encoding:blob-dedicated-size-threshold": b"6",
    "lance-encoding:blob-pack-file-size-threshold": b"10",
}
SCHEMA = Schema(
    (
        as_v2(Field("b", "large_binary", 0, metadata=LIMITS)),
        Field("n", "int64", 1),
    )
)
PATH = "data/a.lance"


def batch_of(sizes: list[int | None]) -> pa.RecordBatch:
    blobs = [None if size is None else bytes([size]) * size for size in sizes]
    return pa.record_batch({"b": pa.array(blobs, pa.large_binary()), "n": range(len(sizes))})


def kind_of(size: int | None) -> int | None:
    """Return how a blob of a size is described in a batch with larger ones."""
    if size is None:
        return None
    return INLINE if size <= 3 else PACKED if size <= 6 else DEDICATED


def contents(store: MemoryStore, count: int) -> list[bytes]:
    return [bytes(store.read(blob_file_path(PATH, number))) for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("sizes", "positions", "files"),
    [
        ([0, 3, None], None, []),
        ([4, 3, None, 0], [(1, 0), None, None, None], [[4]]),
        ([6, 7], [(1, 0), (2, 0)], [[6], [7]]),
        ([5, 5, 4], [(1, 0), (1, 5), (2, 0)], [[5, 5], [4]]),
        ([5, 6], [(1, 0), (2, 0)], [[5], [6]]),
        ([4, 9, 4, 4], [(1, 0), (2, 0), (1, 4), (3, 0)], [[4, 4], [9], [4]]),
    ],
    ids=["inline", "packed", "dedicated", "full pack", "too much", "one between"],
)
def test_blobs_are_stored_by_size(
    sizes: list[int | None],
    positions: list[tuple[int, int] | None] | None,
    files: list[list[int]],
) -> None:
    """Each limit, and the blob beyond it; None is a blob in the data file."""
    for parts in [sizes], [[size] for size in sizes]:
        store = MemoryStore(f"/{uuid.uuid4()}")
        described: list[Any] = []
        with BlobFiles(store, PATH, SCHEMA) as blobs:
            for part in parts:
                batch = batch_of(part)
                prepared = blobs.prepare(batch)
                assert prepared.column(1).equals(batch.column(1))
                rows = prepared.column(0).to_pylist()
                if max(size or 0 for size in part) <= 3:
                    assert prepared.equals(batch)
                    described += [(None, value) for value in rows]
                else:
                    assert [row and row["kind"] for row in rows] == list(map(kind_of, part))
                    described += [(row, row and row["data"]) for row in rows]
            blobs.close()
        for size, (row, data), position in zip(
            sizes, described, positions or [None] * len(sizes), strict=True
        ):
            if position is not None:
                assert (row["blob_id"], row["position"], row["size"]) == (*position, size)
            assert data == (b"" if position else None if size is None else bytes([size]) * size)
        assert contents(store, len(files)) == [
            b"".join(bytes([size]) * size for size in file) for file in files
        ]
        assert blobs.size_bytes == sum(sum(file) for file in files)
        assert len(store.list("")) == len(files)


@pytest.mark.parametrize("inline", [b"6", b"9"])
def test_no_large_blob_is_inline(inline: bytes) -> None:
    """A column may have a larger limit for inline blobs than for others."""
    (field, other) = SCHEMA.fields
    metadata = {**field.metadata, "lance-encoding:blob-inline-size-threshold": inline}
    schema = Schema((replace(field, metadata=metadata), other))
    with BlobFiles(MemoryStore(f"/{uuid.uuid4()}"), PATH, schema) as blobs:
        assert blobs.prepare(batch_of([6])).equals(batch_of([6]))
        rows = blobs.prepare(batch_of([6, 7])).column(0).to_pylist()
        blobs.close()
    assert [row["kind"] for row in rows] == [INLINE, DEDICATED]


def test_nulls_need_no_side_files() -> None:
    """A column may have no inline blobs but empty ones."""
    (field, other) = SCHEMA.fields
    metadata = {**field.metadata, "lance-encoding:blob-inline-size-threshold": b"0"}
    store = MemoryStore(f"/{uuid.uuid4()}")
    with BlobFiles(store, PATH, Schema((replace(field, metadata=metadata), other))) as blobs:
        batch = batch_of([None, 0])
        assert blobs.prepare(batch).equals(batch)
        blobs.close()
    assert list(store.list("")) == []


@pytest.mark.parametrize("sizes", [[0], [4], [9, 4, 9]])
def test_failed_writes_delete_all_side_files(sizes: list[int | None], tmp_path: Path) -> None:
    """No data file refers to them; and on a disk, an open file has another name."""
    for store in MemoryStore(f"/{uuid.uuid4()}"), open_store(tmp_path):
        with suppress(KeyError), BlobFiles(store, PATH, SCHEMA) as blobs:
            blobs.prepare(batch_of(sizes))
            raise KeyError("the source broke")
        assert list(store.list("")) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_other_tables_have_no_side_files() -> None:
    """Their batches pass unchanged."""
    batch = pa.record_batch({"n": [1]})
    blobs = BlobFiles(MemoryStore(f"/{uuid.uuid4()}"), PATH, Schema(SCHEMA.fields[1:]))
    assert blobs.prepare(batch) is batch
