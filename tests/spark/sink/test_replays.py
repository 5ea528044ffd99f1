"""A replayed batch is distinguished from a second DataFrame, and errors say what to do.

The remedy in each message is followed to the letter, and ends with each row once.
"""

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.spark import lance_sink
from lance_stream.spark.sink.lance_sink import LanceSink
from lance_stream.table.config.ledger_entries import MAX_RECENT
from tests.remedies import follow

pytestmark = pytest.mark.spark

APP_ID_REMEDY = "[Gg]ive the sink that failed now its own app_id"
GIVE_THE_ONE_THAT_FAILED = "give the one that failed now its own app_id"


def rows(*ids: int, op: str = "i") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "op": [op] * len(ids)})


def ids_of(uri: str) -> list[int]:
    return sorted(lance_stream.open_dataset(uri).to_table(["id"])["id"].to_pylist())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def in_halves(first: LanceSink, second: LanceSink) -> Callable[[Any, int], None]:
    """Return a function that writes a batch's even rows to one sink, its odd rows to another."""

    def put(df: Any, batch_id: int) -> None:
        first(df.filter("id % 2 = 0"), batch_id)
        second(df.filter("id % 2 = 1"), batch_id)

    return put


def unsettled(file_stream: Any) -> Any:
    """Return a stream whose plan Spark does not consider deterministic."""
    return file_stream.read().selectExpr("id", "op", "rand() AS x")


def run(file_stream: Any, sink: Callable[[Any, int], None], df: Any = None) -> None:
    """Run a query in output mode "append"."""
    writer = (file_stream.read() if df is None else df).writeStream.foreachBatch(sink)
    checkpoint = str(file_stream.checkpoints / "main")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("is_deterministic", [True, False])
def test_second_dataframes_need_their_app_id(
    file_stream: Any, uri: str, is_deterministic: bool
) -> None:
    """The second DataFrame of a batch must not be taken for a replay of the first, even if the
    plan is nondeterministic or the query was restarted.
    """
    file_stream.add(rows(0, 1, 2))
    df = None if is_deterministic else unsettled(file_stream)
    for other in (uri, f"{uri}/"):
        with pytest.raises(Exception, match=APP_ID_REMEDY):
            run(file_stream, in_halves(lance_sink(uri), lance_sink(other)), df)
        assert ids_of(uri) == [0, 2]
    first, second = lance_sink(uri), lance_sink(f"{uri}/", app_id="odd")
    run(file_stream, in_halves(first, second), df)
    assert first.last_commit is not None
    assert (first.last_commit.skipped, first.last_commit.rows_differ) == (
        True,
        not is_deterministic,
    )
    assert ids_of(uri) == [0, 1, 2]

    file_stream.forget_newest_commit()
    run(file_stream, in_halves(first, second), df)
    file_stream.add(rows(3, 4))
    run(file_stream, in_halves(first, second), df)
    assert ids_of(uri) == [0, 1, 2, 3, 4]


@pytest.mark.floors
def test_swapped_sinks_are_noticed(file_stream: Any, uri: str) -> None:
    """One of the two is taken for a replay, but the other is refused, so Spark does not commit the
    batch.
    """
    file_stream.add(rows(0, 1))
    with pytest.raises(Exception, match=APP_ID_REMEDY):
        run(file_stream, in_halves(lance_sink(uri), lance_sink(uri)), unsettled(file_stream))

    def swapped(df: Any, batch_id: int) -> None:
        in_halves(sink, sink)(df.selectExpr("1 - id AS id", "op", "x"), batch_id)

    sink = lance_sink(uri)
    with pytest.raises(Exception, match=APP_ID_REMEDY):
        run(file_stream, swapped, unsettled(file_stream))
    assert ids_of(uri) == [0]


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("names", [(None, "odd"), ("even", None), ("even", "odd")])
def test_two_app_ids_write_both_halves(
    file_stream: Any, uri: str, names: tuple[str | None, str | None]
) -> None:
    """The half that is committed under one app id must not be taken for the other half."""
    file_stream.add(rows(0, 1))
    sinks = [lance_sink(uri, app_id=name) for name in names]
    for _ in range(2):
        run(file_stream, in_halves(*sinks), unsettled(file_stream))
        assert ids_of(uri) == [0, 1]
        file_stream.forget_newest_commit()


