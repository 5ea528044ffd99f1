"""Starts `streaming_process`, tells it to go, and kills it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults import streaming_process

TESTS = Path(__file__).parent.parent

NUM_ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))
"""How often a process is killed; `make soak` does it 30 times."""


TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start; a busy machine may need more."""


@contextmanager
def streaming(names: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that gets some queries ready, and waits; after the block it is gone.

    Args:
        names: The queries.
        folder: Where all that they read and write lies; their log, too.
    """
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(TESTS / "spark" / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(TESTS.parent),
    }
    with (folder / "log-of-processes").open("ab") as log:
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
    try:
        yield process
    finally:
        kill(process)


def log_of(folder: Path) -> str:
    """Return the end of what the processes of a folder said."""
    return (folder / "log-of-processes").read_text()[-3000:]


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


def is_alive(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Return whether a process runs; one that has ended must have been too slow to start."""
    if process.poll() is None:
        return True
    assert TOO_SLOW in log_of(folder), log_of(folder)
    return False


def run_to_the_end(process: subprocess.Popen[bytes], folder: Path) -> None:
    say(process, "all")
    assert process.wait(timeout=600) == 0, log_of(folder)
