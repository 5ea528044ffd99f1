"""A user's program: the jobs of a driver on a cluster, or of a client of Spark Connect.

    python driver.py JOBS.json

Each line that begins with a brace is a message about what happened. The program has access only to
its machine: the file of jobs describes the cluster, and the environment the store.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_stream.spark import auto_cdc_sink, cleanup_table, compact_table, lance_sink, register

CHECKPOINTS = Path.cwd() / "checkpoints"

_STARTING = threading.Lock()
"""Held while a query starts: Spark gives its Python process ten seconds, even on a busy machine."""


def print_message(**what: Any) -> None:
    """Print a message as one line."""
    print(json.dumps(what, default=str), flush=True)


def session(remote: str | None, conf: Mapping[str, str]) -> Any:
    """Return the session of a cluster, or of a server of Spark Connect."""
    builder: Any = SparkSession.builder
    if remote is not None:
        builder = builder.remote(remote)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def stream(
    spark: Any,
    name: str,
    source: str,
    table: str,
    *,
    sink: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    read: Mapping[str, str],
    num_partitions: int,
    checkpoints: str | None = None,
) -> None:
    """Stream a table into another one: by the sink, or by the format with options.

    Checkpoints are in a folder of this machine, or in one of the server's through Spark Connect.
    """
    rows = spark.readStream.format("lance").options(**read).load(source)
    if "readChangeFeed" not in read:
        rows = rows.repartition(num_partitions)
    if sink is None:
        writer = rows.writeStream.format("lance").options(**options or {}).option("path", table)
        done = None
    else:
        make_sink = auto_cdc_sink if "keys" in sink else lance_sink
        done = make_sink(table, on_commit=report_batch, **sink)
        writer = rows.writeStream.foreachBatch(done)
    checkpoint = str(Path(checkpoints or CHECKPOINTS) / table.replace(":", ""))
    with _STARTING:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        while query.isActive and query.lastProgress is None:
            time.sleep(0.1)
    query.awaitTermination()
    if done is not None:
        done.wait_for_compaction(120)
    print_message(ended=name, knows_commit=done is not None and done.last_commit is not None)


def write(spark: Any, table: str, num_rows: int) -> None:
    """Write one batch with a sink, of rows that are not read from a table."""
    lance_sink(table, on_commit=report_batch, app_id="rows")(spark.range(num_rows), 0)


def report_batch(commit: Any) -> None:
    """Print the outcome of a batch; called by the process that runs foreachBatch."""
    print_message(
        batch=commit.batch_id, version=commit.version, skipped=commit.skipped, table=commit.table
    )


def feed(spark: Any, name: str, table: str, ranges: list[list[int]]) -> None:
    """Print the changes of a table: of ranges as batches, and of its whole history as a stream."""
    changes = {"readChangeFeed": "true"}
    for first, last in ranges:
        limits = {"startingVersion": str(first), "endingVersion": str(last)}
        rows = spark.read.format("lance").options(**changes, **limits).load(table)
        print_message(feed=name, first=first, last=last, rows=rows_of(rows))
    reader = spark.readStream.format("lance").options(
        **changes, startingVersion="1", maxVersionsPerTrigger="2"
    )
    query = reader.load(table).writeStream.format("memory").queryName(name)
    query.trigger(availableNow=True).start().awaitTermination()
    print_message(streamed=name, rows=rows_of(spark.table(name)))


def rows_of(rows: Any) -> list[dict[str, Any]]:
    """Return rows as dictionaries."""
    return [row.asDict() for row in rows.collect()]


def compact(spark: Any, table: str, **arguments: Any) -> None:
    """Compact a table."""
    print_message(compacted=table, version=compact_table(spark, table, **arguments).version)


def cleanup(spark: Any, table: str, **arguments: Any) -> None:
    """Clean up a table."""
    report = cleanup_table(spark, table, **arguments)
    print_message(cleaned=table, files=sum(report.num_files.values()))


def inspect_tasks(spark: Any, num_tasks: int, paths: list[str]) -> None:
    """Print the environment that tasks have on their machines."""

    def inspect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import lance_stream

        for _ in batches:
            view = {
                "profile": os.environ.get("AWS_CONFIG_FILE"),
                "python": sys.executable,
                "package": lance_stream.__file__,
                "here": str(Path.cwd()),
                "paths": [path for path in paths if Path(path).exists()],
            }
            yield pa.RecordBatch.from_pydict({"view": [json.dumps(view)]})

    from lance_stream.spark.jobs.arrow_jobs import map_in_arrow

    rows = map_in_arrow(spark.range(0, num_tasks, 1, num_tasks), inspect, "view string")  # type: ignore[arg-type]  # a schema may be text
    print_message(views=[json.loads(row.view) for row in rows.collect()])


def share_work(_spark: Any) -> None:
    """Let tasks share the work on small tables, as they do on large ones.

    Tasks process ranges of an upsert's keys; each group of fragments and each few files are a task.
    """
    from lance_stream.row_updates import staged_files
    from lance_stream.spark.jobs import file_jobs, range_tasks, rewrite_jobs
    from lance_stream.spark.sink import modes
    from lance_stream.upsert.large import staged_rows

    modes.MAX_ROWS_ON_DRIVER = 0  # type: ignore[misc]  # Final for others
    staged_rows.MAX_ROWS = 0  # type: ignore[misc]  # Final for others
    staged_files.MIN_ROWS = 1  # type: ignore[misc]  # Final for others
    range_tasks.MIN_ROWS = 1  # type: ignore[misc]  # Final for others
    range_tasks.MIN_SHARED_ROWS = 1  # type: ignore[misc, attr-defined]  # Final for others
    rewrite_jobs.SMALL_TASK_BYTES = 0  # type: ignore[misc]  # Final for others
    file_jobs.FILES_PER_TASK = 3  # type: ignore[misc]  # Final for others


def wait_for(_spark: Any, file: str) -> None:
    """Wait until a file exists on this machine."""
    while not Path(file).exists():
        time.sleep(0.1)


def read_together(spark: Any, lines: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Run several lines of jobs concurrently; the jobs of a line, one after another."""
    with ThreadPoolExecutor(len(lines)) as threads:
        for future in [threads.submit(run, spark, line) for line in lines]:
            future.result()


def attempt(spark: Any, job: dict[str, Any]) -> None:
    """Run a job that fails, and print the error that its user sees."""
    try:
        run(spark, [job])
    except Exception as error:
        print_message(error=type(error).__name__, text=str(error))


KINDS: Mapping[str, Callable[..., None]] = {
    value.__name__: value
    for value in (
        *(stream, write, feed, compact, cleanup, inspect_tasks),
        *(share_work, wait_for, read_together, attempt),
    )
}


def run(spark: Any, jobs: Sequence[dict[str, Any]]) -> None:
    """Run jobs, one after another."""
    for job in jobs:
        arguments = dict(job)
        KINDS[arguments.pop("kind")](spark, **arguments)


def main(path: str) -> None:
    """Run the jobs of a file, one after another."""
    program = json.loads(Path(path).read_text())
    spark = session(program.get("remote"), program["conf"])
    register(spark)
    print_message(ready=True)
    run(spark, program["jobs"])
    spark.stop()
    print_message(done=True)


if __name__ == "__main__":
    main(sys.argv[1])
