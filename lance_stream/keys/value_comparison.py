"""Equality and order of values that are not keys: one definition for every type, at any depth.

    equal       null and null, NaN and NaN, -0.0 and 0.0; nested values field by field, item by item
    order       as in Spark: NaN after all numbers; strings and binary values by their bytes; false
                before true; structs by the first field that differs; lists by the first item that
                differs, and a prefix first; nested nulls before all values

No value becomes a Python object: dates and times beyond the year 9999, which CDC tools send for
"infinity", are ordinary numbers here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Mask
from lance_stream.errors import InvalidInputError

Ranks = npt.NDArray[np.int64]


# --- equality


def same_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> Mask:
    """Return (n,) whether the rows of two batches with the same schema are equal."""
    same = np.ones(left.num_rows, np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        if not one.equals(other):
            same &= same_values(one, other)
    return same


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """Return (n,) whether the values of two arrays with the same length and type are equal."""
    left, right = _plain(left), _plain(right)
    here, there = _are_valid(left), _are_valid(right)
    both = here & there
    if pa.types.is_struct(left.type):
        equal = np.ones(len(left), np.bool_)
        for index in range(left.type.num_fields):
            equal &= same_values(left.field(index), right.field(index))
    elif _has_items(left.type):
        equal = _same_lists(left, right, both)
    elif pa.types.is_null(left.type):
        equal = both
    else:
        equal = _mask(pc.equal(left, right))
        if pa.types.is_floating(left.type):
            equal |= _mask(pc.is_nan(left)) & _mask(pc.is_nan(right))
    return (equal & both) | ~(here | there)


def _same_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    sizes = _lengths(left)
    same: Mask = sizes == _lengths(right)
    rows = np.flatnonzero(same & both & (sizes > 0))
    if len(rows):
        equal = same_values(_items(left.take(pa.array(rows))), _items(right.take(pa.array(rows))))
        starts = np.cumsum(sizes[rows]) - sizes[rows]
        same[rows] = np.logical_and.reduceat(equal, starts)
    return same


# --- order


def check_can_order(name: str, arrow_type: pa.DataType) -> None:
    """Raise unless the values of a column have an order.

    Raises:
        InvalidInputError: They have no order.
    """
    if not _has_order(arrow_type):
        raise InvalidInputError(
            f"the column {name!r} cannot order rows (sequence_by): it is {arrow_type}, whose "
            "values have no order. Order rows by a number, a string, a binary value, a date or "
            "time, a boolean, or a struct or list of these"
        )


def _has_order(arrow_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(arrow_type):
        return _has_order(arrow_type.value_type)
    if pa.types.is_struct(arrow_type):
        return arrow_type.num_fields > 0 and all(_has_order(part.type) for part in arrow_type)
    if _has_items(arrow_type) and not pa.types.is_map(arrow_type):
        return _has_order(arrow_type.value_type)
    return any(accepts(arrow_type) for accepts in _ORDERED)


_ORDERED = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)


def are_less(left: pa.Array, right: pa.Array) -> Mask:
    """Return where `left` is less than `right`; false where either is null.

    Args:
        left: (n,) values of a type that has an order.
        right: (n,) values of the same type.
    """
    both = _are_valid(left) & _are_valid(right)
    if any(accepts(left.type) for accepts in _COMPARED):
        return _mask(pc.less(left, right)) & both
    ranks = dense_ranks(pa.concat_arrays([_plain(left), _plain(right)]))
    less: Mask = ranks[: len(left)] < ranks[len(left) :]
    return less & both


_COMPARED = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)


def dense_ranks(values: pa.Array) -> Ranks:
    """Return the rank of each value among the distinct values.

    Args:
        values: (n,) values of a type that has an order.

    Returns:
        (n,) i64 from 1, equal for equal values; 0 for nulls.
    """
    values = _plain(values)
    if pa.types.is_struct(values.type):
        ranks = np.zeros(len(values), np.int64)
        for index in range(values.type.num_fields):
            ranks = _refined(ranks, dense_ranks(values.field(index)))
    elif _has_items(values.type):
        ranks = _ranks_of_lists(values)
    else:
        return _ranks_of_leaves(values)
    return _from_one(np.where(_are_valid(values), ranks, -1))


def _ranks_of_lists(values: pa.Array) -> Ranks:
    sizes = np.where(_are_valid(values), _lengths(values), 0)
    filled = np.flatnonzero(sizes)
    ranks = np.zeros(len(values), np.int64)
    if not len(filled):
        return ranks
    items = dense_ranks(_items(values.take(pa.array(filled)))) + 1  # 0: past the end of the list
    starts = np.zeros(len(values), np.int64)
    starts[filled] = np.cumsum(sizes[filled]) - sizes[filled]
    for position in range(int(sizes.max())):
        there = np.flatnonzero(sizes > position)
        ranks_at = np.zeros(len(values), np.int64)
        ranks_at[there] = items[starts[there] + position]
        ranks = _refined(ranks, ranks_at)
    return ranks


def _ranks_of_leaves(values: pa.Array) -> Ranks:
    valid = _are_valid(values)
    ranks = np.zeros(len(values), np.int64)
    if not valid.any():
        return ranks
    present = values.drop_null()
    if pa.types.is_floating(present.type):
        # numpy orders as Spark does: all NaN are equal, after all numbers; -0.0 is 0.0
        _, positions = np.unique(present.to_numpy(zero_copy_only=False), return_inverse=True)
        ranks[valid] = positions.reshape(-1) + 1
        return ranks
    distinct = pc.unique(present)
    order = distinct.take(pc.sort_indices(distinct))
    ranks[valid] = pc.index_in(present, value_set=order).to_numpy(zero_copy_only=False) + 1
    return ranks


def _refined(ranks: Ranks, then: Ranks) -> Ranks:
    """Return the ranks of pairs of ranks. Both are dense, so their product does not overflow."""
    return _from_one(ranks * (int(then.max(initial=0)) + 1) + then)


def _from_one(numbers: Ranks) -> Ranks:
    """Return the ranks of numbers among the distinct numbers, from 1; 0 for negative numbers."""
    distinct, positions = np.unique(numbers, return_inverse=True)
    is_null_there = bool(len(distinct)) and distinct[0] < 0
    ranks: Ranks = positions.reshape(-1).astype(np.int64) + (0 if is_null_there else 1)
    return ranks


# --- one value


def show_value(value: pa.Scalar) -> str:
    """Format a value for messages, even if Python cannot represent it."""
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):  # beyond the year 9999, or in nanoseconds
        try:
            return str(value.cast(pa.string()))
        except pa.ArrowException:
            return f"a {value.type}"


# --- arrays


def _plain(values: pa.Array) -> pa.Array:
    """Return values that compute functions accept: no extension, dictionary, view or half float."""
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    if pa.types.is_float16(values.type):
        return values.cast(pa.float32())
    if pa.types.is_boolean(values.type):
        return values.cast(pa.uint8())
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(values.type):
        return values.cast(pa.large_binary())
    return values


def _has_items(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(arrow_type)
        or pa.types.is_large_list(arrow_type)
        or pa.types.is_fixed_size_list(arrow_type)
        or pa.types.is_map(arrow_type)
    )


def _lengths(values: pa.Array) -> Ranks:
    """Return the number of items of each list; arbitrary for nulls."""
    if pa.types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size, np.int64)
    lengths: Ranks = np.diff(values.offsets.to_numpy()).astype(np.int64)
    return lengths


def _items(values: pa.Array) -> pa.Array:
    """Return the items of lists without null lists."""
    if pa.types.is_map(values.type):
        first, last = (values.offsets[index].as_py() for index in (0, len(values)))
        return values.values.slice(first, last - first)
    return values.flatten()


def _are_valid(values: pa.Array) -> Mask:
    return _mask(values.is_valid())


def _mask(result: Any) -> Mask:
    mask: Mask = pc.fill_null(result, False).to_numpy(zero_copy_only=False)
    return mask
