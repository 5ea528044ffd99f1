"""Renaming columns: they stay the same columns."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from tests.verbs.columns.test_add_columns import in_the_way
from tests.verbs.columns.test_drop_columns import SCHEMA, rows


@pytest.fixture
def ds() -> Dataset:
    """Four rows in two fragments, with a key."""
    uri = f"memory://{uuid.uuid4()}/table"
    dataset = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"])
    return dataset.append(rows(1, 2)).append(rows(3, 4))


def test_renaming_keeps_the_rows(ds: Dataset) -> None:
    """Columns are identified by field ids, so a new name changes no row and sends nothing to
    followers.
    """
    before = ds.to_table(with_row_id=True, with_row_versions=True)
    result = ds.rename_columns({"name": "title", "id": "key"})
    assert result.version == ds.version + 1
    after = result.to_table(with_row_id=True, with_row_versions=True)
    names = {"id": "key", "name": "title"}
    assert after.equals(
        before.rename_columns([names.get(name, name) for name in before.schema.names])
    )
    assert result.changes(ds.version).read_all().num_rows == 0
    assert result.verify() == []


def test_a_renamed_key_stays_the_key(ds: Dataset) -> None:
    """The primary key is a property of the field, and upserts by the new name must find the old
    rows.
    """
    result = ds.rename_columns({"id": "key"})
    assert result.table.schema.fields[0].primary_key_position is not None
    result = result.upsert(pa.table({"key": [1, 9], "name": ["new", "nine"]}), on="key")
    assert result.to_table(["key", "name"], filter="key IN (1, 9)").num_rows == 2
    assert result.count_rows() == 5


def test_struct_fields_can_be_renamed(ds: Dataset) -> None:
    """A path leads to the field, also through lists."""
    result = ds.rename_columns({"place.city": "town", "orders.n": "count"})
    assert result.schema.field("place").type == pa.struct(
        [("town", pa.string()), ("zip", pa.int32())]
    )
    assert result.to_table()["place"].to_pylist()[0] == {"town": "c", "zip": 1}
    assert result.to_table()["orders"].to_pylist()[2] == [{"price": 1.0, "count": 3}]


def test_two_columns_can_swap_names(ds: Dataset) -> None:
    """Renames apply all at once: one after the other, the first would collide with the second."""
    result = ds.rename_columns({"id": "name", "name": "id"})
    assert result.to_table(["id", "name"]).to_pydict() == {
        "id": ["n1", "n2", "n3", "n4"],
        "name": [1, 2, 3, 4],
    }


def test_the_feed_follows_renamed_columns(ds: Dataset) -> None:
    """Versions before the rename must be read by field id and shown under the new name."""
    result = ds.rename_columns({"name": "title"}).update({"title": "'new'"}, "id = 1")
    feed = result.changes(0, columns=["title"]).read_all()
    assert feed["title"].to_pylist() == ["n1", "n2", "n3", "n4", "n1", "new"]


def test_equal_names_commit_no_version(ds: Dataset) -> None:
    """An empty version would wake every follower for nothing."""
    assert ds.rename_columns({}).version == ds.version
    assert ds.rename_columns({"name": "name"}).version == ds.version


@pytest.mark.parametrize(
    ("names", "error", "match"),
    [
        ({"nope": "a"}, NotFoundError, "no column 'nope'"),
        ({"name": "id"}, InvalidInputError, "two columns would be named 'id'"),
        ({"name": "x", "place": "x"}, InvalidInputError, "two columns would be named 'x'"),
        ({"place.city": "zip"}, InvalidInputError, "two columns would be named 'zip'"),
        ({"name": ""}, InvalidInputError, "cannot be called ''"),
        ({"name": "a.b"}, InvalidInputError, "cannot be called 'a.b'"),
        ({"name": None}, InvalidInputError, "cannot be called None"),
        ({"name": "_rowid"}, InvalidInputError, "must not be called '_rowid'"),
        ({"name": "_change_type"}, InvalidInputError, "must not be called '_change_type'"),
        ({"place.city": "a", "place.`city`": "b"}, InvalidInputError, "renamed twice"),
        (["name"], InvalidInputError, "a mapping"),
    ],
)
def test_invalid_names_change_nothing(
    ds: Dataset, names: Any, error: type[Exception], match: str
) -> None:
    """Duplicate, empty and reserved names must be refused before the commit."""
    with pytest.raises(error, match=match):
        ds.rename_columns(names)
    assert ds.checkout(None).version == ds.version


def test_renames_miss_concurrently_dropped_columns(ds: Dataset) -> None:
    """A retry on the newest schema must not resurrect the column under a new name."""

    def meanwhile() -> None:
        ds.drop_columns(["name"])

    with pytest.raises(NotFoundError, match="'name'"):
        in_the_way(ds, meanwhile).rename_columns({"name": "title"})


def test_concurrent_rows_get_the_new_name(ds: Dataset) -> None:
    """Rows appended meanwhile were written under the old name and belong to the same field id."""
    result = in_the_way(ds, lambda: ds.append(rows(5))).rename_columns({"name": "title"})
    assert result.to_table(["title"], filter="id = 5")["title"].to_pylist() == ["n5"]
