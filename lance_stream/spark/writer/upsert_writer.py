"""Upserts by the format "lance" as a writer: `option("mode", "upsert")`, or "apply_changes".

    planning worker    plan_upsert      the table is read; do columns and options fit?
    tasks              stage            rows for the commit: a few in the message, more in a file
    commit worker      commit_upsert    all rows are looked up, written, and committed as one
                                        version (`upsert.large`); staged files are deleted

The meaning of the options, the ledger's entry and the digest of the rows are those of `lance_sink`,
so a stream can be moved from one to the other.

The commit plans on the table as it is then, not on the version that the tasks' writer has seen: no
row of the table has been read before. A table that does not exist is created with the rows.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructField, StructType

from lance_stream.commit.same_table import table_deleted_error
from lance_stream.errors import TableReplacedError
from lance_stream.ledger.lookup import has_batch_id
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.column_names import column_finder, names_in_table
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.writer.batch_types import check_rows_by_key
from lance_stream.spark.writer.delete_conditions import resolve_delete_condition
from lance_stream.spark.writer.new_tables import find_table, new_table_schema
from lance_stream.storage.store import Store
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.change_rules import check_has_sequence
from lance_stream.upsert.large.staged_rows import (
    StagedRows,
    discard_staged,
    stage_rows,
    upsert_staged,
)
from lance_stream.upsert.rules import UpsertRules
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.columns.fit_columns import fit_columns
from lance_stream.verbs.create import check_column_types, plan_table
from lance_stream.verbs.jobs import check_is_as_requested, ledger_config

_log = logging.getLogger("lance_stream.spark.writer")


@dataclass(frozen=True)
class UpsertJob:
    """How rows are applied to a table by their keys; picklable, without the table's fragments.

    Attributes:
        arguments: The user's options.
        rules: The rules for the rows, with column names in the table's spelling.
        names: The table's names for the columns of each batch, in order.
        incoming: The columns to store, with the types that a table created for them would have.
        sequence: The type of the column that orders rows; None if there is none.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.
        store: The table's.
        schema: The table's columns when the job was planned.
        config: Its ledger's entries then.
        version: The version on which the job was planned; 0 if there was no table.
    """

    arguments: WriterArguments
    rules: UpsertRules
    names: tuple[str, ...]
    incoming: pa.Schema
    sequence: pa.DataType | None
    case_sensitive: bool
    store: Store | None = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    config: Mapping[str, str] = field(default_factory=dict)
    version: int = 0

    @property
    def is_new(self) -> bool:
        """Whether there was no table when the job was planned."""
        return not self.version

    @property
    def uri(self) -> str:
        """The table's location, as the user wrote it."""
        return self.arguments.uri

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The settings for opening its store."""
        return self.arguments.storage_options

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the rules, the same as the sink's."""
        return self.arguments.fingerprint

    def has_committed(self, micro_batch: MicroBatch) -> bool:
        """Return whether the table had a micro-batch when the job was planned; sends no request.

        Raises:
            InvalidInputError: The batch id belongs to another query's batch.
        """
        return has_batch_id(self.config, micro_batch, self.uri)


def plan_upsert(
    arguments: WriterArguments, incoming: StructType, *, case_sensitive: bool = False
) -> UpsertJob:
    """Plan an upsert into the table that a user requested, and check that columns and options fit.

    Args:
        arguments: The user's options.
        incoming: The rows' columns.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        NotFoundError: The branch does not exist.
        InvalidInputError: They do not fit.
        UnsupportedFeatureError: A type, or the location's protocol, is not supported.
    """
    existing = find_table(arguments)
    names = names_in_table(
        incoming.names,
        [] if existing is None else existing.schema.names,
        case_sensitive=case_sensitive,
    )
    columns = StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(names, incoming, strict=True)
        ]
    )
    rules = _rules(arguments, incoming.names, columns, case_sensitive=case_sensitive)
    stored = [column for column in columns if column.name not in rules.except_columns]
    # Only this column: another one that is not stored may have a type that cannot be.
    ordering = StructType([column for column in columns if column.name == rules.sequence_by])
    job = UpsertJob(
        arguments,
        rules,
        tuple(names),
        # Spark calls a column non-null if this plan produces no nulls; the next one may.
        new_table_schema(
            to_nullable(StructType(stored)), arguments.vectors, case_sensitive=case_sensitive
        ),
        stored_schema(to_nullable(ordering)).field(0).type if ordering.fields else None,
        case_sensitive,
    )
    table = _prepare(job)
    return replace(
        job,
        store=table.store,
        schema=table.arrow_schema,
        config=ledger_config(table),
        version=table.version,
    )


