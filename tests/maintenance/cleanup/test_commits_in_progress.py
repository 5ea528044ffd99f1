"""Commits in progress protect recent versions."""

from dataclasses import replace
from datetime import timedelta

import lance_stream
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.report import COMMIT_IN_PROGRESS
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.table.manifest import encode_manifest
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
