"""Rows of tables and parquet files are compared by a digest."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from lance_stream import InvalidInputError, NotFoundError
from lance_stream.maintenance.verification.comparing import compare, read_parquet


def write(path: Path, **columns: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def rows_of(path: Path, columns: list[str] | None = None) -> list[dict[str, object]]:
    return [row for batch in read_parquet(str(path), columns) for row in batch.to_pylist()]


def test_each_file_has_its_own_columns(tmp_path: Path) -> None:
    """A column of one file must not be lost because the first one lacks it."""
    write(tmp_path / "1.parquet", a=[1], b=[2])
    write(tmp_path / "2.parquet", a=[3], c=[4])
    assert rows_of(tmp_path) == [{"a": 1, "b": 2}, {"a": 3, "c": 4}]
    assert rows_of(tmp_path / "1.parquet") == [{"a": 1, "b": 2}]
    some = [{"c": None, "a": 1}, {"c": 4, "a": 3}]
    assert rows_of(tmp_path, ["c", "a"]) == some


def test_folders_may_name_columns(tmp_path: Path) -> None:
    """The folder's value wins over the file's, as in Spark, and there is one column of them."""
    write(tmp_path / "day=1" / "1.parquet", a=[1])
    write(tmp_path / "day=2" / "1.parquet", a=[2], day=[7])
    assert rows_of(tmp_path) == [{"a": 1, "day": 1}, {"a": 2, "day": 2}]
    assert rows_of(tmp_path, ["day"]) == [{"day": 1}, {"day": 2}]
    assert rows_of(tmp_path / "day=1" / "1.parquet") == [{"a": 1}]


def test_unreadable_parquet_is_refused(tmp_path: Path) -> None:
    """A comparison with nothing would find all rows missing."""
    with pytest.raises(NotFoundError, match="neither a table nor a parquet file at"):
        rows_of(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no parquet file exists in"):
        rows_of(tmp_path / "empty")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(InvalidInputError, match="cannot be read as parquet"):
        rows_of(tmp_path / "text.parquet")
    write(tmp_path / "a.parquet", a=[1], b=[2])
    with pytest.raises(InvalidInputError, match="has no column 'c'; it has: a, b"):
        rows_of(tmp_path / "a.parquet", ["a", "c"])


@pytest.mark.parametrize(
    ("theirs", "is_same", "columns"),
    [
        ({"a": [1, 2], "b": [3, 4]}, True, ()),
        ({"a": [2, 1], "b": [4, 3]}, True, ()),
        ({"a": [1, 2], "b": [4, 3]}, False, ()),
        ({"a": [1, 2], "b": [3, 5]}, False, ("b",)),
        ({"a": [1, 3], "b": [3, 5]}, False, ("a", "b")),
        ({"a": [1, 2]}, False, ("b",)),
        ({"a": [1, 2], "b": [3, 4], "c": [0, 0]}, False, ("c",)),
    ],
)
def test_differing_columns_are_named(
    theirs: dict[str, list[int]], is_same: bool, columns: tuple[str, ...]
) -> None:
    """None differs if the same values belong to other rows."""
    ours = pa.table({"a": [1, 2], "b": [3, 4]})
    comparison = compare(ours.to_batches, pa.table(theirs).to_batches)
    assert (comparison.is_same, comparison.columns) == (is_same, columns)
