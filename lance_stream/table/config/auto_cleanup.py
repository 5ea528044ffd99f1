"""The config entries by which a table asks its writers to clean up old versions.

    lance.auto_cleanup.interval          a cleanup follows every commit whose version is a multiple
                                         of this number; 0: every commit; absent: never
    lance.auto_cleanup.older_than        the minimum age of a version to remove, `14d`, `1h 30m`;
                                         absent: any age
    lance.auto_cleanup.retain_versions   how many of the newest versions to keep, from 1; absent: 1

The age is a sum of numbers with units, from nanoseconds to years: `M` is a month of 30.44 days, `m`
a minute. Units are case-sensitive.

Source:  the reference's auto_cleanup_hook; observed in pylance 14.
Differs: `referenced_branch`, which cleans up the table's branches, too, is ignored: each branch is
         cleaned up by its own commits. `delete_rate_limit` and `delete_concurrency` are ignored,
         too: the settings of the store limit requests.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lance_stream.errors import InvalidInputError

PREFIX: Final = "lance.auto_cleanup."
INTERVAL: Final = f"{PREFIX}interval"
OLDER_THAN: Final = f"{PREFIX}older_than"
RETAIN_VERSIONS: Final = f"{PREFIX}retain_versions"

_MAX_U64: Final = 2**64 - 1
_NUMBER: Final = re.compile(r"\+?[0-9]{1,20}", re.ASCII)
_AGE: Final = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-zA-Zµ]+)")

_DAY: Final = 86400.0
_SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("nanos", "nsec", "ns"), 1e-9),
    **dict.fromkeys(("usec", "us", "µs"), 1e-6),
    **dict.fromkeys(("millis", "msec", "ms"), 1e-3),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("minutes", "minute", "mins", "min", "m"), 60.0),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), _DAY),
    **dict.fromkeys(("weeks", "week", "wks", "wk", "w"), 7 * _DAY),
    **dict.fromkeys(("months", "month", "M"), 30.44 * _DAY),
    **dict.fromkeys(("years", "year", "yrs", "yr", "y"), 365.25 * _DAY),
}


@dataclass(frozen=True, slots=True)
class AutoCleanup:
    """A cleanup that a table's config asks for.

    Attributes:
        older_than: The minimum age of a version to remove; None for any age.
        retain_versions: How many of the newest versions to keep, at least 1.
    """

    older_than: timedelta | None = None
    retain_versions: int = 1


def due_cleanup(config: Mapping[str, str], version: int) -> AutoCleanup | None:
    """Return the cleanup that should follow the commit of a version, or None.

    Raises:
        InvalidInputError: An entry has an invalid value.
    """
    if INTERVAL not in config:
        return None
    interval = _parse_number(INTERVAL, config[INTERVAL])
    if interval and version % interval:
        return None
    retained = config.get(RETAIN_VERSIONS)
    age = config.get(OLDER_THAN)
    return AutoCleanup(
        None if age is None else _parse_age(age),
        1 if retained is None else _parse_retained(retained),
    )


def check_auto_cleanup(entries: Mapping[str, str | None]) -> None:
    """Check the entries that a user sets, because commits ignore invalid ones.

    Raises:
        InvalidInputError: An entry has an invalid value.
    """
    settings = {key: value for key, value in entries.items() if value is not None}
    due_cleanup({INTERVAL: "1", **settings}, 0)


def _parse_retained(text: str) -> int:
    number = _parse_number(RETAIN_VERSIONS, text)
    if not number:
        raise InvalidInputError(
            f"the config entry {RETAIN_VERSIONS} is 0, but the newest version is always kept. Set "
            "it to a number from 1 with update_config, or remove it"
        )
    return number


def _parse_number(key: str, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _MAX_U64:
        raise InvalidInputError(
            f"the config entry {key} is {text!r:.100}, but must be a whole number; set it with "
            "update_config, or remove it"
        )
    return int(text)


def _parse_age(text: str) -> timedelta:
    if text == "0":
        return timedelta(0)
    seconds, end = 0.0, 0
    for part in _AGE.finditer(text):
        if part.start() != end or part[2] not in _SECONDS:
            break
        seconds, end = seconds + float(part[1]) * _SECONDS[part[2]], part.end()
    if not end or text[end:].strip():
        raise InvalidInputError(
            f"the config entry {OLDER_THAN} is {text!r:.100}, but must be an age with units, such "
            "as '14d' or '1h 30m'; set it with update_config, or remove it"
        )
    return timedelta(seconds=min(seconds, timedelta.max // timedelta(seconds=1)))
