"""Finds workers that cannot run this package, before the first task if possible.

Workers on this machine are checked when a session is first used. Those on other machines are only
known by their errors.
"""

import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_stream.errors import InvalidInputError
from lance_stream.machine.java import find_java
from lance_stream.machine.pythons import ADVICE, find_problem
from lance_stream.version import VERSION

_MISMATCH: Final = "PYTHON_VERSION_MISMATCH"
"""Spark's name for the error; its text states both versions."""

_OTHER_RELEASE: Final = re.compile(
    r"No module named 'lance_stream\.[\w.]+'|Can't get attribute '\w+' on <module 'lance_stream\b"
)
"""What a worker reports of pickles with modules or classes that its release lacks."""


def check_workers_python(spark: SparkSession, *, only_tasks: bool = False) -> None:
    """Check the Python that Spark starts workers with, as far as this machine has it.

    Args:
        spark: A session. Through Spark Connect nothing is known about the workers.
        only_tasks: Whether workers only run tasks. Spark plans a format and a table function on
            this machine; a cluster runs tasks on others, where the same name is another Python.

    Raises:
        InvalidInputError: It cannot import this package, or it is another version of Python than
            the driver's, which Spark refuses.
    """
    context = getattr(spark, "_sc", None)  # Spark Connect has no context, and raises if asked
    executable = getattr(context, "pythonExec", None)
    is_elsewhere = only_tasks and not str(getattr(context, "master", "local")).startswith("local")
    if executable is not None and not is_elsewhere:
        problem = find_problem(executable, _import_paths(context))
        if problem is not None:
            raise InvalidInputError(f"{problem}. {ADVICE}")


def _import_paths(context: Any) -> tuple[str, ...]:
    """Return the import paths that Spark adds for workers: `--py-files`, `addPyFile`, settings."""
    shipped = tuple(getattr(context, "_python_includes", None) or ())
    root = Path(SparkFiles.getRootDirectory()) if shipped else Path()
    set_for_workers = (getattr(context, "environment", None) or {}).get("PYTHONPATH")
    return (
        *(str(root / path) for path in shipped),
        *((str(root),) if shipped else ()),
        *((set_for_workers,) if set_for_workers else ()),
    )


def warn_without_java() -> None:
    """Warn if Spark cannot be started here: its own error does not name the cause."""
    can_connect = importlib.util.find_spec("grpc") is not None  # Spark Connect's client needs none
    java, where = find_java()
    if java is None and not can_connect:
        warnings.warn(
            f"Spark needs Java 17 or newer, but there is none {where}. Debian and Ubuntu: apt "
            "install openjdk-17-jre-headless; macOS: brew install openjdk@17; or set JAVA_HOME",
            RuntimeWarning,
            stacklevel=3,
        )


@contextmanager
def explain_worker_errors() -> Iterator[None]:
    """Run the body's Spark jobs; explain errors of workers that lack this package.

    Raises:
        InvalidInputError: They lack it, have another release of it, or run another version of
            Python.
    """
    try:
        yield
    except PySparkException as error:
        text = str(error)
        other_release = _OTHER_RELEASE.search(text)
        if other_release is not None:
            raise InvalidInputError(
                f"Spark's workers run another release of lance_stream than this program, which is "
                f"{VERSION} ({other_release[0]}). Install the same release on the "
                "driver and on every worker"
            ) from error
        if "No module named 'lance_stream'" in text:
            cause = "Spark's workers cannot import lance_stream"
        elif _MISMATCH in text:
            cause = "Spark's workers run another version of Python than this program"
        else:
            raise
        detail = next((line for line in text.splitlines() if _MISMATCH in line), "")
        detail_text = f" ({detail.strip()[:300]})" if detail else ""
        raise InvalidInputError(f"{cause}{detail_text}. {ADVICE}") from error
