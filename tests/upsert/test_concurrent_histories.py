"""A few random histories of threads that upsert beside a compaction; see `concurrent_histories`."""

import pytest

from tests.upsert.concurrent_histories import NUM_THREADS, played


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.essential
def test_upserts_beside_each_other_and_a_compaction_lose_no_key(seed: int) -> None:
    done = played(seed, 5)
    assert done["batches"] == 5 * NUM_THREADS
    assert done["known files"]
