"""A supervisor of parts that are small programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from examples.pipeline.part import Part
from examples.pipeline.supervisor import PartError, Supervisor

SLEEP = "import time\nwhile True: time.sleep(0.05)"
SECONDS = 30


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def supervise(tmp_path: Path, messages: list[str]) -> Iterator[Callable[..., Supervisor]]:
    supervisors: list[Supervisor] = []

    def start(*parts: Part) -> Supervisor:
        supervisors.append(Supervisor(parts, tmp_path / "logs", messages.append, 0.05))
        return supervisors[-1]

    yield start
    for supervisor in supervisors:
        supervisor.stop()


def part(name: str, program: str = SLEEP, **others: object) -> Part:
    options = {"answers": lambda: True, **others}
    return Part(name, [sys.executable, "-S", "-c", program], **options)  # type: ignore[arg-type]  # a test's own


def process_of(supervisor: Supervisor, name: str) -> int:
    process = supervisor.running[name].process
    assert process is not None
    return process.pid


def test_parts_start_after_their_dependencies(
    supervise: Callable[..., Supervisor],
) -> None:
    """A sink without Kafka would fail and wait for its next attempt."""
    works: list[str] = []
    supervisor = supervise(
        part("first", answers=lambda: bool(works)), part("second", needs=("first",))
    )
    assert not supervisor.run_until(lambda: supervisor.works("second"), 0.5)
    assert supervisor.describe()["first"] == {"state": "starting", "restarts": 0}
    assert supervisor.describe()["second"] == {"state": "waiting", "restarts": 0}
    works.append("it does now")
    supervisor.run_until(supervisor.works_all, SECONDS, "the start of both")


def test_killed_parts_are_restarted(
    supervise: Callable[..., Supervisor], messages: list[str]
) -> None:
    """Faults are injected by killing parts, and the pipeline must recover by itself."""
    supervisor = supervise(part("one"))
    supervisor.run_until(supervisor.works_all, SECONDS, "the start")
    before = process_of(supervisor, "one")
    supervisor.kill("one")
    assert not supervisor.works("one")
    supervisor.run_until(supervisor.works_all, SECONDS, "another start")
    assert process_of(supervisor, "one") != before
    assert supervisor.describe()["one"] == {"state": "running", "restarts": 1}
    assert "one has ended (signal SIGKILL)" in messages


def test_child_processes_end_with_their_part(
    supervise: Callable[..., Supervisor], tmp_path: Path
) -> None:
    """Spark starts a JVM, which would go on writing beside its successor."""
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    supervisor = supervise(part("parent", program))
    written = tmp_path / "child"
    supervisor.run_until(lambda: written.exists() and written.read_text() != "", SECONDS, "a child")
    child = int(written.read_text())
    supervisor.kill("parent")
    deadline = time.monotonic() + SECONDS
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(process_id: int) -> bool:
    """Whether a process runs: what nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_hanging_parts_are_restarted(
    supervise: Callable[..., Supervisor], messages: list[str]
) -> None:
    """A process that lives but does not progress is as good as none."""
    hangs = [True]
    supervisor = supervise(part("one", hung=lambda: bool(hangs and hangs.pop())))
    supervisor.run_until(
        lambda: supervisor.describe()["one"] == {"state": "running", "restarts": 1},
        SECONDS,
        "another start",
    )
    assert "one hangs: it is started again" in messages


def test_failing_parts_restart_less_often(
    supervise: Callable[..., Supervisor],
) -> None:
    """A restart loop without pauses would use up the machine."""
    starts: list[float] = []
    supervisor = supervise(
        part(
            "one",
            "raise SystemExit(3)",
            answers=lambda: False,
            prepare=lambda: starts.append(time.monotonic()),
        )
    )
    supervisor.run_until(lambda: len(starts) >= 4, SECONDS, "four starts")
    pauses = [later - before for before, later in pairwise(starts)]
    assert pauses[1] > 0.9
    assert pauses[2] > 1.9


def test_errors_include_the_parts_output(
    supervise: Callable[..., Supervisor],
) -> None:
    """In CI the error message is all there is to find the cause."""

    def refuse() -> bool:
        raise ConnectionRefusedError("nobody there")

    supervisor = supervise(part("one", f"print('I am ill', flush=True)\n{SLEEP}", answers=refuse))
    supervisor.run_until(lambda: "ill" in supervisor.failure_output(), SECONDS, "its output")
    with pytest.raises(PartError, match=r"(?s)a miracle did not happen in 1 s.*nobody there.*ill"):
        supervisor.run_until(lambda: False, 1, "a miracle")


def test_failed_preparations_are_retried(
    supervise: Callable[..., Supervisor], messages: list[str]
) -> None:
    """A full disk or a busy port may be gone a second later."""
    problems = [OSError("the disk is full")]

    def prepare() -> None:
        if problems:
            raise problems.pop()

    supervisor = supervise(part("one", prepare=prepare))
    supervisor.run_until(supervisor.works_all, SECONDS, "a start")
    assert "one cannot be started: the disk is full" in messages


def test_parts_that_ignore_signals_are_killed(supervise: Callable[..., Supervisor]) -> None:
    """Stopping must end in bounded time."""
    ignore = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)"
    supervisor = supervise(part("one", f"{ignore}\n{SLEEP}"))
    log = supervisor.running["one"].log
    supervisor.run_until(lambda: log.exists() and "1" in log.read_text(), SECONDS, "its handler")
    process_id = process_of(supervisor, "one")
    supervisor.running["one"].stop(0.5)
    assert not is_alive(process_id)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's death")
def test_parts_end_with_their_supervisor(tmp_path: Path) -> None:
    """A killed supervisor cannot clean up, and orphans would hold ports and files."""
    program = (
        "import sys; from pathlib import Path\n"
        "from examples.pipeline.part import Part\n"
        "from examples.pipeline.supervisor import Supervisor\n"
        f"command = [sys.executable, '-S', '-c', {SLEEP!r}]\n"
        f"it = Supervisor([Part('one', command, lambda: True)], Path({str(tmp_path)!r}), print)\n"
        "it.run_until(it.works_all, 30, 'the start')\n"
        "print(it.running['one'].process.pid, flush=True)\n"
        "it.run_until(lambda: False, 600)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        child = next(int(line) for line in lines if line.strip().isdigit())
        assert is_alive(child)
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)
