"""Runs of keys in memory."""

import numpy as np
import pytest

from lance_stream.keys.index.memtable import Memtable


@pytest.mark.parametrize("has_others", [False, True])
def test_all_arrays_of_a_run_count(has_others: bool) -> None:
    """The key index frees memory by this number, and an array that it omits is never freed."""
    others = np.zeros(9, np.uint32) if has_others else None
    run = Memtable(np.zeros(9, np.uint64), others, np.zeros(9, np.uint64))
    assert run.num_bytes == 9 * (8 + 8 + 4 * has_others)
