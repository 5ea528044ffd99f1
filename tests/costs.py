"""What tests cost: CPU seconds of a test's process, of its servers and of its Java.

With `--costs`, a run ends with the tests that cost most, and the sum for each folder. CPU seconds
say the same on a busy machine as on a quiet one; waiting is not in them. A first import counts for
the test that needs it first; a session of Spark or a server counts for itself. What a process used
is lost with it where it ends without its parent being asked: such a test counts as nothing rather
than as less.

A whole quick sample fails if a case of a test costs more than three hundredths of the run: 10 CPU
seconds where the run takes 345. What the run itself has measured decides, so that a test which
nobody has recorded counts, too; and a share, so that the machine does not count: on one of half the
speed, or a busy one, each cost and their sum are twice as high.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.sampling import QUICK_SECONDS, RECORDED_COSTS, RECORDED_SECONDS

NUM_LISTED = 15
LIMIT_SHARE = 0.03
HEADER = f"""\
# CPU seconds of one case of each test whose cases cost more than {QUICK_SECONDS} together,
# where all tests of `make test-ci` cost {RECORDED_SECONDS}. Written by `make record-costs`.
"""
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
        item.stash[_SHARED] = {}
    return (yield)


_START = pytest.StashKey[float]()
_SHARED = pytest.StashKey[dict[str, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Set apart what a fixture of the session costs, which all later tests share."""
    shared = request._pyfuncitem.stash.get(_SHARED, None)
    if shared is None or fixturedef.scope != "session":
        return (yield)
    start, others = cpu_seconds(), sum(shared.values())
    try:
        return (yield)
    finally:
        nested = sum(shared.values()) - others
        shared[f"fixture {fixturedef.argname}"] = cpu_seconds() - start - nested


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "teardown" and _START in item.stash:
        shared = item.stash[_SHARED]
        cost = cpu_seconds() - item.stash[_START] - sum(shared.values())
        report.user_properties += [
            (_NAME, (name, max(seconds, 0.0)))
            for name, seconds in [(item.nodeid, cost), *shared.items()]
        ]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _NAME and report.when == "teardown":
            item, seconds = value
            _costs[item] = _costs.get(item, 0.0) + seconds


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):  # a process of pytest-xdist
        return
    if _is_whole_quick_sample(session.config) and too_costly(_costs):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if os.environ.get("RECORD_COSTS") == "1":
        RECORDED_COSTS.write_text(recorded(costs_of_cases(_costs)))


def recorded(costs: Mapping[str, float]) -> str:
    """Return the text of the file with what a case of each costly test costs."""
    return HEADER + "".join(f"{cost:.4f} {name}\n" for name, cost in sorted(costs.items()))


def costs_of_cases(costs: Mapping[str, float]) -> dict[str, float]:
    """Return what a case costs of each test of which the quick sample has not room for all.

    Costs are scaled to a machine on which all of them are `RECORDED_SECONDS`.
    """
    scale = RECORDED_SECONDS / sum(costs.values())
    num_cases = Counter(map(_test_of, costs))
    sums = {name: cost * scale for name, cost in of_tests(costs).items() if "::" in name}
    return {name: cost / num_cases[name] for name, cost in sums.items() if cost > QUICK_SECONDS}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--costs") or not _costs:
        return
    terminalreporter.section(f"CPU seconds of {len(_costs)} tests: {sum(_costs.values()):.0f}")
    for name, cost in ranked(of_folders(_costs)):
        terminalreporter.write_line(f"{cost:8.1f}  {name}")
    terminalreporter.write_line(f"the {NUM_LISTED} that cost most:")
    for name, cost in ranked(of_tests(_costs))[:NUM_LISTED]:
        terminalreporter.write_line(f"{cost:8.1f}  {name}")
    for name in too_costly(_costs) if _is_whole_quick_sample(config) else ():
        terminalreporter.write_line(
            f"FAILED {name} costs more than 3 % of the quick tests. Make it cheaper, or "
            "mark it slow (docs/testing.md).",
            red=True,
        )


def _is_whole_quick_sample(config: pytest.Config) -> bool:
    is_part = config.getoption("markexpr") or config.getoption("keyword")
    is_quick = config.getoption("--costs") and config.getoption("--quick")
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not is_part
    return bool(is_quick and is_whole)


def too_costly(costs: Mapping[str, float]) -> list[str]:
    """Return the cases that the quick sample refuses, given the costs of all that it ran."""
    limit = LIMIT_SHARE * sum(costs.values())
    return [name for name, cost in ranked(costs) if cost > limit and "::" in name]


def of_tests(costs: Mapping[str, float]) -> dict[str, float]:
    """Return the sums for tests, each with all its cases, and for fixtures."""
    sums: dict[str, float] = defaultdict(float)
    for case, cost in costs.items():
        sums[_test_of(case)] += cost
    return sums


def _test_of(case: str) -> str:
    return case.partition("[")[0].partition("@")[0]  # pytest-xdist adds the group


def of_folders(costs: Mapping[str, float]) -> dict[str, float]:
    """Return the sums for the folders that the tests lie in, the first two names of each."""
    sums: dict[str, float] = defaultdict(float)
    for test, cost in costs.items():
        folder = "/".join(Path(test.partition("::")[0]).parent.parts[:2])
        sums[folder if "::" in test else test] += cost
    return sums


def ranked(costs: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(costs.items(), key=lambda item: -item[1])


def cpu_seconds() -> float:
    """Return what this process and its descendants have used, also those that have ended.

    Descendants that still run are only known on Linux.
    """
    times = os.times()
    return sum(times[:4]) + sum(map(_used_by, _children_of("self")))


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
