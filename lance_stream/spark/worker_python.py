"""The Python of Spark's workers, which has to be able to import this package.

Spark starts its workers with `PYSPARK_PYTHON`, by default "python3" of the PATH: in a virtual
environment that is not activated that is another Python than the program's, and the first task
fails with an error that does not name the cause. What can be checked on this machine is checked
before the first task. Workers on other machines are only known by their errors.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_stream.errors import InvalidInputError

_SECONDS: Final = 20.0

_NEEDED: Final = ("lance_stream", "pyarrow", "numpy", "google.protobuf", "pyroaring", "sqlglot")

_QUESTION: Final = f"""
import json, sys
from importlib.util import find_spec

def is_missing(name):
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:
        return True

print(json.dumps([sys.version_info[:2], [name for name in {_NEEDED!r} if is_missing(name)]]))
"""

ADVICE: Final = (
    "Set the workers' Python before the session is created: "
    "os.environ['PYSPARK_PYTHON'] = sys.executable on one machine. On a cluster, ship the "
    "environment (spark-submit --archives environment.tar.gz#environment with "
    "PYSPARK_PYTHON=./environment/bin/python), or install lance-stream and its dependencies on "
    "every worker"
)


class _Python(NamedTuple):
    version: tuple[int, ...]
    missing: tuple[str, ...]


def check_workers_python(spark: SparkSession) -> None:
    """Check the Python that Spark starts workers with, as far as this machine has it.

    Args:
        spark: A session. Through Spark Connect nothing is known about the workers.

    Raises:
        InvalidInputError: It cannot import this package, or it is another version of Python than
            the driver's, which Spark refuses.
    """
    context = getattr(spark, "_sc", None)  # Spark Connect has no context, and raises if asked
    executable = getattr(context, "pythonExec", None)
    if executable is not None:
        problem = _problem_with(executable)
        if problem is not None:
            raise InvalidInputError(f"{problem}. {ADVICE}")


@cache
def _problem_with(executable: str) -> str | None:
    found = shutil.which(executable)
    if found is None or _folder(found) == _folder(sys.executable):
        return None
    answer = _ask(found)
    if answer is None:
        return None
    if answer.version != sys.version_info[:2]:
        ours, theirs = (".".join(map(str, each)) for each in (sys.version_info[:2], answer.version))
        return (
            f"Spark starts its workers with {found}, which is Python {theirs}, but this program "
            f"runs on Python {ours} ({sys.executable})"
        )
    if answer.missing:
        return (
            f"Spark starts its workers with {found}, which cannot import "
            f"{', '.join(answer.missing)}; this program runs on {sys.executable}"
        )
    return None


def _folder(executable: str) -> str:
    """Return where a Python is; links are kept, for a link to the same Python is an environment."""
    return os.path.dirname(os.path.abspath(executable))  # noqa: PTH100, PTH120


def _ask(executable: str) -> _Python | None:
    """Return what a Python reports about itself; None if it does not answer."""
    try:
        done = subprocess.run(
            [executable, "-c", _QUESTION], capture_output=True, timeout=_SECONDS, check=True
        )
        version, missing = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Python(tuple(version), tuple(missing))


def warn_without_java() -> None:
    """Warn if Spark cannot be started here: its own error does not name the cause."""
    home = os.environ.get("JAVA_HOME")
    has_java = shutil.which("java") or (home and shutil.which("java", path=f"{home}/bin"))
    can_connect = importlib.util.find_spec("grpc") is not None  # Spark Connect's client needs none
    if not has_java and not can_connect:
        warnings.warn(
            "Spark needs Java 17 or newer, and none was found: neither `java` on the PATH nor "
            "JAVA_HOME. Install one (Debian and Ubuntu: apt install openjdk-17-jre-headless; "
            "macOS: brew install openjdk@17), or set JAVA_HOME",
            RuntimeWarning,
            stacklevel=3,
        )


@contextmanager
def explained() -> Iterator[None]:
    """Run Spark jobs in the body; explain errors of workers that lack this package.

    Raises:
        InvalidInputError: They lack it, or run another version of Python.
    """
    try:
        yield
    except PySparkException as error:
        text = str(error)
        if "No module named 'lance_stream'" in text:
            cause = "Spark's workers cannot import lance_stream"
        elif "PYTHON_VERSION_MISMATCH" in text:
            cause = "Spark's workers run another version of Python than this program"
        else:
            raise
        raise InvalidInputError(f"{cause}. {ADVICE}") from error
