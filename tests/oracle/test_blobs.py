"""Tables with blobs: what pylance writes we read, and the other way round."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import UnsupportedFeatureError

pytestmark = pytest.mark.oracle

VERSIONS = ["2.0", "2.1", "2.2"]
BLOB = {"lance-encoding:blob": "true"}
KIB = 1 << 10

EDGES = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 0, 4096 * KIB, 4096 * KIB + 1, 70_000, 5]
"""Sizes around each threshold of 2.2: inline, packed, dedicated."""


def values_of(sizes: list[int], nulls: str) -> list[bytes | None]:
    random = np.random.default_rng(len(sizes))
    values = [random.bytes(size) for size in sizes]
    null_interval = {"none": 0, "some": 3, "all": 1}[nulls]
    return [
        None if null_interval and position % null_interval == 0 else value
        for position, value in enumerate(values)
    ]


def table_of(values: list[bytes | None], first: int = 0) -> pa.Table:
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=BLOB)]
    )
    ids = pa.array(range(first, first + len(values)), pa.int64())
    return pa.table([ids, pa.array(values, pa.large_binary())], schema=schema)


def check_both_read(path: Path, values: list[bytes | None]) -> None:
    """Read a table in every way, by both, and compare."""
    theirs = lance.dataset(path)
    assert theirs.to_table(blob_handling="all_binary")["b"].to_pylist() == values
    rows = list(range(len(values)))
    opened = theirs.take_blobs("b", indices=rows)
    assert [value and value.readall() for value in opened] == values
    ours = lance_stream.open_dataset(path)
    assert ours.to_table()["b"].to_pylist() == values
    files = ours.take_blobs("b", row_offsets=rows)
    assert [file and file.read() for file in files] == values
    some = rows[1::3][::-1]
    assert ours.take(some)["b"].to_pylist() == [values[offset] for offset in some]
    their_descriptors = theirs.to_table(["b"])["b"].combine_chunks()
    described = ours.to_table(["b"], blob_handling="descriptors")["b"].combine_chunks()
    sizes = [row and row["size"] for row in described.to_pylist()]
    assert sizes == [None if value is None else len(value) for value in values]
    if theirs.data_storage_version != "2.0":  # of 2.0 it shows nulls as (1, 0)
        assert described.to_pylist() == their_descriptors.to_pylist()


@pytest.mark.parametrize("nulls", ["none", "some", "all"])
@pytest.mark.parametrize("version", VERSIONS)
def test_blobs_of_pylance_read_the_same(tmp_path: Path, version: str, nulls: str) -> None:
    """Blobs are stored inline, packed or in a file of their own, depending on their size."""
    values = values_of(EDGES, nulls)
    lance.write_dataset(table_of(values), tmp_path / "t", data_storage_version=version)
    check_both_read(tmp_path / "t", values)


@pytest.mark.parametrize("nulls", ["none", "some", "all"])
@pytest.mark.parametrize("version", VERSIONS)
def test_pylance_reads_our_blobs(tmp_path: Path, version: str, nulls: str) -> None:
    """Thresholds, file names and descriptions must be those that pylance expects."""
    values = values_of(EDGES, nulls)
    table = table_of(values)
    lance_stream.create_dataset(tmp_path / "t", table.schema, version).append(table)
    lance.dataset(tmp_path / "t").validate()
    check_both_read(tmp_path / "t", values)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("writer", ["pylance", "ours"])
def test_many_small_blobs_read_alike(tmp_path: Path, version: str, writer: str) -> None:
    """Twenty thousand blobs fill several pages and packed files."""
    random = np.random.default_rng(9)
    values = values_of(random.integers(0, 50, 20_000).tolist(), "some")
    table = table_of(values)
    if writer == "ours":
        lance_stream.create_dataset(tmp_path / "t", table.schema, version).append(table)
    else:
        lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    assert lance_stream.open_dataset(tmp_path / "t").to_table()["b"].to_pylist() == values
    rows = sorted(random.choice(len(values), 50, replace=False).tolist())
    theirs = lance.dataset(tmp_path / "t").take_blobs("b", indices=rows)
    ours = lance_stream.open_dataset(tmp_path / "t").take_blobs("b", rows)
    assert [value and value.readall() for value in theirs] == [values[row] for row in rows]
    assert [value and value.read() for value in ours] == [values[row] for row in rows]


@pytest.mark.parametrize("version", VERSIONS)
def test_both_write_to_a_table_alternately(tmp_path: Path, version: str) -> None:
    """Fragments of both writers stand next to each other in one table."""
    one, two = values_of(EDGES, "some"), values_of(EDGES[::-1], "none")
    lance.write_dataset(table_of(one), tmp_path / "t", data_storage_version=version)
    lance_stream.open_dataset(tmp_path / "t").append(table_of(two, 100))
    lance.write_dataset(table_of(one, 200), tmp_path / "t", mode="append")
    check_both_read(tmp_path / "t", one + two + one)
    lance.dataset(tmp_path / "t").delete("id in (1, 3, 105)")
    survivors = one[:1] + one[2:3] + one[4:] + two[:5] + two[6:] + one
    check_both_read(tmp_path / "t", survivors)


def test_extension_type_columns_read_alike(tmp_path: Path) -> None:
    """The thresholds of a column are metadata that both writers must obey."""
    values = values_of([0, 10, 11, 90, 101, 30], "some")
    field = lance.blob_field(
        "b", inline_size_threshold=10, dedicated_size_threshold=100, pack_file_size_threshold=200
    )
    table = pa.table([lance.blob_array(values)], schema=pa.schema([field]))
    lance.write_dataset(table, tmp_path / "theirs", data_storage_version="2.2")
    check_both_read(tmp_path / "theirs", values)
    lance_stream.open_dataset(tmp_path / "theirs").append(table)
    check_both_read(tmp_path / "theirs", values * 2)
    ours = lance_stream.create_dataset(tmp_path / "ours", table.schema, "2.2").append(table)
    check_both_read(tmp_path / "ours", values)
    assert lance.dataset(tmp_path / "ours").schema.field("b").type == field.type
    kinds = lance.dataset(tmp_path / "theirs").to_table()["b"].to_pylist()[: len(values)]
    described = ours.to_table(blob_handling="descriptors")["b"].to_pylist()
    parts = ("kind", "size", "blob_id")
    assert [kind and [kind[name] for name in parts] for kind in kinds] == [
        value and [value[name] for name in parts] for value in described
    ]


def test_external_blobs_of_pylance_are_read(tmp_path: Path) -> None:
    """pylance stores URIs and ranges in other files on request."""
    (tmp_path / "outside.bin").write_bytes(b"0123456789")
    uri = (tmp_path / "outside.bin").as_uri()
    blobs = lance.blob_array([uri, lance.Blob.from_uri(uri, 3, 4), b"inside", None])
    table = pa.table([blobs], schema=pa.schema([lance.blob_field("b")]))
    lance.write_dataset(
        table,
        tmp_path / "t",
        data_storage_version="2.2",
        allow_external_blob_outside_bases=True,
    )
    ours = lance_stream.open_dataset(tmp_path / "t", trusted_locations=[str(tmp_path)])
    assert ours.to_table()["b"].to_pylist() == [b"0123456789", b"3456", b"inside", None]
    files = ours.take_blobs("b", [0, 1])
    assert [file and (file.size, file.read()) for file in files] == [
        (10, b"0123456789"),
        (4, b"3456"),
    ]


def test_old_files_store_plain_blobs(tmp_path: Path) -> None:
    """pylance ignores the column's metadata in version 0.1, and writes and reads plain bytes."""
    uri = str(tmp_path / "t")
    rows = table_of([b"abc", b"\0" * 70_000, b"x"])
    lance.write_dataset(rows, uri, data_storage_version="legacy", enable_stable_row_ids=True)
    ds = lance_stream.open_dataset(uri)
    expected = lance.dataset(uri).scanner(blob_handling="all_binary").to_table().to_pylist()
    assert ds.to_table().to_pylist() == expected == rows.to_pylist()
    assert ds.take([2, 0])["b"].to_pylist() == [b"x", b"abc"]
    assert ds.changes(0).read_all()["b"].to_pylist() == rows["b"].to_pylist()
    with pytest.raises(UnsupportedFeatureError, match="store their bytes as plain values"):
        ds.take_blobs("b", [0])
    with pytest.raises(UnsupportedFeatureError, match="store their bytes as plain values"):
        ds.to_table(blob_handling="descriptors")
