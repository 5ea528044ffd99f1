"""What the key index of a table lacks."""

from dataclasses import replace

import pytest

import lance_stream
from lance_stream.keys.index import run_files, run_merging
from lance_stream.keys.index import shared_index as shared_index_module
from lance_stream.keys.index.shared_index import SharedIndex, index_keys, shared_index
from lance_stream.table.fragments.fragment_list import FragmentList
from tests.keys.index.small_runs import runs_of
from tests.keys.keyed_tables import table_of, watched


def test_only_indexable_files_are_missing() -> None:
    """A round for other files would follow each commit and change nothing."""
    table = table_of(3)
    first, *others = table.manifest.fragments
    (file,) = first.files
    foreign = replace(first, files=(replace(file, path="part-0.lance"),))
    fragments = FragmentList.of([foreign, *others])
    table = table.at(replace(table.manifest, fragments=fragments))
    lacking = SharedIndex(("id",), (1, 2), {}).lacking(table)
    assert lacking == [(index, others[index - 1].physical_rows) for index in (1, 2)]
    index_keys(table, ["id"], (1, 2), [0, 1])
    assert shared_index(table, ["id"]).lacking(table) == [(2, 50)]


@pytest.mark.parametrize(
    ("num_rows", "is_missing"), [(0, False), (1, True), (49, True), (50, True), (51, False)]
)
def test_files_have_a_maximum_size(
    num_rows: int, is_missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task holds the keys of a file in memory; older writers state no number of rows."""
    monkeypatch.setattr(shared_index_module, "MAX_SAVED_ROWS", 50)
    table = table_of(1)
    (fragment,) = table.manifest.fragments
    fragments = FragmentList.of([replace(fragment, physical_rows=num_rows)])
    table = table.at(replace(table.manifest, fragments=fragments))
    lacking = SharedIndex(("id",), (1, 2), {}).lacking(table)
    assert lacking == [(0, num_rows)] * is_missing


def test_only_several_runs_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job for a run alone would change nothing."""
    monkeypatch.setattr(run_merging, "RUNS_OF_A_TIER", 1)
    table = table_of(3)
    for position in range(3):
        index_keys(table, ["id"], (1, 2), [position])
        paths = runs_of(table)
        groups = shared_index(table, ["id"]).to_merge()
        assert [sorted(group) for group in groups] == [paths] * (position > 0)


def test_the_most_frequent_seeds_count() -> None:
    """Runs of other processes, columns and types are no part of the index, nor are damaged ones."""
    table = table_of(4)
    index_keys(table, ["id"], (3, 4), [0])
    index_keys(table, ["id"], (1, 2), [0, 1])
    index_keys(table, ["id"], (1, 2), [2])
    index_keys(table, ["id", "x"], (1, 2), [0, 1, 2, 3])
    store = table.store
    paths = runs_of(table)
    columns = {path: run_files.read_footer(store, path).columns for path in paths}
    expected = [
        path
        for path, run_columns in columns.items()
        if run_columns.seeds == (1, 2) and len(run_columns.field_ids) == 1
    ]
    store.write(f"{paths[0].rpartition('/')[0]}/0-{'f' * 32}.keys", b"damaged")
    table, watched_store = watched(table)
    index = shared_index(table, ["id"])
    assert (index.seeds, sorted(index.runs)) == ((1, 2), sorted(expected))
    assert index.lacking(table) == [(3, 50)]
    watched_store.calls.clear()
    again = shared_index(table, ["id"])
    assert again.runs == index.runs
    assert {path for call, path in watched_store.calls if call != "list_names"} == {
        f"{paths[0].rpartition('/')[0]}/0-{'f' * 32}.keys"
    }
    other = lance_stream.Dataset(table).drop_columns(["id"]).add_columns({"id": "7"})
    assert shared_index(other.table, ["id"]).runs == {}


def test_other_files_are_not_indexed() -> None:
    """A fragment may have changed since the driver planned the task."""
    table = table_of(2)
    first, other = table.manifest.fragments
    (file,) = first.files
    foreign = replace(first, files=(replace(file, path="part-0.lance"),))
    unnamed = table.at(replace(table.manifest, fragments=FragmentList.of([foreign, other])))
    index_keys(unnamed, ["id"], (1, 2), [0, 1])
    (path,) = runs_of(table)
    assert run_files.read_footer(table.store, path).num_rows == 50
