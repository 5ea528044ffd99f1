"""Lives whose writers are threads."""

import random

import pytest

from tests.histories.actions.threads import FORMS
from tests.histories.engine import replay
from tests.histories.steps import Step, step

LIMITS = {
    "keys.index.run_format.CHUNK_ROWS": 16,
    "keys.index.key_index.MIN_SAVED_ROWS": 20,
    "keys.index.key_index.MIN_SHARED_ROWS": 1,
    "keys.index.key_index.MAX_SAVED_ROWS": 40,
    "keys.index.key_index.MAX_MERGED_KEYS": 200,
}


def life_of_threads(seed: int) -> list[Step]:
    """Return a table of 150 rows, and three rounds of its writers."""
    dice = random.Random(seed)

    def rows(keys: list[int]) -> dict[int, dict[str, int]]:
        return {key: {"a": dice.randrange(3), "b": dice.randrange(3)} for key in keys}

    def batch() -> list[object]:
        keys = dice.sample(range(200), dice.choice([3, 30, 80]))
        return [dice.choice(FORMS), rows(keys), dice.random() < 0.1]

    columns = [["a", "int64"], ["b", "int64"]]
    first = rows([*range(150)])
    create = step("create", file_version="2.2", columns=columns, rows=first, way="rows")
    rounds = [
        step("concurrent_writers", work=[[batch() for _ in range(2)] for _ in range(3)], seed=seed)
        for _ in range(3)
    ]
    return [Step("limits", {"limits": LIMITS}), create, *rounds]


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.essential
def test_threads_during_compaction_lose_no_key(seed: int) -> None:
    """Runs of the key index are written, merged and dropped while other threads look keys up in
    them.
    """
    outcome = replay(life_of_threads(seed))
    if outcome.error is not None:
        raise outcome.error
    assert outcome.counts["concurrent_writers"] == 3
    assert outcome.counts["files whose keys are known"]
