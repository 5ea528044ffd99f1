"""Tables that a DataFrame's rows create: whether they do, and with which columns."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

from lance_stream.errors import NotFoundError
from lance_stream.schema.vectors import with_vectors
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.column_names import names_in_table
from lance_stream.spark.session.spark_types import stored_schema

_VECTOR_SIZE: Final = "arrow.fixed-size-list.size"
"""The key in a field's metadata that makes an array a vector, as for lance-spark."""


def find_table(arguments: WriterArguments) -> TableVersion | None:
    """Return the newest version of the table; None if the rows create it.

    Raises:
        NotFoundError: It is a branch that does not exist: writers create tables, but no branches.
    """
    try:
        return open_newest(arguments.uri, storage_options=arguments.storage_options)
    except NotFoundError:
        if arguments.branch is not None:
            raise
        return None


def new_table_schema(
    schema: spark.StructType, vectors: Mapping[str, int] | None, *, case_sensitive: bool
) -> pa.Schema:
    """Return the Arrow schema of a table that a DataFrame's rows create.

    Args:
        schema: The DataFrame's columns.
        vectors: The number of items of vector columns, besides those that metadata declare.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        UnsupportedFeatureError: A column's type cannot be stored; the message names it.
        NotFoundError: There is no such column.
        InvalidInputError: A column cannot be a vector.
    """
    declared = {
        field.name: int(field.metadata[_VECTOR_SIZE])
        for field in schema.fields
        if str(field.metadata.get(_VECTOR_SIZE, "")).isdecimal()
    }
    vectors = vectors or {}
    names = names_in_table(list(vectors), schema.names, case_sensitive=case_sensitive)
    sizes = declared | dict(zip(names, vectors.values(), strict=True))
    return with_vectors(stored_schema(schema), sizes)
