"""Batches under an old batch id: replays, other rows, other rules, older batches, other app ids."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, NotFoundError, OtherBatchError
from lance_stream.ledger.micro_batch import fingerprint
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.verbs.append import append
from lance_stream.write.planning import Outcome
from tests.remedies import follow

QUERY = "the query"
RULES = fingerprint({"mode": "append"})


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def batch(number: int, data: pa.Table, app_id: str = QUERY, **others: Any) -> PendingBatch:
    fields = {"query_id": QUERY, "rules": RULES, "digest": digest_of(data)} | others
    return PendingBatch.of(app_id, number, **fields)


def take_in(
    table: TableVersion, number: int, data: pa.Table, *names: str, **others: Any
) -> Outcome:
    return append(newest_version_of(table), data, batch(number, data, *names, **others))


def ids_of(table: TableVersion) -> list[int]:
    column = lance_stream.open_dataset(table.uri).to_table()["id"]
    return sorted(column.to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> TableVersion:
    return lance_stream.create_dataset(tmp_path / "t", rows().schema).table


def test_entries_record_rows_and_rules(table: TableVersion) -> None:
    """A replay is recognized by exactly these facts, and the order of rows must not matter."""
    result = take_in(table, 3, rows(1, 2))
    entry = ledger_entries.read_entry(result.table.manifest.config, QUERY)
    digest = digest_of(rows(2, 1))
    assert entry == ledger_entries.LedgerEntry(3, QUERY, 2, 2, digest.text, RULES)


def test_reordered_rows_are_a_replay(table: TableVersion) -> None:
    """Spark's tasks finish in any order, so the rows of a repeated batch rarely come in the same
    order.
    """
    take_in(table, 0, rows(1, 2))
    again = take_in(table, 0, rows(2, 1))
    assert (again.is_new, again.already_committed_in) == (False, 2)
    assert ids_of(table) == [1, 2]


def test_different_rows_are_an_error(table: TableVersion) -> None:
    """Skipping rows that arrive under a committed batch id would lose them."""
    take_in(table, 0, rows(1, 2))
    for other in (rows(1), rows(1, 3), rows(1, 2, 2)):
        with pytest.raises(OtherBatchError, match="have arrived under the same batch id"):
            take_in(table, 0, other)
        assert batch(0, other).check(newest_version_of(table)).rows_differ
    assert not batch(0, rows(2, 1)).check(newest_version_of(table)).rows_differ
    assert ids_of(table) == [1, 2]
    assert lance_stream.open_dataset(table.uri).verify() == []


def test_empty_replays_are_skipped(table: TableVersion) -> None:
    """A source whose data has expired repeats the batch without rows, which adds nothing to the
    table.
    """
    take_in(table, 0, rows(1, 2))
    assert batch(0, rows()).find_in(newest_version_of(table)) is not None


def test_nondeterministic_replays_may_differ(table: TableVersion) -> None:
    """A plan with random values or the current time cannot repeat its rows, and refusing it would
    stop the query for good.
    """
    take_in(table, 0, rows(1, 2))
    assert not take_in(table, 0, rows(3), may_differ=True).is_new
    assert ids_of(table) == [1, 2]


def test_different_rules_are_an_error(table: TableVersion) -> None:
    """Another sink of the same query writes other rows under the same batch id, even if its plan
    is nondeterministic.
    """
    take_in(table, 0, rows(1, 2))
    for may_differ in (False, True):
        with pytest.raises(OtherBatchError, match="another sink's rules"):
            take_in(table, 0, rows(1, 2), rules=fingerprint({"mode": "x"}), may_differ=may_differ)


def test_concurrent_batches_are_compared(table: TableVersion) -> None:
    """Two threads plan on one version, and the second has other rows than the first."""
    from lance_stream.verbs.append import append_fragments
    from lance_stream.write.fragments import write_fragments, write_target

    other = rows(7)
    fragments = write_fragments(other.to_batches(), write_target(table))
    take_in(table, 0, rows(1))
    with pytest.raises(OtherBatchError):
        append_fragments(table, fragments, batch(0, other))
    assert ids_of(table) == [1]
    assert lance_stream.open_dataset(table.uri).verify() == []


@pytest.mark.parametrize(
    "back", [1, 5, ledger_entries.MAX_RECENT, ledger_entries.MAX_RECENT + 1, 24]
)
def test_older_batches_are_compared(table: TableVersion, back: int) -> None:
    """An entry lists few recent batches, and older ones have to be looked up in older versions."""
    for number in range(30):
        take_in(table, number, rows(number))
    older = 29 - back
    again = take_in(table, older, rows(older))
    assert (again.is_new, again.already_committed_in) == (False, older + 2)
    with pytest.raises(OtherBatchError, match="have arrived under the same batch id"):
        take_in(table, older, rows(100))
    assert ids_of(table) == list(range(30))


def test_unknown_batches_are_an_error(table: TableVersion) -> None:
    """The version was cleaned up and the ledger no longer has it, so nothing can be compared."""
    for number in range(12):
        take_in(table, number, rows(number))
    lance_stream.open_dataset(table.uri).cleanup(retain_versions=1, older_than="0 seconds")
    assert not take_in(table, 5, rows(5)).is_new  # the newest entry knows it
    with pytest.raises(OtherBatchError, match="it is unknown whether these rows are in") as caught:
        take_in(table, 1, rows(1))
    follow(str(caught.value))  # as if the rows were not there
    assert take_in(table, 1, rows(1)).is_new
    assert not take_in(table, 1, rows(1)).is_new


@pytest.mark.parametrize(
    ("number", "ids", "is_cleaned_up"),
    [(1, [1], True), (1, [1, 2], True), (10, [10, 11], True), (10, [10, 11], False)],
)
@pytest.mark.parametrize("names", [(QUERY, "mine"), ("mine", QUERY)])
def test_new_app_ids_duplicate_nothing(
    table: TableVersion, names: tuple[str, str], number: int, ids: list[int], is_cleaned_up: bool
) -> None:
    """The batches are found under the query's former name; none is written twice."""
    before, after = names
    for old_number in range(12):
        take_in(table, old_number, rows(old_number), before)
    if is_cleaned_up:
        lance_stream.open_dataset(table.uri).cleanup(retain_versions=1, older_than="0 seconds")
    for may_differ in (False, True):
        with pytest.raises(OtherBatchError, match="start the query once as it was"):
            take_in(table, number, rows(*ids), after, may_differ=may_differ)
    assert replace(batch(number, rows(), after), digest=None).find_in(newest_version_of(table))
    assert ids_of(table) == list(range(12))
    with pytest.raises(OtherBatchError):  # as it was: it says what to do
        take_in(table, number, rows(*ids), before)
    assert not take_in(table, 11, rows(11), after).is_new
    assert take_in(table, 12, rows(12), after).is_new


