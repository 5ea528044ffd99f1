"""Output of the verbs: tables, sizes and timestamps for people, JSON for programs."""

import base64
import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any, Final

MAX_WIDTH: Final = 40
"""Longer values are truncated in a table."""

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


class Printable:
    """A text stream that writes terminal control characters as JSON escapes.

    Names of columns, tags and properties come from the table, which may not be trusted: an escape
    sequence could move the cursor, set a title, or hide text beside it. Within JSON, the escapes
    mean the same as the characters.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; line breaks are kept."""
        if not text.isprintable():
            text = "".join(map(_as_printable, text))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _as_printable(letter: str) -> str:
    if letter.isprintable() or letter == "\n":
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 1 << 16 else json.dumps(letter)[1:-1]


def lines_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table: a header and rows in columns, two spaces between them."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def size(num_bytes: int) -> str:
    """Return a size with three or four digits and a unit."""
    value, unit = float(num_bytes), 0
    while value >= 1000 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """Return a number of things: "1 version", "2 versions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(when: datetime | None) -> str:
    """Return a timestamp in UTC, to the second; a dash for None."""
    if when is None:
        return "-"
    from lance_stream.snapshot.timestamps import in_utc

    return f"{in_utc(when).replace(tzinfo=None).isoformat(' ', 'seconds')}Z"


def cell(value: object) -> str:
    """Return a value on one line, truncated if it is long."""
    if value is None:
        return "null"
    text = value if isinstance(value, str) else to_json(value) if _is_nested(value) else str(value)
    text = "".join(each if each.isprintable() else "·" for each in text)
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 1]}…"


def to_json(value: object) -> str:
    """Return a value as JSON on one line.

    Bytes are in base64; decimals, timestamps and numbers that JSON lacks are strings. If the output
    is not in UTF-8, characters beyond ASCII are written as JSON escapes.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    return json.dumps(_plain(value), ensure_ascii=not is_utf8)


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
