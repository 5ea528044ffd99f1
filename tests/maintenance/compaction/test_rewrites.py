"""How a compaction encodes what it keeps of rows."""

import numpy as np
import pytest

from lance_stream.maintenance.compaction import rewrites
from lance_stream.table.lineage.row_ids import decode_row_ids, encode_row_ids


def test_unordered_row_ids_are_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment has a header, which saves nothing for ids in random order."""
    monkeypatch.setattr(rewrites, "_IDS_PER_STEP", 100)
    random = np.random.default_rng(0)
    ids = np.concatenate([1000 * n + random.permutation(200) for n in range(10, 0, -1)])
    ids = ids.astype(np.uint64)
    encoded = rewrites._encoded_ids(ids)
    np.testing.assert_array_equal(decode_row_ids(encoded).to_array(), ids)
    assert len(ids) < len(encoded) == len(encode_row_ids(ids))
