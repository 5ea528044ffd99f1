"""Runs the command line in a pseudo-terminal, as a person would see it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from unittest import mock

from lance_stream.cli import main as program
from lance_stream.environment import Environment

ESCAPE = "\x1b"
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SECONDS = 120.0


@dataclass(frozen=True)
class TerminalOutput:
    """The output of a program in a terminal.

    Attributes:
        code: The exit code.
        raw: All of it.
        piped: What went to stdout, if that was a pipe.
    """

    code: int
    raw: str
    piped: str = ""

    @property
    def text(self) -> str:
        """The text without styles and movements of the cursor."""
        return _STYLES.sub("", self.raw).replace("\r", "")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@contextmanager
def _terminal(width: int) -> Iterator[tuple[int, int]]:
    """Yield the two ends of a terminal: ours, and the one of the program."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        yield ours, theirs
    finally:
        os.close(ours)


def _read_all(ours: int, parts: list[bytes]) -> None:
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # on Linux, when the other end is closed
            return
        if not part:
            return
        parts.append(part)


def on_terminal(
    *words: str,
    width: int = 80,
    answer: str = "",
    environment: Environment | None = None,
    variables: dict[str, str] | None = None,
    has_piped_output: bool = False,
) -> TerminalOutput:
    """Run a command in this process, with a terminal for stdin, stdout and stderr.

    Args:
        words: Its arguments.
        width: Columns of the terminal.
        answer: What a person has typed.
        environment: What sleeps and tells the time.
        variables: Environment variables; `TERM` is that of xterm.
        has_piped_output: Whether stdout is a pipe.
    """
    names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    parts: list[bytes] = []
    with _terminal(width) as (ours, theirs):
        reader = threading.Thread(target=_read_all, args=(ours, parts))
        reader.start()
        os.write(ours, answer.encode())
        with (
            os.fdopen(os.dup(theirs), encoding="utf-8") as stdin,
            os.fdopen(os.dup(theirs), "w", encoding="utf-8", buffering=1) as stderr,
            os.fdopen(theirs, "w", encoding="utf-8", buffering=1) as terminal,
        ):
            piped = StringIO()
            stdout = piped if has_piped_output else terminal
            streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "__stdout__": terminal}
            with (
                mock.patch.multiple(sys, **streams),
                mock.patch.dict(
                    os.environ, {**inherited, "TERM": "xterm", **(variables or {})}, clear=True
                ),
            ):
                code = program.main(list(words), environment)
        reader.join(_SECONDS)
        assert not reader.is_alive()
    return TerminalOutput(code, b"".join(parts).decode(), piped.getvalue())


def interrupted(*words: str, at: str) -> TerminalOutput:
    """Run a command in a process and a terminal of its own, and press Ctrl-C at a text."""
    with _terminal(80) as (ours, theirs):
        process = subprocess.Popen(
            [sys.executable, "-m", "lance_stream.cli", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
            # shells start what they put into the background deaf to it
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        seen, is_pressed, end = b"", False, time.monotonic() + _SECONDS
        while process.poll() is None and time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    seen += os.read(ours, 1 << 16)
                except OSError:
                    break
            if not is_pressed and at.encode() in seen:
                is_pressed = True
                process.send_signal(signal.SIGINT)
        if process.poll() is None and time.monotonic() >= end:
            process.kill()
    return TerminalOutput(process.wait(), seen.decode())


@contextmanager
def typing_in(
    *words: str, env: dict[str, str], cwd: Path
) -> Iterator[tuple[Callable[[str], object], Callable[[str], object]]]:
    """Run a shell in a terminal; yield what types keys, and what waits for a text to be shown."""
    with _terminal(200) as (ours, theirs):
        process = subprocess.Popen(
            words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=partial(fcntl.ioctl, theirs, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        seen = b""

        def wait_for(text: str) -> None:
            nonlocal seen
            end = time.monotonic() + _SECONDS
            while text.encode() not in seen:
                assert time.monotonic() < end, seen.decode(errors="replace")
                if select.select([ours], [], [], 0.1)[0]:
                    seen += os.read(ours, 1 << 16)
            seen = b""

        try:
            yield (lambda keys: os.write(ours, keys.encode())), wait_for
        finally:
            process.kill()
            process.wait()
