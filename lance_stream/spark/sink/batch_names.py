"""Column names of a batch, in the spelling of its table; the rule is in `session.column_names`."""

from dataclasses import replace

from pyspark.sql import DataFrame, functions

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
from lance_stream.upsert.change_rules import ChangeRules, check_not_reserved
from lance_stream.upsert.rules import SEQUENCE


def rename_columns(
    df: DataFrame, arguments: WriterArguments, table: TableVersion | None
) -> tuple[DataFrame, WriterArguments]:
    """Return the batch and the arguments with column names in the table's spelling.

    Args:
        df: The batch.
        arguments: The sink's arguments; their names are looked up among the batch's columns.
        table: The batch's table; None if it does not exist yet.

    Raises:
        InvalidInputError: A column does not exist, or its name is ambiguous.
    """
    is_exact = is_case_sensitive(df.sparkSession)
    before = list(df.columns)
    check_are_distinct(before, "the batch", case_sensitive=is_exact)
    after = names_in_table(before, _stored_names(arguments, table), case_sensitive=is_exact)
    check_are_distinct(after, "the batch", case_sensitive=is_exact)
    key = arguments.primary_key
    if key is not None and table is None:
        named = tuple(find_column(name, after, case_sensitive=is_exact) or name for name in key)
        arguments = replace(arguments, primary_key=named)
    column = column_finder(before, after, "the batch has", case_sensitive=is_exact)
    arguments = arguments.renamed(column)
    df = df if before == after else df.toDF(*after)
    if arguments.changes is None:
        return df, arguments
    return with_sequence(df, arguments, arguments.changes)


def with_sequence(
    df: DataFrame, arguments: WriterArguments, changes: ChangeRules
) -> tuple[DataFrame, WriterArguments]:
    """Return a batch of changes with one column that orders them, and arguments that name it.

    Args:
        df: The batch.
        arguments: The sink's arguments, in the batch's spelling.
        changes: Those of AUTO CDC among them.

    Raises:
        InvalidInputError: A column has a name that the table has for itself.
    """
    check_not_reserved(df.columns)
    changes = changes.without_list(df.columns)
    if changes.adds_sequence:
        parts = [df[quoted(name)] for name in changes.sequence_by]
        df = df.withColumn(SEQUENCE, functions.struct(*parts) if len(parts) > 1 else parts[0])
    rules = changes.upsert_rules()
    return df, replace(
        arguments,
        changes=changes,
        sequence_by=rules.sequence_by,
        except_columns=rules.except_columns,
    )


def _stored_names(arguments: WriterArguments, table: TableVersion | None) -> list[str]:
    if table is not None:
        return list(table.schema.names)
    return [] if arguments.schema is None else list(arguments.schema.names)
