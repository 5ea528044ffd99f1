"""Rows of one top-level field, from the pages of its leaves.

All leaves are read in step, so that a struct of a hundred leaves takes as many rounds of requests
as one leaf. The levels of each leaf describe the structs and lists around it; arrays are built
from the leaves outwards, and properties that several leaves share are taken from the first of them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Mask
from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.arrow_blocks import (
    fixed_size_list_array,
    list_array,
    nulls,
    struct_array,
    with_validity,
)
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafColumn,
    LeafRows,
    RowSelection,
    as_range,
    last_of,
    spread,
)
from lance_stream.file.v2_1.layouts.levels import ALL_VALID_ITEM
from lance_stream.file.v2_1.layouts.nesting import MAX_ARROW_ROWS, LayerReader, arrow_offsets
from lance_stream.file.v2_1.layouts.pages import MAX_ROWS, PagesOfColumn
from lance_stream.schema.arrow_schemas import field_to_arrow, mixes_fixed_size_lists
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import (
    LIST_KINDS,
    MAP,
    STRUCT,
    fixed_size_list_length,
    is_fixed_size_list_of_structs,
)


def read_field(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], start: int, stop: int
) -> ByteRequests[pa.Array]:
    """Read the rows [start, stop) of a field.

    Args:
        field: A top-level field; without the children that are not requested.
        pages_of_leaf: The columns of its leaves, by field id. A missing leaf reads as
            nulls, if there is another column.
        start: First row, counted in the file.
        stop: One past the last.

    Returns:
        (stop - start,) values of the type that `field_to_arrow(field)` has.

    Raises:
        CorruptDataError: The bytes contradict themselves, or have fewer rows.
        UnsupportedFeatureError: A layout or codec is unknown; the message names it.
        InvalidInputError: There are too many rows for one Arrow array.
    """
    return _read(field, pages_of_leaf, range(start, stop))


def take_field(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], offsets: npt.NDArray[np.uint64]
) -> ByteRequests[pa.Array]:
    """Read scattered rows of a field.

    Args:
        field: As in `read_field`.
        pages_of_leaf: As in `read_field`.
        offsets: (num_rows,) u64 rows, counted in the file, ascending, without duplicates.

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

    def visit(part: Field, around: tuple[bool, ...], entries_per_row: int) -> None:
        if not part.is_leaf:
            kind = part.logical_type
            if is_fixed_size_list_of_structs(kind):
                entries_per_row *= fixed_size_list_length(kind)
            for child in part.children:
                visit(child, (_is_list(part), *around), entries_per_row)
        else:
            arrow_type = field_to_arrow(part).type
            leaves.append(LeafColumn(part.id, arrow_type, (False, *around), entries_per_row))

    visit(field, (), 1)
    return leaves


def _is_list(field: Field) -> bool:
    return field.logical_type in LIST_KINDS or field.logical_type == MAP


def _is_without_fields(field: Field) -> bool:
    return field.logical_type == STRUCT and not field.children


def _read(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], rows: RowSelection
) -> ByteRequests[pa.Array]:
    arrow_type = field_to_arrow(field).type
    if mixes_fixed_size_lists(field):
        raise UnsupportedFeatureError(
            "fixed-size lists of structs in lists or maps, or around them, are not supported"
        )
    if len(rows) == 0:
        return nulls(0, arrow_type)
    stored = [
        leaf_column for leaf_column in leaf_columns(field) if leaf_column.field_id in pages_of_leaf
    ]
    if not stored:
        raise CorruptDataError(f"the file has no column for the field {field.name!r}")
    leaves = []
    for leaf in stored:
        if pa.types.is_struct(leaf.arrow_type) and leaf.arrow_type.num_fields == 0:
            pages_of_leaf[leaf.field_id].check_without_fields()
        else:
            leaves.append(leaf)
    if not leaves:
        return _without_values(field, arrow_type, len(rows), pages_of_leaf)
    parts = yield from read_together(
        [
            pages_of_leaf[leaf.field_id].read(leaf, _entries(rows, leaf.entries_per_row))
            for leaf in leaves
        ]
    )
    rows_of_leaf = {leaf.field_id: part for leaf, part in zip(leaves, parts, strict=True)}
    assembled = _Assembly(pages_of_leaf, rows_of_leaf).assemble(field, arrow_type)
    if assembled is None or len(assembled.array) != len(rows):
        raise CorruptDataError(f"some of {len(rows)} rows of {field.name!r} are missing")
    return assembled.array


