"""Write a large file from a stream of batches to a null store, and report the memory used.

    python -m tests.read.large_stream --gigabytes 20 --version 2.2

The bytes of the file are counted and discarded, so that no disk is needed. Prints the bytes that
were read and written, and the growth of the process's peak memory.
"""

import argparse
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from lance_stream.write.fragments import WriteTarget, write_fragments

ROWS_OF_BATCH = 50_000


class NullWriter:
    """Counts bytes and discards them."""

    def __init__(self, store: "NullStore") -> None:
        self._store = store

    def write(self, data: Any) -> None:
        self._store.num_bytes += memoryview(data).nbytes

    def close(self) -> None:
        self._store.num_files += 1

    def abort(self) -> None:
        pass

    def __enter__(self) -> "NullWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()


@dataclass
class NullStore:
    """Accepts files and records only their sizes."""

    uri: str = "null://"
    num_bytes: int = 0
    num_files: int = 0
    opened: list[str] = field(default_factory=list)

    def open_writer(self, path: str) -> NullWriter:
        self.opened.append(path)
        return NullWriter(self)


def batch_of(seed: int) -> pa.RecordBatch:
    """Return rows in newly allocated memory."""
    random = np.random.default_rng(seed)
    count = ROWS_OF_BATCH
    letters = random.integers(97, 123, 12 * count, np.uint8)
    offsets = np.arange(0, 12 * count + 1, 12, dtype=np.int32)
    names = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    vectors = random.random(16 * count, np.float32)
    ends = np.arange(0, 3 * count + 1, 3, dtype=np.int32)
    numbers = random.integers(0, 2**62, 3 * count)
    return pa.record_batch(
        {
            "id": pa.array(np.arange(count) + seed * count),
            "value": pa.array(random.random(count), mask=random.random(count) < 0.1),
            "name": names,
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 16),
            "list": pa.ListArray.from_arrays(ends, numbers),
        }
    )


def peak_bytes() -> int:
    """Return the peak memory of the process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_stream(gigabytes: float, version: FileVersion) -> tuple[int, int, int]:
    """Write one file of a number of gigabytes.

    Returns:
        The bytes read, the bytes written, and the growth of the peak memory.
    """
    came_in = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal came_in
        while came_in < gigabytes * 1e9:
            batch = batch_of(came_in // 1_000_000)
            came_in += batch.nbytes
            yield batch

    store = NullStore()
    schema = assign_ids(from_arrow(batch_of(0).schema))
    target = WriteTarget(
        store, schema, version, max_rows_per_file=1 << 40, max_bytes_per_file=1 << 50
    )
    before = peak_bytes()
    (fragment,) = write_fragments(batches(), target)
    assert fragment.files[0].size_bytes == store.num_bytes
    return came_in, store.num_bytes, peak_bytes() - before


def main() -> None:
    """Write the file, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--version", default="2.2")
    arguments = parser.parse_args()
    print(*write_stream(arguments.gigabytes, FileVersion.parse(arguments.version)))


if __name__ == "__main__":
    main()
