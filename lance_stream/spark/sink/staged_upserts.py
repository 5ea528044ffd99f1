"""Upserts that are too large to be collected, or of unknown size: tasks stage the rows.

    tasks      sort their rows by a word of the key, and write them to files, as the format does
               (`upsert.large.staged_rows`); few rows stay in their results
    driver     few rows: upserts them itself. More: divides them into ranges of words
    threads    look up the keys of a range, decide, and write its rows; or, on a cluster,
    or tasks   tasks do (`range_tasks`)
    driver     commits once

So the batch is computed once, however large it is and however often it is planned again. The keys
of the table are looked up in its index, or read once.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from lance_stream.errors import LanceStreamError
from lance_stream.ledger.row_digests import add_up
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import (
    RECORDS_PER_BATCH,
    ArrowFunction,
    driver_is_alone,
    map_in_arrow,
    settings,
)
from lance_stream.spark.jobs.range_tasks import RangeTasks, seed_of_index
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.sink.bad_rows import RowSorter
from lance_stream.spark.sink.batch import Batch
from lance_stream.storage.store import Store
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.large.staged_rows import (
    RANGE_THREADS,
    StagedRows,
    discard_staged,
    stage_rows,
    upsert_staged,
)
from lance_stream.upsert.rules import UpsertRules
from lance_stream.write.row_checks import BadRows, CheckedBatches, RowRules

_OUTCOME: Final = StructType(
    [
        StructField("staged", BinaryType()),
        StructField("bad", BinaryType()),
        StructField("error", BinaryType()),
    ]
)
_OUTCOME_SCHEMA: Final = pa.schema([(name, pa.binary()) for name in ("staged", "bad", "error")])


def upsert_by_staging(
    batch: Batch,
    table: TableVersion,
    rules: UpsertRules,
    helpers: tuple[str, ...],
    sorter: RowSorter,
) -> UpsertResult:
    """Run an upsert of any size; `upsert.upsert.upsert` runs one whose rows are collected.

    Args:
        batch: The batch; its rows are computed once. If it is already committed, nothing is done.
        table: Any version; the newest one is changed.
        rules: The user's rules for the upsert.
        helpers: Columns of the batch that are not part of the rows' digest.
        sorter: Sorts out bad rows.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: The commit failed, or its outcome is unknown.
    """
    df = batch.df
    is_alone = driver_is_alone(df.sparkSession)
    with batch.phases("collect"):
        seed = 0 if is_alone else seed_of_index(table, rules.on)
        stage = _staging(table.store, table.arrow_schema, rules, sorter.rules, helpers, seed)
        with settings(df.sparkSession, RECORDS_PER_BATCH):
            rows = map_in_arrow(df, stage, _OUTCOME).collect()
    outcomes = [pickle.loads(row.staged) for row in rows if row.staged is not None]
    staged: list[StagedRows] = [task_rows for task_rows, _ in outcomes]
    try:
        for row in rows:
            if row.error is not None:
                raise pickle.loads(row.error)
        bad = BadRows()
        for row in rows:
            bad.add_encoded(bytes(row.bad or b""))
        digest = add_up(digest for _, digest in outcomes)
        sorter.refuse_or_stage(bad, digest)
        # Only this column: a helper column may have a type that cannot be stored.
        ordering = [field for field in to_nullable(df.schema) if field.name == rules.sequence_by]
        sequence = stored_schema(StructType(ordering)).field(0).type if ordering else None
        result = upsert_staged(
            table,
            staged,
            rules,
            df.columns,
            sequence,
            sorter.pending,
            phases=batch.phases,
            workers=RANGE_THREADS if is_alone else RangeTasks(df.sparkSession),
        )
    finally:
        discard_staged(table.store, staged)
    batch.tasks.num_bytes = sum(task_rows.num_bytes for task_rows in staged)
    return result


def _staging(
    store: Store,
    schema: pa.Schema,
    rules: UpsertRules,
    checks: RowRules | None,
    helpers: tuple[str, ...],
    seed: int,
) -> ArrowFunction:
    """Return the function that stages the rows of one partition in a worker.

    It returns a row with what was staged, and the bad rows. An error of lance-stream is also
    returned as a row: a second attempt of the task would fail the same way, and the driver can
    raise the original error.

    Args:
        store: The table's store.
        schema: The table's columns.
        rules: The user's rules for the upsert.
        checks: What each row is checked for; None for nothing.
        helpers: Columns that are not part of the rows' digest.
        seed: The seed of the words by which rows are sorted.
    """

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        read = CheckedBatches(batches, checks, helpers)
        try:
            staged = stage_rows(read, store, schema, rules, task=task, seed=seed)
        except LanceStreamError as error:
            error.add_note("while a Spark task read its part of an upsert; nothing was committed")
            yield _row(error=pickle.dumps(error))
            return
        yield _row(staged=pickle.dumps((staged, read.digest)), bad=read.bad.encode())

    return stage


def _row(**values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values], schema=_OUTCOME_SCHEMA)
