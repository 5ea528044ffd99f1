"""Numbers that a table cannot exceed: ids of fragments, and of rows."""

from dataclasses import replace

import pytest

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table.apply import Commit, apply
from lance_stream.table.apply.new_fragments import max_fragment_id, with_ids
from lance_stream.table.apply.next_row_id_check import check_next_row_id
from lance_stream.table.fragments.fragment import MAX_FRAGMENT_ID
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Overwrite
from tests.commit.tables import CREATION, SCHEMA, new_fragment


@pytest.fixture
def manifest() -> Manifest:
    """A version with three rows."""
    operation = Overwrite((new_fragment(3),), SCHEMA)
    return apply(None, operation, Commit(1000), replace(CREATION, stable_row_ids=True))


def test_the_last_fragment_id_can_be_used(manifest: Manifest) -> None:
    """A table is full after it, and damaged if it states a larger one."""
    almost_full = replace(manifest, max_fragment_id=MAX_FRAGMENT_ID - 1)
    (fragment,) = with_ids(almost_full, [new_fragment(1)])
    assert fragment.id == MAX_FRAGMENT_ID
    full = replace(manifest, max_fragment_id=MAX_FRAGMENT_ID)
    assert max_fragment_id(full) == MAX_FRAGMENT_ID
    with pytest.raises(InvalidInputError, match="has used up its fragment ids"):
        with_ids(full, [new_fragment(1)])
    with pytest.raises(CorruptDataError, match="the largest fragment id"):
        max_fragment_id(replace(manifest, max_fragment_id=MAX_FRAGMENT_ID + 1))


def test_the_next_row_id_is_the_greatest(manifest: Manifest) -> None:
    """One too low, the next row would get the id of the last."""
    check_next_row_id(manifest)
    with pytest.raises(CorruptDataError, match="next row id 2, but a row has the id 2"):
        check_next_row_id(replace(manifest, next_row_id=2))
