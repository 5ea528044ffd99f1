"""Machines: each has an environment, a folder and processes; they share only the network.

Their network is 127.0.0.1, with a host name for each machine. Their store has one endpoint, which
is in each machine's profile, with a different access key, by which a proxy distinguishes their
requests. (Spark passes keys in a driver's environment on to its tasks.)
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.cluster.environments import MACHINES, ROOT, environment_of
from tests.servers.environment import forget_credentials
from tests.servers.server import HOST

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
WORKERS = ("worker-1", "worker-2", "worker-3")
PLAIN_WORKERS = ("plain-1", "plain-2")
CONNECT = ("pyspark[connect]",)
"""The additional packages of servers and clients of Spark Connect."""

_NAMES = ("trial", "master", "driver", *WORKERS, "plain-master", *PLAIN_WORKERS, "server", "client")
_ISOLATED = Path(__file__).with_name("isolated.py")
_PROGRAMS = Path(__file__).with_name("programs")
_CONF = Path(__file__).with_name("conf")


def find_problem() -> str | None:
    """Return why this computer cannot have machines; None if it can."""
    if sys.platform != "linux":
        return "the machines of a cluster are namespaces of Linux"
    with Machine("trial", environment="") as machine:
        trial = machine.start(["/bin/true"], "trial")
        if trial.wait(60) == 0:
            return None
        return f"the kernel gives no namespaces: {trial.output().strip()[-200:]}"


@contextmanager
def lock_machines() -> Iterator[None]:
    """Keep other test runs of this checkout from using the same machines."""
    MACHINES.mkdir(exist_ok=True)
    with (MACHINES / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AssertionError(f"another test run uses the machines in {MACHINES}") from None
        yield


class Program:
    """A program that runs on a machine, with its child processes.

    Attributes:
        process: Its process outside of the machine.
    """

    def __init__(self, process: subprocess.Popen[bytes], output_file: Path) -> None:
        self.process = process
        self.output_file = output_file

    def output(self) -> str:
        """Return its output so far."""
        return self.output_file.read_text(errors="replace")

    def wait(self, timeout_seconds: float) -> int:
        """Wait for its exit code; kill it after the time-out."""
        try:
            return self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"no end after {timeout_seconds} s:\n{self.output()[-3000:]}"
            ) from None

    def wait_for(self, text: str, timeout_seconds: float) -> str:
        """Wait until it prints a text; return the rest of that line."""
        lines: list[str] = []

        def is_printed() -> bool:
            lines.extend(self.output().partition(text)[1:])
            assert lines[-2] or self.process.poll() is None, self.output()[-3000:]
            return bool(lines[-2]) and "\n" in lines[-1]

        wait_until(is_printed, timeout_seconds, lambda: self.output()[-3000:])
        return lines[-1].partition("\n")[0]

    def find(self, *words: str) -> list[int]:
        """Return the ids of its processes whose command contains all words."""
        return [
            process
            for process in processes_below(self.process.pid)
            if all(word in command_of(process) for word in words)
        ]

    def kill(self) -> None:
        """Kill it and its child processes."""
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        for process in processes_below(self.process.pid):
            try_to_send(process, number)


class Machine:
    """A machine; see the module.

    Args:
        name: Its name, which is also its access key.
        environment: The extras that its environment has; "" for no environment.
        packages: Additional packages of its environment.
        without: Packages to leave out of its environment.
        endpoint: The endpoint of the store in its profile; "" for none.
    """

    def __init__(
        self,
        name: str,
        environment: str = "s3",
        packages: Sequence[str] = (),
        without: Sequence[str] = (),
        endpoint: str = "",
    ) -> None:
        assert name in _NAMES, f"other machines do not know {name}"
        self.name = name
        self.folder = MACHINES / name
        self._extras, self._packages, self._without = environment, packages, without
        self._endpoint = endpoint
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.name != "env":
                is_folder = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if is_folder else path.unlink()
        for name in ("tmp", "home", "output"):
            (self.folder / name).mkdir()
        shutil.copytree(_PROGRAMS, self.folder / "programs")
        shutil.copytree(_CONF, self.folder / "conf")
        (self.folder / "hosts").write_text(f"{HOST} localhost {' '.join(_NAMES)}\n")
        if self._endpoint:
            self._profile.write_text(
                "[default]\nregion = us-east-1\n"
                f"endpoint_url = {self._endpoint}\n"
                f"aws_access_key_id = {self.name.replace('-', '')}\n"
                f"aws_secret_access_key = secret-of-{self.name}\n"
            )
        if self._extras:
            environment_of(self.name, self._extras, self._packages, self._without)
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
        for name in ("tmp", "home", "work"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    @property
    def python(self) -> str:
        """Its Python."""
        return str(self.folder / "env" / "bin" / "python")

    @cached_property
    def site_packages(self) -> Path:
        """Where its packages are installed."""
        (site_packages,) = self.folder.glob("env/lib/python*/site-packages")
        return site_packages

    @property
    def spark_home(self) -> Path:
        """Its installation of Spark, which came with PySpark."""
        return self.site_packages / "pyspark"

    @property
    def _profile(self) -> Path:
        return self.folder / "home" / "profile"

    def environment(self) -> dict[str, str]:
        """Return the environment of its programs."""
        java = shutil.which("java") or "/usr/bin/java"
        inherited = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
        variables = {
            **inherited,
            "PATH": f"{self.folder}/env/bin:{Path(java).parent}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_DAEMON_MEMORY": "160m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "SPARK_SUBMIT_OPTS": JAVA,
            "SPARK_LAUNCHER_OPTS": JAVA,
        }
        if self._extras:
            variables["SPARK_HOME"] = str(self.spark_home)
        forget_credentials(variables)
        if self._endpoint:
            variables["AWS_CONFIG_FILE"] = str(self._profile)
        return variables

    def start(
        self, command: Sequence[str], name: str, variables: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program.

        Args:
            command: The program and its arguments.
            name: The name of the file for its output.
            variables: Environment variables in addition to those of the machine.
        """
        output_file = self.folder / "output" / name
        here = [str(os.getpid()), str(ROOT), str(self.folder)]
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", str(_ISOLATED), *here, *command],
                env={**self.environment(), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        self._programs.append(Program(process, output_file))
        return self._programs[-1]

    def start_spark(self, kind: str, *arguments: str) -> Program:
        """Start a class of Spark's."""
        program = str(self.spark_home / "bin" / "spark-class")
        return self.start([program, kind, *arguments], kind.rpartition(".")[2])


def processes_below(process: int) -> Iterator[int]:
    """Yield a process and its descendants, each process before its children."""
    yield process
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from processes_below(int(child))


def command_of(process: int) -> str:
    """Return the command of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def try_to_send(process: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def wait_until(
    is_fulfilled: Callable[[], bool], timeout_seconds: float, story: Callable[[], str] = str
) -> None:
    """Wait for a condition; fail after a time, with the result of `story` in the error."""
    deadline = time.monotonic() + timeout_seconds
    while not is_fulfilled():
        assert time.monotonic() < deadline, f"not after {timeout_seconds} s:\n{story()}"
        time.sleep(0.1)
