"""What can be done to a small table: by us, by pylance, or as a bare transaction.

The table has the columns id, x (half the id) and g (the id modulo 3), ten rows in two fragments, an
index on each column, and one dead row:

    fragment 0    ids 0 to 4, and 5, which is dead
    fragment 1    ids 6 to 9

`PLANNED_ON` is its version. An act is planned on it by doing it to a copy of the table, and taking
the transaction that it made there: whatever a verb does inside, its plan is what it committed.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

import lance_stream
from lance_stream.commit.committer import read_transaction
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.storage.locations import open_store
from lance_stream.table.manifest import BasePath
from lance_stream.table.operations.columns import DataReplacement, Merge, Project
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite
from lance_stream.table.operations.operation import Operation, UnknownOperation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import (
    Clone,
    CreateIndex,
    Restore,
    UpdateBases,
    UpdateMemWalState,
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("g", pa.int64()),
    ]
)
PRIMARY_KEY = SCHEMA.field("id").with_metadata({"lance-schema:unenforced-primary-key": "true"})
PLANNED_ON = 5
FOLDERS = ("data", "_deletions", "_indices")
INDICES = {"id": "BTREE", "x": "BTREE", "g": "BITMAP"}

Verb = Callable[[Any], object]


@dataclass(frozen=True)
class Act:
    """Something to be done.

    Attributes:
        kind: What operation it is.
        by_pylance: Does it by pylance to an open dataset, without a second plan; None if it cannot.
        by_us: Does it by a verb of ours to an open dataset; None if there is none.
        operation: The operation itself, where no file belongs to it.
    """

    kind: type[Operation]
    by_pylance: Verb | None = None
    by_us: Verb | None = None
    operation: Operation | None = None


@dataclass(frozen=True)
class Planned:
    """An act that was planned, and the files that belong to it, by their places in the table."""

    transaction: Transaction
    files: tuple[tuple[str, Path], ...]


def rows(keys: Iterable[int], add: float = 0) -> pa.Table:
    keys = list(keys)
    values = [keys, [key / 2 + add for key in keys], [key % 3 for key in keys]]
    return pa.table(dict(zip(SCHEMA.names, values, strict=True)), SCHEMA)


def make_table(uri: str, *, stable_row_ids: bool, primary_key: bool) -> None:
    first = rows(range(10))
    if primary_key:
        first = first.cast(SCHEMA.set(0, PRIMARY_KEY))
    lance.write_dataset(first, uri, max_rows_per_file=6, enable_stable_row_ids=stable_row_ids)
    lance.dataset(uri).delete("id = 5")
    for column, kind in INDICES.items():
        # With an index on the key pylance's upserts do not say which keys they inserted.
        column = "x" if primary_key and column == "id" else column
        lance.dataset(uri).create_scalar_index(column, kind)


class Stage:
    """A table, any number of copies of it, and the plans that were made on it.

    Args:
        folder: Where they lie.
        stable_row_ids: Whether its rows have stable ids.
        primary_key: Whether the id is its primary key; it has no index then.
    """

    def __init__(self, folder: Path, *, stable_row_ids: bool, primary_key: bool) -> None:
        self.folder, self._numbers = folder, count()
        self.template = folder / "template"
        make_table(str(self.template), stable_row_ids=stable_row_ids, primary_key=primary_key)
        self._plans: dict[tuple[str, bool], Planned] = {}

    def copy(self, *plans: Planned) -> Path:
        """Return a new copy of the table in which the files of some plans lie."""
        target = self.folder / f"copy-{next(self._numbers)}"
        shutil.copytree(self.template, target)
        for plan in plans:
            for relative, path in plan.files:
                (target / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / relative)
        return target

    def plan(self, name: str, *, by_pylance: bool = False) -> Planned:
        """Return an act's plan on the table; made once."""
        key = name, by_pylance
        if key not in self._plans:
            self._plans[key] = self._make_plan(ACTS[name], by_pylance=by_pylance)
        return self._plans[key]

    def _make_plan(self, act: Act, *, by_pylance: bool) -> Planned:
        if act.operation is not None:
            return Planned(Transaction(PLANNED_ON, f"bare-{id(act)}", act.operation), ())
        twin = self.copy()
        if act.by_us is not None and not by_pylance:
            act.by_us(lance_stream.open_dataset(str(twin)))
        else:
            assert act.by_pylance is not None
            act.by_pylance(lance.dataset(str(twin)))
        log = ObjectStoreLog(open_store(str(twin)))
        transaction = read_transaction(log, log.read_latest())
        assert transaction is not None
        assert transaction.read_version == PLANNED_ON
        assert type(transaction.operation) is act.kind
        return Planned(transaction, tuple(self._new_files(twin)))

    def _new_files(self, twin: Path) -> Iterable[tuple[str, Path]]:
        for folder in FOLDERS:
            for path in sorted((twin / folder).rglob("*")):
                relative = str(path.relative_to(twin))
                if path.is_file() and not (self.template / relative).exists():
                    yield relative, path


def upsert(keys: Iterable[int]) -> Act:
    source = rows(keys, 0.25)

    def by_pylance(ds: Any) -> None:
        merge = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.conflict_retries(0).execute(source)

    return Act(Update, by_pylance, lambda ds: ds.upsert(source, on=["id"]))


