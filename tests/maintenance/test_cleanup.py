"""Cleanup: what is removed, what stays, and concurrent writers."""

import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import count

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    BadDataError,
    CorruptDataError,
    Dataset,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.environment import MACHINE, Environment
from lance_stream.maintenance.cleanup import ONGOING, CleanupReport, CleanupRules, cleanup
from lance_stream.maintenance.consumers import list_consumers, record_progress
from lance_stream.snapshot.tag_files import create_tag, holding, move_tag
from lance_stream.table.manifest import Manifest, encode_manifest
from lance_stream.table.named_files import nameable, names_of
from lance_stream.table.paths import manifest_path
from tests.contracts.watched_stores import WatchedStore
from tests.dataset.table_copies import copy_of

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64())])
DAY = timedelta(days=1)
ALL = CleanupRules(older_than=None)
NOBODY_WRITES = CleanupRules(older_than=None, delete_unverified=True)


def new_table() -> Dataset:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "x": [id_ % 7 for id_ in ids]}, schema=SCHEMA)


@cache
def template() -> Dataset:
    ds = new_table().append(rows(*range(10))).append(rows(*range(10, 20)))
    ds = ds.delete("id = 3").delete("id = 4").update({"id": "id", "x": "x + 1"}, "id > 15")
    return ds.compact().append(rows(50))


def busy_table() -> Dataset:
    """Eight versions; the last ones need no file of the first six."""
    return copy_of(template())


def in_days(days: float) -> Environment:
    """Return an environment whose clock is ahead."""
    later = timedelta(days=days) // timedelta(microseconds=1) * 1000
    return replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + later)


def paths_of(ds: Dataset) -> list[str]:
    return [file.path for file in ds.table.store.list()]


def unnamed_files(ds: Dataset) -> list[str]:
    """Return the files of the table that no existing version names."""
    named = {
        name
        for version in ds.table.log.versions()
        for name in names_of(ds.table.log.read(version), set())
    }
    found = [(path, nameable(path)) for path in paths_of(ds)]
    return [path for path, what in found if what is not None and what.name not in named]


def on(ds: Dataset, store: WatchedStore) -> Dataset:
    """Return a table whose store is watched."""
    return Dataset(replace(ds.table, store=store, log=ObjectStoreLog(store)))


# --- what goes and what stays


def test_cleanup_removes_versions_and_their_files() -> None:
    """What no remaining version names must go, exactly that, and be counted in the report."""
    ds = busy_table()
    before, there = ds.to_table(with_row_id=True, with_row_versions=True), len(paths_of(ds))
    report = ds.cleanup(retain_versions=1)
    newest = ds.version
    assert report.versions == tuple(range(1, newest))
    assert ds.table.log.versions() == [newest]
    assert unnamed_files(ds) == []
    assert there - len(paths_of(ds)) == sum(report.num_files.values())
    assert report.num_files["manifests"] == report.num_files["transactions"] == newest - 1
    assert report.num_files["data files"] == 3
    assert report.num_files["deletion files"] == 3
    again = lance_stream.open_dataset(ds.uri)
    assert again.to_table(with_row_id=True, with_row_versions=True) == before
    assert again.verify() == []
    with pytest.raises(NotFoundError, match="has no version 2: its only version is"):
        again.checkout(2)


def test_the_report_counts_the_removed_bytes() -> None:
    """Operators judge a cleanup by the space it has freed."""
    ds = busy_table()
    before = sum(file.size_bytes for file in ds.table.store.list())
    report = ds.cleanup(retain_versions=2)
    assert report.size_bytes == before - sum(file.size_bytes for file in ds.table.store.list()) > 0
    assert str(report).startswith(f"removed {ds.version - 2} versions")
    assert f"\n  {ds.version - 2} manifests" in str(report)


class FarStore(WatchedStore):
    """A store that many threads read at once, as an object store."""

    num_readers = 64


