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
    """Return how many seconds a text states, and whether it names a unit; None if it states none.

    Args:
        text: A number and a unit, from milliseconds to weeks; seconds if it names none.
    """
    match = _FORM.fullmatch(text.strip().lower())
    if match is None or (match[2] and match[2] not in _SECONDS):
        return None
    return float(match[1]) * _SECONDS.get(match[2], 1.0), bool(match[2])


def parse_age(age: str | timedelta, *, may_be_nothing: bool = False) -> timedelta:
    """Return an age.

    Args:
        age: A number and a unit, such as "7 days", "1.5 hours" or "12h"; or a timedelta.
        may_be_nothing: Whether an age may be 0.

    Raises:
        InvalidInputError: It is neither, or not positive.
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
    if parsed < timedelta(0) or (parsed == timedelta(0) and not may_be_nothing):
        raise InvalidInputError(f"the age {age!r} is not positive")
    return parsed
