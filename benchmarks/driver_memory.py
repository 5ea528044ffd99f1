"""The most memory that the driver's Python process takes: many rows, wide rows, many fragments.

    python -m benchmarks.driver_memory [narrow] [wide] [fragments] [--rows N] [--row-bytes N]

    narrow       upserts of 10 million rows of an id and a number into a new table, twice: the first
                 batch of a run, and one whose keys the table has
    wide         the same with 100,000 rows of 100 KB
    fragments    an append, two upserts and the feed of the last one, on a table of 100,000
                 fragments, without Spark

Each case runs in a process of its own, on a local master whose Java has 2 GB. Nothing that the
driver holds should grow with the rows of a batch or a table: the target is 1,500 MB. Shown is also
the peak of Spark's Java process, in which tasks run, too.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

TARGET_MB = 1_500

DEFAULTS = {
    "narrow": {"rows": 10_000_000, "row_bytes": 16},
    "wide": {"rows": 100_000, "row_bytes": 100_000},
    "fragments": {"rows": 100_000, "row_bytes": 16},
}


def peak_mb() -> float:
    """Return the most memory that this process has had at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def java_peak_mb() -> float:
    """Return the same of the Java process that this one has started; 0 where it is unknown."""
    best = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = folder.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and "java" in folder.joinpath("comm").read_text():
                lines = folder.joinpath("status").read_text().split("\n")
                peak = next(line for line in lines if line.startswith("VmHWM"))
                best = max(best, int(peak.split()[1]) / 1024)
        except (OSError, StopIteration):
            continue
    return best


def note(what: str, seconds: float) -> None:
    """Print one line of figures, for people and for `main`."""
    figures = {"what": what, "seconds": seconds, "python": peak_mb(), "java": java_peak_mb()}
    print(json.dumps(figures), flush=True)


def by_sink(folder: Path, rows: int, row_bytes: int) -> None:
    """Upsert a batch into a new table, and again."""
    from pyspark.sql import SparkSession

    from lance_stream.spark import lance_sink

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    note("start", 0)
    value = "id * 0.5" if row_bytes <= 16 else f"repeat(lpad(id, 10, 'x'), {row_bytes // 10})"
    sink = lance_sink(str(folder / "table.lance"), mode="upsert", on="id", app_id="memory")
    for number, name in enumerate(("first batch", "second batch")):
        began = time.perf_counter()
        sink(spark.range(rows).selectExpr("id", f"{value} AS value"), number)
        note(f"{name} of {rows:,} rows of {row_bytes:,} bytes", time.perf_counter() - began)
    spark.stop()


def on_fragments(folder: Path, rows: int, row_bytes: int) -> None:
    """Change a table of as many fragments, which are copies of one of 50 rows."""
    import lance_stream
    from lance_stream.verbs.append import append_fragments
    from lance_stream.verbs.create import create_table, plan_table
    from lance_stream.write.fragments import write_fragments, write_target

    del row_bytes
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64())])

    def some(first: int, count: int) -> pa.Table:
        return pa.table([np.arange(first, first + count), np.full(count, 0.5)], schema=schema)

    uri = str(folder / "table.lance")
    table = create_table(plan_table(uri, schema, primary_key=["id"]))
    one = write_fragments(some(0, 50).to_batches(), write_target(table))
    append_fragments(table, one * rows)
    ds = lance_stream.open_dataset(uri)
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: ds.append(some(10**6, 1000)),
        "upsert of unknown keys": lambda: ds.upsert(some(10**7, 1000), on="id"),
        "another": lambda: ds.upsert(some(10**7 + 500, 1000), on="id"),
        "feed": lambda: ds.changes(ds.version - 1).read_all(),
    }
    for name, act in acts.items():
        began = time.perf_counter()
        result = act()
        if isinstance(result, lance_stream.Dataset):
            ds = result
        note(f"{name}, {rows:,} fragments", time.perf_counter() - began)


CASES: dict[str, Callable[[Path, int, int], None]] = {
    "narrow": by_sink,
    "wide": by_sink,
    "fragments": on_fragments,
}


def run(case: str, rows: int | None = None, row_bytes: int | None = None) -> list[dict[str, float]]:
    """Run a case in a process of its own, and return its figures, step by step."""
    sizes = {**DEFAULTS[case]}
    sizes |= {} if rows is None else {"rows": rows}
    sizes |= {} if row_bytes is None else {"row_bytes": row_bytes}
    folder = tempfile.mkdtemp()
    try:
        command = [sys.executable, "-m", __spec__.name, "--only", case, "--folder", folder]
        for name, value in sizes.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Run the cases, or, in the process of one, that case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--row-bytes", type=int)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        CASES[arguments.only](arguments.folder, arguments.rows, arguments.row_bytes)
        return
    for case in arguments.cases or CASES:
        for row in run(case, arguments.rows, arguments.row_bytes):
            print(
                f"{case:10} {row['what']:45} {row['seconds']:7.1f} s   "
                f"Python {row['python']:6.0f} MB   Java {row['java']:6.0f} MB   "
                f"{'' if row['python'] < TARGET_MB else f'above {TARGET_MB} MB'}"
            )


if __name__ == "__main__":
    main()
