"""Columns of a table as Spark sees them, and Spark's columns as a table stores them.

Spark has fewer types than Arrow. Each Arrow type is *carried* by one that Spark accepts:

    Arrow                                              carried by         Spark
    uint8, uint16, uint32                              int16, 32, 64      smallint, int, bigint
    uint64                                             decimal128(20, 0)  decimal(20,0)
    float16                                            float32            float
    large_string, string_view                          string             string
    large_binary, binary_view, fixed_size_binary       binary             binary
    date64                                             date32             date
    time32, time64                                     time64[ns]         time(6), from Spark 4.1 on
    timestamp, timestamp with a zone                   timestamp[us]      timestamp_ntz, timestamp
    duration                                           duration[us]       interval day to second
    decimal of up to 38 digits                         decimal128         decimal
    large_list, fixed_size_list                        list               array
    map                                                map                map
    dictionary, extension types                        their values, their storage
    JSON                                               string             string

All other types are their own carriers. The sink restores what a carrier loses (a list's fixed size,
a sign, a unit, a zone): it casts to the table's own type.

PySpark's own mapping is not used: it is private, changes its arguments in each release, and
supports neither the unsigned types nor the views.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from lance_stream.arrow_streams import writable
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.schema.system_columns import SYSTEM_COLUMNS
from lance_stream.schema.types.json_columns import text_schema, with_text
from lance_stream.spark.versions import TIME_TYPE

_MAX_SPARK_PRECISION = 38

_FIXED: tuple[tuple[Any, pa.DataType], ...] = (
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_time, pa.time64("ns")),
    (pa.types.is_duration, pa.duration("us")),
)

_PLAIN: tuple[tuple[pa.DataType, spark.DataType], ...] = (
    (pa.bool_(), spark.BooleanType()),
    (pa.int8(), spark.ByteType()),
    (pa.int16(), spark.ShortType()),
    (pa.int32(), spark.IntegerType()),
    (pa.int64(), spark.LongType()),
    (pa.float32(), spark.FloatType()),
    (pa.float64(), spark.DoubleType()),
    (pa.string(), spark.StringType()),
    (pa.binary(), spark.BinaryType()),
    (pa.date32(), spark.DateType()),
    *(((pa.time64("ns"), TIME_TYPE()),) if TIME_TYPE else ()),
    (pa.duration("us"), spark.DayTimeIntervalType()),
    (pa.timestamp("us"), spark.TimestampNTZType()),
    (pa.timestamp("us", tz="UTC"), spark.TimestampType()),
    (pa.null(), spark.NullType()),
)


def carrier(arrow: pa.DataType) -> pa.DataType:
    """Return the Arrow type that carries values of a type to Spark; itself for most.

    Raises:
        UnsupportedFeatureError: Spark has no type for it.
    """
    if pa.types.is_time(arrow) and TIME_TYPE is None:
        raise UnsupportedFeatureError(f"Spark has no type for {arrow} before version 4.1")
    for fits, carrying in _FIXED:
        if fits(arrow):
            return carrying
    if isinstance(arrow, pa.BaseExtensionType):
        return carrier(arrow.storage_type)
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", tz="UTC" if arrow.tz else None)
    if pa.types.is_decimal(arrow):
        if arrow.precision > _MAX_SPARK_PRECISION or arrow.scale < 0:
            raise UnsupportedFeatureError(
                f"Spark's decimals have at most {_MAX_SPARK_PRECISION} digits and no negative "
                f"scale: it cannot read {arrow}"
            )
        return pa.decimal128(arrow.precision, arrow.scale)
    if pa.types.is_dictionary(arrow):
        return carrier(arrow.value_type)
    if pa.types.is_struct(arrow):
        return pa.struct([_carrier_field(part) for part in arrow])
    if pa.types.is_map(arrow):
        return pa.map_(carrier(arrow.key_type), carrier(arrow.item_type))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or _is_fixed_size_list(arrow):
        return pa.list_(pa.field("element", carrier(arrow.value_type)))
    if any(arrow.equals(plain) for plain, _ in _PLAIN):
        return arrow
    raise UnsupportedFeatureError(f"Spark has no type for {arrow}")


def carrier_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the batches that Spark gets for a table's columns.

    Every column is nullable there: a stored table does not promise Spark non-null columns.

    Raises:
        UnsupportedFeatureError: Spark has no type for a column; the message names it.
    """
    return pa.schema([_carrier_field(field) for field in text_schema(schema)])


