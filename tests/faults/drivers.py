"""Drivers that commit a micro-batch to a table and pause at each call of their store.

Each driver has a thread, but only one of them runs at a time: a driver pauses before each call of
its store that others can notice, until `go_on` is called. So every interleaving of two drivers'
steps can be replayed exactly.

The batches cover every mode of the sink, with a model of the result.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from lance_stream import create_dataset, open_dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.environment import MACHINE
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from lance_stream.table.config import ledger_entries
from lance_stream.table.paths import deletion_file_path
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from lance_stream.verbs.overwrite import overwrite
from tests.contracts.watched_stores import WatchedStore
from tests.faults import locations

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("seq", pa.int64())]
)
APP, QUERY = "flights", "4b1a"

Row: TypeAlias = tuple[int, str, int]
Rows: TypeAlias = list[Row]


class Change(NamedTuple):
    """A row of a batch; `deletes` counts for CDC alone."""

    id: int
    value: str
    seq: int
    deletes: bool = False


Batch: TypeAlias = Sequence[Change]


# --- ways to take in a batch, and what each does to the rows of a table


def rows_of_batch(batch: Batch) -> Rows:
    return [(entry.id, entry.value, entry.seq) for entry in batch]


def appended(rows: Rows, batch: Batch) -> Rows:
    return sorted(rows + rows_of_batch(batch))


def overwritten(_rows: Rows, batch: Batch) -> Rows:
    return sorted(rows_of_batch(batch))


def upserted(rows: Rows, batch: Batch) -> Rows:
    """Every row of a key is changed: appends may have made several."""
    new = {row[0]: row for row in rows_of_batch(batch)}
    there = {row[0] for row in rows}
    inserted = [row for key, row in new.items() if key not in there]
    return sorted([*(new.get(row[0], row) for row in rows), *inserted])


def followed(rows: Rows, batch: Batch) -> Rows:
    """CDC: the newest change of a key counts, unless a row of the table is newer."""
    newest = {entry.id: entry for entry in sorted(batch, key=lambda entry: entry.seq)}
    there = {row[0] for row in rows}
    survivors = [row for row in rows if row[0] not in newest or newest[row[0]].seq < row[2]]
    changed = [row[0] for row in rows if row[0] in newest and newest[row[0]].seq >= row[2]]
    new = [*changed, *(key for key in newest if key not in there)]
    return sorted([*survivors, *(newest[key][:3] for key in new if not newest[key].deletes)])


def to_arrow(batch: Batch) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": entry.id, "value": entry.value, "seq": entry.seq} for entry in batch], schema=SCHEMA
    )


WITHOUT_WAITING = replace(MACHINE, sleep=lambda _seconds: None)
"""An environment in which another attempt follows at once."""


def take_append(table: TableVersion, batch: Batch, micro_batch: PendingBatch) -> None:
    append(table, to_arrow(batch), micro_batch, WITHOUT_WAITING)


def take_overwrite(table: TableVersion, batch: Batch, micro_batch: PendingBatch) -> None:
    overwrite(table, to_arrow(batch), micro_batch, WITHOUT_WAITING)


def take_upsert(table: TableVersion, batch: Batch, micro_batch: PendingBatch) -> None:
    rules = UpsertRules(("id",))
    upsert(table, to_arrow(batch), rules, micro_batch, environment=WITHOUT_WAITING)


FOLLOWING = UpsertRules(("id",), sequence_by="seq", delete_when="op = 'd'", except_columns=("op",))


def take_changes(table: TableVersion, batch: Batch, micro_batch: PendingBatch) -> None:
    ops = pa.array(["d" if change.deletes else "u" for change in batch])
    rows = to_arrow(batch).append_column("op", ops)
    upsert(table, rows, FOLLOWING, micro_batch, environment=WITHOUT_WAITING)


class Mode(NamedTuple):
    """A way to take in a batch.

    Attributes:
        take_in: Does it.
        model: Gives the rows that the table has then.
    """

    take_in: Callable[[TableVersion, Batch, PendingBatch], None]
    model: Callable[[Rows, Batch], Rows]


MODES: Mapping[str, Mode] = {
    "append": Mode(take_append, appended),
    "upsert": Mode(take_upsert, upserted),
    "cdc": Mode(take_changes, followed),
    "overwrite": Mode(take_overwrite, overwritten),
}

# Rows of two fragments; batches of two streams that want some of the same rows and new keys.
START: Rows = [(n, "start", 1) for n in range(6)]
BATCHES: Mapping[str, Sequence[Batch]] = {
    "flights": (
        (Change(1, "f0", 2), Change(4, "f0", 2), Change(10, "f0", 2), Change(2, "", 2, True)),
        (Change(10, "f1", 5), Change(12, "f1", 5), Change(3, "", 5, True)),
        (Change(5, "f2", 6), Change(13, "f2", 6), Change(12, "", 6, True)),
    ),
    "trains": (
        (Change(4, "t0", 3), Change(10, "t0", 3), Change(11, "t0", 3), Change(1, "", 3, True)),
    ),
}


def batch_for(mode: str, app_id: str, batch_id: int) -> Batch:
    """Return a batch of a stream; deletes stand in it where the mode knows them."""
    batch = BATCHES[app_id][batch_id]
    return batch if mode == "cdc" else [change for change in batch if not change.deletes]


# --- tables


def make_table(uri: str) -> str:
    """Make a table of two fragments whose primary key is the id; return where."""
    table = create_dataset(uri, SCHEMA, primary_key=["id"])
    for part in (START[:3], START[3:]):
        table = table.append(to_arrow([Change(*row) for row in part]))
    return table.uri


FIRST_VERSION = 3
"""The version of a table of `make_table`."""


def take_in(
    mode: str, uri: str, store: Store | None = None, app_id: str = APP, batch_id: int = 0
) -> None:
    """Do what a sink does with a micro-batch."""
    table = open_newest(uri)
    if store is not None:
        table = replace(table, store=store, log=ObjectStoreLog(store))
    MODES[mode].take_in(
        table, batch_for(mode, app_id, batch_id), PendingBatch.of(app_id, batch_id, QUERY)
    )


def copy_table(uri: str, target: str) -> str:
    """Copy the files of a table; return where."""
    source, store = open_store(uri), open_store(target)
    for file in source.list():
        store.write(file.path, source.read(file.path))
    return target


def rows_at(uri: str, version: int | None = None) -> Rows:
    table = locations.open_table(uri, version).to_table(["id", "value", "seq"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def versions_of(uri: str) -> int:
    return open_dataset(uri).version


def newest_batch(uri: str, app_id: str = APP) -> int | None:
    entry = ledger_entries.read_entry(open_newest(uri).manifest.config, app_id)
    return entry and entry.batch_id


def check_sound(uri: str) -> None:
    """Hold a table against the rules of the format, and its files against what versions name.

    What lost has been cleaned up, and nothing else.
    """
    table = open_dataset(uri)
    assert table.verify() == []
    assert table.table.log.versions() == list(range(1, table.version + 1))
    there = {file.path for file in table.table.store.list()}
    stored = {path for path in there if path.startswith(("data/", "_deletions/"))}
    assert stored == named_files(table.table)


def named_files(table: TableVersion) -> set[str]:
    """Return the data and deletion files that any version up to this one names."""
    named = set()
    for version in table.log.versions():
        for fragment in table.log.read(version).fragments:
            named |= {f"data/{file.path}" for file in fragment.files}
            if fragment.deletion_file is not None:
                named.add(deletion_file_path(fragment.id, fragment.deletion_file))
    return named


# --- drivers that take turns


def can_be_noticed(call: str, path: str) -> bool:
    """Return whether others can notice a call, or change its answer; files never change."""
    return call not in ("read_ranges", "size") and not path.startswith("data/.")


@dataclass
class Driver:
    """An action in a separate thread, which runs one call of its store at a time.

    Attributes:
        act: The action, given its store.
        store: The store.
        num_calls: The number of calls so far, of those at which it pauses.
        error: The error that ended it.
        is_done: Whether it has ended.
    """

    act: Callable[[Store], Any]
    store: Store
    num_calls: int = 0
    error: BaseException | None = None
    is_done: bool = False
    _may_go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _is_paused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _remaining_calls: int | None = 0

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, num_calls: int | None = None) -> bool:
        """Let it make more calls, or all of them; return whether it has ended."""
        if not self.is_done and num_calls != 0:
            self._remaining_calls = num_calls
            self._may_go.release()
            assert self._is_paused.acquire(timeout=60), "the driver hangs"
        return self.is_done

    def finish(self) -> None:
        """Let it run to the end; raise its error."""
        self.go_on()
        assert self.is_done
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            self.act(WatchedStore(self.store, before=self._before, after=self._after))
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._is_paused.release()

    def _after(self, call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            self._before("published", path)

    def _before(self, call: str, path: str) -> None:
        if not can_be_noticed(call, path) or threading.current_thread() is not self._thread:
            return
        if self._remaining_calls == 0:
            self._is_paused.release()
            self._may_go.acquire()
        self.num_calls += 1
        if self._remaining_calls is not None:
            self._remaining_calls -= 1


def all_orders(rows: Rows, steps: Iterable[tuple[str, Batch]]) -> list[Rows]:
    """Return the possible rows of a table after two steps in either order."""
    (one, first), (other, second) = steps
    return [
        MODES[other].model(MODES[one].model(rows, first), second),
        MODES[one].model(MODES[other].model(rows, second), first),
    ]
