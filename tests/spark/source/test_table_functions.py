"""The SQL functions that inspect a table: `lance_table`, `lance_history` and others."""

import shutil
import tarfile
import time
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType
from pyspark.sql.udtf import AnalyzeArgument

import lance_stream
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.maintenance.consumers import record_progress
from lance_stream.spark import register
from lance_stream.spark.feed.table_function import changes_function
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.source.table_functions import _Analyzed, table_functions
from tests.golden.archives import unpack
from tests.golden.test_old_writers import FOLDER as OLD_WRITERS

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two versions of ids 0 to 4, then one without id 1; a tag; a consumer at version 2."""
    path = str(tmp_path_factory.mktemp("functions") / "t")
    ds = lance_stream.create_dataset(path, pa.table({"id": [0, 1, 2], "at": [None, None, None]}))
    ds = ds.append(pa.table({"id": [3, 4]}))
    ds.tags.create("whole", ds.version)
    record_progress(ds.table.refs, "mirror", 2)
    ds.delete("id = 1")
    return path


@pytest.fixture(scope="module")
def sql(spark: Any) -> Any:
    register(spark)
    return lambda text: [row.asDict() for row in spark.sql(text).collect()]


@pytest.mark.essential
def test_history_has_a_row_per_version(sql: Any, uri: str) -> None:
    """Counts and commit times have to agree with the manifests that pylance shows."""
    history = sql(f"SELECT * FROM lance_history('{uri}') ORDER BY version")
    assert [row["version"] for row in history] == [1, 2, 3]
    assert [row["num_rows"] for row in history] == [3, 5, 4]
    assert [row["operation"] for row in history] == ["Create", "Append", "Delete"]
    changed = [(row["rows_inserted"], row["rows_updated"], row["rows_deleted"]) for row in history]
    assert changed == [(3, 0, 0), (2, 0, 0), (0, 0, 1)]
    theirs = [version["timestamp"] for version in lance.dataset(uri).versions()]
    ours = [row["committed_at"].astimezone(UTC) for row in history]
    for one, other in zip(ours, theirs, strict=True):
        assert abs(one - other.astimezone(UTC)) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("version", "ids"),
    [
        ("", [0, 2, 3, 4]),
        (", 1", [0, 1, 2]),
        (", 'whole'", [0, 1, 2, 3, 4]),
        (", version => 2", [0, 1, 2, 3, 4]),
        pytest.param(", current_timestamp()", [0, 2, 3, 4], marks=pytest.mark.since_spark("4.1")),
        (", TIMESTAMP_NTZ '9999-12-31'", [0, 2, 3, 4]),
    ],
)
def test_tables_are_read_at_any_version(sql: Any, uri: str, version: str, ids: list[int]) -> None:
    """A version may be a number, a tag or a time, by position or by name, and SQL has no other way
    to ask for it.
    """
    rows = sql(f"SELECT id FROM lance_table('{uri}'{version}) ORDER BY id")
    assert [row["id"] for row in rows] == ids


def test_fragments_are_listed_with_sizes(sql: Any, uri: str) -> None:
    """Operators look for small fragments and deleted rows, so the counts and sizes have to match
    the files.
    """
    fragments = sql(f"SELECT * FROM lance_fragments('{uri}') ORDER BY fragment_id")
    theirs = lance.dataset(uri).get_fragments()
    assert [row["fragment_id"] for row in fragments] == [value.fragment_id for value in theirs]
    assert [row["num_rows"] for row in fragments] == [value.count_rows() for value in theirs]
    assert [row["num_deleted_rows"] for row in fragments] == [1, 0]
    files = [Path(uri, "data", value.data_files()[0].path) for value in theirs]
    assert [row["data_bytes"] for row in fragments] == [file.stat().st_size for file in files]
    assert len(sql(f"SELECT * FROM lance_fragments('{uri}', 1)")) == 1


def test_consumers_are_listed_with_lag(sql: Any, uri: str) -> None:
    """A consumer that has fallen behind holds back the cleanup of old versions."""
    (consumer,) = sql(f"SELECT * FROM lance_consumers('{uri}')")
    assert (consumer["name"], consumer["version"], consumer["versions_behind"]) == ("mirror", 2, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("lance_table('/not/there')", "NotFoundError: there is no dataset at"),
        ("lance_history('memory://t')", "InvalidInputError.*memory of one process"),
        ("lance_table({uri}, 0)", "InvalidInputError: lance_table: the version must be"),
        ("lance_table({uri}, 'no tag')", "no tag"),
        ("lance_fragments(7)", "InvalidInputError: lance_fragments: the first argument"),
    ],
)
def test_errors_are_one_sentence(sql: Any, uri: str, call: str, message: str) -> None:
    """A function runs in a Python worker, and its traceback would hide the message in a SQL
    client.
    """
    with pytest.raises(Exception, match=message) as caught:
        sql(f"SELECT * FROM {call.format(uri=repr(uri))}")
    assert "Traceback" not in str(caught.value)


def test_other_format_names_have_functions(spark: Any, sql: Any, uri: str) -> None:
    """A second registration with other options must not replace the functions of the first."""
    register(spark, "lake")
    assert sql(f"SELECT count(*) AS n FROM lake_table('{uri}')") == [{"n": 4}]


@pytest.mark.parametrize(("is_utc", "num_rows"), [(True, 1), (False, 0)])
def test_times_without_zone_are_utc(
    uri: str, monkeypatch: pytest.MonkeyPatch, is_utc: bool, num_rows: int
) -> None:
    """Workers receive every timestamp as one without a zone, here on a machine in Kolkata."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    (first, *_) = lance_stream.open_dataset(uri).versions()
    function = table_functions(SessionOptions())["fragments"](
        _Analyzed(StructType(), is_utc=is_utc)
    )
    moment = (first.timestamp + timedelta(seconds=1)).replace(tzinfo=None)
    try:
        if num_rows:
            assert len(list(function.eval(uri, moment))) >= num_rows
        else:
            with pytest.raises(NotFoundError):
                list(function.eval(uri, moment))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_functions_check_their_arguments(uri: str) -> None:
    """SQL passes any type of value, and True would otherwise be read as version 1."""
    function = table_functions(SessionOptions())["table"]()
    with pytest.raises(InvalidInputError, match="must be a number from 1"):
        function.eval(uri, True)


