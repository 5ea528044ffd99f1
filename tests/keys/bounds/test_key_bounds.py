from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.bounds import key_bounds
from lance_stream.keys.bounds.key_bounds import (
    UNKNOWN,
    BoundsLearner,
    ColumnBounds,
    FileBounds,
    KeyBounds,
    joined_bounds,
)
from lance_stream.keys.file_columns import file_column
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import Field, assign_ids
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.manifest import FragmentList
from lance_stream.table.paths import data_file_name

OVERLAY = b"\x5a\x00"


def key_fields(*types: pa.DataType) -> tuple[Field, ...]:
    schema = pa.schema([pa.field(f"k{at}", type_) for at, type_ in enumerate(types)])
    return assign_ids(from_arrow(schema)).fields


def fragment_of(number: int, fields: tuple[Field, ...], num_rows: int) -> Fragment:
    file = DataFile(
        path=data_file_name(number.to_bytes(16, "big")),
        field_ids=tuple(field.id for field in fields),
        column_indices=tuple(range(len(fields))),
        file_version=(2, 1),
    )
    return Fragment(id=number, files=(file,), physical_rows=num_rows)


values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-20, 20),
    pa.uint8(): st.integers(0, 20),
    pa.string(): st.text("abc", max_size=2) | st.just("a" * 70) | st.just("a" * 70 + "b"),
    pa.binary(2): st.binary(min_size=2, max_size=2),
}


@st.composite
def tables_and_keys(
    draw: st.DrawFn,
) -> tuple[tuple[pa.DataType, ...], list[list[tuple[Any, ...]]], list[tuple[Any, ...]]]:
    types = tuple(draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=3)))
    key = st.tuples(*[values[type_] for type_ in types])
    row = key | st.tuples(*[st.none() | values[type_] for type_ in types])
    fragments = draw(st.lists(st.lists(row, min_size=1, max_size=3), max_size=6))
    return types, fragments, draw(st.lists(key, max_size=5))


def arrays(types: tuple[pa.DataType, ...], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(types)]


def file_bounds_of(
    types: tuple[pa.DataType, ...], rows_of: list[list[tuple[Any, ...]]]
) -> tuple[KeyBounds, FragmentList, list[FileBounds]]:
    fields = key_fields(*types)
    fragments = [fragment_of(at, fields, len(rows)) for at, rows in enumerate(rows_of)]
    file_bounds: list[FileBounds] = []
    for fragment, rows in zip(fragments, rows_of, strict=True):
        learner = BoundsLearner(fragment, fields)
        learner.add_keys(arrays(types, rows))
        file_bounds += learner.file_bounds()
    return (
        KeyBounds([ColumnBounds(field) for field in fields]),
        FragmentList.of(fragments),
        file_bounds,
    )


def cut(value: Any) -> Any:
    return value.encode()[:64] if isinstance(value, str) else value


def lies_in_box(key: tuple[Any, ...], rows: list[tuple[Any, ...]]) -> bool:
    for at, value in enumerate(key):
        stored = [cut(row[at]) for row in rows if row[at] is not None]
        if not stored or not min(stored) <= cut(value) <= max(stored):
            return False
    return True


@settings(deadline=None)
@given(tables_and_keys(), st.integers(0, 6), st.sampled_from([1, 2, 512]))
def test_only_unmatchable_fragments_are_skipped(
    drawn: tuple[tuple[pa.DataType, ...], list[list[tuple[Any, ...]]], list[tuple[Any, ...]]],
    num_files: int,
    sample_keys: int,
) -> None:
    """A fragment that is skipped although it holds a key would get a duplicate of it; unknown
    fragments must be read.
    """
    types, rows_of, keys = drawn
    bounds, fragments, file_bounds = file_bounds_of(types, rows_of)
    file_bounds = file_bounds[: num_files * len(types)]
    bounds.add_bounds(file_bounds)
    with patch("lance_stream.keys.bounds.key_bounds._SAMPLE_KEYS", sample_keys):
        may = bounds.may_hold(fragments, KeyLookup(arrays(types, keys)))
    expected = [
        bool(keys) and (at >= num_files or any(lies_in_box(key, rows) for key in keys))
        for at, rows in enumerate(rows_of)
    ]
    assert may.tolist() == expected
    assert bounds.are_unknown(fragments).tolist() == [at >= num_files for at in range(len(rows_of))]


