"""Upserts that are too large to be collected, on a local master: tasks stage the rows.

    tasks        divide their rows by the hash of the key, and write them to files, as the format
                 does (`upsert.staged_rows`); few rows stay in their results
    the driver   looks up the rows of some parts at a time, writes them, and commits once

The batch is computed once, however large it is and however often it is planned again, and the keys
of the table are looked up in the index, or read once. On a cluster, tasks do all of this
(`large_upserts`).
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from lance_stream.errors import LanceStreamError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arrow_jobs import RECORDS_PER_BATCH, ArrowFunction, map_in_arrow, settings
from lance_stream.spark.sink.bad_rows import Sorting
from lance_stream.spark.spark_types import stored_schema
from lance_stream.storage.store import Store
from lance_stream.upsert.attempts import Upserted
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.staged_rows import StagedRows, discard_staged, stage_rows, upsert_staged
from lance_stream.write.micro_batches import MicroBatch
from lance_stream.write.phases import Phases
from lance_stream.write.row_checks import BadRows, CheckedBatches, RowRules
from lance_stream.write.row_digests import DigestingBatches, RowsDigest, add_up

_OUTCOME: Final = StructType(
    [
        StructField("staged", BinaryType()),
        StructField("bad", BinaryType()),
        StructField("error", BinaryType()),
    ]
)
_OUTCOME_SCHEMA: Final = pa.schema([(name, pa.binary()) for name in ("staged", "bad", "error")])


def upsert_by_staging(
    df: DataFrame,
    table: TableVersion,
    rules: UpsertRules,
    micro_batch: MicroBatch,
    phases: Phases,
    helpers: Sequence[str] = (),
    sorting: Sorting | None = None,
) -> Upserted:
    """Run an upsert of any size; `upsert.upsert.upsert` runs one whose rows are collected.

    Args:
        df: The rows; computed once.
        table: Any version; the newest one is changed.
        rules: The user's rules for the upsert.
        micro_batch: The identity of the micro-batch. If it is already committed, nothing is done.
        phases: Records the duration of "collect", "write" (with the look-up of keys) and "commit".
        helpers: Columns that are not part of the rows' digest.
        sorting: Sorts out bad rows; None if rows are not checked.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: The commit failed, or its outcome is unknown.
    """
    checks = None if sorting is None else sorting.rules(table)
    with phases("collect"):
        outcomes = _stage(df, table, rules, checks, helpers)
    staged = [each[0] for each in outcomes if isinstance(each, tuple)]
    try:
        for each in outcomes:
            if isinstance(each, LanceStreamError):
                raise each
        digest = add_up(each[1] for each in outcomes if isinstance(each, tuple))
        identity = replace(micro_batch, digest=digest)
        if sorting is not None:
            bad = BadRows()
            for each in outcomes:
                if isinstance(each, bytes):
                    bad.add_encoded(each)
            sorting.settle(bad, digest.num_rows)
            identity = sorting.identity(digest)
        # Only this column: a helper column may have a type that cannot be stored.
        ordering = [each for each in df.schema.toNullable() if each.name == rules.sequence_by]
        sequence = stored_schema(StructType(ordering)).field(0).type if ordering else None
        return upsert_staged(table, staged, rules, df.columns, sequence, identity, phases=phases)
    finally:
        discard_staged(table.store, staged)


def _stage(
    df: DataFrame,
    table: TableVersion,
    rules: UpsertRules,
    checks: RowRules | None,
    helpers: Sequence[str],
) -> list[tuple[StagedRows, RowsDigest] | bytes | LanceStreamError]:
    """Return what tasks have staged, with the digest of all their rows; bad rows; and errors."""
    staging = _staging(table.store, table.arrow_schema, rules, checks, tuple(helpers))
    with settings(df.sparkSession, RECORDS_PER_BATCH):
        rows = map_in_arrow(df, staging, _OUTCOME).collect()
    return [
        bytes(row.bad) if row.bad is not None else pickle.loads(row.error or row.staged)
        for row in rows
    ]


def _staging(
    store: Store,
    schema: pa.Schema,
    rules: UpsertRules,
    checks: RowRules | None,
    helpers: tuple[str, ...],
) -> ArrowFunction:
    """Return the function of a task that keeps its rows for the driver.

    An error of lance-stream is returned as a row: a second attempt of the task would fail the same
    way, and the driver can raise the original error.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        checked = None
        if checks is not None:
            batches = checked = CheckedBatches(batches, checks, helpers, digests_good=False)
        good = DigestingBatches(batches, helpers)
        try:
            staged = stage_rows(good, store, schema, rules, task=task)
        except LanceStreamError as error:
            error.add_note("while a Spark task read its part of an upsert; nothing was committed")
            yield _row(error=pickle.dumps(error))
            return
        digest = good.digest
        if checked is not None:
            digest += checked.digest
            if checked.bad:
                yield _row(bad=checked.bad.encode())
        yield _row(staged=pickle.dumps((staged, digest)))

    return run


def _row(**values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values], schema=_OUTCOME_SCHEMA)
