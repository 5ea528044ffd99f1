"""Selects what writes a compaction's files for the sink: a driver thread, or Spark's tasks.

With a local master the driver is the only worker. On a cluster the driver plans, and reads deletion
files; tasks read and write the data files, one group of fragments each. The tasks run in small
jobs, one after another, so that most slots stay free for the stream's own jobs, which would
otherwise wait. `maintenance.compaction.background` describes when a round starts and commits.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from lance_stream.errors import LanceStreamError
from lance_stream.maintenance.compaction.rewrites import RewriteTask, WriteTasks, write_task
from lance_stream.spark.arrow_jobs import run_in_tasks
from lance_stream.spark.sink.spark_workers import driver_is_alone
from lance_stream.table.fragments import Fragment
from lance_stream.write.fragments import delete_files

SLOTS_FOR_EACH_TASK: Final = 4
"""A compaction uses one in this many of a cluster's slots."""


def writer_of(spark: SparkSession) -> WriteTasks | None:
    """Return the writer of a compaction's files: Spark's tasks; None for a driver thread."""
    return None if driver_is_alone(spark) else partial(write_by_jobs, spark)


def write_by_jobs(spark: SparkSession, tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
    """Run tasks in Spark jobs of a few tasks each; see `rewrites.WriteTasks`.

    Raises:
        LanceStreamError: A task failed. The files of the other tasks of its job are deleted.
    """
    num_at_once = 1
    with suppress(Exception):  # Spark Connect has no SparkContext, and raises various errors
        num_at_once = max(1, spark.sparkContext.defaultParallelism // SLOTS_FOR_EACH_TASK)
        spark.sparkContext.setJobGroup("lance-stream compaction", "merging small fragments")
    for first in range(0, len(tasks), num_at_once):
        yield from _job(spark, tasks[first : first + num_at_once])


def _job(spark: SparkSession, tasks: Sequence[RewriteTask]) -> list[list[Fragment]]:
    done = run_in_tasks(spark, tasks, _try_to_write)
    errors = [each for each in done if isinstance(each, LanceStreamError)]
    written = [each for each in done if not isinstance(each, LanceStreamError)]
    if errors:
        delete_files(tasks[0].target.store, [each for some in written for each in some])
        raise errors[0]
    return written


def _try_to_write(task: RewriteTask) -> list[Fragment] | LanceStreamError:
    """Return an error instead of raising it, so that the driver learns the other tasks' files."""
    try:
        return write_task(task)
    except LanceStreamError as error:
        error.add_note("while a Spark task merged fragments; nothing was committed")
        return error
