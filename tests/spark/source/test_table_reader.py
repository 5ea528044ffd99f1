"""Tables read by Spark: a version, some columns, some rows, and every type."""

import datetime
import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality

import lance_stream
from lance_stream.errors import NotFoundError
from lance_stream.spark import register
from lance_stream.spark.source.lance_source import LanceSource

pytestmark = pytest.mark.spark

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "name": [None if i == 3 else f"n{i}" for i in range(10)],
        "x": [i / 4 for i in range(10)],
    }
)


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Version 1 is empty, version 2 has ids 0 to 4, version 3 has 0 to 9, version 4 deletes 7."""
    uri = str(tmp_path / "a table")
    table = lance_stream.create_dataset(uri, ROWS.schema)
    table.append(ROWS.slice(0, 5)).append(ROWS.slice(5)).delete("id = 7")
    return uri


def load(session: Any, uri: str, **options: Any) -> Any:
    return session.read.format("lance").options(**options).load(uri)


def ids(df: Any) -> list[int]:
    return sorted(row.id for row in df.collect())


@pytest.mark.essential
def test_spark_and_arrow_read_equal_rows(session: Any, uri: str) -> None:
    """Spark must return the same rows as the Python API, whatever the conversion of types in
    between.
    """
    expected = session.createDataFrame(lance_stream.open_dataset(uri).to_table())
    assert_df_equality(load(session, uri), expected, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.parametrize(
    ("version", "expected"), [(1, []), (2, [0, 1, 2, 3, 4]), (3, list(range(10)))]
)
def test_versions_are_read_by_number(
    session: Any, uri: str, version: int, expected: list[int]
) -> None:
    """Time travel has to return the rows of exactly that version, including the empty first one."""
    assert ids(load(session, uri, versionAsOf=version)) == expected


def test_tags_and_times_select_versions(session: Any, uri: str) -> None:
    """A time with an offset denotes the same instant in any zone."""
    lance.dataset(uri).tags.create("half", 2)
    assert ids(load(session, uri, tag="half")) == [0, 1, 2, 3, 4]
    moment = lance_stream.open_dataset(uri, 3).timestamp
    assert moment is not None
    assert ids(load(session, uri, timestampAsOf=moment.isoformat())) == list(range(10))
    zone = datetime.timezone(datetime.timedelta(hours=-3))
    elsewhere = moment.astimezone(zone).isoformat()
    assert ids(load(session, uri, timestampAsOf=elsewhere)) == list(range(10))


@pytest.mark.floors
def test_columns_and_filter_work_as_options(session: Any, uri: str) -> None:
    """The reader pushes no projection or filter down from Spark's plan, so options are the way to
    read less.
    """
    df = load(session, uri, columns="x,id", filter="id > 5 AND name IS NOT NULL")
    assert df.columns == ["x", "id"]
    assert ids(df) == [6, 8, 9]


def test_system_columns_can_be_selected(session: Any, uri: str) -> None:
    """Spark has no unsigned type for row ids and versions, and their values must not change."""
    df = load(session, uri, columns="id,_rowid,_row_created_at_version")
    assert dict(df.dtypes)["_rowid"] == "bigint"
    assert {(row[0], row[1], row[2]) for row in df.collect()} == {
        (i, i, 2 if i < 5 else 3) for i in range(10) if i != 7
    }


def test_lineage_filters_prune_partitions(session: Any, uri: str) -> None:
    """Such filters have to prune fragments, since users read recent changes with them."""
    created = "_row_created_at_version > 2 AND _row_created_at_version <= 3"
    df = load(session, uri, filter=created, columns="id")
    assert df.rdd.getNumPartitions() == 1
    assert ids(df) == [5, 6, 8, 9]
    assert ids(load(session, uri, filter="_rowid BETWEEN 3 AND 5 AND id <> 4")) == [3, 5]
    assert load(session, uri, filter="_row_last_updated_at_version > 3").count() == 0


@pytest.mark.essential
def test_one_dataframe_sees_one_version(session: Any, uri: str) -> None:
    """Two actions on a DataFrame must agree even if another writer commits in between."""
    df = load(session, uri)
    assert df.count() == 9
    lance_stream.open_dataset(uri).append(ROWS.slice(7, 1))
    assert df.count() == 9
    assert load(session, uri).count() == 10


@pytest.mark.parametrize("options", [{}, {"readChangeFeed": "true", "startingVersion": "1"}])
def test_recreated_tables_refuse_old_dataframes(tmp_path: Path, options: dict[str, str]) -> None:
    """The new table has a version of the same number, whose rows are others."""
    path = str(tmp_path / "t")
    lance_stream.create_dataset(path, pa.table({"id": [1]}))
    source = LanceSource({"path": path, **options})
    schema = source.schema()
    shutil.rmtree(path)
    lance_stream.create_dataset(path, pa.table({"id": [2]}))
    with pytest.raises(NotFoundError, match="Create the DataFrame or view again"):
        source.reader(schema).partitions()


def test_filters_of_one_dataframe_stay_apart(session: Any, uri: str) -> None:
    """Several queries may use one DataFrame, and the filter of one must not apply to another."""
    df = load(session, uri)
    assert ids(df.where("id = 3")) == [3]
    assert df.count() == 9
    assert ids(df.where("id = 3").union(df.where("id = 4"))) == [3, 4]


@pytest.mark.floors
def test_temporary_views_read_tables(session: Any, uri: str) -> None:
    """A temporary view is the way to read a table in plain SQL, with options for time travel."""
    session.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING lance OPTIONS (path '{uri}', versionAsOf '2')"
    )
    assert session.sql("SELECT sum(id) AS s FROM v WHERE id > 1").head().s == 9


@pytest.mark.since_spark("4.1")  # 4.0 plans a view each time it is read
def test_views_are_pinned_to_their_version(session: Any, uri: str) -> None:
    """Once the version is cleaned up, an error says so, unless the plan already holds its few
    rows.
    """
    for name in ("read", "unread"):
        session.sql(f"CREATE TEMPORARY VIEW {name} USING lance OPTIONS (path '{uri}')")
    assert session.table("read").count() == 9
    session.sql("INSERT INTO read SELECT 70 AS id, 'x' AS name, 0.5 AS x")
    assert session.table("read").count() == 9
    assert load(session, uri).count() == 10
    lance_stream.open_dataset(uri).compact().cleanup(retain_versions=1, delete_unverified=True)
    assert session.table("read").count() == 9
    says = "stays at the version that was the newest when it was created. That was version 4"
    with pytest.raises(Exception, match=f"(?s){says}.*create the DataFrame or view again"):
        session.table("unread").count()
    session.sql(f"CREATE OR REPLACE TEMPORARY VIEW unread USING lance OPTIONS (path '{uri}')")
    assert session.table("unread").count() == 10


def test_the_format_can_have_another_name(session: Any, uri: str) -> None:
    """Another library may already have registered the name "lance" in the session."""
    register(session, name="lance_stream")
    assert session.read.format("lance_stream").load(uri).count() == 9


@pytest.mark.nightly
def test_large_files_are_split_into_tasks(session: Any, tmp_path: Path) -> None:
    """Without a split one task would read a large fragment alone, and deleted rows must not shift
    the boundaries.
    """
    uri = str(tmp_path / "large")
    vectors = pa.FixedSizeListArray.from_arrays(pc.random(600_000 * 8), 8)  # 64 bytes each
    big = pa.table({"id": pa.array(range(600_000), pa.int64()), "vector": vectors})
    lance.write_dataset(big, uri, enable_stable_row_ids=True)
    lance.dataset(uri).delete("id % 1000 = 0")
    df = load(session, uri)
    assert df.rdd.getNumPartitions() > 1
    row = df.selectExpr("count(*) AS n", "count(DISTINCT id) AS d", "sum(id) AS s").head()
    live = [i for i in range(600_000) if i % 1000]
    assert (row.n, row.d, row.s) == (len(live), len(live), sum(live))


HALF = np.float16(0.5)  # what old pyarrow wants a float16 to be made of
TYPES = pa.table(
    {
        "u8": pa.array([255, None, 0], pa.uint8()),
        "u64": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "f16": pa.array([np.float16(1.5), None, np.float16(-2.0)], pa.float16()),
        "large": pa.array(["a", None, ""], pa.large_string()),
        "code": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "kind": pa.array(["k", None, "l"]).dictionary_encode(),
        "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
        "halves": pa.array([[HALF, HALF], None, [HALF, HALF]], pa.list_(pa.float16(), 2)),
        "numbers": pa.array([[1, None], None, []], pa.large_list(pa.uint16())),
        "place": pa.array(
            [{"x": 1, "y": [True]}, None, {"x": None, "y": None}],
            pa.struct([("x", pa.uint32()), ("y", pa.list_(pa.bool_()))]),
        ),
        "ns": pa.array([1_000, None, -1_000], pa.timestamp("ns")),
        "zoned": pa.array([0, None, 1], pa.timestamp("s", "Europe/Oslo")),
        "day": pa.array([0, None, 86_400_000], pa.date64()),
        "took": pa.array([5, None, -5], pa.duration("s")),
        "price": pa.array([125, None, 5], pa.int32()).cast(pa.decimal128(12, 2)),
        "nothing": pa.nulls(3),
    }
)


@pytest.mark.floors
def test_every_type_reaches_spark(session: Any, tmp_path: Path) -> None:
    """Every type has its own conversion, and a wrong one changes values without an error."""
    uri = str(tmp_path / "types")
    lance_stream.create_dataset(uri, TYPES.schema).append(TYPES)
    df = load(session, uri)
    assert dict(df.dtypes) == {
        "u8": "smallint",
        "u64": "decimal(20,0)",
        "f16": "float",
        "large": "string",
        "code": "binary",
        "kind": "string",
        "vector": "array<float>",
        "halves": "array<float>",
        "numbers": "array<int>",
        "place": "struct<x:bigint,y:array<boolean>>",
        "ns": "timestamp_ntz",
        "zoned": "timestamp",
        "day": "date",
        "took": "interval day to second",
        "price": "decimal(12,2)",
        "nothing": "void",
    }
    expected = TYPES.to_pylist()
    for loaded, row in zip(df.drop("nothing").toArrow().to_pylist(), expected, strict=True):
        for name, value in loaded.items():
            stored = row[name].to_pydatetime() if name == "ns" and row[name] else row[name]
            if name == "zoned" and value is not None:
                value, stored = value.timestamp(), stored.timestamp()
            if name == "day" and stored is not None and hasattr(stored, "date"):
                stored = stored.date()
            assert value == stored, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versionAsOf": "99"}, "NotFoundError.*99"),
        ({"columns": "id,colour"}, "NotFoundError.*colour"),
        ({"filter": "id >"}, "InvalidInputError"),
        ({"columms": "id"}, "InvalidInputError.*columms"),
        ({"consumer": "me"}, "InvalidInputError.*consumer"),
        ({"maxVersionsPerTrigger": "1"}, "InvalidInputError.*maxVersionsPerTrigger"),
    ],
)
def test_wrong_options_raise_our_errors(
    session: Any, uri: str, options: dict[str, str], message: str
) -> None:
    """PySpark wraps errors of a source, and the class and message of this package have to remain
    readable.
    """
    with pytest.raises(Exception, match=f"(?s){message}"):
        load(session, uri, **options).collect()


def test_filters_are_checked_at_load(session: Any, uri: str) -> None:
    """A misspelt column would otherwise fail in a task, with a traceback of a worker."""
    with pytest.raises(Exception, match="NotFoundError: there is no column 'idd'") as caught:
        load(session, uri, filter="idd = 1")
    assert "(did you mean 'id'?)" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_missing_tables_raise_our_errors(session: Any, tmp_path: Path) -> None:
    """A wrong path is the most frequent mistake, and its error must not be one of PyArrow or the
    operating system.
    """
    with pytest.raises(Exception, match=r"NotFoundError"):
        load(session, str(tmp_path / "nothing"))
