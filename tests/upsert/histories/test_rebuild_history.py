"""Events of histories are compared by key, sequence and kind."""

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
    rebuild_history,
)

Event = tuple[int, int, bool]


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
