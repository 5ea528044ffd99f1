"""Random lives of tables, until the time is over.

    python -m tests.histories --minutes 10 --seed 1 [--steps 50]

A life that fails is shrunk and printed as a test. The end of a run says how many lives there were,
how often each step was done, and how often each rare path of the package was taken; a run of many
lives that misses one has failed.
"""

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.histories.engine import Outcome, as_test, make_life, shrink
from tests.histories.paths import PATHS, counted, missing
from tests.histories.steps import REGISTRY

LIVES_THAT_TAKE_ALL_PATHS = 200
"""So many lives have to take each path, and do each action and check."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m tests.histories",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="of the first life; by default a new one")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lives", type=int, default=sys.maxsize, help="at most so many")
    parser.add_argument("--failures", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--without", nargs="*", default=(), help="actions and checks to leave out")
    parser.add_argument("--shrink-seconds", type=float, default=60)
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else time.time_ns() % 10**9
    print(f"from seed {first}", flush=True)
    for name in arguments.without:
        del REGISTRY[name]
    started = time.monotonic()
    end = started + 60 * arguments.minutes
    counts: Counter[str] = Counter()
    failures: dict[tuple[str, str], list[int]] = {}
    seed = first
    taken: Counter[str] = Counter()
    while time.monotonic() < end and seed - first < arguments.lives:
        with counted(taken):
            outcome = make_life(seed, arguments.steps)
        counts.update(outcome.counts)
        counts["steps"] += len(outcome.steps)
        if outcome.error is not None:
            seeds = failures.setdefault(outcome.failure, [])
            seeds.append(seed)
            if len(seeds) == 1:
                report(seed, outcome, time.monotonic() - started, arguments.shrink_seconds)
        seed += 1
        if (seed - first) % 1000 == 0:
            print(f"{seed - first} lives, {len(failures)} kinds of failures", flush=True)
        if len(failures) >= arguments.failures:
            break
    seconds = time.monotonic() - started
    for name, count in sorted(counts.items()):
        print(f"{count:10,}  {name}")
    for name in PATHS:
        print(f"{taken[name]:10,}  path: {name}")
    print(
        f"{seed - first} lives, {counts['steps'] / seconds:.0f} steps a second, "
        f"{counts['steps'] / time.process_time():.0f} per CPU second"
    )
    for failure, seeds in failures.items():
        print(f"failed: {failure}: {len(seeds)} lives, seeds {seeds[:10]}")
    untaken = missing(taken) + [name for name in REGISTRY if not counts[name]]
    if seed - first < LIVES_THAT_TAKE_ALL_PATHS:
        untaken = []
    for name in untaken:
        print(f"never taken: {name}")
    return int(bool(failures or untaken))


def report(seed: int, outcome: Outcome, seconds: float, shrink_seconds: float) -> None:
    """Print a failure, shrunk."""
    print(f"seed {seed} failed after {seconds:.0f} s in step {len(outcome.steps)}", flush=True)
    shrunk = shrink(outcome, shrink_seconds)
    traceback.print_exception(shrunk.error)
    sys.stderr.flush()
    print(as_test(shrunk), flush=True)


if __name__ == "__main__":
    sys.exit(main())
