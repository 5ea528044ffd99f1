"""A compaction's files are written by Spark's tasks, where the driver is not the only machine.

The driver plans, and reads deletion files; data files are read and written by the tasks, one group
of fragments each. A few tasks make a job, and one job follows the other: most slots stay free for
the stream's own jobs, which would wait for them else.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lance_stream.dataset.rewrites import RewriteTask, WriteTasks, write_task
from lance_stream.dataset.write_fragments import delete_files
from lance_stream.errors import LanceStreamError
from lance_stream.spark.arrow_jobs import ArrowFunction, map_in_arrow
from lance_stream.table.fragments import Fragment, decode_fragment, encode_fragment

PART_OF_SLOTS: Final = 4
"""One of so many slots of a cluster takes part in a compaction."""

_OUTCOME: Final = StructType(
    [
        StructField("task", IntegerType()),
        StructField("fragment", BinaryType()),
        StructField("error", BinaryType()),
    ]
)
_OUTCOME_SCHEMA: Final = pa.schema(
    [("task", pa.int32()), ("fragment", pa.binary()), ("error", pa.binary())]
)


def writer_of(spark: SparkSession) -> WriteTasks | None:
    """Return who writes a compaction's files: Spark's tasks; None for the driver's own thread.

    On a local master the driver is the only machine, and a thread costs less than a job.
    """
    return None if _is_local(spark) else partial(write_by_jobs, spark)


def write_by_jobs(spark: SparkSession, tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
    """Do tasks in Spark jobs of a few tasks each; see `rewrites.WriteTasks`.

    Raises:
        LanceStreamError: What a task raised. The files of the others of its job are deleted.
    """
    num_at_once = 1
    with suppress(Exception):  # Spark Connect has no SparkContext, and says so in many ways
        num_at_once = max(1, spark.sparkContext.defaultParallelism // PART_OF_SLOTS)
        spark.sparkContext.setJobGroup("lance-stream compaction", "merging small fragments")
    for first in range(0, len(tasks), num_at_once):
        yield from _job(spark, tasks[first : first + num_at_once])


def _job(spark: SparkSession, tasks: Sequence[RewriteTask]) -> list[list[Fragment]]:
    places = spark.range(0, len(tasks), 1, len(tasks))
    rows = map_in_arrow(places, _writing(tasks), _OUTCOME).collect()
    written: list[list[Fragment]] = [[] for _ in tasks]
    for row in rows:
        if row.fragment is not None:
            written[row.task].append(decode_fragment(bytes(row.fragment)))
    for row in rows:
        if row.error is not None:
            delete_files(tasks[0].target.store, [each for some in written for each in some])
            raise pickle.loads(row.error)
    return written


def _writing(tasks: Sequence[RewriteTask]) -> ArrowFunction:
    """Return the function that does the tasks with the numbers that it gets; a row a file."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = []
        try:
            for place in (each for batch in batches for each in batch.column(0).to_pylist()):
                rows += [
                    {"task": place, "fragment": encode_fragment(each)}
                    for each in write_task(tasks[place])
                ]
        except LanceStreamError as error:
            error.add_note("while a Spark task merged fragments; nothing was committed")
            rows.append({"error": pickle.dumps(error)})
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_OUTCOME_SCHEMA)

    return write


def _is_local(spark: SparkSession) -> bool:
    with suppress(Exception):  # as above; its driver is elsewhere
        master = spark.sparkContext.master or ""
        return master == "local" or master.startswith("local[")
    return False
