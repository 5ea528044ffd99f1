"""Indices that we update: pylance searches them, whatever others commit meanwhile."""

import threading
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    Dataset,
    IndexBuildError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.maintenance.indices import building
from lance_stream.row_updates.in_place_costs import FragmentCosts
from lance_stream.table.indices import decode_index_section
from lance_stream.table.paths import index_folder
from tests.oracle.indexed_table import ACTS, IndexedTable

pytestmark = pytest.mark.oracle

BOTH = pytest.mark.parametrize("stable_row_ids", [True, False], ids=["stable ids", "addresses"])
START_AGAIN = {IndexedTable.compact, IndexedTable.overwrite, IndexedTable.restore}
"""What indices cannot be committed after: their rows are elsewhere, or others."""


def uncovered(ds: Dataset) -> dict[str, int | None]:
    return {
        coverage.name: coverage.rows_unindexed
        for coverage in ds.index_coverage()
        if coverage.rows_unindexed
    }


def index_folders(table: IndexedTable) -> set[str]:
    return {file.path.split("/")[1] for file in table.ours.table.store.list("_indices")}


@BOTH
def test_indices_cover_all_rows_afterwards(tmp_path: Path, stable_row_ids: bool) -> None:
    """Rows that are not covered are scanned by each query."""
    table = IndexedTable(str(tmp_path / "t"), 1, stable_row_ids=stable_row_ids)
    table.upsert()
    table.append()
    before = table.ours
    assert len(uncovered(before)) == 8
    transactions = len(before.table.store.list_names("_transactions"))
    latest = before.optimize_indices()
    assert latest.version == before.version + 1
    assert uncovered(latest) == {}
    assert {coverage.num_segments for coverage in latest.index_coverage()} == {1}
    if stable_row_ids:
        assert latest.changes(after=before.version).read_all().num_rows == 0
    assert latest.verify() == []
    table.check()
    assert latest.optimize_indices().version == latest.version
    assert len(latest.table.store.list_names("_transactions")) == transactions + 1


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@BOTH
def test_writes_meanwhile_are_merged(
    tmp_path: Path, act: Callable[[IndexedTable], None], stable_row_ids: bool
) -> None:
    """Building takes minutes, in which others commit."""
    table = IndexedTable(str(tmp_path / "t"), 2, stable_row_ids=stable_row_ids)
    table.append()
    table.delete()
    folders = index_folders(table)
    is_committed = table.update_indices_beside(act)
    if act is IndexedTable.update_indices:
        assert not is_committed
    else:
        assert is_committed == (act not in START_AGAIN)
        if not is_committed:
            assert index_folders(table) == folders  # what was made in vain is deleted
    table.check()
    table.update_indices()
    assert uncovered(table.ours) == {}
    table.check()


@BOTH
def test_columns_changed_meanwhile_lose_coverage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stable_row_ids: bool
) -> None:
    """The index was built from the old values of the column."""
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: True))
    table = IndexedTable(str(tmp_path / "t"), 3, stable_row_ids=stable_row_ids)
    table.append()

    def change(table: IndexedTable) -> None:
        rows = table.rows(range(10)).select(["id", "g", "name", "tags"])
        table.ours.upsert(rows, on=["id"])

    assert table.update_indices_beside(change)
    assert set(uncovered(table.ours)) == {"g_idx", "name_idx", "tags_idx"}
    table.check()
    table.update_indices()
    assert uncovered(table.ours) == {}
    table.check()


def test_parts_of_an_index_are_merged(tmp_path: Path) -> None:
    """Every query searches all parts, so their number must not grow."""
    table = IndexedTable(str(tmp_path / "t"), 4, stable_row_ids=True)
    for _ in range(3):
        table.append()
        table.theirs.optimize.optimize_indices(num_indices_to_merge=0)
    assert {coverage.num_segments for coverage in table.ours.index_coverage()} == {4}
    table.update_indices()
    scalar = [coverage for coverage in table.ours.index_coverage() if coverage.name != "v_idx"]
    assert {value.num_segments for value in scalar} == {1}
    table.check()
    table.append()
    table.update_indices()
    assert {coverage.num_segments for coverage in table.ours.index_coverage()} == {1}
    table.upsert()
    table.check()


def test_vector_indices_train_on_request(tmp_path: Path) -> None:
    """Training a vector index is expensive and must happen on request only."""
    table = IndexedTable(str(tmp_path / "t"), 5, stable_row_ids=True)
    table.append()
    assert "v_idx" not in uncovered(table.ours.optimize_indices(["v_idx", "g_idx"]))
    assert len(uncovered(table.ours)) == 6
    version = table.ours.version
    assert table.ours.optimize_indices("g_idx").version == version
    assert table.ours.optimize_indices("g_idx", retrain=True).version == version
    assert table.ours.optimize_indices("v_idx").version == version
    assert table.ours.optimize_indices("v_idx", retrain=True).version == version + 1
    table.check()
    with pytest.raises(NotFoundError, match=r"no index 'nose'; the table's indices are: 'g_idx'"):
        table.ours.optimize_indices("nose")


