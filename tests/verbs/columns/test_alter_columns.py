"""Altering columns: wider types, nullability, names."""

import datetime
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import ColumnsChangedError, Dataset, InvalidInputError, NotFoundError
from lance_stream.errors import CommitError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.verbs.append import append_fragments, write_input
from tests.verbs.columns.test_add_columns import in_the_way

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("n", pa.int16()),
        ("name", pa.string()),
        ("place", pa.struct([("zip", pa.int32()), ("city", pa.string())])),
        ("orders", pa.list_(pa.struct([("price", pa.float32()), ("n", pa.int8())]))),
    ]
)
WIDER: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "n": pa.decimal128(7, 2),
    "name": pa.large_string(),
    "place.zip": pa.int64(),
    "orders.price": pa.float64(),
}
ALL = [{"path": path, "data_type": wider} for path, wider in WIDER.items()]


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "n": [id_ if id_ % 3 else None for id_ in ids],
            "name": [f"n{id_}" for id_ in ids],
            "place": [{"zip": id_, "city": "c"} if id_ % 4 else None for id_ in ids],
            "orders": [[{"price": id_ / 2, "n": 1}] * (id_ % 3) for id_ in ids],
        },
        SCHEMA,
    )


def incoming_rows(*ids: int, **columns: Any) -> pa.Table:
    """Return rows with some of the columns, in the types that the table is created with."""
    return pa.table({"id": pa.array(ids, pa.int32()), **columns})


def create(version: str = "2.2", **options: Any) -> Dataset:
    """Seven rows in two fragments; one row of the first is deleted."""
    uri = f"memory://{uuid.uuid4()}/table"
    dataset = lance_stream.create_dataset(uri, SCHEMA, file_version=version, **options)
    return dataset.append(rows(1, 2, 3, 4)).append(rows(5, 6, 7, 8)).delete("id = 2")


@pytest.fixture
def ds() -> Dataset:
    return create()


def data_files(ds: Dataset) -> set[str]:
    return set(ds.table.store.list_names("data"))


def values(ds: Dataset) -> list[dict[str, Any]]:
    return ds.to_table().to_pylist()


@pytest.mark.floors
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_widening_types_keeps_all_values(version: str) -> None:
    """A cast rewrites columns, also nested ones, and every value must be the same number
    afterwards.
    """
    ds = create(version) if version != "2.0" else create_without_null_structs()
    result = ds.alter_columns(*ALL)
    assert result.version == ds.version + 1
    assert values(result) == values(ds)
    kinds = {field.name: field.type for field in result.schema}
    assert kinds["id"] == pa.int64()
    assert kinds["n"] == pa.decimal128(7, 2)
    assert kinds["place"].field("zip").type == pa.int64()
    assert kinds["orders"].value_type.field("price").type == pa.float64()
    assert not result.schema.field("id").nullable
    assert result.verify() == []
    assert result.append(rows(9)).compact().to_table(filter="id = 9").num_rows == 1


def create_without_null_structs() -> Dataset:
    uri = f"memory://{uuid.uuid4()}/table"
    dataset = lance_stream.create_dataset(uri, SCHEMA, file_version="2.0")
    return dataset.append(rows(1, 2, 3)).append(rows(5, 6, 7)).delete("id = 2")


def test_only_the_cast_columns_are_written(ds: Dataset) -> None:
    """A part of a struct is rewritten alone, a part of a list together with its list."""
    before = data_files(ds)
    result = ds.alter_columns({"path": "place.zip", "data_type": pa.int64()})
    assert len(data_files(result) - before) == 2  # one a fragment
    fields = result.table.schema.fields
    assert [fragment.files[-1].field_ids for fragment in result.table.manifest.fragments] == [
        (10,),
        (10,),
    ]
    assert fields[3].id == ds.table.schema.fields[3].id
    result = result.alter_columns({"path": "orders.price", "data_type": pa.float64()})
    assert result.table.manifest.fragments[0].files[-1].field_ids == (13, 14)
    assert values(result) == values(ds)


