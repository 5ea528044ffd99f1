"""Durations as users write them: "7 days", "12h", "500ms", or a timedelta."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from lance_stream.errors import InvalidInputError

_SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400.0),
}
_FORM: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)


def seconds_in(text: str) -> tuple[float, bool] | None:
    """Parse a duration: return its seconds, and whether it has a unit; None if it is not valid.

    Args:
        text: A number and a unit, from milliseconds to weeks; without a unit, seconds.
    """
    match = _FORM.fullmatch(text.strip().lower())
    if match is None or (match[2] and match[2] not in _SECONDS):
        return None
    return float(match[1]) * _SECONDS.get(match[2], 1.0), bool(match[2])


def parse_age(age: str | timedelta, *, may_be_zero: bool = False) -> timedelta:
    """Return an age as a timedelta.

    Args:
        age: A number and a unit, such as "7 days", "1.5 hours" or "12h"; or a timedelta.
        may_be_zero: Whether an age of 0 is valid.

    Raises:
        InvalidInputError: It is not an age, or not positive.
    """
    if isinstance(age, timedelta):
        parsed = age
    else:
        seconds = seconds_in(age) if isinstance(age, str) else None
        if seconds is None or not seconds[1]:
            raise InvalidInputError(
                f"{age!r} is not an age: give a number and a unit, such as '7 days', '12 hours' or "
                "'30 minutes', or a timedelta"
            )
        parsed = timedelta(seconds=min(seconds[0], timedelta.max // timedelta(seconds=1)))
    if parsed < timedelta(0) or (parsed == timedelta(0) and not may_be_zero):
        raise InvalidInputError(f"the age {age!r} is not positive")
    return parsed
