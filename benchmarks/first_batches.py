"""The first append and the first upsert of a Spark session, compared with its later ones.

    python -m benchmarks.first_batches [--table-rows 1000000] [--rows 50000] [--batches 10]
                                       [--sessions 3]

Each way writes the same batches into a copy of the same table, in Spark sessions of its own:

    noop              Spark's sink that drops the rows: what Spark itself needs to start
    pylance           appends the collected batch
    append, upsert    lance-stream's sink

Shown are the first batch and the warm ones, which are those of the second half, inside
foreachBatch, as medians of all sessions; their ratio; and how many warm batches the first one takes
longer than the first of `noop`. Only ratios carry over to other machines.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.dataset
import pyspark

import lance_stream
from benchmarks.sinks.contenders import Noop, Ours, Pylance
from benchmarks.sinks.session import ROOT, make_session
from benchmarks.sinks.turns import stream_turns
from benchmarks.sinks.workload import Workload

WAYS = {
    "noop": (Noop, "append"),
    "pylance": (Pylance, "append"),
    "append": (Ours, "append"),
    "upsert": (Ours, "upsert"),
}
"""The contender and the verb of each way."""

TABLE = "table"
"""The folder of the table that every session copies."""

Seconds = Mapping[str, Sequence[Sequence[float]]]
"""By way and session, the seconds of each batch."""


def run_session(way: str, files: Path, folder: Path) -> list[float]:
    """Write the batches in a new Spark session; return the seconds of each.

    Args:
        way: One of `WAYS`.
        files: The folder with the batches and the table.
        folder: A new folder for the session.
    """
    kind, verb = WAYS[way]
    contender = kind(folder)
    spark = make_session([kind], folder, memory="2g")
    contender.begin_table(spark)
    shutil.copytree(files / TABLE, contender.target)
    times: dict[str, list[float]] = {}
    stream_turns(spark, files / verb, folder / "checkpoint", [contender], verb, times)
    spark.stop()
    return times[contender.name]


def report(seconds: Seconds) -> list[str]:
    """Return a line for each way."""
    firsts = {way: statistics.median(runs[0] for runs in seconds[way]) for way in seconds}
    lines = []
    for way, sessions in seconds.items():
        first = firsts[way]
        warm = statistics.median(run for runs in sessions for run in runs[len(runs) // 2 :])
        more = f", {(first - firsts['noop']) / warm:.1f} more than noop's" if way != "noop" else ""
        lines.append(
            f"{way:8} first {first * 1000:6.0f} ms, warm {warm * 1000:5.0f} ms: "
            f"{first / warm:.1f} x{more}"
        )
    return lines


def measure(workload: Workload, sessions: int, folder: Path) -> dict[str, list[list[float]]]:
    """Run the sessions of all ways, in turn."""
    workload.write(folder)
    rows = pyarrow.dataset.dataset(folder / "load").to_table()
    lance_stream.create_dataset(str(folder / TABLE), rows.schema).append(rows)
    seconds: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    order = list(WAYS)
    for number in range(sessions):
        random.Random(number).shuffle(order)
        for way in order:
            session = folder / f"{way}-{number}"
            session.mkdir()
            command = [sys.executable, "-m", "benchmarks.first_batches", "--only", way]
            paths = ["--files", str(folder), "--folder", str(session)]
            process = subprocess.run(
                command + paths, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
            )
            seconds[way].append(json.loads(process.stdout.splitlines()[-1]))
            shutil.rmtree(session)
            print(way, [round(run * 1000) for run in seconds[way][-1]], flush=True)
    return seconds


def main() -> None:
    """Measure and report; or, in the process of a session, run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table-rows", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        print(json.dumps(run_session(arguments.only, arguments.files, arguments.folder)))
        return
    workload = Workload(arguments.table_rows, arguments.rows, arguments.batches, arguments.batches)
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    try:
        seconds = measure(workload, arguments.sessions, folder)
    finally:
        shutil.rmtree(folder)
    print(f"\nPySpark {pyspark.__version__}, inside foreachBatch, medians")
    print("\n".join(report(seconds)))


if __name__ == "__main__":
    main()
