"""Workers that die in the middle of a task: Spark retries it, and no row is duplicated.

Spark starts no second, speculative, attempt of a task on the machine that runs the first one. Such
an attempt is one that wrote its files, and of which Spark takes no result: "killed after" is.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults import faulty_workers
from tests.faults.drivers import MODES, open_dataset, rows_at

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TESTS = Path(__file__).parent.parent


class Run(NamedTuple):
    folder: Path
    outcomes: Mapping[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tables")
    process = subprocess.run(
        [sys.executable, faulty_workers.__file__, str(folder)],
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


@pytest.mark.parametrize("fault", faulty_workers.FAULTS)
@pytest.mark.parametrize("mode", faulty_workers.MODES)
def test_retried_tasks_leave_no_duplicate(run: Run, mode: str, fault: str) -> None:
    """The first attempt has written complete files before it died, which the
    commit must not name.
    """
    name = f"{mode} {fault}"
    assert run.outcomes[name] == "in"
    uri = str(run.folder / name)
    assert len(list(run.folder.glob(f"{name}-death-*"))) == 2, "two tasks died, or one twice"
    model = MODES[mode].model
    assert rows_at(uri) == model(model([], faulty_workers.BATCHES[0]), faulty_workers.BATCHES[1])
    assert open_dataset(uri).version == 3
    assert open_dataset(uri).verify() == []


@pytest.mark.parametrize("mode", faulty_workers.MODES)
def test_failing_tasks_change_nothing(run: Run, mode: str) -> None:
    """Other tasks of the batch have succeeded, and their rows must not become visible alone."""
    name = f"{mode} fails always"
    assert "the wire is cut" in run.outcomes[name]
    uri = str(run.folder / name)
    assert rows_at(uri) == MODES[mode].model([], faulty_workers.BATCHES[0])
    assert open_dataset(uri).version == 2
