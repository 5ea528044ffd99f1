"""Extension types and field metadata: both programs store and give back the same."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.schema.fields import Field, Schema

pytestmark = pytest.mark.oracle

BFLOAT16 = {"ARROW:extension:name": "lance.bfloat16", "ARROW:extension:metadata": ""}
HALVES = pa.array([b"\x00\x3f", None, b"\x80\x3f"], pa.binary(2))
PAIRS = pa.FixedSizeListArray.from_arrays(
    pa.array([b"\x80\x3f"] * 6, pa.binary(2)),
    type=pa.list_(pa.field("item", pa.binary(2), metadata=BFLOAT16), 2),
)
UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([b"0123456789abcdef", None, b"fedcba9876543210"], pa.binary(16))
)

TABLE = pa.table(
    {
        "uuid": UUIDS,
        "uuids": pa.ListArray.from_arrays([0, 2, 2, 3], UUIDS),
        "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8())),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2), np.float32)),
        "half": HALVES,
        "pairs": PAIRS,
        "unknown": pa.array([1, 2, None]),
        "tags": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)
NAMED = {
    "half": BFLOAT16,
    "unknown": {"ARROW:extension:name": "acme.money", "ARROW:extension:metadata": "EUR", "x": "y"},
}
TABLE = TABLE.cast(
    pa.schema(
        [
            field.with_metadata(NAMED[field.name]) if field.name in NAMED else field
            for field in TABLE.schema
        ],
        metadata={"owner": "me"},
    )
)


def tree_of(schema: Schema) -> list[tuple[object, ...]]:
    def described(field: Field) -> tuple[object, ...]:
        metadata = dict(field.metadata)
        return (
            field.id,
            field.name,
            field.logical_type,
            field.nullable,
            field.extension_name,
            metadata,
        )

    return [described(field) for field in schema.walk()]


@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
def test_extension_types_and_metadata_agree(tmp_path: Path, file_version: str) -> None:
    """Types that pylance stores in metadata must come back with the same storage and name."""
    table = TABLE if file_version == "2.2" else TABLE.drop_columns(["tags"])
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    lance.write_dataset(table, theirs, data_storage_version=file_version)
    lance_stream.create_dataset(ours, table.schema, file_version=file_version).append(table)
    expected = lance.dataset(theirs).to_table()
    for uri in (theirs, ours):
        for result in (lance.dataset(uri).to_table(), lance_stream.open_dataset(uri).to_table()):
            result.validate(full=True)
            assert result.schema.equals(expected.schema, check_metadata=True)
            assert result.equals(expected)
    assert expected.to_pylist() == table.to_pylist()
    trees = [lance_stream.open_dataset(uri).table.schema for uri in (theirs, ours)]
    assert tree_of(trees[0]) == tree_of(trees[1])
