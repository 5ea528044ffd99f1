"""Indices by pylance stay right, whatever we do to their table: they answer what a scan answers.

One table with an index of every kind that pylance builds; our verbs in random order, and some of
pylance's between them. After each, every index is asked, and so are the rows themselves.
"""

from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.row_updates.in_place_costs import FragmentCosts
from tests.oracle.indexed_table import ACTS, SCHEMA, IndexedTable

pytestmark = pytest.mark.oracle


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("stable_row_ids", [True, False], ids=["stable ids", "addresses"])
def test_indices_stay_right_after_operations(
    tmp_path: Path, act: Callable[[IndexedTable], None], stable_row_ids: bool
) -> None:
    """An index that claims changed rows would lose matches or show old ones."""
    table = IndexedTable(str(tmp_path / "t"), 7, stable_row_ids=stable_row_ids)
    before = table.ours.version
    if act is IndexedTable.update_indices:
        table.append()
    act(table)
    assert table.ours.version > before
    table.check()
    table.optimize()
    table.check()


def test_deleted_rows_crowd_out_no_neighbours(tmp_path: Path) -> None:
    """A nearest-neighbour query finds as many live rows as it asks for."""
    uri = str(tmp_path / "t")
    vectors = pa.array([[float(key)] * 8 for key in range(30)], SCHEMA.field("v").type)
    rows = pa.table({"id": pa.array(range(30)), "v": vectors})
    lance.write_dataset(rows, uri, max_rows_per_file=12, enable_stable_row_ids=True)
    lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=2)
    ds = lance_stream.open_dataset(uri).delete("id < 3").compact()
    nearest = {"column": "v", "q": np.zeros(8, np.float32), "k": 5}
    assert len(ds.table.manifest.fragments) == 1
    assert lance.dataset(uri).to_table(nearest=nearest)["id"].to_pylist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", ["ZONEMAP", "BLOOMFILTER", "BTREE", "BITMAP"])
@pytest.mark.parametrize("by_update", [False, True])
def test_former_nulls_no_longer_match(
    tmp_path: Path, kind: str, by_update: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference keeps zones of fragments that left the coverage, if it updates the index."""
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: True))
    uri = str(tmp_path / "t")
    numbers = [None if number % 4 == 0 else number for number in range(20)]
    rows = pa.table({"id": range(20), "x": numbers, "name": ["a"] * 20})
    lance.write_dataset(rows, uri, max_rows_per_file=10, enable_stable_row_ids=True)
    lance.dataset(uri).create_scalar_index("x", kind)
    ds = lance_stream.open_dataset(uri)
    if by_update:
        ds.update({"x": "id + 100"}, where="id = 4")
    else:
        ds.upsert(pa.table({"x": [104], "id": [4]}), on="id")
    lance.dataset(uri).optimize.optimize_indices()
    ids = lance.dataset(uri).to_table(filter="x IS NULL")["id"].to_pylist()
    assert sorted(ids) == [0, 8, 12, 16]
    assert lance.dataset(uri).to_table(filter="x = 104")["id"].to_pylist() == [4]
