"""Widening a table's columns for incoming rows."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.verbs.columns.widen_columns import widen_columns, widened
from tests.verbs.columns.test_add_columns import in_the_way


@pytest.mark.parametrize(
    ("stored", "incoming", "wider"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), pa.int64()),  # refused later
        (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
        (pa.decimal128(10, 2), pa.decimal128(8, 2), pa.decimal128(10, 2)),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32(), pa.timestamp("us")),
        (pa.int8(), pa.decimal128(20, 0), pa.decimal128(20, 0)),
        # as Spark carries them
        (pa.uint32(), pa.int64(), pa.uint32()),
        (pa.uint64(), pa.decimal128(20, 0), pa.uint64()),
        (pa.uint8(), pa.int64(), pa.int64()),
        (pa.float16(), pa.float32(), pa.float16()),
        (pa.float16(), pa.float64(), pa.float64()),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("s")),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32()), pa.list_(pa.float32(), 2)),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float64()), pa.list_(pa.float64(), 2)),
        (pa.large_string(), pa.string(), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), None),
        (
            pa.struct([("a", pa.int8()), ("b", pa.int8())]),
            pa.struct([("b", pa.int32()), ("c", pa.int32())]),
            pa.struct([("a", pa.int8()), ("b", pa.int32())]),
        ),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int8(), pa.int16()), None),
    ],
    ids=str,
)
def test_the_widened_type_holds_both(
    stored: pa.DataType, incoming: pa.DataType, wider: pa.DataType | None
) -> None:
    """A pair of types has a wider one only if every value of both survives the cast."""
    expected = wider
    if wider is None:
        expected = pa.map_(pa.int8(), pa.int16()) if pa.types.is_map(stored) else stored
    assert widened(stored, incoming).equals(expected)


@pytest.fixture
def ds() -> Dataset:
    schema = pa.schema([("id", pa.int32()), ("s", pa.struct([("a", pa.int8())]))])
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", schema)
    return dataset.append(pa.table({"id": [1, 2], "s": [{"a": 1}, None]}, schema))


def test_columns_are_widened_once(ds: Dataset) -> None:
    """Rows with the wider type keep arriving, and only the first of them may rewrite the table."""
    incoming = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int32())]))])
    result = Dataset(widen_columns(ds.table, incoming))
    assert result.version == ds.version + 1
    assert result.schema.equals(incoming)
    assert result.to_table().to_pylist() == ds.to_table().to_pylist()
    assert Dataset(widen_columns(result.table, ds.schema)).version == result.version


def test_rows_that_cannot_fit_widen_nothing(ds: Dataset) -> None:
    """One column that fits must not be widened for rows that are refused because of another."""
    for other in ([("id", pa.int64()), ("s", pa.string())], [("id", pa.string())]):
        with pytest.raises(InvalidInputError, match="a cast could change or lose values"):
            widen_columns(ds.table, pa.schema(other))
    assert ds.checkout(None).version == ds.version


def test_concurrent_widening_uses_newest_type(ds: Dataset) -> None:
    """The type to widen to is computed from the newest version, which another writer may have
    widened already.
    """

    def others(kind: pa.DataType) -> Any:
        return lambda: widen_columns(ds.table, pa.schema([("id", kind)]))

    watched = in_the_way(ds, others(pa.int64()))
    with pytest.raises(InvalidInputError, match="a cast could change or lose values"):
        widen_columns(watched.table, pa.schema([("id", pa.float64())]))
    watched = in_the_way(ds, others(pa.decimal128(20, 0)))
    result = Dataset(widen_columns(watched.table, pa.schema([("id", pa.decimal128(22, 2))])))
    assert result.schema.field("id").type == pa.decimal128(22, 2)
