"""User-specified schemas: `spark.read.schema(...)`, or columns in CREATE TEMPORARY VIEW.

Spark does not check them against the source. A schema may omit columns, change their order, and
widen integers and floats. Without a check, unknown names would read as nulls.
"""

import pyarrow as pa
from pyspark.sql import types as spark

from lance_stream.arguments import did_you_mean
from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.spark_types import carrier_schema, stored_schema, widens


def check_user_schema(given: spark.StructType, read: pa.Schema, uri: str) -> None:
    """Refuse a schema that does not fit the columns that can be read.

    Args:
        given: The user's schema.
        read: The columns that can be read.
        uri: The table's location, for the message.

    Raises:
        InvalidInputError: A column, or a field of one, does not exist, has another type, or is
            declared not null.
    """
    for field in given.fields:
        if not field.nullable:
            raise InvalidInputError(
                f"the schema declares the column {field.name!r} as not null, but all columns that "
                "Spark reads from a table are nullable. Remove NOT NULL"
            )
    try:
        _check_parts(carrier_schema(stored_schema(given)), carrier_schema(read), "")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the schema that was given for {uri} does not fit the table: {error}. Correct it, or "
            "omit it: the table has a schema of its own"
        ) from None


def _check_parts(
    given: pa.Schema | pa.StructType, read: pa.Schema | pa.StructType, path: str
) -> None:
    known = {each.name: each.type for each in read}
    for each in given:
        if each.name not in known:
            raise InvalidInputError(
                f"there is no column {path + each.name!r}{did_you_mean(each.name, known)}; the "
                f"table has: {', '.join(known)}"
            )
        _check_type(each.type, known[each.name], path + each.name)


def _check_type(given: pa.DataType, read: pa.DataType, path: str) -> None:
    if given.equals(read) or widens(read, given):
        return
    if pa.types.is_struct(given) and pa.types.is_struct(read):
        _check_parts(given, read, f"{path}.")
    elif pa.types.is_list(given) and pa.types.is_list(read):
        _check_type(given.value_type, read.value_type, f"{path}.element")
    elif pa.types.is_map(given) and pa.types.is_map(read):
        _check_type(given.key_type, read.key_type, f"{path}.key")
        _check_type(given.item_type, read.item_type, f"{path}.value")
    else:
        raise InvalidInputError(f"the column {path!r} is {read}, not {given}")
