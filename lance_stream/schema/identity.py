"""Column identity: which fields of two schemas are the same column, at every level of nesting.

A field's id identifies it only between a version and the one created from it, and an overwrite
assigns new ids. For the parts of a struct, or the columns of a table, in two such versions:

    the same id                              the same column, whatever its name
    a new id, and its name had another id    a column that was cast: the reference writes it under
    that is gone                             another id
    one new field and one gone, in the       a column that was cast and renamed at once
    same place, and all others unchanged
    the same name, if ids do not hold        the same column
    anything else                            a new column

Items of a list, and keys and values of a map, have no identity of their own: they belong to their
list or map.

Source: the ids that the reference assigns for each verb, read from its manifests.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import (
    LIST_KINDS,
    MAP,
    STRUCT,
    is_fixed_size_list_of_structs,
)

Ids: TypeAlias = Mapping[int, int]
"""For the ids of fields in one schema those of the same columns in another."""


def same_fields(before: Sequence[Field], after: Sequence[Field], *, ids_hold: bool) -> Ids:
    """Return the older schema's id of each column of the newer schema that both have.

    Args:
        before: Top-level columns.
        after: Top-level columns of the version created from it.
        ids_hold: Whether an id means the same column in both; otherwise names decide.
    """
    old_ids: dict[int, int] = {}
    _pair_siblings(before, after, old_ids, ids_hold=ids_hold)
    return old_ids


def composed(first: Ids, then: Ids) -> Ids:
    """Return the composition of two mappings."""
    return {start: then[middle] for start, middle in first.items() if middle in then}


def inverted(ids: Ids) -> Ids:
    """Return the inverse mapping."""
    return {there: here for here, there in ids.items()}


def is_list(field: Field) -> bool:
    """Return whether a field is a list whose items are a field below it."""
    kind = field.logical_type
    return kind in LIST_KINDS or is_fixed_size_list_of_structs(kind)


def _pair_siblings(
    before: Sequence[Field], after: Sequence[Field], old_ids: dict[int, int], *, ids_hold: bool
) -> None:
    pairs = _by_id(before, after) if ids_hold else {}
    _add_by_name(before, after, pairs)
    if ids_hold:
        _add_by_position(before, after, pairs)
    for index, older in pairs.items():
        _pair(older, after[index], old_ids, ids_hold=ids_hold)


def _by_id(before: Sequence[Field], after: Sequence[Field]) -> dict[int, Field]:
    """Return the older fields by the positions of the newer ones that have their ids."""
    by_id = {field.id: field for field in before}
    return {
        index: older
        for index, field in enumerate(after)
        if (older := by_id.get(field.id)) is not None
        and (older.name == field.name or _are_of_one_kind(older, field))
    }


def _add_by_name(before: Sequence[Field], after: Sequence[Field], pairs: dict[int, Field]) -> None:
    paired = {pair.id for pair in pairs.values()}
    by_name = {field.name: field for field in before if field.id not in paired}
    for index, field in enumerate(after):
        if index not in pairs and field.name in by_name:
            pairs[index] = by_name.pop(field.name)


def _add_by_position(
    before: Sequence[Field], after: Sequence[Field], pairs: dict[int, Field]
) -> None:
    if len(before) == len(after) == len(pairs) + 1:
        (index,) = set(range(len(after))) - pairs.keys()
        if before[index].id not in {pair.id for pair in pairs.values()}:
            pairs[index] = before[index]


def _pair(older: Field, newer: Field, old_ids: dict[int, int], *, ids_hold: bool) -> None:
    old_ids[newer.id] = older.id
    if older.logical_type == newer.logical_type == STRUCT:
        _pair_siblings(older.children, newer.children, old_ids, ids_hold=ids_hold)
    elif is_list(older) and is_list(newer):
        _pair_by_position(older.children, newer.children, old_ids, ids_hold=ids_hold)
    elif older.logical_type == newer.logical_type == MAP:
        for entries, others in zip(older.children, newer.children, strict=False):
            old_ids[others.id] = entries.id
            _pair_by_position(entries.children, others.children, old_ids, ids_hold=ids_hold)


def _pair_by_position(
    before: Sequence[Field], after: Sequence[Field], old_ids: dict[int, int], *, ids_hold: bool
) -> None:
    for older, newer in zip(before, after, strict=False):
        _pair(older, newer, old_ids, ids_hold=ids_hold)


def _are_of_one_kind(one: Field, other: Field) -> bool:
    return one.logical_type == other.logical_type or (is_list(one) and is_list(other))
