"""Overwrites: replaces all rows of a table, and possibly its schema.

New rows get new row ids, and fragments new fragment ids; the change feed shows all old rows as
deleted and all new ones as inserted. Config, base paths and the file version are kept. If the new
rows have columns of the same names and types, the columns keep their ids and the primary key, and
declarations of the new rows are added to them (`schema.declarations`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    ColumnsChangedError,
    CommitAbortedError,
    CommitConflictError,
    InvalidInputError,
)
from lance_stream.file.type_support import check_types
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.computed_columns import check_not_computed
from lance_stream.schema.declarations import with_declarations
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Overwrite
from lance_stream.verbs.append import check_is_compatible
from lance_stream.verbs.create import new_schema, numbered_schema
from lance_stream.write.arrow_input import ArrowInput, read_input
from lance_stream.write.fragments import write_fragments, write_target
from lance_stream.write.planning import Outcome, StagedFiles, commit_planned, replan_on_conflict
from lance_stream.write.row_checks import Check, refuse_bad_rows


def overwrite(
    table: TableVersion,
    data: ArrowInput,
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
    *,
    checks: Sequence[Check] = (),
) -> Outcome:
    """Replace all rows of a table; see `Dataset.overwrite`.

    Args:
        table: Any version; the newest one's rows are replaced.
        data: The rows.
        micro_batch: Their micro-batch, if they come from a stream.
        environment: The clock and randomness; sleeps between two attempts.
        checks: Conditions that every row must meet.
    """
    table = newest_version_of(table)
    if micro_batch is not None:
        committed = micro_batch.find_in(table)
        if committed is not None:
            return Outcome(table, is_new=False, already_committed_in=committed.version)
    rows = read_input(data)
    check_not_computed(rows.schema.names, table.arrow_schema)
    schema = _schema_for(table, rows.schema)
    check_types(schema.fields, table.file_version)
    target = replace(write_target(table), schema=schema)
    batches: Iterable[pa.RecordBatch] = rows
    if checks:
        batches = refuse_bad_rows(rows, to_arrow(schema), checks, table.uri)
    fragments = write_fragments(batches, target)
    return overwrite_fragments(table, fragments, schema, micro_batch, environment)


def overwrite_fragments(
    table: TableVersion,
    fragments: Sequence[Fragment],
    schema: Schema | None,
    micro_batch: PendingBatch | None,
    environment: Environment = MACHINE,
) -> Outcome:
    """Replace all fragments of a table by new ones, which any worker may have written.

    Args:
        table: The version on which the overwrite was planned.
        fragments: What `write_fragments` returned. Without any, the table becomes empty.
        schema: The columns that they were written with, which replace the table's; None to keep the
            table's columns.
        micro_batch: Their micro-batch, if they come from a stream. If the table already has it,
            no version is committed.
        environment: The clock and randomness; sleeps between two attempts.

    The files are deleted if certainly no version references them.

    Raises:
        InvalidInputError: The batch id belongs to another query's batch.
        ColumnsChangedError: The table's columns or their declarations are to be kept, but another
            writer has changed them.
        CommitError: The fragments were not committed, or the outcome is unknown.
    """
    operation = Overwrite(tuple(fragments), table.schema if schema is None else schema)

    def check(newest: Manifest) -> None:
        if newest.schema == table.schema:
            return
        if schema is None or with_declarations(newest.schema, schema) not in (None, schema):
            raise ColumnsChangedError(
                "the table's columns were changed while the rows were written; write them again"
            )

    def attempt() -> Outcome:
        newest = newest_version_of(table)
        if newest.version and not table.version:
            check_is_compatible(table, newest)
        return commit_planned(
            newest, operation, micro_batch=micro_batch, check=check, environment=environment
        )

    staged = StagedFiles(tuple(fragments))
    try:
        outcome = replan_on_conflict(attempt, micro_batch, environment)
    except (CommitAbortedError, CommitConflictError, InvalidInputError):  # certainly not committed
        staged.delete(table.store)
        raise
    if not outcome.is_new:
        staged.delete(table.store)
    return outcome


def _schema_for(table: TableVersion, rows: pa.Schema) -> Schema:
    """Return the columns of a table after an overwrite with some rows.

    Field ids continue, so that a column never matches a data file of an older version.
    """
    first_id = table.schema.max_field_id() + 1
    declared = with_declarations(table.schema, from_arrow(rows))
    if declared is None:
        return new_schema(rows, table.file_version, first_id)
    if declared == table.schema:
        return table.schema
    return numbered_schema(declared, table.file_version, first_id)
