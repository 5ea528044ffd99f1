"""What a mode does with a batch: append, upsert, apply changes, overwrite.

Each gets a table that has the batch's columns, and returns what became of the batch. The rows of
an append and an overwrite are written by Spark's tasks, or by the driver (see `batch_writing`).
Those of an upsert are collected, as long as the driver can hold them: they are few beside the
table, whose keys are looked up by whoever reads its files (`spark_workers`). Larger ones go through
`large_upserts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, functions

from lance_stream.dataset.add_columns import add_missing_columns
from lance_stream.dataset.append import append_fragments, write_target
from lance_stream.dataset.casting import check_castable
from lance_stream.dataset.commit_verb import Outcome
from lance_stream.dataset.create import create_table
from lance_stream.dataset.micro_batches import MicroBatch
from lance_stream.dataset.opening import open_table
from lance_stream.dataset.overwrite import overwrite_fragments
from lance_stream.dataset.phases import Phases
from lance_stream.dataset.scan import count_rows
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.upserts.change_feeds import check_has_changes
from lance_stream.dataset.upserts.upsert import Upserted, upsert
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.spark.sink.arguments import SinkArguments
from lance_stream.spark.sink.batch_writing import (
    TaskCount,
    collect_rows,
    write_batch,
    write_collected,
)
from lance_stream.spark.sink.large_upserts import upsert_by_tasks
from lance_stream.spark.sink.reports import SinkCommit, size_of_files
from lance_stream.spark.sink.spark_workers import workers_of
from lance_stream.spark.spark_types import stored_schema
from lance_stream.table.fragments import Fragment

DELETES: Final = "_lance_stream_deletes"
"""A column of an upsert's batch that is not stored: whether the row deletes."""

COLLECTED_ROWS: Final = 1_000_000
"""The driver collects an upsert of so many rows at most; larger ones go through `large_upserts`."""

COLLECTED_BYTES: Final = 256 << 20

SURELY_FEW_ROWS: Final = COLLECTED_ROWS // 8
"""A stream whose last batch had fewer rows is trusted not to come with too many at once."""


@dataclass(frozen=True)
class Batch:
    """A batch on its way into the table.

    Attributes:
        df: Its rows.
        micro_batch: Which one it is.
        arguments: What the user says.
        phases: Told how long each phase takes.
        last: What became of the batch before, if one came.
        tasks: How many tasks write.
    """

    df: DataFrame
    micro_batch: MicroBatch
    arguments: SinkArguments
    phases: Phases
    last: SinkCommit | None
    tasks: TaskCount

    def prepare_table(self, table: TableVersion | None) -> TableVersion | None:
        """Return the table with the batch's columns; None if there is neither table nor row.

        Args:
            table: The newest version; None if there is no table.

        Raises:
            InvalidInputError: A column that is named is not there, or the columns do not fit.
        """
        own = self.arguments
        for name in (*own.except_columns, *own.on, *filter(None, [own.sequence_by])):
            if name not in self.df.columns:
                raise InvalidInputError(
                    f"the batch has no column {name!r}; it has: {', '.join(self.df.columns)}"
                )
        if own.mode == "apply_changes":
            check_has_changes(self.df.columns)
        # Spark calls a column non-null when this plan makes no nulls; the next one may.
        incoming = stored_schema(self.stored().schema.toNullable())
        if table is None:
            return None if self.df.isEmpty() else self._create(incoming)
        if own.schema_evolution == "add_columns":
            table = add_missing_columns(table, incoming)
        _check_fits(incoming, table, is_partial=own.is_by_key)
        return table

    def stored(self) -> DataFrame:
        """Return the rows without the columns that are not stored."""
        return self.df.drop(*self.arguments.not_stored(self.df.columns))

    def with_deletes(self) -> DataFrame:
        """Return the rows, and a column that says whether they delete.

        Raises:
            InvalidInputError: The condition is not understood.
        """
        condition = self.arguments.delete_when
        if condition is None:
            return self.df
        try:
            deletes = functions.coalesce(
                functions.expr(condition).cast("boolean"), functions.lit(False)
            )
            return self.df.withColumn(DELETES, deletes)
        except (AnalysisException, ParseException) as error:
            raise InvalidInputError(
                f"delete_when={condition!r} is no condition on the batch's rows: {error}"
            ) from None

    def _create(self, incoming: pa.Schema) -> TableVersion:
        """Make the table, or open what another writer has made meanwhile."""
        own = self.arguments
        options = dict(own.create_options)
        schema = options.pop("schema", None)
        if schema is None:
            schema = incoming
        check_castable(incoming, schema)
        if own.is_by_key:
            options.setdefault("primary_key", list(own.on))
        try:
            return create_table(
                own.uri,
                schema,
                file_version=own.file_version,
                storage_options=own.storage_options,
                **options,
            )
        except InvalidInputError:
            try:
                return open_table(own.uri, storage_options=own.storage_options)
            except NotFoundError:
                pass
            raise


