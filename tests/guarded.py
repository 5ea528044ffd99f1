"""Shows that what a lock guards is used only by the thread that holds it."""

import sys
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any

import pytest


def unlocked_uses(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    guarded: Collection[str],
    exempt: Collection[str] = (),
) -> set[str]:
    """Return a set that fills with each use of guarded attributes by methods without the lock.

    A dropped lock is noticed by any single thread that passes, without a race that must be won.

    Args:
        monkeypatch: Ends the watch.
        owner: A class whose objects have a `_lock`.
        guarded: Names of attributes.
        exempt: Names of methods that may use them without it.
    """
    missing = (set(guarded) - set(_names_in(owner))) | (set(exempt) - vars(owner).keys())
    assert missing == set(), f"{owner.__name__} has no such attributes or methods: {missing}"
    uses: set[str] = set()

    def note(of: Any, name: str) -> None:
        caller = sys._getframe(2).f_code
        is_method = caller.co_qualname.startswith(f"{owner.__name__}.")
        if name in guarded and is_method and caller.co_name not in {"__init__", *exempt}:
            lock = object.__getattribute__(of, "_lock")
            is_locked = lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked()
            if not is_locked:
                uses.add(f"{caller.co_qualname} uses {name}")

    def get(self: Any, name: str) -> Any:
        note(self, name)
        return object.__getattribute__(self, name)

    def set_value(self: Any, name: str, value: Any) -> None:
        note(self, name)
        object.__setattr__(self, name, value)

    monkeypatch.setattr(owner, "__getattribute__", get, raising=False)
    monkeypatch.setattr(owner, "__setattr__", set_value, raising=False)
    return uses


def _names_in(owner: type) -> Iterator[str]:
    """Yield the names of all attributes that the methods of a class use."""
    for member in vars(owner).values():
        function = getattr(member, "fget", member)
        code = getattr(function, "__code__", None)
        if code is not None:
            yield from _names_in_code(code)


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in_code(constant)
