"""The modes of the sink: append, overwrite, or upsert by key.

Each mode gets a table that has the batch's columns, and returns the outcome of the batch. Spark's
tasks, or the driver, write the rows of an append or an overwrite (see `batch_writing`). The rows of
an upsert are collected up to the driver's limit: they are few compared to the table, whose keys are
looked up where its files are read (`spark_workers`). Larger batches, and the first one of a run
unless Spark estimates it as small, go through `staged_upserts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StructType

from lance_stream.commit.commit_groups import Member
from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.ledger.first_batch import check_may_create
from lance_stream.ledger.messages import lost_table
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import NO_ROWS, digest_of
from lance_stream.read.scan import count_rows
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.jobs.arrow_jobs import Size, quoted
from lance_stream.spark.jobs.spark_workers import workers_of
from lance_stream.spark.session.session_settings import is_case_sensitive
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.sink.bad_rows import RowSorter, row_sorter
from lance_stream.spark.sink.batch_writing import (
    Checks,
    TaskCount,
    WrittenBatch,
    collect_rows,
    is_small_by_estimate,
    write_batch,
    write_collected,
)
from lance_stream.spark.sink.reports import SinkCommit, size_of_files
from lance_stream.spark.sink.staged_upserts import upsert_by_staging
from lance_stream.spark.writer.bad_row_rules import publish_bad_rows
from lance_stream.spark.writer.batch_types import check_compared, check_readable, is_condition
from lance_stream.spark.writer.new_tables import new_table_schema
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.change_feeds import check_has_changes
from lance_stream.upsert.change_rules import check_has_sequence, history_schema
from lance_stream.upsert.histories.shadowed_events import check_has_history, check_history_names
from lance_stream.upsert.rules import END_AT, START_AT
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.columns.fit_columns import fit_columns
from lance_stream.verbs.columns.widen_columns import widen_columns
from lance_stream.verbs.create import check_column_types, plan_table
from lance_stream.verbs.overwrite import overwrite_fragments
from lance_stream.write.casting import check_castable
from lance_stream.write.fragments import delete_files, write_target
from lance_stream.write.phases import Phases
from lance_stream.write.planning import Outcome
from lance_stream.write.row_checks import CheckedBatches

MAX_ROWS_ON_DRIVER: Final = 1_000_000
"""The driver collects an upsert of at most this many rows, ..."""

MAX_BYTES_ON_DRIVER: Final = 256 << 20
"""... and this many bytes; see `staged_upserts` for larger ones."""


@dataclass(frozen=True)
class Batch:
    """A batch that is being written to the table.

    Attributes:
        df: Its rows.
        query: Its streaming query; see `running_query`.
        pending: Its identity, and what is known of its rows.
        arguments: The sink's arguments.
        phases: Records the duration of each phase.
        last: The outcome of the previous batch, if any.
        tasks: Chooses the number of tasks that write.
        member: Publishes its version together with those of other tables; None for it alone.
    """

    df: DataFrame
    query: Any
    pending: PendingBatch
    arguments: WriterArguments
    phases: Phases
    last: SinkCommit | None
    tasks: TaskCount
    member: Member | None = None

    def prepare_table(self, table: TableVersion | None) -> TableVersion | None:
        """Return the table with the batch's columns; None if there is neither a table nor a row.

        A table that does not exist is version 0 of the one that the batch creates.

        Args:
            table: The newest version; None if there is no table.

        Raises:
            InvalidInputError: The columns do not fit.
            NotFoundError: The table must have existed before this batch, or have a newer version.
        """
        arguments = self.arguments
        if arguments.mode == "apply_changes":
            check_has_changes(self.df.columns)
        if arguments.is_by_key:
            check_compared(self.df.schema, arguments.on, arguments.sequence_by)
            check_readable(self.df.schema, arguments.not_stored(self.df.columns))
        # Spark calls a column non-null if this plan produces no nulls; the next one may.
        incoming = stored_schema(to_nullable(self.stored().schema))
        if not incoming.names:
            raise InvalidInputError(
                f"the batch has no column to store; it has: {', '.join(self.df.columns) or 'none'}"
            )
        if arguments.keeps_history:
            check_history_names(incoming.names)
        self._check_has_last_batch(table)
        if table is None:
            late_start = arguments.late_start
            check_may_create(arguments.uri, self.pending.batch, late_start=late_start)
            return self._create_for_rows(incoming)
        if arguments.keeps_history:
            check_has_history(table.arrow_schema)
            if "widen_types" in arguments.schema_evolution:
                sequence = self._sequence_type()
                bounds = pa.schema([(START_AT, sequence), (END_AT, sequence)])
                # A type that does not fit is refused later, under the name of the user's column.
                table = widen_columns(table, bounds, may_have_new=True)
        else:
            check_has_sequence(table.arrow_schema, incoming, arguments.sequence_by)
        adds_columns = "add_columns" in arguments.schema_evolution
        return fit_columns(
            table,
            incoming,
            arguments.schema_evolution,
            case_sensitive=adds_columns and is_case_sensitive(self.df.sparkSession),
            key=arguments.on,
        )

    def read(self) -> DataFrame:
        """Return the rows with the columns that the sink reads, and that their digest covers."""
        return self.df if self.arguments.is_by_key else self.stored()

    def joined(self, table: TableVersion) -> TableVersion:
        """Return the table whose next version is published together with those of other tables."""
        if self.member is None:
            return table
        return replace(table, log=self.member.join(table.log))

    def stored(self) -> DataFrame:
        """Return the rows without the columns that are not stored."""
        hidden = self.arguments.not_stored(self.df.columns)
        return self.df.drop(*hidden) if hidden else self.df  # which knows its schema already

    def with_deletes(self) -> DataFrame:
        """Return the rows, with a column that marks deletes.

        Raises:
            InvalidInputError: The condition is invalid.
        """
        condition, argument = self.arguments.delete_when, self.arguments.called("delete_when")
        if condition is None:
            return self.df
        deletes = functions.coalesce(
            functions.expr(condition).cast("boolean"), functions.lit(False)
        )
        try:
            kind = self.df.select(functions.expr(condition)).schema.fields[0].dataType
            marked = self.df.withColumn(DELETES, deletes) if is_condition(kind) else None
        except (AnalysisException, ParseException) as error:
            raise InvalidInputError(
                f"{argument}={condition!r} is not a condition on each of the batch's rows: {error}"
            ) from None
        if marked is None:  # other values would become null
            raise InvalidInputError(
                f"{argument}={condition!r} is {kind.simpleString()}, not a condition; compare it: "
                f"{argument}=\"{condition} = 'd'\""
            )
        return marked

    def _check_has_last_batch(self, table: TableVersion | None) -> None:
        """Raise if the table cannot have the batches that this process committed to it.

        Args:
            table: The newest version; None if there is no table.

        Raises:
            NotFoundError: The table is gone, or older than the version of the last batch.
        """
        last, micro_batch = self.last, self.pending.batch
        if (
            last is not None
            and last.version is not None
            and last.app_id == micro_batch.app_id
            and last.batch_id < micro_batch.batch_id
            and (table is None or table.version < last.version)
        ):
            raise lost_table(self.arguments.uri, micro_batch, last.batch_id, last.version)

    def _create_for_rows(self, incoming: pa.Schema) -> TableVersion | None:
        """Plan the new table; return None if that fails but there is no row that needs the table.

        The rows are not counted first, because that would compute them twice.
        """
        try:
            return self._create(incoming)
        except LanceStreamError:
            if self.df.isEmpty():
                return None
            raise

    def _create(self, incoming: pa.Schema) -> TableVersion:
        """Plan the table that the batch's rows create."""
        arguments = self.arguments
        schema = arguments.schema
        if schema is None:
            schema = new_table_schema(to_nullable(self.stored().schema), arguments.vectors)
            check_column_types(schema)
        # As it is stored: extension types by their storage.
        check_castable(incoming, to_arrow(from_arrow(schema)))
        if arguments.keeps_history:  # in which a key has several rows
            schema = history_schema(schema, self._sequence_type())
        return plan_table(
            arguments.uri,
            schema,
            file_version=arguments.file_version,
            stable_row_ids=arguments.stable_row_ids,
            primary_key=arguments.key_of_new_table,
            config=arguments.config,
            storage_options=arguments.storage_options,
        )

    def _sequence_type(self) -> pa.DataType:
        """Return the type of the sequence, in which a history stores starts and ends."""
        by = self.arguments.sequence_by
        ordering = [field for field in to_nullable(self.df.schema) if field.name == by]
        return stored_schema(StructType(ordering)).field(0).type


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