def test_two_sinks_resume_an_old_checkpoint(
    table: TableVersion,
) -> None:
    """Another sink of the query is distinguished from the same sink with a new app id."""
    for number in range(3):
        take_in(table, number, rows(number))
    first = take_in(table, 1, rows(1))
    assert first.already_committed_in is not None
    claimed = frozenset([first.already_committed_in])
    with pytest.raises(OtherBatchError, match=f"call the sink with the app id '{QUERY}' first"):
        take_in(table, 1, rows(100), "others")
    assert take_in(table, 1, rows(100), "others", claimed=claimed).is_new
    assert take_in(table, 1, rows(200), "rules", rules=fingerprint({"mode": "upsert"})).is_new


def test_unrecorded_batch_ids_are_an_error(table: TableVersion) -> None:
    """The batch had no rows at first and now has some."""
    take_in(table, 0, rows(0))
    take_in(table, 2, rows(2))  # batch 1 changed nothing
    with pytest.raises(OtherBatchError, match="it is unknown whether"):
        take_in(table, 1, rows(1))


def test_adding_an_app_id_keeps_replays(
    table: TableVersion,
) -> None:
    """A query that is given an app id repeats a batch that is recorded under the query's id."""
    take_in(table, 4, rows(1, 2))
    assert not take_in(table, 4, rows(1, 2), "mine").is_new
    assert take_in(table, 5, rows(3), "mine").is_new
    assert not take_in(table, 5, rows(3), "mine").is_new
    assert ids_of(table) == [1, 2, 3]


