"""Column identity: which fields of two schemas are the same column, at every level of nesting.

A field's id identifies it only between a version and the version created from it, and an overwrite
assigns new ids. In two such versions, these rules apply to the columns of a table, and to the parts
of each struct:

    the same id                                the same column, whatever its name
    a new id, but the name of a removed id     a column that was cast: the reference writes it
                                               under another id
    one field added and one removed, at the    a column that was cast and renamed at once
    same position, all others unchanged
    the same name, if ids are not comparable   the same column
    anything else                              a new column

The items of a list, and the keys and values of a map, are identified by their list or map.

Source: the ids that the reference assigns for each verb, read from its manifests.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import (
    LIST_KINDS,
    MAP,
    STRUCT,
    is_fixed_size_list_of_structs,
)

Ids: TypeAlias = Mapping[int, int]
"""From the ids of fields in one schema to the ids of the same columns in another schema."""


def same_fields(before: Sequence[Field], after: Sequence[Field], *, ids_match: bool) -> Ids:
    """Return the ids of the columns that two versions share, from the newer to the older schema.

    Args:
        before: Top-level columns.
        after: Top-level columns of the version created from it.
        ids_match: Whether an id identifies the same column in both; otherwise, names do.
    """
    old_ids: dict[int, int] = {}
    _pair_siblings(before, after, old_ids, ids_match=ids_match)
    return old_ids


def composed(first: Ids, then: Ids) -> Ids:
    """Return the composition of two mappings."""
    return {start: then[middle] for start, middle in first.items() if middle in then}


def inverted(ids: Ids) -> Ids:
    """Return the inverse mapping."""
    return {value: key for key, value in ids.items()}


def with_items(ids: Ids, before: Sequence[Field], after: Sequence[Field]) -> Ids:
    """Return a mapping that includes the items of all lists, and the keys and values of all maps.

    A composition lacks them if a version between the two had a number in place of the list.

    Args:
        ids: From the newer to the older schema.
        before: Columns of the older schema.
        after: Columns of the newer schema.
    """
    older = {field.id: field for root in before for field in root.walk()}
    completed = dict(ids)
    for newer in (field for root in after for field in root.walk()):
        if newer.id in completed:
            for old_item, item in _paired_items(older[completed[newer.id]], newer):
                completed.setdefault(item.id, old_item.id)
    return completed


def is_list(field: Field) -> bool:
    """Return whether a field is a list whose items are a field below it."""
    kind = field.logical_type
    return kind in LIST_KINDS or is_fixed_size_list_of_structs(kind)


def _pair_siblings(
    before: Sequence[Field], after: Sequence[Field], old_ids: dict[int, int], *, ids_match: bool
) -> None:
    pairs = _by_id(before, after) if ids_match else {}
    _add_by_name(before, after, pairs)
    if ids_match:
        _add_by_position(before, after, pairs)
    for index, older in pairs.items():
        _pair(older, after[index], old_ids, ids_match=ids_match)


def _by_id(before: Sequence[Field], after: Sequence[Field]) -> dict[int, Field]:
    """Return the older fields by the positions of the newer fields with the same ids."""
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


def _pair(older: Field, newer: Field, old_ids: dict[int, int], *, ids_match: bool) -> None:
    old_ids[newer.id] = older.id
    if older.logical_type == newer.logical_type == STRUCT:
        _pair_siblings(older.children, newer.children, old_ids, ids_match=ids_match)
    for old_item, item in _paired_items(older, newer):
        _pair(old_item, item, old_ids, ids_match=ids_match)


def _paired_items(older: Field, newer: Field) -> Iterator[tuple[Field, Field]]:
    """Yield the items of two lists, or the entries, keys and values of two maps, in pairs."""
    if is_list(older) and is_list(newer):
        yield from zip(older.children, newer.children, strict=False)
    elif older.logical_type == newer.logical_type == MAP:
        for old_entries, entries in zip(older.children, newer.children, strict=False):
            yield old_entries, entries
            yield from zip(old_entries.children, entries.children, strict=False)


def _are_of_one_kind(one: Field, other: Field) -> bool:
    return one.logical_type == other.logical_type or (is_list(one) and is_list(other))
