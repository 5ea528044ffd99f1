"""Write and read a table of 5 million rows: lance-stream, pylance and parquet, in one run.

    python -m benchmarks.tables [--rows 5000000] [--rounds 5] [--file-versions 2.0 2.1 2.2]

Columns: int64, float64, a string of 12 characters, fixed_size_list<float32, 16>; random, from a
seed. Ratios above 1 mean that lance-stream is faster.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lance_stream
from benchmarks.side_by_side import Timing, speed_ratio, take_turns

FILE_VERSIONS = ("2.0", "2.1", "2.2")
WRITE_TARGETS = {"2.0": 1.0, "2.1": None, "2.2": 1.0}
READ_TARGET = 0.7


def make_table(num_rows: int, seed: int = 7) -> pa.Table:
    """Return random rows of the four columns."""
    random = np.random.default_rng(seed)
    letters = random.integers(ord("a"), ord("z") + 1, (num_rows, 12), dtype=np.uint8)
    offsets = np.arange(0, 12 * (num_rows + 1), 12, dtype=np.int32)
    strings = pa.StringArray.from_buffers(num_rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(random.standard_normal(16 * num_rows, dtype=np.float32)), 16
    )
    return pa.table(
        {
            "id": random.integers(-(2**63), 2**63, num_rows),
            "x": random.standard_normal(num_rows),
            "name": strings,
            "vector": vectors,
        }
    )


@contextmanager
def empty_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@cache
def table_of(num_rows: int) -> pa.Table:
    """Return the table, created once per process."""
    return make_table(num_rows)


def we_write(target: str, version: str, num_rows: int) -> None:
    """Create a table with lance-stream."""
    table = table_of(num_rows)
    lance_stream.create_dataset(target, table.schema, file_version=version).append(table)


def pylance_writes(target: str, version: str, num_rows: int) -> None:
    """Create a table with pylance."""
    lance.write_dataset(table_of(num_rows), target, data_storage_version=version)


def parquet_writes(target: str, num_rows: int) -> None:
    """Write a parquet file."""
    pq.write_table(table_of(num_rows), target)


def we_read(uri: str) -> pa.Table:
    """Read a table with lance-stream."""
    return lance_stream.open_dataset(uri).to_table()


def pylance_reads(uri: str) -> pa.Table:
    """Read a table with pylance."""
    return lance.dataset(uri).to_table()


def compare_writes(num_rows: int, rounds: int, versions: Sequence[str]) -> dict[str, Timing]:
    """Time writing the table by each program, in each file version."""
    with empty_folder() as folder:
        target = folder / "table"

        def remove() -> None:
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            os.sync()  # so that no contender pays for flushing another's files

        contenders: dict[str, Callable[[], object]] = {}
        for version in versions:
            for name, write in (("we", we_write), ("pylance", pylance_writes)):
                contenders[f"{name} {version}"] = partial(write, str(target), version, num_rows)
        contenders["parquet"] = partial(parquet_writes, str(target), num_rows)
        return take_turns(contenders, rounds=rounds, before=remove)


def compare_reads(num_rows: int, rounds: int, versions: Sequence[str]) -> dict[str, Timing]:
    """Time reading a table by each program; each reads pylance's files and ours."""
    with empty_folder() as folder:
        contenders: dict[str, Callable[[], object]] = {}
        for version in versions:
            for writer, write in (("our", we_write), ("pylance's", pylance_writes)):
                uri = f"{folder}/{writer}-{version}"
                write(uri, version, num_rows)
                for reader, read in (("we", we_read), ("pylance", pylance_reads)):
                    contenders[f"{reader}, {writer} {version}"] = partial(read, uri)
        parquet = f"{folder}/table.parquet"
        parquet_writes(parquet, num_rows)
        contenders["parquet"] = partial(pq.read_table, parquet)
        return take_turns(contenders, rounds=rounds)


def verdict(ratio: float, target: float | None) -> str:
    """Return whether a target is met, as text."""
    if target is None:
        return ""
    return f"target {target}x: {'met' if ratio >= target else 'MISSED'}"


def main() -> None:
    """Run both comparisons and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file-versions", nargs="+", choices=FILE_VERSIONS, default=FILE_VERSIONS)
    arguments = parser.parse_args()
    versions = arguments.file_versions
    num_bytes = table_of(arguments.rows).nbytes
    print(f"{arguments.rows:,} rows, {num_bytes / 1e6:.0f} MB; medians of {arguments.rounds}")

    writes = compare_writes(arguments.rows, arguments.rounds, versions)
    print("\nwrite: our speed over theirs")
    for version in versions:
        ours = writes[f"we {version}"]
        ratio = speed_ratio(ours, writes[f"pylance {version}"])
        over_parquet = speed_ratio(ours, writes["parquet"])
        print(
            f"  {version}: {ratio:5.2f}x pylance, {over_parquet:5.2f}x parquet   "
            f"{verdict(ratio, WRITE_TARGETS[version])}"
        )

    reads = compare_reads(arguments.rows, arguments.rounds, versions)
    print("\nread: our speed over theirs")
    for version in versions:
        for writer in ("pylance's", "our"):
            ours = reads[f"we, {writer} {version}"]
            ratio = speed_ratio(ours, reads[f"pylance, {writer} {version}"])
            over_parquet = speed_ratio(ours, reads["parquet"])
            print(
                f"  {writer} {version} file: {ratio:5.2f}x pylance, {over_parquet:5.2f}x parquet   "
                f"{verdict(ratio, READ_TARGET)}"
            )


if __name__ == "__main__":
    main()
