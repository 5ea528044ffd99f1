"""Every Arrow type as Spark sees it, and as a table stores it again."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.spark.session.spark_types import (
    carrier,
    carrier_schema,
    spark_schema,
    stored_schema,
    to_spark,
)
from lance_stream.spark.versions import TIME_TYPE

CARRIED = [
    (pa.uint8(), pa.int16(), spark.ShortType()),
    (pa.uint16(), pa.int32(), spark.IntegerType()),
    (pa.uint32(), pa.int64(), spark.LongType()),
    (pa.uint64(), pa.decimal128(20, 0), spark.DecimalType(20, 0)),
    (pa.float16(), pa.float32(), spark.FloatType()),
    (pa.large_string(), pa.string(), spark.StringType()),
    (pa.string_view(), pa.string(), spark.StringType()),
    (pa.large_binary(), pa.binary(), spark.BinaryType()),
    (pa.binary(4), pa.binary(), spark.BinaryType()),
    (pa.date64(), pa.date32(), spark.DateType()),
    *(((pa.time32("ms"), pa.time64("ns"), TIME_TYPE()),) if TIME_TYPE else ()),
    (pa.duration("s"), pa.duration("us"), spark.DayTimeIntervalType()),
    (pa.timestamp("ns"), pa.timestamp("us"), spark.TimestampNTZType()),
    (pa.timestamp("s", "Europe/Oslo"), pa.timestamp("us", "UTC"), spark.TimestampType()),
    (pa.decimal256(38, 3), pa.decimal128(38, 3), spark.DecimalType(38, 3)),
    (pa.dictionary(pa.int8(), pa.large_string()), pa.string(), spark.StringType()),
    (pa.list_(pa.float16(), 3), pa.list_(pa.float32()), spark.ArrayType(spark.FloatType())),
    (pa.large_list(pa.uint8()), pa.list_(pa.int16()), spark.ArrayType(spark.ShortType())),
    (pa.null(), pa.null(), spark.NullType()),
    (
        pa.map_(pa.uint8(), pa.list_(pa.float16(), 2)),
        pa.map_(pa.int16(), pa.list_(pa.float32())),
        spark.MapType(spark.ShortType(), spark.ArrayType(spark.FloatType())),
    ),
    (
        pa.list_(pa.struct([("x", pa.uint8())]), 2),
        pa.list_(pa.struct([("x", pa.int16())])),
        spark.ArrayType(spark.StructType([spark.StructField("x", spark.ShortType())])),
    ),
    (pa.uuid(), pa.binary(), spark.BinaryType()),
]

HALF = np.float16(0.5)  # what old pyarrow wants a float16 to be made of

VALUES = [
    (pa.array([0, None, 255], pa.uint8()), [0, None, 255]),
    (pa.array([2**64 - 1, None], pa.uint64()), [Decimal(2**64 - 1), None]),
    (pa.array([HALF, None], pa.float16()), [0.5, None]),
    (pa.array([b"abcd", None], pa.binary(4)), [b"abcd", None]),
    (
        pa.array(
            [[("a", [1, None])], None, [], [("b", None), ("c", [])]],
            pa.map_(pa.large_string(), pa.large_list(pa.uint8())),
        ),
        None,
    ),
    (
        pa.array(
            [[{"x": 1}, None], None, [{"x": 2}] * 2], pa.list_(pa.struct([("x", pa.uint8())]), 2)
        ),
        None,
    ),
    (pa.array(["x", None, "y"]).dictionary_encode(), ["x", None, "y"]),
    (pa.array([[HALF, None], None, [HALF, HALF]], pa.list_(pa.float16(), 2)), None),
    (pa.array([["a"], None, [], [None]], pa.large_list(pa.large_string())), None),
    (pa.array([[[1], None], None, []], pa.list_(pa.list_(pa.uint16()))), None),
    (
        pa.array(
            [{"n": 1, "s": {"v": [HALF]}}, None, {"n": None, "s": None}],
            pa.struct([("n", pa.uint32()), ("s", pa.struct([("v", pa.list_(pa.float16(), 1))]))]),
        ),
        None,
    ),
    (
        pa.array([datetime.time(1, 2, 3), None], pa.time32("s")),
        [datetime.time(1, 2, 3), None],
    ),
]


@pytest.mark.parametrize(("arrow", "carrying", "kind"), CARRIED, ids=lambda value: str(value))
def test_missing_types_are_carried_by_others(
    arrow: pa.DataType, carrying: pa.DataType, kind: spark.DataType
) -> None:
    """Spark lacks many Arrow types, and each of them needs one type that holds
    all of its values.
    """
    assert carrier(arrow) == carrying
    assert spark_schema(carrier_schema(pa.schema([("c", arrow)]))) == spark.StructType(
        [spark.StructField("c", kind)]
    )


@pytest.mark.parametrize("case", VALUES, ids=lambda case: str(case[0].type))
@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])
def test_values_are_carried_unchanged(case: tuple[pa.Array, list[object]], sliced: bool) -> None:
    """A slice of an array has an offset that a conversion of raw buffers could ignore."""
    if pa.types.is_time(case[0].type) and TIME_TYPE is None:
        pytest.skip("requires PySpark 4.1")
    array, expected = case
    expected = array.to_pylist() if expected is None else expected
    if sliced:
        array, expected = array.slice(1), expected[1:]
    schema = pa.schema([("c", array.type)])
    batch = to_spark(pa.record_batch([array], schema=schema), carrier_schema(schema))
    batch.validate(full=True)
    assert batch.schema == carrier_schema(schema)
    assert batch.column(0).to_pylist() == expected


def test_timestamps_are_truncated_to_microseconds() -> None:
    """Spark counts microseconds, and rounding up could move a time into the next second."""
    array = pa.array([1_999, -1], pa.timestamp("ns"))
    batch = to_spark(pa.record_batch({"c": array}), carrier_schema(pa.schema([("c", array.type)])))
    assert batch.column(0).cast(pa.int64()).to_pylist()[0] == 1


def test_columns_are_reordered_dropped_or_filled() -> None:
    """Files of earlier versions may have other columns than the DataFrame that
    Spark has planned.
    """
    carried = carrier_schema(pa.schema([("a", pa.int64()), ("b", pa.uint8())]))
    batch = to_spark(pa.record_batch({"x": pa.array([1]), "a": pa.array([2])}), carried)
    assert batch.to_pylist() == [{"a": 2, "b": None}]


def test_unexpected_types_name_their_column() -> None:
    """Spark would misread the buffers of a column with another type."""
    carried = carrier_schema(pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidInputError, match="'a' is string"):
        to_spark(pa.record_batch({"a": pa.array(["1"])}), carried)


def test_row_ids_and_versions_are_bigints() -> None:
    """Row ids are unsigned, and as decimals they would be slow to join."""
    carried = carrier_schema(
        pa.schema([("_rowid", pa.uint64()), ("_row_created_at_version", pa.uint64())])
    )
    assert carried.types == [pa.int64(), pa.int64()]


@pytest.mark.parametrize("arrow", [pa.decimal256(39, 0), pa.month_day_nano_interval()], ids=str)
def test_types_impossible_in_spark_are_named(
    arrow: pa.DataType,
) -> None:
    """The error must name the column, since a table with hundreds of them may be selected without
    it.
    """
    with pytest.raises(UnsupportedFeatureError) as refusal:
        carrier_schema(pa.schema([("odd", arrow)]))
    assert "'odd'" in "".join(refusal.value.__notes__)


def test_new_tables_take_the_dataframes_types() -> None:
    """Nullability of columns, elements and map values has to follow the DataFrame, and CHAR
    lengths are dropped.
    """
    schema = spark.StructType(
        [
            spark.StructField("id", spark.LongType(), nullable=False),
            spark.StructField("name", spark.VarcharType(10)),
            spark.StructField("at", spark.TimestampType()),
            spark.StructField("vector", spark.ArrayType(spark.FloatType(), containsNull=False)),
            spark.StructField(
                "place",
                spark.StructType([spark.StructField("price", spark.DecimalType(10, 2))]),
            ),
            spark.StructField("tags", spark.MapType(spark.StringType(), spark.LongType(), False)),
        ]
    )
    assert stored_schema(schema).equals(
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("name", pa.string()),
                pa.field("at", pa.timestamp("us", "UTC")),
                pa.field("vector", pa.list_(pa.field("item", pa.float32(), nullable=False))),
                pa.field("place", pa.struct([("price", pa.decimal128(10, 2))])),
                pa.field(
                    "tags", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
                ),
            ]
        )
    )


@pytest.mark.parametrize(
    "kind",
    [
        *([spark.VariantType()] if hasattr(spark, "VariantType") else []),
        spark.YearMonthIntervalType(),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_unsupported_spark_types_give_their_path(
    kind: spark.DataType,
) -> None:
    """A type inside nested columns can only be located by its path."""
    inner = spark.StructType([spark.StructField("odd", kind)])
    with pytest.raises(UnsupportedFeatureError, match=r"outer\.item\.odd"):
        stored_schema(spark.StructType([spark.StructField("outer", spark.ArrayType(inner))]))


@pytest.mark.spark
@pytest.mark.since_spark("4.0")  # older ones compare the names of the fields of lists
@pytest.mark.essential
def test_pyspark_agrees_about_every_carrier() -> None:
    """PySpark converts the Arrow batches on its own, so the declared schema has to be the one that
    it derives.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pa.schema([(f"c{i}", arrow) for i, (arrow, _, _) in enumerate(CARRIED)])
    carried = carrier_schema(schema)
    assert spark_schema(carried) == from_arrow_schema(carried, prefer_timestamp_ntz=True)
