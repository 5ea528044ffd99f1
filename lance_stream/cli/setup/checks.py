"""The checks of `doctor`: does this machine and a store meet the requirements of a stream?"""

import importlib
import importlib.metadata
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lance_stream.cli.arguments import TableArgument
from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.environment import Environment
from lance_stream.errors import LanceStreamError, NotFoundError
from lance_stream.machine import java, pythons
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.extras import MODULES, is_installed
from lance_stream.storage.locations import open_store
from lance_stream.storage.preflight import check_can_write_to
from lance_stream.storage.store import Store

_OLDEST_PYTHON: Final = (3, 11)
_SPARK: Final = ((3, 5), (4, 4))
"""The tested versions of PySpark: from the first up to, but excluding, the second."""

_INSTALL_SPARK: Final = "pip install 'pyspark>=3.5,<4.4'"

_SINCE_SPARK: Final = (
    ((4, 0), 'the format "lance" and its SQL functions'),
    ((4, 1), 'writeStream.format("lance")'),
)
"""What an older PySpark lacks, by the version that has it."""

_OLDEST_JAVA_OF_SPARK_3: Final = 8

_CHECKPOINT_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"

_PROBES: Final = "_lance_stream"
_SKEW_SECONDS: Final = 60.0

OK, WARNING, FAILURE = "ok", "warning", "failure"


class SetupCheck(NamedTuple):
    """The outcome of a check.

    Attributes:
        name: What was checked.
        status: "ok", "warning" or "failure".
        message: The observation, and the remedy.
    """

    name: str
    status: str
    message: str


def run_checks(
    table: TableArgument | None, environment: Environment, *, is_probing: bool
) -> Iterator[SetupCheck]:
    """Yield the outcome of each check.

    Args:
        table: The location of an existing or future table; None to check this machine only.
        environment: The clock.
        is_probing: Whether to write a small file to the table's store.
    """
    yield check_python()
    yield check_spark()
    yield check_java()
    yield check_workers()
    yield check_checkpoints()
    yield check_extras()
    if table is not None:
        yield from check_location(table, environment, is_probing=is_probing)


def check_python() -> SetupCheck:
    """Check the version of this Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return SetupCheck("Python", FAILURE, f"{version}; lance-stream requires 3.11 or newer")
    return SetupCheck("Python", OK, f"{version} ({sys.executable})")


def check_spark() -> SetupCheck:
    """Check the version of PySpark."""
    version = _version_of_spark()
    if version is None:
        return SetupCheck("Spark", FAILURE, f"PySpark is not installed: {_INSTALL_SPARK}")
    installed = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    first, end = _SPARK
    if installed < first:
        advice = f"lance-stream requires 3.5 or newer: {_INSTALL_SPARK}"
        return SetupCheck("Spark", FAILURE, f"PySpark {version}; {advice}")
    if installed >= end:
        return SetupCheck("Spark", WARNING, f"PySpark {version} is newer than the tested versions")
    missing = [
        f"; {feature} requires {'.'.join(map(str, since))}"
        for since, feature in _SINCE_SPARK
        if installed < since
    ]
    return SetupCheck("Spark", OK, f"PySpark {version}{''.join(missing)}")


def _version_of_spark() -> str | None:
    """Return the version of PySpark, which may be installed without package metadata."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return str(importlib.import_module("pyspark.version").__version__)
    except ImportError:
        return None


def check_java() -> SetupCheck:
    """Check the Java installation that Spark would use."""
    is_spark_3 = (_version_of_spark() or "").startswith("3.")
    problem = java.find_problem(_OLDEST_JAVA_OF_SPARK_3 if is_spark_3 else java.OLDEST)
    if problem is not None:
        return SetupCheck("Java", FAILURE, f"{problem}. {java.HOW_TO_GET_IT}")
    return SetupCheck("Java", OK, str(java.find_java()[0]))


