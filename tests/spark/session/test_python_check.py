"""Workers that run another Python than the program."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.errors import PySparkRuntimeError

from lance_stream.errors import InvalidInputError
from lance_stream.machine import pythons
from lance_stream.spark import register
from lance_stream.spark.session.python_check import (
    check_workers_python,
    explain_worker_errors,
    warn_without_java,
)


class Session:
    """As much of a session as the check looks at."""

    dataSource = None  # noqa: N815  # Spark's name
    range = None

    def __init__(self, executable: str) -> None:
        self._sc = self
        self.pythonExec = executable
        self.master = "local[2]"
        self.environment: dict[str, str] = {}
        self._python_includes: list[str] = []


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python without packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python3")


def test_workers_without_the_package_are_noticed(bare_python: str) -> None:
    """Otherwise each task fails with a long trace of Spark that hides the missing module."""
    with pytest.raises(InvalidInputError, match=r"cannot import lance_stream, pyarrow.*sys\.exec"):
        register(Session(bare_python))  # type: ignore[arg-type]  # as much of a session as is looked at


def test_workers_without_pyarrow_are_noticed(
    bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package may be on the path of the workers while its dependencies are not."""
    monkeypatch.setenv("PYTHONPATH", str(Path(pythons.__file__).parents[2]))
    with pytest.raises(InvalidInputError, match="cannot import pyarrow"):
        check_workers_python(Session(bare_python))  # type: ignore[arg-type]  # as much of a session as is looked at


def test_other_python_versions_are_noticed(tmp_path: Path) -> None:
    """Spark refuses workers of another minor version only when the first task runs."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho '[[3, 8], []]'\n")
    other.chmod(0o755)
    with pytest.raises(InvalidInputError, match=r"which is Python 3\.8, but this program"):
        check_workers_python(Session(str(other)))  # type: ignore[arg-type]  # as much of a session as is looked at


@pytest.mark.parametrize(
    "executable", [sys.executable, "./environment/bin/python", f"{sys.executable} -S", "true"]
)
def test_uncertain_interpreters_are_accepted(executable: str) -> None:
    """The check refuses only what certainly fails; a Python of an archive, for example, exists on
    the workers alone.
    """
    check_workers_python(Session(executable))  # type: ignore[arg-type]  # as much of a session as is looked at


@pytest.mark.parametrize("master", ["spark://other:7077", "yarn", "k8s://https://other"])
def test_cluster_tasks_ignore_the_drivers_python(bare_python: str, master: str) -> None:
    """On a cluster the interpreter of tasks cannot be inspected from the driver, but the planner
    of a source runs on the driver's machine.
    """
    session = Session(bare_python)
    session.master = master
    check_workers_python(session, only_tasks=True)  # type: ignore[arg-type]  # as much of a session as is looked at
    with pytest.raises(InvalidInputError, match="cannot import"):  # planned on this one
        check_workers_python(session)  # type: ignore[arg-type]  # as much of a session as is looked at


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[1,1,1024]"])
def test_local_tasks_use_the_checked_python(bare_python: str, master: str) -> None:
    """With a local master tasks use the interpreter on this machine, so it has to be checked for
    them too.
    """
    session = Session(bare_python)
    session.master = master
    with pytest.raises(InvalidInputError, match="cannot import"):
        check_workers_python(session, only_tasks=True)  # type: ignore[arg-type]  # as much of a session as is looked at


def make_modules(folder: Path, names: tuple[str, ...] = pythons._NEEDED) -> None:
    for name in names:
        package = folder.joinpath(*name.split("."))
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()


def test_a_repaired_environment_is_accepted(bare_python: str) -> None:
    """In a notebook the user installs the missing modules and tries again, so a failed check must
    not be cached.
    """
    with pytest.raises(InvalidInputError, match="cannot import"):
        check_workers_python(Session(bare_python))  # type: ignore[arg-type]  # as much of a session as is looked at
    (site,) = Path(bare_python).parents[1].glob("lib/python*/site-packages")
    make_modules(site)
    check_workers_python(Session(bare_python))  # type: ignore[arg-type]  # as much of a session as is looked at


def test_modules_that_spark_ships_are_found(
    bare_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules can come from `PYTHONPATH` of the executors or from `--py-files`, and the check must
    not refuse these.
    """
    make_modules(tmp_path / "elsewhere", pythons._NEEDED[1:])
    make_modules(tmp_path / "modules", pythons._NEEDED[:1])
    with zipfile.ZipFile(tmp_path / "shipped.zip", "w") as zipped:
        zipped.write(tmp_path / "modules/lance_stream/__init__.py", "lance_stream/__init__.py")
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    session = Session(bare_python)
    session.environment = {"PYTHONPATH": str(tmp_path / "elsewhere")}
    with pytest.raises(InvalidInputError, match="cannot import lance_stream;"):
        check_workers_python(session)  # type: ignore[arg-type]  # as much of a session as is looked at
    session._python_includes = ["shipped.zip"]
    check_workers_python(session)  # type: ignore[arg-type]  # as much of a session as is looked at


def test_spark_connect_sessions_are_accepted() -> None:
    """A client of Spark Connect cannot look at the server's workers."""
    check_workers_python(object())  # type: ignore[arg-type]  # as much of a session as is looked at


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ModuleNotFoundError: No module named 'lance_stream'", "cannot import lance_stream"),
        (
            "Job aborted\n[PYTHON_VERSION_MISMATCH] Python in worker has ...: 3.9\n\tat a",
            r"another version of Python.*\(.*worker has \.\.\.: 3\.9\)",
        ),
    ],
)
def test_errors_of_remote_workers_are_explained(text: str, problem: str) -> None:
    """On a cluster the check cannot run beforehand, so the same remedy has to be added to the
    error of the task.
    """
    with (
        pytest.raises(InvalidInputError, match=f"{problem}.*PYSPARK_PYTHON"),
        explain_worker_errors(),
    ):
        raise PySparkRuntimeError(text)


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'lance_stream.read.units'",
        "AttributeError: Can't get attribute 'WorkUnit' on <module 'lance_stream.read' from 'x'>",
    ],
)
def test_workers_with_another_release_are_named(text: str) -> None:
    """After an upgrade of the driver alone the error of pickle names neither the cause nor the
    remedy.
    """
    with (
        pytest.raises(InvalidInputError, match=r"another release.*the same release"),
        explain_worker_errors(),
    ):
        raise PySparkRuntimeError(text)


def test_other_errors_of_workers_pass() -> None:
    """An explanation that does not apply would send the user in the wrong direction."""
    with pytest.raises(PySparkRuntimeError, match="something else"), explain_worker_errors():
        raise PySparkRuntimeError("something else")


def test_missing_java_gets_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PySpark's own error for a missing Java does not say which version to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.warns(RuntimeWarning, match="Spark needs Java 17"):
        warn_without_java()


@pytest.mark.spark
@pytest.mark.nightly
def test_inactive_environments_are_explained(bare_python: str) -> None:
    """Spark starts its workers with the `python3` of the PATH unless the
    environment is activated.
    """
    program = (
        "from pyspark.sql import SparkSession\n"
        "from lance_stream.spark import register\n"
        "register(SparkSession.builder.master('local[1]').getOrCreate())\n"
    )
    path = f"{Path(bare_python).parent}{os.pathsep}/usr/bin{os.pathsep}/bin"
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYSPARK", "PYTHON", "SPARK"))
    }
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **environment,
            "PATH": path,
            "PYTHONPATH": str(Path(pythons.__file__).parents[2]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].startswith(
        "lance_stream.errors.InvalidInputError: Spark starts its workers with"
    )
