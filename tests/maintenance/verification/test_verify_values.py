"""`verify(deep=True)`: every page of every column is decoded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli import main as program
from lance_stream.maintenance.verification import verify_values
from lance_stream.table.manifest import encode_manifest

ROWS = pa.table(
    {
        "id": np.random.default_rng(1).integers(0, 1 << 60, 4000),
        "name": [f"name {number}" for number in range(4000)],
        "v": pa.FixedSizeListArray.from_arrays(
            pa.array(np.random.default_rng(2).random(16000), pa.float32()), 4
        ),
        "parts": [[{"a": number}] * (number % 3) for number in range(4000)],
    }
)


@pytest.fixture(params=["0.1", "2.0", "2.1", "2.2"])
def ds(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    version = request.param
    rows = ROWS.drop_columns(["parts"]) if version == "0.1" else ROWS
    ds = lance_stream.create_dataset(tmp_path / "t", rows.schema, version)
    return ds.append(rows).append(rows.slice(0, 100)).delete("name = 'name 7'")


@pytest.mark.floors
def test_deep_verification_accepts_sound_tables(ds: Dataset) -> None:
    """Decoding every page of every file version must raise no false alarm, deleted rows
    included.
    """
    assert ds.verify(deep=True) == []


def test_deep_verification_accepts_pylances_tables(tmp_path: Path) -> None:
    """Encodings that only the reference writes must not be reported as damage."""
    dataset = lance.write_dataset(ROWS, str(tmp_path / "t"), data_storage_version="2.1")
    dataset.delete("name = 'name 7'")
    assert lance_stream.open_dataset(tmp_path / "t").verify(deep=True) == []


def test_deep_verification_reads_blobs(tmp_path: Path) -> None:
    """Blob values lie outside of the pages, and a null has none."""
    schema = pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    ds = lance_stream.create_dataset(tmp_path / "t", schema, "2.1")
    ds = ds.append(pa.table({"b": pa.array([b"x" * 5000, None], pa.large_binary())}))
    assert ds.verify(deep=True) == []


def test_damaged_values_are_named(tmp_path: Path) -> None:
    """The metadata at the end of the file stays intact, so a shallow verification finds nothing."""
    rng = np.random.default_rng(3)
    actual = 0
    for attempt in map(str, range(12)):
        ds = lance_stream.create_dataset(tmp_path / attempt, ROWS.schema, "2.1").append(ROWS)
        (path,) = (tmp_path / attempt / "data").iterdir()
        data = bytearray(path.read_bytes())
        start = int(rng.integers(0, len(data) // 2))
        data[start : start + 4000] = rng.bytes(4000)
        path.write_bytes(data)
        ds = lance_stream.open_dataset(ds.uri)
        assert ds.verify() == []
        for finding in ds.verify(deep=True):
            assert finding.rule == "values"
            assert finding.where.startswith("fragment 0, column '")
            actual += 1
    assert actual >= 4  # random bytes of fixed-size values are values, too


def test_missing_files_affect_every_column(tmp_path: Path) -> None:
    """A finding per column tells what is lost, and one must not hide the others."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS)
    (path,) = (tmp_path / "t" / "data").iterdir()
    path.unlink()
    actual = lance_stream.open_dataset(ds.uri).verify(deep=True)
    assert sum(finding.rule == "values" for finding in actual) == len(ROWS.column_names)


def test_the_command_line_verifies_deeply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option must reach the verb, and its combination with `--against` is refused."""
    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, ROWS)
    assert program.main(["verify", uri, "--deep"]) == 0
    assert program.main(["verify", uri, "--deep", "--against", uri]) == 2


def with_manifest(ds: Dataset, **changed: Any) -> Dataset:
    """Put another manifest in place of the newest version's."""
    manifest = replace(ds.table.manifest, **changed)
    ds.table.store.write(ds.table.log.manifest_path(ds.version), encode_manifest(manifest))
    return lance_stream.open_dataset(ds.uri)


@pytest.mark.parametrize("has_nulls", [True, False])
@pytest.mark.parametrize("nullable", [True, False])
def test_nulls_need_a_nullable_column(tmp_path: Path, has_nulls: bool, nullable: bool) -> None:
    """Readers that trust the schema read any value in place of a null."""
    values = pa.table({"x": [1, None if has_nulls else 2]})
    ds = lance_stream.create_dataset(tmp_path / "t", values)
    (field,) = ds.table.schema.fields
    schema = replace(ds.table.schema, fields=(replace(field, nullable=nullable),))
    findings = [
        finding.message
        for finding in with_manifest(ds, schema=schema).verify(deep=True)
        if finding.rule == "values"
    ]
    expected = ["1 nulls in a non-nullable column"] if has_nulls and not nullable else []
    assert findings == expected


@pytest.mark.parametrize("num_read", [2, 3, 4])
def test_columns_have_all_live_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_read: int
) -> None:
    """A page that decodes to fewer values without an error shifts all later rows."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"x": [1, 2, 3]}))
    monkeypatch.setattr(verify_values, "_num_rows", lambda _unit, **_: num_read)
    findings = [finding.message for finding in ds.verify(deep=True)]
    expected = [f"it has {num_read} live values, but the fragment 3 live rows"]
    assert findings == (expected if num_read != 3 else [])
