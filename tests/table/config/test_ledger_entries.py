import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table.config import ledger_entries
from lance_stream.table.config.ledger_entries import LedgerEntry

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(texts, st.builds(LedgerEntry, st.integers(0, 1 << 62), texts, st.none() | st.just(3)))
def test_entries_of_app_ids_round_trip(app_id: str, entry: LedgerEntry) -> None:
    """App ids are user text, and the key in the table's config must be plain ASCII."""
    config = ledger_entries.config_entries(app_id, entry)
    assert ledger_entries.read_entry(config, app_id) == entry
    assert ledger_entries.read_entries(config) == {app_id: entry}
    ((key, value),) = config.items()
    assert (key + value).isascii()
    assert key.isprintable()


@given(texts, texts)
def test_app_ids_share_no_entry(one: str, other: str) -> None:
    """Two streams with one entry would skip each other's batches."""
    assert (ledger_entries.config_key(one) == ledger_entries.config_key(other)) == (one == other)


def test_an_entry_has_a_fixed_form() -> None:
    """Tables in use hold entries of earlier releases, and other tools read them."""
    assert ledger_entries.config_entries("a b/ü.1", LedgerEntry(3, "q")) == {
        "lance_stream.ledger.a%20b%2F%C3%BC.1": '{"batch": 3, "query": "q"}'
    }
    old = {"lance_stream.ledger.x": '{"query":"q","batch":3,"version":9,"later":[1]}'}
    assert ledger_entries.read_entry(old, "x") == LedgerEntry(3, "q", 9)
    shortest = {"lance_stream.ledger.x": '{"batch": 3}'}
    assert ledger_entries.read_entry(shortest, "x") == LedgerEntry(3)


numbers = st.integers(0, 1 << 62)
rules = st.sampled_from(["", "0fa944cfd3db0b25", "51d2b9ccd3db0b25"])
entries = st.builds(LedgerEntry, numbers, st.just("q"), numbers, numbers, st.just("ab" * 16), rules)


@given(entries, st.lists(entries.map(lambda entry: replace(entry, query_id="")), max_size=8))
def test_entries_with_earlier_batches_round_trip(
    entry: LedgerEntry, recent: list[LedgerEntry]
) -> None:
    """Replays of earlier batches are recognised by what the entry remembers."""
    entry = replace(entry, recent=tuple(recent))
    assert ledger_entries.read_entry(ledger_entries.config_entries("app", entry), "app") == entry


def test_earlier_batches_state_only_differing_rules() -> None:
    """The config is copied into every manifest, so entries stay short; the first form must remain
    readable.
    """

    def batch(number: int, rules: str, *recent: LedgerEntry) -> LedgerEntry:
        query = "q" if number == 9 else ""
        return LedgerEntry(number, query, number, 5, "d", rules, recent)

    entry = batch(9, "r", batch(8, "r"), batch(7, "other"), batch(6, ""))
    (text,) = ledger_entries.config_entries("x", entry).values()
    assert text.endswith('"recent": [[8,8,5,"d",""],[7,7,5,"d","other"],[6,6,5,"d",null]]}')
    early = (  # as the first entries with earlier batches were written
        '{"batch": 9, "query": "q", "version": 9, "rows": 5, "digest": "d", "rules": "r", '
        '"recent": [[8, 8, 5, "d", "r"], [7, 7, 5, "d", "other"]]}'
    )
    result = ledger_entries.read_entry({"lance_stream.ledger.x": early}, "x")
    assert result == replace(entry, recent=entry.recent[:2])


def test_silent_streams_lose_only_earlier_batches() -> None:
    """Old streams must not enlarge every manifest, yet their last batch has to remain known."""
    recent = (LedgerEntry(8, "", 95, 1, "d", "r"),)
    config = {
        "other": '"recent" "version": 1',
        "lance_stream.ledger.bad": '"recent" "version": 1',
        "lance_stream.ledger.early": '{"batch": 1, "recent": []}',
    }
    for app_id, version in (("silent", 100), ("due", 101), ("näme", 2), ('q "version": 1', 101)):
        entry = LedgerEntry(9, 'q "version": 1', version, 3, "d", "r", recent)
        config |= ledger_entries.config_entries(app_id, entry)
    short = ledger_entries.silent_entries(config, 101 + ledger_entries.MAX_SILENT_VERSIONS)
    assert {
        app_id: ledger_entries.read_entry(config | short, app_id) for app_id in ("silent", "näme")
    } == ledger_entries.read_entries(short)
    for app_id, entry in ledger_entries.read_entries(short).items():
        before = ledger_entries.read_entry(config, app_id)
        assert before is not None
        assert (before.recent, replace(before, recent=())) == (recent, entry)
    assert (
        ledger_entries.silent_entries(config | short, 101 + ledger_entries.MAX_SILENT_VERSIONS)
        == {}
    )


def test_silent_streams_are_shortened_gradually() -> None:
    """A commit should not wait for thousands of streams that ended long ago."""
    entry = LedgerEntry(9, "q", 9, 3, "d", "r", (LedgerEntry(8, "", 8, 1, "d", "r"),))
    config: dict[str, str] = {}
    for number in range(150):
        config |= ledger_entries.config_entries(f"stream {number}", entry)
    shortened = []
    while short := ledger_entries.silent_entries(
        config, 9 + 2 * ledger_entries.MAX_SILENT_VERSIONS
    ):
        shortened.append(len(short))
        config |= short
    assert shortened == [64, 64, 22]


def test_streams_are_silent_after_many_versions() -> None:
    """Earlier batches of a stream that still writes must not be forgotten, nor those of a stream
    whose version is unknown.
    """
    entry = LedgerEntry(1, version=5)
    last = 5 + ledger_entries.MAX_SILENT_VERSIONS
    assert not ledger_entries.is_silent(entry, last)
    assert ledger_entries.is_silent(entry, last + 1)
    assert not ledger_entries.is_silent(LedgerEntry(1), last + 1)


