"""Column names of a batch, in the spelling of its table; the rule is in `session.column_names`."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, functions

from lance_stream.arguments import did_you_mean
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.modes import OF_CHANGES
from lance_stream.spark.arguments.sink_arguments import SinkArguments, names
from lance_stream.spark.jobs.arrow_jobs import quoted
from lance_stream.spark.session.column_names import (
    check_are_distinct,
    find_column,
    names_in_table,
)
from lance_stream.spark.session.session_settings import is_case_sensitive
from lance_stream.upsert.change_rules import check_not_reserved
from lance_stream.upsert.incoming import SEQUENCE


def settle_names(
    df: DataFrame, arguments: SinkArguments, table: TableVersion | None
) -> tuple[DataFrame, SinkArguments]:
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
    after = names_in_table(before, _names_of(arguments, table), case_sensitive=is_exact)
    check_are_distinct(after, "the batch", case_sensitive=is_exact)
    by_name = dict(zip(before, after, strict=True))

    def settle(name: str) -> str:
        found = find_column(name, before, case_sensitive=is_exact)
        if found is None:
            raise InvalidInputError(
                f"the batch has no column {name!r}{did_you_mean(name, before)}; it has: "
                f"{', '.join(before)}"
            )
        return by_name[found]

    def settle_all(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(settle, names)))

    create_options = dict(arguments.create_options)
    key = names(create_options.get("primary_key"), "primary_key")
    if key and table is None:
        create_options["primary_key"] = [
            find_column(each, after, case_sensitive=is_exact) or each for each in key
        ]
    settled = replace(
        arguments,
        on=settle_all(arguments.on),
        except_columns=settle_all(arguments.except_columns),
        sequence_by=arguments.sequence_by and settle(arguments.sequence_by),
        create_options=create_options,
        expect=tuple(each.settled(settle) for each in arguments.expect),
        sequence_columns=settle_all(arguments.sequence_columns),
        column_list=None if arguments.column_list is None else settle_all(arguments.column_list),
        tracked=None if arguments.tracked is None else settle_all(arguments.tracked),
        untracked=settle_all(arguments.untracked),
    )
    df = df if before == after else df.toDF(*after)
    return with_sequence(df, settled) if settled.mode in OF_CHANGES else (df, settled)


def with_sequence(df: DataFrame, arguments: SinkArguments) -> tuple[DataFrame, SinkArguments]:
    """Return a batch of changes with one column that orders them, and arguments that name it.

    Args:
        df: The batch.
        arguments: The sink's arguments, in the batch's spelling.

    Raises:
        InvalidInputError: A column has a name that the table has for itself.
    """
    check_not_reserved(df.columns)
    rules = arguments.change_rules.without_list(df.columns)
    if rules.adds_sequence:
        parts = [df[quoted(each)] for each in rules.sequence_by]
        df = df.withColumn(SEQUENCE, functions.struct(*parts) if len(parts) > 1 else parts[0])
    made = rules.upsert_rules()
    settled = replace(
        arguments,
        sequence_by=made.sequence_by,
        sequence_columns=(),
        column_list=None,
        except_columns=made.except_columns,
    )
    return df, settled


def _names_of(arguments: SinkArguments, table: TableVersion | None) -> list[str]:
    if table is not None:
        return list(table.schema.names)
    schema = arguments.create_options.get("schema")
    return list(schema.names) if isinstance(schema, pa.Schema) else []
