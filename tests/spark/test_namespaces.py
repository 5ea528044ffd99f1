"""Spark reads and writes tables by their names in a namespace, with keys that expire."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.spark import compact_table, lance_sink, register
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
def test_tasks_outlive_the_keys_of_their_stream(session: Any, issuing: IssuingNamespace) -> None:
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