def test_distant_manifests_are_read_in_parallel() -> None:
    """A stream leaves a version for each batch, and reading each manifest costs a round trip."""
    ds, both, reads = busy_table(), threading.Barrier(2), count()

    def meet(call: str, path: str) -> None:
        if call == "read" and path.startswith("_versions/") and next(reads) in (2, 3):
            both.wait(10)  # neither goes on before the other is there

    report = on(ds, FarStore(ds.table.store, before=meet)).cleanup(retain_versions=1)
    assert report.versions == tuple(range(1, ds.version))
    assert next(reads) > 3


def test_a_dry_run_predicts_the_cleanup() -> None:
    """It must report exactly what the cleanup would remove, and remove nothing."""
    ds = busy_table()
    before = paths_of(ds)
    report = ds.cleanup(retain_versions=3, dry_run=True)
    assert paths_of(ds) == before
    assert report.is_dry_run
    done = ds.cleanup(retain_versions=3)
    assert replace(report, is_dry_run=False) == done
    assert str(report).startswith("would remove")


def test_versions_stay_until_they_are_old() -> None:
    """The default of two weeks protects readers and time travel."""
    ds = busy_table()
    assert ds.cleanup().versions == ()
    two_weeks = CleanupRules()
    assert cleanup(ds.table, two_weeks, environment=in_days(13.9)).versions == ()
    assert cleanup(ds.table, two_weeks, environment=in_days(14.1)).versions == tuple(
        range(1, ds.version)
    )


def test_versions_without_time_use_their_file() -> None:
    """Old writers stated no time, and a missing time must not make a version look ancient."""
    ds = busy_table()
    for version in range(1, ds.version):
        manifest = replace(ds.table.log.read(version), timestamp_nanos=None)
        ds.table.store.write(ds.table.log.manifest_path(version), encode_manifest(manifest))
    ds = lance_stream.open_dataset(ds.uri)
    rules = CleanupRules(older_than=7 * DAY)
    assert cleanup(ds.table, rules, environment=in_days(6)).versions == ()
    # What states a time has that one, though its file is a young copy.
    old = replace(ds.table.log.read(1), timestamp_nanos=MACHINE.now_nanos() - 8 * 86_400 * 10**9)
    ds.table.store.write(ds.table.log.manifest_path(1), encode_manifest(old))
    ds = lance_stream.open_dataset(ds.uri)
    assert cleanup(ds.table, rules, is_dry_run=True).versions == (1,)
    assert cleanup(ds.table, rules, environment=in_days(8)).versions == tuple(range(1, ds.version))


def test_retention_rules_are_combined() -> None:
    """A version goes only if it is both old and not among the newest."""
    ds = busy_table()
    rules = CleanupRules(older_than=DAY, retain_versions=4)
    assert cleanup(ds.table, rules).versions == ()
    assert cleanup(ds.table, rules, environment=in_days(2)).versions == tuple(
        range(1, ds.version - 3)
    )


def test_versions_after_young_ones_stay() -> None:
    """A clock that was wrong for a while must not make a gap."""
    ds = new_table()
    for days in (-9, 0, -9):
        ds = ds.append(rows(days))
        nanos = ds.table.manifest.timestamp_nanos or 0
        moved = replace(ds.table.manifest, timestamp_nanos=nanos + days * 86_400 * 10**9)
        ds.table.store.write(ds.table.log.manifest_path(ds.version), encode_manifest(moved))
        ds = lance_stream.open_dataset(ds.uri)
    ds = ds.append(rows(1))
    rules = CleanupRules(older_than=2 * DAY)
    assert cleanup(ds.table, rules).versions == ()
    assert cleanup(ds.table, rules, environment=in_days(3)).versions == (1, 2, 3, 4)


