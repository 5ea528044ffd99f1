"""Blobs inside of structs and lists, which pylance writes: read in every way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError

pytestmark = pytest.mark.oracle

MARKED = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SIZES = [10, 0, 70_000, 1, 64 << 10, 5_000_000, 3, 0]
BLOBS: list[bytes | None] = [bytes([size % 251]) * size for size in SIZES]
BLOBS[3] = BLOBS[6] = None
NUMBERS = pa.array(range(8))


def in_struct(field: pa.Field, blobs: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([NUMBERS, blobs], fields=[pa.field("n", pa.int64()), field])


def in_null_struct(field: pa.Field, blobs: pa.Array) -> pa.Array:
    structs = in_struct(field, blobs)
    mask = pa.array([row in (2, 3, 7) for row in range(8)])
    return pa.StructArray.from_arrays(structs.flatten(), fields=list(structs.type), mask=mask)


def in_two_structs(field: pa.Field, blobs: pa.Array) -> pa.Array:
    inner = in_struct(field, blobs)
    fields = [pa.field("t", inner.type, metadata={"unit": "m"}), pa.field("n", pa.int64())]
    return pa.StructArray.from_arrays([inner, NUMBERS], fields=fields)


def in_list(field: pa.Field, blobs: pa.Array) -> pa.Array:
    offsets = pa.array([0, 2, None, 2, 2, 5, 6, 8, 8], pa.int32())
    return pa.ListArray.from_arrays(offsets, blobs, type=pa.list_(field.with_name("item")))


def in_list_of_structs(field: pa.Field, blobs: pa.Array) -> pa.Array:
    offsets = pa.array([0, 0, 3, 3, 4, 4, 4, 7, 8], pa.int32())
    return pa.ListArray.from_arrays(offsets, in_struct(field, blobs))


SHAPES: dict[str, Callable[[pa.Field, pa.Array], pa.Array]] = {
    "struct": in_struct,
    "null struct": in_null_struct,
    "two structs": in_two_structs,
    "list": in_list,
    "list of structs": in_list_of_structs,
}
PATHS = {"struct": "s.b", "null struct": "s.b", "two structs": "s.t.b"}


def written(path: Path, version: str, shape: str, *, by_extension: bool) -> Any:
    """Return a table of pylance, in two fragments of which the first lacks a row."""
    if by_extension:
        field, blobs = lance.blob_field("b"), lance.blob_array(BLOBS)
    else:
        field, blobs = MARKED, pa.array(BLOBS, pa.large_binary())
    column = SHAPES[shape](field, blobs)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("s", column.type)])
    rows = pa.Table.from_arrays([NUMBERS, column], schema=schema)
    options = {"data_storage_version": version, "enable_stable_row_ids": True}
    lance.write_dataset(rows, path, **options)
    lance.dataset(path).delete("id = 4")
    return lance.write_dataset(rows, path, mode="append")


CASES = [
    *(("2.0", shape, False) for shape in SHAPES if shape != "null struct"),
    *(("2.1", shape, False) for shape in SHAPES if "list" not in shape),
    *(("2.2", shape, by_extension) for shape in SHAPES for by_extension in (False, True)),
]


@pytest.mark.parametrize(("version", "shape", "by_extension"), CASES)
def test_nested_blobs_of_pylance_are_read(
    tmp_path: Path, version: str, shape: str, by_extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` must not call a sound table with nested blobs corrupt."""
    theirs = written(tmp_path / "t", version, shape, by_extension=by_extension)
    expected = theirs.scanner(blob_handling="all_binary").to_table().column("s").to_pylist()
    ds = lance_stream.open_dataset(tmp_path / "t")
    assert ds.to_table().column("s").to_pylist() == expected
    assert ds.verify(deep=True) == []
    assert ds.take([9, 0, 9]).column("s").to_pylist() == [expected[row] for row in (9, 0, 9)]
    some = ds.to_table(["s"], "id IN (2, 5)").column("s").to_pylist()
    assert some == [expected[row] for row in (2, 4, 9, 12)]
    changes = ds.changes(2).read_all()
    assert changes.column("s").to_pylist() == expected[7:]
    deleted = ds.changes(1, 2).read_all()
    assert deleted.column("_change_type").to_pylist() == ["delete"]
    assert deleted.column("s").to_pylist() == [expected[11]]
    monkeypatch.setattr("lance_stream.read.fragment.BATCH_BYTES", 1 << 20)
    batches = list(ds.scan())
    assert [row for batch in batches for row in batch.column("s").to_pylist()] == expected
    assert len(batches) > 2
    described = ds.to_table(["s"], blob_handling="descriptors").column("s").to_pylist()
    if version != "2.0":  # of 2.0 it shows nulls as (1, 0)
        assert described == theirs.to_table(["s"]).column("s").to_pylist()


@pytest.mark.parametrize(("version", "shape", "by_extension"), CASES)
def test_nested_blobs_open_as_files(
    tmp_path: Path, version: str, shape: str, by_extension: bool
) -> None:
    """A path through structs names one blob per row; in lists there may be several."""
    written(tmp_path / "t", version, shape, by_extension=by_extension)
    ds = lance_stream.open_dataset(tmp_path / "t")
    if shape not in PATHS:
        with pytest.raises(InvalidInputError, match=r"has no blobs; columns with blobs: none"):
            ds.take_blobs("s", [0])
        return
    rows = [2, 8, 0, 14, 3]
    structs = ds.take(rows, columns=[PATHS[shape]]).column("s").to_pylist()
    for _ in range(PATHS[shape].count(".") - 1):
        structs = [struct and struct["t"] for struct in structs]
    files = ds.take_blobs(PATHS[shape], rows)
    assert [file and file.read() for file in files] == [s and s["b"] for s in structs]
    with pytest.raises(InvalidInputError, match=f"columns with blobs: {PATHS[shape]}$"):
        ds.take_blobs("s.n", [0])


@pytest.mark.parametrize("shape", ["list", "list of structs"])
def test_version_2_1_refuses_blob_lists(tmp_path: Path, shape: str) -> None:
    """pylance writes them without the lengths of the lists, and cannot read them back."""
    theirs = written(tmp_path / "t", "2.1", shape, by_extension=False)
    with pytest.raises(Exception, match="External error"):
        theirs.to_table()
    ds = lance_stream.open_dataset(tmp_path / "t")
    with pytest.raises(UnsupportedFeatureError, match=r"blobs in lists are not read.*2\.2"):
        ds.to_table()
    assert ds.to_table(["id"]).num_rows == 15
    assert {finding.rule for finding in ds.verify(deep=True)} == {"values"}
