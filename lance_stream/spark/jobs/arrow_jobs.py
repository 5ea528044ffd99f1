"""Runs a function over a DataFrame's Arrow batches in Spark.

Spark's public API is `DataFrame.mapInArrow`. It requires pandas on the driver, only to check the
version of something it then does not use; calls that are not public build the same plan without it.
If they fail (Spark Connect, a future Spark, one of a vendor), the public API is used.

Spark's `DataFrame.toArrow` brings any number of rows to the driver, up to a limit of the whole
session. `collect_arrow` has its own limits: it counts batches as they arrive, and cancels the job
when they exceed the limit. That also needs calls that are not public; if they are missing, tasks
measure the rows first.
"""

import pickle
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from pyspark.sql.udf import UserDefinedFunction

from lance_stream.errors import LanceStreamError
from lance_stream.schema.column_paths import quote_path
from lance_stream.spark.session.worker_archives import forgetting_archives
from lance_stream.spark.versions import (
    PythonEvalType,
    local_connect_and_auth,
    plan_map_in_arrow,
    to_arrow,
)

RECORDS_PER_BATCH: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "64MB",
}
"""Rows per Arrow batch sent to Python: fewer and larger batches than Spark's default of 10,000; and
fewer of wide rows. Spark's workers heed both, and `DataFrame.toArrow` the first only."""

MAX_BYTES_IN_PLAN: Final = 4 << 20
"""The most Arrow bytes of rows that `create_frame` lets Spark copy into its plan."""

MIN_PARTITION_BYTES: Final = 1 << 20
"""Above that, a partition of `create_frame` has at least about so many bytes."""

T = TypeVar("T")
R = TypeVar("R")


ArrowFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Runs in a worker, once per task: maps the batches of one partition to other batches."""


def map_in_arrow(df: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """Return the DataFrame of a function's results for each partition's batches.

    Args:
        df: The source of the batches.
        function: Pickled to the workers; its batches are matched with the schema by position.
        schema: Columns of the result.
    """
    try:
        udf = UserDefinedFunction(
            forgetting_archives(function),
            returnType=schema,
            evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        )
        return plan_map_in_arrow(df, udf, [df[quoted(name)] for name in df.columns])
    except (AttributeError, Py4JError):
        return df.mapInArrow(function, schema)


def create_frame(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return a DataFrame of Arrow rows in memory; their order is kept.

    Spark copies a few rows into its plan: it then knows their size, so that a join can broadcast
    them, and it answers small actions without a job. It decodes them here, though, and encodes them
    again for every job, which takes several times as long as passing on Arrow data. So more than
    `MAX_BYTES_IN_PLAN` stay Arrow data, which the JVM's tasks decode: one partition per slot, and
    more only for very many rows.

    Args:
        spark: The session.
        rows: At least one.
        schema: The columns.
    """
    if rows.nbytes <= MAX_BYTES_IN_PLAN:
        return spark.createDataFrame(rows, schema)
    num_partitions = min(slots_of(spark) or 1, -(-rows.nbytes // MIN_PARTITION_BYTES))
    batches = rows.combine_chunks().to_batches(-(-rows.num_rows // num_partitions))
    with settings(spark, {**RECORDS_PER_BATCH, _LOCAL_RELATION_BYTES: "0"}):
        return spark.createDataFrame(pa.Table.from_batches(batches), schema)


_LOCAL_RELATION_BYTES: Final = "spark.sql.execution.arrow.localRelationThreshold"


class Size(NamedTuple):
    """The size of a DataFrame.

    Attributes:
        num_rows: Its rows.
        num_bytes: Bytes of its rows in Arrow.
    """

    num_rows: int
    num_bytes: int


def measure(df: DataFrame) -> Size:
    """Return the size of a DataFrame; tasks compute its rows and measure them."""

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"num_rows": [batch.num_rows], "num_bytes": [batch.nbytes]}
            )

    with settings(df.sparkSession, RECORDS_PER_BATCH):
        rows = map_in_arrow(df, sizes, _SIZES).collect()
    return Size(sum(row.num_rows for row in rows), sum(row.num_bytes for row in rows))


_SIZES = StructType([StructField("num_rows", LongType()), StructField("num_bytes", LongType())])


def collect_arrow(df: DataFrame, limit: Size) -> pa.Table | None:
    """Return the rows of a DataFrame; None if they exceed a limit.

    Args:
        df: The DataFrame; computed once, and not beyond the limit.
        limit: Maximum rows and bytes to collect.

    Raises:
        Py4JJavaError: As for any action; also if the rows exceed the session's
            `spark.driver.maxResultSize`.
    """
    tag = f"lance-stream-{uuid4()}"
    try:
        from pyspark.errors.exceptions.captured import unwrap_spark_exception

        java, context = df._jdf, df.sparkSession.sparkContext
        context.addJobTag(tag)
        try:
            answer = java.collectAsArrowToPython()
            port, secret, server = (answer[index] for index in range(3))  # half of the round trips
        finally:
            context.removeJobTag(tag)
    except (ImportError, AttributeError):
        size = measure(df)
        if size.num_rows > limit.num_rows or size.num_bytes > limit.num_bytes:
            return None
        return to_arrow(df)
    file, connection = local_connect_and_auth(port, secret)
    try:
        connection.settimeout(None)
        rows = _read_within(file, limit)
        if rows is None:
            context.cancelJobsWithTag(tag)
            return None
    except pa.ArrowInvalid:  # a broken stream: Spark has failed, and its error is the cause
        with unwrap_spark_exception():
            server.getResult()
        raise
    finally:
        file.close()
        connection.close()
    with unwrap_spark_exception():
        server.getResult()
    return rows


def _read_within(stream: BinaryIO, limit: Size) -> pa.Table | None:
    """Read Spark's stream: batches as they are computed, followed by their order."""
    batches: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    reader = pa.ipc.open_stream(stream)
    for batch in reader:
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        if num_rows > limit.num_rows or num_bytes > limit.num_bytes:
            return None
        batches.append(batch)
    count = int.from_bytes(stream.read(4), "big", signed=True)
    if count < 0:  # the job failed; its server raises the error
        return reader.schema.empty_table()
    order = struct.unpack(f">{count}i", stream.read(4 * count))
    return pa.Table.from_batches([batches[index] for index in order], reader.schema)


def run_in_tasks(spark: SparkSession, items: Sequence[T], function: Callable[[T], R]) -> list[R]:
    """Return a function's result for each item, in order; each item is a task.

    Args:
        spark: The session.
        items: Pickled to the workers.
        function: Pickled to the workers; its results are pickled, too. Our errors that it raises
            are raised here; Spark handles all others.
    """
    if not items:
        return []
    pickled = [pickle.dumps(item) for item in items]

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                try:
                    result = pickle.dumps((True, function(pickle.loads(pickled[index]))))
                except LanceStreamError as error:
                    result = pickle.dumps((False, error))
                yield pa.RecordBatch.from_pydict({"item": [index], "result": [result]})

    frame = spark.range(0, len(items), 1, len(items))
    rows = map_in_arrow(frame, work, _RESULTS).collect()
    results: list[R] = []
    for row in sorted(rows, key=lambda row: row.item):
        is_good, result = pickle.loads(row.result)
        if not is_good:
            raise result
        results.append(result)
    return results


_RESULTS = StructType([StructField("item", LongType()), StructField("result", BinaryType())])


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs that the calling thread starts in the body, for Spark's UI.

    Args:
        spark: The session. Through Spark Connect there is nothing to describe them with.
        text: The description.
    """
    context = getattr(spark, "_sc", None)  # Spark Connect has no context, and raises if asked
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


_DESCRIPTION: Final = "spark.job.description"


def slots_of(spark: SparkSession) -> int | None:
    """Return how many tasks of a session run at once; None if unknown, as in Spark Connect."""
    with suppress(Exception):  # Spark Connect has no SparkContext, and raises various errors
        return max(1, spark.sparkContext.defaultParallelism)
    return None


def driver_is_alone(spark: SparkSession | None) -> bool:
    """Return whether the driver is the only machine, because the master is local."""
    if spark is None:
        return False
    with suppress(Exception):  # Spark Connect has no SparkContext, and raises various errors
        return (spark.sparkContext.master or "").split("[")[0] == "local"
    return False


def quoted(name: str) -> str:
    """Return a column's name as Spark's expressions name it."""
    return quote_path((name,))  # unquoted, a dot would be a path into a struct


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set a session's SQL settings temporarily, and restore the previous values.

    If several threads do so in one session, the first one sets and the last one restores them.

    Args:
        spark: The session.
        values: By name; a setting has the same value in all calls.
    """
    session = _identity_of(spark)
    with _SETTINGS_LOCK:
        for name, value in values.items():
            if not _USERS[session, name]:
                _BEFORE[session, name] = spark.conf.get(name, None)
                spark.conf.set(name, value)
            _USERS[session, name] += 1
    try:
        yield
    finally:
        with _SETTINGS_LOCK:
            for name in values:
                _USERS[session, name] -= 1
                if not _USERS[session, name]:
                    del _USERS[session, name]
                    _restore_setting(spark, name, _BEFORE.pop((session, name)))


_SETTINGS_LOCK: Final = threading.Lock()
_USERS: Final[Counter[tuple[str, str]]] = Counter()
_BEFORE: Final[dict[tuple[str, str], str | None]] = {}
"""How many threads currently override a session's setting, and its previous value."""


def _identity_of(spark: SparkSession) -> str:
    """Return the same identifier for all Python objects of one session."""
    with suppress(Exception):  # not a public interface, and missing in Spark Connect
        return str(spark._jsparkSession.sessionUUID())
    return str(getattr(spark, "session_id", id(spark)))


def _restore_setting(spark: SparkSession, name: str, value: str | None) -> None:
    if value is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)
