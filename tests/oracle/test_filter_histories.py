"""Some random histories of tables whose filters are served by indices."""

import pytest

from tests.oracle.filter_histories import play

pytestmark = pytest.mark.oracle


@pytest.mark.quick_cases(one_in=6)
@pytest.mark.parametrize("seed", range(1, 7))
def test_filters_choose_the_same_rows_with_indices_and_without(seed: int) -> None:
    counts = play(seed, 8)
    assert counts["served"] > 40
    assert counts["asked of pylance"] > 30
    assert counts["rows"] > 500
