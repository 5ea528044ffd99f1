"""Type checks of a batch's columns: keys and sequences, and columns that are not stored.

String keys and sequences are compared by their bytes, in every process and on every machine. With
a collation, Spark treats strings with different bytes as equal (UTF8_LCASE: `a` and `A`), and a
group of such a column can have a different spelling at each trigger: it would be stored twice, as
two keys.
"""

from collections.abc import Iterable

from pyspark.sql.types import (
    BooleanType,
    DataType,
    NullType,
    NumericType,
    StringType,
    StructType,
    YearMonthIntervalType,
)

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.spark_types import types_in
from lance_stream.spark.versions import BY_BYTES, collation_of
from lance_stream.upsert.change_feeds import check_has_changes


def check_rows_by_key(arguments: WriterArguments, schema: StructType) -> None:
    """Refuse columns of rows that are applied by their keys, and cannot be.

    Args:
        arguments: The arguments of the sink or writer, with column names as in the rows.
        schema: The rows' columns.

    Raises:
        InvalidInputError: A key or a sequence has a collation, or the columns of changes are
            missing.
        UnsupportedFeatureError: A column that is not stored cannot be read.
    """
    if arguments.mode == "apply_changes":
        check_has_changes(schema.names)
    _check_compared(schema, arguments.on, arguments.sequence_by)
    _check_readable(schema, arguments.not_stored(schema.names))


def _check_compared(schema: StructType, on: Iterable[str], sequence_by: str | None) -> None:
    """Refuse keys and sequences that Spark does not compare by their bytes.

    Args:
        schema: The batch's columns.
        on: The key columns.
        sequence_by: The column that orders rows of one key.

    Raises:
        InvalidInputError: A column has a collation.
    """
    for name in on:
        collation = collation_in(schema[name].dataType)
        if collation is not None:
            raise InvalidInputError(
                f"the key column {name!r} has the collation {collation}, by which Spark treats "
                "strings with different bytes as equal; keys are equal only if their bytes are. "
                f'Normalize the spelling: .withColumn({name!r}, expr("lower(`{name}`) '
                f'COLLATE {BY_BYTES}")); without lower() each spelling is a separate key'
            )
    collation = None if sequence_by is None else collation_in(schema[sequence_by].dataType)
    if collation is not None:
        raise InvalidInputError(
            f"the column {sequence_by!r} (sequence_by) has the collation {collation}, which orders "
            "strings differently from their bytes, but the sink orders by bytes. To accept that, "
            f'use .withColumn({sequence_by!r}, expr("`{sequence_by}` COLLATE {BY_BYTES}"))'
        )


def _check_readable(schema: StructType, names: Iterable[str]) -> None:
    """Refuse columns that are not stored but have to be read, and cannot be.

    Args:
        schema: The batch's columns.
        names: Those that are not stored; names that the batch lacks are ignored.

    Raises:
        UnsupportedFeatureError: A column cannot be read.
    """
    for name in set(names) & set(schema.names):
        if any(isinstance(part, YearMonthIntervalType) for part in types_in(schema[name].dataType)):
            raise UnsupportedFeatureError(
                f"the column {name!r} has intervals of years and months, which Arrow cannot "
                "transfer to Python, so the sink cannot read it, even though it is not stored. "
                f"Convert it to a string before the sink: CAST(`{name}` AS STRING)"
            )


def is_condition(kind: DataType) -> bool:
    """Return whether each value of a type is true, false or null, unlike strings and times."""
    return isinstance(kind, BooleanType | NumericType | NullType)


def collation_in(kind: DataType) -> str | None:
    """Return the collation of a type or of a part of it; None if strings compare by their bytes."""
    for part in types_in(kind):
        if isinstance(part, StringType) and collation_of(part) != BY_BYTES:
            return collation_of(part)
    return None
