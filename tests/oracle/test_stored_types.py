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
            each.with_metadata(NAMED[each.name]) if each.name in NAMED else each
            for each in TABLE.schema
        ],
        metadata={"owner": "me"},
    )
)


def tree_of(schema: Schema) -> list[tuple[object, ...]]:
    def described(each: Field) -> tuple[object, ...]:
        kept = dict(each.metadata)
        return each.id, each.name, each.logical_type, each.nullable, each.extension_name, kept

    return [described(each) for each in schema.walk()]


@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
def test_extension_types_and_metadata_agree(tmp_path: Path, file_version: str) -> None:
    table = TABLE if file_version == "2.2" else TABLE.drop_columns(["tags"])
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    lance.write_dataset(table, theirs, data_storage_version=file_version)
    lance_stream.create_dataset(ours, table.schema, file_version=file_version).append(table)
    expected = lance.dataset(theirs).to_table()
    for uri in (theirs, ours):
        for found in (lance.dataset(uri).to_table(), lance_stream.open_dataset(uri).to_table()):
            found.validate(full=True)
            assert found.schema.equals(expected.schema, check_metadata=True)
            assert found.equals(expected)
    assert expected.to_pylist() == table.to_pylist()
    trees = [lance_stream.open_dataset(uri).table.schema for uri in (theirs, ours)]
    assert tree_of(trees[0]) == tree_of(trees[1])


def test_binary_json_is_kept_as_stored(tmp_path: Path) -> None:
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    text = pa.field("j", pa.string(), metadata={"ARROW:extension:name": "arrow.json"})
    values = ['{"a":1,"b":[1.5,null,"x"]}', None, "3"]
    lance.write_dataset(pa.table([values], schema=pa.schema([text])), theirs)
    stored = lance_stream.open_dataset(theirs).to_table()
    assert stored.schema.field("j").type == pa.large_binary()
    assert stored.schema.field("j").metadata[b"ARROW:extension:name"] == b"lance.json"
    lance_stream.create_dataset(ours, stored.schema).append(stored)
    assert lance_stream.open_dataset(ours).to_table().equals(stored)
    assert lance.dataset(ours).to_table().equals(lance.dataset(theirs).to_table())
    trees = [lance_stream.open_dataset(uri).table.schema for uri in (theirs, ours)]
    assert tree_of(trees[0]) == tree_of(trees[1])