MAPS = {
    "plain": pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int32())),
    "of_structs": pa.array(
        [[("k", [{"a": 1}])], None, [("k", None)]],
        pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int64())]))),
    ),
    "in_list": pa.array([[[("k", 1)], None], None, []], pa.list_(pa.map_(pa.string(), pa.int32()))),
    "in_struct": pa.array(
        [{"m": [("k", b"1")], "n": 1}, None, {"m": None, "n": 2}],
        pa.struct([("m", pa.map_(pa.string(), pa.binary())), ("n", pa.int8())]),
    ),
    "of_maps": pa.array(
        [[(1, [(2, "x")])], None, [(1, None)]],
        pa.map_(pa.int64(), pa.map_(pa.int64(), pa.string())),
    ),
    "by_structs": pa.array(
        [[({"a": 1, "b": "y"}, "x")], None, []],
        pa.map_(pa.struct([("a", pa.int64()), ("b", pa.string())]), pa.string()),
    ),
}


def test_functions_and_format_return_equal_maps(spark: Any, sql: Any, tmp_path: Path) -> None:
    """Python workers convert maps differently for functions than for data sources."""
    path = str(tmp_path / "t")
    lance_stream.create_dataset(path, pa.table(MAPS))
    theirs = spark.read.format("lance").load(path)
    assert spark.sql(f"SELECT * FROM lance_table('{path}')").collect() == theirs.collect()
    names = ", ".join(MAPS)
    changes = spark.sql(f"SELECT {names} FROM lance_changes('{path}', 1)")
    assert changes.collect() == theirs.collect()
    assert theirs.first()["plain"] == {"k": 1, "l": None}


def test_queries_read_their_planned_version(spark: Any, sql: Any, tmp_path: Path) -> None:
    """Columns that are renamed between planning and execution would otherwise swap their values."""
    path = str(tmp_path / "t")
    ds = lance_stream.create_dataset(path, pa.table({"x": [1], "y": [2]}))
    newest = spark.sql(f"SELECT * FROM lance_table('{path}')")
    changes = spark.sql(f"SELECT * FROM lance_changes('{path}', 1)")
    ds = ds.append(pa.table({"x": [3], "y": [4]}))
    ds.rename_columns({"x": "z"}).rename_columns({"y": "x"}).rename_columns({"z": "y"})
    assert [row.asDict() for row in newest.collect()] == [{"x": 1, "y": 2}]
    assert [(row.x, row.y) for row in changes.collect()] == [(1, 2)]
    with pytest.raises(Exception, match="not those that the query was planned with"):
        sql(
            f"SELECT t.* FROM lance_history('{path}') h, LATERAL lance_table('{path}', h.version) t"
        )
    counts = sql(
        f"SELECT h.version, f.num_data_files FROM lance_history('{path}') h, "
        f"LATERAL lance_fragments('{path}', h.version) f"
    )
    assert sorted(row["version"] for row in counts) == [1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_recreated_tables_refuse_planned_queries(tmp_path: Path) -> None:
    """The new table has a version of the same number, whose rows are others."""
    path = str(tmp_path / "t")
    lance_stream.create_dataset(path, pa.table({"id": [1]}))
    arguments = [
        AnalyzeArgument(kind, value, isTable=False, isConstantExpression=True)
        for kind, value in ((StringType(), path), (LongType(), 1))
    ]
    functions = [table_functions(SessionOptions())["table"], changes_function(SessionOptions())]
    planned = [function(function.analyze(*arguments)) for function in functions]
    shutil.rmtree(path)
    lance_stream.create_dataset(path, pa.table({"id": [2]}))
    for function in planned:
        with pytest.raises(NotFoundError, match="Create the DataFrame or view again"):
            list(function.eval(path, 1))


def test_unrecorded_sizes_are_null(tmp_path: Path) -> None:
    """Old writers did not record the size of files, and 0 bytes would be wrong."""
    with tarfile.open(OLD_WRITERS / "0.10.18.tar.xz") as tar:
        unpack(tar, tmp_path)
    uri = str(min(tmp_path.glob("*/table.lance")))
    function = table_functions(SessionOptions())["fragments"]()
    assert {row[-1] for row in function.eval(uri)} == {None}
