"""Events of histories are compared by key, sequence and kind."""

from itertools import product

import numpy as np

from lance_stream.upsert.histories.rebuild_history import Events, _are_among

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
