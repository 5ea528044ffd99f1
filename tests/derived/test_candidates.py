"""The rows of a source that may have changed since a version."""

import uuid

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.derived.candidates import changed_since


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_restored_rows_of_any_fragment_count(changed: int) -> None:
    """A restore brings back old row versions, so only comparing the fragments shows its rows."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for start in (0, 3, 6):
        ds = ds.append(pa.table({"id": range(start, start + 3), "x": [1] * 3}))
    before = ds.version
    ds = ds.update({"x": "2"}, where=f"id = {3 * changed + 1}")
    ids = [field.id for field in ds.table.schema.fields]
    table = ds.restore(before).table
    difference = changed_since(table, ds.version, ids, (), is_restored_with=False)
    (rows,) = difference.others
    assert rows.fragment_index == changed
    assert 3 * changed + 1 in rows.row_ids
    fragment_ids = table.manifest.fragments.ids
    assert sorted({*fragment_ids} - {*difference.untouched}) == [fragment_ids[changed]]
