"""Which indices are left alone for a while because they could not be brought up to date."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lance_stream.maintenance.indices.coverage import IndexCoverage

FIRST_SECONDS: Final = 30.0
MOST_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class _Hold:
    """Until when an index is left alone, and the state of it that this is about."""

    until: float
    seconds: float
    state: tuple[object, ...]


class Holds:
    """Doubles the time after each failure of an index, and of rounds as a whole.

    An index that someone has made again is not the one that failed.

    Args:
        clock: The time in seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, _Hold] = {}
        self._after_error = 0.0

    def holds(self, index: IndexCoverage) -> bool:
        """Return whether an index is left alone."""
        hold = self._by_name.get(index.name)
        return hold is not None and hold.state == _state(index) and self._clock() < hold.until

    def seconds_left(self, indices: Sequence[IndexCoverage]) -> float | None:
        """Return for how long all of some indices are left alone; None for no indices."""
        left = [self._by_name[index.name].until - self._clock() for index in indices]
        return max(0.0, min(left)) if left else None

    def note(
        self, names: Collection[str], problems: Mapping[str, str], indices: Sequence[IndexCoverage]
    ) -> None:
        """Note what became of indices.

        Args:
            names: Those that were to be brought up to date.
            problems: Those of them that could not be, with the cause.
            indices: The state of all indices afterwards.
        """
        for index in indices:
            if index.name in problems:
                last = self._by_name.get(index.name)
                seconds = _doubled(0.0 if last is None else last.seconds)
                self._by_name[index.name] = _Hold(self._clock() + seconds, seconds, _state(index))
        for name in set(names) - problems.keys():
            self._by_name.pop(name, None)

    def seconds_after_error(self) -> float:
        """Return for how long to do nothing after a round that failed as a whole."""
        self._after_error = _doubled(self._after_error)
        return self._after_error

    def forget_error(self) -> None:
        """Note that a round did not fail as a whole."""
        self._after_error = 0.0


def _doubled(seconds: float) -> float:
    return min(max(2 * seconds, FIRST_SECONDS), MOST_SECONDS)


def _state(index: IndexCoverage) -> tuple[object, ...]:
    return index.kind, index.columns, index.built_at, index.num_segments
