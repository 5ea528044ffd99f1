"""Some random histories of tables that are committed together."""

import pytest

from tests.commit.group_histories import play


@pytest.mark.quick_cases(one_in=8)
@pytest.mark.parametrize("seed", range(1, 9))
def test_each_batch_is_in_all_tables_or_in_none(seed: int) -> None:
    counts = play(seed, 12)
    assert counts["batches"] >= 4
    assert counts["reads"] > 20
