"""Which texts denote dates and times, and which ones: those of Spark, except for rare forms."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from lance_stream.expressions.evaluation.times import parse_date, parse_time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAP = date(2024, 2, 29)


def ticks(moment: datetime) -> int:
    """Return the microseconds since 1970 of a time, in UTC unless it has another zone."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def in_zone(hours: int, minutes: int = 0) -> datetime:
    zone = timezone(timedelta(hours=hours, minutes=minutes))
    return datetime(2024, 2, 29, 12, 30, 15, tzinfo=zone)


TIMES = {
    "2024": datetime(2024, 1, 1),
    "2024-2": datetime(2024, 2, 1),
    "2024-02-9": datetime(2024, 2, 9),
    "\t 2024-02-29\n\x7f": datetime(2024, 2, 29),
    "0001-01-01": datetime(1, 1, 1),
    "1969-12-31 23:59:59.999999": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "9999-12-31 23:59:59.999999": datetime(9999, 12, 31, 23, 59, 59, 999999),
    "2024-02-29 12:3": datetime(2024, 2, 29, 12, 3),
    "2024-02-29T1:2:3": datetime(2024, 2, 29, 1, 2, 3),
    "2024-02-29 12:30:15.1": datetime(2024, 2, 29, 12, 30, 15, 100000),
    "2024-02-29 12:30:15.123456789": datetime(2024, 2, 29, 12, 30, 15, 123456),
    "2024-02-29 00:00:00": datetime(2024, 2, 29),
    "2024-02-29 12:30:15Z": in_zone(0),
    "2024-02-29 12:30:15+01:30": in_zone(1, 30),
    "2024-02-29 12:30:15-01:30": in_zone(-1, -30),
    "2024-02-29 12:30:15+00:59": in_zone(0, 59),
    "2024-02-29 12:30:15+18:00": in_zone(18),
    "2024-02-29 12:30:15-18:00": in_zone(-18),
    "2024-02-29 12:30+01:00": in_zone(1).replace(second=0),
}

NO_TIMES = [
    *("", "x", "-", "12:30", "T12:30", "2024-", "2024-02-", "2024/02/29", "2024-02-29x", "now"),
    *("24-01-01", "02024-01-01", "10000-01-01", "-001-01-01", "0000-01-01"),
    *("2024-13-01", "2024-00-01", "2024-01-00", "2024-01-32", "2024-02-30", "2023-02-29"),
    *("2024-02-29+01:00", "\u0662024-02-29"),
]
"""Neither dates nor times."""

ONLY_DATES = [
    f"2024-02-29{rest}"
    for rest in (
        *(" 12", "T", "T12", " 12:", "  12:30", " 24:00:00", " 12:60:00", " 12:30:60", " 12:30:"),
        *(" 12:30:15.", " 12:30:15.1234567891", " 12:30:15 Z", " 12:30:15UTC", " 12:30:15+1"),
        *(" 12:30:15+01", " 12:30:15+0130", " 12:30:15+1:30", " 12:30:15+18:01"),
        *(" 12:30:15-18:01", " 12:30:15+17:60", " 12:30:15 GMT+1", " 12:30:15 Europe/Berlin"),
    )
]
"""Texts whose date is read, as in Spark, although their time is none."""


@pytest.mark.parametrize("text", TIMES)
def test_times_have_the_forms_of_spark(text: str) -> None:
    """A filter on another time would delete other rows."""
    expected = ticks(TIMES[text])
    has_zone = text[-1] == "Z" or (text[-6:-5] in ("+", "-") and ":" in text)
    assert parse_time(text, "us") == (expected, has_zone)
    nanos = parse_time(text, "ns")
    assert nanos is not None
    extra = 789 if text.endswith("789") else 0
    assert nanos == (expected * 1000 + extra, has_zone)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        *((text, TIMES[text].date()) for text in TIMES),
        *((text, None) for text in NO_TIMES),
        *((text, LEAP) for text in ONLY_DATES),
    ],
)
def test_dates_ignore_what_follows_them(text: str, day: date | None) -> None:
    """Spark reads the date of a text that continues with a blank or a T."""
    assert parse_date(text) == day


@pytest.mark.parametrize("text", [*NO_TIMES, *ONLY_DATES])
def test_other_texts_are_no_times(text: str) -> None:
    """A guess would be a wrong value that nobody notices."""
    assert parse_time(text, "us") is None
