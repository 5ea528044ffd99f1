"""Converts one version's values to the feed's columns, which may differ in type or shape.

A column keeps its identity when it is cast, or when its table is overwritten with another type.
A value that the feed's type can represent exactly is converted; any other value becomes null.
Columns that the version does not have are null, too.

    struct            field by field, matched by identity; a null struct stays null
    list, any kind    item by item; null if the length differs from the feed's fixed size
    map               entry by entry; null if the feed's type cannot represent a key
    number            the same number, also between floats and integers
    decimal           the same number at another precision or scale
    text, bytes       in another layout; fixed-size bytes if the length matches
    date, timestamp   the same moment in another unit; never between types with and without a zone
    time, duration    the same in another unit
    anything else     null

No value raises an error: history cannot be changed, and a reader must get past it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Mask
from lance_stream.schema.types.logical_types import is_list_type

_DIGITS_OF_64_BITS: Final = 20


@dataclass(frozen=True)
class ValueSource:
    """The source of a column of the feed, or of a nested field.

    Attributes:
        index: The index among the columns, or fields of a struct, that are read.
        parts: The source of each field of a struct, of the items of a list, or of the keys and
            values of a map; None for nulls.
        is_whole: Whether all nested fields that are read are used, in the same order.
    """

    index: int
    parts: tuple["ValueSource | None", ...] = ()
    is_whole: bool = True


def convert(array: pa.Array, source: ValueSource, target: pa.DataType) -> pa.Array:
    """Convert stored values to a column of the feed.

    Args:
        array: The stored values.
        source: Which nested field becomes which.
        target: The type of the feed's column.
    """
    if source.is_whole and array.type.equals(target):
        return array
    if isinstance(array, pa.ExtensionArray):
        return convert(array.storage, source, target)
    rule = next((rule for accepts, rule in _NESTED_RULES if accepts(target)), _convert_leaf)
    return rule(array, source, target)


def _convert_struct(array: pa.Array, source: ValueSource, target: pa.StructType) -> pa.Array:
    if not pa.types.is_struct(array.type):
        return pa.nulls(len(array), target)
    if not target.num_fields:
        bitmap = array.is_valid().buffers()[1] if array.null_count else None
        return pa.Array.from_buffers(target, len(array), [bitmap])
    parts = [
        pa.nulls(len(array), field.type)
        if part is None
        else convert(array.field(part.index), part, field.type)
        for field, part in zip(target, source.parts, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=_nulls_of(array))


def _convert_list(array: pa.Array, source: ValueSource, target: Any) -> pa.Array:
    if not is_list_type(array.type):
        return pa.nulls(len(array), target)
    is_null = np.asarray(array.is_null())
    lengths = np.where(is_null, 0, _list_lengths(array))
    items = _converted_items(array.flatten(), source, target.value_type)
    if not pa.types.is_fixed_size_list(target):
        kind = pa.ListArray if pa.types.is_list(target) else pa.LargeListArray
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
        plain = kind.from_arrays(offsets, items, type=target)
        return _with_nulls(plain, is_null, [plain.buffers()[1]], [plain.values])
    is_null = is_null | (lengths != target.list_size)
    if is_null.all():
        return pa.nulls(len(array), target)
    # A fixed-size list has items for null lists as well: their indices are null.
    starts = np.cumsum(lengths) - lengths
    indices = starts[:, None] + np.arange(target.list_size)
    item_indices = pa.array(
        np.where(is_null[:, None], 0, indices).ravel(),
        mask=np.repeat(is_null, target.list_size),
    )
    return pa.FixedSizeListArray.from_arrays(
        items.take(item_indices), type=target, mask=pa.array(is_null) if is_null.any() else None
    )


def _list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    offsets: npt.NDArray[np.int64] = array.offsets.to_numpy(zero_copy_only=False)
    return (offsets[1:] - offsets[:-1]).astype(np.int64)


def _converted_items(items: pa.Array, source: ValueSource, target: pa.DataType) -> pa.Array:
    part = source.parts[0] if source.parts else ValueSource(0)
    return pa.nulls(len(items), target) if part is None else convert(items, part, target)


def _convert_map(array: pa.Array, source: ValueSource, target: pa.MapType) -> pa.Array:
    if not pa.types.is_map(array.type):
        return pa.nulls(len(array), target)
    keys, values = _entries_of(array, source, target)
    if keys.null_count:  # a key cannot be null, so its whole map becomes null
        array = array.take(_without(_rows_of(array)[np.asarray(keys.is_null())], len(array)))
        keys, values = _entries_of(array, source, target)
    lengths = _lengths_of(array)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    fields = [target.key_field, target.item_field]
    entries = pa.StructArray.from_arrays([keys, values], fields=fields)
    plain = pa.Array.from_buffers(
        target, len(array), [None, offsets.buffers()[1]], children=[entries]
    )
    return _with_nulls(plain, np.asarray(array.is_null()), [offsets.buffers()[1]], [entries])


def _entries_of(
    array: pa.MapArray, source: ValueSource, target: pa.MapType
) -> tuple[pa.Array, pa.Array]:
    """Return the converted keys and values of all maps that are not null, in order."""
    # Maps need not be adjacent: the index of an entry is the start of its map, plus its number
    # within the map.
    rows = _rows_of(array)
    first = array.offsets.to_numpy(zero_copy_only=False)[:-1]
    starts = np.cumsum(_lengths_of(array)) - _lengths_of(array)
    positions = pa.array(first[rows] + np.arange(len(rows)) - starts[rows], pa.int64())
    parts = source.parts or (ValueSource(0), ValueSource(1))
    types = (target.key_type, target.item_type)
    return tuple(
        pa.nulls(len(positions), kind)
        if part is None
        else convert(array.values.field(index).take(positions), part, kind)
        for index, (part, kind) in enumerate(zip(parts, types, strict=True))
    )


def _lengths_of(array: pa.MapArray) -> npt.NDArray[np.int64]:
    lengths = np.diff(array.offsets.to_numpy(zero_copy_only=False)).astype(np.int64)
    return np.where(np.asarray(array.is_null()), 0, lengths)


def _rows_of(array: pa.MapArray) -> npt.NDArray[np.int64]:
    """Return for each entry the index of its map."""
    return np.repeat(np.arange(len(array)), _lengths_of(array))


def _without(rows: npt.NDArray[np.int64], num_rows: int) -> pa.Array:
    """Return the indices of all rows, with null for `rows`."""
    mask = np.zeros(num_rows, np.bool_)
    mask[rows] = True
    return pa.array(np.arange(num_rows), mask=mask)


def _with_nulls(
    array: pa.Array, is_null: Mask, buffers: Sequence[pa.Buffer], children: Sequence[pa.Array]
) -> pa.Array:
    if not is_null.any():
        return array
    bitmap = pa.array(~is_null).buffers()[1]
    return pa.Array.from_buffers(
        array.type, len(array), [bitmap, *buffers], children=list(children)
    )


def _nulls_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


_NESTED_RULES: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]], ...]] = (
    (pa.types.is_struct, _convert_struct),
    (is_list_type, _convert_list),
    (pa.types.is_map, _convert_map),
)


# --- values without nested fields


def _convert_leaf(array: pa.Array, _source: ValueSource, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return _convert_leaf(array.dictionary_decode(), _source, target)
    if array.type.equals(target):
        return array
    if pa.types.is_dictionary(target):
        return _encoded(_convert_leaf(array, _source, target.value_type), target)
    for accepts, rule in _LEAF_RULES:
        if accepts(array.type) and accepts(target):
            return rule(array, target)
    return pa.nulls(len(array), target)


def _encoded(values: pa.Array, target: pa.DictionaryType) -> pa.Array:
    encoded = values.dictionary_encode()
    largest = np.iinfo(target.index_type.to_pandas_dtype()).max
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    mask = np.asarray(encoded.is_null()) | (codes > largest)
    indices = pa.array(np.where(mask, 0, codes).astype(np.int64), mask=mask)
    return pa.DictionaryArray.from_arrays(
        indices.cast(target.index_type), encoded.dictionary, ordered=target.ordered
    )


def _cast_where(
    array: pa.Array, cast: Callable[[pa.Array], pa.Array], survives: pa.Array
) -> pa.Array:
    """Cast the values for which `survives` is true; the others become null."""
    mask = pc.fill_null(survives, False)
    if mask.false_count == array.null_count:
        return cast(array)
    return cast(pc.if_else(mask, array, pa.scalar(None, array.type)))


def _round_trip(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast the values that a round trip preserves; for types where it preserves no wrong value."""
    back = array.cast(target, safe=False).cast(array.type, safe=False)
    return _cast_where(array, lambda some: some.cast(target, safe=False), pc.equal(array, back))


