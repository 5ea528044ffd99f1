"""Reading a table by Arrow's C stream interface, and showing it in a notebook."""

from importlib.metadata import version
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "<b>"]})


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return lance_stream.create_dataset(tmp_path / "t", ROWS).delete("id = 2")


@pytest.mark.floors
def test_arrow_reads_tables_as_streams(ds: Dataset) -> None:
    """`__arrow_c_stream__` lets polars, DuckDB and pandas read a dataset without knowing us."""
    assert pa.RecordBatchReader.from_stream(ds).read_all() == ds.to_table()
    assert pa.table(ds).column("id").to_pylist() == [1, 3]


def test_pylance_writes_streams_from_us(ds: Dataset, tmp_path: Path) -> None:
    """The stream is consumed by Rust, which is stricter about schema and lifetime than pyarrow."""
    lance.write_dataset(pa.RecordBatchReader.from_stream(ds), str(tmp_path / "copy"))
    assert lance.dataset(str(tmp_path / "copy")).to_table() == ds.to_table()


def test_datasets_are_accepted_as_rows(ds: Dataset, tmp_path: Path) -> None:
    """Copying a table should need no detour through memory."""
    copy = lance_stream.create_dataset(tmp_path / "copy", ds)
    assert copy.upsert(ds, on="id").to_table() == ds.to_table()
    assert copy.append(ds).to_table()["id"].to_pylist() == [1, 3, 1, 3]


def test_notebooks_show_columns_and_size(ds: Dataset) -> None:
    """The first look at a dataset must answer what and how much it is."""
    output = ds._repr_html_()
    assert "version 2: 2 rows in 1 fragment<" in output
    assert "<td>name</td><td>string</td>" in output


def test_names_in_notebooks_are_escaped(tmp_path: Path) -> None:
    """Column names are untrusted, and a wide table must not fill the screen."""
    names = ["<script>", "\x1b[1m", *(f"c{number}" for number in range(60))]
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([(n, pa.int8()) for n in names]))
    output = ds._repr_html_()
    assert "<script>" not in output
    assert "&lt;script&gt;" in output
    assert "\x1b" not in output
    assert "and 12 more" in output


def test_the_package_states_its_version() -> None:
    """Attributes are loaded lazily, so an unknown one must still raise AttributeError."""
    assert lance_stream.__version__ == version("lance-stream")
    with pytest.raises(AttributeError, match="no attribute 'bananas'"):
        lance_stream.bananas  # noqa: B018  # looking it up is the test
