"""Spark reads and writes tables by their names in a namespace, with keys that expire."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.spark import compact_table, lance_sink, register
from lance_stream.spark.arguments.option_values import table_id
from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.session.session_settings import read_namespace
from tests.servers.issuing_namespace import IssuingNamespace
from tests.servers.moto import MotoServer

FORMAT = "lance_by_name"
PREFIX = "spark.lance_stream.namespace."


@pytest.fixture
def issuing(moto: MotoServer) -> Iterator[IssuingNamespace]:
    namespace = IssuingNamespace(moto.new_bucket(), life_seconds=2.0)
    yield namespace
    namespace.close()


@pytest.fixture
def session(spark: Any, issuing: IssuingNamespace) -> Iterator[Any]:
    """A session whose settings name the namespace."""
    for name, value in issuing.settings.items():
        spark.conf.set(PREFIX + name, value)
    register(spark, FORMAT)
    yield spark
    for name in issuing.settings:
        spark.conf.unset(PREFIX + name)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.server("moto")
def test_tasks_outlive_the_streams_keys(session: Any, issuing: IssuingNamespace) -> None:
    """Tasks get the table's name with the options, and fetch their own keys."""
    sink = lance_sink(table_id="db.t", app_id="a")
    end, batch_id = time.monotonic() + 60, 0
    while len(issuing.used) < 4:
        assert time.monotonic() < end, issuing.keys
        sink(session.range(batch_id * 10, batch_id * 10 + 10, 1, 2), batch_id)
        rows = session.read.format(FORMAT).option("table", "db.t").load()
        batch_id += 1
        assert rows.count() == 10 * batch_id
        time.sleep(0.1)
    more = session.range(10 * batch_id, 10 * batch_id + 5)
    more.write.format(FORMAT).mode("append").option("table", "db.t").save()
    assert compact_table(session, table_id="db.t").count_rows() == 10 * batch_id + 5
    ds = lance_stream.open_dataset(table_id="db.t", namespace=issuing.settings)
    assert sorted(ds.to_table()["id"].to_pylist()) == list(range(10 * batch_id + 5))
    assert ds.verify() == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.since_spark("4.0")
@pytest.mark.server("moto")
def test_streams_by_name_outlive_their_keys(
    session: Any, issuing: IssuingNamespace, tmp_path: Path
) -> None:
    """Each task reads and writes with keys that expire before it ends."""
    source = lance_stream.create_dataset(
        None, pa.table({"id": range(20)}), table_id="db.t", namespace=issuing.settings
    )
    changes = session.readStream.format(FORMAT).option("readChangeFeed", "true")
    changes = changes.option("table", "db.t").option("startingVersion", 1).load()
    slow = changes.select("id").mapInArrow(_outlive_keys, "id long")
    writer = slow.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    sink = lance_sink(table_id="db.copy", namespace=issuing.settings, app_id="copy")
    query = writer.foreachBatch(sink).start()
    try:
        for number in (1, 2):
            query.processAllAvailable()
            source = source.append(pa.table({"id": range(20 * number, 20 * number + 20)}))
        query.processAllAvailable()
    finally:
        query.stop()
    assert len(issuing.used) > 4
    copy = lance_stream.open_dataset(table_id="db.copy", namespace=issuing.settings)
    assert sorted(copy.to_table()["id"].to_pylist()) == list(range(60))


def _outlive_keys(batches: Any) -> Any:
    import time

    for batch in batches:
        time.sleep(2.2)  # keys live for 2 seconds
        yield batch


@pytest.mark.spark
@pytest.mark.since_spark("4.1")
def test_streams_take_names_of_a_directory(spark: Any, tmp_path: Path) -> None:
    """A path and a name in a directory namespace lead to the same table."""
    for name, value in (("impl", "dir"), ("root", str(tmp_path))):
        spark.conf.set(PREFIX + name, value)
    try:
        register(spark, FORMAT)
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        writer = rows.select("value").writeStream.format(FORMAT).option("table", "events")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        names = spark.readStream.format(FORMAT).option("table", "events").load().writeStream
        names = names.format("memory").queryName("events_by_name").trigger(availableNow=True)
        names.start().awaitTermination()
    finally:
        for name in ("impl", "root"):
            spark.conf.unset(PREFIX + name)
    expected = lance_stream.open_dataset(tmp_path / "events.lance").count_rows()
    assert spark.table("events_by_name").count() == expected > 0


def test_settings_of_older_sessions_are_read() -> None:
    """PySpark 3.5 has no list of a session's current settings."""
    settings = [(f"{PREFIX}impl", "dir"), ("spark.master", "local")]
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=lambda: settings))
    session: Any = SimpleNamespace(conf=SimpleNamespace(), sparkContext=context)
    assert read_namespace(session) == {"impl": "dir"}


@pytest.mark.parametrize("parse", [parse_reader_options, parse_writer_options])
def test_names_need_a_namespace(parse: Any) -> None:
    """The settings are read by `register`, before the option is known."""
    streaming = (False,) if parse is parse_writer_options else ()
    with pytest.raises(InvalidInputError, match=r"before register\(spark\)"):
        parse({"table": "db.t"}, *streaming)
    with pytest.raises(InvalidInputError, match="name a table by its location"):
        parse({"table": "db.t", "path": "t"}, *streaming, namespace={"impl": "dir", "root": "r"})


def test_names_can_be_json_lists() -> None:
    """A name may contain a dot, and the text of a Python list is not a name."""
    assert table_id("table", '["db", "v1.2"]') == ("db", "v1.2")
    assert table_id("table", "db.t") == ("db", "t")
    with pytest.raises(InvalidInputError, match="JSON list"):
        table_id("table", str(["db", "t"]))
