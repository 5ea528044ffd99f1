"""Some random histories of a table that four programs write."""

import pytest

from tests.neighbours.mixed_histories import run_history

pytestmark = pytest.mark.recipes


@pytest.mark.parametrize("seed", range(1, 5))
def test_four_writers_and_five_readers_agree(seed: int) -> None:
    """Implementations differ in rarely used parts of the format, which random histories reach."""
    counts = run_history(seed, 20)
    assert counts["view: incremental"] + counts["view: rebuild"] > 0
    assert counts["read by duckdb"] > 0
