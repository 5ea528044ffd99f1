"""A slowly changing dimension beside an upsert: changes of random keys, batch after batch.

    python -m benchmarks.slowly_changing [--rows 1000000] [--changes 20000] [--batches 10]

The dimension has a row for each key. A batch changes random keys, one in twenty is a delete. Shown
are the medians of seconds and CPU seconds of a batch, after two that are not counted:

    upsert       by key, with sequence_by, delete_when and tombstones
    scd1         the same by `apply_scd1`
    scd2         the history by `apply_scd2`: each change ends a row, and begins one
    scd2 late    the same, with sequences that are random among those of all batches so far
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream import Dataset

RULES = {"keys": "id", "sequence_by": "seq", "apply_as_deletes": "op = 'd'"}
NOT_COUNTED = 2


def upsert(ds: Dataset, batch: pa.Table) -> Dataset:
    return ds.upsert(
        batch,
        on="id",
        sequence_by="seq",
        delete_when="op = 'd'",
        except_columns=["op"],
        tombstones="7 days",
    )


def scd1(ds: Dataset, batch: pa.Table) -> Dataset:
    return ds.apply_scd1(batch, **RULES, except_column_list="op")


def scd2(ds: Dataset, batch: pa.Table) -> Dataset:
    return ds.apply_scd2(batch, **RULES, except_column_list=["op", "seq"])


KINDS: dict[str, Callable[[Dataset, pa.Table], Dataset]] = {
    "upsert": upsert,
    "scd1": scd1,
    "scd2": scd2,
    "scd2 late": scd2,
}


def dimension(uri: str, num_rows: int, *, is_history: bool) -> Dataset:
    """Create a dimension with a current row of each key, in ten fragments."""
    keys = np.arange(num_rows)
    zeros = pa.array(np.zeros(num_rows, np.int64))
    columns = {"id": keys, "city": _texts("city", keys % 997), "status": _texts("", keys % 7)}
    if is_history:
        columns |= {"__START_AT": zeros, "__END_AT": pa.nulls(num_rows, pa.int64())}
    else:
        columns["seq"] = zeros
    rows = pa.table(columns)
    ds = lance_stream.create_dataset(uri, rows.schema)
    for part in range(10):
        ds = ds.append(rows.slice(part * num_rows // 10, num_rows // 10))
    return ds


def batch_of(
    dice: np.random.Generator, number: int, num_changes: int, num_rows: int, *, is_late: bool
) -> pa.Table:
    """Return the changes of a batch, numbered from 1."""
    sequence = np.full(num_changes, number)
    keys = dice.choice(num_rows, num_changes, replace=False)
    return pa.table(
        {
            "id": keys,
            "city": _texts(f"new {number}", keys % 89),
            "status": _texts("", keys % 5),
            "seq": dice.integers(1, number + 1, num_changes) if is_late else sequence,
            "op": np.where(np.arange(num_changes) % 20, "u", "d"),
        }
    )


def _texts(word: str, numbers: np.ndarray) -> pa.Array:
    return pa.array([f"{word} {number}" for number in numbers.tolist()])


def measure(kind: str, folder: str, num_rows: int, num_changes: int, num_batches: int) -> None:
    """Apply batches to a new dimension, and print what they took."""
    dice = np.random.default_rng(1)
    uri = str(Path(folder) / f"{kind.replace(' ', '_')}.lance")
    ds = dimension(uri, num_rows, is_history=kind.startswith("scd2"))
    make = partial(batch_of, dice, num_changes=num_changes, num_rows=num_rows)
    seconds, cpu = [], []
    for number in range(1, num_batches + NOT_COUNTED + 1):
        batch = make(number, is_late="late" in kind)
        begin = time.perf_counter(), time.process_time()
        ds = KINDS[kind](ds, batch)
        seconds.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    medians = (statistics.median(row[NOT_COUNTED:]) for row in (seconds, cpu))
    print(
        f"{kind:10}",
        *(f"{median:9.3f}" for median in medians),
        f"{ds.count_rows():12,}",
        flush=True,
    )


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=10)
    arguments = parser.parse_args()
    print("             seconds  CPU s         rows then")
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            measure(kind, folder, arguments.rows, arguments.changes, arguments.batches)


if __name__ == "__main__":
    main()
