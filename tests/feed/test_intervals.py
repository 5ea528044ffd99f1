"""From timestamps to versions; commit timestamps in the feed are monotonic despite clock skew."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.feed.intervals import (
    CLOCK_SKEW,
    check_is_past,
    commit_time,
    first_version_since,
    last_version_until,
)
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import manifest_path
from tests.contracts.watched_stores import WatchedStore

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
KOLKATA = timezone(timedelta(hours=5, minutes=30))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def table_at(*seconds: float) -> Dataset:
    """A table whose version n inserts one row, and was committed at the n-th time."""
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", pa.schema([("id", pa.int64())])
    )
    for number in range(len(seconds) - 1):
        ds = ds.append(pa.table({"id": [number]}))
    for version, second in enumerate(seconds, start=1):
        manifest = ds.table.log.read(version)
        nanos = (
            round(at(second).timestamp() * 1e6) * 1000 + 7
        )  # what is below a microsecond is lost
        ds.table.store.delete(manifest_path(version))
        data = encode_manifest(replace(manifest, timestamp_nanos=nanos))
        assert ds.table.store.create_once(manifest_path(version), data)
    return lance_stream.open_dataset(ds.uri)


@pytest.mark.parametrize(
    ("seconds", "since", "until"),
    [(0, 1, 1), (0.5, 2, 1), (10, 2, 2), (15, 3, 2), (20, 3, 3), (99, 4, 3)],
)
def test_timestamps_at_and_between_versions(seconds: float, since: int, until: int) -> None:
    """A start is the first version at or after a moment; an end is the last at or before it."""
    table = table_at(0, 10, 20).table
    assert first_version_since(table, at(seconds)) == since
    assert last_version_until(table, at(seconds)) == until


def test_skewed_clocks_have_a_limit() -> None:
    """The clock of the first writer was ahead of the second one's by the largest difference."""
    seconds = CLOCK_SKEW / 10**9
    table = table_at(seconds, 0, seconds + 1).table
    assert first_version_since(table, at(seconds)) == 1
    assert first_version_since(table, at(seconds + 0.5)) == 3
    further = table_at(seconds + 1, 0, seconds + 2).table
    assert first_version_since(further, at(seconds + 1)) == 3


def test_versions_after_the_handle_are_read() -> None:
    """The interval is checked against the table, not against what was opened."""
    old = table_at(0, 10)
    lance_stream.open_dataset(old.uri).append(pa.table({"id": [7]}))
    assert old.changes(2, 3).read_all()["id"].to_pylist() == [7]
    with pytest.raises(InvalidInputError, match=r"through version 4 .* the newest version is 3"):
        old.changes(2, 4)


def test_remedies_name_existing_snapshots(tmp_path: Path) -> None:
    """Without the last version of the interval, only the newest snapshot leads on."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([("id", pa.int64())]))
    for number in range(5):
        ds = ds.append(pa.table({"id": [number]}))
    for version in (3, 4):
        (tmp_path / "t" / manifest_path(version)).unlink()
    with pytest.raises(
        NotFoundError, match=r"existing versions through 4: 1 to 2\. Read a snapshot of the newest"
    ):
        ds.changes(1, 4).read_all()
    with pytest.raises(NotFoundError, match=r"1 to 2, 5 to 6\. Read a snapshot of version 5, and"):
        ds.changes(1, 6).read_all()
    for version in (1, 2):
        (tmp_path / "t" / manifest_path(version)).unlink()
    with pytest.raises(
        NotFoundError, match=r"existing versions through 4: none\. Read a snapshot of the newest"
    ):
        ds.changes(1, 4).read_all()


@pytest.mark.parametrize("is_clone", [False, True])
def test_clones_begin_without_a_history(tmp_path: Path, is_clone: bool) -> None:
    """A reader of a clone looks for versions that only the original has."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    ds = ds.append(pa.table({"id": [2]})).append(pa.table({"id": [3]}))
    if is_clone:
        ds.shallow_clone(str(tmp_path / "clone"))
        ds = lance_stream.open_dataset(tmp_path / "clone")
    else:
        (tmp_path / "t" / manifest_path(2)).unlink()
    with pytest.raises(NotFoundError, match=r"version [12], which has been cleaned up") as error:
        ds.changes(1, 3).read_all()
    assert ("the history from which this branch or clone started" in str(error.value)) == is_clone


