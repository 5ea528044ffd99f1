"""The rows of a write by the format "lance": which are bad, and what happens to them.

    planning worker    plan_checks      do the conditions fit the columns?
    tasks              RowChecks.sort   good rows are written or staged; bad ones go to the commit
    commit worker      RowChecks.refuse_or_stage, before the good rows are committed

The verdict on a row, the quarantine and the ledger's entry are those of `lance_sink`. A task judges
by the columns that the table had when the tasks were planned. Without the options `expect` and
`badRows`, rows are only checked by their casts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_stream.errors import NotFoundError
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.column_names import column_finder
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.writer.bad_row_rules import (
    check_rows,
    publish_bad_rows,
    quarantine_batch,
    recorded_rules,
    row_rules,
)
from lance_stream.spark.writer.upsert_writer import UpsertJob
from lance_stream.table.config import ledger_entries
from lance_stream.upsert.incoming import which_delete
from lance_stream.upsert.rules import UpsertRules
from lance_stream.verbs.create import plan_table
from lance_stream.verbs.jobs import WriteJob
from lance_stream.write.row_checks import BadRows, CheckedBatches, RowRules

Job: TypeAlias = WriteJob | UpsertJob


@dataclass(frozen=True)
class RowChecks:
    """What the rows of a job are checked for, and what becomes of bad ones; picklable.

    Attributes:
        arguments: The user's options; with row checks, the names of columns are as in the rows.
        rules: The rules for each row; None if rows are only cast.
        helpers: Columns of the rows that only the checks need.
        upsert: The rules of an upsert; None for an append or an overwrite.
    """

    arguments: WriterArguments
    rules: RowRules | None = None
    helpers: tuple[str, ...] = ()
    upsert: UpsertRules | None = None

    def sort(self, batches: Iterable[pa.RecordBatch]) -> CheckedBatches:
        """Return the batches of a task; reading them yields the good rows.

        Args:
            batches: The rows, with names in the table's spelling.
        """
        if self.rules is None or self.rules.deletes is None or self.upsert is None:
            return CheckedBatches(batches, self.rules, self.helpers)
        rules = self.upsert
        marked = (
            batch.append_column(DELETES, pa.array(which_delete(batch, rules))) for batch in batches
        )
        return CheckedBatches(marked, self.rules, (DELETES,), drops_helpers=True)

    def refuse_or_stage(
        self, job: Job, bad: BadRows, num_rows: int, batch: MicroBatch | None
    ) -> QuarantineBatch | None:
        """Refuse the batch because of its rows, or stage bad ones for the quarantine.

        Args:
            job: The job.
            bad: The bad rows of all tasks.
            num_rows: How many rows there are.
            batch: Which batch they are; None for a write without a number.

        Returns:
            What staged them, to publish them after the commit; None if rows are refused.

        Raises:
            InvalidInputError: They are refused, or the quarantine's location has another table.
        """
        check_rows(self.arguments, bad, num_rows)
        if not self.arguments.quarantines:
            return None
        assert batch is not None  # `WriterArguments` requires the number of the write
        quarantine = quarantine_batch(self.arguments, batch)
        target = target_of(job)
        entry = ledger_entries.read_entry(target.manifest.config, batch.app_id)
        if entry is None or entry.batch_id < batch.batch_id:  # else another driver was faster
            quarantine.begin(target)
            quarantine.stage(bad, recorded_rules(self.arguments), target)
        return quarantine

    def publish(self, job: Job, batch: MicroBatch) -> None:
        """Add the bad rows of a repeated batch to the quarantine, unless it has them."""
        if self.arguments.quarantines:
            publish_bad_rows(self.arguments, batch, target_of(job))


def plan_checks(
    arguments: WriterArguments, job: Job, incoming: StructType, *, case_sensitive: bool
) -> RowChecks:
    """Return what the rows of a job are checked for.

    Args:
        arguments: The user's options.
        job: The planned job.
        incoming: The rows' columns.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        InvalidInputError: A condition does not fit the columns.
    """
    if not arguments.expect and not arguments.quarantines:
        return RowChecks(arguments)
    names = _names(job, incoming.names)
    column = column_finder(incoming.names, names, "the rows have", case_sensitive=case_sensitive)
    renamed = replace(arguments.renamed(column), mode=_mode(arguments, job))
    if isinstance(job, UpsertJob):
        table, excluded = job.schema, set(job.rules.except_columns)
    else:
        table, excluded = to_arrow(job.target.schema), set(job.excluded)
    upsert = job.rules if isinstance(job, UpsertJob) else None
    deletes = upsert is not None and upsert.delete_when is not None
    stored = pa.schema([field for field in table if field.name in {*names} - excluded])
    rules = row_rules(renamed, stored, DELETES if deletes else None)
    checked = rules.checked_columns
    columns = {
        name: column
        for name, column in zip(names, to_nullable(incoming), strict=True)
        if name in checked or name not in excluded
    }
    arrow = stored_schema(StructType(list(columns.values())))
    rules.check_batch(
        pa.schema([field.with_name(name) for name, field in zip(columns, arrow, strict=True)])
    )
    helpers = () if upsert is not None else tuple(sorted(checked & excluded))
    return RowChecks(renamed, rules, helpers, upsert)


def _names(job: Job, incoming: Sequence[str]) -> list[str]:
    """Return the names of the rows' columns as the tasks have them."""
    if isinstance(job, UpsertJob):
        return list(job.names)
    stored = iter(job.names or [name for name in incoming if name not in job.excluded])
    return [name if name in job.excluded else next(stored) for name in incoming]


def _mode(arguments: WriterArguments, job: Job) -> str:
    if isinstance(job, UpsertJob):
        return str(arguments.mode)
    return "overwrite" if job.overwrite else "append"


def target_of(job: Job) -> TableVersion:
    """Return the newest version of the table; version 0 if there is none."""
    options: Mapping[str, Any] = job.storage_options
    try:
        return open_newest(job.uri, storage_options=dict(options))
    except NotFoundError:
        columns = job.incoming if isinstance(job, UpsertJob) else to_arrow(job.target.schema)
        return plan_table(job.uri, columns, storage_options=options)