def update(where: str) -> Act:
    """Rows that move: ours stay where they are unless all of their columns are set."""
    values = {"x": "x + 0.25"}
    return Act(
        Update,
        lambda ds: ds.update(values, where=where, conflict_retries=0),
        lambda ds: ds.update({"id": "id", "g": "g"} | values, where=where),
    )


def update_in_place(where: str) -> Act:
    return Act(Update, by_us=lambda ds: ds.update({"x": "x + 0.25"}, where=where))


def append(*keys: int) -> Act:
    return Act(
        Append,
        lambda ds: lance.write_dataset(rows(keys), ds, mode="append"),
        lambda ds: ds.append(rows(keys)),
    )


def delete(where: str) -> Act:
    return Act(Delete, lambda ds: ds.delete(where, conflict_retries=0), lambda ds: ds.delete(where))


def config(key: str) -> Act:
    def set_config(ds: Any) -> None:
        ds.update_config({key: "new"})

    return Act(UpdateConfig, set_config, set_config)


def low_level(ds: Any, operation: Any) -> None:
    lance.LanceDataset.commit(ds.uri, operation, read_version=ds.version, max_retries=0)


def replace_x(fragment_id: int, num_rows: int) -> Act:
    def by_pylance(ds: Any) -> None:
        name = f"x-of-{fragment_id}.lance"
        path = Path(ds.uri) / "data" / name
        if not path.exists():
            with LanceFileWriter(str(path), version=ds.data_storage_version) as writer:
                writer.write_batch(pa.table({"x": [100.0] * num_rows}))
        major, minor = map(int, ds.data_storage_version.split("."))
        group = lance.LanceOperation.DataReplacementGroup(
            fragment_id, DataFile(name, [1], [0], major, minor)
        )
        low_level(ds, lance.LanceOperation.DataReplacement([group]))

    return Act(DataReplacement, by_pylance)


def rewrite_column(ds: Any) -> None:
    keys = list(range(6))
    updated, fields = ds.get_fragments()[0].update_columns(
        pa.table({"id": keys, "x": [100.0] * len(keys)}), left_on="id", right_on="id"
    )
    operation = lance.LanceOperation.Update(
        updated_fragments=[updated], fields_modified=fields, update_mode="rewrite_columns"
    )
    low_level(ds, operation)


ACTS: dict[str, Act] = {
    "append 20,21": append(20, 21),
    "delete 1": delete("id = 1"),
    "delete 2": delete("id = 2"),
    "delete 6..10": delete("id >= 6"),
    "overwrite 40": Act(
        Overwrite,
        lambda ds: lance.write_dataset(rows([40]), ds, mode="overwrite"),
        lambda ds: ds.overwrite(rows([40])),
    ),
    "index x again": Act(
        CreateIndex, lambda ds: ds.create_scalar_index("x", "BTREE", replace=True)
    ),
    "index x as zones": Act(
        CreateIndex, lambda ds: ds.create_scalar_index("x", "ZONEMAP", name="zones")
    ),
    "drop the index of g": Act(CreateIndex, lambda ds: ds.drop_index("g_idx")),
    "compact": Act(Rewrite, lambda ds: ds.optimize.compact_files(), lambda ds: ds.compact()),
    "add y": Act(Merge, lambda ds: ds.add_columns({"y": "x * 2"})),
    "add z without values": Act(
        Merge,
        lambda ds: ds.add_columns(pa.field("z", pa.int32())),
        lambda ds: ds.add_columns(pa.field("z", pa.int32())),
    ),
    "restore 1": Act(
        Restore, lambda ds: low_level(ds, lance.LanceOperation.Restore(1)), lambda ds: ds.restore(1)
    ),
    "reserve 2": Act(ReserveFragments, operation=ReserveFragments(2)),
    "upsert 1,30": upsert([1, 30]),
    "upsert 2,30": upsert([2, 30]),
    "upsert 7,31": upsert([7, 31]),
    "update 7": update("id = 7"),
    "update all": update("true"),
    "update x of 7 in place": update_in_place("id = 7"),
    "rewrite x of fragment 0": Act(Update, rewrite_column),
    "drop x": Act(Project, lambda ds: ds.drop_columns(["x"])),
    "rename g": Act(Project, lambda ds: ds.alter_columns({"path": "g", "name": "h"})),
    "set a": config("a"),
    "set b": config("b"),
    "set metadata of x": Act(
        UpdateConfig, lambda ds: ds.update_field_metadata({"x": {"unit": "m"}})
    ),
    "set schema metadata": Act(
        UpdateConfig, lambda ds: ds.update_schema_metadata({"made": "here"})
    ),
    "replace x of fragment 0": replace_x(0, 6),
    "replace x of fragment 1": replace_x(1, 4),
    "clone": Act(Clone, operation=Clone(True, 1, "elsewhere")),
    "add a base": Act(
        UpdateBases,
        lambda ds: ds.add_bases([lance.DatasetBasePath("/elsewhere", "b")]),
        operation=UpdateBases((BasePath(0, "/elsewhere", "b"),)),
    ),
    "move a log": Act(UpdateMemWalState, operation=UpdateMemWalState()),
    "something unknown": Act(UnknownOperation, operation=UnknownOperation(199, b"\xba\x0c\x00")),
}
"""Every act, by its name in the stories; at least one for each operation of the format."""
