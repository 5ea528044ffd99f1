"""The cost of upserts of random keys as the table grows: with the key index, in turns.

    python -m benchmarks.key_index [--millions 2 20] [--rounds 7] [--keys 50000]
    python -m benchmarks.key_index --millions 5 100 --tables PATH       with tables that are kept
    python -m benchmarks.key_index --writes 40     what of a batch is spent on writing the index
    python -m benchmarks.key_index --look-up 1000  the look-up alone, in runs that are forged
    python -m benchmarks.key_index --compaction 8  a batch after a compaction that carries the
                                                   index over, and after one that does not

The tables differ only in their number of fragments, of a million rows each; keys are texts of 16
random digits. Every batch changes 45,000 rows anywhere in the table and inserts 5,000. Batches on
the tables take turns, so that a slow second affects all of them.

    running   a batch of a process that runs on: medians of the CPU time of the process, and its
              parts; the first batches, which make the index, are not counted but shown
    first     the first batch of a new process, which finds the index
    build     what the first batches took in all, which read all keys and made the index; and what
              reading them took without it

`--writes` upserts batches of 100,000 rows, of which 90,000 are new, and reports the time that the
thread of a batch spends on writing and merging runs, as a share of all its CPU time.

Forged runs have random hashes of as many fragments of a million rows as asked for, 16 million in
each, as in merged runs. If there is not enough room for all, the same ones are searched repeatedly.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream.keys.file_columns import FileColumn
from lance_stream.keys.index import key_index, run_files
from lance_stream.keys.index.run_format import CoveredFile, KeyColumns, Keys
from lance_stream.keys.index.run_merging import RenumberedKeys
from lance_stream.maintenance.compaction import rewrites
from lance_stream.storage.local_store import LocalStore
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.create import create_table, plan_table
from lance_stream.write.fragments import write_fragments, write_target

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("number", pa.int64()), ("value", pa.float64())]
)
ROWS_OF_FRAGMENT = 1_000_000
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def rows_of(numbers: np.ndarray, value: float) -> pa.Table:
    """Return rows by their numbers; the key of each looks random."""
    return pa.table([_keys(numbers), numbers, np.full(len(numbers), value)], schema=SCHEMA)


def _keys(numbers: np.ndarray) -> pa.Array:
    words = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    words ^= words >> np.uint64(31)
    raw = words.view(np.uint8).reshape(-1, 8)
    digits = np.stack([_DIGITS[raw >> 4], _DIGITS[raw & 15]], axis=2).reshape(-1)
    offsets = np.arange(0, 16 * len(numbers) + 1, 16, np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits))


def make_table(folder: Path, millions: int) -> None:
    """Create a table of so many fragments, in one version."""
    table = create_table(plan_table(str(folder), SCHEMA, primary_key=["id"]))
    target = write_target(table)
    fragments = []
    for number in range(millions):
        first = number * ROWS_OF_FRAGMENT
        rows = rows_of(np.arange(first, first + ROWS_OF_FRAGMENT), 0.0)
        fragments += write_fragments(rows.to_batches(), target)
    append_fragments(table, fragments)


class Table:
    """A table, and the batches that change it."""

    def __init__(self, folder: Path, millions: int, keys: int, seed: int = 1) -> None:
        self.ds = lance_stream.open_dataset(folder)
        self.num_rows = int(self.ds.count_rows())
        self.keys = keys
        self.dice = np.random.default_rng(seed)
        self.millions = millions

    def batch(self) -> pa.Table:
        """Return the next batch."""
        old = self.dice.choice(self.num_rows, self.keys * 9 // 10, replace=False)
        new = np.arange(self.num_rows, self.num_rows + self.keys // 10)
        self.num_rows += len(new)
        return rows_of(np.concatenate([old, new]), float(self.dice.random()))

    def upsert(self) -> tuple[float, float]:
        """Apply a batch; return its CPU seconds and seconds."""
        rows = self.batch()
        cpu, begin = time.process_time(), time.perf_counter()
        self.ds = self.ds.upsert(rows, on="id")
        return time.process_time() - cpu, time.perf_counter() - begin


def measure(folder: Path, millions: list[int], rounds: int, keys: int) -> None:
    """Print the costs of batches on tables of several sizes; makes those that are not there."""
    for million in millions:
        if not (folder / str(million)).exists():
            make_table(folder / str(million), million)
    tables = [Table(folder / str(million), million, keys) for million in millions]
    print(f"{'CPU seconds':34}" + "".join(f"{million:>10} M" for million in millions))
    built = [[table.upsert()[0] for table in tables] for _ in range(4)]
    for number, value in enumerate(built, 1):
        print(f"{f'batch {number}':34}" + "".join(f"{one:12.3f}" for one in value), flush=True)
    times = [[table.upsert() for table in tables] for _ in range(rounds)]
    medians = [statistics.median(cpu for cpu, _ in runs) for runs in zip(*times, strict=True)]
    walls = [statistics.median(wall for _, wall in runs) for runs in zip(*times, strict=True)]
    _show("running: CPU of a batch", medians)
    _show("running: time of a batch", walls)
    for table in tables:
        table_index = key_index.key_index_of(table.ds.table, ["id"])
        index = sum(path.stat().st_size for path in (folder / str(table.millions)).rglob("*.keys"))
        print(f"  {table.millions} M: {table_index.num_saved_runs} runs, {index / 1e6:,.0f} MB")
    first: list[list[float]] = [[] for _ in tables]
    for number in range(max(rounds // 2, 3)):
        for seconds, table in zip(first, tables, strict=True):
            command = [sys.executable, "-m", "benchmarks.key_index", "--first"]
            command += [str(folder / str(table.millions)), str(table.millions), str(keys)]
            command += [str(number)]
            seconds.append(float(subprocess.run(command, check=True, capture_output=True).stdout))
    _show("first batch of a process: CPU", [statistics.median(value) for value in first])


def _show(name: str, values: list[float]) -> None:
    numbers = "".join(f"{value:12.3f}" for value in values)
    print(f"{name:34}{numbers}   {values[-1] / values[0]:.2f} x", flush=True)


def write(folder: Path, batches: int) -> None:
    """Print what writing the index takes of batches that insert many rows."""
    keys = 100_000
    make_table(folder / "1", 1)
    ds = lance_stream.open_dataset(folder / "1")
    dice = np.random.default_rng(2)
    spent = [0.0]
    save = key_index.KeyIndex.save

    def timed(*arguments: Any) -> None:
        begin = time.thread_time()
        save(*arguments)
        spent[0] += time.thread_time() - begin

    num_rows = ds.count_rows()
    all_cpu = 0.0
    with patch.object(key_index.KeyIndex, "save", timed):
        for number in range(batches):
            old = dice.choice(num_rows, keys // 10, replace=False)
            new = np.arange(num_rows, num_rows + keys * 9 // 10)
            num_rows += len(new)
            rows = rows_of(np.concatenate([old, new]), float(number))
            cpu = time.process_time()
            ds = ds.upsert(rows, on="id")
            all_cpu += time.process_time() - cpu
    index = sum(path.stat().st_size for path in folder.rglob("*.keys"))
    print(
        f"{batches} batches of {keys:,} rows: {all_cpu:.2f} s of CPU, of which {spent[0]:.2f} s "
        f"write and merge the index: {spent[0] / all_cpu:.1%}; it has {index / 1e6:,.0f} MB"
    )


def compact(folder: Path, millions: int, rounds: int) -> None:
    """Print what the batch after a compaction takes, in turns with the index carried over or not.

    Each round appends a million rows in small fragments, upserts, and compacts them.
    """
    make_table(folder / "t", millions)
    table = Table(folder / "t", millions, 50_000)
    for _ in range(4):
        table.upsert()
    print(f"{'CPU seconds':14}{'before':>10}{'compaction':>12}{'after':>10}")
    for number in range(2 * rounds):
        is_carried = number % 2 == 0
        for _ in range(10):
            first = table.num_rows
            table.num_rows += ROWS_OF_FRAGMENT // 10
            table.ds = table.ds.append(rows_of(np.arange(first, table.num_rows), 0.0))
        table.upsert()
        before, _ = table.upsert()
        cpu = time.process_time()
        with nullcontext() if is_carried else patch.object(rewrites, "remap_keys"):
            table.ds = table.ds.compact()
        cpu = time.process_time() - cpu
        after, _ = table.upsert()
        name = "carried over" if is_carried else "read again"
        print(f"{name:14}{before:10.3f}{cpu:12.3f}{after:10.3f}", flush=True)


def look_up(folder: Path, fragments: int, keys: int) -> None:
    """Print how long the look-up takes in forged runs of so many million rows."""
    dice = np.random.default_rng(3)
    columns = KeyColumns((0,), ("string",), False, (1, 2))
    store = LocalStore(str(folder))
    per_run = 16
    runs = []
    free = shutil.disk_usage(folder).free
    maximum = max(1, min(-(-fragments // per_run), int(free * 0.05) // (per_run * 2 * 16_000_000)))
    for number in range(maximum):
        num_rows = min(per_run, fragments - number * per_run) * ROWS_OF_FRAGMENT
        words = np.sort(dice.integers(0, 1 << 64, num_rows, dtype=np.uint64))
        others = dice.integers(0, 1 << 32, num_rows, dtype=np.uint32)
        rows = dice.permutation(num_rows).astype(np.uint32)
        column = FileColumn(number.to_bytes(16, "big"), 0)
        files = [CoveredFile((column,), num_rows)]
        run = run_files.write_run(
            store, columns, files, [RenumberedKeys(Keys(words, others, rows), None)]
        )
        assert run is not None
        run.numbers = np.array([number])
        runs.append((run, words, others))
    repeats = -(-fragments // per_run) / maximum
    for _ in range(3):
        query = dice.integers(0, 1 << 64, keys, dtype=np.uint64)
        run, words, _ = runs[int(dice.integers(len(runs)))]
        some = dice.integers(0, len(words), keys // 2)
        query[: keys // 2] = words[some]
        query.sort()
        cpu = time.process_time()
        num_matches = 0
        for number in range(round(maximum * repeats)):
            num_matches += len(runs[number % maximum][0].find(store, query).which)
        cpu = time.process_time() - cpu
        assert num_matches >= keys // 2
        print(
            f"{keys:,} keys in {round(maximum * repeats)} runs of {fragments:,} million rows "
            f"({maximum} of them different): {cpu:.2f} s of CPU",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millions", type=int, nargs="+", default=[2, 20])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--look-up", type=int, default=0)
    parser.add_argument("--writes", type=int, default=0, help="the number of batches")
    parser.add_argument("--compaction", type=int, default=0, help="millions of rows")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tables", type=Path, help="where tables are made, used again, and kept")
    parser.add_argument("--first", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.first:
        folder, millions, keys, seed = arguments.first
        print(Table(Path(folder), int(millions), int(keys), 100 + int(seed)).upsert()[0])
        return
    if arguments.tables:
        arguments.tables.mkdir(exist_ok=True)
        measure(arguments.tables, arguments.millions, arguments.rounds, arguments.keys)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        if arguments.look_up:
            look_up(Path(name), arguments.look_up, arguments.keys)
        elif arguments.writes:
            write(Path(name), arguments.writes)
        elif arguments.compaction:
            compact(Path(name), arguments.compaction, arguments.rounds)
        else:
            measure(Path(name), arguments.millions, arguments.rounds, arguments.keys)


if __name__ == "__main__":
    main()
