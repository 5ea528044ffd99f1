"""Indices that could not be brought up to date are left alone, longer each time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lance_stream import IndexCoverage
from lance_stream.maintenance.indices.holds import FIRST_SECONDS, MOST_SECONDS, Holds

NOW = datetime(2026, 11, 23, tzinfo=UTC)
INDEX = IndexCoverage("i", "BTREE", ("id",), 10, 5, 1, NOW, 1, 0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seconds_held(holds: Holds, clock: Clock) -> float | None:
    holds.note(["i"], {"i": "damaged"}, [INDEX])
    left = holds.seconds_left([INDEX])
    assert left is not None
    assert holds.holds(INDEX)
    clock.now += left
    assert not holds.holds(INDEX)
    return left


def test_each_failure_doubles_the_time() -> None:
    clock = Clock()
    holds = Holds(clock)
    times = [seconds_held(holds, clock) for _ in range(9)]
    assert times[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert times[-1] == MOST_SECONDS
    holds.note(["i"], {}, [INDEX])
    assert seconds_held(holds, clock) == FIRST_SECONDS


def test_an_index_that_was_made_again_is_not_held() -> None:
    holds = Holds(Clock())
    holds.note(["i"], {"i": "damaged"}, [INDEX])
    assert not holds.holds(replace(INDEX, built_at=NOW + timedelta(seconds=1)))
    assert not holds.holds(replace(INDEX, name="j"))
    assert holds.holds(replace(INDEX, rows_unindexed=7))
    assert holds.seconds_left([]) is None


def test_rounds_that_fail_are_further_apart() -> None:
    holds = Holds(Clock())
    assert holds.seconds_after_error() == FIRST_SECONDS
    assert holds.seconds_after_error() == 2 * FIRST_SECONDS
    holds.forget_error()
    assert holds.seconds_after_error() == FIRST_SECONDS
