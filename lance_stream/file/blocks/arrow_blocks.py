"""Converts data blocks to Arrow arrays and back: values without nulls and Arrow's buffers.

Blocks and arrays share their bytes if their layouts agree, as they do for nearly all
types: a block of 64-bit words is the value buffer of an int64, a timestamp or a double.

    FixedWidthBlock       bool (1 bit), all numbers, dates, times, decimals, fixed_size_binary
    VariableWidthBlock    string, binary and their large forms
    FixedSizeListBlock    fixed_size_list
    DictionaryBlock       any type; the dictionary type for a dictionary field
    StructBlock           structs that are one column
    ConstantBlock         any type

Nulls come from the levels, and `with_validity` adds them to finished arrays; only null items
inside of fixed-size lists come with the block.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Bytes, Mask
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.data_blocks import (
    INT32,
    INT64,
    ConstantBlock,
    DataBlock,
    DictionaryBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    Offsets,
    StructBlock,
    VariableWidthBlock,
    size_in_bytes,
)

MAX_OFFSET = 2**31 - 1
"""The largest of Arrow's 32-bit offsets."""

MAX_ARRAY_BYTES = 1 << 33
"""The maximum number of bytes to which repeated values may expand."""

_ALIGNMENT = 8
_HIGH_BITS = 0x8080808080808080


def array_from_block(block: DataBlock, arrow_type: pa.DataType) -> pa.Array:
    """Return a block's values as an Arrow array without nulls.

    Args:
        block: The values.
        arrow_type: Their type.

    Raises:
        CorruptDataError: The block does not fit the type, a string is not UTF-8, or an index
            points outside of its dictionary.
        InvalidInputError: The bytes of all strings do not fit into 32-bit offsets.
    """
    if isinstance(block, ConstantBlock):
        return _array_from_constant(block, arrow_type)
    if isinstance(block, DictionaryBlock):
        return _array_from_dictionary(block, arrow_type)
    if pa.types.is_dictionary(arrow_type):
        indices = array_from_block(block, arrow_type.index_type)
        raise CorruptDataError(
            f"a column of the type {arrow_type} has {len(indices)} indices, but no dictionary"
        )
    if isinstance(block, StructBlock):
        return _array_from_parts(block, arrow_type)
    if isinstance(block, FixedSizeListBlock):
        return _array_from_lists(block, arrow_type)
    if isinstance(block, VariableWidthBlock):
        return _array_from_strings(block, arrow_type)
    return _array_from_words(block, arrow_type)


def repeated(scalar: pa.Array, num_values: int) -> pa.Array:
    """Return an array with `num_values` copies of another array's only value.

    Raises:
        InvalidInputError: The values do not fit into one Arrow array.
    """
    arrow_type = scalar.type
    if is_variable_width(arrow_type):
        (size,) = np.diff(_offsets_of(scalar)).tolist()
        _check_offsets_fit(size * num_values, arrow_type)
    return scalar.take(pa.array(np.zeros(num_values, np.int32)))


def nulls(num_values: int, arrow_type: pa.DataType) -> pa.Array:
    """Return an array of nulls of a type.

    Raises:
        InvalidInputError: They do not fit into memory: null vectors take as much as others.
    """
    try:
        return pa.nulls(num_values, arrow_type)
    except pa.ArrowMemoryError:
        raise InvalidInputError(
            f"{num_values} nulls of {arrow_type} do not fit into memory; read fewer rows at a time"
        ) from None


