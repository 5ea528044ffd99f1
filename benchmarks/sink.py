"""Streaming sinks side by side in foreachBatch, in one run: ours, pylance, Spark's parquet.

    python -m benchmarks.sink [--table-rows 5000000] [--appends 13] [--upserts 13] [--loads 3]
                              [--rows 50000] [--with NAME ...] [--json FILE]

One batch loads a table; batches of `rows` rows are appended to it; then batches are upserted into
it, in which nine of ten rows update a row of the table; then the feed of the last upsert is read.
One contender is our sink without the digest of each batch. Shown are medians without the first
batch, and ratios: above 1, ours is faster. Only the ratios carry over to other machines.
`--table-rows 0` leaves out load and upserts. Delta and Iceberg take part in `make bench-rivals`.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyspark

from benchmarks.sinks.contenders import CONTENDERS, Ours, WithoutDigest
from benchmarks.sinks.session import make_session
from benchmarks.sinks.turns import VERBS, Figures, run_turns
from benchmarks.sinks.workload import Workload

TARGETS = {
    ("append", "parquet"): 2.0,
    ("append", "pylance"): 1.0,
    ("append", WithoutDigest.name): 0.97,
    ("upsert", "pylance"): 1.0,
}
"""Target ratio of our speed to another's, by verb and name."""


def measure(
    names: Sequence[str], workload: Workload, *, loads: int, memory: str, folder: Path
) -> Figures:
    """Let the contenders of these names take turns, in their own session."""
    kinds = [CONTENDERS[name] for name in names]
    print("writing the batches", flush=True)
    expected = workload.write(folder)
    spark = make_session(kinds, folder, memory=memory)
    try:
        return run_turns(
            spark,
            [kind(folder) for kind in kinds],
            workload,
            folder,
            expected,
            loads=loads,
            note=lambda line: print(line, flush=True),
        )
    finally:
        spark.stop()


def report(figures: Figures, workload: Workload) -> None:
    """Print medians, ratios and the phases of our time."""
    print(f"\nPySpark {pyspark.__version__}, inside foreachBatch, medians without the first:")
    for verb in VERBS:
        ours = figures.median(verb, Ours.name)
        times = figures.seconds.get(verb)
        if ours is None or not times:
            continue
        sizes = {"load": workload.table_rows, "feed": workload.changes}
        print(f"\n{verb} of {sizes.get(verb, workload.batch_rows):,} rows")
        for name in times:
            median = figures.median(verb, name) or 0.0
            target = TARGETS.get((verb, name))
            aim = "" if target is None else f"   target {target}"
            first = f"   the first {times[name][0] * 1000:.0f} ms" if verb == "feed" else ""
            print(f"  {name:16} {median * 1000:8.0f} ms   {median / ours:6.2f}{aim}{first}")
        phases = figures.median_phases(verb).items()
        parts = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in phases)
        if parts:
            print(f"  of ours: {parts}")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table-rows", type=int, default=5_000_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--appends", "--batches", type=int, default=13)
    parser.add_argument("--upserts", type=int, default=13)
    parser.add_argument("--loads", type=int, default=3)
    parser.add_argument("--memory", default="8g")
    parser.add_argument(
        "--with",
        dest="names",
        nargs="+",
        choices=CONTENDERS,
        default=[Ours.name, WithoutDigest.name, "pylance", "parquet", "noop"],
    )
    parser.add_argument("--json", type=Path, help="write the seconds to this file")
    arguments = parser.parse_args()
    upserts = arguments.upserts if arguments.table_rows else 0
    workload = Workload(arguments.table_rows, arguments.rows, arguments.appends, upserts)
    folder = Path(tempfile.mkdtemp(prefix="lance-stream-bench-"))
    try:
        figures = measure(
            arguments.names, workload, loads=arguments.loads, memory=arguments.memory, folder=folder
        )
    finally:
        shutil.rmtree(folder)
    report(figures, workload)
    if arguments.json:
        arguments.json.write_text(json.dumps({"pyspark": pyspark.__version__, **asdict(figures)}))


if __name__ == "__main__":
    main()
