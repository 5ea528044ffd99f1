"""Our commits and pylance's on one table: each continues after the other, or reports a conflict."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import lance_stream
from lance_stream.commit.committer import CommittedTransaction, commit
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import IncompatibleConflictError, RetryableConflictError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.storage.locations import open_store
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.operations.rows import Append, Overwrite
from lance_stream.table.operations.transaction import Transaction, decode_transaction
from lance_stream.verbs.append import append
from tests.commit.tables import (
    CREATION,
    commit_to,
    configure,
    delete,
    live_ids,
    make_environment,
    transaction,
)

pytestmark = pytest.mark.oracle

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.float64())])


def rows(*keys: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(keys, pa.int64()), "x": pa.array([key / 2 for key in keys])}, SCHEMA
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of two fragments, with the keys (and row ids) 0 to 5 and 6 to 9."""
    where = str(tmp_path / "t")
    lance.write_dataset(rows(*range(10)), where, max_rows_per_file=6, enable_stable_row_ids=True)
    return where


@pytest.fixture
def log(uri: str) -> ObjectStoreLog:
    return ObjectStoreLog(open_store(uri))


def written(uri: str, *keys: int) -> Fragment:
    """A new fragment whose data file pylance has written."""
    (metadata,) = write_fragments(rows(*keys), uri, schema=SCHEMA)
    files = tuple(
        DataFile(
            file.path,
            tuple(file.fields),
            tuple(file.column_indices),
            (file.file_major_version, file.file_minor_version),
            file.file_size_bytes or 0,
        )
        for file in metadata.files
    )
    return Fragment(0, files, len(keys))


def keys_of(uri: str) -> list[int]:
    ds = lance.dataset(uri)
    ds.validate()
    return sorted(ds.to_table().column("id").to_pylist())


def merge(uri: str, *keys: int) -> None:
    builder = lance.dataset(uri).merge_insert("id")
    builder.when_matched_update_all().when_not_matched_insert_all().execute(rows(*keys))


THEIRS: dict[str, Callable[[str], object]] = {
    "append": lambda uri: lance.write_dataset(rows(20, 21), uri, mode="append"),
    "delete 1": lambda uri: lance.dataset(uri).delete("id = 1"),
    "delete 2": lambda uri: lance.dataset(uri).delete("id = 2"),
    "delete 6..9": lambda uri: lance.dataset(uri).delete("id >= 6"),
    "upsert 2, 30": lambda uri: merge(uri, 2, 30),
    "upsert 7, 30": lambda uri: merge(uri, 7, 30),
    "upsert 1, 30": lambda uri: merge(uri, 1, 30),
    "update all": lambda uri: lance.dataset(uri).update({"x": "x + 1"}),
    "compact": lambda uri: lance.dataset(uri).optimize.compact_files(),
    "config a": lambda uri: lance.dataset(uri).update_config({"a": "theirs"}),
    "config b": lambda uri: lance.dataset(uri).update_config({"b": "theirs"}),
    "overwrite": lambda uri: lance.write_dataset(rows(40), uri, mode="overwrite"),
    "restore": lambda uri: lance.dataset(uri, version=1).restore(),
    "add column": lambda uri: lance.dataset(uri).add_columns({"y": "id * 2"}),
    "drop column": lambda uri: lance.dataset(uri).drop_columns(["x"]),
    "index": lambda uri: lance.dataset(uri).create_scalar_index("id", "BTREE"),
}

OURS: dict[str, Callable[[ObjectStoreLog, str], Transaction]] = {
    "append": lambda _log, uri: transaction(1, Append((written(uri, 50, 51),))),
    "delete 1": lambda log, _uri: delete(log, 1, [1]),
    "delete 6..9": lambda log, _uri: delete(log, 1, [6, 7, 8, 9]),
    "config a": lambda _log, _uri: configure(1, a="ours"),
    "overwrite": lambda log, uri: transaction(
        1, Overwrite((written(uri, 60),), log.read(1).schema)
    ),
}

