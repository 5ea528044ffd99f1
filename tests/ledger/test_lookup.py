"""Finding a batch id in a ledger: which entries cover it, and what is read for that."""

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError
from lance_stream.ledger.foreign_restores import entry_at
from lance_stream.ledger.lookup import Lookup, has_batch_id
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.verdicts import Standing
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.ledger_entries import LedgerEntry, config_entries, read_entry
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.versions import Restore
from lance_stream.verbs.append import append, append_fragments
from lance_stream.write.fragments import write_fragments, write_target
from lance_stream.write.planning import commit_operation
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


def entry_of(table: TableVersion, entry: LedgerEntry) -> TableVersion:
    """Return the table after a version with an entry of the stream "app"."""
    entries = MapUpdate(tuple(config_entries("app", entry).items()))
    commit_operation(table.log, table.manifest, UpdateConfig(config=entries))
    return newest_version_of(table)


@pytest.mark.parametrize(
    ("earlier", "batch_id", "expected"),
    [
        ([7, 5, 6], 6, [6]),
        ([7, 5, 6], 5, [6, 5]),
        ([7, 5, 6], 4, [6, 5]),  # the stream has started over with batch 5
        ([5, 5, 6], 4, [6, 5]),
        ([3, 5, 6], 4, [6, 5]),
        ([3, 5, 6], 3, [6, 5, 3]),
    ],
)
def test_older_entries_are_of_one_life(
    table: TableVersion, earlier: list[int], batch_id: int, expected: list[int]
) -> None:
    """The remedies in errors name the versions since the batch, whose rows are to be deleted."""
    for number in earlier:
        table = entry_of(table, LedgerEntry(number, "query", table.version + 1))
    (match,) = Lookup(table, MicroBatch("app", batch_id, "query")).matches()
    assert [entry.batch_id for entry in match.since] == expected
    is_recorded = batch_id == expected[-1]
    assert (match.entry is not None) == is_recorded
    assert (match.standing is Standing.FORGOTTEN) == (not is_recorded)


@pytest.mark.parametrize("version", [None, 1])
def test_entries_may_have_no_version_before(table: TableVersion, version: int | None) -> None:
    """Early releases did not record the version, and the first one has none before it."""
    table = entry_of(table, LedgerEntry(6, "query", version))
    store = WatchedStore(table.store)
    watched = replace(table, store=store, log=ObjectStoreLog(store))
    (match,) = Lookup(watched, MicroBatch("app", 4, "query")).matches()
    assert (match.standing, match.since[0].batch_id) == (Standing.FORGOTTEN, 6)
    assert store.calls == []


def test_covered_batch_ids_need_no_search(table: TableVersion) -> None:
    """A stream whose entry covers the batch was not restored to before it."""
    for _ in range(12):
        table = append(table, ROWS).table
    table = entry_of(table, LedgerEntry(6, "query", table.version + 1))
    store = WatchedStore(table.store)
    watched = replace(table, store=store, log=ObjectStoreLog(store))
    assert len(list(Lookup(watched, MicroBatch("app", 6, "query")).matches())) == 1
    assert store.calls == []


def test_only_searched_versions_lack_the_batch(table: TableVersion) -> None:
    """A version that was not searched may have the batch, whose rows would be written twice."""
    batch = MicroBatch("app", 7, "query")
    lookup = Lookup(table, batch, absent_through=0)
    assert lookup.searched_through == 0
    assert list(lookup.matches()) == []
    assert lookup.searched_through == table.version == 1
    committed = append(table, ROWS, PendingBatch(batch)).table
    commit_operation(committed.log, committed.manifest, Restore(1))  # as another program does
    lookup = Lookup(newest_version_of(committed), batch, absent_through=1)
    assert len(list(lookup.matches())) == 1
    assert lookup.searched_through == 1


def test_copies_are_looked_up_again(table: TableVersion, tmp_path: Path) -> None:
    """A copy has the same versions, and may have other ones from some version on."""
    ds = lance_stream.create_dataset(tmp_path / "one", ROWS.schema)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    copy = lance_stream.open_dataset(tmp_path / "other").table
    lookup = Lookup(ds.table, MicroBatch("app", 0))
    assert lookup.is_of(lance_stream.open_dataset(tmp_path / "one").table)
    assert not lookup.is_of(copy)
    assert not lookup.is_of(ds.append(ROWS).table)


@pytest.mark.parametrize(
    ("absent_through", "looked_up", "version", "expected"),
    [
        (0, None, 5, 0),
        (3, None, 5, 3),
        (5, None, 5, 5),
        (6, None, 5, 0),  # of a table that had more versions
        (0, 3, 5, 3),
        (0, 4, 5, 4),
        (0, 5, 5, 0),  # another version with the number
        (0, 6, 5, 0),
    ],
)
def test_replaced_tables_are_searched_again(
    table: TableVersion, absent_through: int, looked_up: int | None, version: int, expected: int
) -> None:
    """A table that was restored from a copy may have the batch in any version."""
    pending = PendingBatch.of("app", 0, absent_through=absent_through)
    if looked_up is not None:
        table = table.at(replace(table.manifest, version=looked_up))
        pending._lookup = Lookup(table, pending.batch)
        pending._lookup._removed = ()
    assert pending._searched_before(version) == expected
