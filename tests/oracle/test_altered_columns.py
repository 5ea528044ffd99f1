"""Columns altered by us and by pylance: each reads what the other wrote, with stale writers."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

import lance_stream
from lance_stream import Dataset, InvalidInputError

pytestmark = pytest.mark.oracle

STRUCTS = pa.struct([("zip", pa.int16()), ("deep", pa.struct([("c", pa.float32())]))])
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("place", STRUCTS),
        ("orders", pa.list_(pa.struct([("price", pa.int8()), ("n", pa.string())]))),
        ("vector", pa.list_(pa.float16(), 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
VERSIONS = ["0.1", "2.0", "2.1", "2.2"]
WIDER: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "place.zip": pa.int32(),
    "place.deep.c": pa.float64(),
    "orders.price": pa.int64(),
    "vector": pa.list_(pa.float32(), 2),
    "tags": pa.large_list(pa.large_string()),
}


def rows(*ids: int, with_nulls: bool = True) -> pa.Table:
    def make_struct(id_: int) -> Any:
        if with_nulls and id_ % 4 == 0:
            return None
        return {"zip": id_, "deep": {"c": id_ / 2}}

    return pa.table(
        {
            "id": ids,
            "place": [make_struct(id_) for id_ in ids],
            "orders": [[{"price": id_, "n": f"n{id_}"}] * (id_ % 3) for id_ in ids],
            "vector": [[np.float16(id_ / 2), np.float16(id_)] for id_ in ids],
            "tags": [["a", None][: id_ % 3] for id_ in ids],
        },
        SCHEMA,
    )


def create(path: Path, version: str) -> str:
    """Two fragments; one row of the first is deleted."""
    uri = str(path / "table")
    with_nulls = version in ("2.1", "2.2")
    for ids in ((1, 2, 3, 4), (5, 6, 7, 8)):
        lance.write_dataset(
            rows(*ids, with_nulls=with_nulls),
            uri,
            mode="append",
            data_storage_version=version,
            enable_stable_row_ids=True,
        )
    lance.dataset(uri).delete("id = 2")
    return uri


def check_same(ds: Dataset) -> None:
    theirs = lance.dataset(ds.uri)
    theirs.validate()
    assert theirs.version == ds.version
    assert ds.schema.equals(theirs.schema)
    one, other = (value.to_table(with_row_id=True).to_pylist() for value in (ds, theirs))
    assert one == other
    assert ds.verify() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_pylance_reads_and_continues_our_casts(tmp_path: Path, version: str) -> None:
    """A cast rewrites columns into new files, on which pylance appends and compacts."""
    ds = lance_stream.open_dataset(create(tmp_path, version))
    before = ds.to_table().to_pylist()
    for path, wider in WIDER.items():
        ds = ds.alter_columns({"path": path, "data_type": wider})
        check_same(ds)
    assert ds.to_table().to_pylist() == before
    theirs = lance.dataset(ds.uri)
    theirs.insert(rows(9).cast(ds.schema))
    theirs = lance.dataset(ds.uri)
    theirs.optimize.compact_files()
    check_same(lance_stream.open_dataset(ds.uri))
    assert lance.dataset(ds.uri).count_rows() == 8


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_twins_are_cast_alike(tmp_path: Path, version: str) -> None:
    """Row ids and versions, field ids of parts of structs, the operation."""
    uris = [create(tmp_path / name, version) for name in ("ours", "theirs")]
    ours, theirs = lance_stream.open_dataset(uris[0]), lance.dataset(uris[1])
    for path in ("id", "place.zip"):
        change = {"path": path, "data_type": WIDER[path]}
        ours = ours.alter_columns(change)
        theirs.alter_columns(change)
        stamps = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
        one, other = (lance.dataset(uri).to_table(columns=[*SCHEMA.names, *stamps]) for uri in uris)
        assert one.equals(other)
        tables = [lance_stream.open_dataset(uri).table for uri in uris]
        assert tables[0].schema == tables[1].schema


@pytest.mark.parametrize("version", VERSIONS)
def test_nullability_changes_equal_pylances(tmp_path: Path, version: str) -> None:
    """pylance refuses rows by the stored flag, in either direction."""
    ds = lance_stream.open_dataset(create(tmp_path, version))
    for path, nullable in (("id", False), ("vector", False), ("id", True)):
        ds = ds.alter_columns({"path": path, "nullable": nullable})
        check_same(ds)
        assert ds.schema.field(path).nullable is nullable
    with pytest.raises(OSError, match="missing=\\[vector\\]"):
        lance.dataset(ds.uri).insert(pa.table({"id": pa.nulls(1, pa.int32())}))


def test_stale_appends_of_pylance_lose_nothing(tmp_path: Path) -> None:
    """After its own cast, pylance appends nulls."""
    uri = create(tmp_path, "2.2")
    stale = lance.dataset(uri)
    fragments = write_fragments(rows(9), stale)
    lance_stream.open_dataset(uri).alter_columns({"path": "place.zip", "data_type": pa.int64()})
    with pytest.raises(OSError, match="preempted by concurrent transaction Merge"):
        lance.LanceDataset.commit(uri, LanceOperation.Append(fragments), read_version=stale.version)
    assert lance.dataset(uri).count_rows() == 7


def test_stale_appends_follow_a_cast(tmp_path: Path) -> None:
    """Rows in the old type must not be committed, but can be written again in the new one."""
    uri = create(tmp_path, "2.2")
    ds = lance_stream.open_dataset(uri)
    lance.dataset(uri).alter_columns({"path": "place.zip", "data_type": pa.int64()})
    newest = ds.append(rows(9))  # can be read twice: written again
    assert newest.to_table(filter="id = 9")["place"].to_pylist() == rows(9)["place"].to_pylist()


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_pylance_reads_and_continues_our_parts(tmp_path: Path, version: str) -> None:
    """pylance adds struct fields in 2.2 only, but reads them in every version."""
    ds = lance_stream.open_dataset(create(tmp_path, version))
    parts = ("place.city", "place.deep.d", "orders.m")
    ds = ds.add_columns([pa.field(part, pa.string()) for part in parts])
    check_same(ds)
    if version != "2.0":
        ds = ds.add_columns({"place.code": "id * 2", "place.deep.e": "CAST(id AS string)"})
        check_same(ds)
    theirs = lance.dataset(ds.uri)
    theirs.insert(ds.to_table().slice(0, 2))
    lance.dataset(ds.uri).optimize.compact_files()
    ds = ds.checkout(None)
    check_same(ds)
    ds = ds.drop_columns(["orders.price", "place.zip"]).rename_columns({"orders.m": "k"})
    check_same(ds)


def test_parts_are_added_as_pylance_does(tmp_path: Path) -> None:
    """Fields inside of structs and lists get ids in the order that pylance uses."""
    uris = [create(tmp_path / name, "2.2") for name in ("ours", "theirs")]
    deep = pa.struct([pa.field("d", pa.string())])
    item = pa.struct([pa.field("m", pa.string())])
    new = [
        pa.field("place", pa.struct([pa.field("deep", deep)])),
        pa.field("orders", pa.list_(item)),
    ]
    ours = lance_stream.open_dataset(uris[0])
    for value in new:
        ours = ours.add_columns(value)
        lance.dataset(uris[1]).add_columns(value)
    tables = [lance_stream.open_dataset(uri).table for uri in uris]
    assert tables[0].schema == tables[1].schema
    assert lance.dataset(uris[0]).to_table().equals(lance.dataset(uris[1]).to_table())
    assert ours.changes(3).read_all().num_rows == 0


def test_indexed_columns_are_not_cast(tmp_path: Path) -> None:
    """pylance drops the index."""
    uri = create(tmp_path, "2.2")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    ds = lance_stream.open_dataset(uri)
    with pytest.raises(InvalidInputError, match="'id' cannot be cast because the index"):
        ds.alter_columns({"path": "id", "data_type": pa.int64()})
    ds = ds.alter_columns(
        {"path": "place.zip", "data_type": pa.int64()}, {"path": "id", "nullable": False}
    )
    check_same(ds)
    theirs = lance.dataset(uri)
    assert [describe_index.field_names for describe_index in theirs.describe_indices()] == [["id"]]
    assert theirs.to_table(filter="id = 7").num_rows == 1


def test_branches_are_altered_alone(tmp_path: Path) -> None:
    """The main branch shares files with the branch, but not the schema."""
    ds = lance_stream.open_dataset(create(tmp_path, "2.2"))
    ds.branches.create("dev")
    branch = lance_stream.open_dataset(ds.uri, branch="dev")
    branch = branch.alter_columns({"path": "place.zip", "data_type": pa.int64()})
    branch = branch.add_columns({"place.x": "id + 1"})
    theirs = lance.dataset(ds.uri).checkout_version(("dev", None))
    assert theirs.to_table().to_pylist() == branch.to_table().to_pylist()
    assert branch.verify() == []
    assert ds.checkout(None).schema.equals(ds.schema)
