"""dbt itself runs the project of the examples, in Spark sessions of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from tests.recipes import need

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "dbt"
READ = """
import json
from pyspark.sql import SparkSession
spark = SparkSession.builder.enableHiveSupport().getOrCreate()
for table in ("order_log", "orders_now"):
    print("rows", json.dumps(sorted(list(row) for row in spark.table(table).collect())))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    need("dbt.adapters.spark")
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def run(project: Path, *command: str) -> str:
    process = subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


def rows_of_models(project: Path) -> list[list[list[object]]]:
    lines = run(project, "-c", READ).splitlines()
    return [json.loads(line.removeprefix("rows ")) for line in lines if line.startswith("rows ")]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.recipes
def test_dbt_runs_append_only_changes(project: Path) -> None:
    """dbt's incremental models decide by themselves what to read, which only dbt can show."""
    uri = str(project / "tables" / "orders.lance")
    rows = pa.table({"id": [1, 2, 3], "state": ["new", "new", "new"]})
    ds = lance_stream.create_dataset(uri, rows, primary_key=["id"])
    run(project, "run_dbt.py", "run")
    ds = ds.upsert(pa.table({"id": [3, 4], "state": ["paid", "new"]}), on="id").delete("id = 1")
    ds = ds.upsert(pa.table({"id": [4], "state": ["paid"]}), on="id")
    run(project, "run_dbt.py", "run")
    run(project, "run_dbt.py", "run")  # nothing is new
    log, now = rows_of_models(project)
    assert [row[:2] for row in log] == [
        [1, "new"], [1, "new"], [2, "new"], [3, "new"], [3, "paid"], [4, "paid"],
    ]  # fmt: skip
    assert now == [[2, "new"], [3, "paid"], [4, "paid"]]


def test_the_page_shows_the_tested_project() -> None:
    """Readers copy the files from the page, which must be those that the test runs."""
    page = (ROOT / "docs" / "guides" / "recipes" / "dbt.md").read_text()
    for name in ("models/order_log.sql", "models/orders_now.sql", "profiles.yml"):
        assert (PROJECT / name).read_text() in page, name
