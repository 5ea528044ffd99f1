"""What tests cost: CPU seconds of a test's process, of its servers and of its Java.

With `--costs`, a run ends with the tests that cost most, and the sum for each folder. CPU seconds
say the same on a busy machine as on a quiet one; waiting is not in them. A session, a server or a
first import counts for the test that needs it first. What a process used is lost with it where it
ends without its parent being asked: such a test counts as nothing rather than as less.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NUM_SHOWN = 15
_NAME = "cpu_seconds"
_TICKS = os.sysconf("SC_CLK_TCK")
_costs: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", action="store_true", help="say at the end which tests cost most CPU time"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if item.config.getoption("--costs"):
        item.stash[_START] = cpu_seconds()
    return (yield)


_START = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "teardown" and _START in item.stash:
        used = cpu_seconds() - item.stash[_START]
        report.user_properties.append((_NAME, max(used, 0.0)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _costs.update((report.nodeid, cost) for name, cost in report.user_properties if name == _NAME)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--costs") or not _costs:
        return
    terminalreporter.section(f"CPU seconds of {len(_costs)} tests: {sum(_costs.values()):.0f}")
    for name, cost in ranked(of_folders(_costs)):
        terminalreporter.write_line(f"{cost:8.1f}  {name}")
    terminalreporter.write_line(f"the {NUM_SHOWN} that cost most:")
    for name, cost in ranked(_costs)[:NUM_SHOWN]:
        terminalreporter.write_line(f"{cost:8.1f}  {name}")


def of_folders(costs: dict[str, float]) -> dict[str, float]:
    """Return the sums for the folders that the tests lie in, the first two names of each."""
    sums: dict[str, float] = defaultdict(float)
    for test, cost in costs.items():
        sums["/".join(Path(test.partition("::")[0]).parent.parts[:2])] += cost
    return sums


def ranked(costs: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(costs.items(), key=lambda each: -each[1])


def cpu_seconds() -> float:
    """Return what this process and its descendants have used, also those that have ended.

    Descendants that still run are only known on Linux.
    """
    own = os.times()
    return sum(own[:4]) + sum(map(_used_by, _children_of("self")))


def _used_by(process: str) -> float:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # it has just ended
        return 0.0
    ticks = map(int, text.rpartition(")")[2].split()[11:15])
    return sum(ticks) / _TICKS + sum(map(_used_by, _children_of(process)))


def _children_of(process: str) -> list[str]:
    """Return the processes that a process has started; those it lists, if it ends meanwhile."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
    except OSError:  # it has just ended
        return []
    return [child for thread in threads for child in _children_of_thread(thread)]


def _children_of_thread(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except OSError:  # it has just ended; the others' children count all the same
        return []