def test_known_fragments_are_not_decoded() -> None:
    """Every batch sees all fragments again, so decoding them would dominate small upserts."""
    bounds, fragments, file_bounds = file_bounds_of((pa.int64(),), [[(1,)], [(2,)]])
    bounds.add_bounds(file_bounds)
    bounds.may_hold(fragments, KeyLookup([pa.array([1])]))
    again = FragmentList(fragments.raws)
    assert bounds.may_hold(again, KeyLookup([pa.array([2])])).tolist() == [False, True]
    assert again.num_decoded == 0


def test_bounds_survive_renumbering_and_deletes() -> None:
    """Bounds belong to files, and a commit may give a fragment another id or position."""
    bounds, fragments, file_bounds = file_bounds_of((pa.int64(),), [[(1,), (5,)], [(9,)]])
    bounds.add_bounds(file_bounds)
    moved = FragmentList.of([replace(fragments[1], id=7), replace(fragments[0], id=8)])
    assert bounds.may_hold(moved, KeyLookup([pa.array([4])])).tolist() == [False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"unknown": OVERLAY},
        {"files": ()},
        {"files": "twice"},
        {"files": "named by hand"},
        {"files": "void"},
        {"files": "no column"},
    ],
)
def test_ambiguous_fragments_are_always_read(changes: dict[str, Any]) -> None:
    """A fragment whose key column has no single, unambiguous file neither
    learns nor uses bounds.
    """
    fields = key_fields(pa.int64())
    fragment = fragment_of(1, fields, 1)
    (file,) = fragment.files
    files = {
        "twice": (file, replace(file, path=data_file_name(bytes(16)))),
        "named by hand": (replace(file, path="part-0.lance"),),
        "void": (replace(file, field_ids=(-2,), column_indices=(0,)),),
        "no column": (replace(file, column_indices=(-1,)),),
    }
    case = changes.get("files")
    changed = replace(fragment, **({"files": files[case]} if isinstance(case, str) else changes))
    assert file_column(fragment, fields[0].id) is not None
    assert file_column(changed, fields[0].id) is None
    learner = BoundsLearner(changed, fields)
    learner.add_keys([pa.array([1])])
    assert learner.file_bounds() == []
    bounds = KeyBounds([ColumnBounds(fields[0])])
    listed = FragmentList.of([changed])
    assert bounds.may_hold(listed, KeyLookup([pa.array([5])])).tolist() == [True]
    assert not bounds.are_unknown(listed).any()


@pytest.mark.parametrize(
    ("num_seen", "num_rows", "is_complete"),
    [(0, 0, False), (3, 0, False), (2, 3, False), (3, 3, True), (4, 3, True)],
)
def test_unknown_row_counts_leave_gaps(num_seen: int, num_rows: int, is_complete: bool) -> None:
    """Older writers state no number of rows, so nobody knows whether all keys were seen."""
    column = ColumnBounds(key_fields(pa.int64())[0])
    (bounds,) = learned([1])
    column.add([bounds._replace(num_seen=num_seen, num_rows=num_rows)])
    assert column.num_files == is_complete


