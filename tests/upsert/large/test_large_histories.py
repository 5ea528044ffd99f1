"""A few random histories of large upserts, beside small ones; see `large_histories`."""

import pytest

from tests.upsert.large.large_histories import played


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("seed", [5, 8, 1025, 1031])
def test_large_and_small_upserts_match_the_model(seed: int) -> None:
    """Large upserts run by ranges of keys and leave index, bounds and tombstones to the small ones
    that follow.
    """
    done = played(seed, 5)
    assert done["batches"] == 5
