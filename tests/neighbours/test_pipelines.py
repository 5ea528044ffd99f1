"""`spark-pipelines` runs the project of the examples."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lance_stream
from tests.recipes import need

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "pipelines"
DEFAULT_FOLDER = "/tmp/lance-stream-pipeline"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.recipes]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project, whose data and checkpoints are beside it."""
    for module in ("grpc_status", "zstandard", "yaml"):
        need(module)
    project = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    spec = project / "spark-pipeline.yml"
    text = spec.read_text()
    assert text.count(DEFAULT_FOLDER) == 2
    spec.write_text(text.replace(DEFAULT_FOLDER, str(tmp_path)))
    (tmp_path / "incoming").mkdir()
    return project


def run(project: Path, *arguments: str) -> str:
    """Run the pipeline to its end, which has to be a success; return what it says."""
    process = subprocess.run(
        [shutil.which("spark-pipelines", path=Path(sys.executable).parent) or "", *arguments],
        cwd=project,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "SPARK_CONF_DIR": str(ROOT / "tests" / "spark" / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stdout[-3000:]
    assert "Run is COMPLETED" in process.stdout
    return process.stdout


def arrive(project: Path, number: int, *changes: tuple[str, int, int, str]) -> None:
    """Let a file of changes arrive: operation, sequence, key and city of each."""
    rows = [
        {"op": op, "lsn": lsn, "id": key, "name": f"n{key}", "city": city}
        for op, lsn, key, city in changes
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    hidden = project.parent / "incoming" / f".{number}.json"
    hidden.write_text(text)
    hidden.rename(hidden.with_name(f"{number}.json"))


def rows_of(project: Path, name: str) -> list[dict[str, Any]]:
    ds = lance_stream.open_dataset(project.parent / f"{name}.lance")
    assert ds.verify() == []
    rows: list[dict[str, Any]] = ds.to_table().to_pylist()
    return rows


def test_pipeline_runs_merge_and_follow_changes(project: Path) -> None:
    """`spark-pipelines` runs flows through Spark Connect, with its own checkpoints and rules."""
    run(project, "dry-run")
    arrive(project, 1, ("c", 1, 1, "Turin"), ("c", 2, 2, "Oslo"))
    run(project, "run")
    arrive(project, 2, ("d", 4, 2, "Oslo"), ("u", 3, 1, "Rome"))
    run(project, "run")
    run(project, "run")  # nothing has arrived, but the feed has the changes of the second run
    assert rows_of(project, "customers") == [{"id": 1, "name": "n1", "city": "Rome", "lsn": 3}]
    moves = sorted((row["version"], row["id"], row["city"]) for row in rows_of(project, "moves"))
    assert [move[1:] for move in moves] == [(1, "Turin"), (2, "Oslo"), (1, "Rome")]
    customers = lance_stream.open_dataset(project.parent / "customers.lance")
    assert [version.operation for version in customers.versions()][1:] == ["Update", "Update"]
