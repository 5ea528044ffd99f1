"""Values that are written to the source while other writers commit."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_stream
from lance_stream import derive
from lance_stream.commit.committer import read_transaction
from lance_stream.derived import candidates, same_table
from lance_stream.derived.computing import StagedValues
from lance_stream.row_updates.staged_files import SortedRows, sort_rows
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import encode_manifest
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.table.paths import NamingScheme, manifest_path
from tests.derived.test_derivation import LENGTH, SCHEMA, Lengths, lengths_of, new_table, rows


@pytest.mark.parametrize("changed", [{2, 13}, set(range(6)) | {13}], ids=["moved", "in place"])
def test_changed_inputs_get_no_values(tmp_path: Path, changed: set[int]) -> None:
    """The values of moved rows are still valid; those of changed inputs are not."""
    uri = new_table(tmp_path, (0, 6), (6, 12), (12, 18), (18, 24))

    def meanwhile(batch: pa.RecordBatch) -> list[int]:
        ds = lance_stream.open_dataset(uri)
        texts = pa.table({"id": sorted(changed), "text": ["changed"] * len(changed)})
        ds.upsert(texts, on="id").update({"price": "7"}, where="id in (3, 7, 19)")
        return [len(text) for text in batch["text"].to_pylist()]

    result = derive(uri, LENGTH, meanwhile, "text", function_version="1").run(max_commits=1)
    assert (result.num_computed, result.num_written) == (24, 24 - len(changed))
    assert lengths_of(uri) == {n: None if n in changed else len(f"text {n}") for n in range(24)}


@pytest.mark.parametrize("in_place", [False, True])
def test_transactions_name_columns_changed_in_place(
    tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent index on a column must not cover rows whose values change in place; rows that
    move leave its coverage by themselves.
    """
    monkeypatch.setattr(
        same_table,
        "fragments_that_stay",
        lambda _table, addresses, *_, **__: np.full(len(addresses), in_place),
    )
    uri = new_table(tmp_path, (0, 6))
    derive(uri, LENGTH, Lengths(), "text", function_version="1").run()
    table = lance_stream.open_dataset(uri).table
    transaction = read_transaction(table.log, table.manifest)
    assert transaction is not None
    operation = transaction.operation
    assert isinstance(operation, Update)
    changed = {field.id for field in table.schema.fields if field.name not in SCHEMA.names}
    assert set(operation.fields_modified) == (changed if in_place else set())
    assert (operation.update_mode is UpdateMode.REWRITE_COLUMNS) == in_place
    assert bool(operation.new_fragments) != in_place
    assert set(lengths_of(uri).values()) == {6}


def test_value_indices_follow_a_new_function(tmp_path: Path) -> None:
    """Values are replaced in place, so rows stay where an index has them."""
    uri = new_table(tmp_path, (0, 50))
    derive(uri, LENGTH, Lengths(), "text", function_version="1").run()
    lance.dataset(uri).create_scalar_index("length", "BTREE")
    thrice = derive(
        uri, LENGTH, lambda batch: [3 * len(text.as_py()) for text in batch["text"]], "text",
        function_version="2",
    )  # fmt: skip
    assert thrice.run().num_in_place == 50
    for ds in (lance_stream.open_dataset(uri), lance.dataset(uri)):
        rows = ds.to_table(["id"], filter="length = 18")
        assert sorted(rows["id"].to_pylist()) == list(range(10))
        assert ds.to_table(["id"], filter="length = 6").num_rows == 0


@pytest.mark.parametrize("kind", ["compacted", "deleted", "deleted and compacted"])
def test_rows_may_move_or_go_meanwhile(tmp_path: Path, kind: str) -> None:
    """The fragments that the inputs were read from no longer exist when the values are written."""
    uri = new_table(tmp_path, (0, 6), (6, 12))

    def meanwhile(batch: pa.RecordBatch) -> list[int]:
        ds = lance_stream.open_dataset(uri)
        if "deleted" in kind:
            ds = ds.delete("true" if kind == "deleted" else "id < 9")
        if "compacted" in kind:
            ds.compact()
        return [len(text) for text in batch["text"].to_pylist()]

    lengths = derive(uri, LENGTH, meanwhile, "text", function_version="1")
    num_rows = {"compacted": 12, "deleted": 0, "deleted and compacted": 3}[kind]
    result = lengths.run(max_commits=1)
    assert (result.num_computed, result.num_written) == (12, num_rows)
    assert set(lengths_of(uri).values()) == ({6, 7} if num_rows else set())
    assert lance_stream.open_dataset(uri).verify() == []


