"""Waiting before another attempt: a random time, whose upper bound doubles with each attempt."""

from dataclasses import dataclass

from lance_stream.environment import MACHINE, Environment


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try, and how long to wait in between.

    Attributes:
        max_attempts: How many attempts there are in all.
        first_delay_seconds: The longest wait after the first attempt; it doubles with each.
        max_delay_seconds: The longest wait after any.
    """

    max_attempts: int
    first_delay_seconds: float
    max_delay_seconds: float

    def delay_seconds(self, attempt: int, chance: float) -> float:
        """Return how long to wait after an attempt.

        Args:
            attempt: The attempt's number, from 1.
            chance: A random number from 0 up to 1.
        """
        longest = min(
            self.first_delay_seconds * 2.0 ** min(attempt - 1, 30), self.max_delay_seconds
        )
        return longest * chance

    def wait(self, attempt: int, environment: Environment = MACHINE) -> None:
        """Wait after an attempt.

        Args:
            attempt: The attempt's number, from 1.
            environment: What sleeps, and the randomness.
        """
        environment.sleep(self.delay_seconds(attempt, environment.chance()))
