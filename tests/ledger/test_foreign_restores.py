"""Batches whose entries another program's restore removed: found again, or refused if unknown."""

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError
from lance_stream.ledger import foreign_restores
from lance_stream.ledger.foreign_restores import MAX_UNCHECKED_VERSIONS, find_removed_entry
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import LedgerEntry
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import Restore
from lance_stream.table.paths import TRANSACTIONS_DIRECTORY, manifest_path
from lance_stream.verbs.append import append
from lance_stream.write.planning import commit_operation
from tests.contracts.watched_stores import WatchedStore

ROWS = pa.table({"id": [1]})
BATCH = MicroBatch("app", 7, "query")


@pytest.fixture
def table() -> TableVersion:
    """Version 1 is empty, and version 2 has the batch."""
    created = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", ROWS.schema).table
    pending = PendingBatch(BATCH, digest_of(ROWS))
    return append(created, ROWS, pending).table


def restored(table: TableVersion, version: int = 1) -> TableVersion:
    """Return the table after another program has restored a version."""
    newest = newest_version_of(table)
    commit_operation(newest.log, newest.manifest, Restore(version))
    return newest_version_of(table)


def appended(table: TableVersion, count: int) -> TableVersion:
    for _ in range(count):
        table = append(table, ROWS).table
    return table


def find(
    table: TableVersion, newest: LedgerEntry | None = None, absent_through: int = 0
) -> int | None:
    entry = find_removed_entry(table, BATCH, newest, absent_through)
    return None if entry is None else entry.version


@pytest.mark.parametrize("count", [0, 1, MAX_UNCHECKED_VERSIONS, MAX_UNCHECKED_VERSIONS + 3])
@pytest.mark.parametrize("num_restores", [1, 2])
def test_removed_batches_are_found(table: TableVersion, count: int, num_restores: int) -> None:
    """However many versions follow, or how often the batch was removed."""
    for _ in range(num_restores):
        table = appended(restored(appended(table, count)), count)
    assert find(table) == 2
    assert find(table, LedgerEntry(6, "query", 1)) == 2
    assert find(table, LedgerEntry(6, "query", None)) == 2, "an early release wrote the entry"
    assert find(table, None, table.version) is None


def test_only_restores_remove_batches(table: TableVersion) -> None:
    """A version with the batch proves nothing as long as no restore has followed."""
    emptied = UpdateConfig(config=MapUpdate((), replace=True))
    commit_operation(table.log, table.manifest, emptied)
    table = appended(newest_version_of(table), 1)
    assert find(table) is None
    assert find(restored(table)) == 2


@pytest.mark.parametrize("num_restores", range(3))
def test_restores_before_lost_versions_are_refused(table: TableVersion, num_restores: int) -> None:
    """A version that a cleanup has removed may have had the batch, if a restore has followed."""
    table = appended(table, 1)
    others = MicroBatch("other", 0, "query")
    for _ in range(num_restores):
        table = restored(table)
    table.store.delete(manifest_path(2))
    table = replace(table, log=ObjectStoreLog(table.store))  # has cached no version
    newest = LedgerEntry(0, "query", 1)
    if not num_restores:
        assert find_removed_entry(table, others, newest, 0) is None
        return
    with pytest.raises(InvalidInputError) as raised:
        find_removed_entry(table, others, newest, 0)
    assert f"version {table.version} of {table.store.uri} restored an older" in str(raised.value)
    assert "because version 2 has been cleaned up" in str(raised.value)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_search_is_limited(
    table: TableVersion, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit, the batch may have been committed, so that its rows are refused."""
    monkeypatch.setattr(foreign_restores, "MAX_SEARCHED_VERSIONS", 3)
    table = appended(restored(table), count)  # the batch is `count` + 1 versions back
    if count == 1:
        assert find(table) == 2
        return
    if count == 3:
        assert find(table) is None, "no restore is among those that are searched"
        return
    with pytest.raises(InvalidInputError, match=r"because version 2 has been .* too far back"):
        find(table)


def test_versions_without_transactions_are_skipped(
    table: TableVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early writers did not name the transaction of a version."""
    table = restored(appended(table, 1))
    read = foreign_restores.read_transaction

    def read_transaction(store: object, manifest: Manifest) -> Transaction | None:
        return None if manifest.version == 3 else read(table.store, manifest)

    monkeypatch.setattr(foreign_restores, "read_transaction", read_transaction)
    assert find(table) == 2


def test_files_of_others_are_no_attempts(table: TableVersion) -> None:
    """The folder may have files that are no transactions."""
    table.store.write(f"{TRANSACTIONS_DIRECTORY}/notes.txt", b"")
    table = restored(table)
    assert find(table) == 2


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_few_versions_need_no_listing(table: TableVersion, more: int) -> None:
    """After a usual restart, the ledger's entry is a few versions old."""
    table = appended(table, MAX_UNCHECKED_VERSIONS + more)
    store = WatchedStore(table.store)
    watched = replace(table, store=store, log=ObjectStoreLog(store))
    assert find_removed_entry(watched, MicroBatch("app", 8), LedgerEntry(7, "query", 2), 0) is None
    listings = [call for call, path in store.calls if path.startswith(TRANSACTIONS_DIRECTORY)]
    assert bool(listings) == (more > 0)
