"""A server of a test run: on a free port of 127.0.0.1, waited for with a bound, ended for sure."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

HOST = "127.0.0.1"
FOLDER = Path(os.environ.get("SERVERS") or Path(__file__).parents[2] / ".servers")
_LEASH = Path(__file__).parents[2] / "examples/pipeline/leash.py"


class ServerError(Exception):
    """A server did not come up; its output is in the message."""


class Server(ABC):
    """One process that serves on `127.0.0.1:port` from `start` to `stop`.

    A server that ends before it answers, as one does whose port was taken meanwhile, is started
    again on another port, three times in all. What it prints is kept, for failures.
    """

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 60
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    user: str = ""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    @abstractmethod
    def find_problem(cls) -> str | None:
        """Return why this machine cannot start the server, with the way out; or None."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the program and its arguments for `port`, working in `folder`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server takes requests."""

    def prepare(self) -> None:  # noqa: B027 (most servers need nothing)
        """Make what the server finds in `folder`."""

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:port`."""
        return f"http://{HOST}:{self.port}"

    @property
    def folder(self) -> Path:
        """A folder of this server's own, gone when it stops."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix=f"lance-stream-{self.name}-")
        return Path(self._folder.name)

    @property
    def process_id(self) -> int:
        """The process that serves."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    def start(self) -> Self:
        """Start, and return when the server answers.

        Raises:
            ServerError: It cannot be started here, ended three times, or did not answer in time.
        """
        problem = self.find_problem()
        if problem is not None:
            raise ServerError(problem)
        self.prepare()
        for _ in range(3):
            self.port = free_port()
            process = self._spawn()
            if self._wait(process):
                return self
            if process.poll() is None:
                break
        output = self.output(5_000)
        self.stop()
        raise ServerError(f"{self.name} did not answer on {self.endpoint}. It said:\n{output}")

    def stop(self) -> None:
        """End the process, by force after 10 s, and remove its folder."""
        self._end_process()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def output(self, num_characters: int) -> str:
        """Return the end of what the server has printed."""
        path = self.folder / "output.txt"
        return path.read_text(errors="replace")[-num_characters:] if path.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self) -> subprocess.Popen[bytes]:
        leash = [sys.executable, "-S", "-E", str(_LEASH), str(os.getpid()), self.user]
        with (self.folder / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [*leash, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # a Ctrl+C is for the tests
            )
        return self._process

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + self.start_seconds
        while time.monotonic() < deadline and process.poll() is None:
            if self.answers():
                return True
            time.sleep(0.05)
        return False

    def _end_process(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def ask(method: str, url: str, body: bytes | None = None, **headers: str) -> int | None:
    """Send one request; return the status of the answer, or None if there was none."""
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def installation_problem(name: str, path: Path) -> str | None:
    """Return why there is nothing at a path where `make servers` puts a server; or None."""
    if path.exists():
        return None
    reason = FOLDER / f"{name}.problem"
    if reason.exists():
        return f"{name} could not be installed: {reason.read_text().strip()}"
    return f"{name} is not installed: run `make servers`"
