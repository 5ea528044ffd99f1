from datetime import timedelta
from typing import Any

import pytest

from lance_stream.ages import parse_age
from lance_stream.errors import InvalidInputError


@pytest.mark.parametrize(
    ("age", "parsed"),
    [
        ("7 days", timedelta(days=7)),
        ("1 day", timedelta(days=1)),
        ("12h", timedelta(hours=12)),
        (" 90  Minutes ", timedelta(minutes=90)),
        ("2w", timedelta(weeks=2)),
        ("30 seconds", timedelta(seconds=30)),
        (timedelta(milliseconds=5), timedelta(milliseconds=5)),
        ("999999999 weeks", timedelta.max // timedelta(seconds=1) * timedelta(seconds=1)),
    ],
)
def test_these_are_ages(age: Any, parsed: timedelta) -> None:
    assert parse_age(age) == parsed


@pytest.mark.parametrize(
    "age", ["", "7", "days", "7 fortnights", "-1 day", "1.5 days", "7 days ago", "7 ss", 7, None]
)
def test_these_are_none_and_the_message_says_what_is(age: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"is no age: say .* '7 days'"):
        parse_age(age)


@pytest.mark.parametrize("age", ["0 days", timedelta(0), timedelta(days=-1)])
def test_an_age_is_longer_than_nothing(age: Any) -> None:
    with pytest.raises(InvalidInputError, match="not longer than nothing"):
        parse_age(age)