def test_two_app_ids_may_repeat_rows(file_stream: Any, uri: str) -> None:
    """The same rows under another app id are a second write that the user asked for, and each app
    id has its own replays.
    """
    file_stream.add(rows(0, 1))
    sinks = [lance_sink(uri), lance_sink(uri, app_id="again")]

    def both(df: Any, batch_id: int) -> None:
        for sink in sinks:
            sink(df, batch_id)

    for _ in range(2):
        run(file_stream, both)
        assert ids_of(uri) == [0, 0, 1, 1]
        file_stream.forget_newest_commit()


def test_two_sinks_need_two_app_ids(file_stream: Any, uri: str) -> None:
    """Two sinks with different rules on one batch need two app ids, or the second would be skipped
    as a replay.
    """
    rules: dict[str, Any] = {"mode": "upsert", "on": "id", "except_columns": ["op"]}
    lance_stream.create_dataset(uri, pa.schema([("id", pa.int64())]), primary_key=["id"])
    lance_stream.open_dataset(uri).append(rows(0, 1, 2).select(["id"]))
    file_stream.add(rows(1, op="d"))

    def both(deleting: LanceSink, inserting: LanceSink) -> Callable[[Any, int], None]:
        def put(df: Any, batch_id: int) -> None:
            deleting(df, batch_id)
            inserting(df, batch_id)

        return put

    deleting = lance_sink(uri, delete_when="op = 'd'", **rules)
    for _ in range(2):
        with pytest.raises(Exception, match=GIVE_THE_ONE_THAT_FAILED):
            run(file_stream, both(deleting, lance_sink(uri, **rules)))
        assert ids_of(uri) == [0, 2]
    run(file_stream, both(deleting, lance_sink(uri, app_id="inserts", **rules)))
    assert ids_of(uri) == [0, 1, 2]


def test_job_groups_do_not_hide_replays(file_stream: Any, uri: str) -> None:
    """The sink finds the running query by Spark's job group, which a user's
    function may replace.
    """
    file_stream.add(rows(0, 1))
    sink = lance_sink(uri)

    def put(df: Any, batch_id: int) -> None:
        df.sparkSession.sparkContext.setJobGroup("nightly", "the user's own group")
        sink(df, batch_id)

    for _ in range(2):
        run(file_stream, put)
        assert ids_of(uri) == [0, 1]
        file_stream.forget_newest_commit()
    assert sink.last_commit is not None
    assert (sink.last_commit.skipped, sink.last_commit.rows_differ) == (True, False)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("is_deterministic", [True, False])
def test_adding_an_app_id_keeps_replays(file_stream: Any, uri: str, is_deterministic: bool) -> None:
    """A query that gets an `app_id` has to recognize a batch that it committed without one; only a
    nondeterministic plan cannot be verified.
    """
    file_stream.add(rows(0, 1))
    df = None if is_deterministic else unsettled(file_stream)
    run(file_stream, lance_sink(uri), df)
    file_stream.forget_newest_commit()
    if not is_deterministic:
        with pytest.raises(Exception, match="start the query once as it was"):
            run(file_stream, lance_sink(uri, app_id="new"), df)
        run(file_stream, lance_sink(uri), df)
    run(file_stream, lance_sink(uri, app_id="new"), df)
    file_stream.add(rows(2))
    run(file_stream, lance_sink(uri, app_id="new"), df)
    assert ids_of(uri) == [0, 1, 2]


