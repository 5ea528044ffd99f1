"""Nested operations end with the outermost one."""

import asyncio
import threading
from dataclasses import replace

from lance_stream.environment import MACHINE, Environment
from lance_stream.retries import Retrying, RetryPolicy


class Clock:
    """Time that passes only while something waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.environment: Environment = replace(
            MACHINE, chance=lambda: 1.0, monotonic=lambda: self.seconds, sleep=self.sleep
        )

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_attempts_end_at_the_first_limit() -> None:
    """Either the number of attempts or the time can be the limit."""
    clock = Clock()
    assert list(Retrying(RetryPolicy(3, 1.0, 8.0, 100.0), clock.environment)) == [1, 2, 3]
    assert clock.seconds == 1 + 2
    clock = Clock()
    assert list(Retrying(RetryPolicy(99, 1.0, 8.0, 10.0), clock.environment)) == [1, 2, 3, 4]
    assert clock.seconds == 1 + 2 + 4


def test_the_outermost_deadline_limits_all() -> None:
    """Four levels with 30 attempts each would otherwise take days."""
    clock = Clock()
    policy = RetryPolicy(30, 1.0, 1.0, total_seconds=50.0)
    num_requests = 0
    with Retrying(policy, clock.environment) as commit:
        for _ in commit:
            with Retrying(policy, clock.environment) as publication:
                for _ in publication:
                    with Retrying(policy, clock.environment) as creation:
                        for _ in creation:
                            for _ in Retrying(policy, clock.environment):
                                num_requests += 1
    assert clock.seconds <= 50
    assert num_requests < 60
    assert list(Retrying(policy, clock.environment))[-1] == 30, "the limit has ended"


def test_deadlines_reach_request_threads() -> None:
    """Requests run as coroutines on a thread of their own."""
    clock = Clock()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def request() -> float:
        return Retrying(RetryPolicy(9, 1.0, 1.0, 120.0), clock.environment).seconds_remaining

    with Retrying(RetryPolicy(9, 1.0, 1.0, 7.0), clock.environment):
        remaining = asyncio.run_coroutine_threadsafe(request(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert remaining == 7


def test_errors_state_attempts_time_and_limits() -> None:
    """A reader of the message can tell which limit to raise."""
    clock = Clock()
    with Retrying(RetryPolicy(2, 4.0, 4.0, total_seconds=6.0), clock.environment):
        request = Retrying(RetryPolicy(60, 4.0, 4.0, total_seconds=120.0), clock.environment)
        list(request)
    assert str(request) == (
        "2 attempts in 4.0 s (limits: 60 attempts and 120 s, within the 6 s of the whole operation)"
    )
    alone = Retrying(RetryPolicy(5, 1.0, 1.0), clock.environment)
    assert str(alone) == "1 attempt in 0.0 s (limits: 5 attempts)"
