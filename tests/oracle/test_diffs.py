"""Random histories by pylance: our diff of each two neighbours is the difference of their rows."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.storage.locations import open_store
from lance_stream.table.changes.diff import TableChanges, diff, plan_diff
from tests.commit.tables import deleted_offsets_of

pytestmark = pytest.mark.oracle

STAMPS = ["_rowid", "_rowaddr", "_row_last_updated_at_version"]


class History:
    """A table to which one thing after the other is done."""

    permanent_columns = ("id", "x")

    def __init__(self, uri: str, seed: int) -> None:
        self.uri, self.dice, self.next_key = uri, random.Random(seed), 20
        lance.write_dataset(
            self.rows(range(20)), uri, enable_stable_row_ids=True, max_rows_per_file=7
        )

    @property
    def ds(self) -> Any:
        return lance.dataset(self.uri)

    def rows(self, keys: Any) -> pa.Table:
        values = {
            name: [self.dice.random() for _ in keys] if name == "x" else [0] * len(keys)
            for name in (self.ds.schema.names if Path(self.uri).exists() else ["id", "x"])
        }
        return pa.table({**values, "id": pa.array(list(keys), pa.int64())})

    def new_keys(self, num: int) -> range:
        self.next_key += num
        return range(self.next_key - num, self.next_key)

    def append(self) -> None:
        lance.write_dataset(self.rows(self.new_keys(5)), self.uri, mode="append")

    def delete(self) -> None:
        self.ds.delete(f"id % {self.dice.randint(2, 6)} = 0")

    def delete_first(self) -> None:
        self.ds.delete(f"id < {self.dice.randint(0, 15)}")

    def upsert(self) -> None:
        keys = self.dice.sample(range(self.next_key + 3), 5)
        merge = self.ds.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(self.rows(keys))

    def update(self) -> None:
        self.ds.update({"x": "x + 1"}, where=f"id % {self.dice.randint(2, 6)} = 0")

    def compact(self) -> None:
        self.ds.optimize.compact_files(target_rows_per_fragment=30)

    def overwrite(self) -> None:
        lance.write_dataset(self.rows(self.new_keys(8)), self.uri, mode="overwrite")

    def restore(self) -> None:
        lance.dataset(self.uri, version=self.dice.randint(1, self.ds.version)).restore()

    def configure(self) -> None:
        self.ds.update_config({"key": str(self.dice.random())})

    def add_column(self) -> None:
        self.ds.add_columns({f"c{self.ds.version}": "id + 1"})

    def add_null_column(self) -> None:
        self.ds.add_columns(pa.field(f"n{self.ds.version}", pa.int64()))

    def drop_column(self) -> None:
        added = [name for name in self.ds.schema.names if name not in self.permanent_columns]
        if added:
            self.ds.drop_columns(added[:1])


ACTS: list[Callable[[History], None]] = [
    History.append, History.delete, History.delete_first, History.upsert, History.update,
    History.compact, History.overwrite, History.restore, History.configure, History.add_column,
    History.add_null_column, History.drop_column,
]  # fmt: skip


def changes_of(log: ObjectStoreLog, version: int) -> TableChanges:
    older = log.read(version - 1) if version > 1 else None
    plan = plan_diff(older, log.read(version))
    deleted = {
        (entry.id, entry.deletion_file): deleted_offsets_of(log.store, entry)
        for entry in plan.deletion_files_of
    }
    return diff(plan, deleted)


def snapshot(uri: str, version: int) -> dict[int, dict[str, Any]]:
    """Row id -> the row, of every row of a version."""
    if version == 0:
        return {}
    ds = lance.dataset(uri, version=version)
    rows = ds.to_table(columns=["id", "x", *STAMPS]).to_pylist()
    return {row["_rowid"]: row for row in rows}


def check_version(log: ObjectStoreLog, uri: str, version: int) -> int:
    before, after = snapshot(uri, version - 1), snapshot(uri, version)
    ids_before = {row["_rowaddr"]: row_id for row_id, row in before.items()}
    ids_after = {row["_rowaddr"]: row_id for row_id, row in after.items()}
    changes = changes_of(log, version)
    inserts = {
        ids_after[insert.fragment.id << 32 | offset]
        for insert in changes.inserts
        for offset in insert.offsets.tolist()
    }
    deletes = {
        ids_before[delete.fragment.id << 32 | offset]
        for delete in changes.deletes
        for offset in delete.offsets.tolist()
    }
    updates = set()
    for update in changes.updates:
        for offset, address in zip(
            update.offsets.tolist(), update.addresses_before.tolist(), strict=True
        ):
            updates.add(ids_after[update.fragment.id << 32 | offset])
            assert ids_before[address] == ids_after[update.fragment.id << 32 | offset]
    both = before.keys() & after.keys()
    stamp = STAMPS[-1]
    assert inserts == after.keys() - before.keys()
    assert deletes == before.keys() - after.keys()
    assert updates == {value for value in both if before[value][stamp] != after[value][stamp]}
    assert updates >= {value for value in both if before[value]["x"] != after[value]["x"]}
    assert changes.num_changes == len(inserts) + len(updates) + len(deletes)
    return changes.num_changes


@pytest.mark.parametrize("seed", range(12))
def test_diffs_are_differences_of_rows(tmp_path: Path, seed: int) -> None:
    """The rows that pylance shows in both versions are the judge."""
    history = History(str(tmp_path / "t"), seed)
    for _ in range(9):
        history.dice.choice(ACTS)(history)
    log = ObjectStoreLog(open_store(history.uri))
    assert sum(check_version(log, history.uri, version) for version in log.versions()) >= 20


@pytest.mark.parametrize("act", ACTS)
def test_our_diff_agrees_with_correct_deltas(
    tmp_path: Path, act: Callable[[History], None]
) -> None:
    """Pylance's delta is the oracle for the operations that it gets right."""
    history = History(str(tmp_path / "t"), 7)
    history.append()
    history.update()
    start = history.ds.version
    act(history)
    end = history.ds.version
    log = ObjectStoreLog(open_store(history.uri))
    for version in range(start + 1, end + 1):
        check_version(log, history.uri, version)
    if act is History.restore:
        return  # which the delta does not see
    delta = lance.dataset(history.uri, version=end).delta(begin_version=start, end_version=end)
    changes = [changes_of(log, version) for version in range(start + 1, end + 1)]
    assert num_rows(delta.get_inserted_rows()) == sum_of(changes, "inserts")
    assert num_rows(delta.get_updated_rows()) == sum_of(changes, "updates")
    assert num_rows(delta.get_deleted_row_ids()) == sum_of(changes, "deletes")