def with_validity(array: pa.Array, valid: Mask | None) -> pa.Array:
    """Return an array without nulls, with some of its values set to null.

    Args:
        array: The values; their validity, if any, is replaced, but not that of child arrays.
        valid: (len(array),) which values are not null; None if all are.
    """
    if valid is None or pa.types.is_null(array.type):
        return array
    if len(valid) != len(array):
        raise CorruptDataError(f"{len(valid)} levels describe {len(array)} values")
    null_count = len(valid) - int(np.count_nonzero(valid))
    if null_count == 0:
        return array
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = _from_zero(array)
    if pa.types.is_dictionary(array.type):
        indices = array.indices
        return pa.DictionaryArray.from_arrays(
            pa.Array.from_buffers(
                indices.type, len(indices), [bitmap, indices.buffers()[1]], null_count
            ),
            array.dictionary,
            safe=False,
        )
    children = None
    buffers = array.buffers()
    if pa.types.is_fixed_size_list(array.type):
        children, buffers = [array.values], buffers[:1]
    elif pa.types.is_struct(array.type):
        children = [array.field(index) for index in range(array.type.num_fields)]
        buffers = buffers[:1]
    return pa.Array.from_buffers(
        array.type, len(array), [bitmap, *buffers[1:]], null_count, children=children
    )


def struct_array(
    arrow_type: pa.DataType, num_values: int, children: Sequence[pa.Array], valid: Mask | None
) -> pa.Array:
    """Return a struct array from its fields; `valid` as in `with_validity`."""
    _check_children(arrow_type, children)
    return pa.Array.from_buffers(arrow_type, num_values, [_bitmap(valid)], children=list(children))


def list_array(
    arrow_type: pa.DataType,
    offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    items: pa.Array,
    valid: Mask | None,
) -> pa.Array:
    """Return a list, large list or map array; `valid` as in `with_validity`."""
    _check_children(arrow_type, [items])
    return pa.Array.from_buffers(
        arrow_type,
        len(offsets) - 1,
        [_bitmap(valid), pa.py_buffer(offsets)],
        children=[items],
    )


def fixed_size_list_array(arrow_type: pa.DataType, items: pa.Array, valid: Mask | None) -> pa.Array:
    """Return a fixed-size list array; `valid` as in `with_validity`."""
    _check_children(arrow_type, [items])
    return pa.Array.from_buffers(
        arrow_type, len(items) // arrow_type.list_size, [_bitmap(valid)], children=[items]
    )


def _check_children(arrow_type: pa.DataType, children: Sequence[pa.Array]) -> None:
    """Check that child arrays have the types of a nested type, because Arrow would abort otherwise.

    Raises:
        CorruptDataError: They have other types.
    """
    for index, child in enumerate(children):
        target = arrow_type.field(index).type
        if child.type.id != target.id:
            raise CorruptDataError(f"expected values of {target}, but found {child.type}")


def is_list(arrow_type: pa.DataType) -> bool:
    """Return whether values of a type are lists of any length; a map is a list of its entries."""
    types = pa.types
    return bool(
        types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_map(arrow_type)
    )


