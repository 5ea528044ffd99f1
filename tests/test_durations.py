from datetime import timedelta
from typing import Any

import pytest

from lance_stream.durations import parse_age
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
        ("1.5 days", timedelta(hours=36)),
        ("1500ms", timedelta(seconds=1.5)),
        (timedelta(milliseconds=5), timedelta(milliseconds=5)),
        ("999999999 weeks", timedelta.max // timedelta(seconds=1) * timedelta(seconds=1)),
    ],
)
def test_texts_and_deltas_become_ages(age: Any, parsed: timedelta) -> None:
    """Users write ages with any usual unit, and huge ones must not overflow."""
    assert parse_age(age) == parsed


@pytest.mark.parametrize(
    "age", ["", "7", "days", "7 fortnights", "-1 day", "1. days", "7 days ago", "7 ss", 7, None]
)
def test_malformed_ages_are_refused(age: Any) -> None:
    """An age decides what is deleted, so a number without a unit must not be guessed at."""
    with pytest.raises(InvalidInputError, match=r"is not an age: give .* '7 days'"):
        parse_age(age)


@pytest.mark.parametrize("age", ["0 days", timedelta(0), timedelta(days=-1)])
def test_ages_must_be_positive(age: Any) -> None:
    """An age of zero would delete what was written just now."""
    with pytest.raises(InvalidInputError, match="is not positive"):
        parse_age(age)