def _entries(rows: RowSelection, entries_per_row: int) -> RowSelection:
    """Return the rows of a leaf's pages that form some rows of the file."""
    if entries_per_row == 1:
        return rows
    if (last_of(rows) + 1) * entries_per_row > MAX_ROWS:
        raise CorruptDataError(f"a row claims to have {entries_per_row} items")
    if len(rows) * entries_per_row > MAX_ARROW_ROWS:
        raise InvalidInputError(
            f"{len(rows)} rows of {entries_per_row} items each do not fit into one Arrow array; "
            "read fewer rows at a time"
        )
    if isinstance(rows, range):
        return range(rows.start * entries_per_row, rows.stop * entries_per_row)
    return spread(rows * entries_per_row, (rows + 1) * entries_per_row)


def _without_values(
    field: Field,
    arrow_type: pa.DataType,
    count: int,
    pages_of_leaf: Mapping[int, PagesOfColumn],
) -> pa.Array:
    """Return a field if the file contains none of its leaves with values.

    Structs without fields are present if the file contains them; everything else is null.
    """
    if not any(leaf.id in pages_of_leaf for leaf in field.leaves()):
        return nulls(count, arrow_type)
    if _is_without_fields(field):
        return struct_array(arrow_type, count, [], None)
    if field.logical_type != STRUCT:
        raise UnsupportedFeatureError("lists of structs without fields are not supported")
    parts = [
        _without_values(child, arrow_type.field(index).type, count, pages_of_leaf)
        for index, child in enumerate(field.children)
    ]
    return struct_array(arrow_type, count, parts, None)


class _AssembledArray(NamedTuple):
    """An array, and the layers around it that are still to be read."""

    array: pa.Array
    layers: LayerReader


class _Assembly:
    """Assembles a field from the rows of its leaves.

    Args:
        pages_of_leaf: The columns of the file, by field id.
        rows_of_leaf: The rows that were read of those with values.
    """

    def __init__(
        self, pages_of_leaf: Mapping[int, PagesOfColumn], rows_of_leaf: Mapping[int, LeafRows]
    ) -> None:
        self._pages_of_leaf = pages_of_leaf
        self._rows_of_leaf = rows_of_leaf

    def assemble(self, field: Field, arrow_type: pa.DataType) -> _AssembledArray | None:
        """Return a field's values; None if none of its leaves was read."""
        if field.is_leaf:
            rows = self._rows_of_leaf.get(field.id)
            return None if rows is None else _assemble_leaf(field, rows)
        if field.logical_type == STRUCT:
            return self._assemble_struct(field, arrow_type)
        below = _entries_type(arrow_type)
        child = self.assemble(field.children[0], below)
        if child is None:
            return None
        if is_fixed_size_list_of_structs(field.logical_type):
            valid = child.layers.fixed_size_lists(arrow_type.list_size)
            array = fixed_size_list_array(arrow_type, child.array, valid)
            return _AssembledArray(array, child.layers)
        return _assemble_list(arrow_type, child)

    def _assemble_struct(self, field: Field, arrow_type: pa.DataType) -> _AssembledArray | None:
        children = [
            self.assemble(child, arrow_type.field(index).type)
            for index, child in enumerate(field.children)
        ]
        first = next((child for child in children if child is not None), None)
        if first is None:
            return None
        count = len(first.array)
        if any(child is not None and len(child.array) != count for child in children):
            raise CorruptDataError("the parts of a struct are not of one length")
        valid: Mask | None = first.layers.items()
        arrays = [
            _without_values(child_field, arrow_type.field(index).type, count, self._pages_of_leaf)
            if child is None
            else child.array
            for index, (child_field, child) in enumerate(zip(field.children, children, strict=True))
        ]
        return _AssembledArray(struct_array(arrow_type, count, arrays, valid), first.layers)


def _entries_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of a list's items; those of a map are structs of key and value."""
    if pa.types.is_map(arrow_type):
        return pa.struct([arrow_type.key_field, arrow_type.item_field])
    return arrow_type.value_type


def _assemble_leaf(field: Field, rows: LeafRows) -> _AssembledArray:
    layers = LayerReader(rows.levels)
    valid = layers.items()
    if not field.nullable and rows.levels.layers.kinds[0] == ALL_VALID_ITEM:
        # Only its parents are null: the field itself has no nulls.
        valid = None
    return _AssembledArray(with_validity(rows.values, valid), layers)


def _assemble_list(arrow_type: pa.DataType, child: _AssembledArray) -> _AssembledArray:
    if pa.types.is_map(arrow_type) and (child.array.null_count or child.array.field(0).null_count):
        raise CorruptDataError("an entry of a map, or its key, is null")
    positions, valid = child.layers.lists()
    offsets = arrow_offsets(positions, wide=pa.types.is_large_list(arrow_type))
    return _AssembledArray(list_array(arrow_type, offsets, child.array, valid), child.layers)