def test_removing_an_app_id_keeps_replays(
    table: TableVersion,
) -> None:
    """A query without its former app id repeats a batch that is recorded under that id."""
    take_in(table, 4, rows(1, 2), "mine")
    assert not take_in(table, 4, rows(1, 2)).is_new
    assert ids_of(table) == [1, 2]


def test_claimed_versions_are_not_replays(
    table: TableVersion,
) -> None:
    """Such versions belong to another sink of this query."""
    result = take_in(table, 4, rows(1, 2))
    version = frozenset([result.table.version])
    assert take_in(table, 4, rows(1, 2), "mine", claimed=version).is_new
    assert take_in(table, 4, rows(3), "others", may_differ=True, claimed=version | {3}).is_new
    assert ids_of(table) == [1, 1, 2, 2, 3]


def test_renamed_sinks_refuse_ambiguous_rows(table: TableVersion) -> None:
    """If the plan may give different rows, they could be a replay or another sink's rows."""
    take_in(table, 4, rows(1, 2))
    with pytest.raises(OtherBatchError, match="start the query once as it was"):
        take_in(table, 4, rows(3), "mine", may_differ=True)
    assert not take_in(table, 4, rows(1, 2), "mine", may_differ=True).is_new
    assert ids_of(table) == [1, 2]


def test_two_app_ids_write_rows_once(table: TableVersion) -> None:
    """This is the remedy that the error recommends, so it has to work."""
    take_in(table, 0, rows(1))
    with pytest.raises(OtherBatchError, match="give the sink that failed now its own app_id"):
        take_in(table, 0, rows(2))
    for _ in range(2):
        take_in(table, 0, rows(1), "first")
        take_in(table, 0, rows(2), "second")
    assert ids_of(table) == [1, 2]


def test_writes_without_a_query_name_txnversion(table: TableVersion) -> None:
    """Neither a checkpoint nor another app id helps a nightly batch that reuses a number."""
    for number in (1, 2, 3):
        take_in(table, number, rows(number), "nightly", query_id="")
    for number, data, rules in ((0, 1, RULES), (3, 2, RULES), (3, 3, "others")):
        with pytest.raises(OtherBatchError, match="txnVersion: set a larger one"):
            take_in(table, number, rows(data), "nightly", query_id="", rules=rules)


def test_replanned_rows_replace_the_old_ones(table: TableVersion) -> None:
    """The error for a restored checkpoint recommends this remedy; batches 1 and 2 arrive as one."""
    for number in range(3):
        take_in(table, number, rows(number))
    with pytest.raises(OtherBatchError) as caught:
        take_in(table, 1, rows(1, 2))
    condition = str(caught.value).split('.delete("')[1].split('")')[0]
    assert condition == "_row_created_at_version IN (3, 4)"
    follow(str(caught.value))
    take_in(table, 1, rows(1, 2))
    take_in(table, 2, rows(3))
    assert ids_of(table) == [0, 1, 2, 3]


def test_a_changed_query_learns_its_remedy(table: TableVersion) -> None:
    """A query that died after its commit is often corrected before it repeats the batch."""
    take_in(table, 0, rows(1))
    with pytest.raises(OtherBatchError, match=r"query was changed .* start it once as it was"):
        take_in(table, 0, rows(2))
    assert not take_in(table, 0, rows(1)).is_new
    assert take_in(table, 1, rows(2)).is_new
    assert ids_of(table) == [1, 2]


def test_entries_of_older_releases_compare_ids(table: TableVersion) -> None:
    """Older entries have no digest, so only the newest batch can be taken for a replay, and the
    rest must be refused.
    """
    for number in range(2):
        append(newest_version_of(table), rows(number), PendingBatch.of(QUERY, number, QUERY))
    assert not take_in(table, 1, rows(1)).is_new
    with pytest.raises(OtherBatchError, match="or were not recorded"):
        take_in(table, 0, rows(0))
    with pytest.raises(InvalidInputError, match="Start the query once as it was"):
        take_in(table, 1, rows(1), "mine")


