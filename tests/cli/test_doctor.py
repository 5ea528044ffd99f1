"""`lance-stream doctor`: what would go wrong on this machine, and with a store."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.cli import main as program
from lance_stream.cli.setup import checks as machine
from lance_stream.environment import MACHINE, Environment
from lance_stream.storage.extras import MODULES
from lance_stream.storage.locations import open_store
from lance_stream.storage.memory_store import MemoryStore
from tests.servers.buckets import Bucket


def diagnose(
    capsys: pytest.CaptureFixture[str], *arguments: str, environment: Environment = MACHINE
) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code, and each check's status and message."""
    code = program.main(["doctor", "--json", *arguments], environment)
    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {check["name"]: (check["status"], check["message"]) for check in checks}


@pytest.fixture(autouse=True)
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine.java, "find_problem", lambda _: None)


def test_good_machines_pass_every_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false alarm on a machine that works would make users ignore the report."""
    monkeypatch.setattr("lance_stream.cli.setup.checks.is_installed", lambda _: True)
    code, checks = diagnose(capsys)
    assert code == 0
    assert list(checks) == ["Python", "Spark", "Java", "workers", "checkpoints", "extras"]
    assert {status for status, _ in checks.values()} == {"ok"}
    assert checks["extras"][1] == f"installed: {', '.join(MODULES)}"


def test_text_has_a_line_per_check(capsys: pytest.CaptureFixture[str]) -> None:
    """Users paste this text into bug reports."""
    assert program.main(["doctor"]) == 0
    assert capsys.readouterr().out.startswith(f"ok       Python: 3.{sys.version_info[1]}.")


@pytest.mark.parametrize(
    ("version", "status"),
    [("3.4.1", "failure"), ("4.9.0", "warning"), ("3.5.1", "ok"), ("4.1.0", "ok")],
)
def test_sparks_version_is_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    """A version that is too old cannot work, while a newer one is merely untested."""
    monkeypatch.setattr("importlib.metadata.version", lambda _name: version)
    assert machine.check_spark().status == status


def test_the_default_checkpoint_manager_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The manager decides whether a checkpoint survives a crash, so the setting has to be named."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    _, checks = diagnose(capsys)
    assert checks["checkpoints"][0] == "ok"
    assert "spark.sql.streaming.checkpointFileManagerClass" in checks["checkpoints"][1]


def test_chosen_checkpoint_managers_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings in `spark-defaults.conf` apply although no program mentions them."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    tmp_path.joinpath("spark-defaults.conf").write_text(
        "# spark.master yarn\nspark.ui.enabled   false\n"
        "spark.sql.streaming.checkpointFileManagerClass org.apache.FileSystemBased\n"
    )
    _, checks = diagnose(capsys)
    assert checks["checkpoints"] == ("ok", "FileSystemBased (spark-defaults.conf)")


@pytest.mark.parametrize(
    ("fault", "name", "message"),
    [
        (
            lambda patch: patch.setattr(machine.java, "find_problem", lambda _: "no Java"),
            "Java",
            "JRE",
        ),
        (
            lambda patch: patch.setattr(machine.pythons, "find_problem", lambda _: "bare"),
            "workers",
            "PYSPARK_PYTHON",
        ),
    ],
    ids=["java", "workers"],
)
def test_missing_requirements_are_failures(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    name: str,
    message: str,
) -> None:
    """The exit code and the remedy matter to scripts and users who set up a machine."""
    fault(monkeypatch)
    code, checks = diagnose(capsys)
    assert code == 1
    assert checks[name][0] == "failure"
    assert message in checks[name][1]


def test_unset_worker_python_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may set the variable itself, as the quickstart does."""
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(machine.pythons, "find_problem", lambda _: "Spark would use another")
    code, checks = diagnose(capsys)
    assert code == 0
    assert checks["workers"][0] == "warning"
    for part in ("PYSPARK_PYTHON is not set", "Spark would use another", "Activate"):
        assert part in checks["workers"][1]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hdfs://cluster/t", "cannot be opened"),
        ("s3://bucket", "must name a bucket and a path"),
        ("memory://t", "memory of one process"),
    ],
)
def test_unusable_locations_are_failures(
    capsys: pytest.CaptureFixture[str], uri: str, message: str
) -> None:
    """A probe must not run on a location that cannot be opened."""
    code, checks = diagnose(capsys, uri, "--probe")
    assert code == 1
    assert checks["location"][0] == "failure"
    assert message in checks["location"][1]
    assert "create once" not in checks


