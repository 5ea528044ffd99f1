"""Output of commands: readable sizes, timestamps and values, or JSON."""

import base64
import json
import math
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any, Final

from lance_stream.sizes import size_text

MAX_WIDTH: Final = 40
"""Tables truncate values that are wider than this number of terminal columns."""

size: Final = size_text
"""Returns a size with three or four digits and a unit."""


class Printable:
    """A text stream that writes terminal control characters as JSON escapes.

    Names of columns, tags and properties come from the table, which is not trusted: an escape
    sequence could move the cursor, set a title, or hide text. Within JSON, the escapes have the
    same meaning as the characters.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, with its line breaks."""
        return self._stream.write("\n".join(map(escaped, text.split("\n"))))

    def write_drawn(self, text: str) -> int:
        """Write a text that is already escaped and can contain our styles."""
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escaped(text: str) -> str:
    """Replace unprintable characters, including line breaks, with JSON escapes."""
    return text if text.isprintable() else "".join(map(_as_printable, text))


def _as_printable(character: str) -> str:
    if character.isprintable():
        return character
    is_short = ord(character) < 1 << 16
    return f"\\u{ord(character):04x}" if is_short else json.dumps(character)[1:-1]


def print_drawn(text: str) -> None:
    """Print a text that is already escaped and can contain our styles."""
    stream = sys.stdout
    if isinstance(stream, Printable):
        stream.write_drawn(text)
    else:
        stream.write(text)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 version", "2 versions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(when: datetime | None) -> str:
    """Return a timestamp in UTC, to the second; a dash for None."""
    if when is None:
        return "-"
    from lance_stream.snapshot.timestamps import in_utc

    return f"{in_utc(when).replace(tzinfo=None).isoformat(' ', 'seconds')}Z"


def cell(value: object, max_width: int = MAX_WIDTH) -> str:
    """Return a value on one line, truncated if it is long."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple | bytes):  # only the beginning of a long vector is formatted
        value = value[: max_width + 1]
    text = value if isinstance(value, str) else to_json(value) if _is_nested(value) else str(value)
    if len(text) > 2 * max_width:
        text = text[: 2 * max_width]
    text = "".join(character if character.isprintable() else "·" for character in text)
    if num_columns(text) <= max_width:
        return text
    while num_columns(text) >= max_width:
        text = text[: min(len(text) - 1, max_width)]
    return f"{text}…"


def num_columns(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def to_json(value: object) -> str:
    """Return a value as JSON on one line.

    Bytes are in base64; decimals, timestamps and numbers that JSON lacks are strings. If the output
    is not UTF-8, characters outside ASCII become JSON escapes.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("-", "") == "utf8"
    return json.dumps(_plain(value), ensure_ascii=not is_utf8)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list | tuple | bytes)


def _plain(value: object) -> object:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
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