def test_jobs_without_values_have_no_file(tmp_path: Path) -> None:
    """All rows of a worker's part may be current, while others have new values."""
    store = lance_stream.open_dataset(new_table(tmp_path)).table.store
    batch = pa.record_batch({"v": [10, 11, 12]})
    ids = np.array([5, 6, 9], np.uint64)
    files = (SortedRows(), sort_rows([(batch, ids)]), SortedRows())
    values = StagedValues(store, files, ids, ("v",))
    assert values.of(slice(0, 2)).files == files[1:2]
    assert values.of(slice(1, 3))(batch, slice(0, 2))["v"].to_pylist() == [11, 12]
    others = StagedValues(store, files, np.array([10, 12], np.uint64), ("v",))
    assert others.of(slice(0, 2)).files == ()


def rewrite(uri: str, number: int, **values: object) -> None:
    """Change one row as a program does that sets no row versions."""
    ds = lance.dataset(uri)
    (fragment,) = [
        some for some in ds.get_fragments() if number in some.to_table(["id"])["id"].to_pylist()
    ]
    kinds = {name: ds.schema.field(name).type for name in values}
    data = pa.table(
        {"id": [number]} | {name: pa.array([values[name]], kinds[name]) for name in kinds}
    )
    written, fields = fragment.update_columns(data, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(
        updated_fragments=[written], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(ds, operation, read_version=ds.version)


def check_lengths(uri: str, target: str | None = None) -> None:
    """Check the values of all rows."""
    table = lance.dataset(uri).to_table(with_row_id=True)
    lengths = pc.utf8_length(table["text"]).to_pylist()
    expected = dict(zip(table["_rowid"].to_pylist(), lengths, strict=True))
    values = table if target is None else lance.dataset(target).to_table()
    ids = values["_rowid" if target is None else "source_row_id"].to_pylist()
    assert dict(zip(ids, values["length"].to_pylist(), strict=True)) == expected


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("changed", "target"), [("input", None), ("input", "lengths.lance"), ("output", None)]
)
@pytest.mark.parametrize("after", ["compact", "update in place", "cleanup", "nothing"])
@pytest.mark.parametrize("before", ["compact", "derive", "nothing"])
def test_changes_without_row_versions_are_found(
    tmp_path: Path, changed: str, target: str | None, before: str, after: str
) -> None:
    """Such a change shows in a fragment's files only, whatever else happens to the fragment."""
    uri = new_table(tmp_path, (0, 6), (6, 12))
    target = target and str(tmp_path / target)

    def beside(batch: pa.RecordBatch) -> pa.Array:  # so that the commit is not of the next version
        lance_stream.open_dataset(uri).update_config({"beside": str(time.monotonic_ns())})
        return pc.utf8_length(batch["text"])

    lengths = derive(uri, LENGTH, beside, "text", function_version="1", target=target)
    lengths.run()
    if before == "compact":
        lance_stream.open_dataset(uri).compact()
    if before == "derive":
        lance_stream.open_dataset(uri).update({"text": "'changed'"}, where="id < 6")
        lengths.run()
    if changed == "input":
        rewrite(uri, 3, text="a longer text")
    else:
        rewrite(uri, 3, length=None, length_state=None)
    if after == "update in place":
        ds = lance_stream.open_dataset(uri)
        texts = pa.table({"id": [0, 1, 2, 4, 5], "text": ["new"] * 5})
        assert (
            ds.upsert(texts, on="id").table.manifest.fragments.ids
            == ds.table.manifest.fragments.ids
        )
    if after == "compact":
        lance_stream.open_dataset(uri).append(rows(12, 13)).compact()
    if after == "cleanup":
        lance_stream.open_dataset(uri).cleanup(older_than="0s", delete_unverified=True)
    assert lengths.status().num_pending >= 1
    lengths.run()
    check_lengths(uri, target)
    assert lengths.status().num_pending == 0


@pytest.mark.oracle
@pytest.mark.parametrize("target", [None, "lengths.lance"])
@pytest.mark.parametrize("loser", ["the change", "a compaction"])
@pytest.mark.parametrize("change", ["append", "update", "nothing"])
def test_row_versions_may_be_lost(
    tmp_path: Path, target: str | None, change: str, loser: str
) -> None:
    """Old releases of pylance drop those of all rows, which then look older than any round."""
    uri = new_table(tmp_path, (0, 6), (6, 12))
    target = target and str(tmp_path / target)
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=target)
    lengths.run()
    ds = lance_stream.open_dataset(uri)
    if change == "append":
        ds = ds.append(rows(12, 15))
    if change == "update":
        ds = ds.update({"text": "'a longer text'"}, where="id IN (3, 8)")
    if loser == "a compaction":
        ds = ds.compact()
    without = [
        replace(fragment, created_at_versions=None, last_updated_at_versions=None)
        for fragment in ds.table.manifest.fragments
    ]
    manifest = replace(ds.table.manifest, fragments=FragmentList.of(without))
    ds.table.store.write(manifest_path(ds.version, NamingScheme.V2), encode_manifest(manifest))
    num_changed = {"append": 3, "update": 2, "nothing": 0}[change]
    assert lengths.run().num_computed == num_changed
    check_lengths(uri, target)
    assert lengths.status().num_pending == 0


