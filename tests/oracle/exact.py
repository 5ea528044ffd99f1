"""Bitwise comparison of two arrays.

For Arrow's `equals`, two NaN differ and -0.0 equals 0.0. Here floats are compared bit by bit.
Values behind nulls and the order of dictionary items are ignored.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.oracle.type_cases import is_view, without_views


def whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array."""
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array


def difference(left: Any, right: Any, where: str = "") -> str:
    """Return a description of the first difference of two arrays; "" if they are equal.

    Args:
        left: An array.
        right: The other array.
        where: The name of the column, for the description.
    """
    left, right = plain(whole(left)), plain(whole(right))
    if left.type != right.type:
        return f"{where}: the types are {left.type} and {right.type}"
    if len(left) != len(right):
        return f"{where}: there are {len(left)} and {len(right)} values"
    valid = left.is_valid()
    if not valid.equals(right.is_valid()):
        position = int(np.flatnonzero(_bools(valid) != _bools(right.is_valid()))[0])
        return f"{where}: at {position} only one of them is null"
    if pa.types.is_null(left.type):
        return ""
    if left.null_count:
        left, right = left.filter(valid), right.filter(valid)
    return _difference_of_values(left, right, where)


def _difference_of_values(left: pa.Array, right: pa.Array, where: str) -> str:
    arrow = left.type
    if pa.types.is_struct(arrow):
        pairs = zip(arrow, left.flatten(), right.flatten(), strict=True)
        differences = (
            difference(ours, theirs, f"{where}.{pair.name}") for pair, ours, theirs in pairs
        )
        return next(filter(None, differences), "")
    if pa.types.is_fixed_size_list(arrow):
        return difference(left.flatten(), right.flatten(), f"{where}.item")
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_map(arrow):
        lengths, others = (np.diff(value.offsets.to_numpy()) for value in (left, right))
        if not np.array_equal(lengths, others):
            return f"{where}: at {int(np.flatnonzero(lengths != others)[0])} the lengths differ"
        if pa.types.is_map(arrow):
            (keys, items), (other_keys, other_items) = _entries(left), _entries(right)
            return difference(keys, other_keys, f"{where}.key") or difference(
                items, other_items, f"{where}.value"
            )
        return difference(left.flatten(), right.flatten(), f"{where}.item")
    if pa.types.is_floating(arrow):
        words = pa.from_numpy_dtype(f"uint{arrow.bit_width}")
        left, right = left.view(words), right.view(words)
    if left.equals(right):
        return ""
    position = next(
        at for at in range(len(left)) if not left[at : at + 1].equals(right[at : at + 1])
    )
    return f"{where}: value {position} is {left[position]!r} and {right[position]!r}"


def _entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the items of maps of which none is null."""
    offsets = maps.offsets
    start, stop = offsets[0].as_py(), offsets[-1].as_py()
    return maps.keys[start:stop], maps.items[start:stop]


def plain(array: pa.Array) -> pa.Array:
    """Return an array's storage, with dictionaries decoded."""
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    if is_view(array.type):
        return array.cast(without_views(array.type))
    return array


def _bools(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def part_of_null(array: Any, where: str = "column") -> str:
    """Return a field of structs with a value where its struct is null; "" if there is none.

    A reader of a single field, such as pylance's filter `s.x IS NULL`, would not see that the
    struct is null.
    """
    array = whole(array)
    kind = array.type
    if pa.types.is_struct(kind):
        is_null = array.is_null()
        for field in kind:
            part = array.field(field.name)
            if pc.any(pc.and_(is_null, part.is_valid())).as_py():
                return f"{where}.{field.name}"
            path = part_of_null(part, f"{where}.{field.name}")
            if path:
                return path
    elif pa.types.is_map(kind):
        return part_of_null(array.items, f"{where}.items")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return part_of_null(array.flatten(), f"{where}.items")
    return ""
