"""Tasks of the format's writers that die after writing: no row is lost or duplicated.

A task that dies after its files are whole is like the losing one of two speculative attempts: its
files are there, and Spark takes no result of it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import lance_stream
from lance_stream.snapshot.opening import open_newest
from tests.faults import writing_process

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly]

TESTS = Path(__file__).parent.parent


class Run(NamedTuple):
    folder: Path
    outcomes: Mapping[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tables")
    process = subprocess.run(
        [sys.executable, writing_process.__file__, str(folder)],
        env={
            **os.environ,
            "SPARK_CONF_DIR": str(TESTS / "spark" / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(TESTS.parent),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return Run(folder, json.loads(process.stdout.splitlines()[-1]))


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_retried_tasks_leave_no_duplicate(run: Run, kind: str) -> None:
    """Files of the attempts that died may remain on the store, but no manifest names them."""
    name = f"{kind} killed"
    assert run.outcomes[name] == "in"
    table = lance_stream.open_dataset(run.folder / name)
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(90))
    assert table.version == 1
    assert table.verify() == []
    named = {
        f.path
        for fragment in open_newest(str(run.folder / name)).manifest.fragments
        for f in fragment.files
    }
    written = {path.name for path in (run.folder / name / "data").iterdir()}
    assert len(named) == 3
    assert len(written) == 5, "two attempts were to die after they had written"


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_failing_tasks_leave_no_table(run: Run, kind: str) -> None:
    """A first write that fails must not leave an empty table behind."""
    name = f"{kind} fails always"
    assert "the wire is cut" in run.outcomes[name]
    with pytest.raises(lance_stream.NotFoundError):
        lance_stream.open_dataset(run.folder / name)
