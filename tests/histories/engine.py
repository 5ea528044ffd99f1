"""Makes lives, plays them, and shrinks those that fail."""

import importlib
import random
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.histories.duckdb_tables import HAS_DUCKDB
from tests.histories.lancedb_tables import HAS_LANCEDB
from tests.histories.life import Life
from tests.histories.steps import REGISTRY, Choices, DoesNotFit, Registered, Step
from tests.histories.thresholds import draw_limits, lowered

MODULES = (
    "actions.rows",
    "actions.columns",
    "actions.rewrites",
    "actions.versions",
    "actions.streams",
    "actions.restarts",
    "actions.indices",
    "actions.others",
    "actions.beside",
    "actions.groups",
    "actions.threads",
    "actions.quarantine",
    "actions.derived",
    "actions.cleanup",
    "checks.rows",
    "checks.filters",
    "checks.feed",
    "checks.replicas",
    "checks.transactions",
    *(("actions.views", "actions.computed", "checks.lancedb") if HAS_LANCEDB else ()),
    *(("checks.engines",) if HAS_DUCKDB else ()),
)
"""Each registers the actions, or checks, of one feature."""

CHECKS = 0.25
"""How many steps are checks."""

FACTORS = (0.1, 1, 1, 1, 3)
"""How much more often than usual a life does something."""

LAST_CHECKS = 0.3
"""How many of the checks are done at the end of a life, besides a read of all rows."""

for _module in MODULES:
    importlib.import_module(f"tests.histories.{_module}")


@dataclass
class Outcome:
    """What became of a life.

    Attributes:
        steps: Its steps, the last one that which failed.
        error: What failed; None if nothing did.
        counts: What was done how often.
    """

    steps: list[Step] = field(default_factory=list)
    error: BaseException | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def failure(self) -> tuple[str, str]:
        """What identifies a failure: its step, and where it was raised."""
        assert self.error is not None
        frames = traceback.extract_tb(self.error.__traceback__)
        frame = frames[-1]
        return type(self.error).__name__, f"{Path(frame.filename).name}:{frame.lineno}"


