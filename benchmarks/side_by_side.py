"""Two or more ways to do one thing, timed in turn.

Absolute times mean nothing on a shared machine; what counts is the ratio of medians of runs that
took turns. A round runs every contender once, so that a slow second of the machine hits all, in
an order of its own, so that nobody always follows the one that leaves the disk busy.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of each run of one contender."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the runs, in seconds."""
        return statistics.median(self.seconds)


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    before: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time each contender `rounds` times, in turn, after one round that is not counted.

    Args:
        contenders: What is run, by name.
        rounds: How many runs of each are counted.
        before: Run before each run, not timed; for example, removes what the last one wrote.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    shuffle = random.Random(rounds).shuffle
    for counted in range(-1, rounds):
        shuffle(order)
        for name, run in order:
            before()
            gc.collect()
            start = time.perf_counter()
            result = run()
            elapsed = time.perf_counter() - start
            del result
            if counted >= 0:
                seconds[name].append(elapsed)
    return {name: Timing(tuple(runs)) for name, runs in seconds.items()}


def speed_ratio(ours: Timing, theirs: Timing) -> float:
    """How many times as fast as theirs ours is: above 1 is faster."""
    return theirs.median / ours.median
