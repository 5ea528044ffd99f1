"""User-specified schemas: `spark.read.schema(...)`, or columns in CREATE TEMPORARY VIEW.

Spark does not compare them with the source. A schema may omit columns, change their order, and
widen integers and floats. Without a check, unknown columns would be read as nulls.
"""

import pyarrow as pa
from pyspark.sql import types as spark

from lance_stream.arguments import did_you_mean
from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.spark_types import carrier_schema, stored_schema, widens


def check_user_schema(user_schema: spark.StructType, read: pa.Schema, uri: str) -> None:
    """Reject a schema that does not match the columns that can be read.

    Args:
        user_schema: The user's schema.
        read: The columns that can be read.
        uri: The table's location, for the message.

    Raises:
        InvalidInputError: A column or nested field does not exist, has another type, or is
            declared not null.
    """
    for field in user_schema.fields:
        if not field.nullable:
            raise InvalidInputError(
                f"the schema declares the column {field.name!r} as not null, but all columns that "
                "Spark reads from a table are nullable. Remove NOT NULL"
            )
    try:
        _check_parts(carrier_schema(stored_schema(user_schema)), carrier_schema(read), "")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the schema declared for {uri} does not match the table: {error}. Correct it, or omit "
            "it to use the table's schema"
        ) from None


def _check_parts(
    user_schema: pa.Schema | pa.StructType, read: pa.Schema | pa.StructType, path: str
) -> None:
    types = {field.name: field.type for field in read}
    for field in user_schema:
        if field.name not in types:
            raise InvalidInputError(
                f"column {path + field.name!r} does not exist{did_you_mean(field.name, types)}; "
                f"existing columns: {', '.join(types)}"
            )
        _check_type(field.type, types[field.name], path + field.name)


def _check_type(user_schema: pa.DataType, read: pa.DataType, path: str) -> None:
    if user_schema.equals(read) or widens(read, user_schema):
        return
    if pa.types.is_struct(user_schema) and pa.types.is_struct(read):
        _check_parts(user_schema, read, f"{path}.")
    elif pa.types.is_list(user_schema) and pa.types.is_list(read):
        _check_type(user_schema.value_type, read.value_type, f"{path}.element")
    elif pa.types.is_map(user_schema) and pa.types.is_map(read):
        _check_type(user_schema.key_type, read.key_type, f"{path}.key")
        _check_type(user_schema.item_type, read.item_type, f"{path}.value")
    else:
        raise InvalidInputError(f"column {path!r} has type {read}, not {user_schema}")