@pytest.mark.parametrize("age", [timedelta(0), "0s", "0 days"])
def test_age_zero_keeps_only_the_newest(age: str | timedelta) -> None:
    """Zero is falsy in Python and must not be mistaken for no limit."""
    ds = busy_table()
    assert ds.cleanup(older_than=age).versions == tuple(range(1, ds.version))


@pytest.mark.parametrize(
    "call",
    [
        lambda ds: ds.cleanup(older_than="a while"),
        lambda ds: ds.cleanup(older_than=timedelta(days=-1)),
        lambda ds: ds.cleanup(retain_versions=0),
        lambda ds: ds.cleanup(retain_versions=True),
        lambda ds: ds.cleanup(retain_versions=1.5),
        lambda ds: ds.cleanup(expire_consumers="0d"),
        lambda _ds: CleanupRules(older_than=timedelta(days=-1)),
    ],
)
def test_invalid_rules_are_refused(call: Callable[[Dataset], CleanupReport]) -> None:
    """A rule that is misread could delete versions that the user wanted to keep."""
    ds = busy_table()
    before = paths_of(ds)
    with pytest.raises(InvalidInputError):
        call(ds)
    assert paths_of(ds) == before


def test_tagged_versions_stay_readable() -> None:
    """A tag promises its version for as long as it exists, with all files."""
    ds = busy_table()
    ds.tags.create("gold", 4)
    before = ds.checkout(4).to_table()
    report = ds.cleanup(retain_versions=1)
    assert report.holds == {"gold": 1}
    assert "holds={'gold': 1}" in repr(report)
    assert ds.table.log.versions() == [4, ds.version]
    assert ds.checkout("gold").to_table() == before
    assert ds.checkout("gold").verify() == []
    assert unnamed_files(ds) == []


def test_consumers_hold_later_versions() -> None:
    """A consumer needs the version that it finished with and all later ones."""
    ds = busy_table()
    record_progress(ds.table.refs, "totals", 5)
    record_progress(ds.table.refs, "faster", 7)
    expected = ds.changes(after=5).read_all()
    report = ds.cleanup(retain_versions=1)
    assert report.versions == (1, 2, 3, 4)
    assert report.holds["lance_stream.consumer.totals"] == ds.version - 5
    assert ds.changes(after=5).read_all() == expected
    assert unnamed_files(ds) == []


def test_idle_consumers_can_expire() -> None:
    """A reader that never returns would keep all versions for ever, while one that is up to date
    is no burden.
    """
    ds = busy_table()
    record_progress(ds.table.refs, "gone", 2)
    record_progress(ds.table.refs, "done", ds.version)
    rules = CleanupRules(older_than=None, expire_consumers=30 * DAY)
    report = cleanup(ds.table, rules, is_dry_run=True, environment=in_days(31))
    assert (report.expired_consumers, report.versions) == (("gone",), tuple(range(1, ds.version)))
    assert [consumer.name for consumer in list_consumers(ds.table.refs)] == ["done", "gone"]
    assert cleanup(ds.table, rules, environment=in_days(29)).versions == (1,)
    assert cleanup(ds.table, rules, environment=in_days(31)).versions == tuple(range(2, ds.version))
    assert [consumer.name for consumer in list_consumers(ds.table.refs)] == ["done"]


