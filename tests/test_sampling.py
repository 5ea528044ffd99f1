"""Which cases represent all, and what tests cost and may consume."""

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import memory, sampling
from tests.costs import costs_of_cases, cpu_seconds, of_folders, recorded, too_costly
from tests.sampling import RECORDED_COSTS, indices_of_some, max_quick_cases

GRID = [{("a", a), ("b", b)} for a, b in product(range(12), range(5))]


@pytest.fixture(autouse=True)
def only_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL_CASES", False)


def test_sampled_cases_cover_every_value() -> None:
    """A sample that misses a parameter's value would leave that value untested in the quick run."""
    chosen = indices_of_some(GRID, one_in=5, seed="s")
    assert len(chosen) == len(GRID) // 5
    assert set().union(*(GRID[index] for index in chosen)) == set().union(*GRID)


@pytest.mark.parametrize("one_in", [1, 2, 7, 60, 1000])
def test_samples_are_stable_between_runs(one_in: int) -> None:
    """A failing case must be in the next run as well."""
    chosen = indices_of_some(GRID, one_in, "s")
    assert len(chosen) == math.ceil(len(GRID) / one_in)
    assert chosen == indices_of_some(GRID, one_in, "s")


def test_all_cases_are_chosen_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nightly run has to include what the quick sample leaves out."""
    monkeypatch.setattr(sampling, "ALL_CASES", True)
    assert indices_of_some(GRID, 10, "s") == set(range(len(GRID)))


@pytest.mark.parametrize(
    ("cost", "num_cases"), [(0.11, 3), (0.3, 1), (7.0, 0), (0.0, None), (None, None)]
)
def test_costly_tests_have_fewer_quick_cases(
    monkeypatch: pytest.MonkeyPatch, cost: float | None, num_cases: int | None
) -> None:
    """The time goes to many tests rather than to many cases; what is new has all of them."""
    costs = {} if cost is None else {"tests/a/test_x.py::test_1": cost}
    monkeypatch.setattr(sampling, "_recorded_costs", lambda: costs)
    assert max_quick_cases("tests/a/test_x.py::test_1") == num_cases


def test_recorded_costs_name_existing_tests() -> None:
    """A renamed test counts as new; when a tenth of them does, it is time to record again."""
    contracts = "".join(path.read_text() for path in Path("tests/contracts").glob("*.py"))
    lines = [line.split() for line in RECORDED_COSTS.read_text().splitlines() if line[0] != "#"]
    names = [name for _, name in lines]
    stale = [
        name
        for name in names
        if not (file := Path(name.partition("::")[0])).is_file()
        or f"def {name.rpartition('::')[2]}(" not in file.read_text() + contracts
    ]
    assert len(stale) < len(names) / 10, f"run `make record-costs`: {stale} are gone"


def test_the_time_of_ended_children_counts() -> None:
    """Tests that start processes would otherwise look cheap."""
    before = cpu_seconds()
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", work], check=True)
    assert cpu_seconds() - before > 0.25


@pytest.fixture
def processes_that_end() -> Iterator[None]:
    """While a test runs, this process starts others that end at once, and their own."""
    is_over = threading.Event()

    def start() -> None:
        while not is_over.is_set():
            started = [subprocess.Popen(["sh", "-c", "true & wait"]) for _ in range(20)]
            for value in started:
                value.wait()

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield
    is_over.set()
    for worker in threads:
        worker.join()


@pytest.mark.usefixtures("processes_that_end")
def test_costs_are_counted_while_processes_end() -> None:
    """Processes that vanish during the count must not raise an error."""
    assert min(cpu_seconds() for _ in range(80)) > 0


def test_costs_are_added_up_by_folders() -> None:
    """The budget is kept per folder, and classes or subfolders must not confuse the sum."""
    costs = {
        "tests/a/b/test_x.py::test_1": 1.0,
        "tests/a/test_y.py::T::t": 2.0,
        "tests/test_z.py::t": 4.0,
    }
    assert of_folders(costs) == {"tests/a": 3.0, "tests": 4.0}


QUICK_RUN = {f"tests/a/test_x.py::test_{number}": 1.0 for number in range(200)}


@pytest.mark.parametrize("slowness", [0.5, 1, 3])
def test_large_cost_shares_are_refused(slowness: float) -> None:
    """The verdict must not depend on the speed of the machine."""
    costs = {**QUICK_RUN, "tests/b/test_y.py::test_1[a]": 7.8, "tests/b/test_y.py::test_1[b]": 5.8}
    costs = {name: cost * slowness for name, cost in (costs | {"fixture spark": 15.0}).items()}
    assert too_costly(costs) == ["tests/b/test_y.py::test_1[a]"]


def test_cheap_cases_keep_cost_digits() -> None:
    """A cost rounded to nothing would let the quick sample run all of many cases."""
    assert recorded({"tests/a.py::t": 0.0041}).endswith("\n0.0041 tests/a.py::t\n")


@pytest.mark.parametrize("slowness", [0.5, 1, 3])
def test_costs_of_costly_tests_are_recorded(slowness: float) -> None:
    """Recorded costs must be the same on any machine."""
    costs = {"tests/a.py::t[1]@spark-0": 1.0, "tests/a.py::t[2]@spark-0": 2.0}
    costs |= {"tests/a.py::u": 0.3, "fixture spark": 996.7}
    costs = {name: cost * slowness for name, cost in costs.items()}
    assert costs_of_cases(costs) == pytest.approx({"tests/a.py::t": 1.5})


def test_memory_hungry_tests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test that raised the peak may fail, not those that run after it."""
    item: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
    monkeypatch.setattr(memory, "LIMIT_BYTES", memory.peak_bytes() + 1_000_000_000)
    assert list(memory.pytest_runtest_teardown(item)) == [None]
    monkeypatch.setattr(memory, "LIMIT_BYTES", 1_000_000)
    with pytest.raises(pytest.fail.Exception, match="1 MB is the most"):
        list(memory.pytest_runtest_teardown(item))
    assert list(memory.pytest_runtest_teardown(item)) == [None]  # the next ones are not to blame
