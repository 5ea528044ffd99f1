"""Lives whose tables are committed together."""

import pytest

from lance_stream.commit.commit_groups import Member
from tests.histories.actions.groups import TROUBLES
from tests.histories.engine import Outcome, replay
from tests.histories.steps import step


def life_of_a_group(kind: str) -> Outcome:
    """Return a life in which the first batch of a stream meets a trouble."""
    return replay(
        [
            step(
                "create",
                file_version="2.1",
                columns=[["a", "int64"]],
                rows={0: {"a": 1}},
                way="rows",
            ),
            step("group_batch", by_key=["lines"], stream="a", attempts=[[kind, 3], [kind, 4]]),
            step("group_drivers", drivers=["a", "b", "a"]),
            step("group_change_one", seed=2),
            step("group_feeds"),
        ]
    )


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("kind", TROUBLES)
def test_batches_reach_all_tables_or_none(kind: str) -> None:
    """Crashes, lost requests, races and reads never show half of a batch."""
    outcome = life_of_a_group(kind)
    if outcome.error is not None:
        raise outcome.error
    assert not any(name.startswith("unfit") for name in outcome.counts), outcome.counts


def test_tables_that_commit_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one table refuses its rows, the others would have theirs."""
    monkeypatch.setattr(Member, "join", lambda _, log: log)
    assert isinstance(life_of_a_group("refusal").error, AssertionError)
