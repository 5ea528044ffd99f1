import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table import ledger
from lance_stream.table.ledger import LedgerEntry, New, TakenIn, decide

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)
ENTRY = LedgerEntry(41, "query-1", 97)
CONFIG = {"lance.auto": "1", **ledger.config_entries("app", ENTRY)}


@given(texts, st.builds(LedgerEntry, st.integers(0, 1 << 62), texts, st.none() | st.just(3)))
def test_the_entry_of_any_app_id_comes_back(app_id: str, entry: LedgerEntry) -> None:
    config = ledger.config_entries(app_id, entry)
    assert ledger.read_entry(config, app_id) == entry
    assert ledger.read_entries(config) == {app_id: entry}
    ((key, value),) = config.items()
    assert (key + value).isascii()
    assert key.isprintable()


@given(texts, texts)
def test_two_app_ids_never_share_an_entry_or_a_uuid(one: str, other: str) -> None:
    assert (ledger.config_key(one) == ledger.config_key(other)) == (one == other)
    assert (ledger.derive_uuid(one, 1) == ledger.derive_uuid(other, 1)) == (one == other)


def test_an_entry_has_a_fixed_form() -> None:
    assert ledger.config_entries("a b/ü.1", LedgerEntry(3, "q")) == {
        "lance_stream.ledger.a%20b%2F%C3%BC.1": '{"batch": 3, "query": "q"}'
    }
    old = {"lance_stream.ledger.x": '{"query":"q","batch":3,"version":9,"later":[1]}'}
    assert ledger.read_entry(old, "x") == LedgerEntry(3, "q", 9)


def test_a_newer_batch_is_new_and_says_where_a_restore_could_hide_it() -> None:
    assert decide({}, "app", 0) == New(None)
    assert decide({}, "app", 0).search_after == 0
    assert decide(CONFIG, "app", 42, "query-1") == New(ENTRY)
    assert decide(CONFIG, "app", 60, "query-1").search_after == 97
    assert decide(CONFIG, "another app", 5, "query-1") == New(None)


@pytest.mark.parametrize("batch_id", [0, 40, 41])
@pytest.mark.parametrize("query_id", ["query-1", ""])
def test_an_old_batch_of_the_same_query_is_taken_in(batch_id: int, query_id: str) -> None:
    assert decide(CONFIG, "app", batch_id, query_id) == TakenIn(ENTRY)


@pytest.mark.parametrize("batch_id", [0, 41])
def test_an_old_batch_of_another_query_is_refused_with_a_way_out(batch_id: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        decide(CONFIG, "app", batch_id, "query-2")
    text = str(caught.value)
    for part in ("query-2", "query-1", "batch 41", "version 97", "checkpoint", "app id of its own"):
        assert part in text
    assert ledger.config_key("app") in text


def test_a_newer_batch_of_another_query_goes_on_with_the_stream() -> None:
    assert decide(CONFIG, "app", 42, "query-2") == New(ENTRY)


@pytest.mark.parametrize("batch_id", [-1, 1 << 63])
def test_a_batch_number_out_of_range_is_refused(batch_id: int) -> None:
    with pytest.raises(InvalidInputError, match="batch id"):
        decide({}, "app", batch_id)


@pytest.mark.parametrize("app_id", ["", "\ud800"])
def test_an_app_id_that_is_no_text_is_refused(app_id: str) -> None:
    for function in (ledger.config_key, lambda each: ledger.derive_uuid(each, 1)):
        with pytest.raises(InvalidInputError, match="app id"):
            function(app_id)


@pytest.mark.parametrize(
    "value",
    [
        *("", "{", "[]", "null", "3", '{"batch": -1}', '{"batch": true}', '{"batch": 1.5}'),
        *('{"batch": "1"}', '{"query": "q"}', '{"batch": 1, "query": 2}', "[" * 100_000),
        *('{"batch": 1, "version": "x"}', '{"batch": 9223372036854775808}', "9" * 5000),
    ],
)
def test_an_entry_that_is_none_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(CorruptDataError, match=r"lance_stream\.ledger\.app"):
        decide({"lance_stream.ledger.app": value}, "app", 5)


def test_a_uuid_is_of_version_5_and_never_changes() -> None:
    made = uuid.UUID(ledger.derive_uuid("app", 7))
    assert made == uuid.uuid5(uuid.UUID(bytes=ledger._NAMESPACE), "7:app")
    assert made.version == 5
    # Fixed for ever: the transactions of tables in use have uuids made like this one.
    assert ledger.derive_uuid("app", 7) == "c59f3a3d-55a2-5123-a560-0f53e808ec06"
    assert ledger.derive_uuid("1:app", 1) != ledger.derive_uuid("app", 11)


def test_a_restore_keeps_the_newer_entry_of_each_stream() -> None:
    restored = {
        "other": "old",
        **ledger.config_entries("a", LedgerEntry(1, "q", 2)),
        **ledger.config_entries("b", LedgerEntry(9, "q", 8)),
        **ledger.config_entries("gone", LedgerEntry(1, "q", 3)),
    }
    newest = {
        "other": "new",
        **ledger.config_entries("a", LedgerEntry(5, "q", 7)),
        **ledger.config_entries("b", LedgerEntry(2, "q", 3)),
        **ledger.config_entries("c", LedgerEntry(0, "q", 9)),
    }
    kept = ledger.newest_entries(restored, newest)
    batches = {app: entry.batch_id for app, entry in ledger.read_entries(kept).items()}
    assert batches == {"a": 5, "b": 9, "c": 0, "gone": 1}
    assert "other" not in kept


def test_the_entries_of_a_query_are_read_past_those_of_others() -> None:
    config = {
        **ledger.config_entries("ours", LedgerEntry(4, "q", version=9)),
        **ledger.config_entries("theirs", LedgerEntry(7, "another", version=8)),
        **ledger.config_entries("names it", LedgerEntry(1, "another", version=3, rules='"q"')),
        ledger.config_key("damaged"): "no JSON",
    }
    assert ledger.read_entries_of_query(config, "q") == {"ours": LedgerEntry(4, "q", version=9)}
