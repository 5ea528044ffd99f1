"""Random lives of tables to which LanceDB writes, too."""

from collections import Counter

import pytest

from tests.histories.engine import as_test, make_life, shrink
from tests.recipes import need

pytestmark = [pytest.mark.recipes, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("first", [2000, 2003])
def test_lancedb_lives_agree_with_model(first: int) -> None:
    """LanceDB writes, reads and has views of tables beside all other features."""
    need("lancedb")
    counts: Counter[str] = Counter()
    for seed in range(first, first + 3):
        outcome = make_life(seed, 40)
        if outcome.error is not None:
            shrunk = shrink(outcome)
            assert shrunk.error is not None
            shrunk.error.add_note(f"seed {seed}:\n{as_test(shrunk)}")
            raise shrunk.error
        counts += outcome.counts
    assert counts["by lancedb"] > 0
    assert counts["reads by LanceDB"] > 0
