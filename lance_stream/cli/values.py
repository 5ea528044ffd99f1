"""Rows as Python values, for JSON and for tables."""

from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch as Python values; values that Python lacks are strings."""
    values = [_values_of(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def _values_of(column: pa.Array) -> list[Any]:
    if _has_nanoseconds(column.type):
        column = pc.cast(column, pa.string())
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # dates and times that Python lacks
        values = [_value_of(each) for each in column]
    return values


def _value_of(scalar: pa.Scalar) -> Any:
    with suppress(OverflowError, ValueError):
        return scalar.as_py()
    if isinstance(scalar, pa.StructScalar):
        return {name: _value_of(part) for name, part in scalar.items()}
    if isinstance(scalar, pa.MapScalar):
        return [(_value_of(each["key"]), _value_of(each["value"])) for each in scalar.values]
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return [_value_of(each) for each in scalar.values]
    unit = getattr(scalar.type, "unit", "days")
    if abs(scalar.value) < _SHOWN_BY_ARROW.get(unit, 0):
        return pc.cast(scalar, pa.string()).as_py()
    return f"{scalar.value} {unit} since 1970-01-01"


_SHOWN_BY_ARROW: Final = {"days": 10**7, "s": 8 * 10**11, "ms": 8 * 10**14, "us": 8 * 10**17}
"""Dates and times that Arrow prints correctly: up to the year 27,000, and some beyond."""


def _has_nanoseconds(arrow_type: pa.DataType) -> bool:
    return getattr(arrow_type, "unit", None) == "ns" and not pa.types.is_duration(arrow_type)
