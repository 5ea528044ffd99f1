"""The stream reader, called as Spark calls it: starts, limits, kills, consumers, schemas."""

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.maintenance.consumers import list_consumers, read_progress, record_progress
from lance_stream.spark.versions import HAS_READ_LIMITS
from tests.spark.feed.query_runs import KilledError, Query

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

Change = tuple[str, int, int]  # its type, the version, the row's id


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    """Version 2 inserts 0 to 3, 3 deletes 1, 4 updates 2, 5 inserts 4 and 5."""
    table = lance_stream.create_dataset(str(tmp_path / "table"), SCHEMA).append(rows(0, 1, 2, 3))
    return table.delete("id = 1").update({"name": "'new'"}, where="id = 2").append(rows(4, 5))


# PySpark 4.1's reader is there whatever PySpark runs
BOTH = pytest.mark.parametrize(
    "without_start", [False, True] if HAS_READ_LIMITS else [True], ids=lambda v: f"4.1={v}"
)
WITH_LIMITS = pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 has no read limits")


def query(ds: Dataset, without_start: bool = not HAS_READ_LIMITS, **options: Any) -> Query:
    return Query(ds.uri, {name: str(value) for name, value in options.items()}, without_start)


def changes(batch: list[dict[str, Any]]) -> list[Change]:
    return [(row["_change_type"], row["_commit_version"], row["id"]) for row in batch]


def of_dataset(ds: Dataset, after: int) -> Counter[Change]:
    return Counter(changes(lance_stream.open_dataset(ds.uri).changes(after).read_all().to_pylist()))


def ids(batches: list[list[dict[str, Any]]]) -> list[list[int]]:
    return [[row["id"] for row in batch] for batch in batches]


# --- where a query begins


@BOTH
def test_changes_come_once_from_a_version(ds: Dataset, without_start: bool) -> None:
    """The start is inclusive, and neither a later version nor a repeated run may deliver a change
    twice.
    """
    stream = query(ds, without_start, startingVersion=3)
    stream.run()
    assert Counter(changes(stream.rows)) == of_dataset(ds, 2)
    ds.append(rows(8))
    assert ids(stream.run()) == [[8]]
    assert stream.run() == []


@BOTH
def test_a_snapshot_comes_first_by_default(ds: Dataset, without_start: bool) -> None:
    """A replica begins with all rows as inserts, and continues with the changes after the
    snapshot.
    """
    stream = query(ds, without_start)
    (batch,) = stream.run()
    assert sorted(changes(batch)) == [("insert", 5, number) for number in (0, 2, 3, 4, 5)]
    ds.append(rows(8)).delete("id = 0")
    (batch,) = stream.run()
    assert changes(batch) == [("insert", 6, 8), ("delete", 7, 0)]


@BOTH
def test_latest_starts_with_the_next_version(ds: Dataset, without_start: bool) -> None:
    """The version that is newest when the query starts is already known to the user."""
    stream = query(ds, without_start, startingVersion="latest")
    assert stream.run() == [[]]
    ds.append(rows(8))
    assert ids(stream.run()) == [[8]]


@BOTH
@pytest.mark.parametrize("kill", ["before planning", "before commit"])
def test_latest_survives_a_killed_first_batch(ds: Dataset, without_start: bool, kill: str) -> None:
    """Spark asks for the beginning again after a crash, and by then "latest" is another version."""
    stream = query(ds, without_start, startingVersion="latest")
    stream.start()
    stream.reader.initialOffset()
    ds = ds.append(rows(8))
    with pytest.raises(KilledError):
        stream.trigger(kill)
    ds.append(rows(9))
    stream.run()
    stream.run()
    assert [row["id"] for row in stream.rows] == [8, 9]


def moments(ds: Dataset) -> list[datetime]:
    return [version.timestamp for version in ds.versions() if version.timestamp is not None]