def test_the_feed_continues_across_a_cast(ds: Dataset) -> None:
    """Followers must receive old and new images in the wider types, and older versions must stay
    readable in theirs.
    """
    result = ds.alter_columns(*ALL)
    feed = result.changes(ds.version, pre_images=True).read_all().to_pylist()
    posts = [row for row in feed if row["_change_type"] == "update_postimage"]
    pres = [row for row in feed if row["_change_type"] == "update_preimage"]
    names = result.schema.names
    assert [{k: post[k] for k in names} for post in posts] == values(result)
    assert [{k: pre[k] for k in names} for pre in pres] == values(ds)
    whole = result.append(rows(9)).changes(0)
    assert whole.schema.field("id").type == pa.int64()
    inserts = [e for e in whole.read_all().to_pylist() if e["_change_type"] == "insert"]
    assert [insert["id"] for insert in inserts] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    old = lance_stream.open_dataset(ds.uri, version=ds.version)
    assert old.schema.field("id").type == pa.int32()
    assert values(old) == values(ds)


def test_altering_to_equal_types_changes_nothing(ds: Dataset) -> None:
    """A job that states its columns at each start must not rewrite the table each time."""
    result = ds.alter_columns(*ALL)
    assert result.alter_columns(*ALL).version == result.version
    assert (
        result.alter_columns({"path": "n", "nullable": True, "name": "n"}).version == result.version
    )


@pytest.mark.parametrize(
    ("path", "lossy"),
    [
        ("id", pa.int16()),
        ("id", pa.float32()),
        ("name", pa.int64()),
        ("n", pa.uint16()),
        ("place.zip", pa.string()),
        ("orders", pa.list_(pa.int8())),
        ("place", pa.struct([("zip", pa.int64())])),
    ],
)
def test_lossy_casts_are_refused(ds: Dataset, path: str, lossy: pa.DataType) -> None:
    """A narrower type could lose values, and refusal must come before any file is written."""
    before = data_files(ds)
    with pytest.raises(InvalidInputError, match="cannot hold all of its values"):
        ds.alter_columns({"path": path, "data_type": lossy})
    assert data_files(ds) == before


def test_lossy_casts_are_possible_by_expression(ds: Dataset) -> None:
    """The error message recommends these three verbs, so they must lead to the intended column."""
    result = ds.add_columns({"new": "CAST(id AS string)"}).drop_columns("n")
    result = result.rename_columns({"new": "n"})
    assert result.schema.field("n").type == pa.string()
    assert result.to_table()["n"].to_pylist() == ["1", "3", "4", "5", "6", "7", "8"]


def test_dates_beyond_timestamps_are_refused(ds: Dataset) -> None:
    """Some dates overflow a timestamp, which only the values can show; live rows alone decide."""
    days = incoming_rows(9, day=pa.array([2**31 - 1], pa.date32()))
    ds = ds.add_columns(pa.field("day", pa.date32())).append(days)
    before = data_files(ds)
    with pytest.raises(InvalidInputError, match="'day' contains a value that does not fit"):
        ds.alter_columns({"path": "day", "data_type": pa.timestamp("us")})
    assert data_files(ds) == before
    result = ds.delete("id = 9").alter_columns({"path": "day", "data_type": pa.timestamp("us")})
    result = result.append(incoming_rows(9, day=[datetime.date(2000, 1, 1)]))
    assert result.to_table()["day"].to_pylist()[-1] == datetime.datetime(2000, 1, 1)


@pytest.mark.floors
def test_nullability_changes_no_row(ds: Dataset) -> None:
    """Nullability is metadata: no file, row or change may result from it, yet later appends must
    obey it.
    """
    before, files = values(ds), data_files(ds)
    result = ds.alter_columns(
        {"path": "name", "nullable": False},
        {"path": "place.city", "nullable": False},
        {"path": "id", "nullable": True},
    )
    assert not result.schema.field("name").nullable
    assert not result.schema.field("place").type.field("city").nullable
    assert result.schema.field("id").nullable
    assert values(result) == before
    assert data_files(result) == files
    assert result.changes(ds.version).read_all().num_rows == 0
    with pytest.raises(InvalidInputError, match="must not be null"):
        result.append(incoming_rows(9, name=pa.nulls(1, pa.string())))
    assert result.verify() == []


