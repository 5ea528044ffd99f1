"""Snapshot + feed = snapshot, over random histories by us and pylance; a model says what changed.

For longer: python -m tests.oracle.feed_histories --minutes 10
"""

from typing import Any

import numpy as np
import pytest

from lance_stream.table.changes import diff
from tests.oracle.feed_histories import WithHiddenLineage, run

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.essential
def test_the_law_holds_in_short_histories(seed: int) -> None:
    """A consumer that applies the feed must end with the rows of the table."""
    assert run(seed, num_steps=6) > 5


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [25, 28, 30, 53])
def test_the_law_holds_in_long_histories(seed: int) -> None:
    """Some faults need restores, compactions and updates of one row in sequence."""
    assert run(seed, num_steps=14) > 10


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [26, 27, 29, 31])
def test_the_law_holds_with_hidden_lineage(seed: int) -> None:
    """Row ids and stamps in data files take another path through the diff."""
    assert run(seed, 14, WithHiddenLineage) > 10


def runs_right(seeds: list[int]) -> bool:
    try:
        return all(run(seed, num_steps=12) for seed in seeds)
    except AssertionError:
        return False


@pytest.mark.slow
def test_a_feed_trusting_all_stamps_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law proves something only if it notices the mistake that it excludes."""

    def stamped_only(_: Any, unstamped: np.ndarray, stamped: np.ndarray, *__: Any) -> np.ndarray:
        return stamped

    monkeypatch.setattr(diff._Judge, "_noted", stamped_only)
    assert not runs_right([0, 6, 77])