@BOTH
def test_changes_come_from_a_timestamp(ds: Dataset, without_start: bool) -> None:
    """A version committed exactly at the time is included, in any zone, and a time before the
    table means all of it.
    """
    first, _, third, *_ = moments(ds)
    in_tokyo = third.astimezone().isoformat()
    for moment, after in (
        (first - timedelta(days=1), 0),
        (third, 2),
        (third + timedelta(microseconds=1), 3),
    ):
        stream = query(ds, without_start, startingTimestamp=moment.isoformat())
        stream.run()
        assert Counter(changes(stream.rows)) == of_dataset(ds, after)
    stream = query(ds, without_start, startingTimestamp=in_tokyo)
    stream.run()
    assert Counter(changes(stream.rows)) == of_dataset(ds, 2)


@BOTH
def test_current_timestamps_yield_only_new_changes(ds: Dataset, without_start: bool) -> None:
    """No version exists yet at or after this time, which must not be an error."""
    stream = query(ds, without_start, startingTimestamp=datetime.now(UTC).isoformat())
    assert stream.run() == [[]]
    ds.append(rows(8))
    assert ids(stream.run()) == [[8]]


@BOTH
def test_future_timestamps_are_refused(ds: Dataset, without_start: bool) -> None:
    """A stream that starts in the future would depend on when it is started."""
    moment = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(InvalidInputError, match="in the future"):
        query(ds, without_start, startingTimestamp=moment.isoformat()).run()


def test_future_versions_are_refused(ds: Dataset) -> None:
    """Without `waitForTable` a start beyond the newest version is most likely a mistake."""
    with pytest.raises(InvalidInputError, match="99"):
        query(ds, startingVersion=99).run()


def test_compaction_adds_no_changes(ds: Dataset) -> None:
    """Compaction by another library rewrites rows without changing them, and consumers must not
    notice.
    """
    stream = query(ds, startingVersion=5)
    stream.run()
    lance.dataset(ds.uri).optimize.compact_files(target_rows_per_fragment=1000)
    compacted = lance_stream.open_dataset(ds.uri)
    assert [batch for batch in stream.run() if batch] == []
    compacted.append(rows(8))
    assert [changes(batch) for batch in stream.run()] == [[("insert", compacted.version + 1, 8)]]


# --- limits


@WITH_LIMITS
@pytest.mark.parametrize(
    "limits",
    [
        {"maxRowsPerTrigger": 2},
        {"maxVersionsPerTrigger": 1},
        {"maxBytesPerTrigger": 200},
        {"maxRowsPerTrigger": 3, "maxVersionsPerTrigger": 2, "maxBytesPerTrigger": 10_000_000},
    ],
    ids=str,
)
def test_batches_respect_their_limits(ds: Dataset, limits: dict[str, int]) -> None:
    """Each limit bounds a batch, alone and combined with others, and together the batches deliver
    every change once.
    """
    stream = query(ds, startingVersion=2, **limits)
    batches = stream.run()
    assert Counter(changes(stream.rows)) == of_dataset(ds, 1)
    assert len(batches) > 1
    for batch in batches:
        assert len(batch) <= limits.get("maxRowsPerTrigger", 10)
        versions = {row["_commit_version"] for row in batch}
        assert len(versions) <= limits.get("maxVersionsPerTrigger", 10)


@WITH_LIMITS
def test_available_now_ends_at_start_version(ds: Dataset) -> None:
    """Versions that are committed during the run belong to the next one, or the run might never
    end.
    """
    stream = query(ds, startingVersion=2, maxRowsPerTrigger=2)
    stream.start()
    stream.reader.prepareForTriggerAvailableNow()
    for number in range(100, 200):
        ds = ds.append(rows(number))
        if not stream.trigger():
            break
    assert {row["_commit_version"] for row in stream.rows} == {2, 3, 4, 5}


