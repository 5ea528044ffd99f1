"""The steps from the rows and events of keys to their new rows."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from lance_stream.arrays import Mask, Positions
from lance_stream.upsert.histories.rebuild_history import (
    NONE,
    OPEN,
    Events,
    StoredRows,
    _are_among,
    _numbered,
    _replaced_rows,
    covering_rows,
    first_ranks,
    may_change,
    rebuild_history,
)

Event = tuple[int, int, bool]
Interval = tuple[int, int]

HISTORIES: list[list[Interval]] = [
    *([], [(1, OPEN)], [(1, 3)], [(2, OPEN)]),
    *([(1, 2), (2, 4)], [(1, 2), (3, OPEN)], [(2, 3), (4, 5), (5, OPEN)]),
]
"""Rows of a key, each from its start to its end."""


def stored_rows(histories: list[list[Interval]], *, turned: bool = False) -> StoredRows:
    """Return the rows of keys 0, 1 and so on; turned, the last one first."""
    rows = [(key, *interval) for key, history in enumerate(histories) for interval in history]
    columns = np.array(rows[::-1] if turned else rows, np.int64).reshape(-1, 3).T
    keys, starts, ends = columns
    return StoredRows(keys, starts, ends, 10 + starts, 20 + ends)


def events_of(events: list[Event]) -> Events:
    keys, ranks, deletes = (
        np.array([event[part] for event in events], kind)
        for part, kind in enumerate((np.int64, np.int64, np.bool_))
    )
    positions = np.arange(len(events))
    return Events(keys, ranks, deletes, positions, positions)


def test_only_equal_events_are_found() -> None:
    """An event that is taken for a remembered one is forgotten, and the history has a hole."""
    every: list[Event] = list(product(range(3), range(3), [False, True]))
    for other in every:
        for first in range(len(every) + 1):
            events = every[first:]
            expected = [event == other for event in events]
            assert _are_among(events_of(events), events_of([other])).tolist() == expected
            is_among = _are_among(events_of([other]), events_of(events))
            assert is_among.tolist() == [other in events]


@pytest.mark.parametrize("order", [[2, 0, 1], [0, 2, 1], [0, 1, 2]])
def test_rows_end_where_values_change(order: list[int]) -> None:
    """A column that incoming events lack separates the rows that were stored with it, but never
    joins rows that differ in a tracked column.
    """
    # Events 0 and 1 are rows, and the incoming event 2 is before, between or after them.
    never, numbers = np.array([False, False]), np.arange(2)
    rank = {event: index + 1 for index, event in enumerate(order)}
    starts = np.array([rank[0], rank[1]])
    stored = StoredRows(
        np.zeros(2, np.int64), starts, np.array([rank[1], OPEN]), starts, np.array([rank[1], 0])
    )
    incoming = Events(*np.array([[0], [rank[2]]]), never[:1], np.array([2]), np.array([rank[2]]))
    none = Events(numbers[:0], numbers[:0], never[:0], numbers[:0], numbers[:0])
    for tracked in product("ab", repeat=3):
        for lacking in product("xy", repeat=2):
            runs: list[list[int]] = []
            for event in order:
                values = lacking_of(runs[-1], lacking) if runs else None
                if (
                    runs
                    and tracked[runs[-1][-1]] == tracked[event]
                    and (event == 2 or lacking[event] == values)
                ):
                    runs[-1].append(event)
                else:
                    runs.append([event])
            rebuilt = rebuild_history(
                stored,
                none,
                never[:0],
                incoming,
                equality_of(tracked),
                equality_of([*lacking, None]),
                None,
            )
            heads = [rank[run[0]] for run in runs]
            assert rebuilt.starts.tolist() == heads
            assert rebuilt.ends.tolist() == [*heads[1:], NONE]
            assert rebuilt.rows.tolist() == [run[-1] for run in runs]


def lacking_of(run: list[int], lacking: tuple[str, ...]) -> str | None:
    """Return the value that the last stored event of a run has in a column that others lack."""
    recorded = [event for event in run if event < 2]
    return lacking[recorded[-1]] if recorded else None


def equality_of(values: Sequence[str | None]) -> Callable[[Positions, Positions], Mask]:
    array = np.array(values, object)
    return lambda left, right: np.asarray(array[left] == array[right], np.bool_)


@pytest.mark.parametrize("turned", [False, True])
def test_events_lie_within_their_rows(turned: bool) -> None:
    """A row covers its start, but not its end, and no event of another key."""
    events = list(product(range(3), range(1, 7)))
    keys, ranks = np.array(events, np.int64).T
    for histories in product(HISTORIES, HISTORIES):
        stored = stored_rows([*histories], turned=turned)
        rows = list(zip(*(part.tolist() for part in stored[:3]), strict=True))
        for chosen in (slice(None), slice(0, 1), slice(7, 8), slice(0, 0)):
            covering = covering_rows(stored, keys[chosen], ranks[chosen])
            assert [rows[row] if row != NONE else None for row in covering.tolist()] == [
                next(
                    (
                        row
                        for row in rows
                        if row[0] == key and row[1] <= rank and (row[2] == OPEN or rank < row[2])
                    ),
                    None,
                )
                for key, rank in events[chosen]
            ]


def test_rows_before_all_events_stay() -> None:
    """A row that ends where the first event of its key begins may go on after it."""
    stored = stored_rows([[(1, 3), (3, 5), (5, OPEN)], [(1, 3), (3, OPEN)], [(1, 2)]])
    incoming = events_of([(0, 6, False), (0, 5, True), (1, 4, False), (2, 1, False)])
    assert first_ranks(incoming, 3).tolist() == [5, 4, 1]
    assert may_change(stored, incoming, 3).tolist() == [False, True, True, False, True, True]


@pytest.mark.parametrize("turned", [False, True])
def test_rebuilt_rows_replace_their_like(turned: bool) -> None:
    """A row keeps its id if it starts where it did; the others of a key are paired in order, and
    none is given to another key.
    """
    for olds in product(HISTORIES, HISTORIES):
        stored = stored_rows([*olds], turned=turned)
        rows = list(zip(stored.keys.tolist(), stored.starts.tolist(), strict=True))
        for news in product(HISTORIES, HISTORIES):
            rebuilt = stored_rows([*news])
            expected: dict[tuple[int, int], tuple[int, int] | None] = {}
            for key, (old, new) in enumerate(zip(olds, news, strict=True)):
                old_starts, new_starts = ([start for start, _ in part] for part in (old, new))
                free = [start for start in old_starts if start not in new_starts]
                for start in new_starts:
                    if start in old_starts:
                        expected[key, start] = key, start
                    else:
                        expected[key, start] = (key, free.pop(0)) if free else None
            replaced = _replaced_rows(stored, rebuilt.keys, rebuilt.starts)
            pairs = [rows[row] if row != NONE else None for row in replaced.tolist()]
            assert pairs == list(expected.values())


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [([], []), ([4], [0]), ([4, 4, 4, 7, 2, 2], [0, 1, 2, 0, 0, 1])],
)
def test_items_are_numbered_by_key(keys: list[int], numbers: list[int]) -> None:
    """The n-th row of a key replaces its n-th one."""
    assert _numbered(np.array(keys, np.int64)).tolist() == numbers