def spark_schema(carried: pa.Schema) -> spark.StructType:
    """Return the Spark schema of batches of a carrier schema."""
    return _spark_struct(carried)


def to_spark(batch: pa.RecordBatch, carried: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of a table's columns to their carriers.

    Args:
        batch: Columns under their own names, in any order.
        carried: Their `carrier_schema`. A column that the batch lacks becomes null; other columns
            of the batch are dropped.

    Raises:
        InvalidInputError: A column's type does not fit the schema: the table's schema has changed
            since Spark read it.
    """
    columns = []
    batch = with_text(batch)
    for field in carried:
        matches = batch.schema.get_all_field_indices(field.name)
        if len(matches) > 1:
            raise InvalidInputError(f"two columns have the same name {field.name!r}")
        if matches:
            columns.append(_carry(batch.column(matches[0]), field.type, field.name))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return writable(pa.RecordBatch.from_arrays(columns, schema=carried))


def stored_schema(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema under which a new table stores a DataFrame's columns.

    Raises:
        UnsupportedFeatureError: A column's type cannot be stored; the message names it.
    """
    return pa.schema([_stored_field(field, field.name) for field in schema.fields])


def to_nullable(schema: spark.StructType) -> spark.StructType:
    """Return a schema whose columns, and their parts at any depth, are nullable.

    `StructType.toNullable` does the same from PySpark 4.0 on.
    """
    nullable: spark.StructType = _with_nullable_parts(schema)
    return nullable


def types_in(kind: spark.DataType) -> Iterator[spark.DataType]:
    """Yield a type, and the types of its parts at any depth."""
    yield kind
    parts: list[spark.DataType] = []
    if isinstance(kind, spark.StructType):
        parts = [field.dataType for field in kind.fields]
    elif isinstance(kind, spark.ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, spark.MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, spark.UserDefinedType):
        parts = [kind.sqlType()]
    for part in parts:
        yield from types_in(part)


def _with_nullable_parts(kind: Any) -> Any:
    if isinstance(kind, spark.StructType):
        return spark.StructType(
            [
                spark.StructField(
                    field.name, _with_nullable_parts(field.dataType), metadata=field.metadata
                )
                for field in kind.fields
            ]
        )
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_with_nullable_parts(kind.elementType))
    if isinstance(kind, spark.MapType):
        return spark.MapType(*map(_with_nullable_parts, (kind.keyType, kind.valueType)))
    return kind


def _carrier_field(field: pa.Field) -> pa.Field:
    try:
        arrow = carrier(field.type)
    except UnsupportedFeatureError as error:
        error.add_note(f"column: {field.name!r}; leave it out with the option `columns`")
        raise
    if field.name in SYSTEM_COLUMNS and pa.types.is_uint64(field.type):
        # Row ids, addresses and versions are far below 2^63 in any real table: Spark's bigint can
        # hold them, whereas decimal(20, 0) would force every user to cast.
        arrow = pa.int64()
    return pa.field(field.name, arrow, nullable=True)


def _spark_struct(fields: Any) -> spark.StructType:
    return spark.StructType(
        [spark.StructField(field.name, _spark_type(field.type), nullable=True) for field in fields]
    )


def _spark_type(arrow: pa.DataType) -> spark.DataType:
    if pa.types.is_decimal(arrow):
        return spark.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_struct(arrow):
        return _spark_struct(arrow)
    if pa.types.is_map(arrow):
        return spark.MapType(_spark_type(arrow.key_type), _spark_type(arrow.item_type))
    if pa.types.is_list(arrow):
        return spark.ArrayType(_spark_type(arrow.value_type))
    return next(kind for plain, kind in _PLAIN if arrow.equals(plain))


