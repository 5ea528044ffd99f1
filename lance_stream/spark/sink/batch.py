"""A micro-batch that is being written: its rows, and the table with columns for them.

The rule for the spelling of column names is in `session.column_names`.
"""

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import StructType

from lance_stream.commit.commit_groups import Member
from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.ledger.messages import lost_table
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.jobs.arrow_jobs import quoted
from lance_stream.spark.session.column_names import (
    check_are_distinct,
    column_finder,
    find_column,
    names_in_table,
)
from lance_stream.spark.session.session_settings import is_case_sensitive
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.sink.batch_calls import BatchCall
from lance_stream.spark.sink.batch_writing import TaskCount
from lance_stream.spark.sink.reports import SinkCommit
from lance_stream.spark.writer.batch_types import check_rows_by_key, is_condition
from lance_stream.spark.writer.new_tables import new_table_schema
from lance_stream.upsert.change_rules import (
    ChangeRules,
    check_has_sequence,
    check_not_reserved,
    history_schema,
)
from lance_stream.upsert.histories.shadowed_events import check_has_history, check_history_names
from lance_stream.upsert.rules import END_AT, SEQUENCE, START_AT
from lance_stream.verbs.columns.fit_columns import fit_columns
from lance_stream.verbs.columns.widen_columns import widen_columns
from lance_stream.verbs.create import check_column_types, plan_table
from lance_stream.write.casting import check_castable
from lance_stream.write.phases import Phases


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
        call: The call of the sink.
        outcome: Its outcome if it does not change the table.
        member: Publishes its version together with those of other tables; None for it alone.
    """

    df: DataFrame
    query: Any
    pending: PendingBatch
    arguments: WriterArguments
    phases: Phases
    last: SinkCommit | None
    tasks: TaskCount
    call: BatchCall
    outcome: SinkCommit
    member: Member | None = None

    def with_names_of(self, table: TableVersion | None) -> "Batch":
        """Return the batch with column names, also in its arguments, in the spelling of its table.

        Args:
            table: The batch's table; None if it does not exist yet.

        Raises:
            InvalidInputError: A column does not exist, or its name is ambiguous.
        """
        arguments, is_exact = self.arguments, is_case_sensitive(self.df.sparkSession)
        if table is not None:
            stored_names = table.schema.names
        else:
            stored_names = [] if arguments.schema is None else arguments.schema.names
        before = list(self.df.columns)
        check_are_distinct(before, "the batch", case_sensitive=is_exact)
        after = names_in_table(before, stored_names, case_sensitive=is_exact)
        check_are_distinct(after, "the batch", case_sensitive=is_exact)
        key = arguments.primary_key
        if key is not None and table is None:
            key = tuple(names_in_table(key, after, case_sensitive=is_exact))
            arguments = replace(arguments, primary_key=key)
        column = column_finder(before, after, "the batch has", case_sensitive=is_exact)
        df = self.df if before == after else self.df.toDF(*after)
        batch = replace(self, df=df, arguments=arguments.renamed(column))
        changes = batch.arguments.changes
        return batch if changes is None else batch._with_sequence(changes)

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
        if arguments.is_by_key:
            check_rows_by_key(arguments, self.df.schema)
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
            self.pending.check_may_create(arguments.uri, late_start=arguments.late_start)
            try:
                return self._create(incoming)
            except LanceStreamError:  # counting the rows first would compute them twice
                if self.df.isEmpty():
                    return None
                raise
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
            marked = self._with_column(DELETES, deletes) if is_condition(kind) else None
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

    def _with_sequence(self, changes: ChangeRules) -> "Batch":
        """Return a batch of changes with one column that orders them, and arguments that name it.

        Args:
            changes: The rules of AUTO CDC, in the batch's spelling.

        Raises:
            InvalidInputError: A column has a name that the table has for itself.
        """
        df = self.df
        check_not_reserved(df.columns)
        changes = changes.without_list(df.columns)
        if changes.adds_sequence:
            parts = [df[quoted(name)] for name in changes.sequence_by]
            sequence = functions.struct(*parts) if len(parts) > 1 else parts[0]
            df = self._with_column(SEQUENCE, sequence)
        rules = changes.upsert_rules()
        arguments = replace(
            self.arguments,
            changes=changes,
            sequence_by=rules.sequence_by,
            except_columns=rules.except_columns,
        )
        return replace(self, df=df, arguments=arguments)

    def _with_column(self, name: str, values: Column) -> DataFrame:
        """Return the rows with a column of the sink's own.

        Raises:
            InvalidInputError: Spark would replace a column of the batch.
        """
        is_exact = is_case_sensitive(self.df.sparkSession)
        column = find_column(name, self.df.columns, case_sensitive=is_exact)
        if column is not None:
            raise InvalidInputError(
                f"the batch has a column {column!r}, but the sink adds one called {name!r} to its "
                "rows: rename the column"
            )
        return self.df.withColumn(name, values)

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

    def _create(self, incoming: pa.Schema) -> TableVersion:
        """Plan the table that the batch's rows create."""
        arguments = self.arguments
        schema = arguments.schema
        if schema is None:
            schema = new_table_schema(
                to_nullable(self.stored().schema),
                arguments.vectors,
                case_sensitive=is_case_sensitive(self.df.sparkSession),
            )
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