def test_unreferenced_files_stay_while_young() -> None:
    """A young file may belong to a commit under way, and files that are not ours are never
    touched.
    """
    ds = busy_table()
    lost = [
        "data/0101.lance",
        "data/0101/0000.blob",
        "data/.0102.lance.0123456789abcdef.tmp",
        "_deletions/1-2-3.arrow",
        "_transactions/9-abc.txn",
        "_transactions/9-abc.txn#1",
        "_versions/.18446744073709551600.manifest.0123456789abcdef.tmp",
        "_indices/2f1b3f4e-0000-0000-0000-000000000000/index.idx",
        "_lance_stream/tombstones/0123456789abcdef0123456789abcdef.arrow",
        "_lance_stream/key_bounds/99.arrow",
        "_lance_stream/key_index/99-0123456789abcdef0123456789abcdef.keys",
        "_lance_stream/staged_rows/0123456789abcdef0123456789abcdef.arrow",
    ]
    others = ["notes.txt", "data/notes.txt", "_lance_stream/later/x", "_fri/1/x", "_versions/x"]
    for path in lost + others:
        ds.table.store.write(path, b"?")
    none = CleanupRules(older_than=1000 * DAY)
    assert cleanup(ds.table, none, environment=in_days(6.9)).num_files == {}
    report = cleanup(ds.table, none, environment=in_days(7.1))
    assert sum(report.num_files.values()) == len(lost)
    assert set(report.num_files.values()) == {1, 3}
    assert report.num_files["temporary files"] == 3
    there = paths_of(ds)
    assert not set(lost) & set(there)
    assert set(others) <= set(there)
    assert ds.checkout(3).verify() == ds.verify() == []


def test_unreferenced_files_can_go_at_once() -> None:
    """The caller vouches that nobody is writing."""
    ds = busy_table()
    ds.table.store.write("data/0101.lance", b"?")
    assert ds.cleanup(retain_versions=1).num_files["data files"] == 3
    assert ds.cleanup(delete_unverified=True).num_files == {"data files": 1}
    assert ds.verify() == []


def test_our_unneeded_files_are_removed() -> None:
    """Files beside Lance's format follow the same rule: those that a remaining version names
    must stay.
    """
    ds = new_table()
    for number in range(3):
        data = pa.table({"id": [number], "x": [5], "op": ["d"]})
        ds = ds.upsert(data, "id", "x", "op = 'd'", "op", tombstones="7 days")
    config = dict(ds.config)
    ds = ds.update_config({"lance_stream.tombstones": None})
    ds.table.store.write("_lance_stream/key_bounds/0.arrow", b"a cache")
    ds.tags.create("late", 3)
    assert ds.cleanup(retain_versions=1).num_files["tombstone files"] == 1
    remaining = [text for text in paths_of(ds) if text.startswith("_lance_stream")]
    assert len(remaining) == 3
    assert remaining[0] == "_lance_stream/key_bounds/0.arrow"
    assert all(
        value.rpartition("/")[2] in config["lance_stream.tombstones"] for value in remaining[1:]
    )
    assert ds.checkout("late").verify() == []


def test_blob_files_follow_their_data_file() -> None:
    """Blobs lie in a folder named after their data file, and no manifest lists them."""
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([blob])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema, file_version="2.2")
    for letter in (b"x", b"y"):
        ds = ds.append(pa.table({"b": pa.array([letter * 100_000], pa.large_binary())}, schema))
    first = [file.path for file in ds.table.store.list("data")]
    assert sum(text.endswith(".blob") for text in first) == 2
    ds = ds.overwrite(pa.table({"b": pa.array([b"z" * 100_000], pa.large_binary())}, schema))
    ds.tags.create("kept", 2)
    report = ds.cleanup(retain_versions=1)
    assert report.num_files["data files"] == report.num_files["blob files"] == 1
    assert sum(value in paths_of(ds) for value in first) == 2
    for version, letter in (("kept", b"x"), (None, b"z")):
        assert ds.checkout(version).to_table()["b"].to_pylist() == [letter * 100_000]


def test_detached_versions_keep_their_files() -> None:
    """Lance's detached versions are not in the sequence of versions, but people read them."""
    ds = busy_table()
    store = ds.table.store
    manifest = ds.checkout(3).table.manifest
    number = (1 << 63) + 12345
    store.write(
        f"_versions/d{number}.manifest",
        encode_manifest(replace(manifest, version=number)),
    )
    ds.cleanup(retain_versions=1)
    assert names_of_data(manifest) <= set(paths_of(ds))


def names_of_data(manifest: Manifest) -> set[str]:
    return {text for text in names_of(manifest, set()) if text.startswith("data/")}


