"""Which parts of a struct arrive, and which keep their stored values."""

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.row_updates.partial_structs import (
    arriving_parts,
    partial_columns,
    with_stored_parts,
)

PAIR = pa.struct({"x": "int64", "y": "int64"})
X = pa.struct({"x": "int64"})
NESTED = pa.struct({"a": "int64", "b": PAIR})


class Point(pa.ExtensionType):
    """A struct without one of its fields, with a name of its own."""

    def __init__(self) -> None:
        super().__init__(X, "tests.point")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Point":
        return cls()


@pytest.mark.parametrize(
    ("incoming", "target", "is_partial"),
    [
        (PAIR, PAIR, False),
        (X, PAIR, True),
        (pa.struct({"y": "int64", "x": "int64"}), PAIR, False),
        (pa.struct({"b": PAIR, "a": "int64"}), NESTED, False),
        (pa.struct({"b": PAIR}), NESTED, True),
        (pa.struct({"a": "int64", "b": X}), NESTED, True),
        (pa.struct({"b": X, "a": "int64"}), NESTED, True),
        (Point(), PAIR, True),
        (Point(), X, False),
        (pa.struct({"a": "int64", "b": Point()}), NESTED, True),
        (pa.null(), PAIR, False),
        (X, pa.int64(), False),
        (pa.list_(X), pa.int64(), False),
        (pa.list_(PAIR), pa.list_(PAIR), False),
        (pa.list_(pa.int64()), pa.list_(PAIR), False),
        (pa.large_list(PAIR), pa.list_(PAIR, 2), False),
        (pa.map_("string", PAIR), pa.map_("string", PAIR), False),
        (pa.map_("string", X), pa.list_(PAIR), False),
        (X, pa.map_("string", PAIR), False),
        (pa.list_(X), pa.map_("string", PAIR), False),
        (pa.list_(pa.int64()), pa.map_("string", PAIR), False),
    ],
)
def test_structs_missing_fields_are_partial(
    incoming: pa.DataType, target: pa.DataType, is_partial: bool
) -> None:
    """Only partial structs need the stored rows to be read."""
    batch = pa.schema({"id": "int64", "c": incoming, "other": "int64"})
    table = pa.schema({"id": "int64", "c": target, "absent": PAIR})
    assert partial_columns(batch, table) == ({"c": incoming} if is_partial else {})
    assert partial_columns(batch.remove(2), pa.schema({"id": "int64", "absent": target})) == {}


@pytest.mark.parametrize(
    ("incoming", "target", "where"),
    [
        (pa.list_(X), pa.list_(PAIR), "the structs in the list 'c.item' lack the field 'y'"),
        (pa.list_(X, 2), pa.large_list(PAIR), "the structs in the list 'c.item' lack"),
        (pa.map_("string", X), pa.map_("string", PAIR), "the structs in the map 'c.value' lack"),
        (
            pa.list_(pa.struct({"key": "string", "value": X})),
            pa.map_("string", PAIR),
            "the structs in the map 'c.value' lack",
        ),
        (
            pa.list_(pa.struct({"a": "int64", "b": X})),
            pa.list_(NESTED),
            r"the structs in the list 'c.item.b' lack the field 'y'",
        ),
        (
            pa.struct({"l": pa.list_(X)}),
            pa.struct({"l": pa.list_(PAIR)}),
            "the structs in the list 'c.l.item' lack",
        ),
    ],
)
def test_collections_of_partial_structs_are_refused(
    incoming: pa.DataType, target: pa.DataType, where: str
) -> None:
    """No stored item corresponds to an incoming one, so a field would be lost."""
    with pytest.raises(InvalidInputError, match=where):
        partial_columns(pa.schema({"c": incoming}), pa.schema({"c": target}))


def test_arriving_parts_have_the_tables_types() -> None:
    """The data is cast to the part of the table's column that it has."""
    incoming = pa.struct({"b": pa.struct({"y": "int8"}), "z": "string"})
    expected = pa.struct({"b": pa.struct({"y": "int64"})})
    assert arriving_parts(pa.field("c", NESTED, nullable=False), incoming) == pa.field(
        "c", expected, nullable=False
    )
    assert arriving_parts(pa.field("c", PAIR), Point()) == pa.field("c", X)
    for plain in pa.field("c", pa.int64()), pa.field("c", pa.list_(PAIR)):
        assert arriving_parts(plain, incoming) == plain
        assert arriving_parts(pa.field("c", PAIR), plain.type) == pa.field("c", PAIR)


def test_missing_fields_keep_their_stored_values() -> None:
    """A null struct is stored as null, and a field of a stored null is null."""
    schema = pa.schema({"id": "int64", "c": NESTED, "d": PAIR})
    incoming = pa.RecordBatch.from_pylist(
        [
            {"id": 1, "c": {"a": 5, "b": {"x": 6, "y": None}}, "d": {"x": 1, "y": None}},
            {"id": 2, "c": None, "d": {"x": 1, "y": None}},
            {"id": 3, "c": {"a": 7, "b": None}, "d": None},
            {"id": 4, "c": {"a": 8, "b": {"x": 9, "y": None}}, "d": {"x": 1, "y": None}},
        ],
        schema=schema,
    )
    stored = pa.RecordBatch.from_pylist(
        [{"c": {"a": 1, "b": {"x": 2, "y": 3}}, "d": {"x": 4, "y": 5}}] * 3
        + [{"c": None, "d": {"x": 4, "y": 5}}],
        schema=schema,
    )
    merged = with_stored_parts(incoming, stored, {"c": pa.struct({"a": "int64", "b": X})})
    assert merged.schema == schema
    assert merged["id"].to_pylist() == [1, 2, 3, 4]
    assert merged["d"].equals(incoming["d"])
    assert merged["c"].to_pylist() == [
        {"a": 5, "b": {"x": 6, "y": 3}},
        None,
        {"a": 7, "b": None},
        {"a": 8, "b": {"x": 9, "y": None}},
    ]
    extended = with_stored_parts(incoming, stored, {"c": pa.struct({"a": "int64", "b": Point()})})
    assert extended["c"].equals(merged["c"])


def test_fields_without_a_type_are_null() -> None:
    """A producer that has only nulls for a struct sends no type for it."""
    row = {"c": {"a": None, "b": None}}
    incoming = pa.RecordBatch.from_pylist([row], schema=pa.schema({"c": NESTED}))
    stored = pa.RecordBatch.from_pylist(
        [{"c": {"a": 1, "b": {"x": 2, "y": 3}}}], schema=incoming.schema
    )
    merged = with_stored_parts(incoming, stored, {"c": pa.struct({"b": pa.null()})})
    assert merged["c"].to_pylist() == [{"a": 1, "b": None}]
