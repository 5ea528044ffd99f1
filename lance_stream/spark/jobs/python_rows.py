"""Rows as Python objects, which Spark's table functions yield one at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_stream.errors import InvalidInputError
from lance_stream.schema.types.logical_types import is_list_type
from lance_stream.spark.session.spark_types import spark_schema, to_spark

Rows = Iterator[tuple[Any, ...]]

_Convert = Callable[[Any], Any]


def rows_of(batch: pa.RecordBatch, carried: pa.Schema) -> Rows:
    """Return the rows of a batch as Spark takes them.

    Args:
        batch: Its columns have the stored types.
        carried: The types that Spark expects.
    """
    yield from zip(*map(_values, to_spark(batch, carried).columns), strict=True)


def check_columns(carried: pa.Schema, analyzed: StructType | None, function: str) -> None:
    """Check that a table still has the columns that Spark planned a query with.

    Args:
        carried: The columns now.
        analyzed: The columns then; None if they are not known.
        function: Its name, for the error.

    Raises:
        InvalidInputError: It has others: values would appear in wrong columns.
    """
    if analyzed is not None and spark_schema(carried).simpleString() != analyzed.simpleString():
        raise InvalidInputError(
            f"{function}: the columns of the version to be read, {', '.join(carried.names)}, are "
            f"not those that the query was planned with, {', '.join(analyzed.names)}: another "
            "writer has changed them, or the version differs from row to row. Run the query again, "
            "with a constant version"
        )


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column; maps as dicts, for Spark takes a list of pairs for null."""
    values: list[Any] = column.to_pylist()
    convert = _converter(column.type)
    return values if convert is None else [convert(value) for value in values]


def _converter(kind: pa.DataType) -> _Convert | None:
    """Return how Arrow's value of a type is converted; None if Spark takes it as it is."""
    if pa.types.is_map(kind):
        item = _converter(kind.item_type) or _same
        return _or_none(lambda pairs: {_as_key(key): item(value) for key, value in pairs})
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        if not any(fields.values()):
            return None
        return _or_none(
            lambda row: {name: (fields[name] or _same)(value) for name, value in row.items()}
        )
    if is_list_type(kind):
        element = _converter(kind.value_type)
        if element is None:
            return None
        return _or_none(lambda values: [element(item) for item in values])
    return None


def _or_none(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _as_key(value: Any) -> Any:
    """Return a map's key in a form that can be hashed: a struct or a list becomes a tuple."""
    if isinstance(value, dict):
        return tuple(_as_key(item) for item in value.values())
    if isinstance(value, list):
        return tuple(_as_key(item) for item in value)
    return value