def valid_mask(array: pa.Array) -> Mask | None:
    """Return which of an array's values are not null; None if none is null."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    if array.null_count == 0:
        return None
    bitmap = array.buffers()[0]
    return _bits(np.frombuffer(bitmap, np.uint8), array.offset, len(array)).view(np.bool_)


def block_from_array(array: pa.Array) -> DataBlock:
    """Return an array's values as a block; null values have a slot with arbitrary contents.

    Args:
        array: An array of any type without child fields, except a dictionary.

    Raises:
        UnsupportedFeatureError: The type has no block.
    """
    arrow_type, count, offset = array.type, len(array), array.offset
    if pa.types.is_fixed_size_list(arrow_type):
        items_per_value = arrow_type.list_size
        items = array.values.slice(offset * items_per_value, count * items_per_value)
        valid = valid_mask(items)
        return FixedSizeListBlock(
            items_per_value,
            block_from_array(items),
            None if valid is None else np.packbits(valid, bitorder="little"),
            count,
        )
    if pa.types.is_struct(arrow_type):
        return _parts_of(array)
    if is_variable_width(arrow_type):
        offsets = _offsets_of(array)
        data = array.buffers()[2]
        first, last = int(offsets[0]), int(offsets[-1])
        return VariableWidthBlock(
            count,
            offsets - offsets[0] if first else offsets,
            (np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8))[first:last],
        )
    bits = _bits_per_value(arrow_type)
    if bits is None:
        raise UnsupportedFeatureError(f"values of the type {arrow_type} cannot be stored")
    stored = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    if bits == 1:
        if offset % 8:
            return FixedWidthBlock(
                1, count, np.packbits(_bits(stored, offset, count), bitorder="little")
            )
        return FixedWidthBlock(1, count, stored[offset // 8 :][: size_in_bytes(count, 1)])
    width = bits // 8
    return FixedWidthBlock(bits, count, stored[offset * width : (offset + count) * width])


def _parts_of(array: pa.Array) -> StructBlock:
    """Return packed structs; those that are not null have no null field."""
    valid = valid_mask(array)
    parts = []
    for index, part in enumerate(array.type):
        values = array.field(index)
        missing = valid_mask(values)
        if missing is not None and not bool((missing if valid is None else missing[valid]).all()):
            raise InvalidInputError(
                f"the part {part.name!r} of a packed struct is null, which the format does not "
                "support; make the whole struct null or remove the metadata 'lance-encoding:packed'"
            )
        parts.append(block_from_array(values))
    return StructBlock(tuple(parts), len(array))


def is_variable_width(arrow_type: pa.DataType) -> bool:
    """Return whether values of a type are byte strings."""
    return arrow_type in _VARIABLE_TYPES


_VARIABLE_TYPES = frozenset({pa.string(), pa.binary(), pa.large_string(), pa.large_binary()})
_LARGE_TYPES = frozenset({pa.large_string(), pa.large_binary()})
_TEXT_TYPES = frozenset({pa.string(), pa.large_string()})


def _array_from_words(block: FixedWidthBlock, arrow_type: pa.DataType) -> pa.Array:
    bits = _bits_per_value(arrow_type)
    data = block.data
    if bits == 1 and block.bits_per_value == 8:
        # Full-zip pages store a boolean in a byte.
        data = np.packbits(data[: block.num_values] != 0, bitorder="little")
    elif bits != block.bits_per_value:
        raise CorruptDataError(
            f"values of {block.bits_per_value} bits are stored in a column of the type {arrow_type}"
        )
    size_bytes = size_in_bytes(block.num_values, bits)
    if len(data) < size_bytes:
        raise CorruptDataError(
            f"{block.num_values} values of the type {arrow_type} need {size_bytes} bytes, "
            f"but there are {len(data)}"
        )
    words = _aligned(data, bits // 8 if bits in (8, 16, 32) else _ALIGNMENT)
    return pa.Array.from_buffers(arrow_type, block.num_values, [None, pa.py_buffer(words)], 0)


def _array_from_strings(block: VariableWidthBlock, arrow_type: pa.DataType) -> pa.Array:
    if not is_variable_width(arrow_type):
        raise CorruptDataError(f"byte strings are stored in a column of the type {arrow_type}")
    offsets, data = block.offsets, block.data
    total = int(offsets[-1]) if len(offsets) else 0
    _check_offsets_fit(total, arrow_type)
    if arrow_type in _TEXT_TYPES:
        check_text(offsets, data)
    width = np.int64 if arrow_type in _LARGE_TYPES else np.int32
    positions = _aligned(np.ascontiguousarray(offsets, width).view(np.uint8))
    return pa.Array.from_buffers(
        arrow_type, block.num_values, [None, pa.py_buffer(positions), pa.py_buffer(data)], 0
    )


def _array_from_parts(block: StructBlock, arrow_type: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(arrow_type) or len(block.parts) != arrow_type.num_fields:
        raise CorruptDataError(
            f"structs of {len(block.parts)} parts are stored in a column of the type {arrow_type}"
        )
    children = [
        array_from_block(part, arrow_field.type)
        for part, arrow_field in zip(block.parts, arrow_type, strict=True)
    ]
    return pa.Array.from_buffers(arrow_type, block.num_values, [None], 0, children=children)


def _array_from_lists(block: FixedSizeListBlock, arrow_type: pa.DataType) -> pa.Array:
    if not pa.types.is_fixed_size_list(arrow_type) or block.items_per_value != arrow_type.list_size:
        raise CorruptDataError(
            f"lists of {block.items_per_value} items are stored in a column of the type "
            f"{arrow_type}"
        )
    items = array_from_block(block.items, arrow_type.value_type)
    num_items = block.num_values * block.items_per_value
    if len(items) != num_items:
        raise CorruptDataError(
            f"{block.num_values} lists need {num_items} items, but there are {len(items)}"
        )
    if block.validity is not None:
        if len(block.validity) < size_in_bytes(num_items, 1):
            raise CorruptDataError(f"the bitmap of {num_items} items is truncated")
        items = with_validity(items, _bits(block.validity, 0, num_items).view(np.bool_))
    return pa.Array.from_buffers(arrow_type, block.num_values, [None], 0, children=[items])


def _array_from_dictionary(block: DictionaryBlock, arrow_type: pa.DataType) -> pa.Array:
    indices = array_from_block(
        block.indices, pa.from_numpy_dtype(f"uint{block.indices.bits_per_value}")
    )
    value_type = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    return look_up(indices, array_from_block(block.items, value_type), arrow_type)


def look_up(
    indices: pa.Array, items: pa.Array, arrow_type: pa.DataType, valid: Mask | None = None
) -> pa.Array:
    """Return the items at some indices.

    Args:
        indices: Unsigned, without nulls.
        items: The distinct values.
        arrow_type: The result's type: the items' type, or a dictionary of them.
        valid: Which values are not null; None if all are. Indices of null values are arbitrary.

    Raises:
        CorruptDataError: An index points outside of the items.
        InvalidInputError: The values do not fit into one Arrow array.
    """
    positions = np.frombuffer(indices.buffers()[1] or b"", _numpy_dtype(indices.type))
    positions = positions[indices.offset : indices.offset + len(indices)]
    if len(positions) and int(positions.max()) >= len(items):
        outside = positions >= len(items)
        if valid is None or bool((outside & valid).any()):
            raise CorruptDataError(
                f"the index {positions.max()} points outside of a dictionary of {len(items)} items"
            )
        positions = np.where(outside, 0, positions).astype(positions.dtype)
    if pa.types.is_dictionary(arrow_type):
        index_type = arrow_type.index_type
        index_dtype = _numpy_dtype(index_type)
        if len(positions) and int(positions.max()) > np.iinfo(index_dtype).max:
            raise CorruptDataError(f"the index {positions.max()} does not fit into {index_type}")
        plain = array_from_numpy(positions.astype(index_dtype, copy=False), index_type)
        return pa.DictionaryArray.from_arrays(plain, items, safe=False)
    if len(items) == 0:
        return nulls(len(positions), arrow_type)
    if is_variable_width(arrow_type):
        sizes = np.diff(_offsets_of(items)).astype(np.int64)
        if len(positions) * int(sizes.max()) > MAX_OFFSET:
            counts = np.bincount(positions, minlength=len(items)).astype(np.int64)
            _check_offsets_fit(int(counts @ sizes), arrow_type)
    return items.take(pa.array(positions))


def array_from_numpy(values: npt.NDArray[np.generic], arrow_type: pa.DataType) -> pa.Array:
    """Return an array that shares the bytes of words."""
    data = np.ascontiguousarray(values).view(np.uint8)
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(_aligned(data))], 0)


def check_text(offsets: npt.NDArray[np.integer], data: Bytes) -> None:
    """Check that every string is UTF-8.

    Raises:
        CorruptDataError: A string is not UTF-8.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    text = data[first:last]
    if _is_ascii(text):
        return
    whole = pa.Array.from_buffers(
        pa.large_string(),
        1,
        [None, pa.py_buffer(np.array([0, len(text)], np.int64)), pa.py_buffer(text)],
    )
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        raise CorruptDataError("a string is not UTF-8") from None
    # All bytes together are UTF-8, but a character may be split between strings.
    starts = offsets[1:-1][offsets[1:-1] < last]
    if len(starts) and bool(((data[starts] & 0xC0) == 0x80).any()):
        raise CorruptDataError("a string is not UTF-8: it starts in the middle of a character")


