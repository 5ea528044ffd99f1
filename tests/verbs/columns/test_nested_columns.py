"""Parts of structs, added and dropped: in structs, in lists of structs, in each other."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.verbs.columns.add_columns import add_missing_columns
from tests.verbs.columns.test_add_columns import in_the_way

DEEP = pa.struct([("c", pa.int16())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.struct([("zip", pa.int32()), ("deep", DEEP)])),
        ("orders", pa.list_(pa.struct([("price", pa.float64())]))),
        ("tags", pa.map_(pa.string(), DEEP)),
        pa.field("packed", pa.struct([("a", pa.int32())]), metadata={"packed": "true"}),
        ("pair", pa.list_(pa.struct([("x", pa.int8())]), 2)),
    ]
)


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "place": [{"zip": id_, "deep": {"c": 1}} if id_ % 3 else None for id_ in ids],
            "orders": [[{"price": 1.0}] * (id_ % 3) for id_ in ids],
            "tags": [[("a", {"c": 1})] for _ in ids],
            "packed": [{"a": id_} for id_ in ids],
            "pair": [[{"x": 1}, {"x": 2}] for _ in ids],
        },
        SCHEMA,
    )


@pytest.fixture
def ds() -> Dataset:
    """Six rows in two fragments; one row of the first is deleted."""
    uri = f"memory://{uuid.uuid4()}/table"
    dataset = lance_stream.create_dataset(uri, SCHEMA)
    return dataset.append(rows(1, 2, 3, 4)).append(rows(5, 6, 7)).delete("id = 2")


def values(ds: Dataset, column: str) -> list[Any]:
    column_values: list[Any] = ds.to_table([column])[column].to_pylist()
    return column_values


@pytest.mark.floors
def test_parts_are_added_without_values(ds: Dataset) -> None:
    """New parts of structs and lists read null where the parent exists, and no file is written."""
    result = ds.add_columns(
        [
            pa.field("place.city", pa.string()),
            pa.field("place.deep.d", pa.int8()),
            pa.field("orders.n", pa.int32()),
            pa.field("note", pa.string()),
        ]
    )
    assert result.version == ds.version + 1
    with_parts = {"zip": 1, "deep": {"c": 1, "d": None}, "city": None}
    assert values(result, "place")[:2] == [with_parts, None]
    assert values(result, "orders")[0] == [{"price": 1.0, "n": None}]
    assert result.to_table(["place.city"])["place"].to_pylist()[:2] == [{"city": None}, None]
    assert result.changes(ds.version).read_all().num_rows == 0
    assert result.verify() == []
    new = {
        "id": [9],
        "place": [{"zip": 9, "deep": {"c": 9, "d": 8}, "city": "x"}],
        "orders": [[{"price": 2.0, "n": 3}]],
    }
    result = result.append(pa.table(new, pa.schema([result.schema.field(value) for value in new])))
    assert values(result, "place")[-1]["city"] == "x"
    assert values(result.compact(), "orders")[-1] == [{"price": 2.0, "n": 3}]
    feed = result.changes(0).read_all().to_pylist()
    assert [row["place"] for row in feed if row["id"] in (1, 9)] == [
        with_parts,
        {"zip": 9, "deep": {"c": 9, "d": 8}, "city": "x"},
    ]


def test_parts_can_be_given_as_structs(ds: Dataset) -> None:
    """Pylance takes new parts in this form."""
    deep = pa.struct([("d", pa.int8())])
    result = ds.add_columns(pa.field("place", pa.struct([("deep", deep), ("city", pa.string())])))
    by_path = ds.checkout(ds.version).add_columns
    assert result.schema.field("place").type == pa.struct(
        [
            ("zip", pa.int32()),
            ("deep", pa.struct([("c", pa.int16()), ("d", pa.int8())])),
            ("city", pa.string()),
        ]
    )
    again = by_path([pa.field("place.city", pa.string()), pa.field("place.deep.d", pa.int8())])
    assert again.version == result.version


@pytest.mark.floors
def test_parts_of_structs_are_computed(ds: Dataset) -> None:
    """A computed part must be null where its struct is null."""
    result = ds.add_columns(
        {"place.code": "CAST(id AS string)", "place.deep.twice": "place.zip * 2", "one": "1"}
    )
    expected = [
        {"zip": number, "deep": {"c": 1, "twice": 2 * number}, "code": str(number)}
        if number % 3
        else None
        for number in (1, 3, 4, 5, 6, 7)
    ]
    assert values(result, "place") == expected
    assert values(result, "one") == [1] * 6
    assert result.verify() == []
    posts = [
        row
        for row in result.changes(ds.version).read_all().to_pylist()
        if row["_change_type"] == "update_postimage"
    ]
    assert [post["place"] for post in posts] == expected
    assert values(result.compact(), "place") == expected


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        (pa.field("place.zip", pa.int64()), InvalidInputError, "of type int32, not int64"),
        (pa.field("place.city", pa.string(), nullable=False), InvalidInputError, "not nullable"),
        (pa.field("nothing.city", pa.string()), InvalidInputError, "cannot be called"),
        (pa.field("place.no.city", pa.string()), NotFoundError, "no column 'no' in 'place'"),
        (pa.field("id.x", pa.string()), InvalidInputError, "is not a struct"),
        (pa.field("tags.value.x", pa.string()), NotFoundError, "'value' in 'tags'"),
        (pa.field("tags.x", pa.string()), InvalidInputError, "is not a struct"),
        (pa.field("pair.y", pa.string()), InvalidInputError, "fixed-size list 'pair'"),
        (
            pa.field("pair", pa.list_(pa.struct([("y", pa.int8())]), 2)),
            InvalidInputError,
            "fixed-size list 'pair'",
        ),
        (pa.field("packed.b", pa.string()), InvalidInputError, "packed struct"),
        (pa.field("place.", pa.string()), InvalidInputError, "cannot be called"),
        (pa.field("place", pa.int32()), InvalidInputError, "not int32"),
        (pa.field("orders.x", pa.list_(pa.struct([]))), InvalidInputError, "struct without"),
    ],
)
def test_invalid_parts_are_refused(
    ds: Dataset, field: pa.Field, error: type[Exception], message: str
) -> None:
    """A path may meet a missing parent, a column without parts or a part of another type."""
    with pytest.raises(error, match=message):
        ds.add_columns(field)


def test_parts_of_lists_are_not_computed(ds: Dataset) -> None:
    """A row has many values inside of a list, and an expression yields one."""
    with pytest.raises(InvalidInputError, match="part of a list"):
        ds.add_columns({"orders.x": "id"})
    with pytest.raises(InvalidInputError, match=r"already has a column 'place\.zip'"):
        ds.add_columns({"place.zip": "id"})


def test_concurrent_additions_of_parts_agree(ds: Dataset) -> None:
    """Two sinks that meet the same new part must not fail each other, and different parts must
    both remain.
    """
    city = pa.field("place.city", pa.string())
    result = in_the_way(ds, lambda: ds.add_columns(city)).add_columns(city)
    assert result.version == ds.version + 1
    watched = in_the_way(ds, lambda: ds.add_columns(pa.field("place.x", pa.int8())))
    result = watched.add_columns(pa.field("place.y", pa.int8()))
    names = [entry.name for entry in result.schema.field("place").type]
    assert names == ["zip", "deep", "city", "x", "y"]


def test_incoming_parts_are_added(ds: Dataset) -> None:
    """Evolution reaches into structs and lists; it must refuse names that differ in case only,
    and keys or values of maps.
    """
    deep = pa.struct([("d", pa.int8()), ("c", pa.int8())])
    incoming = pa.schema(
        [
            ("orders", pa.list_(pa.struct([("n", pa.int32()), ("price", pa.float32())]))),
            ("place", pa.struct([pa.field("deep", deep), ("city", pa.string())])),
            pa.field("more", pa.struct([("x", pa.int8())])),
        ]
    )
    result = Dataset(add_missing_columns(ds.table, incoming))
    assert result.schema.names == [*SCHEMA.names, "more"]
    assert [entry.name for entry in result.schema.field("place").type] == ["zip", "deep", "city"]
    assert Dataset(add_missing_columns(result.table, incoming)).version == result.version
    with pytest.raises(InvalidInputError, match="'Zip' is not added because the table has 'zip'"):
        add_missing_columns(result.table, pa.schema([("place", pa.struct([("Zip", pa.int32())]))]))
    with pytest.raises(InvalidInputError, match="contains only nulls"):
        add_missing_columns(result.table, pa.schema([("place", pa.struct([("v", pa.null())]))]))
    other = pa.map_(pa.string(), pa.struct([("v", pa.int8())]))
    with pytest.raises(InvalidInputError, match=r"no column 'tags\.value\.v'"):
        add_missing_columns(result.table, pa.schema([("tags", other)]))


@pytest.mark.floors
def test_parts_of_lists_are_dropped(ds: Dataset) -> None:
    """The remaining parts of a list's structs must be read without those that files still
    contain.
    """
    result = ds.add_columns(pa.field("orders.n", pa.int32())).append(
        pa.table(
            {"id": [9], "orders": [[{"price": 2.0, "n": 3}]]},
            pa.schema(
                [
                    ("id", pa.int64()),
                    ("orders", pa.list_(pa.struct([("price", pa.float64()), ("n", pa.int32())]))),
                ]
            ),
        )
    )
    before = result.version
    result = result.drop_columns("orders.n")
    assert values(result, "orders")[-1] == [{"price": 2.0}]
    assert result.changes(before).read_all().num_rows == 0
    result = result.rename_columns({"orders.price": "cost"})
    assert values(result, "orders")[0] == [{"cost": 1.0}]


@pytest.mark.parametrize(
    ("dropped", "added"), [("orders.price", "orders.n"), ("place.deep.c", "place.deep.d")]
)
def test_last_stored_parts_are_not_dropped(ds: Dataset, dropped: str, added: str) -> None:
    """Only this part tells how long the lists are and which structs are null."""
    column = added.split(".")[0]
    result = ds.add_columns(pa.field(added, pa.int32()))
    with pytest.raises(InvalidInputError, match="Compact the table first"):
        result.drop_columns(dropped)
    before = [value is None or len(value) for value in values(result, column)]
    result = result.compact().drop_columns(dropped)
    if column == "orders":
        assert [value is None or len(value) for value in values(result, column)] == before
    else:
        assert values(result, column)[:2] == [{"zip": 1, "deep": {"d": None}}, None]
