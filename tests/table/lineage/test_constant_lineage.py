"""The lineage of many fragments that is read at once is what each says when it is decoded."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import BadDataError
from lance_stream.table.fragments.fragment import (
    DataFile,
    ExternalFile,
    Fragment,
    LineageColumn,
    StoredSequence,
    encode_fragment,
)
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.lineage.constant_lineage import ConstantValues, constant_lineage
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids, encode_row_ids
from lance_stream.table.lineage.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)

NUM_ROWS = 5
ELSEWHERE = (ExternalFile("_rows/a", 0, 10), LineageColumn(-3, None))


def versions(*stamps: int) -> bytes:
    return encode_row_versions(RowVersionSequence.from_array(stamps))


def row_ids(*ids: int) -> bytes:
    return encode_row_ids(np.array(ids, np.uint64))


STAMPS = st.one_of(
    st.none(),
    st.sampled_from(ELSEWHERE),
    st.integers(1, 1 << 40).map(lambda value: versions(*[value] * NUM_ROWS)),
    st.lists(st.integers(1, 3), min_size=NUM_ROWS, max_size=NUM_ROWS).map(
        lambda value: versions(*value)
    ),
    st.integers(1, 9).map(lambda value: versions(*[value] * (NUM_ROWS + 1))),  # too many rows
    st.binary(max_size=12),
)
ROW_IDS = st.one_of(
    st.none(),
    st.sampled_from(ELSEWHERE),
    st.integers(0, 1 << 40).map(lambda value: row_ids(*range(value, value + NUM_ROWS))),
    st.lists(st.integers(0, 50), min_size=NUM_ROWS, max_size=NUM_ROWS, unique=True).map(
        lambda value: row_ids(*value)
    ),
    st.integers(0, 9).map(lambda value: row_ids(*range(value, value + NUM_ROWS - 1))),
    st.binary(max_size=12),
)


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    file = DataFile("a.lance", (0, 1), (0, 1), (2, 2), size_bytes=draw(st.integers(0, 1 << 33)))
    return Fragment(
        draw(st.integers(0, 1 << 31)),
        (file,) * draw(st.integers(1, 2)),
        NUM_ROWS,
        None,
        draw(ROW_IDS),
        last_updated_at_versions=draw(STAMPS),
        created_at_versions=draw(STAMPS),
    )


def stamps_of(stored: StoredSequence | None) -> list[int] | None:
    """Return the versions of a fragment's rows; None where they stand elsewhere, or are damaged."""
    if isinstance(stored, ExternalFile | LineageColumn):
        return None
    try:
        return decode_row_versions(stored, NUM_ROWS).to_array().tolist()
    except BadDataError:
        return None


def ids_of(stored: StoredSequence | None) -> list[int] | None:
    """Return the ids of a fragment's rows; None where there are none, or they are damaged."""
    try:
        return (
            decode_row_ids(stored, NUM_ROWS).to_array().tolist()
            if isinstance(stored, bytes)
            else None
        )
    except BadDataError:
        return None


def check(lineage: ConstantValues, position: int, result: list[int] | None, step: int) -> None:
    """What is said to be known of a fragment's rows is so."""
    if lineage.is_constant[position]:
        first = int(lineage.values[position])
        assert result == [first + step * number for number in range(NUM_ROWS)]


@settings(max_examples=60)
@given(drawn=st.lists(fragments(), max_size=12))
def test_constant_lineage_agrees_with_each_fragment(drawn: list[Fragment]) -> None:
    """Lineage of many fragments is read from raw bytes, and the decoded sequences are the judge."""
    lineage = constant_lineage([encode_fragment(value) for value in drawn])
    assert lineage.ids.tolist() == [entry.id for entry in drawn]
    assert lineage.is_plain.all()
    for index, item in enumerate(drawn):
        check(lineage.created, index, stamps_of(item.created_at_versions), 0)
        check(lineage.last_updated, index, stamps_of(item.last_updated_at_versions), 0)
        check(lineage.first_row_ids, index, ids_of(item.row_ids), 1)


