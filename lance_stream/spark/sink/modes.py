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

from lance_stream.errors import LanceStreamError
from lance_stream.ledger.row_digests import NO_ROWS
from lance_stream.read.scan import count_rows
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import Size, quoted
from lance_stream.spark.jobs.spark_workers import workers_of
from lance_stream.spark.sink.bad_rows import RowSorter, row_sorter
from lance_stream.spark.sink.batch import Batch
from lance_stream.spark.sink.batch_writing import (
    WrittenBatch,
    collect_rows,
    is_small_by_estimate,
    write_batch,
    write_collected,
)
from lance_stream.spark.sink.reports import SinkCommit, size_of_files
from lance_stream.spark.sink.staged_upserts import upsert_by_staging
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.rules import UpsertRules
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


def append(batch: Batch, table: TableVersion) -> SinkCommit:
    """Append the rows to the table."""
    sorter = row_sorter(batch, table)
    written = _write(batch, table, sorter)
    if not written.fragments and not written.bad:
        return sorter.publish(batch.outcome)
    with batch.phases("commit"):
        result = append_fragments(table, written.fragments, sorter.pending, even_without_rows=True)
    return sorter.publish(_committed(batch.outcome, result, written.fragments))


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


def overwrite(batch: Batch, table: TableVersion) -> SinkCommit:
    """Replace all rows of the table."""
    sorter = row_sorter(batch, table)
    written = _write(batch, table, sorter)
    num_before = count_rows(table)
    if not written.fragments and not num_before and not written.bad:
        return sorter.publish(batch.outcome)
    with batch.phases("commit"):
        result = overwrite_fragments(table, written.fragments, None, sorter.pending)
    commit = sorter.publish(_committed(batch.outcome, result, written.fragments))
    return replace(commit, rows_deleted=num_before) if result.is_new else commit


def _write(batch: Batch, table: TableVersion, sorter: RowSorter) -> WrittenBatch:
    """Write the rows to files; if some are bad, refuse the batch, or stage them."""
    df, rules, helpers = batch.stored(), sorter.rules, frozenset[str]()
    if rules is not None:
        helpers = rules.checked_columns - {*df.columns}
        names = (*df.columns, *(name for name in batch.df.columns if name in helpers))
        df = batch.df.select(*[batch.df[quoted(name)] for name in names])
    target, written = write_target(table), None
    if batch.tasks.is_for_driver(batch.last, df, batch.query):
        with batch.phases("write"):
            written = write_collected(df, target, rules, helpers)
    if written is None:
        num_tasks = batch.tasks.after(batch.last)
        with batch.phases("write"):
            written = write_batch(df, target, num_tasks, rules, helpers)
        batch.tasks.add_batch(num_tasks, batch.phases.seconds["write"])
    try:
        sorter.refuse_or_stage(written.bad, written.digest)
    except LanceStreamError:
        delete_files(table.store, written.fragments)
        raise
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


def upsert_batch(batch: Batch, table: TableVersion) -> SinkCommit:
    """Update or delete the rows whose keys exist, and insert the others."""
    columns = batch.df.columns
    deletes = None if batch.arguments.delete_when is None else DELETES
    helpers = () if deletes is None else (deletes,)
    condition = None if deletes is None else f"{deletes} = true"
    batch = replace(batch, df=batch.with_deletes())
    rules = batch.arguments.upsert_rules(columns, condition, helpers)
    sorter = row_sorter(batch, table, deletes)
    rows = None
    if _may_be_collected(batch):
        with batch.phases("collect"):
            rows = collect_rows(batch.df, Size(MAX_ROWS_ON_DRIVER, MAX_BYTES_ON_DRIVER))
    if rows is None:
        result = upsert_by_staging(batch, table, rules, helpers, sorter)
    elif rows.num_rows:
        result = _upsert_collected(batch, table, rows, rules, helpers, sorter)
    else:
        return sorter.publish(batch.outcome)
    commit = _upserted(batch.outcome, result)
    if sorter.pending.quarantined and not result.is_new and not commit.skipped:
        # No good row has changed anything, but the ledger has to name the bad ones.
        recorded = append_fragments(table, [], sorter.pending, even_without_rows=True)
        skipped = not recorded.is_new
        version = recorded.already_committed_in if skipped else recorded.table.version
        commit = replace(commit, version=version, skipped=skipped)
    return sorter.publish(commit)


def _upsert_collected(
    batch: Batch,
    table: TableVersion,
    rows: pa.Table,
    rules: UpsertRules,
    helpers: Sequence[str],
    sorter: RowSorter,
) -> UpsertResult:
    """Upsert rows that the driver has collected; see `upsert_by_staging` for the arguments."""
    batch.tasks.num_bytes = rows.nbytes
    read = CheckedBatches(rows.to_batches(), sorter.rules, helpers)
    rows = pa.Table.from_batches(list(read), rows.schema)
    sorter.refuse_or_stage(read.bad, read.digest)
    if not rows.num_rows:
        return UpsertResult(table)
    return upsert(
        table,
        rows,
        rules,
        sorter.pending,
        is_current=True,
        workers=workers_of(batch.df.sparkSession),
        phases=batch.phases,
    )


def _may_be_collected(batch: Batch) -> bool:
    """Return whether the driver tries to collect an upsert; it stops if the limit is exceeded.

    Collecting a large batch would be wasted work, and could exceed the memory of Spark's JVM, which
    holds what tasks return. Staging a small one only costs the start of Python workers. So a batch
    is collected if the previous one was small; without one, if Spark estimates that it is.
    """
    last = batch.last
    if last is None or last.skipped or not last.rows_in:
        return is_small_by_estimate(batch.df, batch.query)
    num_bytes = max(last.bytes_written, batch.tasks.num_bytes)
    return 2 * last.rows_in <= MAX_ROWS_ON_DRIVER and 2 * num_bytes <= MAX_BYTES_ON_DRIVER


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


MODES: Mapping[str, Callable[[Batch, TableVersion], SinkCommit]] = MappingProxyType(
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
