"""A micro-batch is written once: by any driver, on any attempt, after any concurrent change."""

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import CommitUncertainError, InvalidInputError
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.ledger.foreign_restores import MAX_UNCHECKED_VERSIONS, removes_entry
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import newest_version_of, open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import config_key
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.transaction import Transaction, encode_transaction
from lance_stream.table.operations.versions import Restore
from lance_stream.table.paths import manifest_path, transaction_file_name, transaction_path
from lance_stream.verbs.append import append, append_fragments
from lance_stream.verbs.configure import update_config
from lance_stream.verbs.delete import delete
from lance_stream.verbs.overwrite import overwrite
from lance_stream.verbs.restore import restore
from lance_stream.write.fragments import write_fragments, write_target
from lance_stream.write.planning import Outcome
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def ids_of(table: TableVersion) -> list[int]:
    ids: list[int] = lance_stream.Dataset(newest_version_of(table)).to_table()["id"].to_pylist()
    return ids


@pytest.fixture
def table() -> TableVersion:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA).table


def batch(number: int, query: str = "query") -> PendingBatch:
    return PendingBatch.of("app", number, query)


def test_replayed_micro_batches_change_nothing(table: TableVersion) -> None:
    """Spark repeats a batch whose commit it has not recorded, and the answer names the version
    that has it.
    """
    first = append(table, rows(1), batch(0))
    assert (first.is_new, first.already_committed_in) == (True, None)
    again = append(table, rows(1), batch(0))
    assert (again.is_new, again.already_committed_in) == (False, 2)
    assert again.table.version == 2
    assert ids_of(table) == [1]


def test_older_micro_batches_change_nothing(table: TableVersion) -> None:
    """A restored checkpoint repeats batches from before the newest one."""
    append(table, rows(1), batch(5))
    assert not append(table, rows(0), batch(3)).is_new
    assert ids_of(table) == [1]


def test_app_ids_are_independent(table: TableVersion) -> None:
    """Two streams into one table use the same batch numbers."""
    append(table, rows(1), batch(0))
    append(table, rows(2), PendingBatch.of("other", 0, "query"))
    assert ids_of(table) == [1, 2]


def test_another_querys_old_batch_is_refused(table: TableVersion) -> None:
    """The error says that the checkpoint was deleted, which is the usual cause."""
    append(table, rows(1), batch(4))
    with pytest.raises(InvalidInputError, match="checkpoint was deleted"):
        append(table, rows(2), batch(0, query="another"))
    assert append(table, rows(3), batch(5, query="another")).is_new


def write(table: TableVersion, *ids: int) -> list:
    return write_fragments(rows(*ids).to_batches(), write_target(table))


def test_duplicate_batch_files_are_deleted(tmp_path: Path) -> None:
    """The second driver sees the first one's commit only when it commits itself."""
    table = lance_stream.create_dataset(tmp_path / "t", SCHEMA).table
    ours, theirs = write(table, 1), write(table, 1)
    assert append_fragments(table, theirs, batch(0)).is_new
    result = append_fragments(table, ours, batch(0))
    assert (result.is_new, result.already_committed_in) == (False, 2)
    leftovers = [path.name for path in (tmp_path / "t" / "data").iterdir()]
    assert leftovers == [theirs[0].files[0].path]


def test_committed_files_are_not_deleted(tmp_path: Path) -> None:
    """After an unclear outcome the caller may commit the same fragments again."""
    table = lance_stream.create_dataset(tmp_path / "t", SCHEMA).table
    fragments = write(table, 1)
    assert append_fragments(table, fragments, batch(0)).is_new
    overwrite(table, rows(5))
    assert not append_fragments(table, fragments, batch(0)).is_new
    with pytest.raises(lance_stream.IncompatibleConflictError):
        append_fragments(table, fragments)
    assert lance_stream.open_dataset(tmp_path / "t", version=2).to_table() == rows(1)


