"""Starts the parts, sees to it that they work, and starts again what has died.

A part that ends, or is hung, is killed with all of its processes and started again: at once, then
after 1, 2, 4 and at most 8 seconds if it does not work in between. Processes are started by the
main thread only, as they end with the thread that has started them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from examples.pipeline.part import Part

_LEASH = Path(__file__).with_name("leash.py")
_MAX_SECONDS = 8.0


class PartError(Exception):
    """A part does not work, and its output."""


class Running:
    """A part and its process.

    Attributes:
        restarts: How often it was started again.
        works: Whether it answered when it was last asked.
        worked_once: Whether it ever did.
        problem: Why it did not answer when it was last asked.
    """

    def __init__(self, part: Part, logs: Path) -> None:
        self.part = part
        self.restarts = -1
        self.works = False
        self.worked_once = False
        self.problem = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.log = logs / f"{part.name}.txt"
        self._next_start = 0.0
        self._failures = 0
        self._started = 0.0
        self._last_check = 0.0
        self._check: Future[bool] | None = None

    @property
    def state(self) -> str:
        """For people."""
        if self.process is None:
            return "waiting" if self.restarts < 0 else "down"
        return "running" if self.works else "starting"

    def step(
        self, pool: ThreadPoolExecutor, say: Callable[[str], None], check_seconds: float
    ) -> None:
        """Start the process if there is none, and ask whether it works."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._next_start:
                self._start(say)
            return
        code = self.process.poll()
        if code is not None:
            say(f"{self.part.name} has ended ({_text_of(code)})")
            self._failed()
            return
        if self._check is not None and self._check.done():
            self._answered(self._check, say)
            self._check = None
        if self.process is None:
            return
        if self._check is None and now - self._last_check >= check_seconds:
            self._last_check = now
            self._check = pool.submit(self.part.answers)
        if not self.works and now - self._started > self.part.start_seconds:
            say(f"{self.part.name} does not answer: it is started again. {self.problem}")
            self._failed()
        elif self.works and self.part.hung():
            say(f"{self.part.name} hangs: it is started again")
            self._failed()

    def kill(self) -> None:
        """Send SIGKILL to all of its processes."""
        self.works = False
        self._check = None  # what it says is of the time before
        if self.process is not None:
            _signal(self.process, signal.SIGKILL)
            self.process.wait()

    def stop(self, seconds: float = 60) -> None:
        """End it in order, or by force after some time."""
        if self.process is None:
            return
        self.process.send_signal(self.part.stop_signal)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        _signal(self.process, signal.SIGKILL)  # what it has left
        self.process.wait()
        self.process = None
        self.works = False

    def _start(self, say: Callable[[str], None]) -> None:
        self.restarts += 1
        self._started = self._last_check = time.monotonic()
        try:
            self.part.prepare()
            part = self.part
            leash = [sys.executable, "-S", "-E", str(_LEASH), str(os.getpid()), part.user]
            with self.log.open("ab") as output:
                self.process = subprocess.Popen(
                    [*leash, *part.command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={**os.environ, **part.environment},
                    start_new_session=True,  # a Ctrl-C is for the supervisor
                )
        except Exception as error:  # whatever it is, the next try may succeed
            say(f"{self.part.name} cannot be started: {error}")
            self._failed()

    def _answered(self, check: "Future[bool]", say: Callable[[str], None]) -> None:
        try:
            works = check.result()
            self.problem = ""
        except Exception as error:  # each part's client has errors of its own
            self.problem = f"{type(error).__name__}: {error}"
            works = False
        if works and not self.works:
            self._failures = 0
            self.worked_once = True
            say(f"{self.part.name} works after {time.monotonic() - self._started:.1f} s")
        if works or not self.works:
            self.works = works

    def _failed(self) -> None:
        self.kill()
        self.process = None
        pause = min(2.0 ** (self._failures - 1), _MAX_SECONDS) if self._failures else 0.0
        self._failures += 1
        self._next_start = time.monotonic() + pause


class Supervisor:
    """All parts.

    Args:
        parts: In the order of their start.
        logs: A folder for what they print.
        say: Told what happens, in lines.
        check_seconds: How often each part is asked whether it works.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        logs: Path,
        say: Callable[[str], None],
        check_seconds: float = 1.0,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.running = {part.name: Running(part, logs) for part in parts}
        self._say = say
        self._check_seconds = check_seconds
        self._pool = ThreadPoolExecutor(len(parts), "health")

    def describe(self) -> dict[str, Any]:
        """Return the state of each part, for the page."""
        return {
            name: {"state": value.state, "restarts": max(value.restarts, 0)}
            for name, value in self.running.items()
        }

    def step(self) -> None:
        """Look at each part once."""
        for value in self.running.values():
            waits = any(not self.running[name].worked_once for name in value.part.needs)
            if value.process is not None or not waits:
                value.step(self._pool, self._say, self._check_seconds)

    def run_until(
        self, is_reached: Callable[[], bool], seconds: float, what: str | None = None
    ) -> bool:
        """Watch over the parts until something is true; return whether it is.

        Args:
            is_reached: Asked a few times a second.
            seconds: How long at most.
            what: If it is given, what was not reached in time is an error.

        Raises:
            PartError: It was not reached in time.
        """
        deadline = time.monotonic() + seconds
        while not is_reached():
            if time.monotonic() > deadline:
                if what is None:
                    return False
                raise PartError(
                    f"{what} did not happen in {seconds:.0f} s.\n{self.failure_output()}"
                )
            self.step()
            time.sleep(0.1)
        return True

    def works_all(self) -> bool:
        """Whether all parts work."""
        return all(value.works for value in self.running.values())

    def works(self, name: str) -> bool:
        """Whether a part works."""
        return self.running[name].works

    def kill(self, name: str) -> None:
        """Kill a part, as a crash would."""
        self.running[name].kill()

    def stop(self) -> None:
        """End all parts, in reverse order."""
        for span in reversed(self.running.values()):
            span.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def retire(self, name: str) -> None:
        """End a part in order, and do not start it again."""
        self.running.pop(name).stop()

    def failure_output(self, num_characters: int = 1500) -> str:
        """Return the end of what each part that does not work has printed."""
        texts = []
        for name, value in self.running.items():
            if not value.works and value.log.exists():
                text = value.log.read_text(errors="replace")[-num_characters:]
                texts.append(f"--- {name} ({value.state}) {value.problem}:\n{text}")
        return "\n".join(texts)


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a process and those of its session that are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _text_of(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
