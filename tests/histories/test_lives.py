"""Random lives of fixed seeds, and lives that once failed."""

import pytest

from tests.histories.engine import as_test, make_life, shrink
from tests.sampling import ALL_CASES

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SEEDS = range(1000, 1010)
LIVES = 20 if ALL_CASES else 2
STEPS = 40


@pytest.mark.essential(cases=len(SEEDS))
@pytest.mark.parametrize("seed", SEEDS)
def test_lives_agree_with_their_model(seed: int) -> None:
    """The seeds are fixed, so that a change fails by itself; `make soak` plays new ones."""
    for number in range(LIVES):
        outcome = make_life(seed * 1000 + number, STEPS)
        if outcome.error is not None:
            shrunk = shrink(outcome)
            assert shrunk.error is not None
            shrunk.error.add_note(f"seed {seed * 1000 + number}:\n{as_test(shrunk)}")
            raise shrunk.error