def test_locations_need_no_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The check runs before the first table exists, and must not create anything."""
    code, checks = diagnose(capsys, str(tmp_path / "t"))
    assert (code, checks["location"]) == (0, ("ok", "reachable; there is no table yet"))
    assert list(tmp_path.iterdir()) == []
    lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    code, checks = diagnose(capsys, str(tmp_path / "t"))
    assert (code, checks["location"]) == (0, ("ok", "a table at version 1"))


def test_probes_leave_nothing_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A probe writes into a production table's directory."""
    lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    files = open_store(tmp_path / "t").list()
    code, checks = diagnose(capsys, str(tmp_path / "t"), "--probe")
    assert code == 0
    assert checks["create once"][0] == checks["clocks"][0] == "ok"
    assert [file.path for file in open_store(tmp_path / "t").list()] == [
        file.path for file in files
    ]


@pytest.mark.parametrize("hours", [-1, 1])
def test_wrong_clocks_are_warnings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, hours: int
) -> None:
    """Cleanup compares ages of files with the clock, in either direction."""
    wrong = replace(MACHINE, now_nanos=lambda: MACHINE.now_nanos() + hours * 3600 * 10**9)
    code, checks = diagnose(capsys, str(tmp_path / "t"), "--probe", environment=wrong)
    assert (code, checks["clocks"][0]) == (0, "warning")
    assert ("ahead of" if hours > 0 else "behind") in checks["clocks"][1]


def test_stores_without_conditions_are_failures() -> None:
    """On such a store two writers overwrite each other's versions."""

    class Careless(MemoryStore):
        def create_once(self, path: str, data: Any, **_: Any) -> bool:
            self.write(path, data)
            return True

    store = Careless("/careless")
    (check,) = machine.probe(store, MACHINE)
    assert (check.name, check.status) == ("create once", "failure")
    assert store.list() == []


def test_buckets_are_probed_with_options(
    capsys: pytest.CaptureFixture[str], s3_bucket: Bucket
) -> None:
    """Credentials and permissions fail most often, and the probe has to use those on the command
    line.
    """
    options = [f"-o{key}={value}" for key, value in s3_bucket.storage_options.items()]
    code, checks = diagnose(capsys, f"{s3_bucket.uri}/t", *options, "--probe")
    assert (code, checks["create once"][0], checks["clocks"][0]) == (0, "ok", "ok")
    code, checks = diagnose(capsys, f"{s3_bucket.uri}-missing/t", *options)
    assert (code, checks["location"][0]) == (1, "failure")


def test_manifest_stores_replace_conditional_writes(
    capsys: pytest.CaptureFixture[str], s3_bucket: Bucket, tmp_path: Path
) -> None:
    """The manifest store publishes versions, so the bucket need not support conditional writes."""
    values = {**s3_bucket.storage_options, "aws_conditional_put": "disabled"}
    options = [f"-o{key}={value}" for key, value in values.items()]
    code, checks = diagnose(capsys, f"{s3_bucket.uri}/v", *options, "--probe")
    assert (code, checks["create once"][0]) == (1, "failure")
    options.append(f"-omanifest_store=sqlite://{tmp_path}/versions.db")
    code, checks = diagnose(capsys, f"{s3_bucket.uri}/v", *options, "--probe")
    assert (code, checks["create once"][0]) == (0, "ok")
    assert "manifest store" in checks["create once"][1]


def test_probes_need_a_location(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a location there is nothing to probe, and a silent success would mislead."""
    assert program.main(["doctor", "--probe"]) == 2
    assert "requires a location" in capsys.readouterr().err