def test_waiting_readers_start_in_the_past() -> None:
    """They would wait for a future time, and drop the changes until then."""
    now = datetime.now(UTC)
    check_is_past(now, "startingTimestamp", "")
    for moment in (now + timedelta(hours=1), (now + timedelta(hours=1)).replace(tzinfo=None)):
        with pytest.raises(InvalidInputError, match=r"startingTimestamp is .* future; start now"):
            check_is_past(moment, "startingTimestamp", "start now")


def test_timestamps_before_the_first_version() -> None:
    """An end before the first version is an error; a start there selects all versions."""
    table = table_at(0, 10).table
    assert first_version_since(table, at(-1)) == 1
    with pytest.raises(InvalidInputError, match=r"no version existed at .* version 1"):
        last_version_until(table, at(-1))


def test_timestamps_are_independent_of_time_zones() -> None:
    """The same instant in another zone, or without one, is the same moment in UTC."""
    table = table_at(0, 10, 20).table
    moment = at(10).astimezone(KOLKATA)
    assert first_version_since(table, moment) == last_version_until(table, moment) == 2
    without_zone = at(10).replace(tzinfo=None)  # is in UTC
    assert first_version_since(table, without_zone) == 2
    assert last_version_until(table, without_zone) == 2


def test_reversed_times_are_refused() -> None:
    """Without a commit between them, an empty result would hide that the times were swapped."""
    ds = table_at(0, 10, 20)
    for after, through in (
        (at(20), at(10)),
        (at(16), at(14)),
        (at(16).replace(tzinfo=None), at(14)),
    ):
        with pytest.raises(InvalidInputError, match=r"ends \(.*\) before it starts"):
            ds.changes(after, through)


@pytest.mark.parametrize("last", [2, 4])
def test_ends_among_missing_versions_are_refused(last: int) -> None:
    """A version that was cleaned up may be the last one before the time: its changes are lost."""
    ds = table_at(0, 10, 20, 30, 40)
    for version in range(3, last + 1):
        ds.table.store.delete(manifest_path(version))
    assert last_version_until(ds.table, at(10)) == 2
    assert last_version_until(ds.table, at(40)) == 5
    if last == 2:
        assert last_version_until(ds.table, at(25)) == 3
        return
    for after in (0, at(5)):
        with pytest.raises(NotFoundError, match="versions between 2 and 5 have been cleaned up"):
            ds.changes(after, at(25))


@pytest.mark.parametrize("seconds", range(-1, 62))
def test_clock_skew_skips_no_version(seconds: int) -> None:
    """Writers' clocks differ, and a version stamped earlier than its predecessor must not be
    skipped.
    """
    commit_seconds = [0, 50, 12, 30, 11, 60, 58]
    table = table_at(*commit_seconds).table
    output = [max(commit_seconds[: index + 1]) for index in range(len(commit_seconds))]
    since = next((v for v, value in enumerate(output, start=1) if value >= seconds), 8)
    assert first_version_since(table, at(seconds)) == since
    if seconds >= 0:
        until = max(v for v, value in enumerate(output, start=1) if value <= seconds)
        assert last_version_until(table, at(seconds)) == until


def test_finding_a_version_reads_few_manifests() -> None:
    """A binary search is possible although timestamps are not sorted exactly."""
    minutes = table_at(*(120 * number for number in range(60)))
    store = WatchedStore(minutes.table.store)
    log = type(minutes.table.log)(store)
    table = replace(minutes.table, store=store, log=log)
    assert first_version_since(table, at(120 * 17)) == 18
    read = {path for name, path in store.calls if path.endswith(".manifest")}
    assert len(read) < 10