@pytest.mark.parametrize("path", ["n", "place", "orders.n"])
def test_columns_with_nulls_stay_nullable(ds: Dataset, path: str) -> None:
    """Readers trust a non-nullable column and may crash or miscount on a null; deleted rows do
    not count.
    """
    orders = pa.array([[{"price": 1.0, "n": None}]], SCHEMA.field("orders").type)
    ds = ds.append(incoming_rows(9, orders=orders))
    with pytest.raises(InvalidInputError, match="some rows are null in it"):
        ds.alter_columns({"path": path, "nullable": False})
    result = ds.delete("n IS NULL" if path == "n" else "place IS NULL")
    assert result.alter_columns({"path": path, "nullable": False}).verify() == []


def test_deleted_rows_do_not_count() -> None:
    """Deleted rows must neither keep a column nullable nor be cast."""
    ds = create().delete("n IS NULL").alter_columns({"path": "n", "nullable": False})
    result = ds.alter_columns({"path": "n", "data_type": pa.int64()})
    assert result.to_table()["n"].to_pylist() == [1, 4, 5, 7, 8]
    assert result.schema.field("n") == pa.field("n", pa.int64(), nullable=False)
    assert result.verify() == []


def test_types_and_names_change_together(ds: Dataset) -> None:
    """A user who renames and casts in one call expects one version and a feed that follows both."""
    result = ds.alter_columns(
        {"path": "id", "name": "key", "data_type": pa.int64()},
        {"path": "place.city", "name": "town"},
        {"path": "name", "nullable": False},
    )
    assert result.version == ds.version + 1
    assert result.schema.names == ["key", "n", "name", "place", "orders"]
    assert [value["key"] for value in values(result)] == [1, 3, 4, 5, 6, 7, 8]
    feed = result.changes(0).read_all()
    assert feed["key"].null_count == 0  # also of versions in which it was called id


def test_columns_must_stay_identifiable(ds: Dataset) -> None:
    """With both name and type changed for several columns, nothing tells which old column became
    which.
    """
    with pytest.raises(InvalidInputError, match="rename them in a second call"):
        ds.alter_columns(
            {"path": "id", "name": "key", "data_type": pa.int64()},
            {"path": "n", "name": "number", "data_type": pa.int64()},
        )


@pytest.mark.parametrize(
    ("alterations", "message"),
    [
        ([], "pass at least one alteration"),
        (["id"], "as a mapping"),
        ([{"path": "id"}], "at least one change"),
        ([{"name": "x"}], "at least one change"),
        ([{"path": "id", "type": "x"}], "unknown property 'type'; .*: alter_columns"),
        ([{"path": "id", "nullable": "no"}], "must be a bool"),
        ([{"path": "id", "data_type": "int64"}], "must be a DataType"),
        ([{"path": "id", "name": ""}], "name"),
        ([{"path": "id", "name": "n"}], "two columns would be named"),
        ([{"path": "n", "name": "a"}, {"path": "n", "name": "b"}], "altered twice"),
    ],
)
def test_unclear_alterations_are_refused(ds: Dataset, alterations: Any, message: str) -> None:
    """A misspelt or missing key would otherwise be ignored, and the column stay as it was."""
    with pytest.raises(InvalidInputError, match=message):
        ds.alter_columns(*alterations)
    with pytest.raises(NotFoundError):
        ds.alter_columns({"path": "missing", "nullable": True})


def test_extension_types_and_blobs_stay() -> None:
    """These columns cannot be cast, which must not prevent altering the others."""
    extension = {"ARROW:extension:name": "my.type"}
    struct = pa.struct([pa.field("e", pa.int32(), metadata=extension), ("zip", pa.int32())])
    schema = pa.schema([("place", struct)])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    ds = ds.append(pa.table({"place": [{"e": 1, "zip": 2}]}, schema))
    with pytest.raises(InvalidInputError, match="blob or has an extension type"):
        ds.alter_columns({"path": "place.e", "data_type": pa.int64()})
    result = ds.alter_columns({"path": "place.zip", "data_type": pa.int64()})
    assert values(result) == [{"place": {"e": 1, "zip": 2}}]
    assert result.schema.field("place").type.field("e").metadata


# --- keys