def test_concurrent_drivers_commit_a_batch_once(table: TableVersion) -> None:
    """Drivers of one query can overlap after a network partition, and all but one must find the
    batch committed.
    """
    outcomes: list[Outcome] = []
    gate = threading.Barrier(4)

    def drive() -> None:
        fragments = write(table, 7)
        gate.wait()
        outcomes.append(append_fragments(table, fragments, batch(0)))

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert sorted(outcome.is_new for outcome in outcomes) == [False, False, False, True]
    assert ids_of(table) == [7]
    assert open_newest(table.uri).version == 2


BETWEEN: dict[str, Callable[[TableVersion], object]] = {
    "another append": lambda table: append(table, rows(100)),
    "a delete": lambda table: delete(table, "id = 0"),
    "a config": lambda table: update_config(table, {"a": "b"}),
    "another stream": lambda table: append(table, rows(100), PendingBatch.of("other", 9)),
}


@pytest.mark.parametrize("between", list(BETWEEN))
def test_concurrent_changes_stop_no_batch(table: TableVersion, between: str) -> None:
    """Other writers change the table between plan and commit, and neither the rows nor the entry
    may be lost.
    """
    table = append(table, rows(0)).table
    fragments = write(table, 1)
    BETWEEN[between](table)
    assert append_fragments(table, fragments, batch(0)).is_new
    assert 1 in ids_of(table)
    assert not append_fragments(table, write(table, 1), batch(0)).is_new


def test_concurrent_overwrites_stop_plain_appends(
    tmp_path: Path,
) -> None:
    """Without a ledger entry nobody repeats the append, so the caller has to decide, and its file
    must not remain.
    """
    table = lance_stream.create_dataset(tmp_path / "t", SCHEMA).table
    fragments = write(table, 1)
    overwrite(table, rows(5))
    with pytest.raises(lance_stream.IncompatibleConflictError):
        append_fragments(table, fragments)
    assert ids_of(table) == [5]
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1, "the refused file is deleted"
    assert append(table, rows(6), batch(0)).is_new


def test_micro_batches_follow_concurrent_overwrites(
    table: TableVersion,
) -> None:
    """A stream must go on after an overwrite, which cannot have meant to remove rows that arrived
    later.
    """
    fragments = write(table, 1)
    overwrite(table, rows(5))
    assert append_fragments(table, fragments, batch(0)).is_new
    assert sorted(ids_of(table)) == [1, 5]


def test_overwritten_columns_stop_the_micro_batch(table: TableVersion) -> None:
    """The files of the batch have columns that the table no longer has."""
    fragments = write(table, 1)
    overwrite(table, pa.table({"other": [1.5]}))
    with pytest.raises(lance_stream.InvalidInputError, match="write them again"):
        append_fragments(table, fragments, batch(0))
    assert batch(0).find_in(newest_version_of(table)) is None


def test_the_ledger_outlives_cleaned_versions(table: TableVersion) -> None:
    """Cleanup removes the version that held the batch, and the replay may come later."""
    append(table, rows(1), batch(0))
    for number in range(5):
        append(table, rows(10 + number))
    newest = newest_version_of(table)
    for version in range(1, newest.version):
        table.store.delete(manifest_path(version))
    assert not append(table, rows(1), batch(0)).is_new


def test_empty_batches_make_no_version(table: TableVersion) -> None:
    """An empty batch has nothing to commit, not even an entry in the ledger."""
    result = append(table, rows(), batch(0))
    assert (result.is_new, result.table.version) == (False, 1)
    assert batch(0).find_in(result.table) is None


