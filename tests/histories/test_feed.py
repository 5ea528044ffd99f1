"""Lives of the change feed: the kit notices rows that the feed omits."""

from typing import Any

import numpy as np
import pytest

from lance_stream.table.changes import diff
from tests.histories.engine import Outcome, replay, replay_whole
from tests.histories.steps import step

pytestmark = pytest.mark.oracle


def life_with_a_rewritten_column() -> Outcome:
    """Return a life of one row, which pylance changes without a new row version."""
    return replay(
        [
            step(
                "create",
                file_version="2.1",
                columns=[["a", "int64"]],
                rows={0: {"a": 1}},
                way="rows",
            ),
            step("rewrite_column", column="a", fragment_of=0, rows={0: {"a": 7}}, by=["pylance"]),
            step("changes", after=1, through=2, rule="none"),
            step("net_changes", after=1, through=2, rule="none"),
            step("row_counts", after=1, through=2),
        ]
    )


def test_rewritten_columns_are_changes() -> None:
    """The feed reports the row, although its row version is the same."""
    outcome = life_with_a_rewritten_column()
    if outcome.error is not None:
        raise outcome.error
    assert not any(name.startswith("unfit") for name in outcome.counts), outcome.counts


def test_feeds_trusting_row_versions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks prove something only if they notice the mistake that they exclude."""

    def stamped_only(_: Any, unstamped: np.ndarray, stamped: np.ndarray, *__: Any) -> np.ndarray:
        return stamped

    monkeypatch.setattr(diff._UpdateRules, "_updated", stamped_only)
    assert isinstance(life_with_a_rewritten_column().error, AssertionError)


def test_lists_and_vectors_convert_mutually() -> None:
    """The feed converts their items, also if a number was between them."""
    lists: dict[int, Any] = {0: {"a": [1, 2, 3, 4]}, 1: {"a": [1]}, 2: {"a": [None, 1, 2, 3]}}
    counts = replay_whole(
        step("create", file_version="2.1", columns=[["a", "list"]], rows=lists, way="rows"),
        step("overwrite", columns=[["a", "int64", ""]], rows={0: {"a": 5}}, by=["we"]),
        step("overwrite", columns=[["a", "vector", ""]], rows={0: {"a": [0.0] * 4}}, by=["we"]),
        step("changes", after=1, through=3, rule="none"),
        step("net_changes", after=1, through=3, rule="none"),
        step("overwrite", columns=[["a", "list", ""]], rows={0: {"a": [7]}}, by=["we"]),
        step("changes", after=1, through=4, rule="none"),
        step("net_changes", after=3, through=4, rule="none"),
    )
    assert (counts["changes"], counts["net_changes"]) == (2, 2)