def _carry(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type.equals(target):
        return array
    try:
        if pa.types.is_dictionary(array.type):
            return _carry(array.dictionary_decode(), target, name)
        if pa.types.is_struct(target):
            return _carry_struct(array, target, name)
        if pa.types.is_list(target):
            return _carry_list(array, target, name)
        if pa.types.is_map(target) and pa.types.is_map(array.type):
            return _carry_map(array, target, name)
        if not carrier(array.type).equals(target) and not widens(array.type, target):
            raise pa.ArrowInvalid("no type holds both")
        # Spark's times have microseconds: finer digits are truncated, as Spark does everywhere
        return pc.cast(array, target, safe=not pa.types.is_temporal(target))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(
            f"column {name!r} is {array.type} in this version of the table, and cannot be "
            f"converted to {target}, which Spark expects: {error}"
        ) from None


def _carry_struct(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    parts = []
    for part in target:
        index = array.type.get_field_index(part.name)
        if index < 0:
            parts.append(pa.nulls(len(array), part.type))
        else:
            parts.append(_carry(array.field(index), part.type, f"{name}.{part.name}"))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)


def _carry_list(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    if not pa.types.is_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    if array.type.equals(target):
        return array
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    items = _carry(array.values.slice(first, last - first), target.value_type, f"{name}.element")
    offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    validity = pc.is_valid(array).buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets.buffers()[1]], children=[items]
    )


def _carry_map(array: pa.Array, target: pa.MapType, name: str) -> pa.Array:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    entries = array.values.slice(first, last - first)
    keys = _carry(entries.field(0), target.key_type, f"{name}.key")
    values = _carry(entries.field(1), target.item_type, f"{name}.value")
    offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    validity = pc.is_valid(array).buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(
        target,
        len(array),
        [validity, offsets.buffers()[1]],
        children=[
            pa.StructArray.from_arrays([keys, values], fields=[target.key_field, target.item_field])
        ],
    )


def widens(arrow: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast keeps every value, or fails."""
    return bool(
        (pa.types.is_integer(arrow) and pa.types.is_integer(target))
        or (pa.types.is_floating(arrow) and pa.types.is_float64(target))
    )


def _is_fixed_size_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(arrow))


def _stored_field(field: spark.StructField, path: str) -> pa.Field:
    arrow = _stored_type(field.dataType, path)
    # Arrow has no non-nullable columns of type null.
    return pa.field(field.name, arrow, field.nullable or pa.types.is_null(arrow))


def _stored_type(kind: spark.DataType, path: str) -> pa.DataType:
    if isinstance(kind, spark.StringType | spark.CharType | spark.VarcharType):
        return pa.string()
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.DayTimeIntervalType):
        return pa.duration("us")
    if TIME_TYPE and isinstance(kind, TIME_TYPE):
        return pa.time64("ns")
    if isinstance(kind, spark.UserDefinedType):
        return _stored_type(kind.sqlType(), path)
    if isinstance(kind, spark.ArrayType):
        item = _stored_type(kind.elementType, f"{path}.item")
        return pa.list_(pa.field("item", item, kind.containsNull or pa.types.is_null(item)))
    if isinstance(kind, spark.MapType):
        if isinstance(kind.keyType, spark.NullType):
            raise UnsupportedFeatureError(
                f"column {path!r} is an empty map whose keys have no type; give it one: "
                "CAST(map() AS map<string, int>)"
            )
        value = _stored_type(kind.valueType, f"{path}.value")
        nullable = kind.valueContainsNull or pa.types.is_null(value)
        key = pa.field("key", _stored_type(kind.keyType, f"{path}.key"), nullable=False)
        return pa.map_(key, pa.field("value", value, nullable))
    if isinstance(kind, spark.StructType):
        return pa.struct([_stored_field(field, f"{path}.{field.name}") for field in kind.fields])
    for arrow, plain in _PLAIN:
        if kind == plain:
            return arrow
    raise UnsupportedFeatureError(
        f"column {path!r} is of Spark's type {kind.simpleString()!r}, which cannot be stored yet; "
        "cast it or leave it out"
    )
