"""How soon to try again: after a random while, the longest of which doubles with each attempt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """How soon to try again.

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