def _check_fits(incoming: pa.Schema, table: TableVersion, *, is_partial: bool) -> None:
    wanted = table.arrow_schema
    if is_partial:  # columns that do not come keep their values
        wanted = pa.schema([each for each in wanted if each.name in incoming.names])
    check_castable(incoming, wanted)


def append(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Put the rows behind those that are there."""
    fragments = _write(batch, table)
    if not fragments:
        return commit
    with batch.phases("commit"):
        done = append_fragments(table, fragments, batch.micro_batch)
    return _committed(commit, done, fragments)


def overwrite(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Put the rows in place of all that are there."""
    fragments = _write(batch, table)
    num_before = count_rows(table)
    if not fragments and not num_before:
        return commit
    with batch.phases("commit"):
        done = overwrite_fragments(table, fragments, table.schema, batch.micro_batch)
    committed = _committed(commit, done, fragments)
    return replace(committed, rows_deleted=num_before) if done.is_new else committed


def _write(batch: Batch, table: TableVersion) -> list[Fragment]:
    df, target = batch.stored(), write_target(table)
    if batch.tasks.is_for_driver(batch.last, df.sparkSession):
        with batch.phases("write"):
            written = write_collected(df, target)
        if written is not None:
            return written
    num_tasks = batch.tasks.after(batch.last)
    with batch.phases("write"):
        fragments = write_batch(df, target, num_tasks)
    batch.tasks.learn(num_tasks, batch.phases.seconds["write"])
    return fragments


def _committed(commit: SinkCommit, done: Outcome, fragments: Sequence[Fragment]) -> SinkCommit:
    if not done.is_new:  # another driver was faster
        return replace(commit, version=done.taken_in_before, skipped=True)
    num_files, num_bytes = size_of_files(fragments)
    num_rows = sum(each.physical_rows for each in fragments)
    return replace(
        commit,
        version=done.table.version,
        rows_in=num_rows,
        rows_inserted=num_rows,
        num_files=num_files,
        bytes_written=num_bytes,
        attempts=done.attempts,
    )


def upsert_batch(batch: Batch, table: TableVersion, commit: SinkCommit) -> SinkCommit:
    """Change the rows whose keys are there, delete some, and insert the others."""
    df = batch.with_deletes()
    deletes = None if batch.arguments.delete_when is None else DELETES
    rules = batch.arguments.upsert_rules(batch.df.columns, deletes)
    workers = workers_of(df.sparkSession)
    with batch.phases("collect"):
        rows = _collect(df, batch.last)
    if rows is None:
        done = upsert_by_tasks(df, table, rules, batch.micro_batch, batch.phases)
    elif not rows.num_rows:
        return commit
    else:
        done = upsert(table, rows, rules, batch.micro_batch, workers=workers, phases=batch.phases)
    return _upserted(commit, done)


def _collect(df: DataFrame, last: SinkCommit | None) -> pa.Table | None:
    """Return the rows of a batch; None if the driver had better not hold them."""
    if (
        last is None
        or last.skipped
        or last.rows_in > SURELY_FEW_ROWS
        or last.bytes_written > COLLECTED_BYTES // 8
    ):
        num_rows = df.count()
        per_row = last.bytes_written / last.rows_in if last is not None and last.rows_in else 0
        if num_rows > COLLECTED_ROWS or num_rows * per_row > COLLECTED_BYTES:
            return None
    return collect_rows(df)


def _upserted(commit: SinkCommit, done: Upserted) -> SinkCommit:
    if done.was_known:  # another driver was faster
        return replace(commit, version=done.taken_in_before, skipped=True)
    num_files, num_bytes = size_of_files(done.fragments)
    return replace(
        commit,
        version=done.table.version if done.is_new else None,
        rows_in=done.num_rows,
        rows_inserted=done.num_inserted,
        rows_updated=done.num_updated,
        rows_deleted=done.num_deleted,
        rows_unchanged=done.num_unchanged,
        rows_late=done.num_late,
        deletes_remembered=done.num_remembered,
        num_files=num_files,
        bytes_written=num_bytes,
        attempts=done.attempts,
    )


MODES: Mapping[str, Callable[[Batch, TableVersion, SinkCommit], SinkCommit]] = MappingProxyType(
    {
        "append": append,
        "upsert": upsert_batch,
        "apply_changes": upsert_batch,
        "overwrite": overwrite,
    }
)
"""What each mode does."""
