"""Consumers: readers of the feed whose progress is stored with the table."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    CorruptDataError,
    Dataset,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.environment import Environment
from lance_stream.maintenance import consumers
from lance_stream.maintenance.consumers import (
    CONSUMER_PREFIX,
    SNAPSHOT_PREFIX,
    Consumer,
    abandoned_consumers,
    consumer_tag,
    drop_consumer,
    is_consumer_tag,
    list_consumers,
    protect_start,
    read_position,
    read_progress,
    read_skipped_from,
    record_progress,
    release_start,
)
from lance_stream.snapshot.references import Refs
from lance_stream.snapshot.tag_files import move_tag
from tests.commit.tables import make_environment


@pytest.fixture
def ds() -> Dataset:
    """Four versions."""
    table = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([pa.field("a", pa.int64())])
    )
    for number in range(3):
        table = table.append(pa.table({"a": [number]}))
    return table


def at(moment: datetime) -> Environment:
    """Return a clock that is stopped."""
    return make_environment(now_nanos=lambda: int(moment.timestamp()) * 10**9)


def test_progress_is_a_tag_that_moves(ds: Dataset) -> None:
    """As a tag, progress also protects the version from a cleanup by Lance; it may move
    backwards.
    """
    store = ds.table.refs
    assert read_progress(store, "totals") is None
    record_progress(store, "totals", 1)
    record_progress(store, "totals", 3)
    assert read_progress(store, "totals") == 3
    assert ds.tags.list()["lance_stream.consumer.totals"].version == 3
    record_progress(store, "totals", 2)  # a reader that was started again from an older checkpoint
    assert read_progress(store, "totals") == 2


def test_other_tags_are_not_consumers(ds: Dataset) -> None:
    """Users' tags share the folder and must not appear as readers."""
    began, moved = (datetime(2026, 1, number, tzinfo=UTC) for number in (1, 2))
    ds.tags.create("gold", 1)
    record_progress(ds.table.refs, "b", 1, at(began))
    record_progress(ds.table.refs, "b", 2, at(moved))
    record_progress(ds.table.refs, "a-1", 4, at(began))
    assert list_consumers(ds.table.refs) == [
        Consumer("a-1", 4, began, began),
        Consumer("b", 2, began, moved),
    ]


def test_progress_is_not_written_twice(ds: Dataset) -> None:
    """An idle stream records the same version at every trigger, which must cost no write."""
    began, later = (datetime(2026, 1, number, tzinfo=UTC) for number in (1, 2))
    record_progress(ds.table.refs, "a", 2, at(began))
    record_progress(ds.table.refs, "a", 2, at(later))
    assert list_consumers(ds.table.refs) == [Consumer("a", 2, began, began)]


def test_progress_needs_an_existing_version(ds: Dataset) -> None:
    """A typo in a version would protect nothing and look like a working consumer."""
    record_progress(ds.table.refs, "totals", 2)
    with pytest.raises(NotFoundError, match="has no version 9"):
        record_progress(ds.table.refs, "totals", 9)
    with pytest.raises(InvalidInputError, match="at least 1, not 0"):
        record_progress(ds.table.refs, "totals", 0)
    assert read_progress(ds.table.refs, "totals") == 2


def test_linked_tags_are_not_dropped(tmp_path: Path) -> None:
    """They may belong to another table, whose consumer would be forgotten."""
    refs = lance_stream.create_dataset(tmp_path / "t", pa.table({"a": [1]})).table.refs
    record_progress(refs, "totals", 1)
    tags = tmp_path / "t" / "_refs" / "tags"
    tags.rename(tmp_path / "elsewhere")
    tags.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsupportedFeatureError, match="is a link"):
        drop_consumer(refs, "totals")
    assert read_progress(refs, "totals") == 1


def test_dropped_consumers_are_forgotten(ds: Dataset) -> None:
    """Dropping is the way to release versions, and a misspelt name must not pass silently."""
    record_progress(ds.table.refs, "totals", 2)
    with pytest.raises(NotFoundError, match="no consumer 'total'; there are: totals"):
        drop_consumer(ds.table.refs, "total")
    drop_consumer(ds.table.refs, "totals")
    assert read_progress(ds.table.refs, "totals") is None
    with pytest.raises(NotFoundError, match="there are no consumers"):
        drop_consumer(ds.table.refs, "totals")


