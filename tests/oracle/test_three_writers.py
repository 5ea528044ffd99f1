"""Two writers of ours and one of pylance's, in the middle of each other's commits; and a model.

For longer: python -m tests.oracle.three_writers --minutes 10
"""

from typing import Any

import pytest

from lance_stream.commit import committer
from lance_stream.table.conflicts import Verdict
from tests.oracle.three_writers import WithHiddenLineage, run

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.essential
def test_three_writers_agree_in_short_histories(seed: int) -> None:
    assert run(seed, num_steps=3) > 3


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_three_writers_agree_in_long_histories(seed: int) -> None:
    assert run(seed, num_steps=20) > 30


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [14, 15, 16])
def test_three_writers_agree_on_hidden_lineage(seed: int) -> None:
    assert run(seed, 20, WithHiddenLineage) > 30


def run_many(seeds: range) -> None:
    for seed in seeds:
        run(seed, num_steps=8)


@pytest.mark.nightly
@pytest.mark.slow
def test_revived_dead_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = committer.check

    def without_rebase(*given: Any) -> Verdict:
        real(*given)
        return Verdict.YES

    monkeypatch.setattr(committer, "check", without_rebase)
    with pytest.raises(AssertionError):
        run_many(range(20, 40))
