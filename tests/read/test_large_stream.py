"""Files from streams: bounded memory, pages of about 8 MiB, and no file after a failure."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.byte_ranges import answer, read_from
from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.file.reader import open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import MAX_PAGE_BYTES, FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from lance_stream.storage.locations import open_store
from lance_stream.write.fragments import WriteTarget, write_fragments
from tests.file.column_metadata import columns_of
from tests.file.whole_files import Reading, written_by_us
from tests.read.large_stream import batch_of

ROOT = Path(__file__).parents[2]
VERSIONS = (FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_files_larger_than_memory_are_written(version: FileVersion) -> None:
    """A writer that collects the stream would fail on data larger than memory."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "tests.read.large_stream"),
            *("--gigabytes", "1", "--version", str(version)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    came_in, went_out, growth = map(int, process.stdout.split())
    assert came_in > 1e9
    assert went_out > 0.8 * came_in
    assert growth < 0.5 * came_in


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_streamed_pages_are_about_8_mib(version: FileVersion) -> None:
    """Small pages cost requests, large ones cost memory; pylance writes the same size."""
    random = np.random.default_rng(0)
    schema = pa.schema([("number", pa.int64()), ("vector", pa.list_(pa.float32(), 16))])
    batches = [
        pa.record_batch(
            [
                random.integers(-(2**63), 2**63, 20_000),
                pa.FixedSizeListArray.from_arrays(random.random(16 * 20_000, np.float32), 16),
            ],
            schema=schema,
        )
        for _ in range(20)
    ]
    reading = Reading(written_by_us(batches, version, schema))
    indices = range(len(reading.reader.metadata.column_ranges))
    columns = columns_of(reading.reader, indices, reading.answers)
    sizes = [
        [sum(buffer.size_bytes for buffer in page.buffers) for page in column.pages]
        for column in columns
    ]
    assert sum(map(len, sizes)) == 1 + 3
    for row in sizes:
        assert max(row) < 1.3 * MAX_PAGE_BYTES
        assert all(size > 0.3 * MAX_PAGE_BYTES for size in row[:-1])


def target_in(folder: Path, version: FileVersion) -> WriteTarget:
    return WriteTarget(open_store(folder), assign_ids(from_arrow(batch_of(0).schema)), version)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class FullDiskError(OSError):
    """The error of the store in these tests."""


def broken_stream() -> Iterator[pa.RecordBatch]:
    for seed in range(3):
        yield batch_of(seed)
    raise FullDiskError("the stream broke off")


def stream_with_a_bad_batch() -> Iterator[pa.RecordBatch]:
    for seed in range(3):
        yield batch_of(seed)
    yield batch_of(3).drop_columns(["id"]).append_column("id", pa.array(["x"] * 50_000))


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize(
    ("stream", "error"),
    [(broken_stream, FullDiskError), (stream_with_a_bad_batch, InvalidInputError)],
)
def test_failed_streams_leave_no_file(
    tmp_path: Path, version: FileVersion, stream: Any, error: type[Exception]
) -> None:
    """Nothing refers to the file of a failed stream, and it would stay until a cleanup."""
    with pytest.raises(error):
        write_fragments(stream(), target_in(tmp_path, version))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("writes_before", [0, 3, 17])
def test_failed_stores_leave_no_file(
    tmp_path: Path, version: FileVersion, writes_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any failed write, the partial file and the files before it are removed."""
    target = target_in(tmp_path, version)
    kind = type(target.store.open_writer("data/probe.lance"))
    whole, remaining = kind.write, writes_before

    def write(writer: Any, data: Any) -> None:
        nonlocal remaining
        if remaining == 0:
            raise FullDiskError("no room is left")
        remaining -= 1
        whole(writer, data)

    for path in files_in(tmp_path):
        path.unlink()
    monkeypatch.setattr(kind, "write", write)
    with pytest.raises(FullDiskError):
        write_fragments(iter([batch_of(0), batch_of(1)]), target)
    assert remaining == 0
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_an_unfinished_file_is_not_readable(version: FileVersion) -> None:
    """The footer is written last, so a reader must never accept a prefix as the whole file."""
    batch = batch_of(0)
    writer = FileWriter(assign_ids(from_arrow(batch.schema)), version, max_page_bytes=100_000)
    parts = [bytes(part) for part in writer.write(batch)]
    rest = [bytes(part) for part in writer.finish()[0]]
    assert parts
    for count in range(len(rest)):
        data = b"".join([*parts, *rest[:count]])
        with pytest.raises(BadDataError):
            answer(open_file(len(data)), read_from(data))
    whole = b"".join([*parts, *rest])
    assert answer(open_file(len(whole)), read_from(whole)).metadata.num_rows == batch.num_rows