def _is_ascii(text: Bytes) -> bool:
    whole = len(text) // 8 * 8
    words = text[:whole].view(np.uint64)
    if len(words) and int(np.bitwise_or.reduce(words)) & _HIGH_BITS:
        return False
    return not bool((text[whole:] & 0x80).any())


def _array_from_constant(block: ConstantBlock, arrow_type: pa.DataType) -> pa.Array:
    if block.value is None:
        return nulls(block.num_values, arrow_type)
    return repeated(scalar_from_bytes(block.value, arrow_type), block.num_values)


def scalar_from_bytes(value: bytes, arrow_type: pa.DataType) -> pa.Array:
    """Return an array of one value, given its Arrow value buffer.

    Raises:
        CorruptDataError: The bytes are not one value of the type.
    """
    if is_variable_width(arrow_type):
        block: DataBlock = VariableWidthBlock(
            1, np.array([0, len(value)], np.int64), np.frombuffer(value, np.uint8)
        )
        return array_from_block(block, arrow_type)
    bits = _bits_per_value(arrow_type)
    if bits is None or len(value) != size_in_bytes(1, bits):
        raise CorruptDataError(f"one value of the type {arrow_type} cannot have {len(value)} bytes")
    return array_from_block(FixedWidthBlock(bits, 1, np.frombuffer(value, np.uint8)), arrow_type)


