"""Rows as Python values, for JSON and for tables."""

from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch as Python values; values that Python cannot hold are strings."""
    values = [_values_of(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def _values_of(column: pa.Array) -> list[Any]:
    kind = _in_utc(column.type)
    if kind != column.type:
        column = column.cast(kind)
    if _has_nanoseconds(column.type):
        column = _as_iso(pc.cast(column, pa.string()))
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # dates and times that Python cannot hold
        values = [_value_of(value) for value in column]
    return values


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with all timestamps in UTC, since a table can name unknown time zones."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_in_utc(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _as_iso(texts: pa.Array) -> pa.Array:
    """Convert times from Arrow's text form to ISO 8601."""
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.replace_substring_regex(texts, "Z$", "+00:00")


def _value_of(scalar: pa.Scalar) -> Any:
    with suppress(OverflowError, ValueError):
        return scalar.as_py()
    if isinstance(scalar, pa.StructScalar):
        return {name: _value_of(part) for name, part in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [(_value_of(value["key"]), _value_of(value["value"])) for value in scalar.values]
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [_value_of(value) for value in scalar.values]
    unit = getattr(scalar.type, "unit", "days")
    if abs(scalar.value) < _ARROW_LIMITS.get(unit, 0):
        return pc.cast(scalar, pa.string()).as_py()
    return f"{scalar.value} {unit} since 1970-01-01"


_ARROW_LIMITS: Final = {"days": 10**7, "s": 8 * 10**11, "ms": 8 * 10**14, "us": 8 * 10**17}
"""Limits of the dates and times that Arrow prints correctly: about the year 27,000."""


def _has_nanoseconds(arrow_type: pa.DataType) -> bool:
    return getattr(arrow_type, "unit", None) == "ns" and not pa.types.is_duration(arrow_type)
