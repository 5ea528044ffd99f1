"""Numbers that a table cannot exceed: ids of fragments, and of rows."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.apply import Commit, apply
from lance_stream.table.apply.new_fragments import MAX_ROW_ID, max_fragment_id, with_ids
from lance_stream.table.apply.next_row_id_check import check_next_row_id
from lance_stream.table.apply.stable_row_ids import with_row_ids
from lance_stream.table.fragments import deletion_vectors
from lance_stream.table.fragments.fragment import MAX_FRAGMENT_ID
from lance_stream.table.lineage import row_ids, row_versions
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Append, Overwrite
from tests.commit.tables import CREATION, SCHEMA, new_fragment


@pytest.fixture
def manifest() -> Manifest:
    """A version with three rows."""
    operation = Overwrite((new_fragment(3),), SCHEMA)
    return apply(None, operation, Commit(1000), replace(CREATION, stable_row_ids=True))


def test_last_fragment_id_is_usable(manifest: Manifest) -> None:
    """A table is full after it, and damaged if it states a larger one."""
    almost_full = replace(manifest, max_fragment_id=MAX_FRAGMENT_ID - 1)
    (fragment,) = with_ids(almost_full, [new_fragment(1)])
    assert fragment.id == MAX_FRAGMENT_ID
    full = replace(manifest, max_fragment_id=MAX_FRAGMENT_ID)
    assert with_ids(full, []) == []
    assert max_fragment_id(full) == MAX_FRAGMENT_ID
    with pytest.raises(InvalidInputError, match="has used up its fragment ids"):
        with_ids(full, [new_fragment(1)])
    with pytest.raises(CorruptDataError, match="the largest fragment id"):
        max_fragment_id(replace(manifest, max_fragment_id=MAX_FRAGMENT_ID + 1))


def test_next_row_id_exceeds_all(manifest: Manifest) -> None:
    """If it were one too low, the next row would get the id of the last."""
    check_next_row_id(manifest)
    with pytest.raises(CorruptDataError, match="next row id 2, but a row has the id 2"):
        check_next_row_id(replace(manifest, next_row_id=2))


def test_last_row_id_is_usable(manifest: Manifest) -> None:
    """A table is full after it; a larger id does not fit the format's numbers."""
    fragments, next_row_id = with_row_ids([new_fragment(2), new_fragment(1)], MAX_ROW_ID - 3)
    assert next_row_id == MAX_ROW_ID
    data = fragments[1].row_ids
    assert isinstance(data, bytes)
    assert row_ids.decode_row_ids(data).to_array().tolist() == [MAX_ROW_ID - 1]
    almost_full = replace(manifest, next_row_id=MAX_ROW_ID - 4)
    appended = apply(almost_full, Append((new_fragment(4),)), Commit(1000))
    assert appended.next_row_id == MAX_ROW_ID
    with pytest.raises(InvalidInputError, match="has used up its row ids"):
        apply(almost_full, Append((new_fragment(5),)), Commit(1000))
    with pytest.raises(InvalidInputError, match="has used up its row ids"):
        with_row_ids([new_fragment(2), new_fragment(2)], MAX_ROW_ID - 3)


@pytest.mark.parametrize("module", [row_ids, row_versions, deletion_vectors])
def test_arrays_have_a_greatest_length(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes can state any number of rows, and memory is not allocated for them."""
    monkeypatch.setattr(module, "MAX_MATERIALIZED", 3)

    def read(num_rows: int) -> int:
        if module is row_ids:
            return len(row_ids.RowIdSequence.from_range(5, 5 + num_rows).to_array())
        if module is row_versions:
            return len(row_versions.RowVersionSequence.uniform(num_rows, 1).to_array())
        kind, data = deletion_vectors.encode_deletion_vector(np.arange(num_rows))
        return len(deletion_vectors.decode_deletion_vector(data, kind, 9))

    assert read(3) == 3
    with pytest.raises(UnsupportedFeatureError, match="4 "):
        read(4)
