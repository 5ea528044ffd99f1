"""Following a table from position to position: limits, gaps, losses, and re-created tables."""

import logging
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.following import follower
from lance_stream.feed.following.follower import FollowerRules, Lag, TableFollower
from lance_stream.feed.following.positions import NO_LIMITS, Limits, Position
from lance_stream.feed.rules import NET_CHANGES, FeedRules
from lance_stream.feed.steps import walk
from lance_stream.snapshot import opening
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.storage.locations import open_store
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import NamingScheme, manifest_path
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
EVERYTHING = FollowerRules(FeedRules())
FROM_SNAPSHOT = Position(0, is_snapshot=True)

Change = tuple[int, str, int]  # its version, its type, the row's id


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


def make_history(uri: str) -> Dataset:
    """Version 2 inserts 0 to 5, 3 deletes 1 and 4, 4 updates 0, 2 and 3, 5 inserts 6 and 7."""
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(*range(6)))
    table = table.delete("id IN (1, 4)").update({"id": "id", "name": "'new'"}, where="id < 4")
    return table.append(rows(6, 7))


@pytest.fixture
def ds() -> Dataset:
    return make_history(f"memory://{uuid.uuid4()}/table")


@pytest.fixture
def stored(tmp_path: Path) -> Dataset:
    """Return the same history on disk, where versions can be removed."""
    return make_history(str(tmp_path / "table"))


def follow(ds: Dataset, rules: FollowerRules = EVERYTHING) -> TableFollower:
    return TableFollower(ds.uri, None, rules)


def read(followed: TableFollower, start: Position, end: Position) -> list[Change]:
    units = followed.units(start, end)
    return [
        (row["_commit_version"], row["_change_type"], row["id"])
        for batch in read_changes(units)
        for row in batch.to_pylist()
    ]


def steps_from(
    followed: TableFollower, start: Position, limits: Limits = NO_LIMITS, through: int | None = None
) -> list[Position]:
    """Return the positions at which batches end, until there is nothing new."""
    positions = [start]
    while (end := followed.advance(positions[-1], limits, through)) != positions[-1]:
        positions.append(end)
    return positions


def batches_from(
    followed: TableFollower, start: Position, limits: Limits = NO_LIMITS, through: int | None = None
) -> list[list[Change]]:
    positions = steps_from(followed, start, limits, through)
    return [read(followed, *positions[index : index + 2]) for index in range(len(positions) - 1)]


def joined(batches: list[list[Change]]) -> list[Change]:
    return [change for batch in batches for change in batch]


def all_changes(ds: Dataset, after: int = 0) -> list[Change]:
    return [
        (row["_commit_version"], row["_change_type"], row["id"])
        for row in ds.changes(after).read_all().to_pylist()
    ]


def by_event(changes: list[Change]) -> list[Change]:
    """Return changes in an order that does not depend on where batches end."""
    return sorted(changes)


def forget(ds: Dataset, *versions: int) -> None:
    """Remove versions, as a cleanup does."""
    for version in versions:
        (Path(ds.uri) / manifest_path(version, NamingScheme.V2)).unlink()


# --- limits


@settings(max_examples=8)
@given(
    st.one_of(st.none(), st.integers(1, 4)),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(1, 4000)),
    st.booleans(),
)
def test_changes_arrive_once_under_any_limits(
    versions: int | None, num_rows: int | None, size_bytes: int | None, with_pre_images: bool
) -> None:
    """Batches cut by versions, rows or bytes must together equal the feed, and each must respect
    its limit.
    """
    ds = HISTORY
    rules = FollowerRules(FeedRules(pre_images=with_pre_images))
    limits = Limits(versions, num_rows, size_bytes)
    batches = batches_from(follow(ds, rules), Position(0), limits)
    expected = [
        change for change in all_changes(ds) if with_pre_images or change[1] != "update_preimage"
    ]
    assert by_event(joined(batches)) == by_event(expected)
    assert [row[0] for row in joined(batches)] == sorted(row[0] for row in expected)
    for batch in batches:
        if num_rows is not None:
            assert len(batch) <= max(num_rows, 2 if with_pre_images else 1)
        if versions is not None:
            assert len({row[0] for row in batch}) <= versions


HISTORY = make_history(f"memory://{uuid.uuid4()}/table")


def test_splits_remove_rows_before_adding_others(ds: Dataset) -> None:
    """A later batch of a version must not remove a key that an earlier batch has added."""
    batches = batches_from(follow(ds.update({"id": "id + 1"})), Position(5), Limits(rows=1))
    types = [change[1] for change in joined(batches)]
    assert types == ["update_preimage"] * 6 + ["update_postimage"] * 6
    assert len(batches) == 12


