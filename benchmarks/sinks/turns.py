"""Sinks take turns, batch by batch, in one streaming query.

A slow second of the machine affects all of them, and each batch is the same for all. Before each
turn of several contenders, not timed, the JVM collects its garbage and the disk is flushed, so that
none pays for another's leftovers. The time inside foreachBatch is measured.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.sinks.contenders import Contender, Ours
from benchmarks.sinks.workload import SCHEMA, Sums, Workload

VERBS = ("load", "append", "upsert", "feed")
FEEDS = 6
"""The number of times that the changes of the last upsert are read."""

NOTED_BATCHES = 10
"""After so many batches of a verb, progress is noted: the medians of these."""


@dataclass(frozen=True)
class Figures:
    """The measurements.

    Attributes:
        seconds: By verb, then by contender: the seconds of each batch, in order.
        phases: The same, by verb, then by phase of our sink.
    """

    seconds: Mapping[str, Mapping[str, Sequence[float]]]
    phases: Mapping[str, Mapping[str, Sequence[float]]]

    def median(self, verb: str, name: str) -> float | None:
        """Return the median of a contender's batches without the first, which starts workers."""
        return warm_median(self.seconds.get(verb, {}).get(name, ()))

    def median_phases(self, verb: str) -> dict[str, float]:
        """Return the median of each phase of our sink."""
        return {
            name: warm_median(seconds) or 0.0 for name, seconds in self.phases.get(verb, {}).items()
        }


def warm_median(seconds: Sequence[float]) -> float | None:
    """Return the median of all but the first; None if there are none."""
    counted = seconds[1:] or seconds
    return statistics.median(counted) if counted else None


def run_turns(
    spark: SparkSession,
    contenders: Sequence[Contender],
    workload: Workload,
    folder: Path,
    expected: Sums,
    *,
    loads: int,
    note: Callable[[str], None] = lambda _line: None,
) -> Figures:
    """Let the contenders load, append, upsert and read the feed in turn, and compare them.

    Args:
        spark: The session.
        contenders: The contenders.
        workload: Describes the files.
        folder: The folder of the files; checkpoints are written there, too.
        expected: What a table must contain at the end.
        loads: How often the table is loaded; the other verbs use the last one.
        note: Called with each line of progress.

    Raises:
        RuntimeError: A table or a feed has wrong contents.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    batches = {"append": workload.appends, "upsert": workload.upserts}
    rounds = [("load", number) for number in range(loads if workload.table_rows else 0)]
    rounds += [(verb, 0) for verb, number in batches.items() if number]
    for verb, number in rounds:
        if verb == "load" or not seconds:
            for contender in contenders:
                contender.begin_table(spark)
        times = seconds.setdefault(verb, {})
        able = [contender for contender in contenders if verb in contender.verbs]
        checkpoint = folder / "checkpoints" / f"{verb}-{number}"
        stream_turns(spark, folder / verb, checkpoint, able, verb, times, note)
        note(_progress(verb, times))
    if workload.upserts:
        able = [contender for contender in contenders if "feed" in contender.verbs]
        seconds["feed"] = _read_feeds(spark, able, workload.changes)
    check_rows(spark, contenders, workload, expected)
    phases = next((contender.phases for contender in contenders if isinstance(contender, Ours)), {})
    return Figures(seconds, phases)


def _read_feeds(
    spark: SparkSession, contenders: Sequence[Contender], num_changes: int
) -> dict[str, list[float]]:
    """Read the changes of the last upsert, in turn; return the seconds of each."""
    seconds: dict[str, list[float]] = {}
    feeds = {name: read for contender in contenders for name, read in contender.feeds().items()}
    for name, read in [*feeds.items()] * FEEDS:
        _wait_until_idle(spark)
        start = time.perf_counter()
        read(spark).write.format("noop").mode("append").save()
        seconds.setdefault(name, []).append(time.perf_counter() - start)
    for name, read in feeds.items():
        if (num_rows := read(spark).count()) != num_changes:
            raise RuntimeError(f"the feed of {name} has {num_rows} changes, not {num_changes}")
    return seconds


def _wait_until_idle(spark: SparkSession) -> None:
    """Let the JVM and the disk finish earlier work."""
    spark.sparkContext._jvm.System.gc()
    os.sync()


def check_rows(
    spark: SparkSession, contenders: Sequence[Contender], workload: Workload, expected: Sums
) -> None:
    """Check the tables of all contenders that took part in everything.

    Raises:
        RuntimeError: A table has wrong contents.
    """
    for contender in contenders:
        did_all = workload.upserts == 0 or "upsert" in contender.verbs
        if did_all and contender.keeps_rows and (actual := contender.sums(spark)) != expected:
            raise RuntimeError(f"the table of {contender.name} contains {actual}, not {expected}")


def _take_turns(
    contenders: Sequence[Contender],
    verb: str,
    times: dict[str, list[float]],
    note: Callable[[str], None],
) -> Callable[[DataFrame, int], None]:
    order = list(contenders)
    shuffle = random.Random(len(order)).shuffle

    def take_turns(df: DataFrame, batch_id: int) -> None:
        shuffle(order)
        for value in order:
            run = getattr(value, verb)
            if len(order) > 1:
                _wait_until_idle(df.sparkSession)
            start = time.perf_counter()
            run(df, batch_id)
            times.setdefault(value.name, []).append(time.perf_counter() - start)
            value.rest()
        if (batch_id + 1) % NOTED_BATCHES == 0:
            note(_progress(verb, times))

    return take_turns


def _progress(verb: str, times: Mapping[str, Sequence[float]]) -> str:
    """Return how long the last batches took, so that a run that is ended early says something."""
    medians = {name: statistics.median(runs[-NOTED_BATCHES:]) for name, runs in times.items()}
    number = len(next(iter(times.values()), ()))
    return f"{verb} {number}: " + ", ".join(
        f"{name} {median:.3f} s" for name, median in medians.items()
    )


def stream_turns(
    spark: SparkSession,
    files: Path,
    checkpoint: Path,
    contenders: Sequence[Contender],
    verb: str,
    times: dict[str, list[float]],
    note: Callable[[str], None] = lambda _line: None,
) -> None:
    """Stream the files of a verb through the contenders: one per batch, or all when loading.

    Args:
        spark: The session.
        files: The folder of the files.
        checkpoint: Where the query's checkpoint is written.
        contenders: The contenders.
        verb: The verb.
        times: Receives the seconds of each batch, by contender.
        note: Called with each line of progress.
    """
    reader = spark.readStream.schema(SCHEMA)
    if verb != "load":
        reader = reader.option("maxFilesPerTrigger", 1)
    query = (
        reader.parquet(str(files))
        .writeStream.foreachBatch(_take_turns(contenders, verb, times, note))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
