"""Checks whether the Python of Spark's workers can run this package.

Spark uses `PYSPARK_PYTHON`, by default "python3" of the PATH: in a virtual environment that is not
activated that is another Python than the program's, and the first task fails with an error that
does not name the cause.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import Final, NamedTuple

_SECONDS: Final = 20.0

_NEEDED: Final = ("lance_stream", "pyarrow", "numpy", "google.protobuf", "pyroaring")

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


_able: Final[set[tuple[str, tuple[str, ...]]]] = set()
"""What `find_problem` has found nothing wrong with; a problem is looked for again once mended."""


def find_problem(executable: str, import_paths: tuple[str, ...] = ()) -> str | None:
    """Return why a Python cannot run Spark's workers for this program.

    Args:
        executable: A path, or a name to be searched on the PATH.
        import_paths: Where Spark lets its workers find modules, besides their own.

    Returns:
        The problem in one sentence; None if there is none, or if the Python is not on this machine,
        as that of an archive which only workers unpack.
    """
    if (executable, import_paths) in _able:
        return None
    problem = _find_problem(executable, import_paths)
    if problem is None:
        _able.add((executable, import_paths))
    return problem


def _find_problem(executable: str, import_paths: tuple[str, ...]) -> str | None:
    path = shutil.which(executable)
    if path is None or _folder(path) == _folder(sys.executable):
        return None
    answer = _ask(path, import_paths)
    if answer is None:
        return None
    if answer.version != sys.version_info[:2]:
        ours, theirs = (
            ".".join(map(str, version)) for version in (sys.version_info[:2], answer.version)
        )
        return (
            f"Spark starts its workers with {path}, which is Python {theirs}, but this program "
            f"runs on Python {ours} ({sys.executable})"
        )
    if answer.missing:
        return (
            f"Spark starts its workers with {path}, which cannot import "
            f"{', '.join(answer.missing)}; this program runs on {sys.executable}"
        )
    return None


def _folder(executable: str) -> str:
    """Return where a Python is; links are kept, for a link to the same Python is an environment."""
    return os.path.dirname(os.path.abspath(executable))  # noqa: PTH100, PTH120  # Path.resolve follows links


def _ask(executable: str, import_paths: tuple[str, ...]) -> _Python | None:
    """Return what a Python reports about itself; None if it does not answer."""
    paths = filter(None, (*import_paths, os.environ.get("PYTHONPATH")))
    try:
        process = subprocess.run(
            [executable, "-c", _QUESTION],
            capture_output=True,
            timeout=_SECONDS,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        version, missing = json.loads(process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Python(tuple(version), tuple(missing))
