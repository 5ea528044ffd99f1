"""Some random histories of tables that are committed together."""

import pytest

from tests.commit.group_histories import play


@pytest.mark.quick_cases(one_in=8)
@pytest.mark.parametrize("seed", range(1, 9))
def test_batches_reach_all_tables_or_none(seed: int) -> None:
    """Random crashes, races and reads must never show half of a batch."""
    counts = play(seed, 12)
    assert counts["batches"] >= 4
    assert counts["reads"] > 20
