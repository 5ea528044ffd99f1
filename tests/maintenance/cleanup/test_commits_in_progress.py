"""Commits in progress protect recent versions."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

import lance_stream
from lance_stream.environment import MACHINE
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.commits_in_progress import COMMIT_GRACE, CommitsInProgress
from lance_stream.maintenance.cleanup.report import COMMIT_IN_PROGRESS
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.storage.store import StoredFile
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.paths import transaction_path
from tests.contracts.watched_stores import WatchedStore
from tests.maintenance.cleanup.tables import (
    ALL,
    DAY,
    NOBODY_WRITES,
    at_first,
    busy_table,
    in_days,
    on,
    unnamed_files,
)


def test_commits_under_way_keep_young_versions() -> None:
    """A writer that has read version 5 is about to publish version 6 on top of it."""
    ds = busy_table()
    ds.table.store.write("_transactions/5-2f1b3f4e-0000-0000-0000-000000000000.txn", b"?")
    num_later = ds.version - 1 - 5
    report = cleanup(ds.table, ALL, is_dry_run=True)
    assert (report.versions, report.protected) == ((1, 2, 3, 4, 5), {COMMIT_IN_PROGRESS: num_later})
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


def test_removals_ignore_commits_in_progress() -> None:
    """A commit never depends on versions that are older than its own, so it must not block their
    removal.
    """
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    cleanup(on(ds, store).table, CleanupRules(), environment=in_days(20))
    assert ds.table.log.versions() == [ds.version]
    assert store.calls.count(("list", "_transactions")) == 1


def test_unknown_transactions_keep_all_versions() -> None:
    """The version on which such a commit was planned is unknown."""
    ds = busy_table()
    ds.table.store.write("_transactions/nobody-knows.txn", b"?")
    assert cleanup(ds.table, ALL).versions == ()
    later = timedelta(minutes=11) / DAY
    assert cleanup(ds.table, ALL, environment=in_days(later)).versions == tuple(
        range(1, ds.version)
    )


def test_versions_without_transaction_do_not_count() -> None:
    """Other programs state none; their versions end no commit."""
    ds = busy_table()
    for version in range(1, ds.version + 1):
        manifest = replace(ds.table.log.read(version), transaction_file="")
        ds.table.store.write(ds.table.log.manifest_path(version), encode_manifest(manifest))
    ds.table.store.write("_transactions/5-2f1b3f4e-0000-0000-0000-000000000000.txn", b"?")
    for file in ds.table.store.list("_transactions"):
        if not file.path.startswith("_transactions/5-2f1b3f4e"):
            ds.table.store.delete(file.path)
    ds = lance_stream.open_dataset(ds.uri)
    assert cleanup(ds.table, ALL).versions == (1, 2, 3, 4, 5)


class FilesOfAges(WatchedStore):
    """A store whose transactions and manifests were written at certain times."""

    age = 0.0
    paths: tuple[str, ...] = ()

    def list(self, folder: str = "") -> list[StoredFile]:
        if folder == "_transactions":
            return [StoredFile(path, 1, NOW - self.age) for path in self.paths]
        return [file._replace(modified=NOW - self.age) for file in super().list(folder)]


NOW = 1_800_000_000.0
GRACE = COMMIT_GRACE.total_seconds()
PLANNED_ON_5 = "_transactions/5-2f1b3f4e-0000-0000-0000-000000000000.txn"


@pytest.mark.parametrize(
    ("path", "removed", "age", "last"),
    [
        (PLANNED_ON_5, (), 0, 5),
        (PLANNED_ON_5, (), GRACE - 1, 5),
        (PLANNED_ON_5, (), GRACE, math.inf),
        (PLANNED_ON_5, (PLANNED_ON_5,), 0, math.inf),
        (PLANNED_ON_5, ("_transactions/4-0.txn",), 0, 5),
        (PLANNED_ON_5 + "#1", (), 0, math.inf),
        ("_transactions/.5-0.txn.0123456789abcdef.tmp", (), 0, math.inf),
        ("_transactions/unknown.txn", (), 0, 0),
    ],
)
def test_young_transactions_of_nobody_count(
    path: str, removed: tuple[str, ...], age: float, last: float
) -> None:
    """A commit has ended after some minutes, and the transaction of a removed version has, too."""
    ds = busy_table()
    store = FilesOfAges(ds.table.store)
    store.paths = (path,)
    clock = replace(MACHINE, now_nanos=lambda: int(NOW) * 10**9)
    commits = CommitsInProgress(on(ds, store).table, ALL, clock)
    store.age = age
    assert commits.last_removable([1, 2, 3, 4, 5, 6], removed) == last


@pytest.mark.parametrize(("age", "last"), [(GRACE - 1, 5), (GRACE, math.inf)])
def test_only_young_versions_are_published_again(age: float, last: float) -> None:
    """A writer that has read an older version has ended."""
    ds = busy_table()
    store = FilesOfAges(ds.table.store)
    store.age, store.paths = age, (PLANNED_ON_5,)
    clock = replace(MACHINE, now_nanos=lambda: int(NOW) * 10**9)
    commits = CommitsInProgress(on(ds, store).table, ALL, clock)
    store.age = 0
    assert commits.last_removable([1, 2, 3, 4, 5, 6], ()) == last


def test_remaining_manifests_are_not_read() -> None:
    """Commits that were planned on a later version cannot publish a removed one."""
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    commits = CommitsInProgress(on(ds, store).table, ALL, MACHINE)
    removed = {transaction_path(ds.table.log.read(v).transaction_file) for v in range(1, 6)}
    assert commits.last_removable([1, 2, 3, 4, 5], removed) == math.inf
    assert [path for call, path in store.calls if call.startswith("read")] == []
