"""Rows of one top-level field, from the pages of its leaves.

All leaves are read in step, so that a struct of a hundred leaves costs as many rounds of requests
as one leaf. Each leaf knows by its levels the structs and lists around it; the arrays are put
together from the leaves outwards, and what several leaves know is taken from the first of them.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import Asking, together
from lance_stream.errors import CorruptDataError
from lance_stream.file.arrow_blocks import list_array, nulls, struct_array, with_validity
from lance_stream.file.levels import ALL_VALID_ITEM, LayerReader, Mask, arrow_offsets
from lance_stream.file.structural.leaf_rows import (
    LeafColumn,
    LeafRows,
    RowsAsked,
    as_range,
)
from lance_stream.file.structural.pages import PagesOfColumn
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.logical_types import STRUCT


def read_field(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], start: int, stop: int
) -> Asking[pa.Array]:
    """Read the rows [start, stop) of a field.

    Args:
        field: A top-level field; children that are not asked for are left out of it.
        pages_of_leaf: The columns of its leaves, by field id. A leaf that is not there reads as
            nulls, as long as another one is.
        start: First row, counted in the file.
        stop: One past the last.

    Returns:
        (stop - start,) values of the type that `field_to_arrow(field)` has.

    Raises:
        CorruptDataError: The bytes contradict themselves, or have fewer rows.
        UnsupportedFeatureError: A layout or codec that we do not know, by name.
        InvalidInputError: So many rows do not fit into one Arrow array.
    """
    return _read(field, pages_of_leaf, range(start, stop))


def take_field(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], offsets: npt.NDArray[np.uint64]
) -> Asking[pa.Array]:
    """Read rows of a field that lie anywhere.

    Args:
        field: As in `read_field`.
        pages_of_leaf: As in `read_field`.
        offsets: (num_rows,) u64 rows, counted in the file, ascending, each once.

    Returns:
        (num_rows,) values, in the order of the offsets.

    Raises:
        CorruptDataError: As in `read_field`.
        UnsupportedFeatureError: As in `read_field`.
        InvalidInputError: As in `read_field`.
    """
    return _read(field, pages_of_leaf, as_range(offsets.astype(np.int64)))


def leaf_columns(field: Field) -> list[LeafColumn]:
    """Return the leaves of a top-level field, in the order of their columns."""
    leaves: list[LeafColumn] = []

    def visit(each: Field, around: tuple[bool, ...]) -> None:
        is_list = _is_list(each)
        if each.children:
            for child in each.children:
                visit(child, (is_list, *around))
        else:
            leaves.append(LeafColumn(each.id, field_to_arrow(each).type, (False, *around)))

    visit(field, ())
    return leaves


def _is_list(field: Field) -> bool:
    return bool(field.children) and field.logical_type != STRUCT


def _read(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], rows: RowsAsked
) -> Asking[pa.Array]:
    arrow_type = field_to_arrow(field).type
    if len(rows) == 0:
        return nulls(0, arrow_type)
    leaves = [each for each in leaf_columns(field) if each.field_id in pages_of_leaf]
    if not leaves:
        raise CorruptDataError(f"no column of the file holds the field {field.name!r}")
    parts = yield from together([pages_of_leaf[each.field_id].read(each, rows) for each in leaves])
    rows_of_leaf = {each.field_id: part for each, part in zip(leaves, parts, strict=True)}
    assembled = _assemble(field, arrow_type, rows_of_leaf)
    if assembled is None or len(assembled.array) != len(rows):
        raise CorruptDataError(f"{len(rows)} rows of {field.name!r} are not all there")
    return assembled.array


class _Assembled:
    """An array, and the layers around it that are still to be read."""

    def __init__(self, array: pa.Array, layers: LayerReader) -> None:
        self.array = array
        self.layers = layers


def _assemble(
    field: Field, arrow_type: pa.DataType, rows_of_leaf: Mapping[int, LeafRows]
) -> _Assembled | None:
    """Put a field together; None if it has no leaf in the file."""
    if not field.children:
        rows = rows_of_leaf.get(field.id)
        return None if rows is None else _assemble_leaf(field, arrow_type, rows)
    if _is_list(field):
        child = _assemble(field.children[0], arrow_type.value_type, rows_of_leaf)
        return None if child is None else _assemble_list(arrow_type, child)
    return _assemble_struct(
        arrow_type,
        [
            _assemble(each, arrow_type.field(place).type, rows_of_leaf)
            for place, each in enumerate(field.children)
        ],
    )


def _assemble_leaf(field: Field, arrow_type: pa.DataType, rows: LeafRows) -> _Assembled:
    layers = LayerReader(rows.levels)
    valid = layers.items()
    if pa.types.is_struct(arrow_type):
        # A struct without fields: its page is there only so that there is one.
        return _Assembled(struct_array(arrow_type, len(rows.values), [], None), layers)
    if not field.nullable and rows.levels.layers.kinds[0] == ALL_VALID_ITEM:
        # Only what stands around it is null: the field's promise holds.
        valid = None
    return _Assembled(with_validity(rows.values, valid), layers)


def _assemble_list(arrow_type: pa.DataType, child: _Assembled) -> _Assembled:
    places, valid = child.layers.lists()
    offsets = arrow_offsets(places, wide=pa.types.is_large_list(arrow_type))
    return _Assembled(list_array(arrow_type, offsets, child.array, valid), child.layers)


def _assemble_struct(
    arrow_type: pa.DataType, children: list[_Assembled | None]
) -> _Assembled | None:
    present = [each for each in children if each is not None]
    if not present:
        return None
    first = present[0]
    count = len(first.array)
    if any(len(each.array) != count for each in present):
        raise CorruptDataError("the parts of a struct are not of one length")
    valid: Mask | None = first.layers.items()
    arrays = [
        nulls(count, arrow_type.field(place).type) if each is None else each.array
        for place, each in enumerate(children)
    ]
    return _Assembled(struct_array(arrow_type, count, arrays, valid), first.layers)