def test_temporary_manifests_are_not_unknown() -> None:
    """Writers use a hidden name before they rename, and old leftovers must not stop the cleanup."""
    ds = busy_table()
    ds.table.store.write("_versions/.v3.manifest", b"half")
    ds.cleanup(retain_versions=1)
    assert "_versions/.v3.manifest" in paths_of(ds)


# --- what is refused


@pytest.mark.parametrize(
    ("path", "content", "match"),
    [
        ("_refs/branches/dev/x.json", b"{}", "looks like a branch"),
        ("_refs/branches/x.json", b'{"parentVersion": 1}', "should have the versions of a branch"),
        ("_refs/tags/a b.json", b'{"version": 1}', "looks like a tag"),
        ("_refs/tags/gold.json", b"", "looks like a tag"),
        ("_refs/tags/below/gold.json", b'{"version": 1}', "looks like a tag"),
        ("_refs/bookmarks/gold.json", b"{}", "neither a tag nor a branch"),
        ("_versions/v3.manifest", b"", "looks like a manifest"),
        ("tree/dev/_versions/1.manifest", b"", "manifest"),
        ("tree/d v/_versions/1.manifest", b"", "not valid for a branch"),
    ],
)
def test_unreadable_references_stop_the_cleanup(path: str, content: bytes, match: str) -> None:
    """An unreadable reference may protect a version."""
    ds = busy_table()
    ds.table.store.write(path, content)
    before = paths_of(ds)
    with pytest.raises(BadDataError, match=match):
        ds.cleanup(retain_versions=1)
    assert paths_of(ds) == before


@pytest.mark.parametrize(
    ("path", "content", "match"),
    [
        ("_versions/v3.manifest", b"", "looks like a manifest"),
        (f"_versions/d{(1 << 63) + 5}.manifest", b"", "shorter than its footer"),
        ("its newest", b"", "shorter than its footer"),
    ],
)
@pytest.mark.parametrize("cleaned", [None, "dev", "other"])
def test_unreadable_branches_stop_the_cleanup(
    cleaned: str | None, path: str, content: bytes, match: str
) -> None:
    """Branches share files, so the versions of one may need files of another."""
    ds = busy_table()
    for name in ("dev", "other"):
        ds.branches.create(name)
        lance_stream.open_dataset(ds.uri, branch=name).append(rows(77))
    opened = lance_stream.open_dataset(ds.uri, branch=cleaned)
    bad = lance_stream.open_dataset(ds.uri, branch="dev").table.store
    newest = min(file.path for file in bad.list("_versions"))
    bad.write(newest if path == "its newest" else path, content)
    before = paths_of(ds)
    with pytest.raises(BadDataError, match=match):
        opened.cleanup(retain_versions=1)
    assert paths_of(ds) == before


def test_detached_versions_of_branches_keep_their_files() -> None:
    """A detached version of a branch needs files of the main one, which no other version names."""
    ds = busy_table()
    ds.checkout(3).branches.create("dev")
    branch = lance_stream.open_dataset(ds.uri, branch="dev")
    manifest = branch.table.manifest
    number = (1 << 63) + 12345
    branch.table.store.write(
        f"_versions/d{number}.manifest", encode_manifest(replace(manifest, version=number))
    )
    branch.overwrite(rows(1)).cleanup(retain_versions=1)
    needed = names_of_data(ds.checkout(3).table.manifest)
    ds.cleanup(retain_versions=1)
    assert needed
    assert needed <= set(paths_of(ds))


@pytest.mark.parametrize("version", [2, 8])
def test_unreadable_versions_stop_the_cleanup(version: int) -> None:
    """Nobody can tell which files such a version needs."""
    ds = busy_table()
    path = ds.table.log.manifest_path(version)
    manifest = ds.table.log.read(version)
    flagged = replace(manifest, writer_feature_flags=1 << 40)
    sound = ds.table.store.read(path)
    for bad, error in (
        (encode_manifest(flagged), UnsupportedFeatureError),
        (sound[:-5], CorruptDataError),
    ):
        ds.table.store.write(path, bad)
        before = paths_of(ds)
        with pytest.raises(error):
            cleanup(ds.table, replace(ALL, retain_versions=2), environment=in_days(30))
        assert paths_of(ds) == before