def test_initial_holds_and_consumers_stay_separate(ds: Dataset) -> None:
    """The hold of a first snapshot has a suffix that a consumer's own name may also have."""
    refs = ds.table.refs
    record_progress(refs, "x.snapshot", 3)
    protect_start(refs, "x", 2)
    assert [
        (consumer.name, consumer.version, consumer.is_beginning)
        for consumer in list_consumers(refs)
    ] == [
        ("x", 2, True),
        ("x.snapshot", 3, False),
    ]
    newest = ds.append(pa.table({"a": [9]}))
    assert newest.cleanup(retain_versions=1).versions == (1,)
    release_start(refs, "x")
    assert read_progress(refs, "x.snapshot") == 3
    protect_start(refs, "x", 4)
    drop_consumer(refs, "x")
    assert [consumer.name for consumer in list_consumers(refs)] == ["x.snapshot"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../up", ".x", "x.", "a..b", "x.lock", "é"])
def test_invalid_consumer_names_are_refused(ds: Dataset, name: str) -> None:
    """Names become file names and tags, for which Lance has rules."""
    with pytest.raises(InvalidInputError, match="cannot be the name of a consumer"):
        record_progress(ds.table.refs, name, 1)
    assert ds.tags.list() == {}


@pytest.mark.parametrize("content", [b"{}", b"[]", b"1"])
def test_damaged_tags_report_no_progress(ds: Dataset, content: bytes) -> None:
    """Reading a damaged tag as no progress would start the consumer from the beginning."""
    ds.table.store.write("_refs/tags/lance_stream.consumer.totals.json", content)
    with pytest.raises(CorruptDataError, match="does not state a version"):
        read_progress(ds.table.refs, "totals")
    with pytest.raises(CorruptDataError, match="does not state a version"):
        record_progress(ds.table.refs, "totals", 1)


@pytest.mark.parametrize(
    "content", [b"", b'{"version": 2,', bytes(300)], ids=["empty", "truncated", "zeros"]
)
def test_damaged_consumers_name_file_and_remedy(
    ds: Dataset, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A power failure can truncate the tag, and the consumer and every cleanup then fail until
    somebody knows which file to repair or delete.
    """
    record_progress(ds.table.refs, "totals", 1)
    ds.table.store.write("_refs/tags/lance_stream.consumer.totals.json", content)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: next(ds.follow("totals")),
        lambda: drop_consumer(ds.table.refs, "totals"),
        lambda: move_tag(ds.table.refs, "lance_stream.consumer.totals", 2),
    )
    for verb in verbs:
        with pytest.raises(CorruptDataError, match="is not JSON") as caught:
            verb()
        (note,) = caught.value.__notes__
        assert "_refs/tags/lance_stream.consumer.totals.json" in note
        assert "ds.tags.delete('lance_stream.consumer.totals')" in note
    assert list_consumers(ds.table.refs) == []
    assert "skipped the tag file" in caplog.text
    ds.tags.delete("lance_stream.consumer.totals")
    assert next(ds.follow("totals")).num_rows > 0


def test_idle_lagging_consumers_are_abandoned(ds: Dataset) -> None:
    """Only a consumer that lags and no longer moves keeps versions for nobody."""
    store, now = ds.table.refs, datetime.now(UTC)
    record_progress(store, "behind", 2)
    record_progress(store, "done", 4)
    week = timedelta(days=7)
    assert abandoned_consumers(ds.table, week, at(now + timedelta(days=6))) == []
    (actual,) = abandoned_consumers(ds.table, week, at(now + timedelta(days=8)))
    assert actual.name == "behind"
    moved = datetime(2100, 1, 1, tzinfo=UTC)
    record_progress(store, "slow", 2, at(moved))
    second = timedelta(seconds=1)
    for age, names in ((week - second, ["behind"]), (week, ["behind", "slow"])):
        consumers = abandoned_consumers(ds.table, week, at(moved + age))
        assert [consumer.name for consumer in consumers] == names


def test_waiting_consumers_are_not_abandoned(ds: Dataset) -> None:
    """A table without commits gives its reader nothing to record, however long that lasts."""
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    record_progress(ds.table.refs, "patient", 3, at(long_ago))
    assert abandoned_consumers(ds.table, timedelta(days=7)) == []


def test_unknown_consumers_have_skipped_nothing(ds: Dataset) -> None:
    """The first batch of a stream asks for the position of its last rows."""
    assert read_skipped_from(ds.table.refs, "unknown") is None
    record_progress(ds.table.refs, "known", 1, position="p")
    assert read_skipped_from(ds.table.refs, "known") is None
    record_progress(ds.table.refs, "known", 2, position="q", skipped_from="p")
    assert read_skipped_from(ds.table.refs, "known") == "p"


def test_consumers_are_stored_in_tags() -> None:
    """A tag of the wrong name would protect nothing, or not be found."""
    for is_beginning in (True, False):
        consumer = Consumer("totals", 1, None, None, is_beginning)
        assert is_consumer_tag(consumer.tag)
        assert consumer.tag == consumer_tag(
            "totals", SNAPSHOT_PREFIX if is_beginning else CONSUMER_PREFIX
        )


@pytest.mark.parametrize(
    ("created", "updated", "days", "is_abandoned"),
    [
        (None, None, 31, False),
        (0, None, 29, False),
        (0, None, 30, True),
        (None, 0, 31, True),
        (0, 5, 34, False),
        (0, 5, 35, True),
        (5, 0, 34, False),
    ],
)
def test_idle_times_decide_abandonment(
    ds: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    created: int | None,
    updated: int | None,
    days: int,
    is_abandoned: bool,
) -> None:
    """Tags of other programs may state no times, and then nobody knows how old they are."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [None if day is None else start + timedelta(days=day) for day in (created, updated)]
    consumer = Consumer("totals", 1, moments[0], moments[1])
    monkeypatch.setattr(consumers, "list_consumers", lambda _: [consumer])
    monkeypatch.setattr(consumers, "timestamp_of", lambda _: None)
    clock = at(start + timedelta(days=days))
    abandoned = abandoned_consumers(ds.table, timedelta(days=30), clock)
    assert abandoned == ([consumer] if is_abandoned else [])
    monkeypatch.setattr(consumers, "list_consumers", lambda _: [replace(consumer, version=4)])
    assert abandoned_consumers(ds.table, timedelta(days=30), clock) == []


@pytest.fixture
def dev(ds: Dataset) -> Dataset:
    """A branch with a version of its own."""
    ds.branches.create("dev")
    return lance_stream.open_dataset(ds.uri, branch="dev").append(pa.table({"a": [9]}))


def test_consumers_belong_to_one_history(ds: Dataset, dev: Dataset) -> None:
    """The versions of a branch have the numbers of others, which the consumer has not read."""
    main, branch = ds.table.refs, dev.table.refs
    record_progress(main, "ours", 2)
    protect_start(main, "ours", 1)
    record_progress(branch, "theirs", 5)
    protect_start(branch, "theirs", 4)
    assert {consumer.name for consumer in list_consumers(main)} == {"ours"}
    assert {consumer.name for consumer in list_consumers(branch)} == {"theirs"}
    before = list_consumers(main), list_consumers(branch)
    verbs: tuple[Callable[[Refs, str], object], ...] = (
        read_progress,
        read_position,
        read_skipped_from,
        drop_consumer,
        lambda refs, name: record_progress(refs, name, 4),
        lambda refs, name: protect_start(refs, name, 4),
    )
    for verb in verbs:
        with pytest.raises(InvalidInputError, match="'ours' follows the table itself, not its bra"):
            verb(branch, "ours")
        with pytest.raises(InvalidInputError, match="'dev', not the table itself"):
            verb(main, "theirs")
    release_start(branch, "ours")
    release_start(main, "theirs")
    assert (list_consumers(main), list_consumers(branch)) == before


def test_early_consumers_of_branches_remain(ds: Dataset, dev: Dataset) -> None:
    """Early releases stored them in the branch's folder, where the table has others."""
    main, branch = ds.table.refs, dev.table.refs
    path = f"_refs/tags/{CONSUMER_PREFIX}totals.json"
    dev.table.store.write(path, b'{"version": 4}')
    record_progress(main, "totals", 2)
    assert (read_progress(branch, "totals"), read_progress(main, "totals")) == (4, 2)
    record_progress(branch, "totals", 5)
    assert (read_progress(branch, "totals"), read_progress(main, "totals")) == (5, 2)
    drop_consumer(branch, "totals")
    assert not dev.table.store.exists(path)
    assert read_progress(main, "totals") == 2


def test_positions_are_recorded_with_progress(ds: Dataset) -> None:
    """A consumer may move within a version; before its first one, its start has the position."""
    refs = ds.table.refs
    assert read_position(refs, "totals") is None
    protect_start(refs, "totals", 1, position="start")
    assert read_position(refs, "totals") == "start"
    record_progress(refs, "totals", 2, position="p")
    assert read_position(refs, "totals") == "p"
    release_start(refs, "totals")
    record_progress(refs, "totals", 2, position="q")
    assert (read_progress(refs, "totals"), read_position(refs, "totals")) == (2, "q")
    record_progress(refs, "totals", 2)
    assert read_position(refs, "totals") is None
