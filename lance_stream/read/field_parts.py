"""Columns stored in parts: in several data files of a fragment, or partly missing.

A fragment's data files contain fields by id. After columns were added, replaced or dropped, the
parts of one struct may be in different files, and a part that was added without values is in no
file: it reads as nulls. `part_in` returns what one file has of a column; `assemble` rebuilds the
column.

If no file contains any requested part of a struct, another part still shows which structs are null
and how long lists are: `with_witnesses` adds it to the requested ones.

Source: table.proto, DataFile.fields; "Schema Evolution" in the table format.
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import CorruptDataError
from lance_stream.file.nested_arrays import items_of, with_items
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import MAP, STRUCT


class Part(NamedTuple):
    """What one data file has of a column: the field with the other children left out."""

    field: Field
    array: pa.Array


def with_witnesses(field: Field, whole: Field, field_ids: Container[int]) -> Field:
    """Return a column with one stored part added wherever no requested part is stored.

    Args:
        field: The column, its other children left out.
        whole: The column as in the table.
        field_ids: The ids of the fields that any file contains.
    """
    if field.is_leaf:
        return field
    whole_of = {child.id: child for child in whole.children}
    if any(leaf.id in field_ids for leaf in field.leaves()):
        children = tuple(
            with_witnesses(child, whole_of[child.id], field_ids) for child in field.children
        )
        if all(map(_is, children, field.children)):
            return field
        return replace(field, children=children)
    witness = _path_to_stored(whole, field_ids)
    return field if witness is None else _joined(field, witness)


def _path_to_stored(field: Field, field_ids: Container[int]) -> Field | None:
    """Return a field reduced to one stored leaf and its ancestors; None if no leaf is stored."""
    if field.is_leaf:
        return field if field.id in field_ids else None
    for child in field.children:
        path = _path_to_stored(child, field_ids)
        if path is not None:
            # a map is read as a whole
            return field if field.logical_type == MAP else replace(field, children=(path,))
    return None


def _joined(field: Field, path: Field) -> Field:
    (step,) = path.children
    child_ids = [child.id for child in field.children]
    if step.id not in child_ids:
        return replace(field, children=(*field.children, step))
    return replace(
        field,
        children=tuple(
            _joined(child, step) if child.id == step.id else child for child in field.children
        ),
    )


def part_in(field: Field, field_ids: Container[int]) -> Field | None:
    """Return the part of a column that a data file has, or None.

    Args:
        field: The column.
        field_ids: The ids of the fields in the file; files from version 2.1 on list leaves only.

    Raises:
        CorruptDataError: The file has a list without its items.
    """
    if field.is_leaf:
        return field if field.id in field_ids else None
    children = tuple(
        part for child in field.children if (part := part_in(child, field_ids)) is not None
    )
    if field.logical_type != STRUCT and field.id in field_ids and not children:
        item = field.children[0]
        if item.id not in field_ids:
            raise CorruptDataError(
                f"a data file has the lists of {field.name!r}, but not their items"
            )
    if len(children) == len(field.children) and all(map(_is, children, field.children)):
        return field
    return replace(field, children=children) if children else None


def assemble(field: Field, parts: Sequence[Part], num_rows: int) -> pa.Array:
    """Return a column built from its parts; anything missing is null.

    Args:
        field: The whole column.
        parts: What each file has, of `num_rows` rows each.
        num_rows: The number of rows.

    Raises:
        CorruptDataError: A non-nullable column is in no file; or several files contain something
            other than a struct, or a list whose lengths differ between them.
    """
    if len(parts) == 1 and parts[0].field == field:
        return parts[0].array
    arrow = field_to_arrow(field)
    if not parts:
        if not field.nullable and num_rows:
            raise CorruptDataError(
                f"column {field.name!r} must not be null, but no data file of the fragment has it"
            )
        return pa.nulls(num_rows, arrow.type)
    if pa.types.is_struct(arrow.type):
        return _assemble_struct(field, arrow.type, parts, num_rows)
    if len(parts) > 1 and (not field.children or field.logical_type == MAP):
        raise CorruptDataError(f"column {field.name!r} is in {len(parts)} files of one fragment")
    return _assemble_lists(field, arrow.type, parts)


def _is(one: object, other: object) -> bool:
    return one is other


def _assemble_struct(
    field: Field, arrow: pa.DataType, parts: Sequence[Part], num_rows: int
) -> pa.Array:
    children = []
    for child in field.children:
        parts_of_child = [
            Part(below, part.array.field(index))
            for part in parts
            for index, below in enumerate(part.field.children)
            if below.id == child.id
        ]
        children.append(assemble(child, parts_of_child, num_rows))
    first = parts[0].array
    mask = first.is_null() if first.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)


def _assemble_lists(field: Field, arrow: pa.DataType, parts: Sequence[Part]) -> pa.Array:
    """Return lists built from parts of their items; each part also has the list lengths."""
    first = parts[0].array
    if any(not _are_as_long(first, part.array) for part in parts[1:]):
        raise CorruptDataError(
            f"the lists of {field.name!r} are in {len(parts)} files of one fragment, which "
            "disagree on their lengths"
        )
    item_parts = [Part(part.field.children[0], items_of(part.array)) for part in parts]
    items = assemble(field.children[0], item_parts, len(item_parts[0].array))
    return with_items(arrow, first, items)


def _are_as_long(one: pa.Array, other: pa.Array) -> bool:
    if pa.types.is_fixed_size_list(one.type):
        return bool(one.is_null().equals(other.is_null()))
    starts, others = (pc.subtract(array.offsets, array.offsets[0]) for array in (one, other))
    return bool(starts.equals(others) and one.is_null().equals(other.is_null()))
