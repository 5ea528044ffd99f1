"""What verbs do with SQL expressions: the values they store, and the names they accept."""

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError

ROWS = pa.table(
    {
        "Id": pa.array([1, 2], pa.int64()),
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "n": pa.array([1, 2], pa.int32()),
        "plain": pa.array([datetime(1970, 1, 1)] * 2, pa.timestamp("us")),
        "at": pa.array([datetime(1970, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
    }
)


@pytest.fixture
def ds(tmp_path: Path) -> lance_stream.Dataset:
    return lance_stream.create_dataset(tmp_path / "t", ROWS)


def test_vectors_are_set_by_list_literals(ds: lance_stream.Dataset) -> None:
    """The numbers of a list literal are decimals, and those of a vector floats."""
    ds = ds.update({"vector": "array(0.5, n)"}, "ID = 2")
    assert sorted(ds.to_table(["vector"])["vector"].to_pylist()) == [[0.5, 2.0], [1.0, 2.0]]


def test_texts_are_stored_as_spark_shows(ds: lance_stream.Dataset) -> None:
    """A replica that Spark computes has the same rows."""
    ds = ds.add_columns(
        {"a": "CAST(n * 1e20 AS string)", "b": "CAST(AT AS string)", "c": 'concat("n", n)'}
    )
    rows = ds.to_table(["a", "b", "c"], filter="id = 1").to_pylist()
    assert rows == [{"a": "1.0E20", "b": "1970-01-01 00:00:00", "c": "n1"}]


def test_current_times_are_set_in_utc(ds: lance_stream.Dataset) -> None:
    """`current_timestamp` is one moment for all rows, and a column without a zone holds UTC on
    every machine.
    """
    before = datetime.now(UTC)
    ds = ds.update({"plain": "current_timestamp", "at": "now()"})
    plain, at = (set(ds.to_table([name])[name].to_pylist()) for name in ("plain", "at"))
    assert len(plain) == len(at) == 1  # one time for all rows
    (moment,) = at
    assert before - timedelta(seconds=1) < moment <= datetime.now(UTC)
    assert abs(plain.pop().replace(tzinfo=UTC) - moment) < timedelta(seconds=5)


def test_checks_name_columns_in_any_case(ds: lance_stream.Dataset) -> None:
    """Spark resolves names in any case, and the current time is the same for all rows of a
    statement.
    """
    check = "ID > 0 AND AT < current_timestamp"
    assert ds.append(ROWS, expect=check).count_rows() == 4
    assert ds.upsert(ROWS, on="Id", expect=check).count_rows() >= 2
    with pytest.raises(InvalidInputError, match="is not true"):
        ds.append(ROWS, expect="ID > 1")


def test_large_integers_compare_with_floats(tmp_path: Path) -> None:
    """A stream with such a condition would stop at the first large id and could not continue."""
    rows = pa.table(
        {
            "id": pa.array([1, 2**53 + 1, 2**63 - 1], pa.int64()),
            "score": pa.array([0.5, 9e18, 1e18], pa.float64()),
            "small": pa.array([1.0, 2.0, 3.0], pa.float32()),
            "u": pa.array([1, 2, 2**64 - 1], pa.uint64()),
        }
    )
    ds = lance_stream.create_dataset(tmp_path / "large", rows)
    for condition, expected in {
        "id > score": [1, 2**63 - 1],
        "id + 0 > small": [2**53 + 1, 2**63 - 1],
        "u * 2 > id": [1, 2**63 - 1],
        "CAST(id % 100 AS decimal(10, 2)) = 7.00": [2**63 - 1],
    }.items():
        assert ds.to_table(["id"], filter=condition)["id"].to_pylist() == expected, condition


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_update_stores_nearest_floats(kind: pa.DataType) -> None:
    """A float times an integer is a double, which UPDATE of Spark stores in the float column."""
    rows = pa.table({"price": pa.array([1.5, None], pa.float32()).cast(kind)})
    table = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows)
    updated = table.update({"price": "price * 2 + 0.1"}).to_table()["price"]
    expected = np.array([3.1], kind.to_pandas_dtype())
    assert updated.to_numpy()[:1].tolist() == expected.tolist()
    assert updated.null_count == 1
