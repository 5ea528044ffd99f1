"""In every entry point from Spark, names of columns follow `spark.sql.caseSensitive`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

import lance_stream
from lance_stream.arguments import did_you_mean
from lance_stream.errors import InvalidInputError
from lance_stream.feed.following.offsets import to_offset
from lance_stream.feed.following.positions import Position
from lance_stream.spark import lance_sink, register
from lance_stream.spark.session.column_names import (
    find_column,
    names_in_table,
    resolve_columns,
    resolve_filter,
)
from lance_stream.spark.source.lance_source import LanceSource

NESTED = pa.struct([("a", pa.struct([("B", pa.int32())]))])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("I d", pa.int64()),
        ("V", pa.string()),
        ("st", NESTED),
        ("Date", pa.date32()),
        ("Bigint", pa.int64()),
        ("items", pa.list_(pa.struct([("Price", pa.int32())]))),
    ]
)


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        ("ID = 1 AND v = 'v'", "`id` = 1 AND `V` = 'v'"),
        ("id = 1", "id = 1"),
        ("`I D` > 5 OR `v` IS NULL", "`I d` > 5 OR `V` IS NULL"),
        ("ST.A.b IN (1, 2) AND st . a . b=1", "`st`.`a`.`B` IN (1, 2) AND `st`.`a`.`B`=1"),
        ("ID::bigint > BIGINT", "`id`::bigint > `Bigint`"),
        ("CAST(ID AS bigint) > 1", "CAST(`id` AS bigint) > 1"),
        ("DATE = DATE '2024-01-01'", "`Date` = DATE '2024-01-01'"),
        ("v = 'ID' OR V = X'00'", "`V` = 'ID' OR V = X'00'"),
        ("ID > .5 -- ID\n AND nope = 1", "`id` > .5 -- ID\n AND nope = 1"),
    ],
)
def test_filters_name_columns_in_any_case(written: str, resolved: str) -> None:
    """Names must be resolved in columns, nested fields and quoted names, but never in strings,
    types or comments.
    """
    assert resolve_filter(written, SCHEMA, case_sensitive=False) == resolved
    assert resolve_filter(written, SCHEMA, case_sensitive=True) == written


def test_columns_match_in_any_case() -> None:
    """A list of columns may name nested fields, and unknown names must pass unchanged so that a
    later error quotes what the user wrote.
    """
    names = ["ID", "ST.A", "Items.price", "nope", "st", "i d"]
    resolved = ("id", "`st`.`a`", "`items`.`Price`", "nope", "st", "I d")
    assert resolve_columns(names, SCHEMA, case_sensitive=False) == resolved
    assert resolve_columns(names, SCHEMA, case_sensitive=True) == tuple(names)
    assert resolve_columns(None, SCHEMA, case_sensitive=False) is None


def test_ambiguous_names_are_refused() -> None:
    """A table may hold columns that differ in case alone, and a guess would read the wrong one."""
    twins = pa.schema([("v", pa.int64()), ("V", pa.int64()), ("id", pa.int64())])
    with pytest.raises(InvalidInputError, match="'v' could be 'V' or 'v'"):
        resolve_filter("v = 1", twins, case_sensitive=False)
    with pytest.raises(InvalidInputError, match=r"spark.sql.caseSensitive"):
        resolve_columns(["V"], twins, case_sensitive=False)
    assert resolve_columns(["ID"], twins, case_sensitive=False) == ("id",)
    assert find_column("V", twins.names, case_sensitive=True) == "V"


def test_columns_of_a_batch_never_merge() -> None:
    """Two columns of a batch that match the same column of the table would overwrite each other."""
    assert names_in_table(["ID", "x"], ["id", "y"], case_sensitive=False) == ["id", "x"]
    assert names_in_table(["ID", "id"], ["id"], case_sensitive=True) == ["ID", "id"]
    for names, is_exact in ((["v", "V"], False), (["v", "v"], False), (["v", "v"], True)):
        with pytest.raises(InvalidInputError, match="does not distinguish"):
            names_in_table(names, [], case_sensitive=is_exact)


def test_misspelt_names_get_a_suggestion() -> None:
    """A suggestion helps only if it ignores case, and an arbitrary one misleads."""
    assert did_you_mean("valu", ["id", "Value"]) == " (did you mean 'Value'?)"
    assert did_you_mean("other", ["id", "Value"]) == ""


# --- in a session


@pytest.fixture
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def exact_session(spark: Any) -> Iterator[Any]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        register(spark, name="exact_lance")
        yield spark
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def rows_of(uri: str) -> list[dict[str, Any]]:
    table = lance_stream.open_dataset(uri).to_table()
    return table.sort_by(table.schema.names[0]).to_pylist()


@pytest.mark.spark
@pytest.mark.nightly
def test_batches_in_another_case_match(session: Any, tmp_path: Path) -> None:
    """Sink, format, feed and table creation resolve names separately, so each is checked with
    names in another case.
    """
    uri = str(tmp_path / "table")
    data = pa.table({"id": [1, 2], "Name": ["a", "b"]})
    lance_stream.create_dataset(uri, data.schema).append(data)
    upsert = lance_sink(
        uri,
        mode="upsert",
        on="Id",
        sequence_by="ID",
        delete_when="NAME = 'gone'",
        except_columns=["EXTRA"],
        app_id="a",
    )
    upsert(
        session.createDataFrame([(1, "A", 0), (2, "gone", 0)], "iD long, nAME string, Extra int"), 0
    )
    more = session.createDataFrame([(3, "c", 5)], "ID long, NAME string, More int")
    lance_sink(uri, app_id="a", schema_evolution="add_columns")(more, 1)
    with pytest.raises(InvalidInputError, match=r"no column 'nam' \(did you mean 'NAME'"):
        lance_sink(uri, app_id="a", except_columns=["nam"])(more, 2)
    more.write.format("lance").mode("append").save(uri)
    assert rows_of(uri) == [
        {"id": 1, "Name": "A", "More": None},
        {"id": 3, "Name": "c", "More": 5},
        {"id": 3, "Name": "c", "More": 5},
    ]
    more.write.format("lance").mode("overwrite").save(uri)
    assert rows_of(uri) == [{"id": 3, "Name": "c", "More": 5}]
    read = session.read.format("lance").options(columns="NAME,id", filter="ID = 3 AND more > 1")
    assert [tuple(row) for row in read.load(uri).collect()] == [("c", 3)]
    feed = session.read.format("lance").options(readChangeFeed="true", startingVersion="1")
    changes = feed.options(columns="NAME", filter="ID = 1 AND _change_type = 'insert'").load(uri)
    assert [row.Name for row in changes.collect()] == ["a"]

    new_uri = str(tmp_path / "made")
    schema = pa.schema([("id", pa.int64()), ("Name", pa.string())])
    options = {"schema": schema, "primary_key": ["ID"]}
    lance_sink(new_uri, app_id="a", create_options=options, except_columns=["more"])(more, 0)
    assert rows_of(new_uri) == [{"id": 3, "Name": "c"}]


@pytest.mark.spark
def test_case_sensitive_sessions_distinguish_columns(exact_session: Any, tmp_path: Path) -> None:
    """With `spark.sql.caseSensitive` columns that differ in case are separate, and the same table
    must be refused as ambiguous in other sessions.
    """
    uri = str(tmp_path / "table")
    batch = exact_session.createDataFrame(
        [(1, "a", "A"), (2, "b", "B")], "id long, v string, V string"
    )
    sink = lance_sink(uri, mode="upsert", on="id", delete_when="V = 'B'", app_id="a")
    sink(batch, 0)
    lance_sink(uri, app_id="b", except_columns=["V"])(batch.filter("v = 'b'"), 0)
    batch.filter("V = 'A'").write.format("exact_lance").mode("append").save(uri)
    assert rows_of(uri) == [
        {"id": 1, "v": "a", "V": "A"},
        {"id": 1, "v": "a", "V": "A"},
        {"id": 2, "v": "b", "V": None},
    ]
    read = exact_session.read.format("exact_lance").options(columns="V,id", filter="v = 'b'")
    assert [tuple(row) for row in read.load(uri).collect()] == [(None, 2)]

    exact_session.conf.set("spark.sql.caseSensitive", "false")
    version = lance_stream.open_dataset(uri).version
    with pytest.raises(InvalidInputError, match="'v' and 'V', which Spark does not distinguish"):
        lance_sink(uri, app_id="c", except_columns=["v"])(batch, 0)
    with pytest.raises(InvalidInputError, match="'v' could be 'V' or 'v'"):
        lance_sink(uri, app_id="c")(batch.drop("V").selectExpr("1L AS id", "'x' AS v"), 0)
    register(exact_session)
    with pytest.raises(AnalysisException, match="'V' could be 'V' or 'v'"):
        exact_session.read.format("lance").option("columns", "V").load(uri)
    assert lance_stream.open_dataset(uri).version == version


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id long, valu string", r"column 'valu' does not exist \(did you mean 'value'"),
        ("id long, VALUE string", r"column 'VALUE' does not exist \(did you mean 'value'"),
        ("value long", "'value' has type string, not int64"),
        ("st struct<a: int, c: string>", r"column 'st\.c' does not exist"),
        ("id long NOT NULL", "'id' as not null"),
    ],
)
def test_schemas_unlike_the_table_are_refused(
    session: Any, typed_table: str, schema: str, message: str
) -> None:
    """Without a check Spark would fail in a task, far from the mistake, or return nulls for a
    misspelt column.
    """
    read = session.read.format("lance").schema(schema)
    with pytest.raises(AnalysisException, match=message):
        read.load(typed_table).collect()
    feed = read.options(readChangeFeed="true", startingVersion="1")
    with pytest.raises(AnalysisException, match=message):
        feed.load(typed_table).collect()
    for of_feed in ("false", "true"):
        stream = LanceSource({"path": typed_table, "readchangefeed": of_feed})
        with pytest.raises(InvalidInputError, match=message):
            stream.streamReader(StructType.fromDDL(schema)).initialOffset()


@pytest.fixture(scope="module")
def typed_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("typed") / "table")
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    data = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "value": ["x"],
            "f": pa.array([1.5], pa.float32()),
            "st": pa.array([{"a": 1, "b": "p"}], struct),
        }
    )
    lance_stream.create_dataset(uri, data.schema).append(data)
    return uri


@pytest.mark.spark
def test_user_schemas_may_reorder_and_widen(session: Any, typed_table: str) -> None:
    """Spark lets a user's schema reorder, widen and leave out columns, as for its built-in
    formats.
    """
    schema = "st struct<b: string>, f double, id long, _change_type string"
    read = session.read.format("lance").schema(schema)
    feed = read.options(readChangeFeed="true", startingVersion="1").load(typed_table)
    assert [tuple(row) for row in feed.collect()] == [(("p",), 1.5, 1, "insert")]
    stream = LanceSource({"path": typed_table, "readchangefeed": "true"})
    reader = stream.streamReader(StructType.fromDDL(schema))
    offsets = (
        to_offset(Position(0, is_snapshot=True)),
        to_offset(reader.follower.position_after(2)),
    )
    batches = [batch for part in reader.partitions(*offsets) for batch in reader.read(part)]
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == [
        ({"b": "p"}, 1.5, 1, "insert")
    ]


@pytest.mark.spark
def test_views_can_have_row_versions(session: Any, tmp_path: Path) -> None:
    """A view is the only way for SQL to ask for the hidden columns, whose values must agree with
    the versions that wrote the rows.
    """
    uri = str(tmp_path / "table")
    data = pa.table({"id": [1, 2]})
    lance_stream.create_dataset(uri, data.schema).append(data).append(data)
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW with_versions USING lance "
        f"OPTIONS (path '{uri}', withRowId 'true', withRowVersions 'true')"
    )
    newest = session.sql("SELECT * FROM with_versions WHERE _row_created_at_version > 2")
    assert newest.columns == [
        "id",
        "_rowid",
        "_row_created_at_version",
        "_row_last_updated_at_version",
    ]
    assert [tuple(map(int, row)) for row in newest.collect()] == [(1, 2, 3, 3), (2, 3, 3, 3)]


def test_streams_can_have_row_versions(tmp_path: Path) -> None:
    """A stream of appends reads a snapshot and later versions by different code, and both must
    fill the hidden columns.
    """
    uri = str(tmp_path / "table")
    data = pa.table({"id": [1, 2]})
    lance_stream.create_dataset(uri, data.schema).append(data).append(data)
    source = LanceSource({"path": uri, "withrowversions": "true", "columns": "ID"})
    schema = source.schema()
    assert schema.names == ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    reader = source.streamReader(schema)
    start = to_offset(Position(0, is_snapshot=True))
    end = to_offset(Position(3, mark=reader.follower.position_after(3).mark))
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    rows = [tuple(map(int, row.values())) for batch in batches for row in batch.to_pylist()]
    assert sorted(rows) == [(1, 2, 2), (1, 3, 3), (2, 2, 2), (2, 3, 3)]
