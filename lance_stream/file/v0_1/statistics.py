"""Bounds of the values of each page, used to skip pages without matching rows.

A struct for each field with bounds, named by the field's id, with a value for each batch:

    null_count      int64
    min_value       of the field's type; null (or empty) if unknown
    max_value       of the field's type; null (or empty) if unknown

They are pages of a single batch, after the pages of the file, with their own page table, which
begins at field id 0. Byte strings are truncated to 64 bytes: a lower bound stays one, an upper
bound is raised in its last byte. NaN does not count; a zero is -0.0 as the minimum and +0.0 as the
maximum. If everything is null, integers have the bounds of their type.

Source:  the document of file version 0.1, "Statistics"; files that the reference wrote.
Differs: A null is stored as a value that may be outside the bounds. The reference skips such
    pages, so
         its answers differ from those without bounds; we do not use bounds over nulls, except those
         of byte strings, whose nulls are read as nulls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field

MAX_BOUND_BYTES: Final = 64
NULL_COUNT, MIN_VALUE, MAX_VALUE = "null_count", "min_value", "max_value"
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of the values of one field in each batch; null if unknown.

    Attributes:
        minimum: (num_batches,) no value of the batch is less.
        maximum: (num_batches,) no value of the batch is greater.
    """

    minimum: pa.Array
    maximum: pa.Array


@dataclass(frozen=True, slots=True, eq=False)
class PageBounds:
    """Bounds of the values of some fields, batch by batch.

    Attributes:
        batch_offsets: (num_batches + 1,) first row of each batch, then the number of rows.
        of_field: The bounds, by field id; fields without bounds are missing.
    """

    batch_offsets: npt.NDArray[np.int64]
    of_field: Mapping[int, Bounds]


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The statistics of one field in one batch."""

    null_count: int
    minimum: Any
    maximum: Any


def has_bounds(arrow: pa.DataType) -> bool:
    """Return whether values of a type have bounds."""
    return (
        pa.types.is_boolean(arrow)
        or pa.types.is_integer(arrow)
        or pa.types.is_float32(arrow)
        or pa.types.is_float64(arrow)
        or pa.types.is_date(arrow)
        or pa.types.is_decimal128(arrow)
        or is_byte_string(arrow)
    )


def is_byte_string(arrow: pa.DataType) -> bool:
    """Return whether a type is text or binary of variable width."""
    return arrow in {pa.string(), pa.binary(), pa.large_string(), pa.large_binary()}


def fields_with_bounds(fields: Sequence[Field]) -> list[Field]:
    """Return the fields with bounds: leaves outside of lists, by field id."""
    with_bounds: list[Field] = []
    for field in fields:
        arrow = field_to_arrow(field).type
        if pa.types.is_struct(arrow):
            with_bounds += fields_with_bounds(field.children)
        elif has_bounds(arrow):
            with_bounds.append(field)
    return sorted(with_bounds, key=lambda field: field.id)


def statistics_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the columns of the statistics of some fields, numbered from 0."""
    return tuple(
        Field(
            name=str(field.id),
            logical_type="struct",
            id=4 * index,
            nullable=False,
            children=(
                Field(NULL_COUNT, "int64", id=4 * index + 1, nullable=False),
                Field(MIN_VALUE, field.logical_type, id=4 * index + 2),
                Field(MAX_VALUE, field.logical_type, id=4 * index + 3),
            ),
        )
        for index, field in enumerate(fields)
    )


def gather(array: pa.Array) -> BatchStatistics:
    """Return the statistics of the values of one batch."""
    nulls = array.null_count
    if pa.types.is_date64(array.type):
        array = array.cast(pa.int64())
    bounds = pc.min_max(array)
    minimum, maximum = bounds["min"].as_py(), bounds["max"].as_py()
    if pa.types.is_floating(array.type):
        return BatchStatistics(nulls, *_float_bounds(array))
    if is_byte_string(array.type):
        return BatchStatistics(nulls, lower_bound(minimum), upper_bound(maximum))
    return BatchStatistics(nulls, minimum, maximum)


def statistics_array(arrow: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Return bounds as an array of the field's type."""
    if pa.types.is_date64(arrow):
        return pa.array(values, pa.int64()).cast(arrow)
    return pa.array(values, arrow)


def valid_bounds(
    field: Field, null_count: pa.Array, minimum: pa.Array, maximum: pa.Array
) -> Bounds:
    """Return the bounds that are valid for the values as read; null for others.

    Args:
        field: The field of the bounds.
        null_count: As stored, (num_batches,).
        minimum: As stored.
        maximum: As stored.
    """
    if is_byte_string(field_to_arrow(field).type):
        return Bounds(minimum, maximum)
    has_nulls = pc.not_equal(null_count, 0)
    unknown = pa.scalar(None, minimum.type)
    return Bounds(pc.if_else(has_nulls, unknown, minimum), pc.if_else(has_nulls, unknown, maximum))


def lower_bound(value: Any) -> Any:
    """Return a lower bound of at most 64 bytes for a string or bytes; None for None."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value[:MAX_BOUND_BYTES]
    return value.encode()[:MAX_BOUND_BYTES].decode(errors="ignore")


def upper_bound(value: Any) -> Any:
    """Return an upper bound of at most 64 bytes for a string or bytes; None if none exists."""
    if value is None:
        return None
    if isinstance(value, bytes):
        if len(value) <= MAX_BOUND_BYTES:
            return value
        prefix = value[:MAX_BOUND_BYTES].rstrip(b"\xff")
        return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None
    if len(value.encode()) <= MAX_BOUND_BYTES:
        return value
    prefix = lower_bound(value)
    while prefix:
        following = ord(prefix[-1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CHARACTER:
            text = prefix[:-1] + chr(following)
            if len(text.encode()) <= MAX_BOUND_BYTES:
                return text
        prefix = prefix[:-1]
    return None


def _float_bounds(array: pa.Array) -> tuple[float, float]:
    values = array.drop_null().to_numpy(zero_copy_only=False)
    values = values[~np.isnan(values)]
    if not len(values):
        return -np.inf, np.inf
    minimum, maximum = float(values.min()), float(values.max())
    return minimum if minimum else -0.0, maximum if maximum else 0.0
