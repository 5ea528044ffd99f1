"""Batches that change the table's columns: wider types, new parts of structs."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, OtherBatchError
from lance_stream.errors import InvalidInputError
from lance_stream.spark import LanceSink, lance_sink
from lance_stream.spark.sink import modes
from lance_stream.upsert import attempts
from tests.spark.sink.test_sink_modes import feed, rows_of

pytestmark = pytest.mark.spark

BOTH = ["add_columns", "widen_types"]
BIG = 2**40


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def dataset(uri: str) -> Dataset:
    return lance_stream.open_dataset(uri)


def types_of(uri: str) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in dataset(uri).schema}


@pytest.mark.floors
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("mode", ["append", "upsert", "overwrite"])
def test_types_are_widened_on_request(spark: Any, uri: str, mode: str) -> None:
    """Each mode writes rows in its own way, and only lossless casts may change the type of a
    column.
    """
    on = "id" if mode == "upsert" else None
    sink = lance_sink(uri, mode=mode, on=on, schema_evolution="widen_types", app_id="a")
    feed(spark, sink, 0, "id int, x float, d decimal(10,2)", (1, 0.5, Decimal("1.25")))
    feed(spark, sink, 1, "id long, x double, d decimal(8,4)", (BIG, 0.1, Decimal("1.2345")))
    kinds = {"id": pa.int64(), "x": pa.float64(), "d": pa.decimal128(12, 4)}
    assert types_of(uri) == kinds
    feed(spark, sink, 2, "id int, x float, d decimal(10,2)", (3, 1.5, Decimal("3.25")))
    assert types_of(uri) == kinds
    third = (3, 1.5, Decimal("3.25"))
    all_rows = [(1, 0.5, Decimal("1.25")), third, (BIG, 0.1, Decimal("1.2345"))]
    assert rows_of(uri) == ([third] if mode == "overwrite" else all_rows)
    with pytest.raises(InvalidInputError, match="'id' is string, but int64 in the table"):
        feed(spark, sink, 3, "id string", ("4",))
    fixed = lance_sink(uri, mode=mode, on=on, app_id="b")
    with pytest.raises(InvalidInputError, match="could change or lose values"):
        feed(spark, fixed, 0, "id decimal(20,0)", (Decimal(4),))
    assert dataset(uri).verify() == []


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_struct_fields_are_added_and_widened(spark: Any, uri: str, mode: str) -> None:
    """JSON sources change inside structs, so evolution has to reach nested fields, with nulls for
    older rows.
    """
    on = "id" if mode == "upsert" else None
    sink = lance_sink(uri, mode=mode, on=on, schema_evolution=BOTH, app_id="a")
    feed(spark, sink, 0, "id int, s struct<a:int>, l array<struct<p:int>>", (1, (1,), [(1,)]))
    wide = "id int, s struct<b:string, a:long>, l array<struct<p:int, q:int>>"
    feed(spark, sink, 1, wide, (2, ("x", BIG), [(1, 2)]))
    assert rows_of(uri) == [
        (1, {"a": 1, "b": None}, [{"p": 1, "q": None}]),
        (2, {"a": BIG, "b": "x"}, [{"p": 1, "q": 2}]),
    ]
    feed(spark, sink, 2, "id int, s struct<a:int>", (3, (3,)))
    assert rows_of(uri)[2] == (3, {"a": 3, "b": None}, None)
    only_new = lance_sink(uri, mode=mode, on=on, schema_evolution="add_columns", app_id="b")
    with pytest.raises(InvalidInputError, match=r"'s\.a' is double, but int64 in the table"):
        feed(spark, only_new, 0, "id int, s struct<a:double>", (1, (0.5,)))


def test_feeds_with_wider_types_are_applied(spark: Any, tmp_path: Path) -> None:
    """The source table is widened, and its replica has to follow."""
    source, replica = str(tmp_path / "source"), str(tmp_path / "replica")
    ids = pa.table({"id": pa.array([1, 2], pa.int32()), "x": [1.0, 2.0]})
    ds = lance_stream.create_dataset(source, ids.schema).append(ids)
    sink = lance_sink(
        replica, mode="apply_changes", on="id", schema_evolution="widen_types", app_id="a"
    )

    def replicate(batch_id: int, after: int) -> None:
        changes = spark.createDataFrame(dataset(source).changes(after).read_all().to_pandas())
        sink(changes, batch_id)

    replicate(0, 0)
    at = ds.version
    ds = ds.alter_columns({"path": "id", "data_type": pa.int64()}).delete("id = 2")
    ds.append(pa.table({"id": [BIG], "x": [3.0]}))
    replicate(1, at)
    assert rows_of(replica) == rows_of(source) == [(1, 1.0), (BIG, 3.0)]
    assert types_of(replica)["id"] == pa.int64()


def test_replays_across_widenings_are_recognized(spark: Any, uri: str) -> None:
    """The digest of a batch does not depend on the table's types."""
    sink = lance_sink(uri, schema_evolution="widen_types", app_id="a")
    feed(spark, sink, 0, "id int, x float", (1, 0.5))
    feed(
        spark, lance_sink(uri, app_id="b", schema_evolution=BOTH), 0, "id long, x double", (2, 0.1)
    )
    version = dataset(uri).version
    feed(spark, sink, 0, "id int, x float", (1, 0.5))
    assert sink.last_commit is not None
    assert sink.last_commit.skipped
    assert dataset(uri).version == version
    with pytest.raises(OtherBatchError):
        feed(spark, sink, 0, "id int, x float", (1, 0.75))


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
@pytest.mark.parametrize("path", ["id", "s.a"])
@pytest.mark.essential
def test_a_widening_rewrites_prepared_batches(
    spark: Any, uri: str, mode: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files have the narrower type, whose columns are no longer part of the table."""
    sink = lance_sink(uri, mode=mode, on="id" if mode == "upsert" else None, app_id="a")
    feed(spark, sink, 0, "id int, s struct<a:int>", (1, (1,)))
    name = {"append": "append_fragments", "overwrite": "overwrite_fragments"}.get(mode, "upsert")
    commit = getattr(modes, name)

    def be_late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(modes, name, commit)
        dataset(uri).alter_columns({"path": path, "data_type": pa.int64()})
        return commit(*args, **options)

    monkeypatch.setattr(modes, name, be_late)
    feed(spark, sink, 1, "id int, s struct<a:int>", (2, (2,)))
    ds = dataset(uri)
    both = [(1, {"a": 1}), (2, {"a": 2})]
    assert rows_of(uri) == (both[1:] if mode == "overwrite" else both)
    kind = ds.schema.field("s").type.field("a").type if path == "s.a" else types_of(uri)["id"]
    assert kind == pa.int64()
    assert sink.last_commit is not None
    assert sink.last_commit.rows_in == 1
    named = {file.path for fragment in ds.table.manifest.fragments for file in fragment.files}
    assert len({*ds.table.store.list_names("data")} - named) <= 1 + (mode == "overwrite")
    assert ds.verify() == []


def test_replanned_upserts_evolve_columns_again(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may replace all columns while an upsert commits; the sink would fail although
    it may add and widen columns.
    """
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a", schema_evolution=BOTH)
    feed(spark, sink, 0, "id long, x long, y long", (1, 1, 1))
    commit = attempts.commit_planned

    def be_late(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(attempts, "commit_planned", commit)
        rows = pa.table({"id": [9], "x": pa.array([9], pa.int32())})
        dataset(uri).overwrite(rows)
        return commit(*args, **more)

    monkeypatch.setattr(attempts, "commit_planned", be_late)
    feed(spark, sink, 1, "id long, x long, y long", (2, BIG, 2))
    rows = dataset(uri).to_table().sort_by("id").to_pylist()
    assert rows == [{"id": 2, "x": BIG, "y": 2}, {"id": 9, "x": 9, "y": None}]


def test_two_streams_widen_at_once(spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later commit has to find the common wider type instead of failing or narrowing the other
    stream's column.
    """
    first, other = (
        lance_sink(uri, schema_evolution="widen_types", app_id=name) for name in ("a", "b")
    )
    feed(spark, first, 0, "id int", (1,))
    commit = modes.append_fragments

    def be_late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(modes, "append_fragments", commit)
        feed(spark, other, 0, "id decimal(20,0)", (Decimal(BIG),))
        return commit(*args, **options)

    monkeypatch.setattr(modes, "append_fragments", be_late)
    feed(spark, first, 1, "id long", (2,))
    assert types_of(uri)["id"] == pa.decimal128(20, 0)
    assert rows_of(uri) == [(1,), (2,), (BIG,)]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("none", ()),
        ("add_columns", ("add_columns",)),
        ("add_columns, widen_types", ("add_columns", "widen_types")),
        (["widen_types"], ("widen_types",)),
        ([], ()),
    ],
)
def test_evolutions_may_be_text_or_lists(uri: str, option: Any, expected: tuple[str, ...]) -> None:
    """Options of Spark can only be text, while Python users pass lists."""
    sink: LanceSink = lance_sink(uri, schema_evolution=option)
    assert sink.arguments.schema_evolution == expected


@pytest.mark.parametrize("option", ["none, add_columns", ["widen"], 3, "mergeSchema", [True]])
def test_unknown_evolutions_are_refused(uri: str, option: Any) -> None:
    """A misspelt evolution that is ignored would stop the stream at the first new column."""
    with pytest.raises(InvalidInputError, match="schema_evolution"):
        lance_sink(uri, schema_evolution=option)
