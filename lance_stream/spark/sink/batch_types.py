"""What the types of a batch's columns rule out: for keys and sequences, and for columns not stored.

Keys and sequences are compared by the bytes of their texts, in every process and on every machine.
A collation of Spark's takes texts with other bytes for equal (UTF8_LCASE: `a` and `A`), and a group
of such a column can come with another spelling at each trigger: as two keys, it would be stored
twice.
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
from lance_stream.spark.spark_types import types_in

_OF_BYTES = "UTF8_BINARY"


def check_compared(schema: StructType, on: Iterable[str], sequence_by: str | None) -> None:
    """Refuse keys and sequences that Spark compares otherwise than by their bytes.

    Args:
        schema: The batch's columns.
        on: The key columns.
        sequence_by: The column that orders rows of one key.

    Raises:
        InvalidInputError: A column has a collation.
    """
    for name in on:
        collation = _collation_in(schema[name].dataType)
        if collation is not None:
            raise InvalidInputError(
                f"the key column {name!r} has the collation {collation}, by which Spark takes "
                "texts with other bytes for equal; keys are equal if their bytes are. Give the "
                f'batch a key with one spelling: .withColumn({name!r}, expr("lower(`{name}`) '
                f'COLLATE {_OF_BYTES}")); without lower() each spelling is a key'
            )
    collation = None if sequence_by is None else _collation_in(schema[sequence_by].dataType)
    if collation is not None:
        raise InvalidInputError(
            f"the column {sequence_by!r} (sequence_by) has the collation {collation}, which orders "
            "texts otherwise than by their bytes, as they are ordered here. Say that this is "
            f'meant: .withColumn({sequence_by!r}, expr("`{sequence_by}` COLLATE {_OF_BYTES}"))'
        )


def check_readable(schema: StructType, names: Iterable[str]) -> None:
    """Refuse columns that come along without being stored, and cannot be read.

    Args:
        schema: The batch's columns.
        names: Those that are not stored; ones that the batch does not have are ignored.

    Raises:
        UnsupportedFeatureError: A column cannot be read.
    """
    for name in set(names) & set(schema.names):
        if any(isinstance(each, YearMonthIntervalType) for each in types_in(schema[name].dataType)):
            raise UnsupportedFeatureError(
                f"the column {name!r} has intervals of years and months, which Arrow cannot bring "
                "to Python, so it cannot be read, though it is not stored. Make it a text before "
                f"the sink: CAST(`{name}` AS STRING)"
            )


def is_condition(kind: DataType) -> bool:
    """Return whether each value of a type is true, false or null: texts and times are not."""
    return isinstance(kind, BooleanType | NumericType | NullType)


def _collation_in(kind: DataType) -> str | None:
    for each in types_in(kind):
        if isinstance(each, StringType) and each.collation != _OF_BYTES:
            return str(each.collation)
    return None
