"""Lets contenders live: batch by batch in turn, each in processes of its own."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.long_life.contenders import Contender, Figures, contender
from benchmarks.long_life.workload import Workload

Lines = dict[str, list[Figures]]
"""By contender, what was measured after each batch."""

_CONTENDERS: list[Contender] = []
"""The contender of a process."""


def live(
    names: Sequence[str],
    workload: Workload,
    batches: int,
    window: int,
    folder: Path,
    note: Callable[[int, Lines], None] = lambda _number, _lines: None,
) -> Lines:
    """Write batches into the table of each contender; return what was measured.

    The order of turns is random in each round. After each window of batches the tables are read,
    by a process that does nothing else, and their old versions are removed: neither is timed as
    part of a batch.

    Args:
        names: Names of contenders.
        workload: The life of their tables.
        batches: How many batches there are.
        window: After how many batches the tables are read.
        folder: For the tables.
        note: Called after each window with the number of batches.
    """
    lines: Lines = {name: [] for name in names}
    order = list(names)
    shuffle = random.Random(workload.seed).shuffle
    with ExitStack() as stack:
        writers, readers = (
            {name: stack.enter_context(_process(name, folder, workload)) for name in names}
            for _ in range(2)
        )
        for name in names:
            writers[name]("begin")
        for number in range(1, batches + 1):
            shuffle(order)
            for name in order:
                figures = writers[name]("next_batch")
                lines[name].append(figures | {"at": time.time()})
            if number % window and number != batches:
                continue
            for name in order:
                lines[name][-1] |= writers[name]("state") | readers[name]("reads", number, 5)
            for name in order:
                writers[name]("cleanup")
            note(number, lines)
        for name in names:
            writers[name]("check")
    return lines


@contextmanager
def _process(name: str, folder: Path, workload: Workload) -> Iterator[Callable[..., Any]]:
    """Start a process with a contender; yield a function that calls a method of it."""
    context = get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=_begin, initargs=(name, folder, workload)
    ) as pool:
        yield lambda method, *arguments: pool.submit(_call, method, *arguments).result()


def _begin(name: str, folder: Path, workload: Workload) -> None:
    _CONTENDERS.append(contender(name, folder, workload))


def _call(method: str, *arguments: object) -> Any:
    return getattr(_CONTENDERS[0], method)(*arguments)
