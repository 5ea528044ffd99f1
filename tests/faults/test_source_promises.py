"""What the source promises, one by one: what each operation gives, and what if things go wrong.

All of it on a local disk, and in a bucket of each object service.

Streams are run by `micro_batch_engine`, which makes Spark's calls. What else is said of the source
is tested where it is made: offsets in tests/spark/feed, the law of the feed in tests/oracle.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import CorruptDataError, NotFoundError, UnsupportedFeatureError
from lance_stream.spark.versions import HAS_READ_LIMITS
from tests.faults.locations import (
    create_table,
    delete_table,
    folder_on,
    is_seen_by_pylance,
    kinds,
    open_by_pylance,
    open_table,
)
from tests.faults.micro_batch_engine import Checkpoint, Crashed, Engine

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.string())])
Change = tuple[str, int, int]  # its type, the version, the row's id
Dataset = lance_stream.Dataset


def rows(*ids: int, x: str = "new") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=SCHEMA)


@pytest.fixture(params=kinds(slow=["google", "azure"]))
def folder(request: pytest.FixtureRequest) -> str:
    return folder_on(request.param, request)


@pytest.fixture
def ds(folder: str) -> Dataset:
    """Version 2 inserts 1 to 4."""
    return create_table(f"{folder}/table", SCHEMA).append(rows(1, 2, 3, 4))


class Batches:
    """A sink that keeps what comes."""

    def __init__(self) -> None:
        self.batches: list[list[Change]] = []

    def __call__(self, batch: pa.Table, batch_id: int) -> None:
        assert batch_id in (len(self.batches) - 1, len(self.batches))
        self.batches[batch_id:] = [changes_in(batch)]

    @property
    def changes(self) -> list[Change]:
        return [change for batch in self.batches for change in batch]

    @property
    def versions(self) -> list[list[int]]:
        """The versions of each batch that has changes."""
        return [sorted({version for _, version, _ in batch}) for batch in self.batches if batch]


def changes_in(feed: pa.Table) -> list[Change]:
    columns = [feed[name].to_pylist() for name in ("_change_type", "_commit_version", "id")]
    return list(zip(*columns, strict=True))


def stream(ds: Dataset, **options: Any) -> Batches:
    """Run a new query with the trigger AvailableNow, and return what it gave."""
    sink = Batches()
    Engine(ds.uri, sink, **options).run()
    return sink


# --- what each operation gives


def updated(version: int, *ids: int) -> list[Change]:
    images = [("update_preimage", version, id_) for id_ in ids]
    return images + [("update_postimage", version, id_) for id_ in ids]


def deleted(version: int, *ids: int) -> list[Change]:
    return [("delete", version, id_) for id_ in ids]


def inserted(version: int, *ids: int) -> list[Change]:
    return [("insert", version, id_) for id_ in ids]


def with_an_index(ds: Dataset) -> Dataset:
    if not is_seen_by_pylance(ds.uri):
        pytest.skip("the index is pylance's, which cannot talk to this server")
    open_by_pylance(ds.uri).create_scalar_index("id", "BTREE")
    return ds.checkout(open_table(ds.uri).version)


Operation = tuple[Callable[[Dataset], Dataset], list[Change]]

OPERATIONS: dict[str, Operation] = {
    "update twice": (
        lambda ds: ds.update({"x": "'a'"}, "id < 3").update({"x": "'b'"}, "id = 1"),
        updated(3, 1, 2) + updated(4, 1),
    ),
    "insert and delete": (
        lambda ds: ds.append(rows(5, 6)).delete("id = 5"),
        inserted(3, 5, 6) + deleted(4, 5),
    ),
    "delete and insert again": (
        lambda ds: ds.delete("id = 2").append(rows(2)),
        deleted(3, 2) + inserted(4, 2),
    ),
    "delete all of a fragment": (lambda ds: ds.delete("true"), deleted(3, 1, 2, 3, 4)),
    "upsert": (lambda ds: ds.upsert(rows(4, 5), "id"), updated(3, 4) + inserted(3, 5)),
    "compaction": (lambda ds: ds.append(rows(5)).delete("id = 1").compact(),
                   inserted(3, 5) + deleted(4, 1)),
    "restore": (
        lambda ds: ds.update({"x": "'a'"}, "id = 1").delete("id = 2").append(rows(5)).restore(2),
        updated(3, 1) + deleted(4, 2) + inserted(5, 5)
        + deleted(6, 5) + updated(6, 1) + inserted(6, 2),
    ),
    "overwrite": (
        lambda ds: ds.overwrite(rows(1, 7)), deleted(3, 1, 2, 3, 4) + inserted(3, 1, 7)
    ),
    "add a column of nulls": (lambda ds: ds.add_columns(pa.field("y", pa.int64())), []),
    "add a column of values": (
        lambda ds: ds.add_columns({"y": "id * 2"}), updated(3, 1, 2, 3, 4)
    ),
    "index": (with_an_index, []),
    "config": (lambda ds: ds.update_config({"note": "x"}), []),
    "nothing to do": (lambda ds: ds.delete("id > 99").update({"x": "'a'"}, "id > 99"), []),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(("do", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations_deliver_changes_in_order(
    ds: Dataset, do: Callable[[Dataset], Dataset], expected: list[Change]
) -> None:
    """Batch reads and streams deliver the same changes."""
    after = do(ds)
    assert changes_in(after.changes(2).read_all()) == expected
    assert sorted(stream(ds, startingVersion=3).changes) == sorted(expected)
    one_by_one = stream(ds, startingVersion=3, maxVersionsPerTrigger=1)
    assert sorted(one_by_one.changes) == sorted(expected)
    if HAS_READ_LIMITS:
        assert one_by_one.versions == [[row] for row in sorted({record[1] for record in expected})]


def test_reinserted_rows_are_other_rows(ds: Dataset) -> None:
    """A consumer that joins changes by row id must not take an insert for an update of the deleted
    row.
    """
    feed = ds.delete("id = 2").append(rows(2)).changes(2).read_all()
    deleted_id, inserted_id = feed["_rowid"].to_pylist()
    assert inserted_id > deleted_id


# --- triggers and limits


def test_empty_tables_deliver_later_rows(folder: str) -> None:
    """A stream often starts before the first row exists, with any kind of start."""
    for number, options in enumerate([{}, {"startingVersion": 0}, {"startingVersion": "latest"}]):
        ds = create_table(f"{folder}/{number}", SCHEMA)
        sink, checkpoint = Batches(), Checkpoint()
        Engine(ds.uri, sink, checkpoint, **options).run()
        assert sink.changes == []
        ds.append(rows(1, 2))
        Engine(ds.uri, sink, checkpoint, **options).run()
        assert sink.changes == inserted(2, 1, 2)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("limit", [{}, {"maxVersionsPerTrigger": 2}], ids=["all", "two versions"])
def test_available_now_ends_despite_fast_writers(ds: Dataset, limit: dict[str, Any]) -> None:
    """A run that follows the newest version would never end while a writer is faster."""
    for number in range(5, 9):
        ds = ds.append(rows(number))
    sink, newest = Batches(), ds.version

    def write(_: str) -> None:  # at each step of the query
        nonlocal ds
        ds = ds.append(rows(ds.version))

    query = Engine(ds.uri, sink, at_step=write, startingVersion=0, **limit)
    query.run()
    assert ds.version > newest
    delivered = [version for versions in sink.versions for version in versions]
    assert delivered == list(range(2, delivered[-1] + 1))  # each once, in order
    if HAS_READ_LIMITS:  # nothing but what was there when the run began
        assert newest <= delivered[-1] <= newest + 2
        assert len(sink.batches) == (-(-delivered[-1] // 2) if limit else 1)
    query.at_step = lambda _: None
    query.run()
    assert sorted(sink.changes) == sorted(changes_in(ds.changes(0).read_all()))


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 takes all in a run's first batch")
@pytest.mark.parametrize(
    ("limit", "batches"),
    [
        ({"maxVersionsPerTrigger": 2}, [[2, 3], [4, 5], [6]]),
        ({"maxRowsPerTrigger": 3}, [[2], [2, 3, 4], [5, 6]]),
        ({"maxRowsPerTrigger": 3, "maxVersionsPerTrigger": 1}, [[2], [2], [3], [4], [5], [6]]),
    ],
    ids=["versions", "rows", "both"],
)
def test_limits_hold_across_restarts(
    ds: Dataset, limit: dict[str, int], batches: list[list[int]]
) -> None:
    """A restart in the middle of a version continues at the row where the batch ended."""
    for number in range(5, 9):
        ds = ds.append(rows(number))
    sink, checkpoint = Batches(), Checkpoint()

    def die(step: str) -> None:
        if step == "log the commit" and len(checkpoint.offsets) == 2:
            raise Crashed

    options = {"startingVersion": 1, **limit}
    with pytest.raises(Crashed):
        Engine(ds.uri, sink, checkpoint, die, **options).run()
    assert checkpoint.is_unfinished
    Engine(ds.uri, sink, checkpoint, **options).run()
    assert sink.versions == batches
    assert sorted(sink.changes) == inserted(2, 1, 2, 3, 4) + [
        ("insert", number, number + 2) for number in range(3, 7)
    ]


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 takes all in a run's first batch")
def test_an_interrupted_snapshot_keeps_its_version(ds: Dataset) -> None:
    """The stream continues half-way and reads the rest of the snapshot at the same version."""
    sink, checkpoint = Batches(), Checkpoint()

    def die(step: str) -> None:
        if step == "read" and len(checkpoint.offsets) == 2:
            raise Crashed

    with pytest.raises(Crashed):
        Engine(ds.uri, sink, checkpoint, die, maxRowsPerTrigger=1).run()
    assert sink.changes == inserted(2, 1)
    ds.delete("id = 1").update({"x": "'a'"}, "id = 4")
    Engine(ds.uri, sink, checkpoint, maxRowsPerTrigger=1).run()
    assert sink.changes == inserted(2, 1, 2, 3, 4) + deleted(3, 1) + updated(4, 4)
    assert [len(batch) for batch in sink.batches] == [1] * 7


# --- versions that are gone, and other tables


def test_missing_first_versions_are_named(ds: Dataset) -> None:
    """The user has to know which version still exists and which option accepts the loss."""
    ds = ds.append(rows(5)).append(rows(6))
    ds.cleanup(retain_versions=2)
    message = r"after version 2 .*oldest existing version is 3.*failOnDataLoss.*startingVersion 4"
    with pytest.raises(NotFoundError, match=message):
        stream(ds, startingVersion=3)
    assert stream(ds, startingVersion=3, failOnDataLoss=False).changes == inserted(4, 6)
    with pytest.raises(NotFoundError, match=r"version 2\b.*cleaned up"):
        ds.changes(2)


def test_missing_middle_versions_are_named(ds: Dataset) -> None:
    """A tag preserves an old version, so the range of versions has a gap that must not be skipped
    silently.
    """
    ds = ds.append(rows(5)).append(rows(6)).append(rows(7))
    ds.tags.create("kept", 3)
    sink, checkpoint = Batches(), Checkpoint()
    Engine(ds.checkout(3).uri, sink, checkpoint, startingVersion=3, maxVersionsPerTrigger=1).run()
    ds = ds.append(rows(8)).append(rows(9))
    ds.cleanup(retain_versions=1)
    message = r"after version 5 .*oldest existing version is 3, the newest 7"
    with pytest.raises(NotFoundError, match=message):
        Engine(ds.uri, sink, checkpoint, startingVersion=3).run()
    assert sink.changes == inserted(3, 5) + inserted(4, 6) + inserted(5, 7)


def test_consumers_keep_unread_versions(ds: Dataset) -> None:
    """The promise of a named consumer is that cleanup never outruns it, and releases what it has
    read.
    """
    sink, checkpoint = Batches(), Checkpoint()
    options = {"startingVersion": 2, "consumer": "follower"}
    Engine(ds.uri, sink, checkpoint, **options).run()
    ds = ds.delete("id = 1").append(rows(1)).compact().update({"x": "'a'"}, "id = 1")
    ds.cleanup(older_than="0 seconds", delete_unverified=True)
    Engine(ds.uri, sink, checkpoint, **options).run()
    assert sink.changes[:6] == inserted(2, 1, 2, 3, 4) + deleted(3, 1) + inserted(4, 1)
    assert sorted(sink.changes[6:]) == sorted(updated(ds.version, 1))
    ds.cleanup(older_than="0 seconds", delete_unverified=True)
    ds.append(rows(9)).cleanup(older_than="0 seconds", delete_unverified=True)
    Engine(ds.uri, sink, checkpoint, **options).run()
    assert sink.changes[8:] == inserted(ds.version + 1, 9)
    assert ds.versions()[0].version > 1  # what it has finished with is gone


def test_vanishing_files_stop_the_batch(ds: Dataset) -> None:
    """The files are cleaned up between planning and reading."""
    ds = ds.delete("id = 1").append(rows(5)).compact().overwrite(rows(6))
    sink, checkpoint = Batches(), Checkpoint()

    def clean_up(step: str) -> None:
        if step == "read":
            ds.cleanup(older_than="0 seconds")

    with pytest.raises(NotFoundError, match=r"\.lance"):
        Engine(ds.uri, sink, checkpoint, clean_up, startingVersion=0).run()
    assert sink.batches == []
    assert checkpoint.is_unfinished


def test_recreated_tables_are_noticed(ds: Dataset) -> None:
    """The new table has the same version numbers, so continuing would mix changes of two tables."""
    sink, checkpoint = Batches(), Checkpoint()
    Engine(ds.append(rows(5)).uri, sink, checkpoint, startingVersion=0).run()
    before = sink.changes
    delete_table(ds.uri)
    create_table(ds.uri, SCHEMA).append(rows(1))
    with pytest.raises(NotFoundError, match=r"(?s)re-created.*new checkpoint"):
        Engine(ds.uri, sink, checkpoint, startingVersion=0).run()
    assert sink.changes == before


# --- checkpoints


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"files": 3}', CorruptDataError),
        ('{"format": 1, "snapshot": false, "version": -1}', CorruptDataError),
        ('{"format": 1, "snapshot": 0, "version": 1}', CorruptDataError),
        ('{"format": 99, "snapshot": false, "version": 1}', UnsupportedFeatureError),
    ],
)
def test_foreign_checkpoints_are_refused(ds: Dataset, text: str, error: type[Exception]) -> None:
    """An offset of another source or a newer release must not be read as a position."""
    sink = Batches()
    with pytest.raises(error, match="the checkpoint contains"):
        Engine(ds.uri, sink, Checkpoint([text], 1), startingVersion=0).run()
    with pytest.raises(error, match="the checkpoint contains"):
        Engine(ds.uri, sink, Checkpoint([text], 0), startingVersion=0).run()
    assert sink.batches == []


@pytest.mark.parametrize("num_committed", [1, 0], ids=["done", "begun"])
def test_first_release_checkpoints_are_continued(ds: Dataset, num_committed: int) -> None:
    """Users upgrade with running queries, whose checkpoints have the first format of offsets."""
    ds = ds.append(rows(5))
    recorded = '{"format": 1, "snapshot": false, "version": 2}'
    sink = Batches()
    sink.batches += [[]] * num_committed
    checkpoint = Checkpoint([recorded], num_committed)
    Engine(ds.uri, sink, checkpoint, startingVersion=0).run()
    expected = inserted(2, 1, 2, 3, 4) if num_committed == 0 else []
    assert sink.changes == expected + inserted(3, 5)


# --- columns that change


def test_streams_continue_when_columns_are_added(ds: Dataset) -> None:
    """Adding a column is the most frequent change of a table and must not stop its followers."""
    sink, checkpoint = Batches(), Checkpoint()

    def add(step: str) -> None:
        nonlocal ds
        if step == "latestOffset" and sink.batches and ds.version == 2:
            ds = ds.add_columns(pa.field("y", pa.int64())).upsert(
                pa.table({"id": [1, 9], "y": [1, 9]}), "id"
            )

    ds.append(rows(5))
    query = Engine(ds.uri, sink, checkpoint, add, startingVersion=0, maxVersionsPerTrigger=1)
    query.run(polls=6)
    query.run(polls=2)
    changes = sink.changes
    assert changes[:5] == inserted(2, 1, 2, 3, 4) + inserted(3, 5)
    assert sorted(changes[5:]) == sorted(updated(5, 1) + inserted(5, 9))
