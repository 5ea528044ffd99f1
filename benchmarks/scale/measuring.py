"""Measures an action in a process of its own: CPU time, memory, and the files that it opens."""

import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.scale.actions import Action


@dataclass(frozen=True)
class Cost:
    """What an action cost.

    Attributes:
        first: CPU milliseconds of the first run.
        again: Of the second.
        peak_mb: By how much the process has grown.
        files: How many files the second run opened, and how many folders it listed.
        result: What it returned, if that is a dictionary.
    """

    first: float
    again: float
    peak_mb: float
    files: int
    result: Mapping[str, int]


def measure(action: Action, uri: str) -> Cost:
    """Run an action in a process of its own.

    Raises:
        RuntimeError: It failed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_run, args=(action, uri, sender), daemon=True)
    process.start()
    sender.close()
    try:
        costs = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{action.__name__} failed on {uri}") from None
    finally:
        process.join()
    return Cost(*costs)


def _run(action: Action, uri: str, answer: Connection) -> None:
    opened: Counter[bool] = Counter()

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir"):
            opened[str(arguments[0]).startswith(uri)] += 1

    sys.addaudithook(hear)
    gc.collect()
    before = _peak_kb()
    times = []
    for _ in range(2):
        opened.clear()
        start = time.process_time()
        result = action(uri)
        times.append(1000 * (time.process_time() - start))
    counts = result if isinstance(result, dict) else {}
    answer.send((*times, (_peak_kb() - before) / 1000, opened[True], counts))


def _peak_kb() -> int:
    """Return the most memory that the process has had, as its own program."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])
