"""Pages of the leaves of one top-level field, from its rows.

Rows are collected as they arrive and split into pages when there are enough; all leaves of the
field are split at the same rows. Encoding splits the field: structs and lists become levels, from
the outside inwards, and only the leaves' values remain.

Differs: A page declares nulls in structs above a list even if it has none. The reference does not,
         and cannot read a column some of whose pages declare them and others do not. If such a
         struct is in a list, the lists declare nulls and empty lists, too: it cannot read the
         struct's declaration without theirs, if one of them is empty.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Mask, Positions
from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.file.blocks.arrow_blocks import is_list, valid_mask, with_validity
from lance_stream.file.blocks.data_blocks import INT32, INT64
from lance_stream.file.encoding_options import parse_encoding_options
from lance_stream.file.metadata.columns import EncodedPage, pack_encoding
from lance_stream.file.v2_1.layouts.choosing.choose import encode_page
from lance_stream.file.v2_1.layouts.choosing.few_values import encode_few_values
from lance_stream.file.v2_1.layouts.constant import encode_null_page
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout
from lance_stream.file.v2_1.layouts.leaf_rows import spread
from lance_stream.file.v2_1.layouts.levels import NULLABLE_ITEM, Levels, layers_of
from lance_stream.file.v2_1.layouts.nesting import LayerWriter
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import LIST_KINDS, MAP

MAX_LEAF_BYTES = 1 << 28
"""Larger pieces of rows are split: a page has at most about this many bytes of a leaf."""


class FieldWriter:
    """Collects the rows of a top-level field until they form pages.

    Args:
        field: The field, with its children.
        version: 2.1 or 2.2.
        max_page_bytes: A page is encoded when there are about this many bytes of rows.
    """

    def __init__(self, field: Field, version: FileVersion, max_page_bytes: int) -> None:
        self._field = field
        self._version = version
        self._options = [parse_encoding_options(leaf, field) for leaf in field.leaves()]
        self._num_leaves = max(1, len(self._options))
        self._max_bytes = max_page_bytes * self._num_leaves
        self._arrays: list[pa.Array] = []
        self._num_bytes = 0
        self._first_row = 0

    def append(self, array: pa.Array) -> list[EncodedPage]:
        """Add rows, of exactly the field's Arrow type; return the pages that are full.

        The pages may refer to the array's buffers: they are not copied if avoidable.

        Raises:
            InvalidInputError: A value or a row is too large for the format.
            UnsupportedFeatureError: We do not write this type.
        """
        if len(array) == 0:
            return []
        self._arrays.append(array)
        self._num_bytes += array.nbytes
        return self._flush() if self._num_bytes >= self._max_bytes else []

    def finish(self) -> list[EncodedPage]:
        """Return the pages of the remaining rows.

        Raises:
            InvalidInputError: As in `append`.
            UnsupportedFeatureError: As in `append`.
        """
        return self._flush()

    def _flush(self) -> list[EncodedPage]:
        arrays, self._arrays = self._arrays, []
        num_rows, num_bytes = sum(len(array) for array in arrays), self._num_bytes
        self._num_bytes = 0
        pages = []
        max_rows = max(1, num_rows * MAX_LEAF_BYTES * self._num_leaves // max(num_bytes, 1))
        for array in _joined(arrays):
            for start in range(0, len(array), max_rows):
                rows = array.slice(start, max_rows)
                try:
                    pages += self._encode(rows, self._first_row)
                except LanceStreamError as error:
                    error.add_note(f"column: {self._field.name!r}")
                    raise
                self._first_row += len(rows)
        return pages

    def _encode(self, rows: pa.Array, first_row: int) -> list[EncodedPage]:
        few = encode_few_values(rows, self._version, self._options[0]) if self._options else None
        if few is not None:
            return [EncodedPage(0, few.buffers, len(rows), few.encoding, first_row)]
        pages = []
        for column, leaf in enumerate(_leaves(rows, self._field, LayerWriter(len(rows)), None)):
            if pa.types.is_struct(leaf.values.type) and leaf.values.type.num_fields == 0:
                encoded: EncodedLayout | None = _encode_without_fields(leaf.levels)
            else:
                encoded = encode_page(
                    leaf.levels, leaf.values, leaf.valid, self._version, self._options[column]
                )
            if encoded is None:
                return self._encode_halves(rows, first_row)
            pages.append(
                EncodedPage(
                    column=column,
                    buffers=encoded.buffers,
                    length=leaf.levels.num_rows(),
                    encoding=pack_encoding(encoded.message),
                    first_row=first_row,
                )
            )
        return pages

    def _encode_halves(self, rows: pa.Array, first_row: int) -> list[EncodedPage]:
        """Encode rows with too many empty lists or nulls between two values of a dictionary."""
        half = len(rows) // 2
        if half == 0:
            raise InvalidInputError(
                f"row {first_row} has more than 65,535 empty lists or nulls between two values of "
                "a dictionary; the format does not support that"
            )
        return self._encode(rows.slice(0, half), first_row) + self._encode(
            rows.slice(half), first_row + half
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    levels: Levels
    values: pa.Array
    valid: Mask | None


def _joined(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Return as few arrays as possible: dictionaries cannot always be combined."""
    if len(arrays) <= 1:
        return arrays
    try:
        return [pa.concat_arrays(arrays)]
    except pa.ArrowInvalid:
        return arrays


