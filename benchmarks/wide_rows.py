"""Upserts of one column of wide rows: in place, by moving the rows, and by pylance, in one run.

    python -m benchmarks.wide_rows [--rows 100000] [--updates 50000] [--blob-bytes 4000]
                                   [--rounds 5] [--json FILE]

The rows have a key, a price, a vector of 768 floats and a blob. Each round gives new prices to as
many random rows, in a fresh copy of the table (linked, so all files are as warm). Shown are
medians of wall time and of CPU time, and the bytes that the process read and wrote, from the
system's counters. After each round the tables are compared.

    in place         our upsert as it is
    rows             our upsert, made to move the rows
    pylance          merge_insert of the same batch, which writes columns in place, too
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import lance
import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream.keys.index.key_index import clear_key_indices
from lance_stream.row_updates.in_place_costs import FragmentCosts

DIMENSIONS = 768
ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 64 << 20
FRAGMENTS = 2
TARGET = 5.0
"""How much faster than moving the rows writing their column should be."""


class Cost(NamedTuple):
    """What one upsert took."""

    seconds: float
    cpu_seconds: float
    bytes_read: int
    bytes_written: int


def rows_of(start: int, stop: int, blob_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield wide rows with these ids."""
    dice = np.random.default_rng(start)
    at_once = min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE // blob_bytes))
    for first in range(start, stop, at_once):
        count = min(at_once, stop - first)
        floats = pa.array(dice.random(count * DIMENSIONS, np.float32))
        blobs = [dice.bytes(blob_bytes) for _ in range(count)]
        yield pa.record_batch(
            {
                "id": pa.array(np.arange(first, first + count)),
                "price": pa.array(dice.random(count)),
                "vector": pa.FixedSizeListArray.from_arrays(floats, DIMENSIONS),
                "blob": pa.array(blobs, pa.large_binary()),
            }
        )


def make_table(uri: str, num_rows: int, blob_bytes: int) -> None:
    """Make the table, in as many versions as it has fragments."""
    fields = list(next(rows_of(0, 1, 1)).schema)
    fields[3] = fields[3].with_metadata({"lance-encoding:blob": "true"})
    schema = pa.schema(fields)
    ds = lance_stream.create_dataset(uri, schema, primary_key=["id"])
    for start, stop in pairwise(num_rows * number // FRAGMENTS for number in range(FRAGMENTS + 1)):
        ds = ds.append(rows_of(start, stop, blob_bytes))


@contextmanager
def moving_rows() -> Iterator[None]:
    """Let upserts move changed rows, whatever it costs."""
    name = "is_cheaper_in_place"
    decides = getattr(FragmentCosts, name)
    setattr(FragmentCosts, name, property(lambda _: False))
    try:
        yield
    finally:
        setattr(FragmentCosts, name, decides)


def in_place(uri: str, batch: pa.Table) -> None:
    """Upsert a batch."""
    lance_stream.open_dataset(uri).upsert(batch, on="id")


def by_rows(uri: str, batch: pa.Table) -> None:
    """Upsert a batch, and move the rows."""
    with moving_rows():
        in_place(uri, batch)


def by_pylance(uri: str, batch: pa.Table) -> None:
    """Upsert a batch by pylance."""
    merge = lance.dataset(uri).merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(batch)


CONTENDERS: dict[str, Callable[[str, pa.Table], None]] = {
    "in place": in_place,
    "rows": by_rows,
    "pylance": by_pylance,
}


def cost_of(act: Callable[[], None]) -> Cost:
    """Return what a call takes."""
    before, cpu, wall = _bytes(), time.process_time(), time.perf_counter()
    act()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    after = _bytes()
    return Cost(seconds, cpu_seconds, after[0] - before[0], after[1] - before[1])


def _bytes() -> tuple[int, int]:
    """Return how many bytes this process has read and written."""
    lines = Path("/proc/self/io").read_text().split("\n")
    counters = dict(line.split(": ") for line in lines if line)
    return int(counters["rchar"]), int(counters["wchar"])


def run(
    folder: Path, num_rows: int, num_updates: int, blob_bytes: int, rounds: int
) -> dict[str, list[Cost]]:
    """Let the contenders take turns."""
    source = folder / "source.lance"
    print(f"writing {num_rows:,} rows", flush=True)
    make_table(str(source), num_rows, blob_bytes)
    costs: dict[str, list[Cost]] = defaultdict(list)
    dice = np.random.default_rng(1)
    for number in range(rounds):
        ids = np.sort(dice.choice(num_rows, num_updates, replace=False))
        batch = pa.table({"id": ids, "price": dice.random(num_updates)})
        results: list[pa.Table] = []
        for name in dice.permutation(list(CONTENDERS)).tolist():
            uri = str(folder / "copy.lance")
            shutil.copytree(source, uri, copy_function=os.link)
            clear_key_indices()
            costs[name].append(cost_of(partial(CONTENDERS[name], uri, batch)))
            results.append(lance.dataset(uri).to_table(["id", "price"]).sort_by("id"))
            shutil.rmtree(uri)
        assert all(value.equals(results[0]) for value in results), "the contenders do not agree"
        print(f"round {number + 1} of {rounds}", flush=True)
    return costs


def report(costs: dict[str, list[Cost]]) -> dict[str, dict[str, float]]:
    """Print the medians, and return them."""
    medians = {
        name: {
            field: statistics.median(getattr(value, field) for value in some)
            for field in Cost._fields
        }
        for name, some in costs.items()
    }
    ours = medians["in place"]
    print(f"{'':10} {'ms':>8} {'CPU ms':>8} {'MB read':>9} {'MB written':>11}   time, CPU ratio")
    for name in CONTENDERS:
        figures = medians[name]
        print(
            f"{name:10} {figures['seconds'] * 1e3:8.0f} {figures['cpu_seconds'] * 1e3:8.0f} "
            f"{figures['bytes_read'] / 1e6:9.1f} {figures['bytes_written'] / 1e6:11.1f}   "
            f"{figures['seconds'] / ours['seconds']:5.1f} "
            f"{figures['cpu_seconds'] / ours['cpu_seconds']:5.1f}"
        )
    ratio = medians["rows"]["seconds"] / ours["seconds"]
    print(f"in place is {ratio:.1f} times as fast as moving the rows; the target is {TARGET}")
    return medians


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--blob-bytes", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        costs = run(
            Path(folder), arguments.rows, arguments.updates, arguments.blob_bytes, arguments.rounds
        )
        medians = report(costs)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