@settings(max_examples=100)
@given(
    firsts=st.lists(st.one_of(st.integers(0, 60), st.none()), max_size=8),
    others=st.lists(st.integers(0, 60), max_size=6, unique=True),
)
def test_ranges_of_row_ids_are_compared(firsts: list[int | None], others: list[int]) -> None:
    """A fragment whose ids are no range must never count as free of the given ids."""
    file = DataFile("a.lance", (0,), (0,), (2, 2))
    fragment = [
        Fragment(
            at,
            (file,),
            NUM_ROWS,
            None,
            None if first is None else row_ids(*range(first, first + 5)),
        )
        for at, first in enumerate(firsts)
    ]
    lineage = constant_lineage([encode_fragment(value) for value in fragment])
    ids = np.array(sorted(others), np.uint64)
    owned = [set() if first is None else set(range(first, first + 5)) for first in firsts]
    begins, ends = lineage.ids_within(ids)
    within = [set(ids[first:stop].tolist()) for first, stop in zip(begins, ends, strict=True)]
    assert within == [columns & set(others) for columns in owned]
    alone = [
        firsts[at] is not None
        and not columns & set(others)
        and not any(columns & other for index, other in enumerate(owned) if index != at)
        for at, columns in enumerate(owned)
    ]
    assert lineage.share_no_row_id(ids).tolist() == alone


@settings(max_examples=60)
@given(
    drawn=st.lists(fragments(), max_size=6),
    more=st.lists(fragments(), max_size=3),
    other=fragments(),
    steps=st.lists(st.sampled_from(["append", "replace", "remove", "ask"]), max_size=6),
)
def test_derived_lists_inherit_their_lineage(
    drawn: list[Fragment], more: list[Fragment], other: Fragment, steps: list[str]
) -> None:
    """Lists inherit the lineage of the fragments that stay, which must equal a fresh reading."""
    listed = FragmentList(map(encode_fragment, drawn))
    for step in ("ask", *steps):
        if step == "ask":
            _ = listed.lineage
        elif step == "append":
            listed = listed.appended(more)
        elif len(listed):
            changed = other if step == "replace" else None
            listed = listed.replaced({len(listed) // 2: changed})
    result, expected = listed.lineage, constant_lineage(listed.raws)
    for one, two in (
        (result.created, expected.created),
        (result.last_updated, expected.last_updated),
        (result.first_row_ids, expected.first_row_ids),
    ):
        assert one.is_constant.tolist() == two.is_constant.tolist()
        assert one.values[one.is_constant].tolist() == two.values[two.is_constant].tolist()


def test_split_runs_are_not_constant() -> None:
    """Two runs of one version mean the same as one, but only decoding could tell."""
    twice = versions(4, 4, 4) + versions(4, 4)
    fragment = Fragment(0, (DataFile("a.lance", (0,), (0,), (2, 2)),), NUM_ROWS)
    lineage = constant_lineage([encode_fragment(replace(fragment, created_at_versions=twice))])
    assert decode_row_versions(twice, NUM_ROWS).to_array().tolist() == [4] * NUM_ROWS
    assert not lineage.created.is_constant[0]
    assert lineage.last_updated.is_constant[0]  # there is none, which stands for version 1


def test_fragments_without_row_counts_are_unknown() -> None:
    """Fragments of old writers state no count, so nothing can be concluded from their bytes."""
    fragment = Fragment(3, (DataFile("a.lance", (0,), (0,), (2, 2)),), 0)
    lineage = constant_lineage([encode_fragment(fragment)])
    assert not lineage.is_plain[0]


def test_no_fragments_give_no_lineage() -> None:
    """Empty arrays break code that takes a first element for granted."""
    lineage = constant_lineage([])
    assert len(lineage.ids) == len(lineage.created.values) == 0


def test_appended_tables_have_constant_lineage() -> None:
    """Appends give constant stamps and ranges of ids, the case that skipping is made for."""
    fragment = [
        Fragment(
            number,
            (DataFile("a.lance", (0,), (0,), (2, 2), size_bytes=1000),),
            NUM_ROWS,
            None,
            encode_row_ids(RowIdSequence.from_range(number * NUM_ROWS, (number + 1) * NUM_ROWS)),
            last_updated_at_versions=versions(*[number + 1] * NUM_ROWS),
            created_at_versions=versions(*[number + 1] * NUM_ROWS),
        )
        for number in range(300)
    ]
    lineage = constant_lineage([encode_fragment(value) for value in fragment])
    for one in (lineage.created, lineage.last_updated, lineage.first_row_ids):
        assert one.is_constant.all()
    assert lineage.created.values.tolist() == list(range(1, 301))
    assert lineage.first_row_ids.values.tolist() == [number * NUM_ROWS for number in range(300)]
