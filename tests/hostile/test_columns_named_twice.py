"""Two fragments name one data file, and its columns as different fields: a forged manifest."""

from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.arrow_blocks import fixed_size_list_array, list_array, struct_array
from tests.dataset.manifest_edits import edit_manifest

ROWS = range(400)
SCALARS = {
    "dictionary": lambda n: (
        pa.array(["x", "y", None][(number + n) % 3] for number in ROWS)
        .dictionary_encode()
        .cast(pa.dictionary(pa.int8(), pa.string()))
    ),
    "int": lambda n: pa.array([(number + n) % 50 for number in ROWS], pa.int64()),
    "text": lambda n: pa.array([f"text {(number + n) % 50}" for number in ROWS]),
}
ITEMS = {"text": (pa.string(), "z"), "float": (pa.float64(), 1.5), "int": (pa.int8(), 3)}


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("scalar", SCALARS)
def test_cached_columns_belong_to_one_field(
    scalar: str, item: str, version: str, tmp_path: Path
) -> None:
    """What is cached of a column for one field must not be used for another, because Arrow would
    abort the process.
    """
    arrow, value = ITEMS[item]
    lists = pa.array([[value] * (row % 3) for row in ROWS], pa.list_(arrow))
    array = SCALARS[scalar]
    rows = pa.table({"a": array(0), "b": array(1), "c": array(2), "d": lists})
    uri = tmp_path / "table"
    ds = lance_stream.create_dataset(uri, rows.schema, version, stable_row_ids=False)
    ds.append(rows).drop_columns(["c"])

    def add_fragment(manifest: table_pb2.Manifest) -> None:
        ids = {field.name: field.id for field in manifest.fields}
        other = manifest.fragments.add()
        other.CopyFrom(manifest.fragments[0])
        other.id = manifest.max_fragment_id = 1
        file = other.files[0]
        del file.fields[:], file.column_indices[:]
        file.fields.extend([ids["a"], ids["b"], ids["item"]])
        file.column_indices.extend([1, 2, 0])

    edit_manifest(uri, add_fragment)
    ds = lance_stream.open_dataset(uri)
    assert ds.to_table(["a", "b"]).slice(len(ROWS))["a"].equals(pa.chunked_array([array(1)]))
    for columns in (["d"], None):
        with pytest.raises(CorruptDataError):
            ds.to_table(columns)


def test_parts_of_another_type_are_refused() -> None:
    """Arrow ends the process if the parts of one column differ in type."""
    numbers, offsets = pa.array([1, 2]), pa.array([0, 2], pa.int32()).to_numpy()
    with pytest.raises(CorruptDataError, match="expected values of string, but found int64"):
        list_array(pa.list_(pa.string()), offsets, numbers, None)
    with pytest.raises(CorruptDataError):
        fixed_size_list_array(pa.list_(pa.float32(), 2), numbers, None)
    with pytest.raises(CorruptDataError):
        struct_array(pa.struct([("a", pa.int8())]), 2, [numbers], None)