def _convert_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast numbers to or from a decimal type."""
    types = pa.types
    if types.is_floating(array.type) or types.is_floating(target):
        return pa.nulls(len(array), target)  # a float's binary digits have no exact decimal form
    if types.is_integer(array.type):
        array = array.cast(pa.decimal128(_DIGITS_OF_64_BITS, 0))
    try:
        return array.cast(target)
    except pa.ArrowInvalid:
        # Some values do not fit, and Arrow does not say which: each distinct value is cast alone.
        encoded = array.dictionary_encode()
        dictionary = [
            _cast_alone(encoded.dictionary.slice(n, 1), target)
            for n in range(len(encoded.dictionary))
        ]
        return pa.chunked_array(dictionary, target).combine_chunks().take(encoded.indices)


def _cast_alone(value: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return value.cast(target)
    except pa.ArrowInvalid:
        return pa.nulls(1, target)


def _convert_number(array: pa.Array, target: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_decimal(array.type) or types.is_decimal(target):
        return _convert_decimal(array, target)
    if types.is_integer(array.type) and types.is_integer(target):
        return _cast_where(array, lambda some: some.cast(target), _is_within(array, target))
    if types.is_integer(array.type):
        largest = 1 << {16: 11, 32: 24, 64: 53}[target.bit_width]  # a float's significant bits
        low = 0 if types.is_unsigned_integer(array.type) else -largest
        survives = _is_between(array, low, largest)
        return _cast_where(array, lambda some: _as_float(some, target), survives)
    if types.is_integer(target):
        return _float_as_integer(array, target)
    return _float_as_float(array, target)


def _is_within(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a mask of the integers that fit another integer type."""
    limits = np.iinfo(target.to_pandas_dtype())
    return _is_between(array, int(limits.min), int(limits.max))


