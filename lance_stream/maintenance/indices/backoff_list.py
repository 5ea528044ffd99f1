"""Indices whose last update failed, and how long to wait before the next attempt."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lance_stream.maintenance.indices.coverage import IndexCoverage

FIRST_SECONDS: Final = 30.0
MAX_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class _Backoff:
    """When to try an index again, and the state of the index that failed."""

    until: float
    seconds: float
    state: tuple[object, ...]


class BackoffList:
    """Doubles the delay after every failure of an index, and after every failed round.

    An index that someone has rebuilt starts without a delay.

    Args:
        clock: Returns the time in seconds, from any origin.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, _Backoff] = {}
        self._after_error = 0.0

    def contains(self, index: IndexCoverage) -> bool:
        """Return whether an index waits for its next attempt."""
        backoff = self._by_name.get(index.name)
        if backoff is None or backoff.state != _state(index):
            return False
        return self._clock() < backoff.until

    def seconds_remaining(self, indices: Sequence[IndexCoverage]) -> float | None:
        """Return the seconds until the first of some indices is due; None without indices."""
        seconds = [self._by_name[index.name].until - self._clock() for index in indices]
        return max(0.0, min(seconds)) if seconds else None

    def record_round(
        self, names: Collection[str], problems: Mapping[str, str], indices: Sequence[IndexCoverage]
    ) -> None:
        """Record the outcome of a round.

        Args:
            names: The indices that the round tried to update.
            problems: The failed ones, with the cause.
            indices: The state of all indices after the round.
        """
        for index in indices:
            if index.name in problems:
                last = self._by_name.get(index.name)
                seconds = _doubled(0.0 if last is None else last.seconds)
                self._by_name[index.name] = _Backoff(
                    self._clock() + seconds, seconds, _state(index)
                )
        for name in set(names) - problems.keys():
            self._by_name.pop(name, None)

    def seconds_after_error(self) -> float:
        """Return how many seconds to wait after a round that failed as a whole."""
        self._after_error = _doubled(self._after_error)
        return self._after_error

    def forget_error(self) -> None:
        """Reset the delay after a round that did not fail as a whole."""
        self._after_error = 0.0


def _doubled(seconds: float) -> float:
    return min(max(2 * seconds, FIRST_SECONDS), MAX_SECONDS)


def _state(index: IndexCoverage) -> tuple[object, ...]:
    return index.kind, index.columns, index.built_at, index.num_segments
