"""Dropping columns: without touching files; and the columns that cannot be dropped."""

import uuid
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.verbs.columns.drop_columns import drop_columns
from tests.contracts.watched_stores import WatchedStore
from tests.verbs.columns.test_add_columns import in_the_way

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("orders", pa.list_(pa.struct([("price", pa.float64()), ("n", pa.int32())]))),
        ("tags", pa.map_(pa.string(), pa.string())),
    ]
)


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "name": [f"n{id_}" for id_ in ids],
            "place": [{"city": "c", "zip": id_} if id_ % 2 else None for id_ in ids],
            "orders": [[{"price": 1.0, "n": id_}] for id_ in ids],
            "tags": [[("a", "b")] for _ in ids],
        },
        SCHEMA,
    )


@pytest.fixture
def ds() -> Dataset:
    """Four rows in two fragments, with a key."""
    uri = f"memory://{uuid.uuid4()}/table"
    dataset = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"])
    return dataset.append(rows(1, 2)).append(rows(3, 4))


def test_dropping_a_column_changes_no_row(ds: Dataset) -> None:
    """Row ids and versions must stay, and followers must not see updates for a change of
    metadata.
    """
    before = ds.to_table(with_row_id=True, with_row_versions=True)
    remaining = ds.drop_columns(["name", "orders"])
    assert remaining.version == ds.version + 1
    after = remaining.to_table(with_row_id=True, with_row_versions=True)
    assert after.equals(before.drop_columns(["name", "orders"]))
    assert remaining.changes(ds.version).read_all().num_rows == 0
    assert remaining.verify() == []
    assert ds.checkout(ds.version).to_table().equals(ds.to_table())


def test_a_single_name_needs_no_list(ds: Dataset) -> None:
    """A text is also a sequence of letters, which must not be taken for columns."""
    assert ds.drop_columns("name").schema.names == ["id", "place", "orders", "tags"]


def test_struct_fields_can_be_dropped(ds: Dataset) -> None:
    """Structs that are null must stay null without the field."""
    remaining = ds.drop_columns(["place.city"])
    assert remaining.to_table()["place"].to_pylist() == [{"zip": 1}, None, {"zip": 3}, None]
    assert remaining.drop_columns(["place"]).schema.names == ["id", "name", "orders", "tags"]


def test_a_dropped_struct_takes_its_fields(ds: Dataset) -> None:
    """Naming a struct and one of its fields is redundant but no contradiction."""
    assert "place" not in ds.drop_columns(["place.zip", "place"]).schema.names


def test_no_data_file_is_touched(ds: Dataset) -> None:
    """Dropping must cost one commit at any size of table."""
    store = WatchedStore(ds.table.store)
    drop_columns(replace(ds.table, store=store, log=ObjectStoreLog(store)), ["name", "place.city"])
    assert store.calls
    assert not [path for _, path in store.calls if path.startswith("data/")]


def test_compaction_removes_dropped_values(ds: Dataset) -> None:
    """Dropped data stays in the files until they are rewritten, and then it must really be gone."""
    remaining = ds.drop_columns(["name"]).compact()
    field_ids = [
        file.field_ids for fragment in remaining.table.manifest.fragments for file in fragment.files
    ]
    assert len(field_ids) == 1
    assert ds.table.schema.fields[1].id not in field_ids[0]
    assert remaining.to_table().equals(ds.to_table().drop_columns("name"))


def test_files_without_columns_leave_the_manifest(ds: Dataset) -> None:
    """A file of which no column is left would be opened and counted for nothing."""
    remaining = ds.add_columns({"double": "id * 2"}).drop_columns(["double"])
    assert [len(fragment.files) for fragment in remaining.table.manifest.fragments] == [1, 1]
    assert remaining.to_table().equals(ds.to_table())


def test_reused_field_ids_have_no_history(ds: Dataset) -> None:
    """Lance assigns the highest id again, and the feed must not show the dropped column's values
    under the new name.
    """
    first = ds.add_columns({"double": "id * 2"})
    last = first.drop_columns(["double"]).add_columns({"triple": "id * 3"})
    assert first.table.schema.fields[-1].id == last.table.schema.fields[-1].id
    feed = last.changes(first.version - 1, columns=["id", "triple"]).read_all().to_pylist()
    changes = [(row["_commit_version"] - first.version, row["id"], row["triple"]) for row in feed]
    assert [change for change in changes if change[2] is not None] == [
        (2, n, 3 * n) for n in (1, 2, 3, 4)
    ]
    assert len(changes) == 16  # two columns with values, four rows, before and after


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        (["nope"], NotFoundError, "no column 'nope'; there are: id, name"),
        (["place.nope"], NotFoundError, "no column 'nope' in 'place'"),
        (["name", "nope"], NotFoundError, "'nope'"),
        (
            ["id"],
            InvalidInputError,
            "'id' cannot be dropped because it is part of the table's primary",
        ),
        (["orders.price", "orders.n"], InvalidInputError, "drop it as a whole"),
        (["tags.key"], NotFoundError, "'key' in 'tags'"),
        (
            ["place.city", "place.zip"],
            InvalidInputError,
            "the struct 'place' .*; drop it as a whole",
        ),
        (["_rowid"], NotFoundError, "'_rowid'"),
    ],
)
def test_invalid_drops_make_no_version(
    ds: Dataset, columns: Any, error: type[Exception], match: str
) -> None:
    """Keys, unknown names and the last field of a struct must be refused before the commit."""
    with pytest.raises(error, match=match):
        ds.drop_columns(columns)
    assert ds.checkout(None).version == ds.version


