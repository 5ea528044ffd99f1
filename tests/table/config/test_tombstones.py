import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table.config.tombstones import (
    CONFIG_KEY,
    MAX_FILES_PER_TIER,
    MAX_ROWS_TO_JOIN,
    FileContent,
    TombstoneFile,
    Tombstones,
    check_is_of,
    config_entries,
    files_to_join,
    is_of,
    read_tombstones,
    with_change,
    without_expired,
)


def file(number: int, newest_ms: int = 0, num_rows: int = 1) -> TombstoneFile:
    return TombstoneFile(f"{number:032x}.arrow", newest_ms, num_rows)


def by_id(*files: TombstoneFile) -> Tombstones:
    return Tombstones(("id",), "seq", "int64", files)


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)
files = st.builds(file, st.integers(0, 1 << 100), st.integers(0, 1 << 50), st.integers(0, 1 << 40))


@given(
    st.builds(
        Tombstones,
        st.lists(names, min_size=1).map(tuple),
        names,
        st.just("timestamp:us:UTC"),
        st.lists(files, max_size=5).map(tuple),
        st.none() | st.lists(names, max_size=3).map(tuple),
    )
)
def test_tombstones_round_trip_through_the_config(tombstones: Tombstones) -> None:
    """The config is the only place that knows which deletes are remembered."""
    entries = config_entries(tombstones)
    assert list(entries) == [CONFIG_KEY]
    assert read_tombstones({"lance.auto": "1", **entries}) == tombstones


def test_entries_have_a_fixed_extensible_form() -> None:
    """Tables in use hold this form, and a later release may add fields to it."""
    entry = json.loads(config_entries(by_id(file(1, 5, 7)))[CONFIG_KEY])
    assert entry == {
        "on": ["id"],
        "sequence_by": "seq",
        "sequence_type": "int64",
        "files": [{"name": f"{1:032x}.arrow", "ms": 5, "rows": 7}],
    }
    later = {**entry, "more": 1, "files": [{**entry["files"][0], "bytes": 9}]}
    assert read_tombstones({CONFIG_KEY: json.dumps(later)}) == by_id(file(1, 5, 7))
    assert read_tombstones({"lance_stream.ledger.app": "{}"}) is None
    stated = by_id(replace(file(1, 5, 7), content=FileContent.of(b"twelve bytes")))
    assert '"bytes": 12, "digest": "' in config_entries(stated)[CONFIG_KEY]
    assert read_tombstones(config_entries(stated)) == stated
    partial = {**entry, "files": [{**entry["files"][0], "digest": "ab"}]}
    assert read_tombstones({CONFIG_KEY: json.dumps(partial)}) == by_id(file(1, 5, 7))


GOOD = {"on": ["id"], "sequence_by": "seq", "sequence_type": "int64", "files": []}
GOOD_FILE = {"name": f"{1:032x}.arrow", "ms": 5, "rows": 7}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[" * 100_000,
        "[]",
        "null",
        {**GOOD, "on": []},
        {**GOOD, "on": "id"},
        {**GOOD, "on": [1]},
        {**GOOD, "sequence_by": None},
        {**GOOD, "sequence_type": 3},
        {**GOOD, "files": {}},
        {**GOOD, "values": "id"},
        {**GOOD, "values": [1]},
        *(
            {**GOOD, "files": [value]}
            for value in (
                3,
                {**GOOD_FILE, "name": "../../etc/passwd"},
                {**GOOD_FILE, "name": f"{1:032x}.arrow\n"},
                {**GOOD_FILE, "name": None},
                {**GOOD_FILE, "ms": -1},
                {**GOOD_FILE, "ms": True},
                {**GOOD_FILE, "rows": 1.5},
                {**GOOD_FILE, "rows": 1 << 63},
                {**GOOD_FILE, "bytes": "9"},
                {**GOOD_FILE, "digest": 9},
            )
        ),
    ],
)
def test_invalid_entries_are_refused(value: Any) -> None:
    """Forgotten deletes would let late events revive deleted rows."""
    with pytest.raises(CorruptDataError, match=CONFIG_KEY):
        read_tombstones({CONFIG_KEY: value if isinstance(value, str) else json.dumps(value)})


def test_tombstones_fix_the_key_columns() -> None:
    """Other columns are refused as long as deletes are remembered; the error names a way out."""
    tombstones = Tombstones(("a", "b"), "seq", "int64", (file(1),))
    assert is_of(tombstones, ("b", "a"), "seq")
    check_is_of(tombstones, ("b", "a"), "seq")
    for on, sequence_by in ((("a",), "seq"), (("a", "b"), "at")):
        assert not is_of(tombstones, on, sequence_by)
        with pytest.raises(InvalidInputError) as caught:
            check_is_of(tombstones, on, sequence_by)
        for part in ("('a', 'b')", "'seq'", "Nothing was written", CONFIG_KEY, "omit"):
            assert part in str(caught.value)
        check_is_of(Tombstones(("a", "b"), "seq", "int64"), on, sequence_by)


