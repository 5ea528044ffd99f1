"""Random histories of tables that are replaced while others write and follow, some in the suite."""

from pathlib import Path

import pytest

from tests.faults.replaced_histories import run_history


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_goes_into_another_table_and_streams_notice(tmp_path: Path, seed: int) -> None:
    done = run_history(tmp_path, seed)
    assert sum(count for what, count in done.items() if what.endswith("refused")) > 1
