"""Starts `streaming_process`, lets it run, and kills it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults import streaming_process

TESTS = Path(__file__).parent.parent

NUM_ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
"""How often a process is killed; `make soak` does it 30 times."""


SPARK_FAILURES = ("Python worker failed to connect back", "java.io.OptionalDataException")
"""Errors that end a query on a busy machine without our fault: a Python process did not start
within ten seconds, or one query serialized a map while another changed it."""


@contextmanager
def streaming(names: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that prepares some queries and waits; kill it after the block.

    Args:
        names: The queries.
        folder: The folder of their files, tables and logs.
    """
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(TESTS / "spark" / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(TESTS.parent),
    }
    path = folder / f"log-of-process-{len(list(folder.glob('log-of-process-*')))}"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                streaming_process.__file__,
                ",".join(names),
                str(folder),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,  # Python and its JVM are killed together
        )
    _LOGS[process.pid] = path
    try:
        yield process
    finally:
        kill(process)


_LOGS: dict[int, Path] = {}


def log_of(process: subprocess.Popen[bytes]) -> str:
    """Return the end of what a process said."""
    return _LOGS[process.pid].read_text()[-3000:]


def say(process: subprocess.Popen[bytes], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n".encode())
    process.stdin.flush()


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process runs; one that has ended must have met what is Spark's own."""
    if process.poll() is None:
        return True
    log = _LOGS[process.pid].read_text()
    assert any(value in log for value in SPARK_FAILURES), log[-3000:]
    return False


def run_until_it_ends(names: Sequence[str], folder: Path) -> None:
    """Run queries until all is in; one that met what is Spark's own is started again."""
    for _ in range(5):
        with streaming(names, folder) as process:
            say(process, "all")
            if process.wait(timeout=600) == 0:
                return
            assert not is_alive(process)
    raise AssertionError("the machine is too busy for Spark")


def run_to_the_end(process: subprocess.Popen[bytes]) -> None:
    say(process, "all")
    assert process.wait(timeout=600) == 0, log_of(process)
