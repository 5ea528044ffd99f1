"""Adding columns without values: no file is written, and repeating it changes nothing."""

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.verbs.columns.add_columns import add_columns, add_missing_columns
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
PRICE = pa.field("price", pa.float64())


@pytest.fixture
def ds() -> Dataset:
    """Six rows in two fragments."""
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    for ids in ([0, 1, 2], [3, 4, 5]):
        table = table.append(pa.table({"id": ids, "name": [f"n{id_}" for id_ in ids]}))
    return table


def in_the_way(ds: Dataset, before_publishing: Any, times: int = 1) -> Dataset:
    """Return the table through a store that lets another writer publish first, so many times."""
    remaining = [times]

    def before(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/") and remaining[0]:
            remaining[0] -= 1
            before_publishing()

    store = WatchedStore(ds.table.store, before=before)
    return Dataset(replace(ds.table, store=store, log=ObjectStoreLog(store)))


def test_existing_rows_read_null(ds: Dataset) -> None:
    """They keep their row ids and versions, and the feed has no change."""
    before = ds.to_table(with_row_id=True, with_row_versions=True)
    added = ds.add_columns(PRICE)
    assert added.version == ds.version + 1
    assert added.schema.equals(SCHEMA.append(PRICE))
    after = added.to_table(with_row_id=True, with_row_versions=True)
    assert after["price"].null_count == 6
    assert after.drop_columns("price").equals(before)
    assert added.verify() == []
    assert added.changes(ds.version).read_all().num_rows == 0


@pytest.mark.floors
def test_later_rows_have_values(ds: Dataset) -> None:
    """Appends and upserts must fill a column that older files lack, and leave its nulls in
    untouched rows.
    """
    added = ds.add_columns(PRICE).append(pa.table({"id": [6], "name": ["n6"], "price": [1.5]}))
    added = added.upsert(pa.table({"id": [0], "price": [2.5]}), on=["id"])
    assert dict(zip(*added.to_table(["id", "price"]).to_pydict().values(), strict=True)) == {
        **dict.fromkeys(range(1, 6)),
        6: 1.5,
        0: 2.5,
    }
    assert added.verify() == []


def test_no_data_file_is_touched(ds: Dataset) -> None:
    """A column of nulls is a change of metadata only, at any size of table."""
    store = WatchedStore(ds.table.store)
    add_columns(replace(ds.table, store=store, log=ObjectStoreLog(store)), pa.schema([PRICE]))
    assert store.calls
    assert not [path for _, path in store.calls if path.startswith("data/")]


def test_new_nested_columns_get_new_ids(ds: Dataset) -> None:
    """Each part of a nested column needs its own field id, by which data files name what they
    contain.
    """
    added = ds.add_columns(
        [
            pa.field("place", pa.struct([pa.field("x", pa.int64(), False), ("y", pa.string())])),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("vector", pa.list_(pa.float32(), 4)),
        ]
    )
    assert [field.id for field in added.table.schema.walk()] == list(range(8))
    added = added.append(
        pa.table(
            {
                "id": [6, 7],
                "name": [None, "n"],
                "place": [{"x": 1, "y": "a"}, None],
                "tags": [["a"], []],
                "vector": pa.array([[1.0, 2, 3, 4], None], pa.list_(pa.float32(), 4)),
            }
        )
    )
    got = added.to_table(["place", "tags", "vector"]).to_pylist()
    assert got[:6] == [{"place": None, "tags": None, "vector": None}] * 6
    assert got[6]["place"] == {"x": 1, "y": "a"}
    assert added.verify() == []


def test_existing_columns_stay_unchanged(ds: Dataset) -> None:
    """A column that exists with the same type is already what the caller wants."""
    added = ds.add_columns(PRICE)
    for columns in (PRICE, [PRICE], pa.schema([PRICE, pa.field("name", pa.string())])):
        assert added.add_columns(columns).version == added.version
    more = added.add_columns(pa.schema([PRICE, ("count", pa.int32())]))
    assert more.schema.names == ["id", "name", "price", "count"]


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pa.field("price", pa.float64(), nullable=False), "'price' is not nullable"),
        (pa.field("name", pa.int64()), "already has a column 'name' of type string, not int64"),
        (pa.field("_rowid", pa.int64()), "must not be called '_rowid'"),
        (pa.field("a.b", pa.int64()), "cannot be called 'a.b'"),
        (pa.field("", pa.int64()), "cannot be called ''"),
        (
            pa.field("k", pa.int64(), metadata={"lance-schema:unenforced-primary-key": "true"}),
            "'k' is declared a primary key",
        ),
        ([], "a pyarrow.Field"),
        ("price", "a pyarrow.Field"),
        (1.0, "a pyarrow.Field"),
    ],
)
def test_invalid_columns_make_no_version(ds: Dataset, column: Any, match: str) -> None:
    """Every refusal must come before the commit, since a version with a broken schema cannot be
    repaired.
    """
    with pytest.raises(InvalidInputError, match=match):
        ds.add_columns(column)
    assert ds.checkout(None).version == ds.version


def test_version_0_1_refuses_new_columns() -> None:
    """Readers of file version 0.1 expect all columns of the schema in each file."""
    old = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/old", SCHEMA, file_version="0.1")
    with pytest.raises(InvalidInputError, match=r"version 0\.1 must hold all columns"):
        old.add_columns(PRICE)


def test_types_of_newer_files_are_refused() -> None:
    """A column that the table's file version cannot store would make every later append fail."""
    old = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/old", SCHEMA, file_version="2.1")
    with pytest.raises(InvalidInputError, match=r"version 2\.1 do not support maps"):
        old.add_columns(pa.field("m", pa.map_(pa.string(), pa.int64())))


