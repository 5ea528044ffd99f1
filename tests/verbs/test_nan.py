"""NaN in expressions: equal to itself and greater than any other number, in every file version."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from tests.sampling import some_of

NAN = float("nan")
VALUES = [1.0, NAN, -0.0, 0.0, float("inf"), float("-inf"), None, 500.0]
LITERALS = ["300", "0.0", "1", "CAST('nan' AS double)", "f", "f + 1"]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
QUERIES = [
    *(f"f {operator} {literal}" for operator in OPERATORS for literal in LITERALS),
    *(f"NOT ({literal} {operator} f)" for operator in OPERATORS for literal in LITERALS),
    "f BETWEEN 1 AND 600",
    "f BETWEEN 1 AND CAST('nan' AS double)",
    "f IN (1.0, CAST('nan' AS double))",
    "f NOT IN (1.0, CAST('nan' AS double))",
    "f > 300 AND f < 1000 OR f = 0",
]


@pytest.mark.floors
@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("version", ["0.1", "2.0", "2.2"])
@pytest.mark.oracle
def test_filters_choose_the_rows_of_pylance(
    version: str, arrow: pa.DataType, tmp_path: Path
) -> None:
    """Statistics do not count NaN, so skipping pages or folding constants could drop its rows."""
    path = str(tmp_path / "t")
    # 0.1 has no nulls; groups of 3 rows make its pages, with their own bounds
    values = [value for value in VALUES * 4 if version != "0.1" or value is not None]
    rows = pa.table({"f": pa.array(values, arrow), "id": list(range(len(values)))})
    lance.write_dataset(rows, path, data_storage_version=version, max_rows_per_group=3)
    # by the bounds of 0.1, pylance leaves out pages that hold NaN
    theirs = lance.write_dataset(rows, tmp_path / "other", data_storage_version="2.2")
    ours = lance_stream.open_dataset(path)
    for query in some_of(QUERIES, 2, f"{version} {arrow}"):
        expected = theirs.to_table(columns=["id"], filter=query)
        assert ours.to_table(["id"], filter=query).to_pydict() == expected.to_pydict(), query


def test_nan_compares_as_the_greatest_number(tmp_path: Path) -> None:
    """SQL in Spark and DataFusion orders NaN above infinity, unlike IEEE comparison in numpy."""
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64())])
    ds = lance_stream.create_dataset(tmp_path / "t", schema)
    ds = ds.append(pa.table({"id": [1, 2, 3, 4], "f": [1.0, NAN, 400.0, None]}))
    assert ds.update({"f": "0"}, where="f > 300").to_table()["f"].to_pylist() == [1.0, 0, 0, None]
    assert ds.checkout(2).count_rows("f > 300") == 2
    assert ds.checkout(2).count_rows("f <= 300") == 1


@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64(), pa.decimal128(9, 3)], ids=str)
def test_decimal_literals_fit_all_fractional_types(arrow: pa.DataType, tmp_path: Path) -> None:
    """A literal like `9.0` is a decimal in SQL and has to match floats as well as decimals."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([("x", arrow)]))
    ds = ds.append(pa.table({"x": pa.array([1, 2], pa.int8()).cast(arrow)}))
    assert [float(value) for value in ds.update({"x": "9.0"}).to_table()["x"].to_pylist()] == [9, 9]
    ds = ds.update({"x": "-0.25"}, where="x = 9.0")
    assert [float(value) for value in ds.to_table()["x"].to_pylist()] == [-0.25, -0.25]


def test_doubles_match_their_decimal_digits(tmp_path: Path) -> None:
    """The digits exceed 2**53 without the point, so parsing them in two steps would round twice."""
    digits = "0.10000000149011612"  # more than 2^53, without the point
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([("x", pa.float64())]))
    ds = ds.append(pa.table({"x": [1.5]})).update({"x": digits})
    assert ds.to_table()["x"].to_pylist() == [float(digits)]
    assert lance.dataset(ds.uri).count_rows(f"x = {digits}") == 1
    assert ds.delete(f"x = {digits}").count_rows() == 0