def test_older_batches_survive_foreign_restores(
    table: TableVersion,
) -> None:
    """They are compared with what was committed before the restore."""
    from lance_stream.table.operations.versions import Restore
    from lance_stream.write.planning import commit_operation

    for number in range(2):
        take_in(table, number, rows(number))
    newest = newest_version_of(table)
    commit_operation(newest.log, newest.manifest, Restore(2))  # as another program does
    assert not take_in(table, 1, rows(1)).is_new
    with pytest.raises(OtherBatchError):
        take_in(table, 1, rows(5))


def test_entries_keep_few_recent_batches(table: TableVersion) -> None:
    """Entries are part of every manifest, so their size has to be bounded."""
    for number in range(ledger_entries.MAX_RECENT + 3):
        take_in(table, number, rows(number))
    entry = ledger_entries.read_entry(newest_version_of(table).manifest.config, QUERY)
    assert entry is not None
    assert [recent.batch_id for recent in entry.recent] == list(range(9, 1, -1))
    assert entry == replace(entry, recent=entry.recent)


def test_long_silent_streams_keep_their_batches(
    table: TableVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of silent streams are shortened, but a replay must still be recognized from older
    versions.
    """
    monkeypatch.setattr(ledger_entries, "MAX_SILENT_VERSIONS", 3)
    for number in range(4):
        take_in(table, number, rows(number))
    for number in range(5):
        take_in(table, number, rows(100 + number), "busy", query_id="busy")
    silent = ledger_entries.read_entry(newest_version_of(table).manifest.config, QUERY)
    assert silent is not None
    assert (silent.batch_id, silent.version, silent.recent) == (3, 5, ())
    for number in (3, 2, 0):  # also those that older manifests know
        assert not take_in(table, number, rows(number)).is_new
        with pytest.raises(OtherBatchError, match="have arrived under the same batch id"):
            take_in(table, number, rows(50))
    take_in(table, 4, rows(4))
    for number in (4, 3, 1):
        assert not take_in(table, number, rows(number)).is_new
    assert ids_of(table) == [*range(5), *range(100, 105)]


def test_claims_concern_other_sinks_only(table: TableVersion) -> None:
    """The version of the sink's own batch is no other sink's, whoever has claimed it."""
    version = take_in(table, 4, rows(1, 2)).table.version
    assert not take_in(table, 4, rows(1, 2), claimed=frozenset([version])).is_new
    assert ids_of(table) == [1, 2]


@pytest.mark.parametrize("late_start", [False, True])
@pytest.mark.parametrize("query_id", ["", QUERY])
@pytest.mark.parametrize("batch_id", [0, 1, 5])
def test_only_first_batches_create_tables(batch_id: int, query_id: str, late_start: bool) -> None:
    """A later batch of a query has lost its table, unless the user says otherwise."""
    pending = PendingBatch.of("app", batch_id, query_id)
    if batch_id and query_id and not late_start:
        with pytest.raises(NotFoundError, match=f"no table at uri for batch {batch_id} of"):
            pending.check_may_create("uri", late_start=late_start)
    else:
        pending.check_may_create("uri", late_start=late_start)


@pytest.mark.parametrize(
    ("last", "recent"), [(None, []), (2, [2]), (6, [6]), (7, []), (8, [])], ids=str
)
@pytest.mark.parametrize("quarantined", ["", "mine"])
def test_entries_continue_earlier_batches(
    table: TableVersion, last: int | None, recent: list[int], quarantined: str
) -> None:
    """A stream that starts over has no earlier batches, and an entry names the last file with bad
    rows.
    """
    config = dict(table.manifest.config)
    if last is not None:
        entry = ledger_entries.LedgerEntry(last, QUERY, 1, quarantined="theirs")
        config |= ledger_entries.config_entries(QUERY, entry)
    newest = replace(table.manifest, config=config)
    pending = batch(7, rows(1), quarantined=quarantined)
    written = ledger_entries.read_entry(pending.ledger_entries(newest, 2), QUERY)
    assert written is not None
    assert (written.batch_id, written.version) == (7, 2)
    assert [entry.batch_id for entry in written.recent] == recent
    assert written.quarantined == (quarantined or ("theirs" if recent else ""))