@pytest.mark.parametrize("with_pre_images", [True, False])
@pytest.mark.parametrize("num_delivered", [1, 2, 3, 4])
def test_positions_of_earlier_releases_stay_valid(
    num_delivered: int, with_pre_images: bool
) -> None:
    """Old positions count an update as one change, and the rest must follow without repetition."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows(1, 2, 3, 4))
    ds = ds.upsert(rows(2, 3, 4, 5), on="id")
    rules = FollowerRules(FeedRules(pre_images=with_pre_images))
    followed = follow(ds, rules)
    inside = Position(1, num_delivered, counts_pairs=True)
    before = read(followed, Position(1), inside)
    updated = [2, 3, 4][:num_delivered]
    assert [change[2] for change in before if change[1] == "update_postimage"] == updated
    assert [change[2] for change in before if change[1] == "update_preimage"] == (
        updated if with_pre_images else []
    )
    assert followed.lag(inside).rows in (None, 0)
    end, *later = steps_from(followed, inside, Limits(rows=1))[1:] or [inside]
    if num_delivered < 4:
        assert (end, later) == (Position(2, mark=followed.position_after(2).mark), [])
        assert sorted(before + read(followed, inside, end)) == sorted(
            read(followed, Position(1), end)
        )


def test_only_old_positions_count_pairs(ds: Dataset) -> None:
    """A batch may start at a position of an earlier release, and end at one of this release."""
    followed = follow(ds)
    inside = Position(1, 4, counts_pairs=True)
    first, rest = read(followed, Position(1), inside), read(followed, inside, Position(3, 2))
    assert [first, rest] == [
        [(2, "insert", number) for number in range(4)],
        [
            *((2, "insert", 4), (2, "insert", 5), (3, "delete", 1), (3, "delete", 4)),
            *((4, "update_preimage", 0), (4, "update_preimage", 2)),
        ],
    ]


def test_batches_split_and_combine_versions(ds: Dataset) -> None:
    """Batches of even size require splitting large versions and combining small ones."""
    batches = batches_from(follow(ds), Position(0), Limits(rows=4))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    assert batches[1] == [(2, "insert", 4), (2, "insert", 5), (3, "delete", 1), (3, "delete", 4)]


def test_batches_respect_the_size_limit(tmp_path: Path) -> None:
    """Rows are of equal size here, so a quarter of the bytes must be a quarter of the rows."""
    table = lance_stream.create_dataset(str(tmp_path / "t"), SCHEMA).append(rows(*range(1000)))
    size = sum(path.stat().st_size for path in (tmp_path / "t" / "data").iterdir())
    batches = batches_from(follow(table), Position(1), Limits(size_bytes=size // 4))
    assert [len(batch) for batch in batches] == pytest.approx([250] * 4, abs=5)


def test_version_limits_count_changed_versions(ds: Dataset) -> None:
    """Commits without changes, such as of a config, would otherwise delay the changes by a batch
    each.
    """
    for number in range(5):
        ds = ds.update_config({"a": str(number)})
    after = ds.append(rows(9)).update_config({"a": "b"}).append(rows(10))
    positions = steps_from(follow(ds), Position(4), Limits(versions=1))
    assert [position.version for position in positions] == [4, 5, after.version - 2, after.version]


def test_limited_batches_pass_few_unchanged_versions(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position advances without rows, and no poll reads the whole history."""
    monkeypatch.setattr(follower, "MAX_UNCHANGED_VERSIONS", 3)
    for number in range(7):
        ds = ds.update_config({"a": str(number)})
    for limits in (Limits(versions=2), Limits(rows=1)):
        positions = steps_from(follow(ds), Position(5), limits)
        assert [position.version for position in positions] == [5, 8, 11, 12]
    batches = batches_from(follow(ds.append(rows(9))), Position(5), Limits(versions=2))
    assert batches == [[], [], [(13, "insert", 9)]]


def test_nothing_is_read_past_the_end(ds: Dataset) -> None:
    """`through` bounds a backfill, and rows committed later belong to the next run."""
    followed = follow(ds)
    ds.append(rows(8))
    batches = batches_from(followed, Position(3), Limits(rows=2), through=5)
    assert by_event(joined(batches)) == by_event(
        [change for change in all_changes(ds, 3) if change[0] <= 5]
    )


def test_fast_writers_cannot_prevent_the_end(ds: Dataset) -> None:
    """A query that processes what is available must end, even if a writer commits during each
    batch.
    """
    followed, position, actual = follow(ds), Position(4), list[Change]()
    for number in range(100, 150):
        ds = ds.append(rows(number))
        end = followed.advance(position, Limits(versions=1), through=7)
        if end == position:
            break
        actual += read(followed, position, end)
        position = end
    assert position.version == 7
    assert [row[2] for row in actual] == [6, 7, 100, 101]


def test_without_news_the_position_stays(ds: Dataset) -> None:
    """A changed position would make Spark run an empty batch at every trigger."""
    followed = follow(ds)
    position = followed.position_after(5)
    assert followed.advance(position, Limits(rows=1)) == position
    assert read(followed, position, position) == []