@contextmanager
def folder() -> Iterator[str]:
    """Give a folder in memory, where there is one."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else None
    path = tempfile.mkdtemp(prefix="lance-stream-life-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def draw_weights(dice: random.Random) -> dict[str, float]:
    """Draw how often a life does each action and check: some seldom, others often.

    So there are lives of few features, which go deeper into these.
    """
    return {name: registered.weight * dice.choice(FACTORS) for name, registered in REGISTRY.items()}


def draw_next(dice: random.Random, weights: Mapping[str, float]) -> Registered:
    """Draw an action or a check by its weight in this life."""
    is_check = dice.random() < CHECKS
    sort = [registered for registered in REGISTRY.values() if registered.is_check == is_check]
    return dice.choices(sort, [weights[entry.name] for entry in sort])[0]


def make_life(seed: int, num_steps: int) -> Outcome:
    """Make the life of a seed."""
    dice = random.Random(seed)
    limits, weights = draw_limits(dice), draw_weights(dice)
    outcome = Outcome([Step("limits", {"limits": limits})])

    def steps(life: Life) -> Iterator[tuple[Registered, Choices]]:
        yield REGISTRY["create"], Choices(dice, {})
        for _ in range(num_steps):
            yield draw_next(dice, weights), Choices(dice, {})
        for index, line in enumerate(life.lines):
            newest = {"line": index, "version": line.newest}
            yield REGISTRY["older_version"], Choices(dice, newest)
            for check in REGISTRY.values():
                if check.is_check and check.at_end and dice.random() < LAST_CHECKS:
                    yield check, Choices(dice, {"line": index})

    return _play(outcome, limits, steps)


def replay(steps: Sequence[Step]) -> Outcome:
    """Play recorded steps; those that no longer fit are passed over."""
    limits = steps[0].choices.get("limits", {}) if steps and steps[0].name == "limits" else {}
    outcome = Outcome([step for step in steps[:1] if step.name == "limits"])

    def recorded(_: Life) -> Iterator[tuple[Registered, Choices]]:
        for step in steps:
            if step.name != "limits":
                yield REGISTRY[step.name], Choices(None, step.choices)

    return _play(outcome, limits, recorded)


def _play(
    outcome: Outcome,
    limits: dict[str, Any],
    steps: Callable[[Life], Iterator[tuple[Registered, Choices]]],
) -> Outcome:
    with folder() as path, lowered(limits), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        life = Life(path, limits)
        for what, choices in steps(life):
            try:
                what.function(life, choices)
            except DoesNotFit:
                outcome.counts[f"unfit {what.name}"] += 1
                continue
            except (Exception, pytest.fail.Exception) as error:
                outcome.steps.append(Step(what.name, choices.recorded))
                outcome.error = error
                break
            outcome.steps.append(Step(what.name, choices.recorded))
            outcome.counts[what.name] += 1
        outcome.counts.update(life.counts)
    return outcome


def shrink(outcome: Outcome, seconds: float = 60.0) -> Outcome:
    """Return a shorter life with the same failure: fewer steps, then fewer and smaller choices."""
    end = time.monotonic() + seconds
    best = outcome

    def attempt(steps: Sequence[Step]) -> bool:
        nonlocal best
        if time.monotonic() > end:
            return False
        shorter = replay(steps)
        if shorter.error is None or shorter.failure != best.failure:
            return False
        best = shorter
        return True

    attempt(best.steps)
    attempt([step for step in best.steps[:-1] if not _is_check(step)] + best.steps[-1:])
    is_smaller = True
    while is_smaller and time.monotonic() < end:
        before = best.steps
        _drop_steps(lambda: best.steps, attempt)
        for index in range(len(best.steps)):
            _shrink_choices(lambda: best.steps, index, attempt)
        is_smaller = best.steps != before
    return best


def _is_check(step: Step) -> bool:
    return step.name in REGISTRY and REGISTRY[step.name].is_check


def _drop_steps(steps: Callable[[], list[Step]], attempt: Callable[[list[Step]], bool]) -> None:
    """Leave out steps: large parts first, from the end, never the last step, which fails."""
    size = max(len(steps()) // 2, 1)
    while True:
        stop = len(steps()) - 1
        while stop > 0:
            start = max(stop - size, 0)
            now = steps()
            attempt(now[:start] + now[stop:])
            stop = min(start, len(steps()) - 1)
        if size == 1:
            return
        size //= 2


def _shrink_choices(
    steps: Callable[[], list[Step]], index: int, attempt: Callable[[list[Step]], bool]
) -> None:
    for name in list(steps()[index].choices if index < len(steps()) else ()):
        is_smaller = True
        while is_smaller:
            is_smaller = False
            now = steps()
            if index >= len(now) or name not in now[index].choices:
                return
            for value in smaller(now[index].choices[name]):
                choices = dict(now[index].choices)
                if value is _DROP:
                    del choices[name]
                else:
                    choices[name] = value
                if attempt([*now[:index], Step(now[index].name, choices), *now[index + 1 :]]):
                    is_smaller = True
                    break


_DROP = object()


def smaller(value: Any) -> Iterator[Any]:
    """Yield smaller values of a choice."""
    yield _DROP
    if value in (["cold"], ["stale"], ["process"]) or (
        isinstance(value, list) and value[:1] == ["dies"]
    ):
        yield ["we"]
    elif isinstance(value, list | dict) and len(value) > 1:
        items = list(value.items()) if isinstance(value, dict) else value
        halves = [items[: len(items) // 2], items[len(items) // 2 :]]
        ones = [items[:n] + items[n + 1 :] for n in range(len(items))] if len(items) < 12 else []
        for part in [*halves, *ones]:
            yield dict(part) if isinstance(value, dict) else part
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict):
                for part in smaller(inner):
                    if part is not _DROP:
                        yield {**value, key: part}


def as_test(outcome: Outcome) -> str:
    """Return a life as a test that can be pasted."""
    lines = ["def test_found_by_the_kit() -> None:", "    replay_whole("]
    lines += [f"        {step}," for step in outcome.steps]
    return "\n".join([*lines, "    )"])


def replay_whole(*steps: Step) -> Counter[str]:
    """Play recorded steps, raise what they raise, and return the counts; each has to fit."""
    outcome = replay(steps)
    if outcome.error is not None:
        raise outcome.error
    unfit = [name for name in outcome.counts if name.startswith("unfit ")]
    assert not unfit, f"steps that do not fit: {unfit}"
    return outcome.counts
