"""Workers and drivers that die while tables are compacted and cleaned up by Spark's tasks.

Spark runs two executors here. They share a host, so it starts no second attempts of tasks that take
long: those are in `tests/cluster/test_late_tasks.py`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.table.named_files import nameable, names_of
from tests.faults import upkeep_process

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly]

TESTS = Path(__file__).parent.parent
NUM_FRAGMENTS = 24


def make_table(uri: Path, num_fragments: int = NUM_FRAGMENTS) -> Dataset:
    ds = lance_stream.create_dataset(uri, pa.schema([("id", pa.int64()), ("x", pa.int64())]))
    for first in range(0, 2 * num_fragments, 2):
        ds = ds.append(pa.table({"id": [first, first + 1], "x": [0, 1]}))
    return ds.update({"x": "x + 10"}, "id = 5").delete("id IN (3, 8)")


def content(ds: Dataset) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.to_table(with_row_id=True, with_row_versions=True).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def files_of_no_version(ds: Dataset) -> list[str]:
    named = {
        name
        for version in ds.table.log.versions()
        for name in names_of(ds.table.log.read(version), set())
    }
    files = [(file.path, nameable(file.path)) for file in ds.table.store.list()]
    return [path for path, what in files if what is not None and what.name not in named]


def check_same(before: Dataset) -> Dataset:
    """Check that a table has the same rows as before, and return it."""
    after = lance_stream.open_dataset(before.uri)
    assert after.verify(deep=True) == []
    assert content(after) == content(before)
    assert after.changes(after=before.version).read_all().num_rows == 0
    return after


def check_all_goes(ds: Dataset) -> None:
    """Check that a cleanup removes what no version names, and nothing else."""
    rows = content(ds)
    ds.cleanup(retain_versions=1, delete_unverified=True)
    assert files_of_no_version(ds) == []
    assert content(lance_stream.open_dataset(ds.uri)) == rows


def spark_home(folder: Path) -> Path:
    """Return an installation of Spark, whose executors work in its folder, as links to ours."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            (home / path.name).symlink_to(path)
    return home


@contextmanager
def running(folder: Path, *cases: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, upkeep_process.__file__, str(folder), *cases],
            env={
                **os.environ,
                "SPARK_HOME": str(spark_home(folder)),
                "SPARK_CONF_DIR": str(TESTS / "spark" / "conf"),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": str(TESTS.parent),
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Python and all JVMs are killed together
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Run(NamedTuple):
    before: Mapping[str, Dataset]
    outcomes: Mapping[str, Any]


CASES = (*upkeep_process.FAULTS, *upkeep_process.DELETIONS, upkeep_process.ALWAYS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tables")
    tables = {case: make_table(folder / case, 8) for case in CASES}
    for case in upkeep_process.DELETIONS:
        tables[case] = tables[case].compact(4)
    with running(folder, *CASES) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, (folder / "errors").read_text()[-3000:]
    return Run(tables, json.loads(output.splitlines()[-1]))


@pytest.mark.parametrize("fault", upkeep_process.FAULTS)
def test_retried_tasks_leave_no_wrong_row(run: Run, fault: str) -> None:
    """Two attempts of a task may both write files, of which the compaction must name one."""
    before = run.before[fault]
    assert run.outcomes[fault] == before.version + 1
    deaths = list(Path(before.uri).parent.glob(f"{fault}-death-*"))
    assert len(deaths) == 2, "two attempts came to grief, of one task or of two"
    after = check_same(before)
    assert len(after.table.manifest.fragments) < len(before.table.manifest.fragments) / 2 + 1
    if fault in ("killed after", "fails after"):
        assert files_of_no_version(after), "attempts that do not count leave files"
    check_all_goes(after)


@pytest.mark.parametrize("fault", upkeep_process.DELETIONS)
def test_repeated_deletions_do_no_harm(run: Run, fault: str) -> None:
    """A task that dies after deleting is repeated by Spark and finds its files gone."""
    before = run.before[fault]
    assert isinstance(run.outcomes[fault], int), run.outcomes[fault]
    assert len(list(Path(before.uri).parent.glob(f"{fault}-death-*"))) == 2
    after = lance_stream.open_dataset(before.uri)
    assert len(after.versions()) == 1
    assert after.verify(deep=True) == []
    assert sorted(after.to_table()["id"].to_pylist()) == [0, 1, 2, 4, 5, 6, 7, *range(9, 16)]
    assert files_of_no_version(after) == []


def test_failing_compactions_change_nothing(run: Run) -> None:
    """The error must reach the user, and what the tasks have written must not remain for good."""
    before = run.before[upkeep_process.ALWAYS]
    assert "the wire is cut" in run.outcomes[upkeep_process.ALWAYS]
    assert check_same(before).version == before.version
    check_all_goes(before)


def test_killed_drivers_lose_one_round(tmp_path: Path) -> None:
    """A compaction of a large table takes hours, and starting again from the beginning might never
    end.
    """
    before = make_table(tmp_path / "driver")
    deadline = time.monotonic() + 300
    with running(tmp_path, "driver") as process:
        while lance_stream.open_dataset(before.uri).version < before.version + 3:
            assert time.monotonic() < deadline
            assert process.poll() is None, (tmp_path / "errors").read_text()[-3000:]
            time.sleep(0.05)
    after = check_same(before)
    done = after.version - before.version
    assert done >= 3
    with running(tmp_path, "driver") as process:
        output, _ = process.communicate(timeout=300)
    whole = check_same(before)
    assert json.loads(output.splitlines()[-1]) == {"driver": whole.version}
    operations = [version.operation for version in whole.versions()][before.version :]
    assert operations == ["Rewrite"] * len(operations)
    assert len(operations) > done, "it was killed before its end"
    fragments = len(before.compact(4).table.manifest.fragments)
    assert len(whole.table.manifest.fragments) == fragments
    check_all_goes(whole)
