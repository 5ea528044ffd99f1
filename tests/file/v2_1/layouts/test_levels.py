"""Repetition and definition levels: written inwards, read outwards, and nothing in between."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.v2_1.layouts.levels import (
    ALL_VALID_ITEM,
    ALL_VALID_LIST,
    EMPTYABLE_LIST,
    NULL_AND_EMPTY_LIST,
    NULLABLE_ITEM,
    NULLABLE_LIST,
    Levels,
    check_layers,
    checked_levels,
    join_levels,
    layers_of,
)
from lance_stream.file.v2_1.layouts.nesting import LayerReader, LayerWriter, arrow_offsets


def levels_of_list(rows: list[list[int | None] | None]) -> Levels:
    """The levels of a list of integers, computed item by item."""
    lengths = np.array([len(row or []) for row in rows])
    items = [item for row in rows for item in row or []]
    return (
        LayerWriter(len(rows))
        .lists(lengths, np.array([row is not None for row in rows]))
        .items(np.array([item is not None for item in items], np.bool_))
        .finish()
    )


def streams(levels: Levels) -> tuple[list[int] | None, list[int] | None]:
    return (
        None if levels.repetition is None else levels.repetition.tolist(),
        None if levels.definition is None else levels.definition.tolist(),
    )


def test_list_levels_follow_lance_numbering() -> None:
    """The numbering of levels is Lance's, and other readers rely on it."""
    levels = levels_of_list([[1, None], [], None, [2]])
    assert levels.layers.kinds == (NULLABLE_ITEM, NULL_AND_EMPTY_LIST)
    assert streams(levels) == ([1, 0, 1, 1, 1], [0, 1, 3, 2, 0])
    assert levels.num_visible() == 3
    assert levels.row_starts().tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize(
    ("rows", "kinds", "definition"),
    [
        ([[1], [2]], (ALL_VALID_ITEM, ALL_VALID_LIST), None),
        ([[1], []], (ALL_VALID_ITEM, EMPTYABLE_LIST), [0, 1]),
        ([[1], None], (ALL_VALID_ITEM, NULLABLE_LIST), [0, 1]),
        ([[None], None], (NULLABLE_ITEM, NULLABLE_LIST), [1, 2]),
        ([[None], None, []], (NULLABLE_ITEM, NULL_AND_EMPTY_LIST), [1, 2, 3]),
    ],
)
def test_layers_declare_only_needed_levels(
    rows: Any, kinds: tuple[int, ...], definition: list[int] | None
) -> None:
    """Levels that never occur would widen every stored level."""
    levels = levels_of_list(rows)
    assert levels.layers.kinds == kinds
    assert streams(levels)[1] == definition


def test_nested_lists_count_repetition_from_within() -> None:
    """This is the example of the specification."""
    # [{<0, 1>, <>, <2>}, {<3>}, {}], [], [{<4>}]
    levels = (
        LayerWriter(3)
        .lists(np.array([3, 0, 1]), None)
        .lists(np.array([3, 1, 0, 1]), None)
        .lists(np.array([2, 0, 1, 1, 1]), None)
        .items(None)
        .finish()
    )
    assert streams(levels) == ([3, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 0, 0, 2, 3, 0])


def test_a_null_struct_hides_its_fields() -> None:
    """The outer null wins, and lists below it have no items."""
    rows = np.array([True, False, True])
    struct = LayerWriter(3).items(rows)
    leaf = struct.items(np.array([False, False, True])).finish()
    assert streams(leaf) == (None, [1, 2, 0])
    a_list = struct.lists(np.array([1, 0, 0]), np.array([True, False, True])).items(None).finish()
    assert a_list.layers.kinds == (ALL_VALID_ITEM, NULL_AND_EMPTY_LIST, NULLABLE_ITEM)
    assert streams(a_list) == ([1, 1, 1], [0, 3, 2])


def test_levels_are_read_from_leaf_outwards() -> None:
    """Each layer consumes its levels before the next one is read."""
    reader = LayerReader(levels_of_list([[1, None], [], None, [2]]))
    items = reader.items()
    offsets, valid = reader.lists()
    assert items is not None
    assert valid is not None
    assert items.tolist() == [True, False, True]
    assert offsets.tolist() == [0, 2, 2, 2, 3]
    assert valid.tolist() == [True, True, False, True]


def test_lists_below_null_structs_are_null() -> None:
    """Arrow needs a validity for the list as well as for the struct."""
    layers = layers_of((ALL_VALID_ITEM, EMPTYABLE_LIST, NULLABLE_ITEM))
    levels = Levels(layers, np.array([1, 0, 1, 1], np.uint16), np.array([0, 0, 1, 2], np.uint16), 4)
    reader = LayerReader(checked_levels(levels))
    assert reader.items() is None
    offsets, lists = reader.lists()
    structs = reader.items()
    assert offsets.tolist() == [0, 2, 2, 2]
    assert lists is not None
    assert structs is not None
    assert lists.tolist() == [True, True, False]
    assert structs.tolist() == [True, True, False]


