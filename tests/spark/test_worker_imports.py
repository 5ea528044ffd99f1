"""What Spark's processes and a program import: each pays for it before it reads a row."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.spark.registration import _source
from lance_stream.spark.session.session_options import SessionOptions

NOT_FOR_A_LOCAL_TABLE = (
    "asyncio", "azure", "botocore", "fsspec", "obstore", "pandas", "rich", "sqlite3",
    "lance_stream.dataset", "lance_stream.commit.committer", "lance_stream.commit.opening",
    "lance_stream.file.v0_1.reader", "lance_stream.file.v2_0", "lance_stream.maintenance",
    "lance_stream.spark.arguments", "lance_stream.spark.sink",
    "lance_stream.spark.source.reader_factory", "lance_stream.spark.writer",
    "lance_stream.storage.objects.object_store", "lance_stream.upsert", "lance_stream.write",
)  # fmt: skip

_TASK = """
import json, pickle, sys
import pyarrow, pyspark.sql.worker.plan_data_source_read
before = set(sys.modules)
with open(sys.argv[1], "rb") as file:
    _source, reader, task_input = pickle.load(file)
num_rows = sum(each.num_rows for each in reader.read(task_input))
print(json.dumps([num_rows, sorted(set(sys.modules) - before)]))
"""


def run_task(uri: str, folder: Path, **options: str) -> tuple[int, set[str]]:
    """Return how many rows a new worker reads, and what it imports beyond Spark's own."""
    from pyspark import cloudpickle

    source: Any = _source("lance", SessionOptions())({"path": uri, **options})
    reader = source.reader(source.schema())
    (task_input,) = reader.partitions()
    sent = folder / "sent"
    sent.write_bytes(cloudpickle.dumps((source, reader, task_input)))
    return imports_of(_TASK, str(sent))


def imports_of(program: str, *arguments: str) -> tuple[int, set[str]]:
    """Return the number that a program prints, and what it imports, in a new process.

    numba is blocked there: a worker with the extra "fast" imports it, and much with it.
    """
    program = f"import sys; sys.modules['numba'] = None\n{program}"
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    number, modules = json.loads(process.stdout)
    return number, set(modules)


def make_table(folder: Path, num_rows: int) -> str:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    ds = lance_stream.create_dataset(folder / "t", schema, primary_key=["id"])
    texts = [f"{number * 7919 % 1_000_003}" for number in range(num_rows)]
    ds.append(pa.table({"id": np.arange(num_rows), "text": texts}))
    return str(folder / "t")


def named_in(unwanted: Iterable[str], modules: set[str]) -> list[str]:
    """Return those unwanted packages that are among some modules, or of which a part is."""
    return sorted(
        number
        for number in unwanted
        if any(name == number or name.startswith(f"{number}.") for name in modules)
    )


def modules_with_code(modules: set[str]) -> list[str]:
    """Return the modules of lance_stream; a folder's `__init__` has no code, and costs little."""
    root = Path(lance_stream.__file__).parents[1]
    return sorted(
        module
        for module in modules
        if module.startswith("lance_stream.") and not root.joinpath(*module.split(".")).is_dir()
    )


@pytest.mark.parametrize(
    "options", [{}, {"readchangefeed": "true", "startingversion": "1"}], ids=["table", "feed"]
)
def test_tasks_import_only_their_readers(tmp_path: Path, options: dict[str, str]) -> None:
    """Every new worker pays for imports before it reads a row, and one careless import adds the
    writer to all of them.
    """
    uri = make_table(tmp_path, 100_000)  # too many to be sent with the task
    num_rows, modules = run_task(uri, tmp_path, **options)
    assert num_rows == 100_000
    assert named_in(NOT_FOR_A_LOCAL_TABLE, modules) == []
    assert len(modules_with_code(modules)) <= 143


@pytest.mark.parametrize(
    "options", [{}, {"readchangefeed": "true", "startingversion": "1"}], ids=["table", "feed"]
)
def test_tasks_with_sent_rows_import_little(tmp_path: Path, options: dict[str, str]) -> None:
    """Rows that arrive with the task need no reader, so small queries should start as fast as
    Spark allows.
    """
    num_rows, modules = run_task(make_table(tmp_path, 1000), tmp_path, **options)
    assert num_rows == 1000
    assert named_in(NOT_FOR_A_LOCAL_TABLE, modules) == []
    assert len(modules_with_code(modules)) <= 16


_PLANNING = """
import json, pickle, sys
import pyarrow, pyspark.sql.worker.create_data_source, pyspark.sql.worker.plan_data_source_read
before = set(sys.modules)
from lance_stream.spark.source.lance_source import LanceSource
source = LanceSource(json.loads(sys.argv[1]))
num_partitions = len(source.reader(source.schema()).partitions())
print(json.dumps([num_partitions, sorted(set(sys.modules) - before)]))
"""

NOT_FOR_PLANNING = (
    "asyncio", "fsspec", "obstore", "pandas", "rich", "sqlite3",
    "lance_stream.dataset", "lance_stream.maintenance.compaction", "lance_stream.spark.sink",
    "lance_stream.spark.writer", "lance_stream.storage.objects.object_store",
    "lance_stream.upsert", "lance_stream.verbs",
)  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"readchangefeed": "true", "startingversion": "1"}], ids=["table", "feed"]
)
def test_planning_reads_imports_no_writers(tmp_path: Path, options: dict[str, str]) -> None:
    """Spark starts a new process for every plan, so its imports delay each `load()`."""
    uri = make_table(tmp_path, 100_000)
    num_partitions, modules = imports_of(_PLANNING, json.dumps({"path": uri, **options}))
    assert num_partitions == 1
    assert named_in(NOT_FOR_PLANNING, modules) == []
    assert len(modules_with_code(modules)) <= 192


_NAMES_IN_USE = """
import json, sys
import pyarrow, pyspark.sql
before = set(sys.modules)
from lance_stream.spark import lance_sink, register
lance_sink("table", mode="upsert", on="id")
print(json.dumps([0, sorted(set(sys.modules) - before)]))
"""

NOT_FOR_A_SINK = (
    "asyncio", "fsspec", "obstore", "pandas", "rich", "sqlite3",
    "lance_stream.dataset", "lance_stream.feed", "lance_stream.maintenance.compaction",
    "lance_stream.quarantine.quarantine_writer", "lance_stream.spark.source.reader_factory",
)  # fmt: skip


def test_sinks_import_only_what_they_use() -> None:
    """A program that starts a stream should not pay for libraries of modes and stores that it does
    not use.
    """
    _, modules = imports_of(_NAMES_IN_USE)
    assert named_in(NOT_FOR_A_SINK, modules) == []
