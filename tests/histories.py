"""The command line of random histories, which are played for some minutes, seed after seed."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path


def main(play: Callable[[int, int], Mapping[str, int]], *, steps: int, what: str = "steps") -> int:
    """Play histories until the time is over, and print what was done in them.

    The module that is run describes itself; its docstring is the help. A history that raises is
    printed, and the next seed is played: one finding does not hide another.

    Args:
        play: Plays the history of a seed, with so many steps, and counts what it did.
        steps: The steps of a history, unless the command line gives them.
        what: What the steps are.

    Returns:
        The exit code: 1 if a history was wrong, or nothing was done.
    """
    arguments = _parser(steps, what).parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    seed, wrong, done = arguments.seed, [], Counter[str]()
    while time.monotonic() < end and seed - arguments.seed < arguments.histories:
        try:
            done.update(play(seed, arguments.steps))
        except Exception:
            traceback.print_exc()
            wrong.append(seed)
        seed += 1
    print(f"{seed - arguments.seed} histories from seed {arguments.seed}; wrong: {wrong or 'none'}")
    for name, count in sorted(done.items()):
        print(f"{count:10,}  {name}")
    return int(bool(wrong) or not done.total())


def _parser(steps: int, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        prog=f"python -m {_module_that_is_run()}",
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; 1 by default")
    parser.add_argument("--steps", type=int, default=steps, help=f"{what} of a history")
    parser.add_argument(
        "--histories", type=int, default=sys.maxsize, help="so many at most; no limit by default"
    )
    return parser


def _module_that_is_run() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).stem