def test_lost_responses_are_found_committed(table: TableVersion) -> None:
    """The store has published the version although its answer was lost."""

    def lose(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/"):
            raise TimeoutError("the answer was lost")

    fragments = write(table, 1)
    store = WatchedStore(table.store, after=lose)
    watched = replace(table, store=store, log=ObjectStoreLog(store))
    assert append_fragments(watched, fragments, batch(0)).is_new
    assert ids_of(table) == [1]
    assert not append(table, rows(1), batch(0)).is_new


def test_uncertain_commits_keep_their_files(tmp_path: Path) -> None:
    """The request may still arrive, and its version would name deleted files."""
    table = lance_stream.create_dataset(tmp_path / "t", SCHEMA).table

    def break_down(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/"):
            raise TimeoutError("no answer at all")

    fragments = write(table, 1)
    store = WatchedStore(table.store, before=break_down)
    watched = replace(table, store=store, log=ObjectStoreLog(store))
    with pytest.raises(CommitUncertainError):
        append_fragments(watched, fragments, batch(0))
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1
    assert append(table, rows(1), batch(0)).is_new
    assert ids_of(table) == [1]


def restore_as_another_program(table: TableVersion, version: int) -> None:
    """Restore an older version with its config, including its ledger, as another program."""
    newest, old = table.log.read_latest(), table.log.read(version)
    transaction = Transaction(newest.version, str(uuid.uuid4()), Restore(version))
    restored = replace(
        old,
        version=newest.version + 1,
        transaction_file="",
        inline_transaction=encode_transaction(transaction),
        next_row_id=newest.next_row_id,
        max_fragment_id=newest.max_fragment_id,
    )
    assert table.log.publish(restored.version, encode_manifest(restored))


def test_foreign_restores_keep_replays_out(
    table: TableVersion,
) -> None:
    """Another program's restore takes back the ledger, but the batch must not be written again."""
    append(table, rows(1), batch(0))
    append(table, rows(2), batch(1))
    restore_as_another_program(table, 2)
    assert ids_of(table) == [1]
    again = append(table, rows(2), batch(1))
    assert (again.is_new, again.already_committed_in) == (False, 3)
    assert append(table, rows(3), batch(2)).is_new
    assert ids_of(table) == [1, 3]


def test_foreign_restores_keep_first_replays_out(
    table: TableVersion,
) -> None:
    """A restore to before the stream's first batch leaves no entry at all to compare with."""
    append(table, rows(9))
    append(table, rows(1), batch(0))
    restore_as_another_program(table, 2)
    again = append(table, rows(1), batch(0))
    assert (again.is_new, again.already_committed_in) == (False, 3)
    assert append(table, rows(2), batch(1)).is_new
    assert ids_of(table) == [9, 2]


def test_forgotten_streams_start_anew(table: TableVersion) -> None:
    """Removing the entry is the documented way to let a new query use an app id."""
    append(table, rows(1), batch(0))
    append(table, rows(2), batch(1))
    restore_as_another_program(table, 2)
    update_config(table, {config_key("app"): None})
    assert append(table, rows(7), batch(0)).is_new
    assert append(table, rows(8), batch(1)).is_new
    assert ids_of(table) == [1, 7, 8]


def test_our_restores_need_no_history(table: TableVersion) -> None:
    """A restore by this package keeps the ledger, so that cleaned up versions are not missed."""
    append(table, rows(1), batch(0))
    append(table, rows(2), batch(1))
    restore(table, 2)
    table.store.delete(manifest_path(3))
    assert not append(table, rows(2), batch(1)).is_new
    assert append(table, rows(3), batch(2)).is_new
    assert ids_of(table) == [1, 3]


def test_new_streams_read_one_version(table: TableVersion) -> None:
    """Searching a long history would delay the first batch of each new stream."""
    for number in range(5):
        append(table, rows(number))
    store = WatchedStore(table.store)
    watched = replace(newest_version_of(table), store=store, log=ObjectStoreLog(store))
    assert batch(0).find_in(watched) is None
    assert store.calls == [("list_names", "_transactions")]


@pytest.mark.parametrize("has_entry", [True, False])
def test_foreign_versions_are_not_read(table: TableVersion, has_entry: bool) -> None:
    """The newest manifest has the ledger; one listing shows whether the batch was ever tried."""
    if has_entry:
        append(table, rows(0), batch(0))
    for number in range(MAX_UNCHECKED_VERSIONS + 5):
        append(table, rows(number))
    store = WatchedStore(table.store)
    newest = replace(newest_version_of(table), store=store, log=ObjectStoreLog(store))
    pending = batch(1)
    assert pending.find_in(newest) is None
    assert store.calls == [("list_names", "_transactions")]
    store.calls.clear()
    assert pending.find_in(newest) is None
    assert store.calls == [], "the next attempt asks about the same version"
    append(table, rows(99))
    assert pending.find_in(newest_version_of(newest)) is None
    calls = [call for call, _ in store.calls]
    assert calls == ["list_files", "read_ranges", "read_ranges"], "the newest version, and this one"


def test_foreign_restores_are_found_far_back(table: TableVersion) -> None:
    """Many versions may follow the restore before the stream runs again."""
    append(table, rows(0), batch(0))
    append(table, rows(1), batch(1))
    restore_as_another_program(table, 2)
    for number in range(MAX_UNCHECKED_VERSIONS + 5):
        append(table, rows(10 + number))
    again = append(table, rows(1), batch(1))
    assert (again.is_new, again.already_committed_in) == (False, 3)
    assert append(table, rows(2), batch(2)).is_new
    assert 1 not in ids_of(table)


def test_batches_are_searched_from_first_attempts(table: TableVersion) -> None:
    """A batch that was planned again, after another program's restore had removed it, has two
    transaction files; the search begins at the older one.
    """
    append(table, rows(0), batch(0))
    append(table, rows(1), batch(1))
    restore_as_another_program(table, 2)
    for number in range(MAX_UNCHECKED_VERSIONS + 5):
        append(table, rows(10 + number))
    newest = newest_version_of(table)
    planned_again = transaction_file_name(newest.version, batch(1).batch.uuid)
    table.store.write(transaction_path(planned_again), b"")
    again = append(table, rows(1), batch(1))
    assert (again.is_new, again.already_committed_in) == (False, 3)


def test_searches_cover_later_batches_only(table: TableVersion) -> None:
    """The entry settles its own batch and all earlier ones, so only later ones justify reading
    history.
    """
    append(table, rows(0), batch(0))
    append(table, rows(1), batch(1))
    restore_as_another_program(table, 2)
    assert batch(2).find_in(newest_version_of(table)) is None
    assert not append(table, rows(1), batch(1)).is_new


def test_missing_history_stops_the_stream(
    table: TableVersion,
) -> None:
    """After another program's restore the ledger lacks entries that only older versions have."""
    append(table, rows(1), batch(0))
    append(table, rows(2), batch(1))
    restore_as_another_program(table, 2)
    table.store.delete(manifest_path(3))
    with pytest.raises(InvalidInputError, match=r"version 4 of .* restored an older version"):
        append(table, rows(2), batch(1))
    assert ids_of(table) == [1]


@pytest.mark.parametrize(
    ("operation", "is_forgotten"),
    [
        (UpdateConfig(old_delete_keys=(config_key("app"),)), True),
        (UpdateConfig(old_delete_keys=(config_key("another"), "x")), False),
        (UpdateConfig(config=MapUpdate(((config_key("app"), None),))), True),
        (UpdateConfig(config=MapUpdate(((config_key("app"), "{}"),))), False),
        (UpdateConfig(config=MapUpdate(((config_key("another"), None),))), False),
        (UpdateConfig(), False),
        (Restore(1), False),
    ],
)
def test_streams_are_forgotten_with_their_entry(operation: Any, is_forgotten: bool) -> None:
    """Any writer may remove the entry, while changes of other keys say nothing
    about this stream.
    """
    assert removes_entry(operation, "app") is is_forgotten
