"""A table that is created with its first rows."""

import os
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


def files_below(folder: Path) -> list[str]:
    return sorted(name for _, _, names in os.walk(folder) for name in names)


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        ROWS.to_reader(1),
        ROWS.to_batches()[0],
        iter(ROWS.to_batches(1)),
        pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, "c"]}),
    ],
    ids=["table", "reader", "batch", "batches", "pandas"],
)
def test_the_first_version_has_the_rows(tmp_path: Path, data: Any) -> None:
    """Any tabular input creates the table in one version, so nobody sees it empty; pylance reads
    the same rows.
    """
    ds = lance_stream.create_dataset(tmp_path / "t", data)
    assert ds.version == 1
    assert ds.has_stable_row_ids
    assert ds.to_table().to_pydict() == ROWS.to_pydict()
    assert lance.dataset(str(tmp_path / "t")).to_table().to_pydict() == ROWS.to_pydict()
    assert ds.changes(after=0).read_all()["_change_type"].to_pylist() == ["insert"] * 3


@pytest.mark.parametrize("key", ["id", ["id"]], ids=repr)
def test_key_and_file_version_are_stored(key: str | list[str], tmp_path: Path) -> None:
    """Options of an empty table apply to one that is created with rows as well."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS, "2.0", primary_key=key)
    assert ds.file_version == "2.0"
    assert not ds.schema.field("id").nullable
    assert ds.to_table()["id"].to_pylist() == [1, 2, 3]


def test_no_rows_make_an_empty_table(tmp_path: Path) -> None:
    """A job without input must still create a table with its columns."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS.slice(0, 0))
    assert (ds.version, ds.to_table().num_rows) == (1, 0)
    assert ds.schema.names == ROWS.schema.names


def test_existing_tables_stay_unchanged(tmp_path: Path) -> None:
    """Creating must not append to or replace a table, nor leave the files of its rows."""
    lance_stream.create_dataset(tmp_path / "t", ROWS)
    before = files_below(tmp_path)
    with pytest.raises(InvalidInputError, match="already exists"):
        lance_stream.create_dataset(tmp_path / "t", ROWS)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"id": [1]}, r"needs the table's columns, pa\.schema.* a dict has no rows"),
        ("id long", r"needs the table's columns"),
        (ROWS.append_column("id", ROWS["id"]), "two columns|twice|same name"),
    ],
)
def test_invalid_data_creates_no_table(tmp_path: Path, data: Any, match: str) -> None:
    """A dict or text has no schema, and refusing it late would leave a folder behind."""
    with pytest.raises(InvalidInputError, match=match):
        lance_stream.create_dataset(tmp_path / "t", data)
    assert files_below(tmp_path) == []


def test_null_keys_create_no_table(tmp_path: Path) -> None:
    """A primary key with nulls cannot identify its rows, and the check comes while files are
    written.
    """
    with pytest.raises(InvalidInputError, match="null"):
        lance_stream.create_dataset(tmp_path / "t", ROWS, primary_key=["name"])
    assert files_below(tmp_path) == []
