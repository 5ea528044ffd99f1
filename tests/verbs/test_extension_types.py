"""Round trips of extension types through a table."""

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream

SHAPE = pa.fixed_shape_tensor(pa.float32(), [2, 2])
UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16))
)
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 2, 2), np.float32))


class Celsius(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.float64(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"C"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> "Celsius":
        return cls()


@pytest.fixture
def celsius() -> Any:
    pa.register_extension_type(Celsius())
    yield Celsius()
    pa.unregister_extension_type("test.celsius")


@pytest.mark.floors
def test_registered_extension_types_round_trip(celsius: Celsius) -> None:
    """An extension is metadata on a field, which every path of reading and writing has to carry
    along.
    """
    degrees = pa.ExtensionArray.from_storage(celsius, pa.array([36.6, None]))
    table = pa.table(
        {
            "u": UUIDS,
            "t": TENSORS,
            "c": degrees,
            "s": pa.StructArray.from_arrays([degrees, UUIDS], ["c", "u"]),
            "l": pa.ListArray.from_arrays([0, 1, 2], UUIDS),
        }
    )
    uri = f"memory://{uuid.uuid4()}/table"
    dataset = lance_stream.create_dataset(uri, table.schema).append(table)
    assert dataset.schema.equals(table.schema)
    assert dataset.to_table().equals(table)
    assert dataset.take(row_offsets=[1]).equals(table.slice(1))
    assert dataset.to_table(["s.u", "c"], filter="c > 30").num_rows == 1
    assert dataset.append(dataset.scan()).count_rows() == 4
    (changed,) = dataset.changes(0).read_all().select(["u"]).columns
    assert changed.type == pa.uuid()
    assert dataset.overwrite(table).table.schema == dataset.table.schema


def test_unregistered_extension_types_read_as_storage(
    celsius: Celsius,
) -> None:
    """A reader without the Python class must still get the values, with the metadata for those
    who know it.
    """
    table = pa.table({"c": pa.ExtensionArray.from_storage(celsius, pa.array([36.6, None]))})
    uri = f"memory://{uuid.uuid4()}/table"
    lance_stream.create_dataset(uri, table.schema).append(table)
    pa.unregister_extension_type("test.celsius")
    try:
        actual = lance_stream.open_dataset(uri).to_table()
        assert actual.schema.field("c").type == pa.float64()
        assert actual.schema.field("c").metadata[b"ARROW:extension:name"] == b"test.celsius"
        assert actual["c"].to_pylist() == [36.6, None]
    finally:
        pa.register_extension_type(celsius)


def test_maps_and_points_round_trip() -> None:
    """Maps and fixed-size lists of structs are stored by layouts of their own, with nulls at
    each level.
    """
    point = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("m", pa.map_(pa.string(), pa.list_(pa.int64()))),
            ("p", pa.list_(point, 2)),
        ]
    )
    rows = [
        {"id": 1, "m": [("a", [1]), ("b", None)], "p": [{"x": 1, "y": 2}, None]},
        {"id": 2, "m": None, "p": None},
        {"id": 3, "m": [], "p": [{"x": None, "y": 5}] * 2},
    ]
    table = pa.Table.from_pylist(rows, schema)
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    dataset = dataset.append(table.slice(0, 2)).append(table.slice(2)).delete("id = 1")
    assert dataset.to_table().to_pylist() == rows[1:]
    assert dataset.to_table(["p.y"])["p"].to_pylist() == [None, [{"y": 5}, {"y": 5}]]
    assert dataset.take(row_offsets=[1], columns=["m"])["m"].to_pylist() == [[]]
    changed = dataset.changes(0, columns=["m", "p"], pre_images=False).read_all()
    assert changed["m"].to_pylist() == [
        [("a", [1]), ("b", None)],
        None,
        [],
        [("a", [1]), ("b", None)],
    ]