def test_an_idle_poll_is_one_read(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream polls continuously, and each request costs money."""
    store = WatchedStore(open_store(ds.uri))
    monkeypatch.setattr(follower, "open_log", lambda *_: ObjectStoreLog(store))
    followed = follow(ds)
    position = followed.advance(followed.position_after(0))
    store.calls.clear()
    for _ in range(10):
        assert followed.advance(position) == position
        assert followed.lag(position).versions == 0
    assert [call for call, _ in store.calls] == ["read"] * 10


def test_batches_are_replanned_from_positions(ds: Dataset) -> None:
    """After a failure Spark repeats a batch from its positions only, and must get the same rows."""
    positions = steps_from(follow(ds), FROM_SNAPSHOT, Limits(rows=2))
    ds.append(rows(8))
    positions += steps_from(follow(ds), positions[-1], Limits(rows=2))[1:]
    first = [read(follow(ds), *positions[at : at + 2]) for at in range(len(positions) - 1)]
    ds.delete("id > 2")
    again = [read(follow(ds), *positions[at : at + 2]) for at in range(len(positions) - 1)]
    assert again == first


def test_a_split_version_is_compared_once(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large version is cut into many batches, and comparing manifests for each of them would
    be quadratic.
    """
    walked: list[tuple[int, int]] = []

    def watched_walk(table: Any, after: int, through: int, *rest: Any) -> Any:
        walked.append((after, through))
        return walk(table, after, through, *rest)

    monkeypatch.setattr(follower, "walk", watched_walk)
    followed, position = follow(ds), follow(ds).position_after(1)
    for _ in range(6):
        end = followed.advance(position, Limits(rows=1), through=2)
        followed.lag(end)
        read(followed, position, end)
        position = end
    assert (position.version, position.num_delivered) == (2, 0)
    assert walked[0] == (1, 2)
    assert [row for row in walked if row[0] == 1] == [(1, 2)]


def test_batches_read_manifests_once(stored: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests of large tables have megabytes, and planning must not fetch one twice."""
    store = WatchedStore(open_store(stored.uri))
    monkeypatch.setattr(follower, "open_log", lambda *_: ObjectStoreLog(store))
    monkeypatch.setattr(opening, "open_log", lambda *_: ObjectStoreLog(store))
    followed = follow(stored)
    position = followed.advance(followed.position_after(0))
    followed.units(followed.position_after(0), position)
    stored.append(rows(8))
    store.calls.clear()
    end = followed.advance(position)
    followed.units(position, end)
    read_manifests = [path for call, path in store.calls if call == "read" and "_versions" in path]
    assert len(read_manifests) == len(set(read_manifests)) <= 2
    assert len([call for call, _ in store.calls if call == "list_names"]) <= 3


# --- snapshots


def test_changes_follow_slices_of_snapshots(ds: Dataset) -> None:
    """A stream may start with a snapshot in several batches, while the table changes: no row may
    be lost or shown twice.
    """
    followed = follow(ds)
    first = followed.advance(FROM_SNAPSHOT, Limits(rows=2))
    assert (first.version, first.num_delivered, first.is_snapshot) == (5, 2, True)
    ds.append(rows(8)).delete("id = 0")  # while the snapshot is being read
    batches = [read(followed, FROM_SNAPSHOT, first), *batches_from(followed, first, Limits(rows=2))]
    assert [[row[1:] for row in batch] for batch in batches] == [
        [("insert", 5), ("insert", 0)],
        [("insert", 2), ("insert", 3)],
        [("insert", 6), ("insert", 7)],
        [("insert", 8), ("delete", 0)],
    ]
    assert {row[0] for batch in batches[:3] for row in batch} == {5}


def test_unlimited_snapshots_are_one_batch(ds: Dataset) -> None:
    """Without limits nothing forces further batches."""
    (batch,) = batches_from(follow(ds), FROM_SNAPSHOT)
    assert sorted(row[2] for row in batch) == [0, 2, 3, 5, 6, 7]


def test_the_version_limit_ignores_snapshots(ds: Dataset) -> None:
    """A snapshot is one version, however many versions created its rows."""
    assert len(batches_from(follow(ds), FROM_SNAPSHOT, Limits(versions=1))) == 1


def test_empty_tables_have_empty_snapshots() -> None:
    """A position after the snapshot must exist, or the stream would start over for ever."""
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    assert batches_from(follow(table), FROM_SNAPSHOT, Limits(rows=1)) == [[]]


def test_snapshots_of_removed_versions_restart(
    stored: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the snapshot is lost: an error by default, or a new snapshot of the newest
    version.
    """
    first = follow(stored).advance(FROM_SNAPSHOT, Limits(rows=2))
    after = stored.append(rows(8))
    forget(stored, 5)
    with pytest.raises(NotFoundError, match=r"version 5.*failOnDataLoss"):
        follow(stored).advance(first, Limits(rows=2))
    lenient = follow(stored, FollowerRules(FeedRules(), fail_on_data_loss=False))
    with caplog.at_level(logging.WARNING):
        batches = batches_from(lenient, first, Limits(rows=100))
    assert sorted(row[2] for row in joined(batches)) == [0, 2, 3, 5, 6, 7, 8]
    assert {row[0] for row in joined(batches)} == {after.version}
    assert "repeats these rows" in caplog.text


@pytest.mark.parametrize(
    ("end", "ids", "instead"),
    [
        (Position(5, num_delivered=2, is_snapshot=True), [], "skipped, and a new snapshot follows"),
        (Position(5), [0, 2, 3, 5, 6, 7, 8], "the rows of version 6 are read instead"),
    ],
    ids=["a part", "all"],
)
def test_planned_snapshots_outlive_their_version(
    stored: Dataset,
    caplog: pytest.LogCaptureFixture,
    end: Position,
    ids: list[int],
    instead: str,
) -> None:
    """The checkpoint contains the end of a batch whose version a cleanup removes."""
    stored.append(rows(8))
    forget(stored, 5)
    lenient = follow(stored, FollowerRules(FeedRules(), fail_on_data_loss=False))
    with caplog.at_level(logging.WARNING):
        assert sorted(row[2] for row in read(lenient, FROM_SNAPSHOT, end)) == ids
    assert instead in caplog.text


# --- versions that are gone


def test_losses_are_errors_with_remedies(stored: Dataset) -> None:
    """Cleaned-up versions mean lost changes, so the user has to decide."""
    forget(stored, 1, 2, 3)
    with pytest.raises(NotFoundError) as error:
        read(follow(stored), Position(2), Position(5))
    message = str(error.value)
    assert "after version 2" in message
    assert "oldest existing version is 4" in message
    for option in ("failOnDataLoss", "startingVersion 5", "consumer"):
        assert option in message


def test_loss_remedies_start_after_the_gap(stored: Dataset) -> None:
    """A tag keeps old versions, and a query that starts at one of them meets the same gap."""
    forget(stored, 3)
    with pytest.raises(NotFoundError, match=r"oldest existing version is 1, .*startingVersion 5\b"):
        read(follow(stored), Position(2), Position(5))


def test_skipped_losses_are_logged(stored: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    """The option trades completeness for progress, so the log must say what was skipped."""
    forget(stored, 1, 2, 3)
    lenient = follow(stored, FollowerRules(FeedRules(), fail_on_data_loss=False))
    with caplog.at_level(logging.WARNING):
        actual = joined(batches_from(lenient, Position(2), Limits(rows=1)))
    assert actual == [(5, "insert", 6), (5, "insert", 7)]
    assert "the changes through version 4 are skipped" in caplog.text


def test_net_changes_bridge_a_consumers_gap(
    stored: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer's start version is protected, so the difference of both ends replaces what was
    cleaned up between.
    """
    stored.delete("id = 6")
    forget(stored, 3, 4, 5)
    with pytest.raises(NotFoundError, match="versions 3 to 5 no longer exist"):
        read(follow(stored), Position(2), Position(6))
    consumer = follow(stored, FollowerRules(FeedRules(pre_images=False), is_consumer=True))
    with caplog.at_level(logging.WARNING):
        (batch,) = batches_from(consumer, Position(2), Limits(rows=1))  # a bridge is never cut
    assert by_event(batch) == by_event(
        [(6, "delete", 1), (6, "delete", 4), (6, "insert", 7)]
        + [(6, "update_postimage", number) for number in (0, 2, 3)]
    )
    assert "net changes from version 2 to 6" in caplog.text


def test_lenient_net_changes_bridge_gaps(stored: Dataset) -> None:
    """Bridging a gap needs `failOnDataLoss` to be off."""
    forget(stored, 3)
    with pytest.raises(
        NotFoundError, match="after version 2 are needed, but version 3 no longer exists"
    ):
        read(follow(stored), Position(1), Position(5))
    rules = FollowerRules(FeedRules(pre_images=False), fail_on_data_loss=False)
    batches = batches_from(follow(stored, rules), Position(1), Limits(versions=1))
    assert [{row[0] for row in batch} for batch in batches] == [{2}, {4}, {5}]
    assert by_event(batches[1]) == by_event(
        [(4, "delete", 1), (4, "delete", 4)]
        + [(4, "update_postimage", number) for number in (0, 2, 3)]
    )


def test_partly_read_versions_can_be_bridged(
    stored: Dataset,
) -> None:
    """The rest of the version is lost: an error by default, or net changes that repeat its rows."""
    half = follow(stored).advance(Position(1), Limits(rows=4))
    assert (half.version, half.num_delivered) == (1, 4)
    forget(stored, 2)
    with pytest.raises(NotFoundError, match="4 changes of version 2 have been read"):
        follow(stored, FollowerRules(FeedRules(), is_consumer=True)).advance(half, Limits(rows=4))
    lenient = follow(stored, FollowerRules(FeedRules(), fail_on_data_loss=False))
    actual = joined(batches_from(lenient, half))
    assert sorted(row[2] for row in actual if row[:2] == (3, "insert")) == [0, 2, 3, 5]


def test_batches_survive_a_removed_end_version(
    stored: Dataset,
) -> None:
    """The reader stops at version 3, which is removed, and the replacement must be read exactly
    once.
    """
    stored.append(rows(8))
    forget(stored, 3, 4)
    lenient = follow(stored, FollowerRules(FeedRules(), fail_on_data_loss=False))
    first = read(lenient, Position(2), Position(3))
    rest = read(lenient, Position(3), Position(6))
    assert {row[0] for row in first} == {5}
    assert rest == [(6, "insert", 8)]


def test_lance_cleanups_keep_tagged_versions(stored: Dataset) -> None:
    """Consumers protect their version by a tag, which has to work against the reference's
    cleanup as well.
    """
    import datetime

    stored.tags.create("held", 2)
    lance.dataset(stored.uri).cleanup_old_versions(
        datetime.timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
    assert [version.version for version in stored.versions()] == [2, 5]
    consumer = follow(stored, FollowerRules(FeedRules(pre_images=False), is_consumer=True))
    actual = joined(batches_from(consumer, consumer.position_after(2)))
    before, after = {0, 1, 2, 3, 4, 5}, {0, 2, 3, 5, 6, 7}
    assert {row[2] for row in actual if row[1] == "delete"} == before - after
    assert {row[2] for row in actual if row[1] == "insert"} == after - before
    assert {row[2] for row in actual if row[1] == "update_postimage"} == {0, 2, 3}


# --- tables that were re-created


@pytest.mark.parametrize("num_versions", [1, 3, 6], ids=["fewer", "as many", "more"])
def test_recreated_tables_are_noticed(stored: Dataset, num_versions: int) -> None:
    """The new table reuses version numbers, so following on would mix two histories."""
    position = follow(stored).position_after(3)
    shutil.rmtree(stored.uri)
    table = lance_stream.create_dataset(stored.uri, SCHEMA)
    for number in range(1, num_versions):
        table = table.append(rows(number))
    with pytest.raises(NotFoundError, match=r"version 3 of .* re-created"):
        follow(stored).advance(position)
    with pytest.raises(NotFoundError, match=r"version \d of .* re-created"):
        read(follow(stored), position, Position(5))


def test_running_readers_notice_a_recreated_table(stored: Dataset) -> None:
    """The newest version has the same number as before, so polling alone would never see a
    difference.
    """
    followed = follow(stored)
    position = followed.advance(followed.position_after(4))
    shutil.rmtree(stored.uri)
    make_history(stored.uri)

    def look_often() -> None:
        for _ in range(50):
            followed.advance(position)

    with pytest.raises(NotFoundError, match="re-created"):
        look_often()


def inside_version_2(followed: TableFollower) -> Position:
    """Return a position after some of the inserts of version 2."""
    position = followed.advance(Position(0), Limits(rows=4))
    assert (position.version, position.num_delivered) == (1, 4)
    return position


@pytest.mark.parametrize("is_running", [True, False])
def test_copies_are_noticed_inside_a_version(tmp_path: Path, is_running: bool) -> None:
    """Version 1 is the same in both tables, and version 2 is not."""
    uri, copy = str(tmp_path / "table"), str(tmp_path / "copy")
    lance_stream.create_dataset(uri, SCHEMA)
    shutil.copytree(uri, copy)
    lance_stream.open_dataset(uri).append(rows(*range(6))).append(rows(6))
    followed = TableFollower(uri, None, EVERYTHING)
    position = inside_version_2(followed)
    shutil.rmtree(uri)
    shutil.copytree(copy, uri)
    lance_stream.open_dataset(uri).append(rows(*range(100, 106))).append(rows(106))
    if not is_running:
        followed = TableFollower(uri, None, EVERYTHING)
    with pytest.raises(NotFoundError, match=r"version 2 of .* restored from a copy"):
        followed.advance(position)
    with pytest.raises(NotFoundError, match=r"version 2 of .* restored from a copy"):
        read(followed, position, Position(3))
    with pytest.raises(NotFoundError, match=r"version 2 of .* restored from a copy"):
        read(TableFollower(uri, None, EVERYTHING), Position(0), position)


@pytest.mark.parametrize("num_appends", [0, 1], ids=["fewer", "as many"])
def test_restored_copies_are_no_loss(tmp_path: Path, num_appends: int) -> None:
    """`failOnDataLoss` covers what cleanup removed, not a table that was replaced."""
    uri, copy = str(tmp_path / "table"), str(tmp_path / "copy")
    lance_stream.create_dataset(uri, SCHEMA)
    shutil.copytree(uri, copy)
    lance_stream.open_dataset(uri).append(rows(*range(6)))
    lenient = FollowerRules(FeedRules(), fail_on_data_loss=False)
    position = inside_version_2(TableFollower(uri, None, lenient))
    shutil.rmtree(uri)
    shutil.copytree(copy, uri)
    for number in range(num_appends):
        lance_stream.open_dataset(uri).append(rows(100 + number))
    for ask in (
        lambda: TableFollower(uri, None, lenient).advance(position),
        lambda: read(TableFollower(uri, None, lenient), Position(0), position),
    ):
        with pytest.raises(NotFoundError, match="restored from a copy"):
            ask()


def test_cached_versions_do_not_survive_replacement(tmp_path: Path) -> None:
    """Another table's version of the same number is compared anew."""
    uri, copy = str(tmp_path / "table"), str(tmp_path / "copy")
    lance_stream.create_dataset(uri, SCHEMA)
    shutil.copytree(uri, copy)
    lance_stream.open_dataset(uri).append(rows(*range(6)))
    followed = TableFollower(uri, None, EVERYTHING)
    start = followed.position_after(1)
    followed.advance(start, Limits(rows=4))
    shutil.rmtree(uri)
    shutil.copytree(copy, uri)
    lance_stream.open_dataset(uri).append(rows(100, 101))
    end = followed.advance(start, Limits(rows=4))
    assert (end.version, end.num_delivered) == (2, 0)
    assert {row[2] for row in read(followed, start, end)} == {100, 101}


def test_positions_of_older_releases_resume_inside(ds: Dataset) -> None:
    """Such positions have the mark of the previous version only."""
    marked = follow(ds).position_after(1)
    old = Position(1, 4, mark=marked.mark)
    new = inside_version_2(follow(ds))
    assert joined(batches_from(follow(ds), old)) == joined(batches_from(follow(ds), new))


def test_positions_without_a_mark_are_trusted(ds: Dataset) -> None:
    """Older releases stored none."""
    assert joined(batches_from(follow(ds), Position(4))) == all_changes(ds, 4)


# --- more gaps and losses

LENIENT = FollowerRules(FeedRules(pre_images=False), fail_on_data_loss=False)
APPENDED = FollowerRules(FeedRules(), only_appended=True, fail_on_data_loss=False)


def test_gaps_after_nothing_are_losses(stored: Dataset) -> None:
    """No tag keeps version 0, so a consumer that starts there has not read what is gone."""
    forget(stored, 1, 2)
    consumer = follow(stored, FollowerRules(FeedRules(), is_consumer=True))
    with pytest.raises(NotFoundError, match="versions 1 to 2 no longer exist"):
        read(consumer, Position(0), Position(5))


def test_bridges_are_not_cut_by_limits(stored: Dataset) -> None:
    """A batch ends before a gap whose net changes do not fit it."""
    forget(stored, 3)
    lenient = follow(stored, LENIENT)
    assert steps_from(lenient, Position(1), Limits(rows=8))[1].version == 2
    assert steps_from(lenient, Position(1), Limits(rows=100))[1].version == 5


def test_ends_inside_missing_versions_follow_later(stored: Dataset) -> None:
    """The batch of a checkpoint ends inside a version that has been removed since."""
    half = follow(stored).advance(Position(1), Limits(rows=4))
    forget(stored, 2)
    with pytest.raises(NotFoundError, match="the first 4 changes of version 2 are needed"):
        read(follow(stored), Position(1), half)
    assert read(follow(stored, LENIENT), Position(1), half) == []
    assert read(follow(stored, LENIENT), Position(0), half) == []


def test_losses_may_leave_no_changes(stored: Dataset) -> None:
    """The batch ends at the version that takes the place of its start."""
    forget(stored, 1, 2, 3)
    rules = FollowerRules(FeedRules(deduplication_mode=NET_CHANGES), fail_on_data_loss=False)
    assert read(follow(stored, rules), Position(2), Position(4)) == []
    assert read(follow(stored, rules), Position(2), Position(5)) == [
        (5, "insert", 6),
        (5, "insert", 7),
    ]


def test_unlimited_net_changes_finish_versions(ds: Dataset) -> None:
    """The rest of a version comes alone: it is no change of the versions after it."""
    rules = FollowerRules(FeedRules(deduplication_mode=NET_CHANGES, pre_images=False))
    followed = follow(ds, rules)
    half = followed.advance(Position(1), Limits(rows=4))
    assert [position.version for position in steps_from(followed, half)] == [1, 2, 5]
    assert [position.version for position in steps_from(follow(ds), half)] == [1, 5]


@pytest.mark.parametrize(
    ("start", "removed", "expected"),
    [
        (1, [3], [(2, 0), (4, 1), (4, 2), (5, 3)]),
        (2, [3], [(4, 1), (4, 2), (5, 3)]),
        (0, [1, 2], [(3, 0), (3, 1), (4, 2), (5, 3)]),
        (0, [], [(2, 0), (3, 1), (4, 2), (5, 3)]),
    ],
)
def test_appended_rows_bridge_gaps(
    tmp_path: Path, start: int, removed: list[int], expected: list[tuple[int, int]]
) -> None:
    """The rows of missing versions arrive with the next one; also those before the first."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    for number in range(4):
        ds = ds.append(rows(number))
    forget(ds, *removed)
    changes = joined(batches_from(follow(ds, APPENDED), Position(start), Limits(rows=1)))
    assert [(version, row) for version, _, row in changes] == expected
    changes = joined(batches_from(follow(ds, APPENDED), Position(start)))
    assert [(version, row) for version, _, row in changes] == expected


def test_bridges_may_lack_a_time(tmp_path: Path) -> None:
    """Old writers state no time, and the feed has one in each row."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA).append(rows(0)).append(rows(1))
    ds.table.store.write(
        manifest_path(3, NamingScheme.V2),
        encode_manifest(replace(ds.table.manifest, timestamp_nanos=None)),
    )
    forget(ds, 2)
    units = follow(ds, replace(APPENDED, fail_on_data_loss=False)).units(Position(1), Position(3))
    times = {
        row["id"]: row["_commit_timestamp"]
        for batch in read_changes(units)
        for row in batch.to_pylist()
    }
    assert times == {0: LONG_AGO, 1: LONG_AGO}


def test_appended_rows_keep_their_versions(ds: Dataset) -> None:
    """Net changes are those of updates and deletes; appended rows have none."""
    rules = FollowerRules(
        FeedRules(deduplication_mode=NET_CHANGES), only_appended=True, skip_change_commits=True
    )
    assert [row[0] for row in read(follow(ds, rules), Position(1), Position(5))] == [2] * 6 + [
        5
    ] * 2


def test_newer_versions_are_returned(ds: Dataset) -> None:
    """The history of the last batch does not have them."""
    followed = follow(ds)
    followed.advance(Position(1))
    ds.append(rows(8)).append(rows(9))
    assert followed.table(3).version == 3
    assert followed.table(6).version == 6
    assert followed.table().version == 7
    assert follow(ds).table(3).version == 3


def test_versions_keep_the_stores_settings(tmp_path: Path) -> None:
    """The tasks that read them open other stores with the same settings."""
    options = {"timeout": "30s"}
    lance_stream.create_dataset(tmp_path / "t", SCHEMA)
    for settings_of_store in (options, None):
        followed = TableFollower(str(tmp_path / "t"), settings_of_store, EVERYTHING)
        assert followed.table().storage_options == (settings_of_store or {})


@pytest.mark.parametrize(
    ("max_row_changes", "max_steps", "versions"),
    [(10**6, 64, [2, 3, 4, 5]), (8, 64, [2, 3]), (7, 64, [2]), (1, 64, [2]), (10**6, 2, [2, 3])],
)
def test_cached_comparisons_are_bounded(
    ds: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    max_row_changes: int,
    max_steps: int,
    versions: list[int],
) -> None:
    """A large version is compared once, and the memory for others is bounded."""
    monkeypatch.setattr(follower, "MAX_CACHED_ROW_CHANGES", max_row_changes)
    monkeypatch.setattr(follower, "MAX_CACHED_STEPS", max_steps)
    followed = follow(ds)
    followed.advance(Position(1), Limits(rows=100))
    assert sorted(followed._cached_steps) == versions


# --- other rules


def test_net_changes_are_per_batch(ds: Dataset) -> None:
    """Net changes are relative to what the consumer has, which is the end of its previous batch."""
    rules = FollowerRules(FeedRules(deduplication_mode=NET_CHANGES, pre_images=False))
    (batch,) = batches_from(follow(ds, rules), Position(0))
    assert sorted(batch) == [(5, "insert", number) for number in (0, 2, 3, 5, 6, 7)]
    by_two = batches_from(follow(ds, rules), Position(1), Limits(versions=2))
    assert [sorted(row[1:] for row in batch) for batch in by_two] == [
        [("insert", number) for number in (0, 2, 3, 5)],
        [("insert", 6), ("insert", 7)] + [("update_postimage", number) for number in (0, 2, 3)],
    ]


def test_large_net_changes_are_split(ds: Dataset) -> None:
    """The row limit must hold in this mode as well, without losing or repeating rows."""
    rules = FollowerRules(FeedRules(deduplication_mode=NET_CHANGES, pre_images=False))
    batches = batches_from(follow(ds, rules), Position(1), Limits(rows=4))
    assert [len(batch) for batch in batches] == [4, 2, 2, 3, 2]
    assert sorted(row[2] for row in joined(batches) if row[0] == 2) == [0, 1, 2, 3, 4, 5]


def test_appends_need_no_stable_ids(tmp_path: Path) -> None:
    """Tables of pylance have none by default, and a compaction between appends must not repeat
    rows.
    """
    uri = str(tmp_path / "table")
    lance.write_dataset(rows(1, 2, 3), uri)
    lance.write_dataset(rows(4), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()
    lance.write_dataset(rows(5), uri, mode="append")
    rules = FollowerRules(FeedRules(), only_appended=True)
    followed = TableFollower(uri, None, rules)
    batches = batches_from(followed, followed.position_after(0), Limits(rows=2))
    assert [[row[2] for row in batch] for batch in batches if batch] == [[1, 2], [3, 4], [5]]
    snapshot = joined(batches_from(followed, FROM_SNAPSHOT, Limits(rows=2)))
    assert [row[2] for row in snapshot] == [1, 2, 3, 4, 5]


def test_appended_rows_stop_at_other_changes(ds: Dataset) -> None:
    """An append-only source cannot express other changes, and skips them only on request."""
    followed = follow(ds, FollowerRules(FeedRules(), only_appended=True))
    with pytest.raises(InvalidInputError, match=r"version 3 .*skipChangeCommits"):
        read(followed, Position(1), Position(5))
    rules = FollowerRules(FeedRules(), only_appended=True, skip_change_commits=True)
    actual = joined(batches_from(follow(ds, rules), Position(1), Limits(rows=3)))
    assert [row[2] for row in actual] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_snapshots_cannot_follow_changes(ds: Dataset) -> None:
    """Such positions can only come from a damaged checkpoint, and would repeat rows."""
    with pytest.raises(CorruptDataError, match="snapshot"):
        read(follow(ds), Position(2), Position(3, 1, is_snapshot=True))


def test_an_empty_range_has_no_changes(ds: Dataset) -> None:
    """After a rollback of the table, Spark may request a batch that ends before its start."""
    assert read(follow(ds), Position(5), Position(3)) == []


def test_empty_first_batches_need_no_version(stored: Dataset) -> None:
    """A query that started at the newest version knows the mark of its start only later."""
    end = follow(stored).position_after(3)
    forget(stored, 1, 2, 3)
    assert read(follow(stored), Position(3), end) == []


# --- how far behind


def test_unread_versions_and_rows_are_counted(ds: Dataset) -> None:
    """Operators watch the lag, which must count partly read versions and snapshots exactly."""
    followed = follow(ds)
    end = followed.advance(Position(1), Limits(rows=4))
    lag = followed.lag(end)
    assert (lag.newest, lag.versions) == (5, 4)
    assert lag.rows == len(all_changes(ds)) - 4
    assert followed.lag(followed.position_after(5)).rows == 0
    assert followed.lag(Position(1, 4, counts_pairs=True)).rows is None
    assert followed.lag(FROM_SNAPSHOT).rows == 6
    ds.append(rows(8))  # after the last batch
    followed.list_newest()
    assert followed.lag(FROM_SNAPSHOT).rows == 7
    assert followed.lag(Position(4)) == Lag(6, 2, 3)
    another = follow(ds)
    another.list_newest()
    assert another.lag(Position(4)).rows == 3
    in_snapshot = followed.advance(FROM_SNAPSHOT, Limits(rows=4))
    assert followed.lag(in_snapshot).rows == 3


@pytest.mark.parametrize("version", [1, 2, 3])
def test_missing_versions_have_unknown_rows(stored: Dataset, version: int) -> None:
    """The next batch reports the gap; until then the lag is a number of versions."""
    forget(stored, 3)
    followed = follow(stored)
    followed.list_newest()
    lag = followed.lag(Position(version))
    assert (lag.versions, lag.rows) == (5 - version, None)
    assert followed.lag(Position(4)).rows == 2


def test_counting_unread_rows_is_spread_out() -> None:
    """Each report counts a few versions; until all are counted, the number is unknown."""
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    for number in range(follower.MAX_COUNTED_PER_LAG + 2):
        table = table.append(rows(number))
    followed = follow(table)
    end = followed.advance(Position(1), Limits(versions=1))
    assert followed.lag(end).rows is None
    assert followed.lag(end).rows == follower.MAX_COUNTED_PER_LAG + 1


def test_any_limit_cuts_the_initial_snapshot(ds: Dataset) -> None:
    """A limit by bytes alone is a limit: the first batch of a large table would not fit."""
    size = sum(
        file.size_bytes for fragment in ds.table.manifest.fragments for file in fragment.files
    )
    whole = steps_from(follow(ds), FROM_SNAPSHOT)
    assert len(whole) == 2
    assert steps_from(follow(ds), FROM_SNAPSHOT, Limits(size_bytes=100 * size)) == whole
    assert steps_from(follow(ds), FROM_SNAPSHOT, Limits(rows=100)) == whole
    for limits in (Limits(size_bytes=size // 4), Limits(rows=2), Limits(rows=2, size_bytes=size)):
        positions = steps_from(follow(ds), FROM_SNAPSHOT, limits)
        assert len(positions) > 3
        assert all(position.is_snapshot for position in positions[:-1])
        changes = joined(batches_from(follow(ds), FROM_SNAPSHOT, limits))
        assert sorted(change for _, _, change in changes) == [0, 2, 3, 5, 6, 7]
