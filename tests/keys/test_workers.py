"""Which fragments are read together, and whose keys are collected for the index."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lance_stream.keys import workers
from lance_stream.table.fragments.fragment import Fragment


def fragments_of(sizes: list[int]) -> list[Fragment]:
    return [Fragment(id=at, files=(), physical_rows=size) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "is_worth_it", "can_save", "groups"),
    [
        ([50, 50, 50], True, True, [[0, 1], [2]]),
        ([50, 51, 50], True, True, [[0], [1], [2]]),
        ([150, 10, 90, 1], True, True, [[0], [1, 2], [3]]),
        ([50, -7, 50, 50], True, True, [[0, 2], [3]]),
        ([50, 50, 50], False, True, [[0, 1, 2]]),
        ([50, 50, 50], True, False, [[0, 1, 2]]),
        ([-7], True, True, []),
    ],
)
def test_groups_fit_into_one_run(
    sizes: list[int],
    is_worth_it: bool,
    can_save: bool,
    groups: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys stay in memory until their run is written; without runs there is nothing to wait for.
    A negative size marks a file that is indexed.
    """
    monkeypatch.setattr(workers, "MAX_SAVED_ROWS", 100)
    index: Any = SimpleNamespace(can_save=can_save)
    numbers = np.array([3 if size < 0 else -1 for size in sizes])
    result = workers._groups(index, fragments_of(sizes), numbers, is_worth_it=is_worth_it)
    assert list(result) == groups


@pytest.mark.parametrize(
    ("sizes", "is_worth_it", "can_save", "room", "collected"),
    [
        ([60, 40], True, True, 1000, [0, 1]),
        ([60, 41, 40], True, True, 1000, [0, 2]),
        ([101, 100], True, True, 1000, [1]),
        ([30, 31, 30], True, True, 60, [0, 2]),
        ([30, 21, 20], True, False, 1000, [0, 2]),
        ([0, 10], True, True, 1000, [1]),
        ([10, 77, 10], True, True, 1000, [0, 2]),
        ([10], False, True, 1000, []),
    ],
    ids=[
        "as many as fit", "one too many", "too large", "no memory", "no run", "unknown size",
        "no random name", "first lookup",
    ],
)  # fmt: skip
def test_keys_are_collected_while_they_fit(
    sizes: list[int],
    is_worth_it: bool,
    can_save: bool,
    room: int,
    collected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of which the index has some of the keys would be useless."""
    monkeypatch.setattr(workers, "MAX_SAVED_ROWS", 100)
    monkeypatch.setattr(workers, "MAX_NEW_ROWS", 50)
    index: Any = SimpleNamespace(
        can_save=can_save,
        num_free_rows=room,
        file_of=lambda fragment: None if fragment.physical_rows == 77 else (),
        collector=lambda _, num_rows: num_rows,
    )
    result = workers._collectors(index, fragments_of(sizes), is_worth_it)
    assert result == [size if at in collected else None for at, size in enumerate(sizes)]