def _encode_without_fields(levels: Levels) -> EncodedLayout:
    """Encode structs without fields: a page without buffers, and without information about parents.

    Raises:
        InvalidInputError: One is null, or is in a null or in a list: no page can represent that.
    """
    if levels.repetition is not None or levels.definition is not None:
        raise InvalidInputError(
            "structs without fields can neither be null nor be in a null or a list; add a field "
            "to them"
        )
    bare = replace(levels, layers=layers_of((NULLABLE_ITEM,)))
    return encode_null_page(bare, packs_levels=False)


def _leaves(
    array: pa.Array, field: Field, layers: LayerWriter, is_under_null: Mask | None
) -> Iterator[_Leaf]:
    """Yield the leaves of an array, depth first.

    Args:
        array: The values of a field.
        field: The field.
        layers: The layers around it.
        is_under_null: Which values are under a null; None if none is.
    """
    arrow_type, valid = array.type, valid_mask(array)
    if pa.types.is_dictionary(arrow_type):
        valid = _valid_indices(array, valid)
    is_absent = _either(is_under_null, valid)
    # The contents of nulls are nulls of each layer: the reference reads a part of a struct alone.
    valid = None if is_absent is None else ~is_absent
    if field.is_packed:
        values = array if valid is None else with_validity(array, valid)
        yield _Leaf(layers.items(valid).finish(), values, valid)
    elif pa.types.is_struct(arrow_type) and arrow_type.num_fields:
        for index, part in enumerate(field.children):
            # the entries of a map are in a list and never null
            is_declared = _has_lists(part) and (field.nullable or not layers.has_lists)
            around = layers.items(valid, declares_nulls=is_declared)
            yield from _leaves(array.field(index), part, around, is_absent)
    elif pa.types.is_fixed_size_list(arrow_type) and pa.types.is_struct(arrow_type.value_type):
        size = arrow_type.list_size
        items = array.values.slice(array.offset * size, len(array) * size)
        yield from _leaves(
            items,
            field.children[0],
            layers.fixed_size_lists(size, valid),
            None if is_absent is None else np.repeat(is_absent, size),
        )
    elif is_list(arrow_type):
        yield from _leaves_of_list(array, field.children[0], layers, valid)
    else:
        yield _Leaf(layers.items(valid).finish(), array, valid)


def _has_lists(field: Field) -> bool:
    """Return whether a field is a list or a map, or has one below."""
    return any(
        descendant.logical_type in LIST_KINDS or descendant.logical_type == MAP
        for descendant in field.walk()
    )


def _leaves_of_list(
    array: pa.Array, item: Field, layers: LayerWriter, valid: Mask | None
) -> Iterator[_Leaf]:
    offsets = _list_offsets(array)
    lengths = np.diff(offsets)
    if valid is not None:
        lengths[~valid] = 0
    num_items = int(lengths.sum())
    if num_items == offsets[-1] - offsets[0]:
        items = array.values.slice(int(offsets[0]), num_items)
    else:
        # The contents of null lists are arbitrary.
        items = _from_start(array.values).take(
            pa.array(spread(offsets[:-1], offsets[:-1] + lengths))
        )
    yield from _leaves(items, item, layers.lists(lengths, valid), None)


def _list_offsets(array: pa.Array) -> Positions:
    if len(array) == 0:
        return np.zeros(1, np.int64)  # Arrow allows an empty array without offsets.
    word = INT64 if pa.types.is_large_list(array.type) else INT32
    stored = np.frombuffer(array.buffers()[1], word)[array.offset :][: len(array) + 1]
    return stored.astype(np.int64)


def _from_start(array: pa.Array) -> pa.Array:
    """Return an array on which Arrow's take is correct; on slices of nested vectors it is not."""
    if array.offset and pa.types.is_fixed_size_list(array.type):
        return pa.concat_arrays([array])
    return array


def _either(is_under_null: Mask | None, valid: Mask | None) -> Mask | None:
    if valid is None:
        return is_under_null
    return ~valid if is_under_null is None else is_under_null | ~valid


def _valid_indices(array: pa.Array, valid: Mask | None) -> Mask | None:
    """Return which indices are not null: null items of the dictionary are nulls, too."""
    of_items = valid_mask(array.dictionary)
    if of_items is None:
        return valid
    indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
    is_valid: Mask = of_items[indices]
    return is_valid if valid is None else valid & is_valid
