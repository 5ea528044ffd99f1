"""The benefit of stored key bounds: the first upsert of a process, with and without them.

    python -m benchmarks.key_bounds [--fragments 20 200] [--rows 50000] [--rounds 5]

A table has ascending int64 keys. Every run is a separate process, as after a restart of a stream:
it opens the table and upserts 1,000 rows into the newest fragment. Runs with and without the file
of bounds (`_lance_stream/key_bounds`) take turns; shown are medians and their ratio.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.create import create_table, plan_table
from lance_stream.write.fragments import write_fragments, write_target

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64())])
CHANGED = 1000


def make_table(folder: Path, fragments: int, rows: int) -> None:
    """Create a table of this many fragments in one version, and store their bounds by an upsert."""
    table = create_table(plan_table(str(folder), SCHEMA, primary_key=["id"]))
    target = write_target(table)
    new_fragments = [
        fragment
        for number in range(fragments)
        for fragment in write_fragments(_rows(number * rows, rows).to_reader(), target)
    ]
    append_fragments(table, new_fragments)
    upsert(folder)


def upsert(folder: Path) -> float:
    """Update the newest rows; return the seconds."""
    begin = time.perf_counter()
    ds = lance_stream.open_dataset(folder)
    last = int(ds.count_rows())
    ds.upsert(_rows(last - CHANGED, CHANGED), on="id")
    return time.perf_counter() - begin


def _rows(first: int, count: int) -> pa.Table:
    return pa.table([np.arange(first, first + count), np.linspace(0, 1, count)], schema=SCHEMA)


def measure(folder: Path, work: Path, with_bounds: bool) -> float:
    """Return the seconds of the upsert in a separate process, on a copy of the table."""
    copy = work / "copy.lance"
    shutil.copytree(folder, copy)
    if not with_bounds:
        shutil.rmtree(copy / "_lance_stream" / "key_bounds")
    command = [sys.executable, "-m", "benchmarks.key_bounds", "--upsert", str(copy)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(copy)
    return float(answer)


def main() -> None:
    """Print a table of medians and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--fragments", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a fragment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--upsert", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upsert:
        print(upsert(arguments.upsert))
        return
    print("fragments        rows   with bounds ms   without ms   ratio")
    for fragments in arguments.fragments:
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            table = work / "table.lance"
            make_table(table, fragments, arguments.rows)
            times: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(arguments.rounds):
                for with_bounds in times:
                    times[with_bounds].append(measure(table, work, with_bounds))
            ms_with, ms_without = (1000 * statistics.median(times[flag]) for flag in (True, False))
            rows = fragments * arguments.rows
            ratio = ms_without / ms_with
            print(f"{fragments:9} {rows:11,} {ms_with:16.0f} {ms_without:12.0f} {ratio:7.1f}")


if __name__ == "__main__":
    main()
