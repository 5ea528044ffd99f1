"""Random histories of tables that are replaced while others write and follow, some in the suite."""

from pathlib import Path

import pytest

from tests.faults.replaced_histories import run_history


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("seed", [1, 2])
def test_replaced_tables_receive_no_foreign_commits(tmp_path: Path, seed: int) -> None:
    """The new table has the same location and version numbers, and streams of the old one must
    notice it.
    """
    done = run_history(tmp_path, seed)
    assert sum(count for what, count in done.items() if what.endswith("refused")) > 1