def test_concurrent_index_updates_all_succeed(tmp_path: Path) -> None:
    """Scheduled maintenance may run twice at the same time."""
    table = IndexedTable(str(tmp_path / "t"), 6, stable_row_ids=True)
    table.append()
    errors: list[Exception] = []

    def work() -> None:
        try:
            lance_stream.open_dataset(table.uri).optimize_indices()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert errors == []
    assert uncovered(table.ours) == {}
    assert table.ours.verify() == []
    table.check()


@pytest.mark.parametrize("name", ["g_idx", "id_idx", "x_idx", "text_idx", "v_idx"])
def test_a_damaged_index_is_reported(tmp_path: Path, name: str) -> None:
    """The other indices are still updated, and the user has to rebuild this one."""
    table = IndexedTable(str(tmp_path / "t"), 7, stable_row_ids=True)
    table.append()
    section = table.ours.table.manifest.index_section
    (damaged,) = [entry for entry in decode_index_section(section or b"") if entry.name == name]
    for file in table.ours.table.store.list(index_folder(damaged.uuid)):
        table.ours.table.store.delete(file.path)
    version = table.ours.version
    with pytest.raises(IndexBuildError) as raised:
        table.ours.optimize_indices()
    assert f"could not update the index {name}" in str(raised.value)
    assert f"are up to date in version {version + 1}" in str(raised.value)
    assert set(uncovered(table.ours)) == {name}
    with pytest.raises(IndexBuildError, match=r"The table is unchanged"):
        table.ours.optimize_indices()
    assert table.ours.version == version + 1


def test_the_error_names_the_index_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pylance is no dependency at run time, so the error names the command that installs it."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    monkeypatch.setattr(building, "is_installed", lambda _: False)
    with pytest.raises(InvalidInputError, match=r"pip install 'lance-stream\[index\]'"):
        ds.optimize_indices()


def test_memory_tables_are_refused() -> None:
    """pylance builds the index and would create an empty table in its own memory."""
    ds = lance_stream.create_dataset("memory://fresh-indices", pa.table({"id": [1]}))
    with pytest.raises(UnsupportedFeatureError, match="pylance cannot read memory:"):
        ds.optimize_indices()


def few(start: int, stop: int) -> pa.Table:
    vectors = np.arange(4 * (stop - start), dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(range(start, stop)),
            "text": ["apple" if number % 2 else "fig" for number in range(start, stop)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 4),
        }
    )


def index(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).create_scalar_index("text", "INVERTED")
    lance.dataset(uri).create_index("v", "IVF_FLAT", num_partitions=1)


def check(uri: str, num_rows: int) -> None:
    theirs = lance.dataset(uri)
    assert theirs.to_table(full_text_query="apple").num_rows == num_rows // 2
    assert theirs.to_table(filter=f"id = {num_rows - 1}").num_rows == 1
    nearest = {"column": "v", "q": np.zeros(4, np.float32), "k": num_rows}
    assert sorted(theirs.to_table(nearest=nearest)["id"].to_pylist()) == list(range(num_rows))


def test_branches_and_clones_have_separate_indices(tmp_path: Path) -> None:
    """An update must not change files that another branch or table uses."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, few(0, 20))
    index(uri)
    ds = lance_stream.open_dataset(uri)
    ds.branches.create("dev")
    dev = lance_stream.open_dataset(uri, branch="dev").append(few(20, 30)).optimize_indices()
    assert uncovered(dev) == {}
    assert dev.verify() == []
    check(dev.uri, 30)
    clone = ds.shallow_clone(tmp_path / "clone").append(few(20, 26)).optimize_indices()
    assert uncovered(clone) == {}
    assert clone.verify() == []
    check(str(tmp_path / "clone"), 26)
    check(uri, 20)
    assert lance_stream.open_dataset(uri).version == ds.version


def test_manifest_stores_publish_the_new_versions(tmp_path: Path) -> None:
    """A version that only the folder knows would be lost for readers of the store."""
    uri = str(tmp_path / "t")
    options = {"manifest_store": f"sqlite:///{tmp_path}/versions.db"}
    ds = lance_stream.create_dataset(uri, few(0, 20), storage_options=options)
    index(uri)
    lance_stream.claim_versions(uri, options)
    ds = lance_stream.open_dataset(uri, storage_options=options).append(few(20, 40))
    latest = ds.optimize_indices()
    assert latest.version == ds.version + 1
    assert uncovered(lance_stream.open_dataset(uri, storage_options=options)) == {}
    check(uri, 40)
