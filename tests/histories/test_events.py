"""Lives with events of keys: the kit notices a remembered delete that is ignored."""

import numpy as np
import pytest

from lance_stream.upsert.tombstones import RememberedDeletes
from tests.histories.engine import Outcome, replay
from tests.histories.steps import step


def late_event(way: str) -> Outcome:
    """Return a life in which an insert arrives after the delete of its key."""
    rules = {"sequence": "lsn", "offset": 0, "by": ["cold"], "way": way}
    return replay(
        [
            step(
                "create",
                file_version="2.1",
                columns=[["a", "bool"]],
                rows={0: {"a": True}},
                way="rows",
            ),
            step("upsert_events", events=[[0, 7, True, {"a": None}]], tombstones=True, **rules),
            step("compact", size=7, by=["we"]),
            step(
                "upsert_events",
                events=[[0, 6, False, {"a": False}], [1, 6, False, {"a": None}]],
                **rules,
            ),
        ]
    )


@pytest.mark.parametrize("way", ["upsert", "upsert_by_tasks"])
def test_late_events_bring_no_row_back(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit would notice it: without the remembered delete the life fails."""
    outcome = late_event(way)
    if outcome.error is not None:
        raise outcome.error
    assert not any(name.startswith("unfit") for name in outcome.counts), outcome.counts
    monkeypatch.setattr(
        RememberedDeletes, "are_late", lambda _, lookup, *__: np.zeros(lookup.num_keys, np.bool_)
    )
    assert isinstance(late_event(way).error, AssertionError)
