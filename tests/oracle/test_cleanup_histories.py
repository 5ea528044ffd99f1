"""Some random histories with branches, tags, clones and consumers, cleaned up under errors."""

import pytest

from tests.oracle.cleanup_histories import play

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("seed", [1, 104, 172])
@pytest.mark.essential
def test_what_is_needed_outlives_every_cleanup(seed: int) -> None:
    counts = play(seed, 40)
    assert counts["versions read"] > 20