def test_commits_under_way_keep_young_versions() -> None:
    """A writer that has read version 5 is about to publish version 6 on top of it."""
    ds = busy_table()
    ds.table.store.write("_transactions/5-2f1b3f4e-0000-0000-0000-000000000000.txn", b"?")
    num_later = ds.version - 1 - 5
    report = cleanup(ds.table, ALL, is_dry_run=True)
    assert (report.versions, report.holds) == ((1, 2, 3, 4, 5), {ONGOING: num_later})
    assert f"kept {num_later} for a commit in progress" in str(report)
    soon, later = timedelta(minutes=9) / DAY, timedelta(minutes=11) / DAY
    assert cleanup(ds.table, ALL, environment=in_days(soon)).versions == (1, 2, 3, 4, 5)
    assert cleanup(ds.table, ALL, environment=in_days(later)).versions == tuple(
        range(6, ds.version)
    )
    assert ds.verify() == []


def test_delete_unverified_ignores_commits_under_way() -> None:
    """With this option the caller vouches that nobody writes."""
    ds = busy_table()
    ds.table.store.write("_transactions/5-2f1b3f4e-0000-0000-0000-000000000000.txn", b"?")
    assert cleanup(ds.table, NOBODY_WRITES).versions == tuple(range(1, ds.version))


def test_commits_during_cleanup_keep_the_rest() -> None:
    """A commit that appears meanwhile may name files which the plan holds unneeded, so only the
    versions go.
    """
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    store.before = at_first(
        lambda call, path: call == "list" and path == "data",
        lambda: ds.table.store.write("_transactions/4-0.txn", b"?"),
    )
    assert cleanup(on(ds, store).table, ALL).versions == (1, 2, 3, 4)
    assert unnamed_files(ds) == ["_transactions/4-0.txn"]


def test_removing_old_versions_ignores_commits_under_way() -> None:
    """A commit never depends on versions that are older than its own, so it must not block their
    removal.
    """
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    cleanup(on(ds, store).table, CleanupRules(), environment=in_days(20))
    assert ds.table.log.versions() == [ds.version]
    assert store.calls.count(("list", "_transactions")) == 1


def test_without_old_versions_one_manifest_is_read() -> None:
    """A daily cleanup with nothing to do must cost few requests at any number of versions."""
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    assert cleanup(on(ds, store).table, CleanupRules()).num_files == {}
    assert [path for call, path in store.calls if call.startswith("read")] == [manifest_path(1)]


def test_holds_of_killed_verbs_expire() -> None:
    """A verb protects its version by a tag, which a kill would leave for ever."""
    ds = busy_table()
    with holding(ds.table.refs, 3):
        name = next(iter(ds.tags.list()))
        remaining = ds.table.store.read(f"_refs/tags/{name}.json")
    assert ds.tags.list() == {}
    ds.table.store.write(f"_refs/tags/{name}.json", remaining)
    assert cleanup(ds.table, ALL, environment=in_days(6.9)).holds == {name: 1}
    assert cleanup(ds.table, ALL, environment=in_days(7.1)).versions == (3,)
    assert ds.tags.list() == {}


def test_damaged_tags_stop_the_cleanup() -> None:
    """It may name a version that somebody relies on."""
    ds = busy_table()
    ds.table.store.write("_refs/tags/gold.json", b"?")
    before = paths_of(ds)
    with pytest.raises(BadDataError, match="'gold'"):
        ds.cleanup(retain_versions=1)
    assert paths_of(ds) == before


