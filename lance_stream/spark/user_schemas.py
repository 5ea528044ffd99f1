"""A schema of the user's own: `spark.read.schema(...)`, or columns in CREATE TEMPORARY VIEW.

Spark takes it for the schema of what is read, and asks nobody. It may leave columns out, change
their order, and widen integers and floats; a name that the table does not have would read as nulls.
"""

import pyarrow as pa
from pyspark.sql import types as spark

from lance_stream.errors import InvalidInputError
from lance_stream.spark.column_names import did_you_mean
from lance_stream.spark.spark_types import carrier_schema, stored_schema, widens


def check_user_schema(told: spark.StructType, read: pa.Schema, uri: str) -> None:
    """Refuse a schema whose columns are not those that are read.

    Args:
        told: The user's schema.
        read: The columns that can be read.
        uri: Where the table lies, for the message.

    Raises:
        InvalidInputError: A column, or a part of one, is not there, has another type, or is said
            never to be null.
    """
    for field in told.fields:
        if not field.nullable:
            raise InvalidInputError(
                f"the schema says that the column {field.name!r} is never null, which nothing that "
                "is read from a table promises to Spark. Leave NOT NULL out"
            )
    try:
        _check_parts(carrier_schema(stored_schema(told)), carrier_schema(read), "")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the schema that was given for {uri} does not fit the table: {error}. Mend it, or "
            "leave it out: the table knows its columns"
        ) from None


def _check_parts(
    told: pa.Schema | pa.StructType, read: pa.Schema | pa.StructType, path: str
) -> None:
    known = {each.name: each.type for each in read}
    for each in told:
        if each.name not in known:
            raise InvalidInputError(
                f"there is no column {path + each.name!r}{did_you_mean(each.name, known)}; there "
                f"are: {', '.join(known)}"
            )
        _check_type(each.type, known[each.name], path + each.name)


def _check_type(told: pa.DataType, read: pa.DataType, path: str) -> None:
    if told.equals(read) or widens(read, told):
        return
    if pa.types.is_struct(told) and pa.types.is_struct(read):
        _check_parts(told, read, f"{path}.")
    elif pa.types.is_list(told) and pa.types.is_list(read):
        _check_type(told.value_type, read.value_type, f"{path}.element")
    elif pa.types.is_map(told) and pa.types.is_map(read):
        _check_type(told.key_type, read.key_type, f"{path}.key")
        _check_type(told.item_type, read.item_type, f"{path}.value")
    else:
        raise InvalidInputError(f"the column {path!r} is {read}, not {told}")
