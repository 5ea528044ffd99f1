"""Writes a batch to data files: in one Spark job, whose tasks also digest the rows they write.

With a local master the driver collects a small batch and writes it itself: it is the same machine,
and a Python task costs more than the writing.
"""

import pickle
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.ledger.row_digests import RowsDigest, add_up, digest_of
from lance_stream.spark.jobs.arrow_jobs import (
    RECORDS_PER_BATCH,
    ArrowFunction,
    Size,
    collect_arrow,
    driver_is_alone,
    map_in_arrow,
    settings,
)
from lance_stream.spark.sink.reports import SinkCommit
from lance_stream.table.fragments.fragment import Fragment, decode_fragment, encode_fragment
from lance_stream.write.fragments import WriteTarget, delete_files, write_fragments
from lance_stream.write.row_checks import BadRows, CheckedBatches, RowRules

BYTES_PER_TASK: Final = 32 << 20
"""Less data is not worth a second task: each task costs a round trip through Python."""

SMALL_BATCH_ROWS: Final = 125_000
"""The driver writes a batch only if the previous one had at most this many rows, and ..."""

SMALL_BATCH_BYTES: Final = 16 << 20
"""... at most this many bytes in data files."""

SMALL_FIRST_BYTES: Final = 8 << 20
"""Without an earlier batch of known size, the driver collects a batch only if Spark estimates at
most this. The estimate is of compressed files, but Spark's own process holds uncompressed rows."""

LARGE_DIGEST_BYTES: Final = 1 << 20
"""The minimum size of a batch whose digest is computed in a separate thread while it is written."""

SLOW_SECONDS: Final = 1.0
"""A longer write is dominated by computing the rows, and needs as many tasks as possible."""

MAX_COLLECTED: Final = Size(num_rows=1_000_000, num_bytes=256 << 20)
"""The most that the driver ever holds of one batch."""


