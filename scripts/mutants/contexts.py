"""A plugin of pytest that records which lines of the mutated packages each test executes.

    pytest -p tests.mutants.contexts --contexts FOLDER ...

Each process of the run writes two files into the folder: the lines by test, as coverage.py keeps
them, and the CPU seconds of each test. Lines that run at import belong to no test.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

PACKAGE = Path(__file__).parents[2] / "lance_stream"
PACKAGES = (
    "commit", "table", "keys", "row_updates", "upsert", "feed", "ledger", "write", "maintenance",
    "snapshot", "read", "derived", "quarantine", "expressions",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the folder."""
    parser.addoption("--contexts", type=Path, help="the folder for the lines of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Record in each process that runs tests."""
    is_controller = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not is_controller:
        config.pluginmanager.register(_Recorder(config.getoption("contexts")))


class _Recorder:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(
            data_file=str(folder / "lines"),
            data_suffix=True,
            config_file=False,
            include=[f"{PACKAGE / name}/*" for name in PACKAGES],
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        self._coverage.switch_context(item.nodeid)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.process_time() - start
            self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        name = f"seconds.{time.time_ns()}.json"
        (self._folder / name).write_text(json.dumps(self._seconds))