RETRY, NO = RetryableConflictError, IncompatibleConflictError
# For each of ours, what comes of it after theirs where that is not success.
EXPECTED: dict[str, dict[str, type[Exception]]] = {
    "append": {"overwrite": NO, "restore": NO},
    "delete 1": {
        "delete 1": RETRY,
        "upsert 1, 30": RETRY,
        "update all": RETRY,
        "compact": RETRY,
        "overwrite": NO,
        "restore": NO,
        "add column": RETRY,
    },
    "delete 6..9": {
        "delete 6..9": RETRY,
        "upsert 7, 30": RETRY,
        "update all": RETRY,
        "compact": RETRY,
        "overwrite": NO,
        "restore": NO,
        "add column": RETRY,
    },
    "config a": {"config a": NO},
    "overwrite": {"overwrite": RETRY},
}


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("ours", OURS)
def test_our_commits_rebase_or_conflict(
    log: ObjectStoreLog, uri: str, ours: str, theirs: str
) -> None:
    """Each pair of operations must have the outcome that pylance's own conflict rules give."""
    planned = OURS[ours](log, uri)
    THEIRS[theirs](uri)
    before, keys = log.latest(), keys_of(uri)
    expected = EXPECTED[ours].get(theirs)
    if expected is not None:
        with pytest.raises(expected):
            commit(log, planned, environment=make_environment())
        assert log.latest() == before
        return
    manifest = commit_to(log, planned)
    assert manifest.version == before + 1
    if ours == "append":
        keys = sorted([*keys, 50, 51])
    elif ours.startswith("delete"):
        deleted = [1] if ours == "delete 1" else [6, 7, 8, 9]
        keys = [key for key in keys if key not in deleted]
    elif ours == "overwrite":
        keys = [60]
    assert keys_of(uri) == keys
    assert check_ids(log, uri)
    lance.write_dataset(lance.dataset(uri).to_table().slice(0, 1), uri, mode="append")
    merge_on_top(uri)
    lance.dataset(uri).optimize.compact_files()
    assert check_ids(log, uri)


def merge_on_top(uri: str) -> None:
    ds = lance.dataset(uri)
    ds.update({"id": "id + 1000"}, where="id >= 50")
    ds.delete("id = 1050")


def check_ids(log: ObjectStoreLog, uri: str) -> bool:
    """Both see the same row ids, and none twice."""
    theirs = lance.dataset(uri).to_table(columns=["_rowid"]).column("_rowid").to_pylist()
    ours = live_ids(log)
    assert theirs == ours
    assert len(set(ours)) == len(ours)
    return log.read_latest().next_row_id > max(ours)


def test_pylance_rebases_on_our_commits(log: ObjectStoreLog, uri: str) -> None:
    """pylance decides by the transactions that we wrote."""
    stale = {name: lance.dataset(uri) for name in ("append", "delete", "config")}
    appended = lance.LanceOperation.Append(write_fragments(rows(70), uri, schema=SCHEMA))
    commit_to(log, transaction(1, Append((written(uri, 50),))))
    commit_to(log, delete(log, 2, [1]))
    commit_to(log, configure(3, a="ours"))
    lance.LanceDataset.commit(uri, appended, read_version=1)
    stale["delete"].delete("id = 2")
    stale["config"].update_config({"b": "theirs"})
    assert keys_of(uri) == [0, *range(3, 10), 50, 70]
    assert lance.dataset(uri).config() == {"a": "ours", "b": "theirs"}
    assert check_ids(log, uri)


def test_stale_pylance_writers_yield_to_overwrites(log: ObjectStoreLog, uri: str) -> None:
    """An append to the rows before an overwrite must not be added after it."""
    appended = lance.LanceOperation.Append(write_fragments(rows(70), uri, schema=SCHEMA))
    commit_to(log, OURS["overwrite"](log, uri))
    with pytest.raises(OSError, match="incompatible with concurrent transaction Overwrite"):
        lance.LanceDataset.commit(uri, appended, read_version=1)
    assert keys_of(uri) == [60]


def test_pylance_continues_a_table_we_created(tmp_path: Path) -> None:
    """Flags, ids and formats of the first version bind all later writers."""
    uri, other = str(tmp_path / "ours"), str(tmp_path / "other")
    lance.write_dataset(rows(0), other, enable_stable_row_ids=True)
    schema = ObjectStoreLog(open_store(other)).read(1).schema
    log = ObjectStoreLog(open_store(uri))
    manifest = commit_to(
        log, transaction(0, Overwrite((written(uri, 1, 2, 3),), schema)), creation=CREATION
    )
    assert manifest.version == 1
    ds = lance.dataset(uri)
    assert ds.has_stable_row_ids
    lance.write_dataset(rows(4), uri, mode="append")
    assert keys_of(uri) == [1, 2, 3, 4]
    assert lance.dataset(uri).data_storage_version == "2.2"
    assert check_ids(log, uri)


