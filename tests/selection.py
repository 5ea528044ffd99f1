"""Which tests and cases a run has: the samples of `make test` and `make test-ci`, or all of them.

    --quick        make test: as much as a quarter of an hour has room for
    --ci           what make test-ci runs in addition
    --quick --ci   both
    neither        make test-all

With ALL_CASES=1, as in `make soak`, both options are without effect. Hypothesis has no deadline and
does not judge how long it takes to draw examples: how busy the machine is says nothing about the
code.
"""

import importlib.metadata
import math
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.java import set_options
from tests.sampling import ALL_CASES, indices_of_some, max_quick_cases
from tests.servers.marks import FROM_PIP, servers_of

SPARK_PROCESSES = min(max(os.cpu_count() or 2, 2), 4)
"""How many processes share the tests with Spark; in the quick sample it is one."""

settings.register_profile(
    "on a busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("sample", settings.get_profile("on a busy machine"), max_examples=40)
settings.load_profile("on a busy machine")


def _major_and_minor(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="the sample of `make test`: of Spark and what is slow the essential, of costly tests "
        "few cases, a contract where it is proved first, and no server that pip cannot install",
    )
    parser.addoption(
        "--ci",
        action="store_true",
        help="what `make test-ci` adds: of a test whose cases are all slow the first, no slow case "
        "of others, of those marked with quick_cases some, nothing nightly; of a contract that "
        "several services keep, all on one of them, and on the others what each_service marks; "
        "with --quick, both samples",
    )


_PYSPARK = _major_and_minor(importlib.metadata.version("pyspark"))

_OF_DATA_SOURCES = (
    "arguments/test_options.py",
    "feed/test_batch_reader.py",
    "feed/test_sent_rows.py",
    "feed/test_stream_columns.py",
    "feed/test_stream_reader.py",
    "feed/test_waiting_streams.py",
    "source/test_table_functions.py",
    "writer/test_checked_writers.py",
    "writer/test_lance_writer.py",
    "writer/test_upsert_writer.py",
    "faults/test_faulty_writers.py",
    "expressions/test_json_uses.py",
    "golden/test_streams.py",
    "snapshot/test_timestamps.py",
)
"""Files of tests that import classes of PySpark 4.0."""


class _WithoutTests(pytest.Module):
    """A file that cannot be imported, also if it is named on the command line."""

    def collect(self) -> list[Any]:
        return []


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    if _PYSPARK < [4, 0] and str(module_path).endswith(_OF_DATA_SOURCES):
        return _WithoutTests.from_parent(parent, path=module_path)
    return None


def pytest_configure(config: pytest.Config) -> None:
    if _PYSPARK < [4, 0]:
        from lance_stream.spark import registration

        registration.check_data_sources = lambda: pytest.skip("register requires PySpark 4.0")
    is_sample = _is_quick(config) or _is_ci(config)
    set_options(is_sample)
    if is_sample:
        settings.load_profile("sample")


def _is_quick(config: pytest.Config) -> bool:
    return bool(config.getoption("--quick")) and not ALL_CASES


def _is_ci(config: pytest.Config) -> bool:
    return bool(config.getoption("--ci")) and not ALL_CASES


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests and cases; with ALL_CASES=1 it is all of them."""
    is_quick, is_ci = _is_quick(config), _is_ci(config)
    with_cluster = "cluster" in config.getoption("markexpr")
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: dict[pytest.Item, None] = {}
    for name, cases in tests.items():
        sample = _some(cases, "some_cases", name)
        if not with_cluster:
            sample = [case for case in sample if not _has(case, "cluster")]
        if is_quick or is_ci:
            sample = _some(_of_samples(sample), "quick_cases", name)
            quick_sample = _of_quick_sample(sample, name)
            sample = [case for case in sample if (is_quick if case in quick_sample else is_ci)]
        chosen.update(dict.fromkeys(sample))
    _share_sessions(list(chosen), SPARK_PROCESSES if is_ci or not is_quick else 1)
    deselected = [item for item in items if item not in chosen]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item in chosen]
    _skip_on_old_spark(items)


def _skip_on_old_spark(items: list[pytest.Item]) -> None:
    """Skip the tests of what the installed PySpark does not have yet."""
    for item in items:
        for mark in item.iter_markers("since_spark"):
            if _major_and_minor(mark.args[0]) > _PYSPARK:
                item.add_marker(pytest.mark.skip(reason=f"requires PySpark {mark.args[0]}"))


def _of_samples(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of a test that `make test` and `make test-ci` choose from."""
    cases = [case for case in cases if not (_has(case, "nightly") or _is_repeated(case))]
    return [case for case in cases if not _has(case, "slow")] or cases[:1]


def _of_quick_sample(cases: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return those of them that `make test` runs: as many as a test's share of the time allows.

    Spark and the slow are there for what is marked `essential`, or `floors`: each way into the sink
    and out of the source once.
    """
    minimum = _min_quick_cases(cases)
    if not minimum and any("spark" in case.fixturenames or _has(case, "slow") for case in cases):
        return []
    maximum = max_quick_cases(seed)
    cases = [
        case
        for case in cases
        if not _has(case, "repeats_contract") and servers_of(case) <= FROM_PIP
    ]
    if maximum is None or not cases:
        return cases
    maximum = max(minimum, maximum)
    return _one_in(math.ceil(len(cases) / maximum), cases, seed) if maximum else []


def _min_quick_cases(cases: list[pytest.Item]) -> int:
    """Return how many cases of a test `make test` runs, whatever they cost."""
    mark = cases[0].get_closest_marker("essential") if cases else None
    if mark is not None:
        return int(mark.kwargs.get("cases", 1))
    return int(any(_has(case, "floors") and not _has(case, "slow") for case in cases))


def _some(cases: list[pytest.Item], marker: str, seed: str) -> list[pytest.Item]:
    """Return those of a test's cases that stand for all, if it has such a mark."""
    mark = cases[0].get_closest_marker(marker) if cases else None
    return cases if mark is None else _one_in(mark.kwargs["one_in"], cases, seed)


def _one_in(number: int, cases: list[pytest.Item], seed: str) -> list[pytest.Item]:
    indices = indices_of_some(list(map(_values, cases)), number, seed) if number > 1 else ()
    return [cases[index] for index in sorted(indices)] or cases


def _share_sessions(items: list[pytest.Item], num_processes: int) -> None:
    """Let tests with Spark run in few processes, those of one file in one."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if _has(item, "spark"):
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    num_tests = [0] * num_processes
    for tests in sorted(files.values(), key=len, reverse=True):
        group = num_tests.index(min(num_tests))
        num_tests[group] += len(tests)
        for item in tests:
            item.add_marker(pytest.mark.xdist_group(f"spark-{group}"))


def _has(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


def _is_repeated(item: pytest.Item) -> bool:
    """Whether it is a test of a contract that another class keeps, and would say the same."""
    function: Any = item.function  # type: ignore[attr-defined]  # every test here is a function
    is_of_contract = function.__module__.startswith("tests.contracts.")
    return is_of_contract and _has(item, "repeats_contract") and not _has(item, "each_service")


def _values(item: pytest.Item) -> set[tuple[str, Hashable]]:
    """Return the parameters of a case: each one's value if it is plain, or else its place."""
    case = getattr(item, "callspec", None)
    return {
        (name, value if isinstance(value, str | int | None) else f"place {case.indices[name]}")
        for name, value in (case.params.items() if case else ())
    }
