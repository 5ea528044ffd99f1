"""The modes of the sink: append, overwrite, or upsert by key.

Each mode gets a table that has the batch's columns, and returns the outcome of the batch. Spark's
tasks, or the driver, write the rows of an append or an overwrite (see `batch_writing`). The rows of
an upsert are collected up to the driver's limit: they are few compared to the table, whose keys are
looked up where its files are read (`spark_workers`). Larger batches, and the first one of a run
unless Spark estimates it as small, go through `staged_upserts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from lance_stream.errors import LanceStreamError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import NO_ROWS, digest_of
from lance_stream.read.scan import count_rows
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import Size, quoted
from lance_stream.spark.jobs.spark_workers import workers_of
from lance_stream.spark.sink.bad_rows import RowSorter, row_sorter
from lance_stream.spark.sink.batch import Batch
from lance_stream.spark.sink.batch_writing import (
    Checks,
    WrittenBatch,
    collect_rows,
    is_small_by_estimate,
    write_batch,
    write_collected,
)
from lance_stream.spark.sink.reports import SinkCommit, size_of_files
from lance_stream.spark.sink.staged_upserts import upsert_by_staging
from lance_stream.spark.writer.bad_row_rules import publish_bad_rows
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.overwrite import overwrite_fragments
from lance_stream.write.fragments import delete_files, write_target
from lance_stream.write.planning import Outcome
from lance_stream.write.row_checks import CheckedBatches

MAX_ROWS_ON_DRIVER: Final = 1_000_000
"""The driver collects an upsert of at most this many rows, ..."""

MAX_BYTES_ON_DRIVER: Final = 256 << 20
"""... and this many bytes; see `staged_upserts` for larger ones."""


def append(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Append the rows to the table."""
    written, sorter = _write(batch, table)
    fragments = written.fragments
    if not fragments and not written.bad:
        return _with_quarantined(commit, sorter)
    with batch.phases("commit"):
        result = _append(table, fragments, _with_rows(batch, written, sorter))
    return _with_quarantined(_committed(commit, result, fragments), sorter)


def _append(table: TableVersion, fragments: Sequence[Fragment], pending: PendingBatch) -> Outcome:
    """Append the files of a batch, or, if all of its rows are bad, its ledger entry alone."""
    if fragments:
        return append_fragments(table, fragments, pending)
    return append_fragments(table, [], pending, even_without_rows=True)


