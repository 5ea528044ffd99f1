"""Columns in parts: stored in several data files of a fragment, or missing in part.

A fragment's data files contain fields by id. After columns have been added, replaced or dropped,
the fields of one struct may be in different files. A field that was added without values is in no
file and is read as nulls. `part_in_file` returns the fields of a column that one file contains;
`assemble` rebuilds the column.

If no file contains a requested field of a struct, another of its fields is read, because it shows
which structs are null and how long lists are: `with_structure` adds it to the requested fields.

Source: table.proto, DataFile.fields; "Schema Evolution" in the table format.
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from operator import is_
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import CorruptDataError
from lance_stream.file.nested_arrays import items_of, with_items
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import MAP, STRUCT


class FilePart(NamedTuple):
    """The part of a column that one data file contains: the field without its other children."""

    field: Field
    array: pa.Array


def with_structure(field: Field, whole: Field, field_ids: Container[int]) -> Field:
    """Return a column with one stored leaf added wherever no requested leaf is stored.

    Args:
        field: The column, with the requested children only.
        whole: The column as in the table.
        field_ids: The ids of the fields in all files together.
    """
    if field.is_leaf:
        return field
    whole_children = {child.id: child for child in whole.children}
    if any(leaf.id in field_ids for leaf in field.leaves()):
        children = tuple(
            with_structure(child, whole_children[child.id], field_ids) for child in field.children
        )
        if all(map(is_, children, field.children)):
            return field
        return replace(field, children=children)
    stored_leaf = _path_to_stored(whole, field_ids)
    return field if stored_leaf is None else _with_path(field, stored_leaf)


def _path_to_stored(field: Field, field_ids: Container[int]) -> Field | None:
    """Return a field reduced to one stored leaf and its ancestors; None if no leaf is stored."""
    if field.is_leaf:
        return field if field.id in field_ids else None
    for child in field.children:
        path = _path_to_stored(child, field_ids)
        if path is not None:
            # Maps are read as a whole.
            return field if field.logical_type == MAP else replace(field, children=(path,))
    return None


def _with_path(field: Field, path: Field) -> Field:
    """Return a field with the descendants of `path`, the same field with one child per level."""
    (step,) = path.children
    child_ids = [child.id for child in field.children]
    if step.id not in child_ids:
        return replace(field, children=(*field.children, step))
    return replace(
        field,
        children=tuple(
            _with_path(child, step) if child.id == step.id else child for child in field.children
        ),
    )


def part_in_file(field: Field, field_ids: Container[int]) -> Field | None:
    """Return the part of a column that a data file contains; None if it contains none.

    Args:
        field: The column.
        field_ids: The ids of the fields in the file; from file version 2.1 on, leaves only.

    Raises:
        CorruptDataError: The file has a list without its items.
    """
    if field.is_leaf:
        return field if field.id in field_ids else None
    children = tuple(
        part for child in field.children if (part := part_in_file(child, field_ids)) is not None
    )
    if field.logical_type != STRUCT and field.id in field_ids and not children:
        item = field.children[0]
        if item.id not in field_ids:
            raise CorruptDataError(
                f"a data file contains the lists of {field.name!r}, but not their items"
            )
    if len(children) == len(field.children) and all(map(is_, children, field.children)):
        return field
    return replace(field, children=children) if children else None


def assemble(field: Field, parts: Sequence[FilePart], num_rows: int) -> pa.Array:
    """Build a column from its parts; missing fields become null.

    Args:
        field: The whole column.
        parts: The part in each file, with `num_rows` rows.
        num_rows: The number of rows.

    Raises:
        CorruptDataError: No file contains a non-nullable column; several files contain the same
            leaf; or the lengths of lists differ between files.
    """
    if len(parts) == 1 and parts[0].field == field:
        return parts[0].array
    arrow = field_to_arrow(field)
    if not parts:
        if not field.nullable and num_rows:
            raise CorruptDataError(
                f"column {field.name!r} must not be null, but no data file of the fragment "
                "contains it"
            )
        return pa.nulls(num_rows, arrow.type)
    if pa.types.is_struct(arrow.type):
        return _assemble_struct(field, arrow.type, parts, num_rows)
    if len(parts) > 1 and (not field.children or field.logical_type == MAP):
        raise CorruptDataError(f"column {field.name!r} is in {len(parts)} files of one fragment")
    return _assemble_lists(field, arrow.type, parts)


def _assemble_struct(
    field: Field, arrow: pa.DataType, parts: Sequence[FilePart], num_rows: int
) -> pa.Array:
    children = []
    for child in field.children:
        parts_of_child = [
            FilePart(below, part.array.field(index))
            for part in parts
            for index, below in enumerate(part.field.children)
            if below.id == child.id
        ]
        children.append(assemble(child, parts_of_child, num_rows))
    first = parts[0].array
    mask = first.is_null() if first.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)


def _assemble_lists(field: Field, arrow: pa.DataType, parts: Sequence[FilePart]) -> pa.Array:
    """Build lists from parts of their items; each part also has the lengths of the lists."""
    first = parts[0].array
    if any(not _have_same_lengths(first, part.array) for part in parts[1:]):
        raise CorruptDataError(
            f"the lists of {field.name!r} are in {len(parts)} files of one fragment, with "
            "different lengths"
        )
    item_parts = [FilePart(part.field.children[0], items_of(part.array)) for part in parts]
    items = assemble(field.children[0], item_parts, len(item_parts[0].array))
    return with_items(arrow, first, items)


def _have_same_lengths(one: pa.Array, other: pa.Array) -> bool:
    if pa.types.is_fixed_size_list(one.type):
        return bool(one.is_null().equals(other.is_null()))
    # Slices have offsets that start at any number.
    starts, other_starts = (pc.subtract(array.offsets, array.offsets[0]) for array in (one, other))
    return bool(starts.equals(other_starts) and one.is_null().equals(other.is_null()))