def test_wider_keys_are_the_same_keys() -> None:
    """Bounds and index learned for narrow keys must still find the rows, and the key stays non-
    nullable.
    """
    ds = create(primary_key=["id"])
    ds = ds.upsert(rows(1, 10), on="id")  # learns the bounds of files
    result = ds.alter_columns({"path": "id", "data_type": pa.int64()})
    assert result.table.schema.fields[0].primary_key_position is not None
    result = result.upsert(rows(3, 11), on="id")
    big = pa.table({"id": [2**40, 5], "name": ["big", "five"]})
    result = result.upsert(big, on="id")
    ids = result.to_table()["id"].to_pylist()
    assert sorted(ids) == [1, 3, 4, 5, 6, 7, 8, 10, 11, 2**40]
    assert result.to_table(filter="id = 5")["name"].to_pylist() == ["five"]
    with pytest.raises(InvalidInputError, match="in the table's primary key"):
        result.alter_columns({"path": "id", "nullable": True})


def test_remembered_deletes_apply_to_wider_keys() -> None:
    """A tombstone kept in the narrow type must still stop a late row whose key has the wider
    one.
    """
    ds = create()
    options: dict[str, Any] = {"on": "id", "sequence_by": "n"}
    ds = ds.upsert(
        incoming_rows(1, n=pa.array([50], pa.int16()), gone=[True]),
        delete_when="gone",
        except_columns=["gone"],
        tombstones="7 days",
        **options,
    )
    result = ds.alter_columns(
        {"path": "id", "data_type": pa.int64()}, {"path": "n", "data_type": pa.int64()}
    )
    result = result.upsert(pa.table({"id": [1], "n": [49]}), **options)
    assert result.to_table(filter="id = 1").num_rows == 0
    result = result.upsert(pa.table({"id": [1], "n": [2**40]}), **options)
    assert result.to_table(filter="id = 1")["n"].to_pylist() == [2**40]
    with pytest.raises(InvalidInputError, match="with the columns 'id', 'n'"):
        result.alter_columns({"path": "id", "name": "key"})


# --- other writers


def test_appends_are_rewritten_after_a_cast(ds: Dataset) -> None:
    """The files have the old type, which the new schema does not describe."""
    watched = in_the_way(ds, lambda: ds.alter_columns(*ALL))
    result = watched.append(rows(9))
    assert values(result)[-1] == values(ds.append(rows(9)))[-1]
    assert result.count_rows() == 8


@pytest.mark.parametrize("path", ["id", "place.zip", "orders.price"])
def test_rows_predating_casts_are_refused(ds: Dataset, path: str) -> None:
    """Their files have columns that no reader would look at, so the caller has to write them
    again.
    """
    fragments = write_input(ds.table, rows(9))
    result = ds.alter_columns({"path": path, "data_type": WIDER[path]})
    before = data_files(result)
    with pytest.raises(ColumnsChangedError, match="or cast, while the rows were written"):
        append_fragments(ds.table, fragments)
    assert len(before - data_files(result)) == 1  # the file is gone
    batch = PendingBatch.of("app", 1)
    with pytest.raises(ColumnsChangedError):
        append_fragments(ds.table, write_input(ds.table, rows(9)), batch)


def test_stale_nulls_cannot_enter_required_columns(ds: Dataset) -> None:
    """Files are checked when they are written, so one written earlier could carry nulls past the
    new rule.
    """
    fragments = write_input(ds.table, incoming_rows(9, name=pa.nulls(1, pa.string())))
    ds.alter_columns({"path": "name", "nullable": False})
    with pytest.raises(ColumnsChangedError, match="became non-nullable"):
        append_fragments(ds.table, fragments)
    with pytest.raises(InvalidInputError, match="must not be null"):
        ds.append(incoming_rows(9, name=pa.nulls(1, pa.string())))


def test_concurrent_nulls_keep_a_column_nullable(ds: Dataset) -> None:
    """The check of existing rows must be repeated on the version that the retry is based on."""
    with_null = incoming_rows(9, name=pa.nulls(1, pa.string()))
    watched = in_the_way(ds, lambda: ds.append(with_null))
    with pytest.raises(InvalidInputError, match="some rows are null in it"):
        watched.alter_columns({"path": "name", "nullable": False})