@pytest.mark.oracle
@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("undone", ["delete", "update"])
def test_rounds_start_over_after_restores(tmp_path: Path, undone: str, is_foreign: bool) -> None:
    """Rows that are back have row versions that look checked."""
    uri, function = new_table(tmp_path, (0, 6)), Lengths()
    derive(uri, LENGTH, function, "text", function_version="1").run()
    ds = lance_stream.open_dataset(uri).append(rows(6, 9)).update({"text": "'1'"}, where="id = 1")
    to = ds.version
    ds = ds.delete("id > 5") if undone == "delete" else ds.update({"text": "'22'"}, where="id = 1")
    ds = ds.update({"text": "'333'"}, where="id = 2")

    def beside(batch: pa.RecordBatch) -> list[int | None]:
        if lance_stream.open_dataset(uri).version == ds.version:
            if is_foreign:
                lance.dataset(uri, version=to).restore()
            else:
                ds.restore(to)
        return function(batch)

    lengths = derive(uri, LENGTH, beside, "text", function_version="1")
    assert lengths.run().num_computed == 4
    check_lengths(uri)
    assert lengths.run().version is None


@pytest.mark.oracle
@pytest.mark.parametrize("target", [None, "lengths.lance"])
def test_restores_may_undo_unstamped_changes(tmp_path: Path, target: str | None) -> None:
    """The rows have the same row versions before and after, in fragments that are back."""
    uri = new_table(tmp_path, (0, 6), (6, 12))
    target = target and str(tmp_path / target)
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=target)
    lengths.run()
    version = lance_stream.open_dataset(uri).version
    rewrite(uri, 3, text="a longer text")
    lance_stream.open_dataset(uri).compact()
    assert lengths.run().num_computed == 1
    lance_stream.open_dataset(uri).restore(version)
    lengths.run()
    check_lengths(uri, target)


def test_versions_beside_rounds_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may run for hours, while a stream commits every second."""
    uri, function = new_table(tmp_path, (0, 6)), Lengths()
    derive(uri, LENGTH, function, "text", function_version="1").run()
    ds = lance_stream.open_dataset(uri).update({"text": "'1'"}, where="id = 1")
    read: list[int] = []
    operation_kind = candidates._operation_kind

    def recorded(table: TableVersion) -> Any:
        read.append(table.version)
        return operation_kind(table)

    def beside(batch: pa.RecordBatch) -> list[int | None]:
        for number in range(5):
            lance_stream.open_dataset(uri).update_config({"beside": str(number)})
        return function(batch)

    monkeypatch.setattr(candidates, "_operation_kind", recorded)
    assert derive(uri, LENGTH, beside, "text", function_version="1").run().num_written == 1
    assert read == list(range(ds.version + 1, ds.version + 6))