def test_pylance_reads_our_transactions(log: ObjectStoreLog, uri: str) -> None:
    """Other writers resolve conflicts and deduplicate batches by what they find there."""
    planned = replace(OURS["append"](log, uri), properties={"lance_stream.batch": "7"})
    commit_to(log, planned)
    (theirs,) = lance.dataset(uri).get_transactions(1)
    assert theirs.uuid == planned.uuid
    assert theirs.read_version == 1
    assert type(theirs.operation).__name__ == "Append"
    assert theirs.transaction_properties == {"lance_stream.batch": "7"}


def test_row_versions_are_what_pylance_gives(log: ObjectStoreLog, uri: str) -> None:
    """Change feeds of both programs rest on these stamps."""
    commit_to(log, delete(log, 1, [3]))
    commit_to(log, transaction(1, Append((written(uri, 50, 51),))))
    table = lance.dataset(uri).to_table(
        columns=["id", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"],
        filter="id >= 50",
    )
    assert table.to_pylist() == [
        {
            "id": 50 + n,
            "_rowid": 10 + n,
            "_row_created_at_version": 3,
            "_row_last_updated_at_version": 3,
        }
        for n in range(2)
    ]
    inserted = lance.dataset(uri).delta(begin_version=1, end_version=3).get_inserted_rows()
    assert [row["id"] for row in inserted.read_all().to_pylist()] == [50, 51]


def test_rebased_deletes_state_their_rows(log: ObjectStoreLog, uri: str) -> None:
    """Later writers check against the transaction, which must name the united deletion file."""
    planned = delete(log, 1, [1])
    THEIRS["delete 2"](uri)
    manifest = commit_to(log, planned)
    stated: Any = decode_transaction(manifest.inline_transaction or b"").operation
    assert stated.updated_fragments[0].deletion_file == manifest.fragments[0].deletion_file
    assert manifest.fragments[0].deletion_file.num_deleted_rows == 2
    assert np.array_equal(live_ids(log), [0, 3, 4, 5, 6, 7, 8, 9])


def test_both_continue_tables_with_v1_names(tmp_path: Path) -> None:
    """A table that mixes both naming schemes has no newest version."""
    uri = str(tmp_path / "old")
    lance.write_dataset(rows(1), uri, enable_stable_row_ids=True, enable_v2_manifest_paths=False)
    log = ObjectStoreLog(open_store(uri))
    assert "1.manifest" in log.store.list_names("_versions")
    commit_to(log, transaction(1, Append((written(uri, 2),))))
    lance.write_dataset(rows(3), uri, mode="append")
    commit_to(log, transaction(3, Append((written(uri, 4),))))
    assert keys_of(uri) == [1, 2, 3, 4]
    assert {"1.manifest", "2.manifest", "3.manifest", "4.manifest"} <= set(
        log.store.list_names("_versions")
    )


def test_racing_writers_lose_no_row(log: ObjectStoreLog, uri: str) -> None:
    """Only real races show whether both create manifests exclusively."""
    num_appends = 15

    def ours() -> None:
        log = ObjectStoreLog(open_store(uri))
        for number in range(num_appends):
            planned = transaction(log.latest(), Append((written(uri, 1000 + number),)))
            assert isinstance(commit(log, planned), CommittedTransaction)

    def theirs() -> None:
        for number in range(num_appends):
            lance.write_dataset(rows(2000 + number), uri, mode="append")

    threads = [threading.Thread(target=value) for value in (ours, theirs)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    expected = [*range(10), *range(1000, 1000 + num_appends), *range(2000, 2000 + num_appends)]
    assert keys_of(uri) == expected
    assert log.latest() == 1 + 2 * num_appends
    assert check_ids(log, uri)


def test_batches_are_skipped_after_pylance_restores(tmp_path: Path) -> None:
    """The ledger of the version before the restore still counts."""
    uri = str(tmp_path / "t")
    table = lance_stream.create_dataset(uri, SCHEMA).table
    for number in range(2):
        assert append(table, rows(number), PendingBatch.of("app", number, "query")).is_new
    lance.dataset(uri, version=1).restore()
    assert keys_of(uri) == []
    for number in range(2):
        assert not append(table, rows(number), PendingBatch.of("app", number, "query")).is_new
    assert append(table, rows(2), PendingBatch.of("app", 2, "query")).is_new
    assert keys_of(uri) == [2]
