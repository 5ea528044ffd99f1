"""Batches under an old number: replays, other rows, other rules, older batches, other names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, OtherBatchError
from lance_stream.snapshot.opening import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table import ledger
from lance_stream.verbs.append import append
from lance_stream.write.batch_proofs import MicroBatch, fingerprint
from lance_stream.write.micro_batches import find_taken_in
from lance_stream.write.planning import Outcome
from lance_stream.write.row_digests import digest_of
from tests.remedies import follow

QUERY = "the query"
RULES = fingerprint({"mode": "append"})


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def batch(number: int, data: pa.Table, app_id: str = QUERY, **others: Any) -> MicroBatch:
    given = {"query_id": QUERY, "rules": RULES, "digest": digest_of(data)} | others
    return MicroBatch(app_id, number, **given)


def take_in(
    table: TableVersion, number: int, data: pa.Table, *names: str, **others: Any
) -> Outcome:
    return append(checkout(table, None), data, batch(number, data, *names, **others))


def ids_of(table: TableVersion) -> list[int]:
    column = lance_stream.open_dataset(table.uri).to_table()["id"]
    return sorted(column.to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> TableVersion:
    return lance_stream.create_dataset(tmp_path / "t", rows().schema).table


def test_an_entry_says_which_rows_a_batch_had(table: TableVersion) -> None:
    done = take_in(table, 3, rows(1, 2))
    entry = ledger.read_entry(done.table.manifest.config, QUERY)
    digest = digest_of(rows(2, 1))
    assert entry == ledger.LedgerEntry(3, QUERY, 2, 2, digest.text, RULES)


def test_the_same_rows_in_another_order_are_a_replay(table: TableVersion) -> None:
    take_in(table, 0, rows(1, 2))
    again = take_in(table, 0, rows(2, 1))
    assert (again.is_new, again.taken_in_before) == (False, 2)
    assert ids_of(table) == [1, 2]


def test_other_rows_under_the_same_number_are_an_error(table: TableVersion) -> None:
    take_in(table, 0, rows(1, 2))
    for other in (rows(1), rows(1, 3), rows(1, 2, 2)):
        with pytest.raises(OtherBatchError, match="have arrived under the same batch id"):
            take_in(table, 0, other)
    assert ids_of(table) == [1, 2]
    assert lance_stream.open_dataset(table.uri).verify() == []


def test_no_rows_under_an_old_number_are_left_out(table: TableVersion) -> None:
    take_in(table, 0, rows(1, 2))
    assert find_taken_in(checkout(table, None), batch(0, rows())) is not None


def test_other_rows_of_a_plan_that_is_not_deterministic_are_a_replay(table: TableVersion) -> None:
    take_in(table, 0, rows(1, 2))
    assert not take_in(table, 0, rows(3), may_differ=True).is_new
    assert ids_of(table) == [1, 2]


def test_the_same_rows_by_other_rules_are_an_error(table: TableVersion) -> None:
    take_in(table, 0, rows(1, 2))
    for may_differ in (False, True):
        with pytest.raises(OtherBatchError, match="another sink's rules"):
            take_in(table, 0, rows(1, 2), rules=fingerprint({"mode": "x"}), may_differ=may_differ)


def test_a_batch_that_is_committed_meanwhile_is_compared_as_well(table: TableVersion) -> None:
    """Two threads plan on one version: the second one's rows are not the first one's."""
    from lance_stream.verbs.append import append_fragments
    from lance_stream.write.fragments import write_fragments, write_target

    other = rows(7)
    fragments = write_fragments(other.to_batches(), write_target(table))
    take_in(table, 0, rows(1))
    with pytest.raises(OtherBatchError):
        append_fragments(table, fragments, batch(0, other))
    assert ids_of(table) == [1]
    assert lance_stream.open_dataset(table.uri).verify() == []


@pytest.mark.parametrize("back", [1, 5, ledger.MAX_RECENT, ledger.MAX_RECENT + 1, 24])
def test_an_older_batch_is_held_against_what_it_was(table: TableVersion, back: int) -> None:
    for number in range(30):
        take_in(table, number, rows(number))
    older = 29 - back
    again = take_in(table, older, rows(older))
    assert (again.is_new, again.taken_in_before) == (False, older + 2)
    with pytest.raises(OtherBatchError, match="have arrived under the same batch id"):
        take_in(table, older, rows(100))
    assert ids_of(table) == list(range(30))


def test_a_batch_of_which_nothing_is_known_any_more_is_an_error(table: TableVersion) -> None:
    for number in range(12):
        take_in(table, number, rows(number))
    lance_stream.open_dataset(table.uri).cleanup(retain_versions=1, older_than="0 seconds")
    assert not take_in(table, 5, rows(5)).is_new  # the newest entry knows it
    with pytest.raises(OtherBatchError, match="it is unknown whether these rows are in") as caught:
        take_in(table, 1, rows(1))
    follow(caught.value)  # as if the rows were not there
    assert take_in(table, 1, rows(1)).is_new
    assert not take_in(table, 1, rows(1)).is_new


@pytest.mark.parametrize(
    ("number", "ids", "is_cleaned_up"),
    [(1, [1], True), (1, [1, 2], True), (10, [10, 11], True), (10, [10, 11], False)],
)
@pytest.mark.parametrize("names", [(QUERY, "mine"), ("mine", QUERY)])
def test_an_older_checkpoint_and_a_new_app_id_at_once_double_nothing(
    table: TableVersion, names: tuple[str, str], number: int, ids: list[int], is_cleaned_up: bool
) -> None:
    before, after = names
    for each in range(12):
        take_in(table, each, rows(each), before)
    if is_cleaned_up:
        lance_stream.open_dataset(table.uri).cleanup(retain_versions=1, older_than="0 seconds")
    for may_differ in (False, True):
        with pytest.raises(OtherBatchError, match="start the query once as it was"):
            take_in(table, number, rows(*ids), after, may_differ=may_differ)
    assert find_taken_in(checkout(table, None), replace(batch(number, rows(), after), digest=None))
    assert ids_of(table) == list(range(12))
    with pytest.raises(OtherBatchError):  # as it was: it says what to do
        take_in(table, number, rows(*ids), before)
    assert not take_in(table, 11, rows(11), after).is_new
    assert take_in(table, 12, rows(12), after).is_new


def test_another_sink_is_told_from_one_with_a_new_app_id_also_in_an_older_checkpoint(
    table: TableVersion,
) -> None:
    for number in range(3):
        take_in(table, number, rows(number))
    first = take_in(table, 1, rows(1))
    assert first.taken_in_before is not None
    claimed = frozenset([first.taken_in_before])
    with pytest.raises(OtherBatchError, match=f"call the sink with the app id '{QUERY}' first"):
        take_in(table, 1, rows(100), "others")
    assert take_in(table, 1, rows(100), "others", claimed=claimed).is_new
    assert take_in(table, 1, rows(200), "rules", rules=fingerprint({"mode": "upsert"})).is_new


def test_a_number_that_was_left_out_and_comes_with_rows_is_an_error(table: TableVersion) -> None:
    take_in(table, 0, rows(0))
    take_in(table, 2, rows(2))  # batch 1 changed nothing
    with pytest.raises(OtherBatchError, match="it is unknown whether"):
        take_in(table, 1, rows(1))


def test_an_app_id_that_is_given_before_a_replay_does_not_double_the_batch(
    table: TableVersion,
) -> None:
    take_in(table, 4, rows(1, 2))
    assert not take_in(table, 4, rows(1, 2), "mine").is_new
    assert take_in(table, 5, rows(3), "mine").is_new
    assert not take_in(table, 5, rows(3), "mine").is_new
    assert ids_of(table) == [1, 2, 3]


def test_an_app_id_that_is_taken_away_before_a_replay_does_not_double_the_batch(
    table: TableVersion,
) -> None:
    take_in(table, 4, rows(1, 2), "mine")
    assert not take_in(table, 4, rows(1, 2)).is_new
    assert ids_of(table) == [1, 2]


def test_rows_that_another_sink_put_in_are_not_looked_at_under_another_name(
    table: TableVersion,
) -> None:
    done = take_in(table, 4, rows(1, 2))
    version = frozenset([done.table.version])
    assert take_in(table, 4, rows(1, 2), "mine", claimed=version).is_new
    assert take_in(table, 4, rows(3), "others", may_differ=True, claimed=version | {3}).is_new
    assert ids_of(table) == [1, 1, 2, 2, 3]


def test_other_rows_under_another_name_may_be_either_where_the_plan_may_differ(
    table: TableVersion,
) -> None:
    take_in(table, 4, rows(1, 2))
    with pytest.raises(OtherBatchError, match="start the query once as it was"):
        take_in(table, 4, rows(3), "mine", may_differ=True)
    assert not take_in(table, 4, rows(1, 2), "mine", may_differ=True).is_new
    assert ids_of(table) == [1, 2]


def test_an_app_id_for_each_of_two_dataframes_ends_with_each_row_once(table: TableVersion) -> None:
    """What the error advises."""
    take_in(table, 0, rows(1))
    with pytest.raises(OtherBatchError, match="give the sink that failed now its own app_id"):
        take_in(table, 0, rows(2))
    for _ in range(2):
        take_in(table, 0, rows(1), "first")
        take_in(table, 0, rows(2), "second")
    assert ids_of(table) == [1, 2]


def test_rows_that_spark_planned_anew_take_the_place_of_the_old_ones(table: TableVersion) -> None:
    """What the error advises for a checkpoint that was put back: batches 1 and 2 as one."""
    for number in range(3):
        take_in(table, number, rows(number))
    with pytest.raises(OtherBatchError) as caught:
        take_in(table, 1, rows(1, 2))
    condition = str(caught.value).split('.delete("')[1].split('")')[0]
    assert condition == "_row_created_at_version IN (3, 4)"
    follow(caught.value)
    take_in(table, 1, rows(1, 2))
    take_in(table, 2, rows(3))
    assert ids_of(table) == [0, 1, 2, 3]


def test_entries_of_older_versions_go_by_their_number(table: TableVersion) -> None:
    for number in range(2):
        append(checkout(table, None), rows(number), MicroBatch(QUERY, number, QUERY))
    assert not take_in(table, 1, rows(1)).is_new
    with pytest.raises(OtherBatchError, match="or were not recorded"):
        take_in(table, 0, rows(0))
    with pytest.raises(InvalidInputError, match="Start the query once as it was"):
        take_in(table, 1, rows(1), "mine")


def test_a_batch_before_a_foreign_restore_is_held_against_what_it_was(
    table: TableVersion,
) -> None:
    from lance_stream.table.operations import Restore
    from lance_stream.write.planning import commit_operation

    for number in range(2):
        take_in(table, number, rows(number))
    newest = checkout(table, None)
    commit_operation(newest.log, newest.manifest, Restore(2))  # as another program does
    assert not take_in(table, 1, rows(1)).is_new
    with pytest.raises(OtherBatchError):
        take_in(table, 1, rows(5))


def test_a_rule_that_says_nothing_is_as_good_as_none() -> None:
    assert fingerprint({"mode": "append", "on": [], "x": None}) == fingerprint({"mode": "append"})
    assert fingerprint({"mode": "append"}) != fingerprint({"mode": "overwrite"})
    assert fingerprint({"mode": "append"}) == "0fa944cfd3db0b25"


def test_recent_batches_are_few_in_an_entry(table: TableVersion) -> None:
    for number in range(ledger.MAX_RECENT + 3):
        take_in(table, number, rows(number))
    entry = ledger.read_entry(checkout(table, None).manifest.config, QUERY)
    assert entry is not None
    assert [each.batch_id for each in entry.recent] == list(range(9, 1, -1))
    assert entry == replace(entry, recent=entry.recent)


def test_a_stream_that_was_silent_for_long_knows_its_batches_still(
    table: TableVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_SILENT_VERSIONS", 3)
    for number in range(4):
        take_in(table, number, rows(number))
    for number in range(5):
        take_in(table, number, rows(100 + number), "busy", query_id="busy")
    silent = ledger.read_entry(checkout(table, None).manifest.config, QUERY)
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
