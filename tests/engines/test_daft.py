"""A table as a source of Daft: its tasks, columns and filters."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.distributed import dividing
from tests.recipes import need

daft: Any = need("daft")

from lance_stream.daft import change_source, version_source  # noqa: E402  # needs Daft

pytestmark = [pytest.mark.recipes, pytest.mark.nightly]


@pytest.fixture
def ds(tmp_path: Path) -> lance_stream.Dataset:
    """Return a table with inserted, updated and deleted rows."""
    rows = pa.table({"id": range(100), "name": [f"n{number}" for number in range(100)]})
    ds = lance_stream.create_dataset(tmp_path / "t", rows)
    return ds.upsert(rows.slice(90), on="id").delete("id % 9 = 1")


def test_tasks_read_the_scanned_rows(
    ds: lance_stream.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daft sees what a scan sees, in several tasks, whichever columns a query needs."""
    monkeypatch.setattr(dividing, "MIN_ROWS_IN_A_PART", 10)
    monkeypatch.setattr(dividing, "number_of_tasks", lambda _bytes: 3)
    frame = version_source(ds.uri, filter="id > 20").read()
    assert frame.to_pylist() == ds.to_table(filter="id > 20").to_pylist()
    assert frame.count_rows() == ds.count_rows("id > 20")
    assert len(frame.select(daft.lit(1)).to_pylist()) == ds.count_rows("id > 20")
    names = frame.where(daft.col("id") > 95).select("name").to_pydict()
    assert names == ds.to_table(["name"], "id > 95").to_pydict()
    old = version_source(ds.uri, version=1, columns=["id"]).read()
    assert old.to_pylist() == ds.checkout(1).to_table(["id"]).to_pylist()


def test_filters_may_call_functions(ds: lance_stream.Dataset) -> None:
    """A query that selects other columns needs those of its condition, whatever that computes."""
    id_, name = daft.col("id"), daft.col("name")
    for condition in (name.upper() == "N95", name.endswith("5") & ((id_ - 90).abs() == 5)):
        for source, num_rows in ((version_source(ds.uri), 1), (change_source(ds.uri, 0), 3)):
            matches = source.read().where(condition).select("id")
            assert set(matches.to_pydict()["id"]) <= {85, 95}
            assert matches.where(id_ == 95).count_rows() == num_rows


def test_tasks_read_the_feed_rows(ds: lance_stream.Dataset) -> None:
    """A version is where a program continues."""
    source = change_source(ds.uri, 0, 2)
    assert source.read().to_pylist() == ds.changes(0, 2).read_all().to_pylist()
    rest = change_source(ds.uri, source.version, columns=["id"], filter="_change_type = 'delete'")
    assert rest.read().to_pydict()["id"] == list(range(1, 100, 9))
    assert change_source(ds.uri, rest.version).read().to_pylist() == []
    kinds = change_source(ds.uri, 0).read().select("_change_type").distinct().to_pylist()
    assert len(kinds) == 4
