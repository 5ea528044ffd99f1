import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lance_stream.table.lineage.ascending import are_among, difference, distinct, union

TYPES = st.sampled_from([np.uint32, np.uint64, np.int64])


@given(st.data(), TYPES)
def test_set_operations_agree_with_python(data: st.DataObject, kind: type) -> None:
    """Sorted arrays replace sets for speed, and must neither change their input nor its type."""
    numbers = arrays.arrays(kind, st.integers(0, 12), elements=st.integers(0, 15))
    one, other = data.draw(numbers), data.draw(numbers)
    before = one.copy()
    ours, theirs = distinct(one), distinct(other)
    assert np.array_equal(one, before)
    assert ours.tolist() == sorted(set(one.tolist()))
    assert union(ours, theirs).tolist() == sorted({*one.tolist(), *other.tolist()})
    assert difference(ours, theirs).tolist() == sorted({*one.tolist()} - {*other.tolist()})
    assert are_among(one, theirs).tolist() == [value in {*other.tolist()} for value in one.tolist()]
    assert {ours.dtype, union(ours, theirs).dtype, difference(ours, theirs).dtype} == {one.dtype}


@pytest.mark.parametrize("edge", [0, 2**63, 2**64 - 1])
def test_the_limits_of_64_bits_work(edge: int) -> None:
    """Differences of u64 values wrap around, which breaks comparisons by subtraction."""
    one, other = np.array([edge], np.uint64), np.array([5, 2**64 - 2], np.uint64)
    assert union(one, other).tolist() == sorted({edge, 5, 2**64 - 2})
    assert difference(other, one).tolist() == [5, 2**64 - 2]
    assert difference(one, one).tolist() == []


def test_ascending_arrays_are_not_copied() -> None:
    """Copies of large arrays would double the memory of a diff."""
    numbers = np.arange(10, dtype=np.uint32)
    assert distinct(numbers) is numbers
