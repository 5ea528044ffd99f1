"""What the verbs print: tables in columns, sizes and moments for people, JSON for programs."""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

MAX_WIDTH: Final = 40
"""A longer value is cut in a table."""

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


def lines_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table: a header and rows in columns, two spaces between them."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def size(num_bytes: int) -> str:
    """Return a size in three or four digits and a unit."""
    value, unit = float(num_bytes), 0
    while value >= 1000 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """Return a number of things: "1 version", "2 versions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(when: datetime | None) -> str:
    """Return a moment in UTC, to the second; a dash for none."""
    return "-" if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def cell(value: object) -> str:
    """Return a value on one line, cut where it is long."""
    if value is None:
        return "null"
    text = value if isinstance(value, str) else to_json(value) if _is_nested(value) else str(value)
    text = "".join(each if each.isprintable() else "·" for each in text)
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 1]}…"


def to_json(value: object) -> str:
    """Return a value as JSON on one line.

    Bytes are in base 64; decimals and moments are text, and so are numbers that JSON has not.
    """
    return json.dumps(_plain(value), ensure_ascii=False)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch as values of Python; what Python has not is text."""
    columns = [
        pc.cast(column, pa.string()) if _has_nanoseconds(column.type) else column
        for column in batch.columns
    ]
    made = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    rows: list[dict[str, Any]] = made.to_pylist()
    return rows


def _has_nanoseconds(arrow_type: pa.DataType) -> bool:
    return getattr(arrow_type, "unit", None) == "ns" and not pa.types.is_duration(arrow_type)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list | tuple | bytes)


def _plain(value: object) -> object:
    match value:
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return str(value)
        case Decimal() | timedelta():
            return str(value)
        case _:
            return value
