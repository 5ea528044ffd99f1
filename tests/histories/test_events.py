"""Lives with events of keys: the kit notices a remembered delete that is ignored."""

import numpy as np
import pytest

from lance_stream.upsert.tombstones import RememberedDeletes
from tests.histories.actions.streams import LSN, Event
from tests.histories.engine import Outcome, replay
from tests.histories.steps import step


def late_event(way: str, sequence: str) -> Outcome:
    """Return a life in which an insert arrives after the delete of its key."""
    rules = {"sequence": sequence, "offset": 0, "by": ["cold"], "way": way}

    def event(key: int, number: int, *, is_delete: bool) -> Event:
        return [key, number, is_delete, {"a": None, "b": number}]

    return replay(
        [
            step(
                "create",
                file_version="2.1",
                columns=[["a", "bool"], ["b", "int64"]],
                rows={0: {"a": True, "b": 1}},
                way="rows",
            ),
            step("upsert_events", events=[event(0, 7, is_delete=True)], tombstones=True, **rules),
            step("compact", size=7, by=["we"]),
            step(
                "upsert_events",
                events=[event(0, 6, is_delete=False), event(1, 6, is_delete=False)],
                **rules,
            ),
        ]
    )


@pytest.mark.parametrize("sequence", [LSN, "b"])
@pytest.mark.parametrize("way", ["upsert", "upsert_by_tasks"])
def test_late_events_bring_no_row_back(
    way: str, sequence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kit would notice it: without the remembered delete the life fails."""
    outcome = late_event(way, sequence)
    if outcome.error is not None:
        raise outcome.error
    assert not any(name.startswith("unfit") for name in outcome.counts), outcome.counts
    monkeypatch.setattr(
        RememberedDeletes, "are_late", lambda _, lookup, *__: np.zeros(lookup.num_keys, np.bool_)
    )
    assert isinstance(late_event(way, sequence).error, AssertionError)