def test_an_entry_takes_few_bytes() -> None:
    """The note on digests states these sizes."""

    def batch(number: int) -> LedgerEntry:
        digest = f"{number:032x}"
        return LedgerEntry(number, "", number, 50_000, digest, "0fa944cfd3db0b25")

    recent = tuple(batch(20_000 - number) for number in range(1, ledger_entries.MAX_RECENT + 1))
    query = str(uuid.UUID(int=1))
    entry = replace(batch(20_000), query_id=query, recent=recent)
    assert _size(config := ledger_entries.config_entries(query, entry)) <= 710
    assert _size(ledger_entries.silent_entries(config, 30_000)) <= 230


def _size(config: dict[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in config.items())


@pytest.mark.parametrize("app_id", ["", "\ud800"])
def test_app_ids_must_be_text(app_id: str) -> None:
    """An id that is no text, or empty, would make a key that other streams share."""
    with pytest.raises(InvalidInputError, match="app id"):
        ledger_entries.config_key(app_id)


@pytest.mark.parametrize(
    "value",
    [
        *("", "{", "[]", "null", "3", '{"batch": -1}', '{"batch": true}', '{"batch": 1.5}'),
        *('{"batch": "1"}', '{"query": "q"}', '{"batch": 1, "query": 2}', "[" * 100_000),
        *('{"batch": 1, "version": "x"}', '{"batch": 9223372036854775808}', "9" * 5000),
        *('{"batch": 1, "quarantined": 7}', '{"batch": 1, "quarantined": null}'),
        *(
            '{"batch": 1, "recent": 7}',
            '{"batch": 1, "recent": [7]}',
            '{"batch": 1, "recent": [[]]}',
        ),
        '{"batch": 1, "recent": [[-1, 1, 1, "d", ""]]}',
        '{"batch": 1, "recent": [[0, 1, 1, "d", "", "more"]]}',
    ],
)
def test_invalid_entries_are_refused_by_key(value: str) -> None:
    """A damaged entry that reads as absent would write a batch a second time."""
    with pytest.raises(CorruptDataError, match=r"lance_stream\.ledger\.app"):
        ledger_entries.read_entry({"lance_stream.ledger.app": value}, "app")


def test_restores_keep_newer_ledger_entries() -> None:
    """After a restore, streams continue with their checkpoints and must not replay old batches."""
    restored = {
        "other": "old",
        **ledger_entries.config_entries("a", LedgerEntry(1, "q", 2)),
        **ledger_entries.config_entries("b", LedgerEntry(9, "q", 8)),
        **ledger_entries.config_entries("gone", LedgerEntry(1, "q", 3)),
        **ledger_entries.config_entries("same batch", LedgerEntry(6, "q", 3)),
    }
    newest = {
        "other": "new",
        **ledger_entries.config_entries("a", LedgerEntry(5, "q", 7)),
        **ledger_entries.config_entries("b", LedgerEntry(2, "q", 3)),
        **ledger_entries.config_entries("c", LedgerEntry(0, "q", 9)),
        **ledger_entries.config_entries("same batch", LedgerEntry(6, "q", 4)),
    }
    merged = ledger_entries.newest_entries(restored, newest)
    entries = ledger_entries.read_entries(merged)
    batches = {app: entry.batch_id for app, entry in entries.items()}
    assert batches == {"a": 5, "b": 9, "c": 0, "gone": 1, "same batch": 6}
    assert entries["same batch"].version == 4
    assert "other" not in merged


def test_entries_of_a_query_are_found() -> None:
    """The search for one query must neither parse nor fail on entries of other streams."""
    config = {
        **ledger_entries.config_entries("ours", LedgerEntry(4, "q", version=9)),
        **ledger_entries.config_entries("theirs", LedgerEntry(7, "another", version=8)),
        **ledger_entries.config_entries(
            "names it", LedgerEntry(1, "another", version=3, rules="q")
        ),
        ledger_entries.config_key("damaged"): "no JSON",
    }
    assert ledger_entries.read_entries_of_query(config, "q") == {
        "ours": LedgerEntry(4, "q", version=9)
    }


def test_quarantined_files_are_those_of_entries() -> None:
    """A cleanup keeps the files that entries name, and may remove all others."""
    name = "ab" * 16
    (text,) = ledger_entries.config_entries("x", LedgerEntry(4, quarantined=name)).values()
    config = {
        "other": text.replace(name, "cd" * 16),
        ledger_entries.config_key("none"): '{"batch": 1}',
        ledger_entries.config_key("x"): text,
    }
    assert list(ledger_entries.quarantined_files(config)) == [name]


@pytest.mark.parametrize(
    "key", ["lance_stream.derived.x", "ledger.x", f"a.{ledger_entries.PREFIX}x"]
)
def test_foreign_keys_are_no_entries(key: str) -> None:
    """The config belongs to the user, too: other keys may have values that look like entries."""
    entry = LedgerEntry(4, "q", 9, 1, "d", recent=(LedgerEntry(3, version=8),))
    (text,) = ledger_entries.config_entries("x", entry).values()
    foreign = {key: text}
    assert ledger_entries.read_entry(foreign, "x") is None
    assert ledger_entries.read_entries(foreign) == {}
    assert ledger_entries.read_entries_of_query(foreign, "q") == {}
    assert ledger_entries.silent_entries(foreign, 9 + 2 * ledger_entries.MAX_SILENT_VERSIONS) == {}
    assert (
        ledger_entries.newest_entries(foreign, {})
        == ledger_entries.newest_entries({}, foreign)
        == {}
    )