# --- killed, and others meanwhile


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.essential
def test_a_cleanup_killed_anywhere_can_resume() -> None:
    """The table stays valid, and the next cleanup removes the rest."""
    ds = busy_table()
    num_deletes = sum(
        call == "delete" for call, _ in cleanup_watched(ds, lambda _call, _path: None).calls
    )
    assert num_deletes > 15
    for last in range(num_deletes):
        ds = busy_table()
        ds.tags.create("gold", 3)
        left = [last]

        def count_down(call: str, _path: str, left: list[int] = left) -> None:
            if call == "delete":
                left[0] -= 1
                if left[0] < 0:
                    raise Killed

        try:
            cleanup_watched(ds, count_down)
        except Killed:
            assert left[0] < 0
        for version in ds.table.log.versions():
            assert ds.checkout(version).to_table().num_rows >= 0
            assert ds.checkout(version).verify() == []
        cleanup(ds.table, NOBODY_WRITES)
        assert ds.table.log.versions() == [3, ds.version]
        assert unnamed_files(ds) == []


def cleanup_watched(ds: Dataset, before: Callable[[str, str], None]) -> WatchedStore:
    store = WatchedStore(ds.table.store, before=before)
    cleanup(on(ds, store).table, ALL)
    return store


def at_first(event: Callable[[str, str], bool], act: Callable[[], object]) -> Callable[..., None]:
    """Return a watch that acts at the first call of a kind."""
    done: list[bool] = []

    def watch(call: str, path: str) -> None:
        if not done and event(call, path):
            done.append(True)
            act()

    return watch


def is_delete_of_a_manifest(call: str, path: str) -> bool:
    return call == "delete" and path.startswith("_versions/")


def is_look_at_tags(call: str, path: str) -> bool:
    return call == "list" and path == "_refs/tags"


def test_concurrently_used_files_stay() -> None:
    """A restore refers to files of old versions, and an append to files that were written long
    ago.
    """
    for act in (lambda ds: ds.restore(3), lambda ds: ds.append(rows(99))):
        ds = busy_table()
        rules = CleanupRules(older_than=None, delete_unverified=True)
        store = WatchedStore(ds.table.store)
        store.before = at_first(is_delete_of_a_manifest, lambda ds=ds, act=act: act(ds))
        cleanup(on(ds, store).table, rules)
        newest = lance_stream.open_dataset(ds.uri)
        assert newest.version == ds.version + 1
        assert newest.verify() == []
        assert newest.to_table().num_rows == newest.count_rows()


def test_late_tags_restore_their_version() -> None:
    """The tag is created just before its version is removed."""
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    store.before = at_first(is_delete_of_a_manifest, lambda: ds.tags.create("gold", 6))
    report = cleanup(on(ds, store).table, ALL)
    assert 6 not in report.versions
    assert ds.table.log.versions() == [6, ds.version]
    assert ds.checkout("gold").verify() == []
    assert ds.checkout("gold").to_table().num_rows == 18


def test_a_concurrent_tag_keeps_its_version() -> None:
    """Tags are read again before each manifest is deleted, so a tag is safe once created."""
    ds = busy_table()
    looks: list[str] = []

    def tag_at_the_second_look(call: str, path: str) -> None:
        if is_look_at_tags(call, path):
            looks.append(path)
            if len(looks) == 2:
                ds.tags.create("gold", 2)

    store = WatchedStore(ds.table.store, before=tag_at_the_second_look)
    cleanup(on(ds, store).table, ALL)
    assert ds.table.log.versions() == [2, ds.version]
    assert ds.checkout("gold").verify() == []
    assert ("delete", manifest_path(3)) in store.calls
    assert ("delete", manifest_path(2)) not in store.calls


