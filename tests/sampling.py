"""How many of very many cases a run plays: some in `make test`, all of them in `make soak`."""

import os
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")

ALL_CASES = os.environ.get("ALL_CASES") == "1"


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
    return [every[place] for place in sorted({0, *chosen, len(every) - 1})]


def is_its_turn(who: str, of: Sequence[str], number: int) -> bool:
    """Whether somebody plays a case, of several who take turns; with ALL_CASES=1 all play each.

    Args:
        who: One of them.
        of: All of them.
        number: The case's.
    """
    return ALL_CASES or of[number % len(of)] == who