def stage(job: UpsertJob, batches: Iterable[pa.RecordBatch]) -> StagedRows:
    """Keep the rows of a task for the commit.

    Args:
        job: The job.
        batches: The rows, with column names in the table's spelling.

    Raises:
        InvalidInputError: A key is null, or does not fit the table; no file is left behind.
    """
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    return stage_rows(batches, _store(job), job.schema, job.rules, task=task)


def commit_upsert(
    job: UpsertJob,
    staged: Sequence[StagedRows],
    batch: PendingBatch | None,
    *,
    even_without_rows: bool,
) -> UpsertResult:
    """Apply the rows of all tasks, and commit one version; delete the files of staged rows.

    Args:
        job: The job.
        staged: The rows of the tasks.
        batch: Which micro-batch they are, with their digest; None for none.
        even_without_rows: Whether a version is committed even if nothing changes, for its ledger
            entry.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: It was not committed, or the outcome is unknown. A `TableReplacedError` if the
            table has been deleted since the plan.
    """
    upserted = _commit(job, staged, batch)
    if upserted.is_new or upserted.was_already_committed or not even_without_rows:
        return upserted
    recorded = append_fragments(_current(job), [], batch, even_without_rows=True)
    return replace(
        upserted,
        table=recorded.table,
        is_new=recorded.is_new,
        was_already_committed=not recorded.is_new,
    )


def _commit(
    job: UpsertJob, staged: Sequence[StagedRows], batch: PendingBatch | None
) -> UpsertResult:
    try:
        table = _current(job)
        try:
            return _apply(job, table, staged, batch)
        except TableReplacedError:
            if table.version:
                raise
        # another writer has created the table, perhaps with other columns
        return _apply(job, _prepare(job), staged, batch)
    finally:
        discard(job, staged)


def discard(job: UpsertJob, staged: Iterable[StagedRows]) -> None:
    """Delete the files of staged rows, which no version ever names; best effort."""
    discard_staged(_store(job), staged)


def _apply(
    job: UpsertJob, table: TableVersion, staged: Sequence[StagedRows], batch: PendingBatch | None
) -> UpsertResult:
    return upsert_staged(table, staged, job.rules, job.names, job.sequence, batch, is_current=True)


def _store(job: UpsertJob) -> Store:
    assert job.store is not None  # of every job that `plan_upsert` returns
    return job.store


def _current(job: UpsertJob) -> TableVersion:
    """Return the version on which the commit plans; see `_prepare`.

    Raises:
        TableReplacedError: The table has been deleted since the job was planned. A new one would
            lack its rows.
    """
    table = _prepare(job)
    if not table.version and not job.is_new:
        raise table_deleted_error(job.uri, job.version)
    return table


def _prepare(job: UpsertJob) -> TableVersion:
    """Return the newest version, with the rows' columns; version 0 if there is no table.

    Raises:
        InvalidInputError: The columns do not fit.
    """
    arguments = job.arguments
    table = find_table(arguments)
    key = arguments.primary_key
    if key is not None:
        columns = job.incoming.names if table is None else table.schema.names
        key = tuple(names_in_table(key, columns, case_sensitive=job.case_sensitive))
    if table is None:
        check_column_types(job.incoming)
        return plan_table(
            arguments.uri,
            job.incoming,
            file_version=arguments.file_version,
            primary_key=job.rules.on if key is None else key,
            storage_options=arguments.storage_options,
        )
    check_is_as_requested(table, arguments.file_version, key)
    check_has_sequence(table.arrow_schema, job.incoming, job.rules.sequence_by)
    return fit_columns(
        table,
        job.incoming,
        arguments.schema_evolution,
        case_sensitive=job.case_sensitive,
        key=job.rules.on,
    )


def _rules(
    arguments: WriterArguments,
    before: Sequence[str],
    columns: StructType,
    *,
    case_sensitive: bool,
) -> UpsertRules:
    """Return the rules of the upsert, with column names in the table's spelling.

    Args:
        arguments: The user's arguments.
        before: The columns' names in the query.
        columns: The columns in the table's spelling.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        InvalidInputError: A column does not exist, its name is ambiguous, or it does not fit; or
            the condition is not one that can be evaluated.
        UnsupportedFeatureError: A column that is not stored cannot be read.
    """
    column = column_finder(before, columns.names, "the rows have", case_sensitive=case_sensitive)
    condition = arguments.delete_when
    if condition is not None:
        condition = resolve_delete_condition(condition, columns, case_sensitive=case_sensitive)
    arguments = arguments.renamed(column)
    check_rows_by_key(arguments, columns)
    return arguments.upsert_rules(columns.names, condition)