def num_rows(reader: Any) -> int:
    return reader.read_all().num_rows


def sum_of(all_changes: list[TableChanges], kind: str) -> int:
    return sum(len(value.offsets) for changes in all_changes for value in getattr(changes, kind))


@pytest.mark.parametrize("act", [History.compact, History.configure, History.add_null_column])
def test_commits_without_row_changes_give_none(
    tmp_path: Path, act: Callable[[History], None]
) -> None:
    """Compactions, indices and configs must not make consumers work."""
    history = History(str(tmp_path / "t"), 7)
    history.delete()
    start = history.ds.version
    act(history)
    assert history.ds.version > start
    log = ObjectStoreLog(open_store(history.uri))
    for version in range(start + 1, history.ds.version + 1):
        assert changes_of(log, version).num_changes == 0


def test_columns_replaced_without_stamps_update_rows(tmp_path: Path) -> None:
    """pylance allows the commit without stamps, although the values change."""
    history = History(str(tmp_path / "t"), 7)
    fragment = history.ds.get_fragments()[0]
    changed = pa.table({"id": pa.array(range(7), pa.int64()), "x": [9.0] * 7})
    metadata, modified = fragment.update_columns(changed, left_on="id", right_on="id")
    operation = lance.LanceOperation.Update(
        updated_fragments=[metadata], fields_modified=modified, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(history.uri, operation, read_version=1)
    assert set(snapshot(history.uri, 2)[0].items()) != set(snapshot(history.uri, 1)[0].items())
    assert {row[STAMPS[-1]] for row in snapshot(history.uri, 2).values()} == {1}
    changes = changes_of(ObjectStoreLog(open_store(history.uri)), 2)
    assert [update.offsets.tolist() for update in changes.updates] == [list(range(7))]
    assert changes.num_changes == 7
