"""Following a table without Spark: batches, positions, consumers."""

import asyncio
import gc
import multiprocessing
import shutil
import subprocess
import sys
import threading
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.change_streams.change_stream import ChangeBatch, ChangeStream
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.maintenance.consumers import drop_consumer, list_consumers


def rows(*ids: int, value: float = 1.0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": [value] * len(ids)})


@pytest.fixture
def ds() -> Dataset:
    """Return version 5: inserts, an update that moves rows, a delete, and a compaction."""
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(*range(10)))
    table = table.append(rows(10, 11, 12))
    table = table.upsert(rows(3, 4, 20, value=2.0), on="id")
    return table.delete("id >= 8 AND id < 11").compact()


def changes_after(ds: Dataset, version: int) -> list[dict[str, Any]]:
    return ds.changes(version).read_all().to_pylist()


def read(stream: ChangeStream) -> list[dict[str, Any]]:
    with stream:
        return [row for batch in stream for row in batch.rows.to_pylist()]


@pytest.mark.parametrize("max_rows", [1, 2, 7, 1000])
def test_batches_add_up_to_the_feed(ds: Dataset, max_rows: int) -> None:
    """Limits split the feed into batches without changing its rows or their order."""
    stream = ds.follow(after=0, wait=False, max_rows=max_rows)
    batches = [batch.rows for batch in stream]
    assert max(batch.num_rows for batch in batches) <= max_rows
    assert pa.concat_tables(batches).to_pylist() == changes_after(ds, 0)


def test_a_snapshot_precedes_later_changes(ds: Dataset) -> None:
    """Without a position, the rows of the version come first, and then all later changes."""
    stream = ds.follow(wait=False, max_rows=4)
    first = next(stream)
    newer = ds.append(rows(30))
    batches = [first, *stream]
    by_id = {row["id"]: row for batch in batches for row in batch.rows.to_pylist()}
    assert {row["_change_type"] for row in by_id.values()} == {"insert"}
    assert sorted(by_id) == sorted(newer.to_table()["id"].to_pylist())
    assert by_id[30]["_commit_version"] == newer.version


def test_following_may_begin_after_this_version(ds: Dataset) -> None:
    """A service that has loaded a version needs the later changes, without its rows again."""
    stream = ds.follow(snapshot=False, wait=False)
    newer = ds.append(rows(30))
    assert read(stream) == changes_after(newer, ds.version)


def test_every_position_resumes_exactly_there(ds: Dataset) -> None:
    """A caller that stores positions with its output gets each row once, wherever it stopped."""
    ds = ds.update({"x": "x + 1"})
    batches = list(ds.follow(wait=False, max_rows=3, after=0))
    whole = [row for batch in batches for row in batch.rows.to_pylist()]
    done = 0
    for batch in batches:
        done += batch.num_rows
        assert read(ds.follow(after=batch.position, wait=False)) == whole[done:]


def test_positions_survive_later_commits_and_compactions(ds: Dataset) -> None:
    """Versions do not change, so a position inside one stays valid after later commits."""
    batches = list(ds.follow(wait=False, max_rows=3, after=0))
    rest = [row for batch in batches[2:] for row in batch.rows.to_pylist()]
    newer = ds
    for number in range(5):
        newer = newer.append(rows(100 + number)).compact()
    resumed = read(newer.follow(after=batches[1].position, wait=False))
    assert resumed == rest + changes_after(newer, ds.version)


def test_a_consumer_repeats_an_unfinished_batch(ds: Dataset) -> None:
    """The output of the batch that was being processed may not have been stored."""
    with ds.follow("trainer", wait=False, max_rows=4) as stream:
        next(stream)
        second = next(stream)
    with ds.follow("trainer", wait=False, max_rows=4) as stream:
        assert next(stream) == second
        stream.commit()
    rest = read(ds.follow("trainer", wait=False))
    assert len(rest) == ds.count_rows() - 8
    assert read(ds.follow("trainer", wait=False)) == []


