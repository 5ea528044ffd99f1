"""Finding a batch id in a ledger: which entries cover it, and what is read for that."""

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError
from lance_stream.ledger.foreign_restores import entry_at
from lance_stream.ledger.lookup import Lookup, has_batch_id
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import LedgerEntry, config_entries, read_entry
from lance_stream.verbs.append import append, append_fragments
from lance_stream.write.fragments import write_fragments, write_target
from tests.contracts.watched_stores import WatchedStore

ROWS = pa.table({"id": [1]})
URI = "s3://bucket/table"
CONFIG = {"lance.auto": "1", **config_entries("app", LedgerEntry(41, "query-1", 97))}


@pytest.fixture
def table() -> TableVersion:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", ROWS.schema).table


@pytest.mark.parametrize("query_id", ["query-1", ""])
def test_entries_cover_earlier_batches(query_id: str) -> None:
    """Batch ids ascend within a stream, and some may be skipped."""
    covered = [
        has_batch_id(CONFIG, MicroBatch("app", number, query_id), URI) for number in (0, 41, 42)
    ]
    assert covered == [True, True, False]
    assert not has_batch_id(CONFIG, MicroBatch("another app", 5, query_id), URI)


@pytest.mark.parametrize("batch_id", [0, 41])
def test_batches_of_other_queries_name_remedies(batch_id: int) -> None:
    """A new checkpoint starts over at batch 0."""
    with pytest.raises(InvalidInputError) as caught:
        has_batch_id(CONFIG, MicroBatch("app", batch_id, "query-2"), URI)
    text = str(caught.value)
    for part in ("query-2", "query-1", "batch 41", "version 97", "checkpoint", "its own app id"):
        assert part in text
    assert "(lance-stream streams forget s3://bucket/table app)" in text


def test_another_query_may_continue_the_stream() -> None:
    """Its batch ids continue those of the first query."""
    assert not has_batch_id(CONFIG, MicroBatch("app", 42, "query-2"), URI)


def test_versions_are_searched_once(table: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink and the first attempt of its commit ask about the same version."""
    lookups: list[int] = []
    original = Lookup.__init__

    def counting(self: Lookup, table: TableVersion, *others: object) -> None:
        lookups.append(table.version)
        original(self, table, *others)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(Lookup, "__init__", counting)
    append(table, ROWS)
    table = append(table, ROWS).table
    fragments = write_fragments(ROWS.to_batches(), write_target(table))
    pending = PendingBatch.of("app", 0, "query")
    assert pending.find_in(table) is None
    assert append_fragments(table, fragments, pending).is_new
    assert lookups == [3]
    late = PendingBatch.of("other", 0, "query")
    assert late.find_in(table) is None
    assert append_fragments(table, [], late, even_without_rows=True).is_new
    assert lookups == [3, 3, 4], "another writer's version is looked at, too"


def test_later_versions_are_searched_incrementally(table: TableVersion) -> None:
    """An attempt that lost to another writer must neither read a version nor list files twice."""
    for _ in range(12):
        table = append(table, ROWS).table
    pending = PendingBatch.of("app", 0, "query")
    assert pending.find_in(table) is None
    table = append(table, ROWS).table
    store = WatchedStore(table.store)
    assert pending.find_in(replace(table, store=store, log=ObjectStoreLog(store))) is None
    assert store.calls == []
    assert pending.searched_through == table.version


def test_recovered_entries_match_the_batch(table: TableVersion) -> None:
    """The version that committed a batch may have been removed, or its entry replaced."""
    fragments = write_fragments(ROWS.to_batches(), write_target(table))
    committed = append_fragments(table, fragments, PendingBatch.of("app", 7, "query")).table
    entry = read_entry(committed.manifest.config, "app")
    assert entry is not None
    for batch, version, expected in (
        (MicroBatch("app", 7, "query"), 2, entry),
        (MicroBatch("app", 6, "query"), 2, LedgerEntry(6, "query", 2)),
        (MicroBatch("other", 7, "query"), 2, LedgerEntry(7, "query", 2)),
        (MicroBatch("app", 7, "query"), 9, LedgerEntry(7, "query", 9)),
    ):
        assert entry_at(committed, batch, version) == expected