def test_concurrently_appended_rows_read_null(ds: Dataset) -> None:
    """Rows appended during the change lack the column and must not be lost to the retry."""
    watched = in_the_way(ds, lambda: ds.append(pa.table({"id": [6], "name": ["late"]})), times=2)
    added = watched.add_columns(PRICE)
    assert added.version == ds.version + 3
    assert added.to_table(["id", "price"]).to_pydict() == {
        "id": [0, 1, 2, 3, 4, 5, 6, 6],
        "price": [None] * 8,
    }


def test_concurrent_additions_of_a_column_agree(ds: Dataset) -> None:
    """Two sinks that meet the same new column must not fail each other, and one version is
    enough.
    """
    added = in_the_way(ds, lambda: ds.add_columns(PRICE)).add_columns(PRICE)
    assert added.version == ds.version + 1
    assert added.schema.names == ["id", "name", "price"]


@pytest.mark.floors
def test_concurrent_additions_of_different_types_conflict(ds: Dataset) -> None:
    """The later writer's values do not fit the column that the earlier one created."""
    watched = in_the_way(ds, lambda: ds.add_columns(pa.field("price", pa.string())))
    with pytest.raises(InvalidInputError, match="of type string, not double"):
        watched.add_columns(PRICE)


def test_concurrent_appends_follow_a_new_column(ds: Dataset) -> None:
    """Adding a column must not fail the appends that were planned before it."""
    watched = in_the_way(ds, lambda: ds.add_columns(PRICE))
    after = watched.append(pa.table({"id": [6], "name": ["n6"]}))
    assert after.version == ds.version + 2
    assert after.to_table(["id", "price"])["price"].null_count == 7
    assert after.verify() == []


def test_new_columns_of_rows_are_added(ds: Dataset) -> None:
    """Evolution adds only what is missing, as nullable columns, and leaves existing types and
    their order alone.
    """
    rows = pa.table(
        {"id": pa.array([9], pa.int32()), "price": [1.5], "name": ["x"], "note": ["new"]},
        schema=pa.schema(
            [
                ("id", pa.int32()),
                pa.field("price", pa.float64(), nullable=False),
                ("name", pa.large_string()),
                pa.field("note", pa.string(), metadata={"comment": "kept"}),
            ]
        ),
    )
    table = add_missing_columns(ds.table, rows.schema)
    assert table.version == ds.version + 1
    assert table.arrow_schema.names == ["id", "name", "price", "note"]
    assert table.arrow_schema.field("price").nullable
    assert table.arrow_schema.field("note").metadata == {b"comment": b"kept"}
    assert add_missing_columns(table, rows.schema).version == table.version
    assert Dataset(table).append(rows).to_table(["id", "price"]).to_pylist()[-1] == {
        "id": 9,
        "price": 1.5,
    }


def test_rows_may_lack_columns(ds: Dataset) -> None:
    """Rows without a nullable column are appended as nulls, so they must not stop evolution."""
    table = add_missing_columns(ds.table, pa.schema([("note", pa.string())]))
    assert table.arrow_schema.names == ["id", "name", "note"]


def test_a_source_primary_key_is_dropped(ds: Dataset) -> None:
    """The key belongs to the table that the rows come from; here the column is an ordinary one."""
    declared = {"lance-schema:unenforced-primary-key": "true", "comment": "kept"}
    table = add_missing_columns(
        ds.table, pa.schema([pa.field("k", pa.int64(), nullable=False, metadata=declared)])
    )
    assert table.schema.fields[-1].primary_key_position is None
    assert table.arrow_schema.field("k").metadata == {b"comment": b"kept"}


@pytest.mark.parametrize(
    ("incoming", "match"),
    [
        ([("id", pa.int64()), ("name", pa.int64()), ("new", pa.int64())], "'name' is int64, but"),
        ([("id", pa.float64()), ("new", pa.int64())], "'id' is double, but int64"),
        ([("id", pa.int64()), ("new", pa.null())], "'new' contains only nulls and has no type"),
        ([("id", pa.int64()), ("Name", pa.string())], "the table has 'name', and Spark does not"),
        ([("id", pa.int64()), ("new", pa.int8()), ("New", pa.int8())], "'New' is not added"),
        ([("new", pa.int64()), ("new", pa.int64())], "different names"),
        ([("new", pa.month_day_nano_interval())], "new"),
    ],
)
def test_rows_of_other_types_add_nothing(ds: Dataset, incoming: Any, match: str) -> None:
    """A column added for rows that are then refused would remain in the table for ever."""
    with pytest.raises((InvalidInputError, lance_stream.UnsupportedFeatureError)) as caught:
        add_missing_columns(ds.table, pa.schema(incoming))
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert match in text
    assert ds.checkout(None).version == ds.version


@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
def test_newer_file_versions_take_columns(file_version: str) -> None:
    """Each of these file versions permits fragments whose files lack a column."""
    uri = f"memory://{uuid.uuid4()}/table"
    ds = lance_stream.create_dataset(uri, SCHEMA, file_version=file_version)
    ds = ds.append(pa.table({"id": [1], "name": ["a"]})).add_columns(
        pa.schema([PRICE, pa.field("place", pa.struct([("x", pa.int64())]))])
    )
    ds = ds.append(pa.table({"id": [2], "price": [0.5], "place": [{"x": 1}]}))
    assert ds.to_table().to_pylist() == [
        {"id": 1, "name": "a", "price": None, "place": None},
        {"id": 2, "name": None, "price": 0.5, "place": {"x": 1}},
    ]