@WITH_LIMITS
def test_read_all_available_ignores_limits(ds: Dataset) -> None:
    """Spark asks for everything at the end of a bounded run, which then has to reach the newest
    version.
    """
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    stream = query(ds, startingVersion=2, maxRowsPerTrigger=2)
    stream.start()
    end = stream.reader.latestOffset(stream.reader.initialOffset(), ReadAllAvailable())
    assert end["version"] == 5


def test_limits_apply_after_first_batch(ds: Dataset) -> None:
    """PySpark 4.1 does not pass limits to the first batch of a run, but later batches respect
    them.
    """
    stream = query(ds, without_start=True, startingVersion=2, maxRowsPerTrigger=2)
    stream.start()
    stream.trigger()
    assert Counter(changes(stream.rows)) == of_dataset(ds, 1)
    ds.append(rows(6, 7, 8))
    while stream.trigger():
        pass
    assert ids(stream.batches[1:]) == [[6, 7], [8]]


# --- kills


@WITH_LIMITS
@pytest.mark.parametrize("options", [{}, {"startingVersion": 2}], ids=["snapshot", "changes"])
@pytest.mark.parametrize("kill", ["before planning", "before commit"])
def test_killed_queries_lose_and_repeat_nothing(
    ds: Dataset, options: dict[str, int], kill: str
) -> None:
    """A process can die at any step between two commits of the checkpoint."""
    stream = query(ds, maxRowsPerTrigger=2, **options)
    batches: list[list[dict[str, Any]]] = []
    for number in range(40):
        stream.start()
        if stream.num_done > len(batches):
            batches.append(stream.batches[-1])
        if number < 3:
            ds = ds.append(rows(100 + number, 200 + number))  # while a snapshot is being read
        try:
            if not stream.trigger(kill):
                break
        except KilledError:
            continue
    delivered = [row for batch in batches for row in batch]
    if options:
        assert Counter(changes(delivered)) == of_dataset(ds, 1)
    else:
        snapshot = json.loads(stream.offsets[0])["version"]
        assert sorted(
            row["id"] for row in delivered if row["_commit_version"] <= snapshot
        ) == sorted(lance_stream.open_dataset(ds.uri, snapshot).to_table()["id"].to_pylist())
        later = [row for row in delivered if row["_commit_version"] > snapshot]
        assert Counter(changes(later)) == of_dataset(ds, snapshot)


# --- consumers


@BOTH
def test_consumers_record_finished_batches_only(ds: Dataset, without_start: bool) -> None:
    """Progress that runs ahead of Spark's checkpoint would let cleanup delete versions that a
    restart needs.
    """
    refs = ds.table.refs
    stream = query(ds, without_start, startingVersion=2, consumer="me")
    stream.start()
    stream.trigger()
    assert read_progress(refs, "me") == 1  # the batch is read, but the next one is not planned
    ds.append(rows(8))
    stream.trigger()
    assert read_progress(refs, "me") == 5
    if not without_start:
        stream.trigger()  # nothing is new; the one before is done
        assert read_progress(refs, "me") == 6


@BOTH
def test_new_queries_resume_their_consumer(ds: Dataset, without_start: bool) -> None:
    """A lost checkpoint must not require a new snapshot, unless the user names a start."""
    record_progress(ds.table.refs, "me", 4)
    assert ids(query(ds, without_start, consumer="me").run()) == [[4, 5]]
    named = query(ds, without_start, consumer="me", startingVersion=3)
    named.run()
    assert Counter(changes(named.rows)) == of_dataset(ds, 2)


@WITH_LIMITS
def test_a_consumers_snapshot_is_retained(ds: Dataset) -> None:
    """Cleanup must keep the version of the snapshot until all of its rows are read."""
    stream = query(ds, consumer="me", maxRowsPerTrigger=2)
    stream.start()
    stream.trigger()
    ds.append(rows(8))
    (snapshot_consumer,) = list_consumers(ds.table.refs)
    assert (snapshot_consumer.name, snapshot_consumer.version, snapshot_consumer.is_beginning) == (
        "me",
        5,
        True,
    )
    while stream.trigger():
        pass
    (consumer,) = list_consumers(ds.table.refs)
    assert (consumer.name, consumer.version, consumer.is_beginning) == ("me", 6, False)


