"""Parses and formats dates and times. A time without a zone is in UTC.

    2024-02-29   2024-2-9   2024-02   2024
                                        dates; text after a blank or T is ignored
    2024-02-29 12:00   2024-02-29T12:00:00.123456+01:00

Spark accepts other forms, which are refused here: a time alone, years of five digits, zone names.
"""

import re
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.expressions.nodes import Datum, Node, failure, refuse

_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_A_DATE: Final = re.compile(
    rf"(?:{_DATE}(?:[ T].*)?)|(?P<y>\d{{4}})(?:-(?P<m>\d{{1,2}}))?", re.DOTALL | re.ASCII
)
_A_TIME: Final = re.compile(
    rf"(?:{_DATE}(?:[ T](?P<hour>\d{{1,2}}):(?P<minute>\d{{1,2}})(?::(?P<second>\d{{1,2}})"
    r"(?:\.(?P<fraction>\d{1,9}))?)?(?P<zone>Z|[+-]\d{2}:\d{2})?)?)|\d{4}(?:-\d{1,2})?",
    re.ASCII,
)
_BLANK: Final = "".join(map(chr, range(33))) + "\x7f"
"""The characters that Spark strips from a text before it parses it."""


def parse_date(text: str) -> date | None:
    """Return the date that a text denotes; None if it does not denote one."""
    match = _A_DATE.fullmatch(text.strip(_BLANK))
    if match is None:
        return None
    parts = (match["year"] or match["y"], match["month"] or match["m"] or 1, match["day"] or 1)
    try:
        return date(*map(int, parts))
    except ValueError:
        return None


def parse_time(text: str, unit: str) -> tuple[int, bool] | None:
    """Return the time that a text denotes, in ticks since 1970 in UTC, and whether it has a zone.

    Args:
        text: The text.
        unit: "us" or "ns"; excess digits are truncated.
    """
    match = _A_TIME.fullmatch(text.strip(_BLANK))
    if match is None or (day := parse_date(text)) is None:
        return None
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    zone = match["zone"] or "Z"
    shift = 0 if zone == "Z" else int(zone[1:3]) * 60 + int(zone[4:6])
    if hour > 23 or minute > 59 or second > 59 or shift > 18 * 60 or int(zone[4:6] or 0) > 59:
        return None
    minutes = (day.toordinal() - _EPOCH) * 1440 + hour * 60 + minute
    minutes -= -shift if zone[0] == "-" else shift
    digits = 9 if unit == "ns" else 6
    fraction = int((match["fraction"] or "").ljust(digits, "0")[:digits])
    return (minutes * 60 + second) * 10**digits + fraction, match["zone"] is not None


_EPOCH: Final = date(1970, 1, 1).toordinal()


def date_of(node: Node, text: pa.Scalar) -> pa.Scalar:
    """Return the date that a literal denotes.

    Raises:
        InvalidInputError: It is not a date.
    """
    day = None if not text.is_valid else parse_date(text.as_py())
    if text.is_valid and day is None:
        raise refuse(
            node, f"has {text.as_py()!r}, which is not a date", "write it like '2024-02-29'"
        )
    return pa.scalar(day, pa.date32())


def time_of(node: Node, text: pa.Scalar, other: pa.DataType) -> pa.Scalar:
    """Return the time that a literal denotes.

    Args:
        node: For messages.
        text: The literal.
        other: The type of the time with which it is compared, or to which it is converted.

    Raises:
        InvalidInputError: It is not a time, or has a zone although the other type has none.
    """
    unit = "ns" if other.unit == "ns" else "us"
    arrow = pa.timestamp(unit, None if other.tz is None else "UTC")
    if not text.is_valid:
        return pa.scalar(None, arrow)
    parsed = parse_time(text.as_py(), unit)
    if parsed is None:
        raise refuse(
            node,
            f"has {text.as_py()!r}, which is not a time",
            "write it like '2024-02-29 12:00:00'",
        )
    if other.tz is None and parsed[1] and not text.as_py().rstrip(_BLANK).endswith("Z"):
        raise refuse(
            node,
            f"compares {text.as_py()!r}, which has a zone, with a time that has none",
            "omit the zone, which Spark would ignore",
        )
    try:
        return pa.scalar(parsed[0], arrow)
    except (pa.ArrowInvalid, OverflowError):
        raise refuse(node, f"has {text.as_py()!r}, which does not fit {arrow}") from None


def dates_of(texts: pa.Array) -> pa.Array:
    """Return the dates that texts denote, for a CAST of a column.

    Raises:
        ArrowInvalid: A text is not a date.
    """
    return pa.array([_read(text, parse_date, "date") for text in texts.to_pylist()], pa.date32())


def times_of(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Return the times that texts denote, for a CAST of a column.

    Raises:
        ArrowInvalid: A text is not a time.
    """

    def read(text: str) -> int | None:
        parsed = parse_time(text, "us")
        return None if parsed is None or (parsed[1] and arrow.tz is None) else parsed[0]

    return pa.array([_read(row, read, "time") for row in texts.to_pylist()], arrow)


def _read(text: str | None, read: Any, what: str) -> Any:
    if text is None:
        return None
    value = read(text)
    if value is None:
        raise failure(f"{text[:200]!r} is not a {what}")
    return value


def time_texts(value: Datum) -> Datum:
    """Return Spark's text form of times: in UTC, without trailing zeros in the fraction."""
    plain = value.cast(pa.timestamp(value.type.unit)).cast(pa.string())
    if value.type.unit == "s":
        return plain
    return pc.replace_substring_regex(plain, r"\.?0+\z", "")
