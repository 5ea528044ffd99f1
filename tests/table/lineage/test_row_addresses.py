import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.table.lineage import row_addresses
from lance_stream.table.lineage.row_addresses import (
    NO_ADDRESS,
    FragmentRows,
    RowIdIndex,
    pack_addresses,
    unpack_addresses,
)
from lance_stream.table.lineage.row_ids import RowIdSequence

MAX = (1 << 64) - 1


def index_of(*fragments: tuple[int, list[int], list[int]]) -> RowIdIndex:
    return RowIdIndex(
        FragmentRows(fragment_id, RowIdSequence.from_array(ids), np.array(deleted, np.uint32))
        for fragment_id, ids, deleted in fragments
    )


def test_an_address_is_fragment_and_offset() -> None:
    """The specification puts the fragment id into the high 32 bits."""
    packed = pack_addresses(7, [0, 5, (1 << 32) - 1])
    assert packed.tolist() == [7 << 32, (7 << 32) + 5, (8 << 32) - 1]
    fragment_ids, offsets = unpack_addresses(packed)
    assert fragment_ids.tolist() == [7, 7, 7]
    assert offsets.tolist() == [0, 5, (1 << 32) - 1]
    assert pack_addresses((1 << 32) - 1, np.array([1], np.uint32)).tolist() == [MAX - (1 << 32) + 2]


spans = st.sampled_from([60, 1 << 40, MAX])


@given(spans, st.data())
def test_exactly_the_live_rows_are_found(span: int, data: st.DataObject) -> None:
    """The dictionary of live rows is the model, for narrow and wide ranges of ids."""
    ids = data.draw(st.lists(st.integers(0, span), max_size=60, unique=True))
    cut = data.draw(st.integers(0, len(ids)))
    fragments = {4: ids[:cut], 9: ids[cut:]}
    deleted = {
        key: sorted(data.draw(st.sets(st.integers(0, max(0, len(rows) - 1)))) if rows else set())
        for key, rows in fragments.items()
    }
    index = index_of(*((key, rows, deleted[key]) for key, rows in fragments.items()))
    expected = {
        row_id: key << 32 | offset
        for key, rows in fragments.items()
        for offset, row_id in enumerate(rows)
        if offset not in deleted[key]
    }
    requested = [*ids, *data.draw(st.lists(st.integers(0, MAX), max_size=20)), 0, span, MAX]
    addresses, hits = index.find(np.array(requested, np.uint64))
    assert addresses.tolist() == [expected.get(value, MAX) for value in requested]
    assert hits.tolist() == [value in expected for value in requested]
    assert len(index) == len(expected)


def test_updated_rows_have_new_addresses() -> None:
    """The old row of the same id is deleted and must not be returned."""
    index = index_of((1, [1, 2, 3], [1]), (2, [2], []))
    assert index.find([1, 2, 3])[0].tolist() == [1 << 32, 2 << 32, (1 << 32) + 2]


@pytest.mark.floors
@pytest.mark.parametrize("far", [10, 1 << 50])
def test_duplicate_live_ids_are_corrupt(far: int) -> None:
    """An id identifies one row, and a choice between two would hide the damage."""
    with pytest.raises(CorruptDataError, match="1 row ids belong to two live rows each"):
        index_of((1, [5, far], []), (2, [7, 5], []))
    assert len(index_of((1, [5, far], [0]), (2, [7, 5], []))) == 3


def test_empty_indices_find_nothing() -> None:
    """Tables may be empty, and searches in empty arrays are easily out of bounds."""
    addresses, hits = index_of((1, [3], [0])).find([0, 3])
    assert (addresses.tolist(), hits.tolist()) == ([NO_ADDRESS, NO_ADDRESS], [False, False])
    assert index_of().find([])[0].tolist() == []


def test_fragments_may_have_no_deletion_file() -> None:
    """Most fragments have none, and a few have one without rows."""
    ids = RowIdSequence.from_array([3, 1])
    for deleted in None, np.empty(0, np.uint32):
        addresses, hits = RowIdIndex([FragmentRows(2, ids, deleted)]).find([1, 2, 3])
        assert addresses.tolist() == [(2 << 32) + 1, NO_ADDRESS, 2 << 32]
        assert hits.tolist() == [True, False, True]


def test_unindexable_row_counts_are_refused_early() -> None:
    """The error comes before memory is allocated for them."""
    with pytest.raises(UnsupportedFeatureError, match="would not fit"):
        RowIdIndex([FragmentRows(0, RowIdSequence.from_range(0, 1 << 32))])


def test_row_limit_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the sum of all fragments; one row less must not be refused."""
    monkeypatch.setattr(row_addresses, "MAX_MATERIALIZED", 3)
    assert len(index_of((1, [5, 6], []), (2, [7], []))) == 3
    with pytest.raises(UnsupportedFeatureError, match="4 row ids would not fit in memory"):
        index_of((1, [5, 6], []), (2, [7, 8], []))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 1000])
def test_indexing_costs_little_more_than_sorting(factor: int) -> None:
    """The index is built at the first lookup by id, and loops over rows would take minutes."""
    ids = np.random.default_rng(1).permutation(3_000_000).astype(np.uint64) * np.uint64(factor)
    # One hundred fragments, each with ids of all ages, as after many updates and a compaction.
    parts = [RowIdSequence.from_array(np.sort(part)) for part in np.split(ids, 100)]
    start = time.process_time()
    np.argsort(ids)
    sorting = time.process_time() - start
    start = time.process_time()
    index = RowIdIndex(FragmentRows(value, part) for value, part in enumerate(parts))
    seconds = time.process_time() - start
    assert index.find(ids[::1000])[1].all()
    assert seconds < 4 * sorting
