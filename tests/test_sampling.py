"""Which cases represent all, and what tests cost and may consume."""

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests import memory, sampling
from tests.costs import cpu_seconds, of_folders
from tests.sampling import places_of_some

GRID = [{("a", a), ("b", b)} for a, b in product(range(12), range(5))]


@pytest.fixture(autouse=True)
def only_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL_CASES", False)


def test_some_cases_cover_each_parameter_value() -> None:
    chosen = places_of_some(GRID, one_in=5, seed="s")
    assert len(chosen) == len(GRID) // 5
    assert set().union(*(GRID[place] for place in chosen)) == set().union(*GRID)


@pytest.mark.parametrize("one_in", [1, 2, 7, 60, 1000])
def test_the_number_of_cases_is_stable(one_in: int) -> None:
    chosen = places_of_some(GRID, one_in, "s")
    assert len(chosen) == math.ceil(len(GRID) / one_in)
    assert chosen == places_of_some(GRID, one_in, "s")


def test_all_cases_are_chosen_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL_CASES", True)
    assert places_of_some(GRID, 10, "s") == set(range(len(GRID)))


def test_the_time_of_ended_children_counts() -> None:
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
            for each in started:
                each.wait()

    threads = [threading.Thread(target=start) for _ in range(2)]
    for each in threads:
        each.start()
    yield
    is_over.set()
    for each in threads:
        each.join()


@pytest.mark.usefixtures("processes_that_end")
def test_costs_are_counted_while_processes_end() -> None:
    assert min(cpu_seconds() for _ in range(80)) > 0


def test_costs_are_added_up_by_folders() -> None:
    costs = {
        "tests/a/b/test_x.py::test_1": 1.0,
        "tests/a/test_y.py::T::t": 2.0,
        "tests/test_z.py": 4.0,
    }
    assert of_folders(costs) == {"tests/a": 3.0, "tests": 4.0}


def test_a_test_using_much_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    item: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
    monkeypatch.setattr(memory, "LIMIT_BYTES", memory.peak_bytes() + 1_000_000_000)
    assert list(memory.pytest_runtest_teardown(item)) == [None]
    monkeypatch.setattr(memory, "LIMIT_BYTES", 1_000_000)
    with pytest.raises(pytest.fail.Exception, match="1 MB is the most"):
        list(memory.pytest_runtest_teardown(item))
    assert list(memory.pytest_runtest_teardown(item)) == [None]  # the next ones are not to blame