def test_a_consumer_stores_positions_inside_versions(ds: Dataset) -> None:
    """A consumer that stored versions only would repeat a large one as a whole after each
    restart.
    """
    ds.follow("trainer", snapshot=False, wait=False).close()
    with ds.follow("trainer", after=ds.version, wait=False) as stream:
        assert list(stream) == []
    newer = ds.update({"x": "x + 1"})
    with newer.follow("trainer", after=ds.version, wait=False, max_rows=3) as stream:
        seen = next(stream).rows.to_pylist()
        stream.commit()
    rest = read(newer.follow("trainer", wait=False))
    assert seen + rest == changes_after(newer, ds.version)


def test_consumers_begin_at_their_first_start(ds: Dataset) -> None:
    """Changes that are committed between the first two runs must not be lost."""
    assert read(ds.follow("service", snapshot=False, wait=False)) == []
    newer = ds.append(rows(60)).append(rows(61))
    newer.cleanup(retain_versions=1)
    later = newer.follow("service", snapshot=False, wait=False)
    assert [row["id"] for row in read(later)] == [60, 61]


def test_cleanup_keeps_what_a_consumer_needs(ds: Dataset) -> None:
    """A cleanup must keep the versions that a consumer has not read, including the snapshot's."""
    with ds.follow("trainer", wait=False, max_rows=2) as stream:
        next(stream)
        newer = ds.append(rows(40)).append(rows(41))
        newer.cleanup(retain_versions=1)
        assert {ds.version, newer.version} <= {info.version for info in newer.versions()}
        for _ in stream:
            pass
    newer.append(rows(42)).cleanup(retain_versions=1)
    assert ds.version not in {info.version for info in newer.versions()}


