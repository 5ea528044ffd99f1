"""Histories as data: steps that are drawn once, replayed at will, and shrunk when they fail.

An action or a check is one function of a life and of its choices:

    @action(weight=3)
    def delete(life: Life, choose: Choices) -> None:
        keys = choose("keys", lambda dice: dice.sample(...))

When a history is made, `choose` draws each value and writes it down. When it is replayed, `choose`
returns what was written. A step that no longer fits, because steps before it were left out, raises
`DoesNotFit` and is passed over. So any part of a history is a history, which is all that shrinking
needs.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from tests.histories.life import Life

T = TypeVar("T")


class DoesNotFit(Exception):  # noqa: N818  # it is no error
    """The step makes no sense in the present state."""


class Choices:
    """The choices of one step.

    Args:
        dice: Draws choices that are not recorded; None for a replay.
        recorded: Earlier choices, by name.
    """

    def __init__(self, dice: random.Random | None, recorded: Mapping[str, Any]) -> None:
        self.dice = dice
        self.recorded = dict(recorded)

    def __call__(self, name: str, draw: Callable[[random.Random], T]) -> T:
        """Return the choice of that name, which is drawn if it is not recorded."""
        if name not in self.recorded:
            if self.dice is None:
                raise DoesNotFit(name)
            self.recorded[name] = draw(self.dice)
        value: T = self.recorded[name]
        return value

    def one_of(self, name: str, values: "list[T] | tuple[T, ...]") -> T:
        """Return one of some values; `DoesNotFit` if it is not among them, or there are none."""
        if not values:
            raise DoesNotFit(name)
        value = self(name, lambda dice: dice.choice(values))
        if value not in values:
            raise DoesNotFit(name)
        return value

    def happens(self, name: str, chance: float) -> bool:
        """Return True with a probability; it is only recorded if it happens."""
        if name in self.recorded:
            return bool(self.recorded[name])
        if self.dice is None or self.dice.random() >= chance:
            return False
        self.recorded[name] = True
        return True


class Function(Protocol):
    def __call__(self, life: "Life", choose: Choices) -> None: ...


@dataclass(frozen=True)
class Registered:
    """An action or a check.

    Attributes:
        name: The function's name.
        function: Does it.
        weight: How often it is drawn, relative to others of its sort.
        is_check: Whether it is a check, which leaves the table as it is.
        at_end: Whether it is also done at the end of each life.
    """

    name: str
    function: Function
    weight: float
    is_check: bool
    at_end: bool = False


REGISTRY: dict[str, Registered] = {}


def action(weight: float = 1.0) -> Callable[[Function], Function]:
    """Register a function that changes something."""
    return _register(weight, is_check=False)


def check(weight: float = 1.0, *, at_end: bool = True) -> Callable[[Function], Function]:
    """Register a function that checks something."""
    return _register(weight, is_check=True, at_end=at_end)


def _register(
    weight: float, *, is_check: bool, at_end: bool = False
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        name = function.__name__  # type: ignore[attr-defined]  # a def
        assert name not in REGISTRY, name
        REGISTRY[name] = Registered(name, function, weight, is_check, at_end)
        return function

    return register


@dataclass(frozen=True)
class Step:
    """One step of a history: the name of an action or check, and its choices."""

    name: str
    choices: Mapping[str, Any]

    def __str__(self) -> str:
        named = "".join(f", {name}={value!r}" for name, value in self.choices.items())
        return f'step("{self.name}"{named})'


def step(name: str, /, **choices: Any) -> Step:
    """Return a step, as shrunk histories are printed."""
    return Step(name, choices)