def test_pages_with_different_layers_are_joined() -> None:
    """Pages declare only the levels that they need, so levels must be renumbered."""
    parts = [levels_of_list(rows) for rows in ([[1]], [[], [2]], [None, [3, None]])]
    joined = join_levels(parts)
    reader = LayerReader(joined)
    items = reader.items()
    offsets, lists = reader.lists()
    assert items is not None
    assert lists is not None
    assert items.tolist() == [True, True, True, False]
    assert offsets.tolist() == [0, 1, 1, 2, 2, 4]
    assert lists.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("kinds", "repetition", "definition"),
    [
        ((NULLABLE_ITEM,), None, [0, 2]),  # a definition level that no layer has
        ((ALL_VALID_ITEM, ALL_VALID_LIST), [1, 2], None),  # a repetition level that none has
        ((ALL_VALID_ITEM, ALL_VALID_LIST), None, None),  # lists without repetition
        ((NULLABLE_ITEM, ALL_VALID_LIST), [1, 0], [0]),  # streams of different lengths
    ],
)
def test_undeclared_levels_are_corrupt(
    kinds: tuple[int, ...], repetition: list[int] | None, definition: list[int] | None
) -> None:
    """A level without a meaning must not read as a value."""
    levels = Levels(
        layers_of(kinds),
        None if repetition is None else np.array(repetition, np.uint16),
        None if definition is None else np.array(definition, np.uint16),
        2,
    )
    with pytest.raises(CorruptDataError):
        checked_levels(levels)


def test_null_levels_inside_lists_are_corrupt() -> None:
    """A null list has exactly one entry, so one inside of another list is a contradiction."""
    layers = layers_of((ALL_VALID_ITEM, NULLABLE_LIST))
    levels = Levels(layers, np.array([1, 0], np.uint16), np.array([0, 1], np.uint16), 2)
    reader = LayerReader(levels)
    reader.items()
    with pytest.raises(CorruptDataError, match="in the middle"):
        reader.lists()


def test_unknown_or_mismatched_layers_are_corrupt() -> None:
    """The layers of a page must be those of its field, or items would land in other lists."""
    with pytest.raises(CorruptDataError, match="unknown kind 9"):
        layers_of((ALL_VALID_ITEM, 9))
    with pytest.raises(CorruptDataError, match=r"\(item, list\), but its field has \(item\)"):
        check_layers(layers_of((ALL_VALID_ITEM, NULLABLE_LIST)), [False])


def test_many_items_need_a_large_list() -> None:
    """More than 32-bit offsets can count."""
    offsets = np.array([0, 2**31])
    assert arrow_offsets(offsets, wide=True).tolist() == [0, 2**31]
    with pytest.raises(InvalidInputError, match="read fewer rows"):
        arrow_offsets(offsets, wide=False)


@pytest.mark.floors
def test_levels_without_rows_have_no_lists() -> None:
    """Arrow needs one offset even for no lists."""
    offsets, valid = LayerReader(
        Levels(layers_of((ALL_VALID_ITEM, ALL_VALID_LIST)), None, None, 0)
    ).lists()
    assert pa.array(offsets).to_pylist() == [0]
    assert valid is None


def test_inconsistent_null_fixed_lists_are_corrupt() -> None:
    """The items of one list disagree on whether it is null."""
    layers = layers_of((NULLABLE_ITEM, NULLABLE_ITEM))
    for definition, says in [([0, 1, 2, 0], "do not agree"), ([0, 1, 2], "whole lists")]:
        levels = Levels(layers, None, np.array(definition, np.uint16), len(definition))
        reader = LayerReader(levels)
        reader.items()
        with pytest.raises(CorruptDataError, match=says):
            reader.fixed_size_lists(2)


def test_fixed_size_lists_share_their_nulls() -> None:
    """All items of a null list say which level is null."""
    layers = layers_of((NULLABLE_ITEM, NULLABLE_ITEM, NULLABLE_ITEM))
    levels = Levels(layers, None, np.array([0, 1, 2, 2, 3, 3], np.uint16), 6)
    reader = LayerReader(levels)
    for nulls, expected in [
        (reader.items(), [True, False, False, False, False, False]),
        (reader.fixed_size_lists(2), [True, False, False]),
        (reader.items(), [True, True, False]),
    ]:
        assert nulls is not None
        assert nulls.tolist() == expected
