"""The thread of a derivation: what it repeats, what it waits for, and what ends it."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple

import pytest

from lance_stream.derived.reports import DerivedCommit
from lance_stream.derived.running import DerivedQuery
from lance_stream.errors import DerivedFunctionError, StoreUnavailableError

Outcome = tuple[DerivedCommit | None, int] | Exception

UNAVAILABLE = StoreUnavailableError("the store did not answer")
FAILED = DerivedFunctionError("the function failed")
IDLE = (None, 1)


def rounds(outcomes: Iterable[Outcome]) -> Callable[[int | None], tuple[DerivedCommit | None, int]]:
    """Return a function with these outcomes in turn; the last one has to end the query."""
    remaining = iter(outcomes)

    def follow(_version: int | None) -> tuple[DerivedCommit | None, int]:
        outcome = next(remaining)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return follow


@pytest.mark.parametrize(
    "outcomes",
    [
        [UNAVAILABLE] * 5,
        [*[UNAVAILABLE] * 4, IDLE, *[UNAVAILABLE] * 5],
        [IDLE, FAILED],
    ],
    ids=["five failures", "a success in between", "the function"],
)
def test_queries_end_after_exact_rounds(outcomes: list[Outcome]) -> None:
    """A store that is unavailable for a moment must not end a derivation, one that stays
    unavailable must not go unnoticed, and a faulty function is not called again.
    """
    later = DerivedCommit(num_computed=7)
    query = DerivedQuery(rounds([*outcomes, (later, 2), FAILED]), "f", 0)
    with pytest.raises(type(outcomes[-1])) as raised:
        query.await_termination(60)
    assert raised.value is outcomes[-1]
    assert query.last_commit is None


def test_pending_rows_are_computed_without_waiting() -> None:
    """A large table is computed in pieces: an interval between them would take days."""
    last = DerivedCommit(num_pending=0)
    pieces: list[Outcome] = [(DerivedCommit(num_pending=1), -1), (last, -1), FAILED]
    query = DerivedQuery(rounds(pieces), "f", 3600)
    with pytest.raises(DerivedFunctionError):
        query.await_termination(60)
    assert query.last_commit is last


def test_nobody_waits_for_a_stopped_query() -> None:
    """An ended query never becomes idle again, so waiting for that would take forever."""
    query = DerivedQuery(rounds([IDLE]), "f", 3600)
    query.stop()
    start = time.monotonic()
    assert not query.wait_until_idle(40)
    assert time.monotonic() - start < 20


def test_stopped_queries_are_not_idle() -> None:
    """A query that was stopped after computing rows has not checked for more."""
    stopping = threading.Event()

    def follow(_version: int | None) -> tuple[DerivedCommit | None, int]:
        stopping.wait(60)
        return DerivedCommit(num_computed=7), 2

    query = DerivedQuery(follow, "f", 3600)

    def stop() -> None:
        stopping.set()
        query.stop()

    threading.Timer(0.2, stop).start()
    assert not query.wait_until_idle(40)


def test_busy_queries_are_not_idle() -> None:
    """A caller that takes a query for idle would read values that are not computed yet."""
    stopping = threading.Event()

    def follow(_version: int | None) -> tuple[DerivedCommit | None, int]:
        stopping.wait(60)
        return IDLE

    query = DerivedQuery(follow, "f", 3600)
    assert not query.wait_until_idle(0.01)
    stopping.set()
    assert query.wait_until_idle(60)
    query.stop()


def test_nobody_waits_for_a_failed_query() -> None:
    """A caller that begins to wait after the failure learns of it at once, too."""
    query = DerivedQuery(rounds([FAILED]), "f", 3600)
    with pytest.raises(DerivedFunctionError):
        query.await_termination(60)
    start = time.monotonic()
    with pytest.raises(DerivedFunctionError):
        query.wait_until_idle(40)
    assert time.monotonic() - start < 20


def test_reports_of_no_round_are_empty() -> None:
    """The rounds of a query are added to one, which would count rows that nobody computed."""
    assert astuple(DerivedCommit()) == (None, *[0] * 9)
    report = DerivedCommit(3, 2, 1, 9, 8, 1, 7, 6, 5, 4)
    assert DerivedCommit() + report == report