def test_boxes_are_checked_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of pairs that are compared at a time, each box is compared with all keys
    in its narrowest side.
    """
    types = (pa.int64(), pa.string())
    dice = np.random.default_rng(7)

    def keys(count: int) -> list[tuple[Any, ...]]:
        return [(int(dice.integers(0, 40)), f"{dice.integers(0, 40):02d}") for _ in range(count)]

    rows_of = [keys(2) for _ in range(60)]
    bounds, fragments, file_bounds = file_bounds_of(types, rows_of)
    bounds.add_bounds(file_bounds)
    for num_keys in (0, 1, 5, 20):
        batch = keys(num_keys)
        expected = [any(lies_in_box(key, rows) for key in batch) for rows in rows_of]
        assert sum(expected) not in (0, 60) or not num_keys
        for num_pairs in (1, 2, 7, 1 << 20):
            monkeypatch.setattr(key_bounds, "_PAIRS_AT_ONCE", num_pairs)
            lookup = KeyLookup(arrays(types, batch))
            assert bounds.may_hold(fragments, lookup).tolist() == expected


def test_names_of_older_writers_are_recognized() -> None:
    """Older writers named files by a UUID with dashes, which identifies a file just as well."""
    fields = key_fields(pa.int64())
    fragment = fragment_of(1, fields, 1)
    old = replace(fragment.files[0], path="6f1c0d3e-2b7a-4b6e-9b55-0c2f7d1f4a90.lance")
    column = file_column(replace(fragment, files=(old,)), fields[0].id)
    assert column is not None
    assert column.file.hex() == "6f1c0d3e2b7a4b6e9b550c2f7d1f4a90"
    not_a_uuid = replace(old, path="x" * 36 + ".lance")
    assert file_column(replace(fragment, files=(not_a_uuid,)), fields[0].id) is None


def test_bounds_need_every_file_part() -> None:
    """Tasks read a file in parts, and bounds of some of them would exclude keys of the others."""
    fields = key_fields(pa.int64())
    fragment = fragment_of(1, fields, 4)
    parts = []
    for keys in ([5, 7], [None, None], [1, 1]):
        learner = BoundsLearner(fragment, fields)
        learner.add_keys([pa.array(keys, pa.int64())])
        parts += learner.file_bounds()
    listed = FragmentList.of([fragment])
    column = ColumnBounds(fields[0])
    bounds = KeyBounds([column])
    bounds.add_bounds(parts[:1])
    assert column.rows_of(listed).tolist() == [UNKNOWN]
    bounds.add_bounds([parts[0], parts[2]])
    may = [
        bounds.may_hold(listed, KeyLookup([pa.array([key])])).tolist()[0] for key in (0, 1, 6, 7, 8)
    ]
    assert may == [False, True, True, True, False]
    for some, bound in (
        (parts[1:2], None),
        ([parts[1], parts[1]._replace()], None),
        ([parts[1], parts[0]], parts[0].bounds),
        ([parts[0], parts[1]], parts[0].bounds),
    ):
        (joined_bound,) = joined_bounds(some)
        assert (joined_bound.bounds, joined_bound.num_seen) == (bound, 2 * len(some))


def test_columns_without_bounds_decide_nothing() -> None:
    """A key column without bounds leaves the decision to the other columns."""
    fields = key_fields(pa.dictionary(pa.int8(), pa.string()), pa.int64())
    fragment = fragment_of(1, fields, 1)
    learner = BoundsLearner(fragment, fields)
    text = pa.array(["a"]).dictionary_encode()
    learner.add_keys([text, pa.array([5])])
    bounds = KeyBounds([None, ColumnBounds(fields[1])])
    bounds.add_bounds(learner.file_bounds())
    listed = FragmentList.of([fragment])
    for key, may in ((5, True), (6, False)):
        lookup = KeyLookup([text, pa.array([key])])
        assert bounds.may_hold(listed, lookup).tolist() == [may]


@pytest.mark.parametrize(
    ("rows_of", "may"),
    [
        ([[5], [9], None], [True] * 4),
        ([[5], [9], [2]], [False, True, True, False]),
        ([[5], [None], [None]], [False, False, True, False]),
        ([[None], [None], [None]], [False] * 4),
    ],
)
def test_new_files_inherit_the_old_bounds(rows_of: list[list[Any] | None], may: list[bool]) -> None:
    """A compacted file holds the rows of its sources, and reading it only to add_bounds its bounds
    would be wasteful.
    """
    (field,) = key_fields(pa.int64())
    column = ColumnBounds(field)
    old = [fragment_of(at, (field,), 1) for at in range(3)]
    for fragment, keys in zip(old, rows_of, strict=True):
        if keys is not None:
            learner = BoundsLearner(fragment, [field])
            learner.add_keys([pa.array(keys, pa.int64())])
            column.add(learner.file_bounds())
    new = fragment_of(9, (field,), 3)
    column.inherit(old, [new])
    column.inherit([], [fragment_of(10, (field,), 3)])
    named_by_hand = replace(new.files[0], path="part-0.lance")
    column.inherit(old, [replace(new, files=(named_by_hand,))])
    listed = FragmentList.of([new])
    result = [
        KeyBounds([column]).may_hold(listed, KeyLookup([pa.array([key])])).tolist()
        for key in (1, 2, 5, 10)
    ]
    is_bounded = rows_of[2] is not None
    assert KeyBounds([column]).are_unknown(listed).tolist() == [not is_bounded]
    assert [may_hold for (may_hold,) in result] == may
    assert column.num_files == sum(rows is not None for rows in rows_of) + is_bounded


def many_files(num_files: int) -> Iterator[Fragment]:
    fields = key_fields(pa.int64())
    return (fragment_of(at, fields, 1) for at in range(num_files))


def test_bounds_of_removed_files_are_dropped() -> None:
    """The memory of a stream that runs for months must not grow with the files that it has
    replaced.
    """
    (field,) = key_fields(pa.int64())
    column = ColumnBounds(field)
    fragments = FragmentList.of(many_files(5000))
    file_bounds = []
    for fragment in fragments:
        learner = BoundsLearner(fragment, [field])
        learner.add_keys([pa.array([fragment.id])])
        file_bounds += learner.file_bounds()
    column.add(file_bounds)
    column.forget_others(fragments)
    assert column.num_files == 5000
    remaining = fragments[4990:]
    column.forget_others(remaining)
    assert column.num_files == 10
    lookup = KeyLookup([pa.array([4995])])
    assert np.flatnonzero(KeyBounds([column]).may_hold(remaining, lookup)).tolist() == [5]


def learned(numbers: Iterable[int]) -> list[FileBounds]:
    """Return the bounds of files of one row each."""
    (field,) = key_fields(pa.int64())
    file_bounds: list[FileBounds] = []
    for number in numbers:
        learner = BoundsLearner(fragment_of(number, (field,), 1), [field])
        learner.add_keys([pa.array([number])])
        file_bounds += learner.file_bounds()
    return file_bounds


def test_relearned_bounds_change_nothing() -> None:
    """Concurrent scans report the same files, and counting their work twice would save the bounds
    too often.
    """
    types = (pa.int64(), pa.int64())
    bounds, _, file_bounds = file_bounds_of(types, [[(0, 1), (9, 1)], [(5, 2)]])
    for _ in range(2):
        bounds.add_bounds(file_bounds)
        for column in bounds.columns:
            work = 3 + 2 * key_bounds._ROWS_FOR_A_FILE
            assert (column.num_files, column.unsaved_work, len(column._lows)) == (2, work, 3)


def test_bounds_use_memory_of_two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that update a table for months replace its files again and again."""
    monkeypatch.setattr(key_bounds, "_FORGET_FROM", 1)
    fragments = FragmentList.of(many_files(7))
    column = ColumnBounds(key_fields(pa.int64())[0])
    table = FragmentList.of([fragments[0], fragments[6]])
    for num_learned, num_remaining in ((5, 5), (6, 1)):
        column.add(learned(range(num_learned)))
        is_unknown = column.rows_of(fragments) == UNKNOWN
        assert is_unknown.tolist() == [number >= num_learned for number in range(7)]
        assert (column.rows_of(table) == UNKNOWN).tolist() == [False, True]
        assert len(column._row_of_fragment) == num_remaining
        column.forget_others(table)
        assert (column.num_files, len(column._lows)) == (num_remaining, num_remaining + 1)


def test_many_pairs_skip_exact_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an exact check would take too long, the bounds of each column decide by themselves."""
    rows: list[list[tuple[Any, ...]]] = [[(0, 0), (9, 9)], [(0, 5), (9, 5)]]
    keys = [(at, 0) for at in range(5)] + [(20, 5)]
    bounds, fragments, file_bounds = file_bounds_of((pa.int64(), pa.int64()), rows)
    bounds.add_bounds(file_bounds)
    lookup = KeyLookup(arrays((pa.int64(), pa.int64()), keys))
    assert bounds.may_hold(fragments, lookup).tolist() == [True, False]
    monkeypatch.setattr("lance_stream.keys.bounds.key_bounds._MAX_PAIRS", 0)
    assert bounds.may_hold(fragments, lookup).tolist() == [True, True]