def _bits_per_value(arrow_type: pa.DataType) -> int | None:
    """Return the width of a type's values; None if their widths differ."""
    try:
        bits: int = arrow_type.bit_width
    except ValueError:
        return None
    return bits or None


def _numpy_dtype(integer: pa.DataType) -> np.dtype[np.integer]:
    dtype: np.dtype[np.integer] = np.dtype(integer.to_pandas_dtype())
    return dtype


def _offsets_of(array: pa.Array) -> Offsets:
    word = INT64 if array.type in _LARGE_TYPES else INT32
    if len(array) == 0:
        return np.zeros(1, word)
    return np.frombuffer(array.buffers()[1], word)[array.offset : array.offset + len(array) + 1]


def _check_offsets_fit(num_bytes: int, arrow_type: pa.DataType) -> None:
    if num_bytes > (MAX_ARRAY_BYTES if arrow_type in _LARGE_TYPES else MAX_OFFSET):
        raise InvalidInputError(
            f"{num_bytes} bytes of values of the type {arrow_type} do not fit into one Arrow "
            "array; read fewer rows at a time"
        )


def _from_zero(array: pa.Array) -> pa.Array:
    """Return an array whose buffers start at its first value."""
    offset, count = array.offset, len(array)
    if offset == 0:
        return array
    arrow_type = array.type
    if pa.types.is_dictionary(arrow_type):
        return pa.DictionaryArray.from_arrays(
            _from_zero(array.indices), array.dictionary, safe=False
        )
    if pa.types.is_struct(arrow_type):
        parts = [array.field(index) for index in range(arrow_type.num_fields)]
        return pa.Array.from_buffers(arrow_type, count, [None], 0, children=parts)
    block = block_from_array(array)
    if isinstance(block, FixedSizeListBlock):
        size = block.items_per_value
        items = array.values.slice(offset * size, count * size)
        return pa.Array.from_buffers(arrow_type, count, [None], 0, children=[items])
    if isinstance(block, VariableWidthBlock):
        return pa.Array.from_buffers(
            arrow_type, count, [None, pa.py_buffer(block.offsets), pa.py_buffer(block.data)], 0
        )
    return _array_from_words(block, arrow_type)  # type: ignore[arg-type]  # fixed width is what is left


def _bits(bitmap: Bytes, offset: int, count: int) -> npt.NDArray[np.uint8]:
    """Return (count,) bytes of 0 or 1, from bit `offset` on, least significant bit first."""
    first = offset // 8
    within = bitmap[first : (offset + count + 7) // 8]
    bits = np.unpackbits(within, bitorder="little")
    return bits[offset - first * 8 :][:count]


def _bitmap(valid: Mask | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _aligned(data: Bytes, alignment: int = _ALIGNMENT) -> Bytes:
    """Return the bytes, copied if they are not aligned to words."""
    return data if data.ctypes.data % alignment == 0 else data.copy()
