"""Columns computed, dropped and renamed in twins of one table, ours and pylance's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.committer import read_transaction
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.operations.operation import Operation
from tests.oracle.test_upserts import Twins, rows
from tests.verbs.columns.test_add_columns import in_the_way

pytestmark = pytest.mark.oracle

CITIES = pa.array([{"city": f"c{number}", "zip": number} for number in range(20)])


def twins_of(path: Path, version: str = "2.2", **options: Any) -> Twins:
    """Return twins of three fragments, one with deleted rows."""
    table = rows(range(20), 0).append_column("place", CITIES)
    twins = Twins(path, table, data_storage_version=version, **options)
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).delete("id IN (3, 4, 5)")
    return twins


def operation(uri: str) -> Operation:
    table = open_newest(uri)
    transaction = read_transaction(table.log, table.manifest)
    assert transaction is not None
    return transaction.operation


def check_same(twins: Twins) -> None:
    """The twins agree in rows, ids, stamps, schema and kind of operation."""
    twins.check()
    assert open_newest(twins.ours).schema == open_newest(twins.theirs).schema
    assert type(operation(twins.ours)) is type(operation(twins.theirs))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_column_changes_are_followed_in_sequence(tmp_path: Path, version: str) -> None:
    """Each change builds on field ids and files of the one before."""
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


def test_rows_that_get_values_are_updates(tmp_path: Path) -> None:
    """pylance's delta reports them as updated, and so must the feed."""
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
    """Indices refer to field ids, so a rename must not lose them."""
    twins = twins_of(tmp_path)
    for uri in (twins.ours, twins.theirs):
        lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance_stream.open_dataset(twins.ours).rename_columns({"id": "key"})
    lance.dataset(twins.theirs).alter_columns({"path": "id", "name": "key"})
    check_same(twins)
    ds = lance.dataset(twins.ours)
    assert [index["fields"] for index in ds.list_indices()] == [["key"]]
    assert ds.to_table(filter="key = 7").num_rows == 1


def test_our_feed_reads_pylances_column_changes(tmp_path: Path) -> None:
    """Renames and dropped columns must not show as changes of rows."""
    twins = twins_of(tmp_path)
    theirs = lance.dataset(twins.ours)
    theirs.alter_columns({"path": "group", "name": "team"})
    theirs.add_columns({"y": "id * 2"})
    theirs.drop_columns(["place"])
    feed = lance_stream.open_dataset(twins.ours).changes(2).read_all()
    assert set(feed["_commit_version"].to_pylist()) == {4}
    posts = feed.filter(pa.compute.equal(feed["_change_type"], "update_postimage"))
    assert posts["y"].to_pylist() == [2 * id_ for id_ in posts["id"].to_pylist()]
    pres = feed.filter(pa.compute.equal(feed["_change_type"], "update_preimage"))
    assert pres["y"].null_count == pres.num_rows == 17
    assert set(pres["team"].to_pylist()) == {"g0", "g1", "g2"}


def test_pylance_continues_our_column_changes(tmp_path: Path) -> None:
    """pylance must accept the schema and files that column changes leave."""
    twins = twins_of(tmp_path)
    ours = lance_stream.open_dataset(twins.ours).add_columns({"y": "id * 2"})
    ours.drop_columns(["x"]).rename_columns({"y": "double"})
    ds = lance.dataset(twins.ours)
    ds.update({"double": "0"}, where="id = 9")
    ds.merge_insert("id").when_matched_update_all().execute(
        pa.table({"id": [8], "group": ["g"], "place": CITIES.take([0]), "double": [-1]})
    )
    ds = lance.dataset(twins.ours)
    ds.optimize.compact_files()
    ds = lance.dataset(twins.ours)
    ds.validate()
    columns = ds.to_table(columns=["id", "double"]).to_pydict()
    assert dict(zip(columns["id"], columns["double"], strict=True)) == {
        number: {9: 0, 8: -1}.get(number, 2 * number)
        for number in range(20)
        if number not in (3, 4, 5)
    }


def test_pylance_rebases_on_column_changes(tmp_path: Path) -> None:
    """A delete follows a dropped column, and is planned again when a column got values."""
    twins = twins_of(tmp_path)
    stale = lance.dataset(twins.ours)
    lance_stream.open_dataset(twins.ours).drop_columns(["x"])
    stale.delete("id = 0")
    assert lance.dataset(twins.ours).to_table().column_names == ["id", "group", "place"]
    stale = lance.dataset(twins.ours)
    lance_stream.open_dataset(twins.ours).add_columns({"y": "id"})
    stale.delete("id = 1")  # is tried again by itself
    table = lance.dataset(twins.ours).to_table()
    assert table["y"].to_pylist() == table["id"].to_pylist()
    assert 1 not in table["id"].to_pylist()


def test_updates_drop_files_without_columns(tmp_path: Path) -> None:
    """pylance calls a table corrupt that names a file without a column in use."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, pa.table({"id": [1, 2], "x": [3, 4]}))
    ds = ds.drop_columns("x").add_columns({"double": "id * 2"})
    ds.update({"id": "id + 10"})
    lance.dataset(uri).validate()
    assert lance.dataset(uri).to_table().to_pydict() == {"id": [11, 12], "double": [2, 4]}


def test_rebased_updates_restore_no_dropped_columns(tmp_path: Path) -> None:
    """pylance drops a column, with its file, after the update has been planned."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, pa.table({"id": [1, 2], "x": [3, 4]}))
    ds = ds.add_columns({"double": "id * 2"})
    beaten = in_the_way(ds, lambda: lance.dataset(uri).drop_columns(["double"]))
    beaten.update({"x": "x + 10"})
    lance.dataset(uri).validate()
    assert lance.dataset(uri).to_table().to_pydict() == {"id": [1, 2], "x": [13, 14]}


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("make_list", [pa.list_, pa.large_list])
def test_casts_within_lists_write_separate_files(
    tmp_path: Path, version: str, make_list: Callable[[pa.DataType], pa.DataType]
) -> None:
    """The cast field goes to a new file, while its siblings stay in the old one."""
    items = make_list(pa.struct([("a", pa.float64()), ("d", pa.string())]))
    points = [
        [{"a": 1.5, "d": "x"}, None],
        None,
        [],
        [{"a": None, "d": "y"}, {"a": 2.5, "d": None}],
    ]
    table = pa.table({"id": range(4), "points": pa.array(points, items)})
    uri = str(tmp_path / "t")
    theirs = lance.write_dataset(
        table, uri, data_storage_version=version, enable_stable_row_ids=True
    )
    theirs.delete("id = 2")
    theirs.alter_columns({"path": "points.item.a", "data_type": pa.float32()})
    assert len(theirs.get_fragments()[0].metadata.files) == 2
    # pylance itself reads this in some runs, and in others says that a column is missing
    expected = {"id": [0, 1, 3], "points": [*points[:2], points[3]]}

    ours = lance_stream.open_dataset(uri)
    assert ours.to_table().to_pydict() == expected
    assert ours.to_table(columns=["points"], filter="id > 0").to_pydict()["points"] == [
        None,
        points[3],
    ]
    assert ours.take(row_offsets=[2])["points"].to_pylist() == [points[3]]
    assert ours.changes(0).read_all().num_rows
    compacted = ours.update({"id": "id + 10"}, "id = 3").compact()
    assert sorted(compacted.to_table()["points"].to_pylist(), key=str) == sorted(
        expected["points"], key=str
    )
    assert compacted.verify() == []
    assert lance.dataset(uri).to_table().to_pydict() == compacted.to_table().to_pydict()
