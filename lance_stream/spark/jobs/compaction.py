"""Chooses who writes a compaction's files for the sink: a driver thread, or Spark's tasks.

With a local master the driver is the only worker. On a cluster the driver plans, and reads deletion
files; tasks read and write the data files, one group of fragments each. The tasks run in small
jobs, one after another, so that most slots stay free for the stream's own jobs, which would
otherwise wait. `maintenance.compaction.background` describes when a round starts and commits.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from lance_stream.maintenance.compaction.rewrites import RewriteTask, WriteTasks
from lance_stream.spark.jobs.arrow_jobs import described, driver_is_alone, slots_of
from lance_stream.spark.jobs.rewrite_jobs import rewrite_by_jobs
from lance_stream.table.fragments.fragment import Fragment

SLOTS_PER_TASK: Final = 4
"""A compaction uses one in this many of a cluster's slots."""


def writer_of(spark: SparkSession) -> WriteTasks | None:
    """Return the writer of a compaction's files: Spark's tasks; None for a driver thread."""
    return None if driver_is_alone(spark) else partial(write_by_jobs, spark)


def write_by_jobs(spark: SparkSession, tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
    """Execute tasks in Spark jobs of a few tasks each; see `rewrites.WriteTasks`.

    Raises:
        LanceStreamError: A task failed. The files of the other tasks of its job are deleted.
    """
    num_at_once = max(1, (slots_of(spark) or 1) // SLOTS_PER_TASK)
    with described(spark, "lance-stream: compact small fragments"):
        yield from rewrite_by_jobs(spark, tasks, num_at_once)