def test_deletes_and_histories_exclude_each_other() -> None:
    """Events of a history have values, which a remembered delete lacks."""
    deletes = by_id(file(1))
    history = replace(deletes, values=("v",))
    assert deletes.columns == ("id", "seq")
    assert history.columns == ("id", "seq", "v")
    for tombstones, is_history, origin in (
        (deletes, False, "of an upsert or scd1"),
        (history, True, "of scd2"),
    ):
        assert is_of(tombstones, ["id"], "seq", is_history=is_history)
        assert not is_of(tombstones, ["id"], "seq", is_history=not is_history)
        check_is_of(tombstones, ["id"], "seq", is_history=is_history)
        with pytest.raises(InvalidInputError, match=origin):
            check_is_of(tombstones, ["id"], "seq", is_history=not is_history)


def test_histories_store_columns_of_all_events() -> None:
    """A column that a later batch lacks still has values in earlier files."""

    def history(*values: str) -> Tombstones:
        return replace(by_id(), values=values)

    tombstones = with_change(history("a", "b"), history("b", "c"), joined=[], oldest_ms=0)
    assert tombstones.values == ("a", "b", "c")
    assert with_change(by_id(), history("c"), joined=[], oldest_ms=0).values == ("c",)


def test_writers_add_to_the_newest_tombstones() -> None:
    """Another writer may have added or expired files since this one planned."""
    newest = by_id(file(1, 10), file(2, 20), file(3, 30))
    tombstones = with_change(
        newest, by_id(file(4, 40)), joined=[file(2).name, file(9).name], oldest_ms=15
    )
    assert tombstones == by_id(file(3, 30), file(4, 40))
    assert with_change(None, by_id(file(4, 40)), joined=[], oldest_ms=15) == by_id(file(4, 40))
    assert with_change(newest, by_id(), joined=[], oldest_ms=30) == by_id(file(3, 30))


def test_columns_can_change_after_all_expire() -> None:
    """Tombstones by another key cannot be compared with those that remain."""
    added = Tombstones(("key",), "at", "double", (file(4, 40),))
    assert with_change(by_id(), added, joined=[], oldest_ms=0) == added
    with pytest.raises(InvalidInputError, match="by the key"):
        with_change(by_id(file(1, 10)), added, joined=[], oldest_ms=0)


def test_files_expire_with_their_newest_delete() -> None:
    """An earlier expiry would forget deletes that are still due."""
    assert without_expired([file(1, 99), file(2, 100), file(3, 101)], 100) == (
        file(2, 100),
        file(3, 101),
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=300))
def test_files_stay_few_and_rarely_rewritten(sizes: list[int]) -> None:
    """Each batch reads all files and adds one, so both numbers must grow with the
    logarithm only.
    """
    there: list[TombstoneFile] = []
    written = 0
    for number, size in enumerate(sizes):
        joined = files_to_join(there, size)
        rows = size + sum(batch.num_rows for batch in joined)
        there = [value for value in there if value not in joined] + [file(number, 0, rows)]
        written += rows
    total = sum(sizes)
    num_tiers = (total.bit_length() + 2) // 3
    assert sum(batch.num_rows for batch in there) == total
    assert len(there) <= MAX_FILES_PER_TIER * num_tiers
    assert written <= total * (num_tiers + 1)


def test_large_files_are_left_alone() -> None:
    """Joining them again would rewrite many rows for one new file."""
    large = [file(number, num_rows=MAX_ROWS_TO_JOIN) for number in range(20)]
    assert files_to_join(large, MAX_ROWS_TO_JOIN) == ()
    smaller = [file(number, num_rows=MAX_ROWS_TO_JOIN - 1) for number in range(7)]
    assert files_to_join([*large, *smaller], MAX_ROWS_TO_JOIN - 1) == tuple(smaller)
    assert files_to_join([*large, *map(file, range(20, 27))], 1) == tuple(map(file, range(20, 27)))


def test_higher_tiers_are_not_joined() -> None:
    """Only small files accumulate, and a large one would be rewritten with them each time."""
    small, large = [file(number) for number in range(MAX_FILES_PER_TIER)], file(99, num_rows=64)
    assert files_to_join([large, *small], 1) == tuple(small)
    assert files_to_join([large, *small[1:]], 1) == ()
