"""Cleanup as a whole: what it reports, and tables that survive kills and concurrent writes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

import lance_stream
from lance_stream import Dataset, NotFoundError
from lance_stream.errors import TableReplacedError
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.maintenance.consumers import record_progress
from lance_stream.table.paths import manifest_path
from tests.contracts.watched_stores import Watch, WatchedStore
from tests.maintenance.cleanup.tables import (
    ALL,
    DAY,
    NOBODY_WRITES,
    at_first,
    busy_table,
    deletes_manifest,
    in_days,
    lists_tags,
    new_table,
    on,
    paths_of,
    rows,
    unnamed_files,
)


def test_cleanup_removes_versions_and_their_files() -> None:
    """Exactly the files that no remaining version names must be removed, and counted in the
    report.
    """
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


def test_a_dry_run_predicts_the_cleanup() -> None:
    """It must report exactly what the cleanup would remove, and remove nothing."""
    ds = busy_table()
    before = paths_of(ds)
    report = ds.cleanup(retain_versions=3, dry_run=True)
    assert paths_of(ds) == before
    assert report.is_dry_run
    result = ds.cleanup(retain_versions=3)
    assert replace(report, is_dry_run=False) == result
    assert str(report).startswith("would remove")


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
        remaining = [last]

        def count_down(call: str, _path: str, remaining: list[int] = remaining) -> None:
            if call == "delete":
                remaining[0] -= 1
                if remaining[0] < 0:
                    raise Killed

        try:
            cleanup_watched(ds, count_down)
        except Killed:
            assert remaining[0] < 0
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


@pytest.mark.parametrize("is_copy", [False, True])
def test_cleanups_spare_a_tables_successor(is_copy: bool) -> None:
    """Another table at the location has versions with the numbers that are to be removed, and a
    consumer of the same name; an older copy of the table needs files that are to be removed.
    """
    rules = replace(NOBODY_WRITES, expire_consumers=30 * DAY)
    replaced: set[int] = set()
    num_calls = len(cleanup_watched(busy_table(), lambda _call, _path: None).calls)
    for number in range(num_calls):
        ds = busy_table()
        record_progress(ds.table.refs, "reader", 2)
        successor = older_copy(ds) if is_copy else files_of(other_table())

        def replace_table(
            number: int = number, ds: Dataset = ds, successor: Files = successor
        ) -> None:
            replaced.add(number)
            for path in paths_of(ds):
                ds.table.store.delete(path)
            for path, content in successor.items():
                ds.table.store.write(path, content)

        store = WatchedStore(ds.table.store)
        store.before = at_call(store, number, replace_table)
        with suppress(NotFoundError, TableReplacedError):
            cleanup(on(ds, store).table, rules, environment=in_days(31))
        if number in replaced:
            assert files_of(ds) == successor, f"replaced at call {number}"
    assert len(replaced) > 40


Files = dict[str, bytes]


def files_of(ds: Dataset) -> Files:
    return {path: bytes(ds.table.store.read(path)) for path in paths_of(ds)}


def other_table() -> Dataset:
    ds = new_table().append(rows(1))
    record_progress(ds.table.refs, "reader", 2)
    return ds


def older_copy(ds: Dataset) -> Files:
    """Return the files of a table as they were at version 5."""
    return {path: content for path, content in files_of(ds).items() if path not in LATER}


LATER = {manifest_path(version) for version in range(6, 20)}


def at_call(store: WatchedStore, number: int, act: Callable[[], object]) -> Watch:
    """Return a watch that acts at a call, by its number, or at the first one after it that belongs
    to no deletion: between a check and the deletions nobody notices another table.
    """

    def is_due(call: str, _path: str) -> bool:
        return len(store.calls) > number and call not in ("exists", "delete")

    return at_first(is_due, act)


def test_concurrently_used_files_stay() -> None:
    """A restore refers to files of old versions, and an append to files that were written long
    ago.
    """
    for act in (lambda ds: ds.restore(3), lambda ds: ds.append(rows(99))):
        ds = busy_table()
        rules = CleanupRules(older_than=None, delete_unverified=True)
        store = WatchedStore(ds.table.store)
        store.before = at_first(deletes_manifest, lambda ds=ds, act=act: act(ds))
        cleanup(on(ds, store).table, rules)
        newest = lance_stream.open_dataset(ds.uri)
        assert newest.version == ds.version + 1
        assert newest.verify() == []
        assert newest.to_table().num_rows == newest.count_rows()


def test_concurrent_cleanups_do_one_cleanup() -> None:
    """Schedulers start jobs twice; two cleanups must tolerate that files vanish beneath them."""
    ds = busy_table()
    for event in (
        deletes_manifest,
        lists_tags,
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
