"""The bounds of the batches of a fragment."""

import numpy as np
import pytest

from lance_stream.read.selections import batch_bounds


@pytest.mark.parametrize(
    ("page_starts", "stop", "bounds"),
    [
        ([0, 24, 25, 200], 120, [0, 25, 120]),
        ([0, 24, 26, 200], 120, [0, 26, 120]),
        ([0, 100, 120], 121, [0, 100, 121]),
        ([0, 101], 120, [0, 51, 101, 120]),
        ([0], 100, [0, 100]),
        ([0], 250, [0, 84, 168, 250]),
        ([0, 60], 60, [0, 60]),
        ([], 0, [0, 0]),
    ],
)
def test_batches_end_at_page_bounds(page_starts: list[int], stop: int, bounds: list[int]) -> None:
    """Smaller batches cost calls, and a page that two batches share is decoded twice."""
    assert batch_bounds(0, stop, np.array(page_starts, np.int64), 100) == bounds


def test_no_batch_is_empty() -> None:
    """A quarter of a batch may be less than one row."""
    assert batch_bounds(2, 6, np.array([0, 2, 4, 6]), 3) == [2, 4, 6]