def check_workers() -> SetupCheck:
    """Check the Python with which Spark would start workers on this machine.

    An unsuitable default is a warning, because a program can set `PYSPARK_PYTHON` itself.
    """
    setting = os.environ.get("PYSPARK_PYTHON")
    executable = setting or "python3"
    problem = pythons.find_problem(executable)
    if problem is None:
        source = "PYSPARK_PYTHON" if setting else "the default of Spark"
        return SetupCheck("workers", OK, f"{executable} ({source})")
    if setting:
        return SetupCheck("workers", FAILURE, f"{problem}. {pythons.ADVICE}")
    return SetupCheck(
        "workers",
        WARNING,
        f"PYSPARK_PYTHON is not set: unless the program sets it, {problem}. Activate the "
        f"environment. Or: {pythons.ADVICE}",
    )


def check_checkpoints() -> SetupCheck:
    """Report the cost of Spark's default checkpoint file manager, unless one is configured."""
    manager = _spark_defaults().get(_CHECKPOINT_MANAGER)
    if manager is not None:
        return SetupCheck("checkpoints", OK, f"{manager.rpartition('.')[2]} (spark-defaults.conf)")
    return SetupCheck(
        "checkpoints",
        OK,
        "Spark's default, which starts about 32 processes per micro-batch if the checkpoint is on "
        f"a local disk. If low latency matters, consider setting {_CHECKPOINT_MANAGER}: see "
        '"Low latency" in docs/operations/tuning.md',
    )


def _spark_defaults() -> dict[str, str]:
    """Return the settings of spark-defaults.conf."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    if not folder:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and not pair[0].startswith("#")}


def check_extras() -> SetupCheck:
    """List the extras of this package that are installed."""
    installed = [extra for extra, modules in MODULES.items() if all(map(is_installed, modules))]
    missing = [extra for extra in MODULES if extra not in installed]
    message = f"installed: {', '.join(installed) or 'none'}"
    if missing:
        message += f"; others: pip install 'lance-stream[{','.join(missing)}]'"
    return SetupCheck("extras", OK, message)


def check_location(
    table: TableArgument, environment: Environment, *, is_probing: bool
) -> Iterator[SetupCheck]:
    """Check a table's location and its store; the arguments are those of `run_checks`."""
    uri, options = table.uri, table.storage_options
    failure = _failure_of("location", lambda: check_can_write_to(uri, options))
    if failure is not None:
        yield failure
        return
    try:
        version = open_newest(uri, storage_options=options).version
        yield SetupCheck("location", OK, f"a table at version {version}")
    except NotFoundError:
        yield SetupCheck("location", OK, "reachable; there is no table yet")
    except (LanceStreamError, OSError) as error:
        yield SetupCheck("location", FAILURE, str(error))
        return
    if is_probing:
        if choose(uri, options).manifests is not None:
            yield SetupCheck("create once", OK, "versions are published in a manifest store")
        else:
            yield from probe(open_store(uri, options), environment)


def probe(store: Store, environment: Environment) -> Iterator[SetupCheck]:
    """Create a file twice, which must succeed once only; compare the clocks; delete the file."""
    path = f"{_PROBES}/doctor-{uuid.uuid4()}"
    try:
        created = store.create_once(path, b"first"), store.create_once(path, b"second")
        content = store.read(path)
        written = [file.modified for file in store.list_files(_PROBES) if file.path == path]
    except (LanceStreamError, OSError) as error:
        yield SetupCheck("create once", FAILURE, str(error))
        return
    finally:
        _failure_of("create once", lambda: store.delete(path))
    if created != (True, False) or content != b"first":
        yield SetupCheck(
            "create once",
            FAILURE,
            "both of two creates of one name succeeded: this store ignores the condition that "
            "commits depend on. Publish versions in DynamoDB, PostgreSQL or SQLite: see "
            "docs/operations/stores.md",
        )
        return
    yield SetupCheck("create once", OK, "of two creates of one name, the first succeeded")
    skew = environment.now_nanos() / 1e9 - written[0] if written else 0.0
    message = f"this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the store"
    if abs(skew) > _SKEW_SECONDS:
        yield SetupCheck(
            "clocks",
            WARNING,
            f"{message}: synchronize it with NTP, because cleanup depends on the ages of files",
        )
    else:
        yield SetupCheck("clocks", OK, message)


def _failure_of(name: str, action: Callable[[], object]) -> SetupCheck | None:
    """Return the failure of an action; None if it succeeded."""
    try:
        action()
    except (LanceStreamError, OSError) as error:
        return SetupCheck(name, FAILURE, str(error))
    return None
