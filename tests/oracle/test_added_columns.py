"""Columns added to twins of one table, ours and pylance's: the same schema, rows and operations."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_stream import Dataset, InvalidInputError, open_dataset
from lance_stream.commit.committer import read_transaction
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.operations.columns import Merge
from lance_stream.verbs.columns.add_columns import add_columns
from tests.oracle.test_upserts import Twins, rows

pytestmark = pytest.mark.oracle

ADDED = [
    [pa.field("b", pa.string())],
    [pa.field("s", pa.struct([pa.field("y", pa.int32(), nullable=False)]))],
    [pa.field("l", pa.list_(pa.int64())), pa.field("v", pa.list_(pa.float32(), 2))],
]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_pylance_adds_the_same_columns(tmp_path: Path, version: str) -> None:
    """Field ids and fragments must be those of pylance, since it continues the table."""
    twins = Twins(tmp_path, rows(range(20), 0), data_storage_version=version)
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).create_scalar_index("id", "BTREE")
        lance.dataset(uri).delete("id = 3")
    without_structs = version == "2.0"  # in whose files pylance writes no null structs in updates
    for columns in ADDED[:1] + ADDED[2:] if without_structs else ADDED:
        add_columns(open_newest(twins.ours), pa.schema(columns))
        lance.dataset(twins.theirs).add_columns(pa.schema(columns))
        twins.check()
        ours, theirs = open_newest(twins.ours), open_newest(twins.theirs)
        assert ours.schema == theirs.schema
        transactions = [read_transaction(value.log, value.manifest) for value in (ours, theirs)]
        operations = [version.operation for version in transactions if version is not None]
        assert all(
            isinstance(operation, Merge) and operation.preserves_nullability
            for operation in operations
        )
        assert len(operations) == 2
    for uri in (twins.ours, twins.theirs):
        ds = lance.dataset(uri)
        assert ds.to_table(filter="id = 5").num_rows == 1
        ds.update({"b": "'new'"}, where="id = 5")
        assert lance.dataset(uri).to_table(filter="b = 'new'")["id"].to_pylist() == [5]


@pytest.mark.parametrize("by", ["ours", "pylance"])
def test_compacted_files_omit_null_structs(tmp_path: Path, by: str) -> None:
    """Files of 2.0 cannot hold null structs: rows from before the struct was added are stored
    without it. The reference reads such files, and cannot write them.
    """
    uri = str(tmp_path / "t")
    ids = [pa.table({"id": pa.array(value, pa.int64())}) for value in ([1, 2], [3, 4], [5, 6])]
    for id_ in ids:
        lance.write_dataset(
            id_, uri, mode="append", data_storage_version="2.0", enable_stable_row_ids=True
        )
    inner = pa.struct([("c", pa.string())])
    added = pa.schema([("s", pa.struct([("a", pa.int64()), ("b", inner)]))])
    if by == "ours":
        add_columns(open_newest(uri), added)
    else:
        lance.dataset(uri).add_columns(added)
    whole = pa.table({"id": [7, 8], "s": pa.array([{"a": 1, "b": {"c": "x"}}] * 2, added[0].type)})
    value = whole["s"][0].as_py()
    expected: dict[int, Any] = dict.fromkeys(range(1, 7))

    def check() -> Dataset:
        ds = open_dataset(uri)
        for dataset in (ds, lance.dataset(uri)):
            assert {row["id"]: row["s"] for row in dataset.to_table().to_pylist()} == expected
            assert dataset.count_rows() == len(expected)
        assert ds.verify() == []
        return ds

    check().append(whole.slice(0, 1))
    lance.dataset(uri).insert(whole.take([1]))  # pylance panics at sliced structs
    expected |= {7: value, 8: value}
    ds = check().compact()
    assert [fragment.physical_rows for fragment in ds.table.manifest.fragments] == [6, 2]
    assert check().compact().version == ds.version
    check().update({"id": "id + 10"}, where="id = 1 OR id = 7")
    expected[11], expected[17] = expected.pop(1), expected.pop(7)
    check().append(pa.table({"id": [20]}))
    expected[20] = None
    check().upsert(pa.table({"id": [2, 8, 30]}), on="id")  # the struct keeps its value
    expected[30] = None
    check().delete("id = 3")
    del expected[3]
    check().compact()
    assert len(check().table.manifest.fragments) <= 8
    with pytest.raises(InvalidInputError, match="do not support null structs"):
        check().append(pa.table({"id": [40, 41], "s": pa.array([None, value], added[0].type)}))
    check()


def test_dropped_field_ids_are_not_reused(tmp_path: Path) -> None:
    """A reused id would bring back the values of the dropped column."""
    twins = Twins(tmp_path, rows(range(20), 0))
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).drop_columns(["x"])
    field = pa.field("x", pa.float64())
    added = add_columns(open_newest(twins.ours), pa.schema([field]))
    lance.dataset(twins.theirs).add_columns(field)
    twins.check()
    assert added.schema.fields[-1].id == open_newest(twins.theirs).schema.fields[-1].id == 3
    assert lance.dataset(twins.ours).to_table()["x"].null_count == 20


def test_concurrent_pylance_appends_read_null(tmp_path: Path) -> None:
    """Rows that the reference appends while columns are added have nulls in the new columns."""
    twins = Twins(tmp_path, rows(range(5), 0))
    stale = open_newest(twins.ours)
    lance.write_dataset(rows([7], 0), twins.ours, mode="append")
    added = add_columns(stale, pa.schema([pa.field("b", pa.string())]))
    assert added.version == stale.version + 2
    table = lance.dataset(twins.ours).to_table()
    assert (table.num_rows, table["b"].null_count) == (6, 6)


def test_both_add_columns_concurrently(tmp_path: Path) -> None:
    """Both writers would give the same field id to different columns."""
    twins = Twins(tmp_path, rows(range(5), 0))
    theirs = lance.dataset(twins.ours)
    add_columns(open_newest(twins.ours), pa.schema([pa.field("b", pa.string())]))
    with pytest.raises(OSError, match=r"(?i)conflict|retry"):
        theirs.add_columns(pa.field("c", pa.string()))
    theirs.checkout_latest()
    theirs.add_columns(pa.field("c", pa.string()))
    assert lance.dataset(twins.ours).schema.names == ["id", "group", "x", "b", "c"]
