"""The life of a table with Spark: upserts in `foreachBatch`, with lance-stream and its rivals.

    PYTHON -m benchmarks.long_life.with_spark [--rows 100000] [--batch-rows 2000] [--batches 100]
                                              [--window 20] [--with NAME ...] [--json FILE]

PYTHON is that of `make bench-rivals`, whose PySpark has Delta and Iceberg. The contenders are those
of `benchmarks.sinks` that can upsert, and write the same batches in turn: nine rows in ten change a
row of the table, at random places, the others are new. `lance-stream, auto` and `Delta, auto`
compact on their own, ours beside the batches and therefore outside of the times shown; nobody else
compacts. `lance-stream, shared` compacts, too; a thread follows its feed, and after every tenth
batch pylance appends rows.

For each window of batches: the median time of a batch, and how many times as long as that of the
contender's first window; and the phases of our first contender, for the shared table with the feed
of each batch. Only ratios carry over to other machines.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from benchmarks.sink import measure
from benchmarks.sinks.contenders import CONTENDERS, Compacted, Delta, Iceberg, Ours, Pylance
from benchmarks.sinks.workload import Workload

Seconds = Mapping[str, Sequence[float]]
"""By contender, the seconds of each batch, in order."""


def windows(seconds: Sequence[float], window: int) -> list[float]:
    """Return the median of each window of batches, without the first, which starts workers."""
    counted = seconds[1:]
    return [
        statistics.median(counted[first : first + window])
        for first in range(0, len(counted), window)
    ]


def lines(upserts: Seconds, window: int) -> list[str]:
    """Return a table: a line for each window, a column for each contender."""
    medians = {name: windows(upsert, window) for name, upsert in upserts.items()}
    rows = [f"{'batches':>9}" + "".join(f"{name:>24}" for name in medians)]
    for index in range(len(next(iter(medians.values())))):
        stop = min(1 + (index + 1) * window, len(next(iter(upserts.values()))))
        cells = (
            f"{median[index] * 1000:.0f} ms, {median[index] / median[0]:.2f} x"
            for median in medians.values()
        )
        rows.append(f"{stop:>9}" + "".join(f"{cell:>24}" for cell in cells))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch-rows", type=int, default=2_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--memory", default="2g", help="of Spark's driver")
    able = [name for name, contender in CONTENDERS.items() if "upsert" in contender.verbs]
    names = [entry.name for entry in (Ours, Compacted, Pylance, Delta, Iceberg)]
    parser.add_argument("--with", dest="names", nargs="+", choices=able, default=names)
    parser.add_argument("--json", type=Path, help="write the seconds to this file")
    arguments = parser.parse_args()
    workload = Workload(arguments.rows, arguments.batch_rows, 0, arguments.batches)
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    try:
        figures = measure(
            arguments.names, workload, loads=1, memory=arguments.memory, folder=folder
        )
    finally:
        shutil.rmtree(folder)
    print(f"\nPySpark {pyspark.__version__}, medians inside foreachBatch")
    print("\n".join(lines(figures.seconds["upsert"], arguments.window)))
    phases = {
        name: seconds
        for name, seconds in figures.phases.get("upsert", {}).items()
        if len(seconds) == workload.upserts  # others are of some batches only
    }
    if phases:
        print("\nphases\n" + "\n".join(lines(phases, arguments.window)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"pyspark": pyspark.__version__, **figures.seconds}))


if __name__ == "__main__":
    main()
