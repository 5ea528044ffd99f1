"""How often a commit tries again, and how soon.

Each attempt loses only against a commit that succeeded meanwhile, so that many writers together
always get on; waiting a random while keeps them from meeting again at once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """When to try again.

    Attributes:
        max_attempts: How many attempts there are in all.
        first_delay_seconds: The longest wait after the first attempt; it doubles with each.
        max_delay_seconds: The longest wait after any.
    """

    max_attempts: int = 30
    first_delay_seconds: float = 0.02
    max_delay_seconds: float = 2.0

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


RETRIES = Retries()
"""What a commit does when it is not told otherwise."""
