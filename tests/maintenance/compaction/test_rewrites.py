"""How a compaction encodes what it keeps of rows."""

import uuid

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.compaction import rewrites
from lance_stream.maintenance.compaction.plan import CompactionRules
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


@pytest.mark.parametrize(
    ("max_rows", "steps"),
    [(1, [1, 1, 1, 0]), (4, [1, 1, 1]), (5, [2, 1]), (8, [2, 1]), (10, [3, 0]), (11, [3])],
)
def test_keys_are_remapped_in_steps(
    monkeypatch: pytest.MonkeyPatch, max_rows: int, steps: list[int]
) -> None:
    """The keys of all groups at once may not fit in memory."""
    num_groups: list[int] = []
    monkeypatch.setattr(rewrites, "MAX_SAVED_ROWS", max_rows)
    monkeypatch.setattr(rewrites, "remap_keys", lambda _, files: num_groups.append(len(files)))
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    for _ in range(6):
        ds = ds.append(pa.table({"id": [1] if ds.version > 4 else [1, 2]}))
    rewrites.prepare(ds.table, CompactionRules(4))
    assert num_groups == steps
