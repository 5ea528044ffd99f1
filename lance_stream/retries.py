"""Retries: how often an operation is tried, how long to wait in between, and when to give up.

Operations are nested: a commit publishes a version, which sends requests, and each of them has
retries. The time limit of an outer operation applies to all inner ones: they give up once it is
exhausted. So an operation takes at most its `total_seconds` plus the time of one attempt, however
many retry loops it contains.
"""

import math
from collections.abc import Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType

from lance_stream.environment import MACHINE, Environment


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of an operation.

    Attributes:
        max_attempts: Maximum number of attempts.
        first_delay_seconds: Upper bound of the random wait after the first attempt; it doubles with
            each attempt.
        max_delay_seconds: Upper bound of every wait.
        total_seconds: No attempt starts after this time.
    """

    max_attempts: int
    first_delay_seconds: float
    max_delay_seconds: float
    total_seconds: float = math.inf

    def delay_seconds(self, attempt: int, chance: float) -> float:
        """Return how long to wait after an attempt.

        Args:
            attempt: The attempt's number, from 1.
            chance: A random number from 0 up to 1.
        """
        bound = min(self.first_delay_seconds * 2.0 ** min(attempt - 1, 30), self.max_delay_seconds)
        return bound * chance


class Retrying:
    """The attempts at one operation.

    Iterating yields the number of each attempt, from 1, and waits before the next one. As a context
    manager, it is the time limit of all operations in its body, also of those that run as
    coroutines on another thread.

    Args:
        policy: The limits.
        environment: The clock and randomness; sleeps between attempts.

    Attributes:
        number: The number of the current attempt.
    """

    def __init__(self, policy: RetryPolicy, environment: Environment = MACHINE) -> None:
        self.number = 1
        self._policy = policy
        self._environment = environment
        self._begin = environment.monotonic()
        self._outer = _operation.get()
        self._token: Token[Retrying | None] | None = None

    def __enter__(self) -> "Retrying":
        self._token = _operation.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _operation.reset(self._token)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.number
            if not self.wait():
                return

    @property
    def seconds_spent(self) -> float:
        """The time since the operation began."""
        return self._environment.monotonic() - self._begin

    @property
    def seconds_remaining(self) -> float:
        """The time during which another attempt may start, also according to outer operations."""
        remaining = self._policy.total_seconds - self.seconds_spent
        return remaining if self._outer is None else min(remaining, self._outer.seconds_remaining)

    def next_delay(self, min_seconds: float = 0.0) -> float | None:
        """Count another attempt, and return the delay before it; None if there are no more.

        Args:
            min_seconds: The delay that the service requests.
        """
        policy = self._policy
        delay = max(
            min(min_seconds, policy.max_delay_seconds),
            policy.delay_seconds(self.number, self._environment.chance()),
        )
        if self.number >= policy.max_attempts or delay > self.seconds_remaining:
            return None
        self.number += 1
        return delay

    def wait(self) -> bool:
        """Wait for another attempt; return whether there is one."""
        delay = self.next_delay()
        if delay is not None:
            self._environment.sleep(delay)
        return delay is not None

    def __str__(self) -> str:
        """Return the attempts, the time that they took, and the limits: for errors."""
        policy = self._policy
        times = "1 attempt" if self.number == 1 else f"{self.number} attempts"
        limits = f"{policy.max_attempts} attempts"
        if math.isfinite(policy.total_seconds):
            limits += f" and {policy.total_seconds:g} s"
        if self._outer is not None and self._outer.seconds_remaining < policy.total_seconds:
            limits += f", within the {self._outer.limit_seconds:g} s of the whole operation"
        return f"{times} in {self.seconds_spent:.1f} s (limits: {limits})"

    @property
    def limit_seconds(self) -> float:
        """The time limit of this operation, or that of an outer one if it is shorter."""
        limit = self._policy.total_seconds
        return limit if self._outer is None else min(limit, self._outer.limit_seconds)


_operation: ContextVar[Retrying | None] = ContextVar("operation", default=None)