def _is_between(array: pa.Array, low: int, high: int) -> pa.Array:
    limits = np.iinfo(array.type.to_pandas_dtype())  # the bounds must be values of this type
    low, high = max(low, int(limits.min)), min(high, int(limits.max))
    return pc.and_(
        pc.greater_equal(array, pa.scalar(low, array.type)),
        pc.less_equal(array, pa.scalar(high, array.type)),
    )


def _float_as_integer(array: pa.Array, target: pa.DataType) -> pa.Array:
    values = _values_of(array, np.float64)
    limits = np.iinfo(target.to_pandas_dtype())
    # The largest integer may have no exact float, but the next integer does.
    survives = (values >= float(limits.min)) & (values < float(int(limits.max) + 1))
    survives &= np.floor(values) == values
    mask = ~survives | np.asarray(array.is_null())
    return pa.array(np.where(mask, 0, values).astype(target.to_pandas_dtype()), mask=mask)


def _float_as_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    values = _values_of(array, array.type.to_pandas_dtype())
    with np.errstate(over="ignore"):
        cast = values.astype(target.to_pandas_dtype())
    is_same = (cast.astype(values.dtype) == values) | np.isnan(values)
    return pa.array(cast, target, mask=~is_same | np.asarray(array.is_null()))


def _as_float(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_float16(target):
        return array.cast(target)
    return pa.array(_values_of(array, np.float16), target, mask=np.asarray(array.is_null()))


def _values_of(array: pa.Array, kind: Any) -> npt.NDArray[Any]:
    """Return numbers as a numpy array; nulls become arbitrary numbers."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, kind)
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    return values.astype(kind)


def _convert_text(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target)


def _convert_bytes(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_fixed_size_binary(target):
        return array.cast(target)
    # Not with `if_else`: at least up to Arrow 23, it corrupts sliced bytes next to a null scalar.
    survives = pc.fill_null(pc.equal(pc.binary_length(array), target.byte_width), False)
    from lance_stream.write.casting import cast_to_fixed_size_binary  # rarely needed

    fitting = cast_to_fixed_size_binary(array.filter(survives), target)
    mask = survives.to_numpy(zero_copy_only=False)
    return fitting.take(pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask))


def _is_number(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(arrow) or types.is_floating(arrow) or types.is_decimal(arrow))


def _is_text(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow)
    )


def _is_bytes(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(arrow)
        or types.is_large_binary(arrow)
        or types.is_fixed_size_binary(arrow)
        or types.is_binary_view(arrow)
    )


def _is_date(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_date(arrow) or (types.is_timestamp(arrow) and arrow.tz is None))


def _is_moment(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(arrow) and arrow.tz is not None)


_LEAF_RULES: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], pa.Array]], ...]
] = (
    (_is_number, _convert_number),
    (_is_text, _convert_text),
    (_is_bytes, _convert_bytes),
    (_is_date, _round_trip),
    (_is_moment, _round_trip),
    (pa.types.is_time, _round_trip),
    (pa.types.is_duration, _round_trip),
)