def create_without_rows(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Create the table of a streaming query whose first batch has no row to store.

    Otherwise a later batch could not tell a table that never existed from a deleted one.

    Args:
        batch: The batch; nothing is created if it does not belong to a streaming query.
        table: Version 0 of the table.
        commit: The outcome of the batch so far.
    """
    if not batch.pending.batch.query_id:
        return commit
    pending = batch.pending if commit.rows_in else batch.pending.with_rows(NO_ROWS)
    with batch.phases("commit"):
        result = append_fragments(table, [], pending, even_without_rows=True)
    return replace(_committed(commit, result, ()), rows_in=commit.rows_in, rows_inserted=0)


def overwrite(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Replace all rows of the table."""
    written, sorter = _write(batch, table)
    fragments = written.fragments
    num_before = count_rows(table)
    if not fragments and not num_before and not written.bad:
        return _with_quarantined(commit, sorter)
    pending = _with_rows(batch, written, sorter)
    with batch.phases("commit"):
        result = overwrite_fragments(table, fragments, None, pending)
    committed = _with_quarantined(_committed(commit, result, fragments), sorter)
    return replace(committed, rows_deleted=num_before) if result.is_new else committed


def _write(batch: Batch, table: TableVersion) -> tuple[WrittenBatch, RowSorter | None]:
    """Write the rows; if some are bad, refuse the batch, or stage them."""
    df = batch.stored()
    sorter = row_sorter(batch.arguments, batch.df, batch.pending, table)
    if sorter is None:
        return _write_rows(batch, df, table), None
    rules = sorter.rules(table)
    needed = {check.column_of(column) for check in rules.checks for column in check.columns}
    helpers = tuple(column for column in batch.df.columns if column in needed - {*df.columns})
    df = batch.df.select(*[batch.df[quoted(column)] for column in (*df.columns, *helpers)])
    written = _write_rows(batch, df, table, Checks(rules, helpers))
    try:
        sorter.refuse_or_quarantine(written.bad, written.digest.num_rows)
    except LanceStreamError:
        delete_files(table.store, written.fragments)
        raise
    return written, sorter


def _with_rows(batch: Batch, written: WrittenBatch, sorter: RowSorter | None) -> PendingBatch:
    return (batch.pending if sorter is None else sorter).with_rows(written.digest)


def _with_quarantined(commit: SinkCommit, sorter: RowSorter | None) -> SinkCommit:
    """Return the outcome of a batch with its quarantined rows."""
    if sorter is None:
        return commit
    if commit.skipped:  # another driver's bad rows count
        publish_bad_rows(sorter.arguments, sorter.pending.batch, sorter.target)
        return commit
    sorter.publish()
    counts = sorter.counts or {}
    return replace(
        commit, rows_in=commit.rows_in + sum(counts.values()), rows_quarantined=dict(counts)
    )


def _write_rows(
    batch: Batch, df: DataFrame, table: TableVersion, checks: Checks | None = None
) -> WrittenBatch:
    target = write_target(table)
    if batch.tasks.is_for_driver(batch.last, df, batch.query):
        with batch.phases("write"):
            collected = write_collected(df, target, checks)
        if collected is not None:
            return collected
    num_tasks = batch.tasks.after(batch.last)
    with batch.phases("write"):
        written = write_batch(df, target, num_tasks, checks)
    batch.tasks.add_batch(num_tasks, batch.phases.seconds["write"])
    return written


def _committed(commit: SinkCommit, result: Outcome, fragments: Sequence[Fragment]) -> SinkCommit:
    if not result.is_new:  # another driver was faster
        return replace(commit, version=result.already_committed_in, skipped=True)
    num_files, num_bytes = size_of_files(fragments)
    num_rows = sum(fragment.physical_rows for fragment in fragments)
    return replace(
        commit,
        version=result.table.version,
        rows_in=num_rows,
        rows_inserted=num_rows,
        num_files=num_files,
        bytes_written=num_bytes,
        attempts=result.attempts,
    )


def upsert_batch(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Update or delete the rows whose keys exist, and insert the others."""
    df = batch.with_deletes()
    deletes = None if batch.arguments.delete_when is None else DELETES
    helpers = () if deletes is None else (deletes,)
    condition = None if deletes is None else f"{deletes} = true"
    rules = batch.arguments.upsert_rules(batch.df.columns, condition, helpers)
    sorter = row_sorter(batch.arguments, df, batch.pending, table, deletes)
    if sorter is not None:
        sorter.rules(table)  # refuses invalid ones before the rows are computed
    workers = workers_of(df.sparkSession)
    rows = None
    if _is_first(batch.last):
        is_small = is_small_by_estimate(df, batch.query)
    else:
        is_small = not _follows_large(batch)
    if is_small:
        with batch.phases("collect"):
            rows = _collect(df)
    if rows is None:
        result, size = upsert_by_staging(
            df, table, rules, batch.pending, batch.phases, helpers, sorter
        )
        batch.tasks.num_bytes = size.num_bytes
    elif not rows.num_rows:
        return _with_quarantined(commit, sorter)
    else:
        batch.tasks.num_bytes = rows.nbytes
        digest = digest_of(rows.select(batch.df.columns))
        pending = batch.pending.with_rows(digest)
        if sorter is not None:
            rows = _good_rows(rows, table, sorter)
            pending = sorter.with_rows(digest)
        result = UpsertResult(table)
        if rows.num_rows:
            result = upsert(
                table,
                rows,
                rules,
                pending,
                is_current=True,
                workers=workers,
                phases=batch.phases,
            )
    committed = _upserted(commit, result)
    if sorter is not None and sorter.file and not result.is_new and not committed.skipped:
        # No good row has changed anything, but the ledger has to name the bad ones.
        recorded = _append(table, [], sorter.with_rows(sorter.digest))
        skipped = not recorded.is_new
        version = recorded.already_committed_in if skipped else recorded.table.version
        committed = replace(committed, version=version, skipped=skipped)
    return _with_quarantined(committed, sorter)


def _good_rows(rows: pa.Table, table: TableVersion, sorter: RowSorter) -> pa.Table:
    checked = CheckedBatches(rows.to_batches(), sorter.rules(table), digests_good=False)
    good = list(checked)
    sorter.refuse_or_quarantine(checked.bad, rows.num_rows)
    return pa.Table.from_batches(good, rows.schema) if checked.bad else rows


def _is_first(last: SinkCommit | None) -> bool:
    """Return whether no earlier batch shows how large this one is.

    Collecting a large batch would be wasted work, and could exceed the memory of Spark's JVM, which
    holds what tasks return. Staging a small one only costs the start of Python workers.
    """
    return last is None or last.skipped or not last.rows_in


def _follows_large(batch: Batch) -> bool:
    """Return whether a batch is likely to be large, because the previous one was.

    Other batches are collected at once, until they exceed the limit.
    """
    last = batch.last
    if last is None or last.skipped:
        return False
    num_bytes = max(last.bytes_written, batch.tasks.num_bytes)
    return 2 * last.rows_in > MAX_ROWS_ON_DRIVER or 2 * num_bytes > MAX_BYTES_ON_DRIVER


def _collect(df: DataFrame) -> pa.Table | None:
    """Return the rows of a batch; None if they exceed the driver's limit."""
    return collect_rows(df, Size(MAX_ROWS_ON_DRIVER, MAX_BYTES_ON_DRIVER))


def _upserted(commit: SinkCommit, result: UpsertResult) -> SinkCommit:
    if result.was_already_committed:  # another driver was faster
        return replace(commit, version=result.already_committed_in, skipped=True)
    num_files, num_bytes = size_of_files(result.fragments)
    return replace(
        commit,
        version=result.table.version if result.is_new else None,
        rows_in=result.num_rows,
        rows_inserted=result.num_inserted,
        rows_updated=result.num_updated,
        rows_deleted=result.num_deleted,
        rows_unchanged=result.num_unchanged,
        rows_late=result.num_late,
        rows_ignored=result.num_ignored,
        deletes_remembered=result.num_remembered,
        num_files=num_files,
        bytes_written=num_bytes,
        attempts=result.attempts,
    )


MODES: Mapping[str, Callable[[Batch, TableVersion, SinkCommit], SinkCommit]] = MappingProxyType(
    {
        "append": append,
        "upsert": upsert_batch,
        "apply_changes": upsert_batch,
        "overwrite": overwrite,
        "scd1": upsert_batch,
        "scd2": upsert_batch,
    }
)
"""The function of each mode."""
