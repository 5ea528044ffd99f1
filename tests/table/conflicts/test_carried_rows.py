import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.table.conflicts.carried_rows import RewrittenRows, by_new_fragment, deleted_since


def offsets(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint32)


@st.composite
def rewrites(draw: st.DrawFn) -> tuple[list[tuple[int, list[int], list[int] | None]], list[int]]:
    """Old fragments (rows, deleted when planned, deleted now), and the sizes of the new ones."""
    old = []
    for _ in range(draw(st.integers(1, 4))):
        physical = draw(st.integers(1, 8))
        deleted = sorted(draw(st.sets(st.integers(0, physical - 1), max_size=physical - 1)))
        now = sorted({*deleted, *draw(st.sets(st.integers(0, physical - 1)))})
        old.append((physical, deleted, draw(st.sampled_from([now, None]))))
    num_live = sum(physical - len(deleted) for physical, deleted, _ in old)
    sizes = []
    while num_live:
        sizes.append(draw(st.integers(1, num_live)))
        num_live -= sizes[-1]
    return old, sizes


@settings(max_examples=60, deadline=None)
@given(rewrites())
def test_deletions_carry_over_to_new_fragments(
    rewrite: tuple[list[tuple[int, list[int], list[int] | None]], list[int]],
) -> None:
    """Rows that were deleted during a compaction must be deleted in its result, at their new
    offsets.
    """
    old, sizes = rewrite
    written = [
        now is None or offset in now
        for physical, deleted, now in old
        for offset in range(physical)
        if offset not in deleted
    ]
    expected = []
    for size in sizes:
        of_fragment, written = written[:size], written[size:]
        expected.append([offset for offset, is_deleted in enumerate(of_fragment) if is_deleted])
    rows = [RewrittenRows(physical, offsets(deleted)) for physical, deleted, _ in old]
    killed = [
        np.arange(row.num_written) if now is None else deleted_since(row, offsets(now))
        for row, (_, _, now) in zip(rows, old, strict=True)
    ]
    result = by_new_fragment(killed, [row.num_written for row in rows], sizes)
    assert [value.tolist() for value in result] == expected
    assert {value.dtype for value in result} == {np.dtype(np.uint32)}


@pytest.mark.parametrize("deleted_now", [[], [1], [1, 4, 5]])
def test_a_revived_row_was_not_written(deleted_now: list[int]) -> None:
    """A restore brought back a row that the compaction left out, so the compaction must be planned
    again.
    """
    assert deleted_since(RewrittenRows(6, offsets([1, 2])), offsets(deleted_now)) is None


@pytest.mark.parametrize(
    ("order", "deleted", "expected"),
    [
        (None, [[1], [0, 2]], [[1], [0], [0]]),
        ([4, 3, 2, 1, 0], [[1], [0, 2]], [[0], [0, 1], []]),
        ([4, 3, 2, 1, 0], [[], []], [[], [], []]),
    ],
)
def test_deletions_follow_rows_in_another_order(
    order: list[int] | None, deleted: list[list[int]], expected: list[list[int]]
) -> None:
    """A compaction may sort its rows, and must not delete those at the old positions."""
    result = by_new_fragment(
        [np.array(positions, np.int64) for positions in deleted],
        [2, 3],
        [2, 2, 1],
        None if order is None else np.array(order),
    )
    assert [value.tolist() for value in result] == expected
