"""The command line of random histories, which are played for some minutes, seed after seed."""

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar


class History(Protocol):
    """What can be played: a table, its verbs, and a model of it."""

    notes: list[str]

    def __init__(self, folder: str, seed: int) -> None: ...

    def step(self) -> None:
        """Do one thing, and check what it did."""

    def finish(self) -> None:
        """Check the whole."""


HistoryT = TypeVar("HistoryT", bound=History)


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
    seed, wrong, counts = arguments.seed, [], Counter[str]()
    while time.monotonic() < end and seed - arguments.seed < arguments.histories:
        try:
            counts.update(play(seed, arguments.steps))
        except Exception:
            traceback.print_exc()
            wrong.append(seed)
        seed += 1
    print(f"{seed - arguments.seed} histories from seed {arguments.seed}; wrong: {wrong or 'none'}")
    for name, count in sorted(counts.items()):
        print(f"{count:10,}  {name}")
    return int(bool(wrong) or not counts.total())


def run(kind: type[HistoryT], seed: int, num_steps: int) -> HistoryT:
    """Make one history in a folder of its own, check it, and return it.

    Args:
        kind: Made of the folder and the seed; keeps in `notes` what it does.
        seed: Settles what happens.
        num_steps: How many steps it has.

    Raises:
        AssertionError: A check failed; the error's notes are the history.
    """
    with tempfile.TemporaryDirectory(prefix="lance-stream-") as folder:
        history = kind.__new__(kind)  # what it tells is wanted also where it fails to begin
        try:
            history.__init__(folder, seed)  # type: ignore[misc]  # it has just been made
            for _ in range(num_steps):
                history.step()
            history.finish()
        except BaseException as error:
            for line in getattr(history, "notes", ()):
                error.add_note(line)
            raise
        return history


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
