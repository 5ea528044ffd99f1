"""Times two or more ways to do one thing, in turn.

Absolute times mean nothing on a shared machine; only the ratio of medians of runs that took turns
counts. A round runs every contender once, so that a slow second of the machine affects all, in
random order, so that none always follows the one that leaves the disk busy. Each contender runs in
its own process: in a shared one, memory that one contender has freed makes the next one fast or
slow, with any allocator.
"""

import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection


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
    """Time each contender `rounds` times, in turn, after two rounds that are not counted.

    Args:
        contenders: Functions by name; they must be picklable.
        rounds: How many runs of each are counted.
        before: Run before each run, not timed; for example, removes what the last one wrote.
    """
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    calls: dict[str, Connection] = {}
    processes = []
    for name, run in contenders.items():
        calls[name], answers = context.Pipe()
        process = context.Process(target=_run_when_called, args=(run, answers), daemon=True)
        process.start()
        answers.close()
        processes.append(process)
    order = list(contenders)
    shuffle = random.Random(rounds).shuffle
    for counted in range(-2, rounds):
        shuffle(order)
        for name in order:
            before()
            calls[name].send(True)
            elapsed = calls[name].recv()
            if counted >= 0:
                seconds[name].append(elapsed)
    for name, process in zip(contenders, processes, strict=True):
        calls[name].send(False)
        process.join()
    return {name: Timing(tuple(runs)) for name, runs in seconds.items()}


def speed_ratio(ours: Timing, theirs: Timing) -> float:
    """Return our speed divided by theirs: above 1, ours is faster."""
    return theirs.median / ours.median


def _run_when_called(run: Callable[[], object], calls: Connection) -> None:
    while calls.recv():
        gc.collect()
        start = time.perf_counter()
        result = run()
        elapsed = time.perf_counter() - start
        del result
        calls.send(elapsed)


class Worker:
    """A process that runs functions and returns their durations.

    As a context manager, it ends with the block.

    Args:
        clock: What measures them: `time.perf_counter`, or `time.process_time`, which adds up the
            CPU time of all its threads.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, answers = context.Pipe()
        self._process = context.Process(target=_serve, args=(answers, clock), daemon=True)
        self._process.start()
        answers.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.send(None)
        self._process.join()

    def seconds(self, run: Callable[..., object], *arguments: object) -> float:
        """Run a picklable function; return the seconds that it took.

        Raises:
            RuntimeError: The function raised an error, which the message contains.
        """
        self._calls.send((run, arguments))
        elapsed, error = self._calls.recv()
        if error is not None:
            raise RuntimeError(error)
        return float(elapsed)


def _serve(calls: Connection, clock: Callable[[], float]) -> None:
    while (call := calls.recv()) is not None:
        run, arguments = call
        gc.collect()
        start = clock()
        try:
            run(*arguments)
        except Exception as error:
            calls.send((0.0, f"{type(error).__name__}: {error}"))
        else:
            calls.send((clock() - start, None))