def test_timestamps_are_monotonic_for_any_start() -> None:
    """The timestamp of a version must not depend on where a reader starts."""
    commit_seconds = [0, 50, 12, 30, 11, 60, 58]
    ds = table_at(*commit_seconds)
    whole = ds.changes(0).read_all()["_commit_timestamp"].to_pylist()
    assert whole == [at(number) for number in (50, 50, 50, 50, 60, 60)]
    for after in range(1, 7):
        part = table_at(*commit_seconds).changes(after).read_all()["_commit_timestamp"].to_pylist()
        assert part == whole[after - 1 :]
    net = table_at(*commit_seconds).changes(2, 5, deduplication_mode="netChanges").read_all()
    assert set(net["_commit_timestamp"].to_pylist()) == {at(50)}


def test_versions_beyond_clock_skew_are_ignored() -> None:
    """The bound on clock skew limits how much history is read."""
    later = CLOCK_SKEW / 1e9 + 1
    table = table_at(0, 9, later, later + 20).table
    store = WatchedStore(table.store)
    watched = replace(table, store=store, log=type(table.log)(store))
    assert commit_time(watched) == at(later + 20)
    read = [path for _, path in store.calls if path.endswith(".manifest")]
    assert manifest_path(1) not in read


@pytest.mark.parametrize("unstated", [1, 2, 3])
def test_unstated_commit_times_count_as_oldest(unstated: int) -> None:
    """Old writers stated none; the timestamps of other versions must still be right."""
    ds = table_at(0, 50, 60)
    manifest = ds.table.log.read(unstated)
    ds.table.store.delete(manifest_path(unstated))
    data = encode_manifest(replace(manifest, timestamp_nanos=None))
    assert ds.table.store.create_once(manifest_path(unstated), data)
    times = [commit_time(lance_stream.open_dataset(ds.uri, version=n).table) for n in (1, 2, 3)]
    versions = [number for number in (1, 2, 3) if number != unstated]
    assert [times[number - 1] for number in versions] == [at((0, 50, 60)[n - 1]) for n in versions]


def test_interval_ends_with_a_version() -> None:
    """Version 0 can only be a start: it has neither rows nor columns."""
    table = table_at(0, 10)
    with pytest.raises(
        InvalidInputError, match="'through' is inclusive, at least 1 and not less than 'after'"
    ):
        table.changes(0, 0)
    assert table.changes(1, 1).read_all().num_rows == 0


def test_intervals_accept_versions_tags_and_times() -> None:
    """`changes` and `follow` begin at the same version, however it is named."""
    ds = table_at(0, 10, 20, 30)
    ds.tags.create("gold", 2)
    ds.tags.create("last", 3)
    for after in (2, "gold", at(15), at(20).replace(tzinfo=None)):
        assert ds.changes(after, "last").read_all()["_commit_version"].to_pylist() == [3]
        with ds.follow(after=after, wait=False) as batches:
            versions = [v for batch in batches for v in batch.rows["_commit_version"].to_pylist()]
        assert versions == [3, 4]


def test_tags_of_other_branches_are_refused() -> None:
    """A version of another branch has the same number as one of this branch."""
    ds = table_at(0, 10)
    ds.branches.create("dev")
    dev = ds.checkout(("dev", None)).append(pa.table({"id": [7]}))
    dev.tags.create("of-dev")
    ds = ds.append(pa.table({"id": [8]}))
    assert ds.version == dev.version
    for read in (ds.changes, lambda after: ds.follow(after=after)):
        with pytest.raises(InvalidInputError, match="'of-dev' is version 3 of the branch 'dev'"):
            read("of-dev")


@pytest.mark.parametrize("end", [1.5, timedelta(days=1), None])
def test_other_ends_of_intervals_are_refused(end: object) -> None:
    """The message lists what an end can be."""
    ds = table_at(0, 10)
    with pytest.raises(InvalidInputError, match="after must be a version's number, a tag or a"):
        ds.changes(end)  # type: ignore[arg-type]  # wrong on purpose


def test_zero_is_before_the_first_version() -> None:
    """0 means the beginning in every interface, and a negative number is always an error."""
    ds = table_at(0, 10)
    assert ds.changes(0).read_all()["_commit_version"].to_pylist() == [2]
    for read in (ds.changes, lambda after: ds.follow(after=after)):
        with pytest.raises(InvalidInputError, match="-1"):
            read(-1)
