"""`verify(deep=True)`: every page of every column is decoded."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli import main as program

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
