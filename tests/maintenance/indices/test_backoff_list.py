"""Indices that could not be brought up to date are left alone, longer each time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lance_stream import IndexCoverage
from lance_stream.maintenance.indices.backoff_list import FIRST_SECONDS, MAX_SECONDS, BackoffList

NOW = datetime(2026, 11, 23, tzinfo=UTC)
INDEX = IndexCoverage("i", "BTREE", ("id",), 10, 5, 1, NOW, 1, 0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def backoff_seconds(backoffs: BackoffList, clock: Clock) -> float | None:
    backoffs.record_round(["i"], {"i": "damaged"}, [INDEX])
    remaining = backoffs.seconds_remaining([INDEX])
    assert remaining is not None
    assert backoffs.contains(INDEX)
    clock.now += remaining
    assert not backoffs.contains(INDEX)
    return remaining


def test_failures_double_the_wait() -> None:
    """An index that cannot be built must cost less and less, up to a bound; a success resets it."""
    clock = Clock()
    backoffs = BackoffList(clock)
    times = [backoff_seconds(backoffs, clock) for _ in range(9)]
    assert times[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert times[-1] == MAX_SECONDS
    backoffs.record_round(["i"], {}, [INDEX])
    assert backoff_seconds(backoffs, clock) == FIRST_SECONDS


def test_rebuilt_indices_are_retried() -> None:
    """Rebuilding is the remedy that the message recommends, so it has to work at once."""
    backoffs = BackoffList(Clock())
    backoffs.record_round(["i"], {"i": "damaged"}, [INDEX])
    assert not backoffs.contains(replace(INDEX, built_at=NOW + timedelta(seconds=1)))
    assert not backoffs.contains(replace(INDEX, name="j"))
    assert backoffs.contains(replace(INDEX, rows_unindexed=7))
    assert backoffs.seconds_remaining([]) is None


def test_failing_rounds_move_further_apart() -> None:
    """An error of the whole round, such as an unreachable store, must not be repeated at every
    batch.
    """
    backoffs = BackoffList(Clock())
    assert backoffs.seconds_after_error() == FIRST_SECONDS
    assert backoffs.seconds_after_error() == 2 * FIRST_SECONDS
    backoffs.forget_error()
    assert backoffs.seconds_after_error() == FIRST_SECONDS
