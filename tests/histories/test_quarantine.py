"""Lives with quarantined rows on branches and clones."""

from typing import Any

import pytest

from tests.histories.engine import replay
from tests.histories.steps import Step, step

BEGIN = {
    "dev": step("create_branch", name="dev", version=2, by="we"),
    "clone1": step("clone", version=2),
}


def batch(good: int, bad: int, **choices: Any) -> Step:
    """Return a batch of two rows, one of which is quarantined."""
    rows = {key: {"a": key} for key in (good, bad)}
    return step("quarantined_batch", rows=rows, bad=[bad], **choices)


@pytest.mark.parametrize("begins", BEGIN)
@pytest.mark.parametrize("is_inherited", [False, True])
def test_branches_and_clones_quarantine_separately(begins: str, is_inherited: bool) -> None:
    """Their ledger names files that the quarantine of the first table has already published."""
    new_stream = "q t:dev" if begins == "dev" else "q clone1:main"
    stream, number = ("q t:main", 1) if is_inherited else (new_stream, 0)
    outcome = replay(
        [
            step(
                "create",
                file_version="2.1",
                columns=[["a", "int64"]],
                rows={0: {"a": 0}},
                way="rows",
            ),
            batch(1, 2, stream="q t:main", times=1, attempts=[1, True]),
            BEGIN[begins],
            batch(3, 4, line=1, stream=stream, times=2, attempts=[1, False]),
            step("replay_quarantined", line=1, batch=number, way="dies", at=[9, True]),
            batch(5, 6, line=0, times=1, attempts=[1, False]),
            step("replay_quarantined", line=0, batch=0, way="at once"),
            step("replay_quarantined", line=0, batch=1, way="as before"),
        ]
    )
    if outcome.error is not None:
        raise outcome.error
    assert (outcome.counts["quarantined_batch"], outcome.counts["replay_quarantined"]) == (3, 3)


def test_batches_of_unknown_history_are_refused() -> None:
    """After a restore by pylance and a cleanup, it is unknown whether they were committed."""
    rows = {0: {"a": 0}}
    steps = [
        step("create", file_version="2.1", columns=[["a", "int64"]], rows=rows, way="rows"),
        batch(1, 2, stream="q t:main", times=1, attempts=[1, False]),
        step("delete", where=[1], by=["we"]),
        step("restore", version=2, by=["pylance"]),
        step("cleanup", retain=1, by="we", watched=[]),
        batch(3, 4, times=1, attempts=[1, False]),
    ]
    outcome = replay(steps)
    assert outcome.error is None
    assert outcome.counts["quarantined_batch"] == outcome.counts["unfit quarantined_batch"] == 1
