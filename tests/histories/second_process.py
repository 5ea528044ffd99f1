"""A second process that writes to the tables of a life, with caches of its own.

It is started when a life needs it first, and stays: so it holds what it has read from one step to
its next one, whatever the first process has written between them.
"""

import multiprocessing
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

import lance_stream
from tests.histories.thresholds import lowered

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""So long a step may take."""


class SecondProcess:
    """The process, and the connection to it."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        code = f"from tests.histories.second_process import serve; serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[theirs.fileno()], cwd=ROOT
        )
        theirs.close()

    def begin(self, limits: Mapping[str, Any]) -> None:
        """Begin a life: forget everything, and set limits."""
        self._ask(("begin", dict(limits)))

    def run(self, function: Callable[[Any], object], uri: str) -> None:
        """Call a function with a handle of a table, and raise what it raises."""
        self._ask(("run", function, uri))

    def _ask(self, request: tuple[Any, ...]) -> None:
        self._connection.send_bytes(cloudpickle.dumps(request))
        if not self._connection.poll(SECONDS):
            self._process.kill()
            _process.cache_clear()
            raise TimeoutError(f"a step in the second process took more than {SECONDS} s")
        error, text = cloudpickle.loads(self._connection.recv_bytes())
        if error is not None:
            error.add_note(f"in the second process:\n{text}")
            raise error


@lru_cache(maxsize=1)
def _process() -> SecondProcess:
    return SecondProcess()


def second_process(limits: Mapping[str, Any]) -> SecondProcess:
    """Return the process, at the begin of a life."""
    process = _process()
    process.begin(limits)
    return process


def serve(descriptor: int) -> None:
    """Do what is asked for until the first process ends."""
    warnings.simplefilter("ignore")
    connection, life = Connection(descriptor), ExitStack()
    while True:
        try:
            request = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if request[0] == "begin":
                life.close()
                life = ExitStack()
                life.enter_context(lowered(request[1]))
            else:
                _, function, uri = request
                function(lance_stream.open_dataset(uri))
            answer = None, ""
        except Exception as error:
            answer = error, traceback.format_exc()
        connection.send_bytes(cloudpickle.dumps(answer))
