"""Lives of queries that lose their table."""

import pytest

from lance_stream.ledger.replay_check import PendingBatch
from tests.histories.actions.restarts import FORMAT_UPSERT, WAYS
from tests.histories.engine import Outcome, replay
from tests.histories.steps import step


def lost_table(way: str, **choices: bool) -> Outcome:
    """Return a life in which the table of a query is deleted before its second batch."""
    rows = [{key: {"a": key}} for key in range(3)]
    return replay(
        [
            step("create", file_version="2.1", columns=[["a", "int64"]], rows=rows[0], way="rows"),
            step("restarted_query", rows=rows[1], way=way, successor=None),
            step("keep_copy"),
            step("restarted_query", rows=rows[2], way=way, successor=None, **choices),
            step("restarted_query", repeats=True, successor=[0, []]),
            step("restarted_query", repeats=True, successor=["new", []], is_planned=True),
            step("restarted_query", rows={3: {"a": 3}}, way=way, successor=None, late_start=True),
            step("replica", limits={"rows": None}, batches=4),
        ]
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_late", [False, True])
def test_only_late_starts_create_tables_again(way: str, is_late: bool) -> None:
    """A query whose table was deleted would silently go on without its earlier rows."""
    outcome = lost_table(way, **({"late_start": True} if is_late else {"is_planned": True}))
    if outcome.error is not None:
        raise outcome.error
    assert (outcome.counts["restarted_query"], outcome.counts["replica"]) == (5, 1)
    assert outcome.counts["queries that lost their table"] == (0 if is_late else 1)
    num_refused = (not is_late) + (way != FORMAT_UPSERT)  # which its commit plans
    assert outcome.counts["batches refused by another table"] == num_refused


def test_silently_created_tables_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the first batch the life fails."""
    monkeypatch.setattr(PendingBatch, "check_may_create", lambda *_, **__: None)
    assert isinstance(lost_table("format").error, pytest.fail.Exception)