def test_nondeterministic_replays_are_skipped_with_warning(
    file_stream: Any, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of such a replay differ from the committed ones, which is no error, but the user
    should know.
    """
    file_stream.add(rows(0, 1))
    sink = lance_sink(uri)
    run(file_stream, sink, unsettled(file_stream))
    file_stream.forget_newest_commit()
    with caplog.at_level(logging.WARNING, "lance_stream.sink"):
        run(file_stream, sink, unsettled(file_stream))
    assert sink.last_commit is not None
    assert (sink.last_commit.skipped, sink.last_commit.rows_differ) == (True, True)
    assert "plan is nondeterministic" in caplog.text
    assert ids_of(uri) == [0, 1]


def test_current_time_does_not_break_replays(file_stream: Any, uri: str) -> None:
    """Spark considers the clock deterministic; the sink must not."""
    sink = lance_sink(uri)

    def put(df: Any, batch_id: int) -> None:
        sink(df.selectExpr("*", "named_struct('at', now()) AS taken_in"), batch_id)

    def put_and_die(df: Any, batch_id: int) -> None:
        put(df, batch_id)
        raise RuntimeError("after the commit")

    file_stream.add(rows(0, 1))
    with pytest.raises(Exception, match="after the commit"):
        run(file_stream, put_and_die)
    run(file_stream, put)
    assert sink.last_commit is not None
    assert (sink.last_commit.skipped, sink.last_commit.rows_differ) == (True, True)
    assert ids_of(uri) == [0, 1]


@pytest.fixture
def restored(file_stream: Any, uri: str) -> str:
    """A table whose query's checkpoint is an older copy; its next batch is no longer recorded.

    Returns:
        The message of the error that follows.
    """
    file_stream.add(rows(0))
    run(file_stream, lance_sink(uri))
    copy = file_stream.checkpoints / "copy"
    shutil.copytree(file_stream.checkpoints / "main", copy)
    for number in range(1, MAX_RECENT + 4):
        file_stream.add(rows(number))
    run(file_stream, lance_sink(uri))
    lance_stream.open_dataset(uri).cleanup(retain_versions=1, older_than="0 seconds")
    shutil.rmtree(file_stream.checkpoints / "main")
    shutil.move(copy, file_stream.checkpoints / "main")
    file_stream.add(rows(100))
    with pytest.raises(Exception, match="it is unknown whether these rows are in") as caught:
        run(file_stream, lance_sink(uri))
    return str(caught.value)


ALL_ROWS = [*range(MAX_RECENT + 4), 100]


def test_new_app_ids_duplicate_nothing(file_stream: Any, uri: str, restored: str) -> None:
    """Neither the batch id nor the app id reveals this replay, so the query's id in the ledger has
    to.
    """
    with pytest.raises(Exception, match=r"The checkpoint is an older copy, and the app id is new"):
        run(file_stream, lance_sink(uri, app_id="new"))
    assert ids_of(uri) == ALL_ROWS[:-1]


@pytest.mark.essential
def test_restored_checkpoints_repeat_no_keyed_rows(
    file_stream: Any, uri: str, restored: str
) -> None:
    """Following the remedy in the error for rows with a key leaves each row once."""
    follow(restored, deletes=False)
    advised = re.search(r"lance_sink\(.*?skip_unchanged=True\)", restored)
    assert advised is not None
    text = advised[0].replace("[the key's columns]", "['id']")
    before = lance_stream.open_dataset(uri).version
    run(file_stream, eval(text, {"lance_sink": lance_sink}))
    assert ids_of(uri) == ALL_ROWS
    changes = lance_stream.open_dataset(uri).changes(before).read_all()
    assert changes["id"].to_pylist() == [100]
    file_stream.add(rows(101))
    run(file_stream, lance_sink(uri))
    assert ids_of(uri) == [*ALL_ROWS, 101]


@pytest.mark.nightly
def test_restored_checkpoints_reread_unkeyed_rows(
    file_stream: Any, uri: str, restored: str
) -> None:
    """Following the remedy in the error for rows without a key leaves each row once."""
    advised = re.search(r"(open_dataset\('[^']+'\)\.delete\()a condition; ('true')", restored)
    assert advised is not None
    eval(f"{advised[1]}{advised[2]})", {"open_dataset": lance_stream.open_dataset})
    follow(restored, deletes=False)
    shutil.rmtree(file_stream.checkpoints / "main")
    run(file_stream, lance_sink(uri))
    assert ids_of(uri) == ALL_ROWS