def test_the_last_column_cannot_be_dropped() -> None:
    """A table without columns cannot count its rows."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", pa.schema([("a", pa.int64()), ("b", pa.int64())])
    )
    with pytest.raises(InvalidInputError, match="the table would have no column left; keep one"):
        dataset.drop_columns(["a", "b"])


def test_dropping_no_column_makes_no_version(ds: Dataset) -> None:
    """An empty version would wake every follower for nothing."""
    assert ds.drop_columns([]).version == ds.version


def test_columns_of_tombstones_cannot_be_dropped() -> None:
    """Remembered deletes refer to these columns until they are removed."""
    schema = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("gone", pa.bool_())])
    result = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    for is_delete in (False, True):
        result = result.upsert(
            pa.table({"k": [1], "seq": [1 + is_delete], "gone": [is_delete]}),
            on="k",
            sequence_by="seq",
            delete_when="gone",
            tombstones="7 days",
        )
    for column in ("k", "seq"):
        with pytest.raises(InvalidInputError, match="with the columns 'k', 'seq'"):
            result.drop_columns([column])
        with pytest.raises(InvalidInputError, match="cannot be renamed"):
            result.rename_columns({column: "other"})
    result = result.drop_columns(["gone"]).update_config({"lance_stream.tombstones": None})
    assert result.drop_columns(["seq"]).schema.names == ["k"]


@pytest.mark.oracle
def test_indexed_columns_cannot_be_dropped(tmp_path: Any) -> None:
    """An index without its column makes the dataset unreadable for Lance."""
    theirs = lance.write_dataset(pa.table({"id": [1, 2], "x": [1, 2]}), tmp_path / "t")
    theirs.create_scalar_index("x", "BTREE")
    ds = lance_stream.open_dataset(theirs.uri)
    with pytest.raises(InvalidInputError, match="the index 'x_idx' is on it; drop the index first"):
        ds.drop_columns(["x"])
    ds.drop_columns(["id"])
    theirs.checkout_latest()
    assert theirs.to_table(filter="x = 2").num_rows == 1


@pytest.mark.oracle
def test_concurrently_indexed_columns_stay(tmp_path: Any) -> None:
    """The index may appear between plan and commit, so the check is repeated on the newest
    version.
    """
    theirs = lance.write_dataset(pa.table({"id": [1, 2], "x": [1, 2]}), tmp_path / "t")
    ds = lance_stream.open_dataset(theirs.uri)
    with pytest.raises(InvalidInputError, match="the index 'x_idx' is on it"):
        in_the_way(ds, lambda: theirs.create_scalar_index("x", "BTREE")).drop_columns(["x"])


def test_concurrent_rows_and_columns_stay(ds: Dataset) -> None:
    """The new schema is derived from the newest version, not from the one that was read first."""

    def meanwhile() -> None:
        ds.append(rows(5)).add_columns(pa.field("price", pa.float64())).delete("id = 1")

    remaining = in_the_way(ds, meanwhile).drop_columns(["name"])
    assert remaining.schema.names == ["id", "place", "orders", "tags", "price"]
    assert remaining.to_table()["id"].to_pylist() == [2, 3, 4, 5]


def test_two_columns_can_be_dropped_concurrently(ds: Dataset) -> None:
    """Neither writer may bring back the column that the other has dropped."""
    remaining = in_the_way(ds, lambda: ds.drop_columns(["tags"])).drop_columns(["name"])
    assert remaining.schema.names == ["id", "place", "orders"]


def test_concurrent_renames_survive_a_drop(ds: Dataset) -> None:
    """Writing back the schema that was read first would undo the rename."""

    def meanwhile() -> None:
        ds.rename_columns({"tags": "labels"})

    remaining = in_the_way(ds, meanwhile).drop_columns(["name"])
    assert remaining.schema.names == ["id", "place", "orders", "labels"]
