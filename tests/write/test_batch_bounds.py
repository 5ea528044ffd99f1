import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.read.selections import batch_bounds


def test_batches_end_where_pages_end() -> None:
    """A page that is cut must be decoded or held twice."""
    assert batch_bounds(0, 300, np.array([0, 100, 200, 300]), 150) == [0, 100, 200, 300]


def test_small_pages_share_a_batch() -> None:
    """Batches of a few rows would make the work per batch dominate."""
    assert batch_bounds(0, 60, np.arange(0, 61, 10), 100) == [0, 30, 60]


def test_large_pages_are_cut_evenly() -> None:
    """A page above the batch size must be cut, and a tiny remainder would waste a batch."""
    assert batch_bounds(0, 300, np.array([0, 250, 300]), 100) == [0, 84, 168, 250, 300]


def test_ranges_are_cut_within_themselves() -> None:
    """A scan may start and stop within a page."""
    assert batch_bounds(50, 150, np.array([0, 100, 200]), 80) == [50, 100, 150]


@given(
    st.integers(0, 500),
    st.integers(1, 500),
    st.lists(st.integers(0, 120), max_size=12),
    st.integers(1, 200),
)
def test_batches_cover_all_rows_within_limits(
    start: int, num_rows: int, pages: list[int], batch_size: int
) -> None:
    """For arbitrary pages and ranges no row may be lost and no batch exceed its size."""
    bounds = batch_bounds(start, start + num_rows, np.cumsum([0, *pages]), batch_size)
    assert bounds[0] == start
    assert bounds[-1] == start + num_rows
    assert all(0 < step <= batch_size for step in np.diff(bounds))
