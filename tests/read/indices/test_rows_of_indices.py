"""The rows that an index names must be rows of the table."""

import uuid

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import CorruptDataError
from lance_stream.read.indices.candidates import _by_fragment


def test_rows_beyond_a_fragment_are_corrupt() -> None:
    """The index belongs to another table, or its coverage to another fragment."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.table({"id": [1, 2, 3]}))
    ds = ds.append(pa.table({"id": [4]}))
    covered = np.ones(2, np.bool_)
    addresses = np.array([0, 2, 1 << 32], np.uint64)
    candidates = _by_fragment(ds.table, covered, addresses)
    offsets = {index: rows.tolist() for index, rows in candidates.offsets.items()}
    assert offsets == {0: [0, 2], 1: [0]}
    for address, match in ((3, "row 3 of fragment 0"), ((1 << 32) + 1, "row 1 of fragment 1")):
        with pytest.raises(CorruptDataError, match=match):
            _by_fragment(ds.table, covered, np.array([address], np.uint64))
