"""Which runs are merged."""

import pytest

from lance_stream.keys.index.run_merging import in_groups


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([0], [[0]]),
        ([0, 10, 0], [[0, 10, 0]]),
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([11, 1], [[11], [1]]),
        ([10, 11, 10], [[10], [11], [10]]),
        ([3, 3, 4, 1, 9, 1], [[3, 3, 4], [1, 9], [1]]),
    ],
)
def test_groups_have_a_maximum_size(sizes: list[int], groups: list[list[int]]) -> None:
    """Merging takes several times the memory of a run; a larger item is alone."""
    assert [list(group) for group in in_groups(zip(sizes, sizes, strict=True), 10)] == groups
