"""A table as a source of Ray Data: its tasks, columns and filters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.distributed import dividing
from tests.recipes import need

ray: Any = need("ray")

from lance_stream.ray import change_source, version_source  # noqa: E402  # needs Ray Data

pytestmark = [pytest.mark.recipes, pytest.mark.nightly]


@pytest.fixture
def ds(tmp_path: Path) -> lance_stream.Dataset:
    """Return a table with inserted, updated and deleted rows."""
    rows = pa.table({"id": range(100), "name": [f"n{number}" for number in range(100)]})
    ds = lance_stream.create_dataset(tmp_path / "t", rows)
    return ds.upsert(rows.slice(90), on="id").delete("id % 9 = 1")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start Ray on this machine, with tasks' rows in order."""
    ray.init(num_cpus=1, include_dashboard=False)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    yield
    ray.shutdown()


def rows_of(source: Any, **options: Any) -> list[dict[str, Any]]:
    return ray.data.read_datasource(source, **options).take_all()


def test_tasks_read_the_scanned_rows(
    ds: lance_stream.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's workers see what a scan sees, in as many tasks as Ray requests."""
    monkeypatch.setattr(dividing, "MIN_ROWS_IN_A_PART", 10)
    source = version_source(ds.uri, columns=["id"], filter="id > 20")
    assert len(source.get_read_tasks(3)) == 3
    assert rows_of(source, override_num_blocks=3) == ds.to_table(["id"], "id > 20").to_pylist()
    assert ray.data.read_datasource(source).count() == ds.count_rows("id > 20")
    assert rows_of(version_source(ds.uri, version=1)) == ds.checkout(1).to_table().to_pylist()
    assert source.estimate_inmemory_data_size() > 0


def test_tasks_read_the_feed_rows(ds: lance_stream.Dataset) -> None:
    """A version is where a program continues."""
    source = change_source(ds.uri, 0, 2)
    assert rows_of(source) == ds.changes(0, 2).read_all().to_pylist()
    rest = change_source(ds.uri, source.version, columns=["id"], filter="_change_type = 'delete'")
    assert [row["id"] for row in rows_of(rest)] == list(range(1, 100, 9))
    assert rows_of(change_source(ds.uri, rest.version)) == []


def test_reads_without_rows_have_columns(ds: lance_stream.Dataset) -> None:
    """A program that selects columns by the schema also does so if it finds nothing new."""
    source = change_source(ds.uri, ds.version, columns=["id", "_change_type"])
    rows = ray.data.read_datasource(source)
    assert rows.schema().names == ["id", "_change_type"]
    assert rows.take_all() == []