class TaskCount:
    """The number of tasks that write a batch.

    The batches of a stream are similar, so the size of the previous one decides. But the tasks also
    compute the rows. Where that dominates, their number must not be reduced: a batch that takes
    long keeps its partitions, and so do all batches after the first slow one with fewer tasks.

    Attributes:
        num_bytes: Bytes in Arrow of the previous upsert; its data files may be much smaller.
    """

    def __init__(self) -> None:
        self._few_tasks_help = True
        self.num_bytes = 0

    def after(self, last: SinkCommit | None) -> int | None:
        """Return the maximum number of tasks that write a batch; None for one per partition.

        Args:
            last: The outcome of the previous batch.
        """
        if last is None or not last.num_files or not self._few_tasks_help:
            return None
        if last.seconds["write"] > SLOW_SECONDS:
            return None
        return max(1, -(-last.bytes_written // BYTES_PER_TASK))

    def is_for_driver(self, last: SinkCommit | None, df: DataFrame, query: Any) -> bool:
        """Return whether the driver writes a batch: a small one, on the driver's own machine.

        Args:
            last: The outcome of the previous batch.
            df: The batch.
            query: Its streaming query; see `running_query`.
        """
        if last is None or not last.num_files:
            return is_small_by_estimate(df, query)
        return (
            last.rows_in <= SMALL_BATCH_ROWS
            and last.bytes_written <= SMALL_BATCH_BYTES
            and driver_is_alone(df.sparkSession)
        )

    def add_batch(self, num_tasks: int | None, seconds: float) -> None:
        """Record how long a batch took with this number of tasks."""
        if num_tasks is not None and seconds > SLOW_SECONDS:
            self._few_tasks_help = False


def is_small_by_estimate(df: DataFrame, query: Any) -> bool:
    """Return whether the driver may collect a batch although no earlier batch shows its size.

    Python workers then need not be started, which takes longer than all other work on a small
    batch. A cluster needs them anyway. Spark's estimate is used only for the batches of a stream
    without user-defined functions, which can return rows of any size.

    Args:
        df: The batch.
        query: Its streaming query; see `running_query`.
    """
    if query is None or not driver_is_alone(df.sparkSession):
        return False
    with suppress(Exception):  # none of this is a public interface of Spark's
        java: Any = df.sparkSession._jvm
        patterns = java.org.apache.spark.sql.catalyst.trees.TreePattern
        for plan in (df._jdf.queryExecution().analyzed(), query.logicalPlan()):
            if any(plan.containsPattern(getattr(patterns, name)()) for name in _WIDENING):
                return False
        size = df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
        return int(size) <= SMALL_FIRST_BYTES  # the largest number of Java's if it is unknown
    return False


_WIDENING: Final = ("PYTHON_UDF", "SCALA_UDF", "GENERATE")
"""What a plan may contain that makes rows larger, or more, than Spark can estimate."""


@dataclass(frozen=True)
class WrittenBatch:
    """The files and the digest of a batch's rows.

    Attributes:
        fragments: Its data files, which no version names yet.
        digest: The digest of its rows, as Spark delivered them.
        bad: Those of its rows that were not written; see `RowRules`.
    """

    fragments: list[Fragment]
    digest: RowsDigest
    bad: BadRows = field(default_factory=BadRows)


def write_batch(
    df: DataFrame,
    target: WriteTarget,
    num_tasks: int | None,
    rules: RowRules | None = None,
    helpers: Collection[str] = (),
) -> WrittenBatch:
    """Write the rows of a batch to data files that no version names yet, in Spark's tasks.

    Args:
        df: The batch.
        target: The destination of the files.
        num_tasks: The maximum number of tasks; None for one per partition.
        rules: What each row is checked for; None if all rows are written.
        helpers: Columns of the batch that only the rules need; not part of the digest.

    Raises:
        InvalidInputError: A value does not fit the table; no file is left behind.
    """
    if num_tasks is not None:
        df = df.coalesce(num_tasks)
    with settings(df.sparkSession, RECORDS_PER_BATCH):
        rows = map_in_arrow(df, _writing(target, rules, helpers), _OUTCOME).collect()
    fragments = [decode_fragment(bytes(row.fragment)) for row in rows if row.fragment]
    for row in rows:
        if row.error is not None:
            delete_files(target.store, fragments)
            raise pickle.loads(row.error)
    digests = [RowsDigest.parse(row.rows, row.digest) for row in rows if row.digest]
    bad = BadRows()
    try:
        for row in rows:
            bad.add_encoded(bytes(row.bad or b""))
    except InvalidInputError:
        delete_files(target.store, fragments)
        raise
    return WrittenBatch(fragments, add_up(digests), bad)


def write_collected(
    df: DataFrame,
    target: WriteTarget,
    rules: RowRules | None = None,
    helpers: Collection[str] = (),
) -> WrittenBatch | None:
    """Write the rows of a batch in the driver; return None if it cannot collect them all.

    Args:
        df: The batch.
        target: The destination of the files.
        rules: What each row is checked for; None if all rows are written.
        helpers: Columns of the batch that only the rules need; not part of the digest.

    Raises:
        InvalidInputError: A value does not fit the table; no file is left behind.
    """
    rows = collect_rows(df)
    if rows is None:
        return None
    if rules is None and rows.nbytes >= LARGE_DIGEST_BYTES:
        with ThreadPoolExecutor(1, thread_name_prefix="lance-stream-digest") as thread:
            digest = thread.submit(digest_of, rows)
            return WrittenBatch(write_fragments(rows.to_batches(), target), digest.result())
    read = CheckedBatches(rows.to_batches(), rules, helpers)
    return WrittenBatch(write_fragments(read, target), read.digest, read.bad)


def collect_rows(df: DataFrame, limit: Size = MAX_COLLECTED) -> pa.Table | None:
    """Return the rows of a batch; None if they exceed the limit.

    Args:
        df: The batch.
        limit: The most that the driver holds; Spark's own limit (`spark.driver.maxResultSize`) also
            applies.
    """
    try:
        return collect_arrow(df, limit)
    except Py4JJavaError as error:
        if "spark.driver.maxResultSize" in str(error):
            return None
        raise


_OUTCOME: Final = StructType(
    [
        StructField("fragment", BinaryType()),
        StructField("rows", LongType()),
        StructField("digest", StringType()),
        StructField("bad", BinaryType()),
        StructField("error", BinaryType()),
    ]
)
_OUTCOME_SCHEMA: Final = pa.schema(
    [
        ("fragment", pa.binary()),
        ("rows", pa.int64()),
        ("digest", pa.string()),
        ("bad", pa.binary()),
        ("error", pa.binary()),
    ]
)


def _writing(
    target: WriteTarget, rules: RowRules | None, helpers: Collection[str]
) -> ArrowFunction:
    """Return the function that writes one partition in a worker.

    It returns a row per file, and one with the digest of the partition's rows, and the bad ones.

    An error of lance-stream is also returned as a row: a second attempt of the task would fail the
    same way, and the driver can raise the original error. Spark handles all other errors.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            read = CheckedBatches(batches, rules, helpers)
            fragments = write_fragments(read, target)
            rows: list[dict[str, Any]] = [
                {"fragment": encode_fragment(fragment)} for fragment in fragments
            ]
            digest, bad = read.digest, read.bad.encode()
            rows.append({"rows": digest.num_rows, "digest": digest.text, "bad": bad})
        except LanceStreamError as error:
            error.add_note("while a Spark task wrote its part of a batch; nothing was committed")
            rows = [{"error": pickle.dumps(error)}]
        yield pa.RecordBatch.from_pylist(rows, schema=_OUTCOME_SCHEMA)

    return write