@BOTH
def test_cleanup_gaps_of_consumers_are_bridged(
    ds: Dataset, without_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A cleanup without regard for consumers may remove versions in between, and their net changes
    can still be computed.
    """
    record_progress(ds.table.refs, "me", 2)
    lance.dataset(ds.uri).cleanup_old_versions(
        timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
    stream = query(ds, without_start, consumer="me", preImages="false")
    (batch,) = stream.run()
    assert sorted(changes(batch)) == [
        ("delete", 5, 1),
        ("insert", 5, 4),
        ("insert", 5, 5),
        ("update_postimage", 5, 2),
    ]
    assert "versions 3 to 4 no longer exist" in caplog.text


def test_consumers_ahead_of_tables_are_refused(ds: Dataset) -> None:
    """A consumer whose version does not exist yet belongs to a table that was re-created."""
    store = ds.table.store
    record_progress(ds.table.refs, "me", 5)
    tag = store.read("_refs/tags/lance_stream.consumer.me.json")
    shutil.rmtree(ds.uri)
    lance_stream.create_dataset(ds.uri, SCHEMA)
    store.write("_refs/tags/lance_stream.consumer.me.json", tag)
    with pytest.raises(InvalidInputError, match=r"version 5, .*newest version is 1"):
        query(ds, consumer="me").run()


# --- versions that are gone, tables that are gone


@BOTH
def test_fail_on_data_loss_is_respected(ds: Dataset, without_start: bool) -> None:
    """Changes that were cleaned up must stop the query, unless the user accepts their loss."""
    lance.dataset(ds.uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    with pytest.raises(NotFoundError, match=r"version 1\b.*oldest.*is 5.*failOnDataLoss"):
        query(ds, without_start, startingVersion=2).run()
    lenient = query(ds, without_start, startingVersion=2, failOnDataLoss="false")
    assert [batch for batch in lenient.run() if batch] == []
    ds.append(rows(8))
    assert ids(lenient.run()) == [[8]]


@BOTH
def test_recreated_tables_stop_the_query(ds: Dataset, without_start: bool) -> None:
    """The new table has a version with the stored number, so only the mark in the offset reveals
    it.
    """
    stream = query(ds, without_start, startingVersion=2)
    stream.run()
    shutil.rmtree(ds.uri)
    new_table = lance_stream.create_dataset(ds.uri, SCHEMA)
    for number in range(4):
        new_table = new_table.append(rows(number))
    with pytest.raises(NotFoundError, match=r"version 5 .*re-created"):
        stream.run()


# --- schemas


@BOTH
def test_running_queries_survive_added_columns(ds: Dataset, without_start: bool) -> None:
    """Spark fixes the schema of a run; the new column appears after a restart."""
    stream = query(ds, without_start, startingVersion=5)
    stream.start()
    stream.trigger()
    ds = ds.add_columns(pa.field("extra", pa.int64()))
    ds.append(rows(8).append_column("extra", pa.array([1], pa.int64())))
    stream.trigger()
    assert [set(row) & {"id", "extra"} for row in stream.batches[-1]] == [{"id"}]
    stream.start()
    ds = lance_stream.open_dataset(ds.uri)
    ds.append(rows(9).append_column("extra", pa.array([2], pa.int64())))
    stream.trigger()
    assert [(row["id"], row["extra"]) for row in stream.batches[-1]] == [(9, 2)]


@BOTH
def test_dropped_columns_stop_the_run(ds: Dataset, without_start: bool) -> None:
    """Spark cannot change the schema of a running query, but a restarted one continues without the
    column.
    """
    stream = query(ds, without_start, startingVersion=5)
    stream.start()
    stream.trigger()
    ds = ds.append(rows(8)).drop_columns(["name"])
    with pytest.raises(InvalidInputError, match=r"'name' no longer exists.*same checkpoint"):
        stream.trigger()
    batches = stream.run()
    assert ids(batches) == [[8]]
    assert "name" not in batches[0][0]


def test_widened_columns_stop_the_run(ds: Dataset) -> None:
    """Wider values do not fit the schema that Spark has fixed for the run."""
    uri = f"{ds.uri}_narrow"
    narrow = lance_stream.create_dataset(uri, pa.schema([("id", pa.int32())]))
    narrow = narrow.append(pa.table({"id": pa.array([1], pa.int32())}))
    stream = query(narrow, startingVersion=2)
    stream.start()
    stream.trigger()
    lance.dataset(uri).alter_columns({"path": "id", "data_type": pa.int64()})
    with pytest.raises(InvalidInputError, match=r"'id' has type int64 instead of int32"):
        stream.trigger()


# --- progress


@WITH_LIMITS
def test_progress_reports_the_backlog(ds: Dataset) -> None:
    """Operators alert on the lag, so it has to count down to zero."""
    stream = query(ds, startingVersion=2, maxVersionsPerTrigger=2)
    stream.run()
    assert stream.reports == [
        {"version": 5, "versionsBehind": 2, "rowsBehind": 4},
        {"version": 5, "versionsBehind": 0, "rowsBehind": 0},
        {"version": 5, "versionsBehind": 0, "rowsBehind": 0},
    ]


@BOTH
def test_column_backfills_can_be_omitted(ds: Dataset, without_start: bool) -> None:
    """A backfill touches every row and would flood consumers that do not read the new column."""
    filled = ds.add_columns({"twice": "id * 2"})
    assert {change[0] for change in changes(filled.changes(5).read_all().to_pylist())} == {
        "update_preimage",
        "update_postimage",
    }
    more = pa.table({"id": [8], "name": ["n8"], "twice": [16]})
    filled.append(more)
    feed = query(ds, without_start, startingVersion=6, columnBackfills="false")
    feed.run()
    assert changes(feed.rows) == [("insert", 7, 8)]
    plain = {"readChangeFeed": "false", "startingVersion": 6}
    appended = query(ds, without_start, columnBackfills="false", **plain)
    appended.run()
    assert [(row["id"], row["twice"]) for row in appended.rows] == [(8, 16)]
    with pytest.raises(InvalidInputError, match=r"version 6 .*changes existing rows"):
        query(ds, without_start, **plain).run()


# --- columns of other programs that are called like change columns


@pytest.mark.oracle
@BOTH
def test_appended_rows_keep_reserved_column_names(without_start: bool, tmp_path: Path) -> None:
    """In a change feed such names would clash with the columns of the feed, but plain rows have
    none.
    """
    path = str(tmp_path / "t")
    expected = {"id": [1, 2], "_change_type": ["a", "b"], "_commit_version": [10, 20]}
    for _ in range(2):
        lance.write_dataset(pa.table(expected), path, mode="append", enable_stable_row_ids=True)
    options = {"readChangeFeed": "false", "startingVersion": "1"}
    stream = Query(path, options, without_start)
    stream.run()
    assert stream.rows == pa.table(expected).to_pylist() * 2
    with pytest.raises(InvalidInputError, match="columns _change_type"):
        Query(path, {"startingVersion": "1"}, without_start).run()
    with pytest.raises(InvalidInputError, match="columns _commit_version"):
        Query(path, {**options, "filter": "_commit_version > 15"}, without_start).run()
    narrowed = Query(path, {"startingVersion": "1", "columns": "id"}, without_start)
    narrowed.run()
    assert changes(narrowed.rows) == [("insert", v, number) for v in (1, 2) for number in (1, 2)]
    with pytest.raises(InvalidInputError, match="select other columns"):
        lance_stream.open_dataset(path).changes(0)
