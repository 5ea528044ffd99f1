"""How many of very many cases a run plays: some in `make test`, all of them in `make soak`.

A parametrized test, or a module of them, is marked with how many of its cases stand for all:

    @pytest.mark.some_cases(one_in=4)

Cases that one test goes through by itself are chosen with `some_of`, and those that several tests
share with `is_its_turn`. What is chosen is always the same.

`make test` runs as many cases of a costly test as `QUICK_SECONDS` are enough for, by what they cost
when `make record-costs` wrote `recorded_costs.txt`: none, if one costs more, but of a test marked
`essential` always one. A test that is not in that file was cheap, or is new: all of its cases run.
"""

import math
import os
import random
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

Case = TypeVar("Case")

ALL_CASES = os.environ.get("ALL_CASES") == "1"

QUICK_SECONDS = 0.35
"""CPU seconds of a machine on which the tests of `make test-ci` take `RECORDED_SECONDS`."""

RECORDED_SECONDS = 1_000
RECORDED_COSTS = Path(__file__).with_name("recorded_costs.txt")


def some_of(cases: Iterable[Case], one_in: int, seed: str = "") -> list[Case]:
    """Return one in so many cases, chosen by chance but always the same, in their order.

    The first and the last are among them. With ALL_CASES=1 in the environment it is all. Tests
    that share their cases give a seed of their own each, and play others.
    """
    every = list(cases)
    if ALL_CASES or len(every) <= 2:
        return every
    inner = range(1, len(every) - 1)
    chosen = random.Random(f"{seed} {len(every)}").sample(inner, len(inner) // one_in)
    return [every[index] for index in sorted({0, *chosen, len(every) - 1})]


def is_its_turn(name: str, of: Sequence[str], number: int) -> bool:
    """Whether one of several takers of turns runs a case; with ALL_CASES=1 each runs all.

    Args:
        name: One of them.
        of: All of them.
        number: The case's.
    """
    return ALL_CASES or of[number % len(of)] == name


def indices_of_some(cases: Sequence[Iterable[Hashable]], one_in: int, seed: str) -> set[int]:
    """Return the indices of a sample of cases that has as many different values as possible.

    Args:
        cases: The values of each case: its parameters.
        one_in: How many cases one stands for; at least one case is chosen.
        seed: Of which cases have the same number of new values, chance chooses; always the same.
    """
    if ALL_CASES:
        return set(range(len(cases)))
    values_of_case = {index: set(values) for index, values in enumerate(cases)}
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    chosen: set[int] = set()
    seen: set[Hashable] = set()
    while len(chosen) < math.ceil(len(cases) / one_in):
        best = max(order, key=lambda index: len(values_of_case[index] - seen))
        seen |= values_of_case[best]
        order.remove(best)
        chosen.add(best)
    return chosen


def max_quick_cases(test: str) -> int | None:
    """Return how many cases of a test `make test` runs; None for all of them.

    A recorded cost is rounded, and 0 stands for less than its last digit.
    """
    cost = _recorded_costs().get(test)
    return int(QUICK_SECONDS / cost) if cost else None


@cache
def _recorded_costs() -> dict[str, float]:
    """Return what a case of each costly test costs, by the test's name."""
    lines = (line.split() for line in RECORDED_COSTS.read_text().splitlines() if line[0] != "#")
    return {name: float(cost) for cost, name in lines}
