"""Some random histories of tables with indices that are kept fresh."""

import pytest

from tests.oracle.index_histories import SCALARS, VECTORS, drawn, play

pytestmark = pytest.mark.oracle


@pytest.mark.quick_cases(one_in=5)
@pytest.mark.parametrize("seed", range(1, 10))
def test_searches_find_what_is_there_at_each_version(seed: int) -> None:
    counts = play(seed, 8)
    assert counts["versions"] >= 10
    assert counts["questions"] > 50


def test_histories_have_indices_of_each_kind() -> None:
    kinds = {kind for scalar in SCALARS.values() for kind in scalar} | set(VECTORS)
    seen = set()
    for seed in range(60):
        _, by_column, of_vectors = drawn(seed)
        seen |= {*by_column.values(), of_vectors}
    assert seen == kinds | {None}