def test_casts_are_planned_again_after_commits(ds: Dataset) -> None:
    """Planning again must not rewrite the files of fragments that have not changed."""
    before = data_files(ds)
    watched = in_the_way(ds, lambda: ds.upsert(rows(3, 9), on="id"), times=2)
    result = watched.alter_columns({"path": "id", "data_type": pa.int64()})
    assert sorted(result.to_table()["id"].to_pylist()) == [1, 3, 4, 5, 6, 7, 8, 9]
    named = {file.path for fragment in result.table.manifest.fragments for file in fragment.files}
    unnamed = data_files(result) - before - named
    assert all(name not in unnamed for name in named)
    assert result.verify() == []


def test_upserts_are_planned_again_after_casts(ds: Dataset) -> None:
    """The rows were matched and written in the old type."""
    watched = in_the_way(ds, lambda: ds.alter_columns(*ALL))
    result = watched.upsert(rows(3, 9), on="id")
    assert result.to_table()["id"].to_pylist().count(3) == 1
    assert result.count_rows() == 8
    assert result.schema.field("id").type == pa.int64()


def test_concurrent_casts_keep_the_wider_type(ds: Dataset) -> None:
    """A later cast to a narrower type would lose what the earlier one allowed."""
    watched = in_the_way(ds, lambda: ds.alter_columns({"path": "n", "data_type": pa.int64()}))
    with pytest.raises(InvalidInputError, match="cannot hold all of its values"):
        watched.alter_columns({"path": "n", "data_type": pa.int32()})
    watched = in_the_way(ds, lambda: ds.alter_columns({"path": "id", "data_type": pa.int64()}))
    result = watched.alter_columns({"path": "id", "data_type": pa.int64()})
    assert result.version == ds.version + 2


def test_failed_casts_leave_no_files(ds: Dataset) -> None:
    """Files that no version names would remain on disk until cleanup."""
    before = data_files(ds)
    overwritten = replace(ds.table)
    watched = in_the_way(ds, lambda: Dataset(overwritten).overwrite(rows(1)))
    with pytest.raises((CommitError, InvalidInputError)):
        watched.alter_columns({"path": "id", "data_type": pa.int64()})
    named = {
        f.path
        for e in ds.table.at(ds.table.log.read(ds.version + 1)).manifest.fragments
        for f in e.files
    }
    assert data_files(ds) == before | named


def test_casts_to_decimals_are_exact(ds: Dataset) -> None:
    """Decimals are used for money, where a conversion through floats would show."""
    result = ds.alter_columns({"path": "n", "data_type": pa.decimal128(7, 2)})
    result = result.append(incoming_rows(9, n=[Decimal("7.25")]))
    assert result.to_table()["n"].to_pylist()[-1] == Decimal("7.25")
    assert result.to_table(filter="n > 7.1")["id"].to_pylist() == [8, 9]


def test_restored_rows_keep_their_values() -> None:
    """The file of the first attempt has no values for rows that were deleted at that time."""
    data = pa.table({"n": pa.array([1, 2, 3], pa.int32()), "m": ["x", "y", "z"]})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", data)
    restored = ds.version
    ds = ds.rename_columns({"m": "note"}).delete("n = 1")
    watched = in_the_way(ds, lambda: ds.restore(restored))
    table = watched.alter_columns({"path": "n", "data_type": pa.decimal128(12, 0)}).to_table()
    assert table["n"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("verb", ["cast", "compute"])
@pytest.mark.parametrize("change", ["swap", "replace"])
def test_values_under_reassigned_names_are_dropped(verb: str, change: str) -> None:
    """The first attempt has read a column whose name belongs to another column by the second
    attempt.
    """
    data = pa.table({"n": pa.array([1, 2], pa.int32()), "m": pa.array([10, 20], pa.int32())})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", data.schema).append(data)

    def meanwhile() -> None:
        now = ds.append(data.slice(0, 1))
        if change == "replace":
            now = now.drop_columns("n")
        now.rename_columns({"m": "n"} if change == "replace" else {"m": "n", "n": "m"})

    watched = in_the_way(ds, meanwhile)
    if verb == "cast":
        result = watched.alter_columns({"path": "n", "data_type": pa.int64()}).to_table()
    else:
        result = watched.add_columns({"new": "n + 1"}).to_table()
        assert result["new"].to_pylist() == [11, 21, 11]
    assert result["n"].to_pylist() == [10, 20, 10]
