"""Random histories of tables with derived columns, some of them in the suite."""

from pathlib import Path

import pytest

from tests.derived.histories import History


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.oracle
@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.essential
def test_each_row_is_computed_once_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    History(tmp_path, seed).run(25, monkeypatch)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.oracle
@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("seed", range(16, 28))
def test_a_table_beside_follows_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    history = History(tmp_path, seed, beside=True)
    history.run(25, monkeypatch)
    history.round()