def test_dropped_consumers_lose_their_snapshot(
    ds: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """Cleanup removes the snapshot's version: the error names it, and not a tag."""
    with ds.follow("trainer", wait=False, max_rows=2) as stream:
        next(stream)
        stream.commit()
        drop_consumer(ds.table.refs, "trainer")
        ds.append(rows(40)).cleanup(retain_versions=1)
        with pytest.raises(NotFoundError, match="have been read as a snapshot, no longer exists"):
            list(stream)
    assert "could not store the progress of consumer 'trainer'" in caplog.text


def test_consumers_need_row_ids() -> None:
    """A consumer that can read nothing would keep all versions from cleanup."""
    uri = f"memory://{uuid.uuid4()}/table"
    ds = lance_stream.create_dataset(uri, rows(1, 2), stable_row_ids=False)
    with pytest.raises(UnsupportedFeatureError, match="migrate_to_stable_row_ids"):
        ds.follow("trainer")
    assert list_consumers(ds.table.refs) == []


def test_missing_versions_are_an_error(ds: Dataset) -> None:
    """The changes of a cleaned-up version are unknown, so skipping it would lose rows."""
    position = next(ds.follow(wait=False, max_rows=1000)).position
    newer = ds.append(rows(40)).delete("id = 40").append(rows(41))
    newer.cleanup(retain_versions=1)
    with pytest.raises(NotFoundError, match="are needed"):
        next(newer.follow(after=position, wait=False))
    lenient = newer.follow(after=position, wait=False, fail_on_data_loss=False)
    assert read(lenient) == []


def test_a_filter_skips_batches_without_matches(ds: Dataset) -> None:
    """The caller only gets batches with matching rows, but its consumer still advances."""
    stream = ds.follow(
        "rare", after=0, wait=False, max_rows=2, columns=["id"], filter="x = 2 AND id < 20"
    )
    matches = read(stream)
    assert [(row["id"], row["_change_type"]) for row in matches] == [
        (3, "update_postimage"),
        (4, "update_postimage"),
    ]
    assert "x" not in matches[0]
    (consumer,) = list_consumers(ds.table.refs)
    assert consumer.version == ds.version


def test_lost_columns_stop_the_stream(ds: Dataset) -> None:
    """A batch cannot have a column that its version does not have."""
    with ds.follow(wait=False, snapshot=False) as stream:
        newer = ds.drop_columns(["x"])
        newer = newer.append(pa.table({"id": pa.array([50], pa.int64())}))
        with pytest.raises(InvalidInputError, match="column 'x' no longer exists"):
            next(stream)
        position = stream.position
    resumed = read(newer.follow(after=position, wait=False))
    assert [(row["id"], row["_change_type"]) for row in resumed] == [(50, "insert")]


def test_restarts_recognize_renamed_columns(ds: Dataset) -> None:
    """A position contains the ids of columns, so two columns may swap names."""
    ds = ds.rename_columns({"x": "y"})
    position = next(ds.follow(wait=False)).position
    newer = ds.add_columns({"x": "CAST(id AS double)"}).rename_columns({"x": "y", "y": "x"})
    newer = newer.append(pa.table({"id": pa.array([60], pa.int64()), "x": [7.0], "y": [9.0]}))
    last = read(newer.follow(after=position, wait=False))[-1]
    assert (last["id"], last["x"], last["y"]) == (60, 7.0, 9.0)


@pytest.mark.parametrize("consumer", ["reader", None])
def test_columns_keep_their_first_meaning(ds: Dataset, consumer: str | None) -> None:
    """A reader copies the rows itself and follows from there, perhaps before any batch arrives."""
    ds = ds.add_columns({"y": "x + 1"})
    stream = ds.follow(consumer, snapshot=False, wait=False)
    assert read(stream) == []
    newer = ds.rename_columns({"x": "y", "y": "x"})
    newer = newer.append(pa.table({"id": pa.array([60], pa.int64()), "x": [7.0], "y": [9.0]}))
    after = None if consumer else stream.position
    (row,) = read(newer.follow(consumer, after=after, wait=False))
    assert (row["id"], row["x"], row["y"]) == (60, 9.0, 7.0)


def test_the_stream_waits_for_new_versions(ds: Dataset) -> None:
    """A service follows a table continuously, and gets new versions as they are committed."""
    stream = ds.follow(snapshot=False, poll_seconds=0.01)
    timer = threading.Timer(0.1, lambda: ds.append(rows(70)))
    timer.start()
    assert next(stream).rows["id"].to_pylist() == [70]
    closing = threading.Timer(0.1, stream.close)
    closing.start()
    assert list(stream) == []


def test_asynchronous_waits_may_be_canceled(ds: Dataset) -> None:
    """`asyncio.wait_for` cancels slow calls, and the batch must not be lost."""

    async def collect() -> list[int]:
        ids: list[int] = []
        stream = ds.follow(snapshot=False, poll_seconds=0.01, max_rows=1)
        newer = ds
        for number in range(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.03)
            newer = newer.append(rows(80 + number))
            ids += (await anext(stream)).rows["id"].to_pylist()
        stream.close()
        return ids

    assert asyncio.run(collect()) == [80, 81, 82, 83, 84]


def test_async_iteration_ends_without_waiting(ds: Dataset) -> None:
    """`async for` yields the same batches as `for`."""

    async def collect() -> list[Any]:
        return [batch async for batch in ds.follow(wait=False, max_rows=3)]

    assert asyncio.run(collect()) == list(ds.follow(wait=False, max_rows=3))


def test_concurrent_calls_return_different_batches(ds: Dataset) -> None:
    """Several tasks that take batches from one stream must not process the same rows."""

    async def collect() -> list[Any]:
        stream = ds.follow(wait=False, max_rows=2)

        async def take() -> list[ChangeBatch]:
            return [batch async for batch in stream]

        return [batch for batches in await asyncio.gather(take(), take()) for batch in batches]

    batches = sorted(asyncio.run(collect()), key=lambda batch: batch.position)
    expected = list(ds.follow(wait=False, max_rows=2))
    assert batches == sorted(expected, key=lambda batch: batch.position)


def test_a_recreated_table_is_noticed(ds: Dataset, tmp_path: Any) -> None:
    """A new table has the same version numbers, so an old position is not valid for it."""
    uri = str(tmp_path / "t")
    old = lance_stream.create_dataset(uri, rows(1, 2)).append(rows(3))
    position = next(old.follow(wait=False)).position
    shutil.rmtree(uri)
    new = lance_stream.create_dataset(uri, rows(4)).append(rows(5)).append(rows(6))
    with pytest.raises(NotFoundError, match="deleted and re-created"):
        next(new.follow(after=position, wait=False))


def test_lag_counts_versions_and_rows(ds: Dataset) -> None:
    """Operators monitor the lag of readers."""
    stream = ds.follow(snapshot=False, wait=False)
    assert stream.lag().versions == 0
    newer = ds.append(rows(90, 91)).append(rows(92))
    lag = stream.lag()
    assert (lag.newest, lag.versions, lag.rows) == (newer.version, 2, 3)


BAD: list[Any] = [
    ({"max_rows": 0}, "max_rows must be a whole number"),
    ({"max_bytes": -1}, "max_bytes must be a whole number"),
    ({"poll_seconds": 0}, "poll_seconds must be greater than 0"),
    ({"after": 1.5}, "after must be a version's number, a tag or a datetime"),
    ({"after": "gold"}, "tag 'gold' does not exist"),
    ({"after": datetime(2999, 1, 1)}, "2999-01-01T00:00:00.00:00, which is in the future"),
    ({"after": 99}, "its newest version is 5"),
    ({"filter": "y > 1"}, "y"),
    ({"poll_seconds": "x"}, "poll_seconds must be greater than 0"),
    ({"consumer": 5}, "consumer must be a name"),
    ({"after": '{"version": 99}'}, "is not a position of a change stream"),
    ({"consumer": "a/b"}, "cannot be the name of a consumer"),
    ({"columns": "id"}, r"columns must be a list of names: \['id'\]"),
    ({"wait": "false"}, "wait must be True or False, not 'false'"),
    ({"pre_images": None}, "pre_images must be True or False, not None"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments_are_refused_at_once(
    ds: Dataset, arguments: dict[str, Any], message: str
) -> None:
    """Errors must point to the call with the argument, not to the read of the first batch."""
    with pytest.raises(LanceStreamError, match=message):
        ds.follow(**arguments)


@pytest.mark.parametrize("filter", [None, "id < 1000"])
def test_positions_survive_versions_without_rows(ds: Dataset, filter: str | None) -> None:
    """A consumer passes versions without rows for it, and cleanup then removes the last position.

    The caller of an exactly-once job has no later position, because batches have rows.
    """
    position = [batch.position for batch in ds.follow("job", filter=filter, wait=False)][-1]
    quiet = ds.update_config({"a": "1"})
    if filter is not None:
        quiet = quiet.append(rows(2000))
    for _ in range(2):  # also if the consumer resumes twice without rows
        assert list(quiet.follow("job", after=position, filter=filter, wait=False)) == []
        quiet = quiet.update_config({"a": str(quiet.version)})
        assert list(quiet.follow("job", after=position, filter=filter, wait=False)) == []
        quiet.cleanup(older_than="0 seconds", retain_versions=1)
        assert [version.version for version in quiet.versions()] == [quiet.version]
    newer = quiet.append(rows(77))
    if filter is not None:  # with another filter, rows in between may have been needed
        with pytest.raises(NotFoundError, match="no longer exists"):
            next(newer.follow("job", after=position, wait=False))
    (batch,) = newer.follow("job", after=position, filter=filter, wait=False)
    assert batch.rows["id"].to_pylist() == [77]


def test_limits_may_be_numpy_integers(ds: Dataset) -> None:
    """Limits are often computed, and a number of another type failed with the first batch."""
    limits = {"max_rows": np.int64(2), "max_bytes": np.uint32(1 << 20), "max_versions": np.int8(1)}
    for after, num_rows in ((None, ds.count_rows()), (0, ds.changes(0).read_all().num_rows)):
        batches = list(ds.follow(after=after, wait=False, **limits))  # type: ignore[arg-type]  # of numpy
        assert max(batch.num_rows for batch in batches) == 2
        assert sum(batch.num_rows for batch in batches) == num_rows


def test_invalid_positions_are_refused(ds: Dataset) -> None:
    """A damaged position must not be treated as the beginning."""
    with pytest.raises(CorruptDataError, match="is not a position"):
        ds.follow(after='{"version": 7')


def test_commit_needs_a_consumer(ds: Dataset) -> None:
    """Without a consumer, the position cannot be stored."""
    with pytest.raises(InvalidInputError, match="has no consumer"):
        ds.follow(wait=False).commit()


def test_following_imports_no_spark() -> None:
    """A training job or service may have neither Spark nor torch installed."""
    code = (
        "import sys, lance_stream, pyarrow as pa\n"
        "ds = lance_stream.create_dataset('memory://here/t', pa.table({'id': [1]}))\n"
        "assert next(ds.follow()).num_rows == 1\n"
        "print({'pyspark', 'torch', 'ray', 'daft'} & sys.modules.keys())"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "set()"


def test_canceled_waits_still_record_batches(ds: Dataset) -> None:
    """Recording continues on another thread, and must not record the next batch instead."""

    async def read_three() -> None:
        stream = ds.follow("trainer", wait=False, max_rows=2)
        for _ in range(3):
            await anext(stream)
            waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]  # a coroutine
            await asyncio.sleep(0)
            waiting.cancel()
        stream.commit()
        stream.close()

    asyncio.run(read_three())
    assert len(read(ds.follow("trainer", wait=False))) == ds.count_rows() - 6


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_read_is_repeated(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """A store may be unavailable for a moment, and the caller asks for the same batch again."""
    stream = ds.follow(wait=False, max_rows=2)

    def unavailable(*_: object) -> None:
        monkeypatch.undo()
        raise StoreUnavailableError("no connection")

    def read_next() -> ChangeBatch:
        async def read_once() -> ChangeBatch:
            try:
                return await anext(stream)
            finally:
                gc.collect()

        return asyncio.run(read_once()) if is_async else next(stream)

    monkeypatch.setattr(stream, "_read_after", unavailable)
    with pytest.raises(StoreUnavailableError):
        read_next()
    assert read_next().num_rows == 2
    stream.close()
    assert caplog.messages == []


def test_closing_ends_an_asynchronous_wait(ds: Dataset) -> None:
    """A service that shuts down must neither hang nor see an internal error."""

    async def close_while_waiting() -> list[Any]:
        batches: list[Any] = []
        for delay in (0, 0.01, 0.2):
            stream = ds.follow(snapshot=False, poll_seconds=60)

            async def collect(stream: ChangeStream = stream) -> None:
                batches.extend([batch async for batch in stream])

            waiting = asyncio.create_task(collect())
            await asyncio.sleep(delay)
            stream.close()
            await asyncio.wait_for(waiting, 5)
            assert stream.lag().versions == 0
        return batches

    assert asyncio.run(close_while_waiting()) == []


@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks")
@pytest.mark.parametrize("kind", ["scan", "follow"])
def test_forks_refuse_the_readers_of_parents(tmp_path: Path, kind: str) -> None:
    """The threads that read ahead exist in the parent alone, so a fork would wait for ever."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([("a", pa.int64())]))
    for number in range(40):
        ds = ds.append(pa.table({"a": [number]}))
    rows: Any = ds.scan() if kind == "scan" else ds.follow(wait=False, max_rows=1)
    next(rows)

    def read() -> None:
        with pytest.raises(lance_stream.InvalidInputError, match="was forked"):
            list(rows)
        assert ds.count_rows() == ds.to_table().num_rows == 40

    child = multiprocessing.get_context("fork").Process(target=read, daemon=True)
    child.start()
    child.join(10)
    is_waiting = child.is_alive()
    child.kill()
    assert (is_waiting, child.exitcode) == (False, 0)
    assert sum(batch.num_rows for batch in rows) == 39
