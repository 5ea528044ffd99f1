"""How often a commit tries again, and how soon.

Each attempt loses only against a commit that succeeded meanwhile, so that many writers together
always get on; waiting a random while keeps them from meeting again at once.
"""

from dataclasses import dataclass

from lance_stream.storage.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Retries(Backoff):
    """When to try again; see `Backoff`."""

    max_attempts: int = 30
    first_delay_seconds: float = 0.02
    max_delay_seconds: float = 2.0


RETRIES = Retries()
"""What a commit does when it is not told otherwise."""