def test_tags_of_removed_versions_fail() -> None:
    """The version disappears while the tag is created, and a tag on nothing must not remain."""
    ds = busy_table()
    ds.tags.create("silver", 7)
    for make, call in ((create_tag, "create_once"), (move_tag, "write")):
        store = WatchedStore(ds.table.store)
        store.before = at_first(
            lambda name, _path, call=call: name == call,
            lambda: ds.table.store.delete(manifest_path(2)),
        )
        sound = ds.table.store.read(manifest_path(2))
        with pytest.raises(NotFoundError, match="has no version 2"):
            make(on(ds, store).table.refs, "gold" if make is create_tag else "silver", 2)
        ds.table.store.write(manifest_path(2), sound)
        assert {name: tag.version for name, tag in ds.tags.list().items()} == {"silver": 7}


def test_concurrent_cleanups_do_one_cleanup() -> None:
    """Schedulers start jobs twice; two cleanups must tolerate that files vanish beneath them."""
    ds = busy_table()
    for event in (
        is_delete_of_a_manifest,
        is_look_at_tags,
        lambda call, path: call == "delete" and path.startswith("data/"),
        lambda call, path: call == "read" and path == manifest_path(5),
    ):
        ds = busy_table()
        store = WatchedStore(ds.table.store)
        store.before = at_first(event, lambda ds=ds: cleanup(ds.table, ALL))
        cleanup(on(ds, store).table, ALL)
        assert ds.table.log.versions() == [ds.version]
        assert unnamed_files(ds) == []
        assert ds.verify() == []


def test_writes_continue_after_a_cleanup() -> None:
    """The next commit reads the newest version only, which a cleanup must leave intact."""
    ds = busy_table()
    ds.cleanup(retain_versions=1)
    newest = ds.append(rows(70)).delete("id = 70")
    assert newest.count_rows() == ds.count_rows()
    assert newest.verify() == []


# --- over many histories


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("seed", range(12))
def test_any_history_stays_readable_after_cleanup(seed: int) -> None:
    """Random histories with tags, consumers and restores: exactly the promised versions remain,
    each with all its rows.
    """
    dice = random.Random(seed)
    ds = new_table().append(rows(*range(20)))
    for step in range(dice.randint(4, 12)):
        ds = dice.choice(
            [
                lambda ds, step: ds.append(rows(*range(100 * step, 100 * step + 5))),
                lambda ds, step: ds.delete(f"id % 11 = {step}"),
                lambda ds, step: ds.update({"x": "x + 1"}, f"id % 5 = {step % 5}"),
                lambda ds, step: ds.overwrite(rows(step, step + 1)),
                lambda ds, _step: ds.restore(dice.choice(ds.table.log.versions())),
                lambda ds, _step: ds.compact(),
                lambda ds, step: ds.upsert(rows(1, 2, 1000 + step), "id"),
            ]
        )(ds, step)
        if dice.random() < 0.2:
            name = dice.choice(["a", "b", "c"])
            if name not in ds.tags.list():
                ds.tags.create(name, dice.choice(ds.table.log.versions()))
        if dice.random() < 0.2:
            record_progress(ds.table.refs, "reader", dice.choice(ds.table.log.versions()))
        if dice.random() < 0.2:
            ds.cleanup(retain_versions=dice.randint(1, 4))
    versions = ds.table.log.versions()
    before = {version: ds.checkout(version).to_table(with_row_id=True) for version in versions}
    holds = {tag.version for tag in ds.tags.list().values()}
    first_read = min(
        (consumer.version for consumer in list_consumers(ds.table.refs)), default=1 << 60
    )
    retained = dice.randint(1, 5)
    report = ds.cleanup(retain_versions=retained, delete_unverified=True)
    remaining = ds.table.log.versions()
    expected = [v for v in versions if v in versions[-retained:] or v in holds or v >= first_read]
    assert remaining == expected
    assert sorted([*remaining, *report.versions]) == versions
    for version in remaining:
        assert ds.checkout(version).to_table(with_row_id=True) == before[version]
        assert ds.checkout(version).verify() == []
    assert unnamed_files(ds) == []
