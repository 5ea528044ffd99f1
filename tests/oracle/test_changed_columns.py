"""Columns computed, dropped and renamed in twins of one table, ours and pylance's."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.committer import read_transaction
from lance_stream.dataset.opening import open_table
from lance_stream.table.operations import Operation
from tests.oracle.test_upserts import Twins, rows

pytestmark = pytest.mark.oracle

PLACE = pa.array([{"city": f"c{each}", "zip": each} for each in range(20)])


def twins_of(path: Path, version: str = "2.2", **options: Any) -> Twins:
    """Return twins of three fragments, one with dead rows."""
    table = rows(range(20), 0).append_column("place", PLACE)
    twins = Twins(path, table, data_storage_version=version, **options)
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).delete("id IN (3, 4, 5)")
    return twins


def operation(uri: str) -> Operation:
    table = open_table(uri)
    transaction = read_transaction(table.log, table.manifest)
    assert transaction is not None
    return transaction.operation


def check_same(twins: Twins) -> None:
    """The twins agree in rows, ids, stamps, schema and kind of operation."""
    twins.check()
    assert open_table(twins.ours).schema == open_table(twins.theirs).schema
    assert type(operation(twins.ours)) is type(operation(twins.theirs))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_history_of_columns(tmp_path: Path, version: str) -> None:
    twins = twins_of(tmp_path, version)
    ours = lance_stream.open_dataset(twins.ours)
    ours = ours.add_columns({"y": "id * 2"})
    lance.dataset(twins.theirs).add_columns({"y": "id * 2"})
    check_same(twins)
    ours = ours.drop_columns(["x"])
    lance.dataset(twins.theirs).drop_columns(["x"])
    check_same(twins)
    ours = ours.rename_columns({"group": "team", "place.zip": "code"})
    lance.dataset(twins.theirs).alter_columns(
        {"path": "group", "name": "team"}, {"path": "place.zip", "name": "code"}
    )
    check_same(twins)
    ours = ours.drop_columns(["place.city", "y"])
    lance.dataset(twins.theirs).drop_columns(["place.city", "y"])
    check_same(twins)
    new = pa.table({"id": [90], "team": ["t"], "place": [{"code": 7}]}, ours.schema)
    ours.append(new)
    lance.dataset(twins.theirs).insert(new)
    check_same(twins)
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).optimize.compact_files()
    check_same(twins)


def test_every_row_that_gets_a_value_was_updated(tmp_path: Path) -> None:
    twins = twins_of(tmp_path)
    before = lance_stream.open_dataset(twins.ours)
    after = before.add_columns({"y": "x + 1", "loud": "`group` = 'g1'"})
    lance.dataset(twins.theirs).add_columns({"y": "x + 1", "loud": "`group` = 'g1'"})
    check_same(twins)
    delta = lance.dataset(twins.ours).delta(begin_version=2, end_version=3)
    theirs = pa.Table.from_batches(delta.get_updated_rows())
    feed = after.changes(2).read_all()
    changed = feed.filter(pa.compute.equal(feed["_change_type"], "update_postimage"))
    assert sorted(changed["y"].to_pylist()) == sorted(theirs["y"].to_pylist())
    assert changed.num_rows == 17


def test_indices_follow_renamed_columns(tmp_path: Path) -> None:
    twins = twins_of(tmp_path)
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance_stream.open_dataset(twins.ours).rename_columns({"id": "key"})
    lance.dataset(twins.theirs).alter_columns({"path": "id", "name": "key"})
    check_same(twins)
    ds = lance.dataset(twins.ours)
    assert [each["fields"] for each in ds.list_indices()] == [["key"]]
    assert ds.to_table(filter="key = 7").num_rows == 1


def test_what_the_reference_did_with_columns_is_read_by_our_feed(tmp_path: Path) -> None:
    twins = twins_of(tmp_path)
    theirs = lance.dataset(twins.ours)
    theirs.alter_columns({"path": "group", "name": "team"})
    theirs.add_columns({"y": "id * 2"})
    theirs.drop_columns(["place"])
    feed = lance_stream.open_dataset(twins.ours).changes(2).read_all()
    assert set(feed["_commit_version"].to_pylist()) == {4}
    posts = feed.filter(pa.compute.equal(feed["_change_type"], "update_postimage"))
    assert posts["y"].to_pylist() == [2 * each for each in posts["id"].to_pylist()]
    pres = feed.filter(pa.compute.equal(feed["_change_type"], "update_preimage"))
    assert pres["y"].null_count == pres.num_rows == 17
    assert set(pres["team"].to_pylist()) == {"g0", "g1", "g2"}


def test_the_reference_writes_on(tmp_path: Path) -> None:
    twins = twins_of(tmp_path)
    ours = lance_stream.open_dataset(twins.ours).add_columns({"y": "id * 2"})
    ours.drop_columns(["x"]).rename_columns({"y": "double"})
    ds = lance.dataset(twins.ours)
    ds.update({"double": "0"}, where="id = 9")
    ds.merge_insert("id").when_matched_update_all().execute(
        pa.table({"id": [8], "group": ["g"], "place": PLACE.take([0]), "double": [-1]})
    )
    ds = lance.dataset(twins.ours)
    ds.optimize.compact_files()
    ds = lance.dataset(twins.ours)
    ds.validate()
    found = ds.to_table(columns=["id", "double"]).to_pydict()
    assert dict(zip(found["id"], found["double"], strict=True)) == {
        each: {9: 0, 8: -1}.get(each, 2 * each) for each in range(20) if each not in (3, 4, 5)
    }


def test_a_stale_writer_of_theirs_follows_a_drop_and_not_values(tmp_path: Path) -> None:
    twins = twins_of(tmp_path)
    stale = lance.dataset(twins.ours)
    lance_stream.open_dataset(twins.ours).drop_columns(["x"])
    stale.delete("id = 0")
    assert lance.dataset(twins.ours).to_table().column_names == ["id", "group", "place"]
    stale = lance.dataset(twins.ours)
    lance_stream.open_dataset(twins.ours).add_columns({"y": "id"})
    stale.delete("id = 1")  # is tried again by itself
    found = lance.dataset(twins.ours).to_table()
    assert found["y"].to_pylist() == found["id"].to_pylist()
    assert 1 not in found["id"].to_pylist()
