"""Ages, as users say them: "7 days", "12h", or a timedelta."""

import re
from datetime import timedelta
from typing import Final

from lance_stream.errors import InvalidInputError

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORM: Final = re.compile(r"(\d{1,9})\s*([smhdw]|(?:second|minute|hour|day|week)s?)")
_LONGEST: Final = timedelta.max // timedelta(seconds=1)


def parse_age(age: str | timedelta, *, may_be_nothing: bool = False) -> timedelta:
    """Return an age.

    Args:
        age: A whole number and a unit (seconds, minutes, hours, days, weeks, or the first letter
            of one), or a timedelta.
        may_be_nothing: Whether an age of nothing is one.

    Raises:
        InvalidInputError: It is neither, or not longer than nothing.
    """
    if isinstance(age, timedelta):
        parsed = age
    elif isinstance(age, str):
        parsed = _parse(age)
    else:
        raise _not_an_age(age)
    if parsed < timedelta(0) or (parsed == timedelta(0) and not may_be_nothing):
        raise InvalidInputError(f"the age {age!r} is not longer than nothing")
    return parsed


def _parse(text: str) -> timedelta:
    match = _FORM.fullmatch(text.strip().lower())
    if match is None:
        raise _not_an_age(text)
    return timedelta(seconds=min(int(match[1]) * _SECONDS[match[2][0]], _LONGEST))


def _not_an_age(age: object) -> InvalidInputError:
    return InvalidInputError(
        f"{age!r} is no age: say a whole number and a unit, such as '7 days', '12 hours' or "
        "'30 minutes', or give a timedelta"
    )
