"""A life: a table, its branches and clones, and the model of each.

A `Line` is one line of versions: the table itself, a branch, or a clone. All writes go through
`Line.write`, which lets us, pylance, LanceDB or DuckDB do something, from a fresh or a stale
handle, with cold caches, beaten by another writer, or in a process that dies; and then compares the
new versions with the model.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import lance
import pyarrow as pa

import lance_stream
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.dataset import Dataset
from lance_stream.errors import CommitConflictError, InvalidInputError, NotFoundError
from lance_stream.storage.local_store import LocalStore
from lance_stream.table.apply.index_coverage import FRAGMENT_REUSE, refers_by_address
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.version_marks import is_same_version
from tests.histories.duckdb_tables import HAS_DUCKDB, DuckDBTable
from tests.histories.lancedb_tables import HAS_LANCEDB, open_table
from tests.histories.model import (
    ALL_KINDS,
    DERIVED_KINDS,
    KEY,
    KINDS,
    NAMES,
    SPECIAL_KINDS,
    Column,
    Row,
    State,
    Values,
    from_arrow,
    to_arrow,
)
from tests.histories.replacements import Copy, draw_replacement, files_of, replace_table
from tests.histories.second_process import SecondProcess, second_process
from tests.histories.steps import Choices, DoesNotFit
from tests.histories.trouble import DiedError, another_process, dying
from tests.keys.index.small_runs import restart

Build = Callable[[State, int], State]
"""Returns the state after a verb, given the one before and the number of the new version."""

STAMPS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
STORE_CALLS = ("read_ranges", "read", "read_end", "list", "create_once", "open_writer", "write")
MAX_ROWS = 40
BESIDE_PYLANCE = ("append", "configure", "compact")
"""What we do while pylance writes: it plans nothing again, so nothing that changes its plan."""

BY_LANCEDB = ("append", "delete", "upsert", "update", "drop", "restore", "compact")
"""What LanceDB does while we write."""

OTHERS = ("pylance", "lancedb", "duckdb")
"""Ways to write without our code."""

UNREAD = 0.75
"""How many writes are not followed by a read of all rows; a shrunk life reads after each."""


def unchanged(state: State, _at: int) -> State:
    return state


class Rival(NamedTuple):
    """Another writer, in the middle of a verb.

    Attributes:
        name: What it does.
        details: With which rows, keys or numbers.
        writer: "we", "pylance" or "lancedb".
        at: Before which call to the store; 0 for the one that publishes our version.
    """

    name: str
    details: Any
    writer: str = "pylance"
    at: int = 0


@dataclass
class Line:
    """One line of versions, and its model.

    Attributes:
        life: What it belongs to.
        root: The directory of its table.
        branch: Its branch; None for the main one.
        states: The model of each version that there ever was.
        existing: The versions that have not been cleaned up.
        row_ids: By serial, as first seen.
        restored: Versions that a restore made.
        unstamped: By version that rewrote a column without new row versions: the column's identity.
        stale: A handle that was opened a while ago.
        snapshots: Rows of versions by row id, as they were read and compared with the model.
        start: Versions through this one belong to the line that this one began from.
        twin: Writes the micro-batch that is being written, as a second driver of its stream does.
        memory: What actions and checks note, by name.
        files: The files of the table that took its place last.
        replaced_columns: The columns of the table before.
    """

    life: "Life"
    root: str
    branch: str | None = None
    states: dict[int, State] = field(default_factory=lambda: {0: State()})
    existing: set[int] = field(default_factory=set)
    row_ids: dict[int, int] = field(default_factory=dict)
    restored: set[int] = field(default_factory=set)
    unstamped: dict[int, int] = field(default_factory=dict)
    stale: Dataset | None = None
    snapshots: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    start: int = 0
    twin: Callable[[], None] = lambda: None
    memory: dict[str, Any] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    replaced_columns: tuple[Column, ...] = ()

    @property
    def name(self) -> str:
        return f"{Path(self.root).stem}:{self.branch or 'main'}"

    @property
    def uri(self) -> str:
        return self.root if self.branch is None else f"{self.root}/tree/{self.branch}"

    @property
    def newest(self) -> int:
        """The newest version in the model."""
        return max(self.states)

    @property
    def now(self) -> State:
        return self.states[self.newest]

    def ours(self, version: int | None = None) -> Dataset:
        return lance_stream.open_dataset(self.uri, version)

    def pylance(self, version: int | None = None) -> Any:
        if self.branch is None:
            return lance.dataset(self.root, version=version)
        return lance.dataset(self.root).checkout_version((self.branch, version))

    @property
    def is_for_lancedb(self) -> bool:
        """Whether LanceDB is installed and can read and write the table as it is.

        LanceDB 0.40 does not know the row addresses in BTREE indices of pylance 14: it ignores such
        an index, and states that it covers fragments that an update has written. Indices of a
        clone's or branch's origin it misplaces like pylance.
        """
        if not self.life.has_lancedb or self.has_deferred_remaps:
            return False
        return not any(
            index.base_id is not None or refers_by_address(index) for index in self.indices
        )

    @property
    def indices(self) -> tuple[IndexMetadata, ...]:
        """The segments of the indices of the newest version."""
        return decode_index_section(self.ours().table.manifest.index_section or b"")

    @property
    def has_indices_to_misplace(self) -> bool:
        """Whether a compaction of pylance would misplace the files of indices.

        It writes indices that it remaps in the folder of a clone or branch, but states the folder
        of their origin. Then its filters fail, and it cannot bring them up to date.
        """
        return any(
            index.base_id is not None and (not self.life.is_stable or refers_by_address(index))
            for index in self.indices
        )

    @property
    def has_deferred_remaps(self) -> bool:
        """Whether a compaction of pylance has left the remapping of indices to readers.

        After an upsert, pylance's next compaction has to defer it, too: otherwise a BTREE loses the
        rows that have been moved twice.
        """
        return any(index.name == FRAGMENT_REUSE for index in self.indices)

    def lancedb(self) -> Any:
        """Return the table in LanceDB; `DoesNotFit` if it is not for LanceDB."""
        if not self.is_for_lancedb:
            raise DoesNotFit("LanceDB")
        return open_table(self.root, self.branch)

    @property
    def is_for_duckdb(self) -> bool:
        """Whether DuckDB is installed and can write the table: DuckDB has no branches."""
        return HAS_DUCKDB and self.branch is None and self.is_for_lancedb

    # --- writing

    def write(
        self,
        choose: Choices,
        ours: Callable[[Dataset], object] | None,
        build: Build,
        *,
        pylance: Callable[[Any], object] | None = None,
        lancedb: Callable[[Any], object] | None = None,
        duckdb: Callable[[DuckDBTable], object] | None = None,
        rivals: Iterable[str] = ("append", "delete", "configure", "compact"),
        is_planned_on_handle: bool = False,
    ) -> bool:
        """Let one of the writers do something, and compare the table with the model.

        Args:
            choose: Chooses the writer.
            ours: Does it with our handle; None if only pylance can.
            build: Does it in the model.
            pylance: Does it with pylance's; None if it cannot.
            lancedb: Does it with LanceDB's table; None if it cannot.
            duckdb: Does it with DuckDB's table; None if it cannot.
            rivals: What another writer may commit between our plan and our commit.
            is_planned_on_handle: Whether a stale handle gives another result than a fresh one.

        Returns:
            Whether a version was committed.
        """

        def draw(dice: random.Random) -> list[Any]:
            if lancedb is not None and self.is_for_lancedb and dice.random() < 0.25:
                return ["lancedb"]
            if duckdb is not None and self.is_for_duckdb and dice.random() < 0.1:
                return ["duckdb"]
            return ["pylance"] if ours is None else self._draw_way(dice, pylance, list(rivals))

        way, *details = choose("by", draw)
        reads = not choose.happens("unread", UNREAD)
        before = self.newest
        if way in OTHERS:
            verb = {"pylance": pylance, "lancedb": lancedb, "duckdb": duckdb}[way]
            if verb is None:
                raise DoesNotFit(way)
            theirs = self._open_by(way)
            if details:
                self.let_rival_write(Rival(*details))
            try:
                verb(theirs)
            except Exception as error:  # whatever they raise: they have bugs of their own
                if isinstance(error, AssertionError):
                    raise
                self.life.counts[f"{way} fails: {type(error).__name__} {str(error)[:60]}"] += 1
                self.advance(unchanged, may_stay=True, look=reads)
                return False
            self.advance(build, look=reads)
        elif ours is None:
            raise DoesNotFit(way)
        elif way == "dies":
            died = self._die(details, ours)
            self.advance(build, may_stay=died, look=reads)
        elif way == "beaten":
            self._write_beaten(Rival(*details), ours, build, look=reads)
        elif way == "process":
            self.life.second_process.run(ours, self.uri)
            self.advance(build, look=reads)
        else:
            handle = self.ours()
            if way == "cold":
                restart()
            elif way == "stale" and self._can_use_stale() and not is_planned_on_handle:
                handle = self.stale or handle
            if way == "stale":
                self.stale = self.ours()
            ours(handle)
            self.advance(build, look=reads)
        self.life.counts[f"by {way}"] += 1
        return self.newest > before

    def _open_by(self, way: str) -> Any:
        if way == "duckdb" and not self.is_for_duckdb:
            raise DoesNotFit(way)
        if way == "duckdb":
            return DuckDBTable(self.root)
        return self.pylance() if way == "pylance" else self.lancedb()

    def _can_use_stale(self) -> bool:
        """Whether there is a stale handle, of a version that has not been cleaned up.

        Without its version it cannot be told that the table is still the same, and writes with the
        handle may be refused.
        """
        return self.stale is not None and self.stale.version in self.existing

    def _draw_way(self, dice: random.Random, pylance: object, rivals: list[str]) -> list[Any]:
        chance = dice.random()
        if pylance is not None and chance < 0.35:
            beside = [rival for rival in rivals if rival in BESIDE_PYLANCE]
            if chance < 0.04 and beside:
                rival = dice.choice(beside)
                return ["pylance", rival, self.draw_rival(rival, dice), "we"]
            return ["pylance"]
        chance = dice.random()
        if chance < 0.66:
            return ["we"]
        if chance < 0.7:
            return ["process"]
        if chance < 0.8:
            return ["cold"]
        if chance < 0.87:
            return ["stale"]
        if chance < 0.93 or not rivals:
            return ["dies", dice.randrange(1, 30), dice.random() < 0.5]
        if len(self.life.lines) > 1 or "in a cleanup" in self.life.memory:
            rivals = [rival for rival in rivals if rival != "replace"]
        rival = dice.choice(rivals)
        details, writer = self.draw_rival(rival, dice), self.draw_rival_writer(rival, dice)
        at = dice.choice([0, dice.randrange(1, 40)])
        if rival == "replace":  # right before the commit nobody could notice it
            at = max(at, 1)
            if details[0] != "new" and "append" not in rivals:  # a copy may be the very table
                details[1].clear()
        return ["beaten", rival, details, writer, at]

    def draw_rival_writer(self, rival: str, dice: random.Random) -> str:
        by_lancedb = rival in BY_LANCEDB and self.is_for_lancedb
        return dice.choice(["we", "pylance", *(["lancedb"] if by_lancedb else [])])

    def draw_rival(self, rival: str, dice: random.Random) -> Any:
        match rival:
            case "append":
                return self.life.draw_new_rows(self.now, dice, 2)
            case "upsert":
                near = range(self.life.next_key + 3)
                keys = dice.sample(near, 3)
                return {key: self.life.draw_values(self.now.columns, dice) for key in keys}
            case "delete":
                return self.life.draw_keys(dice, 3)
            case "update":
                return [self.life.draw_keys(dice, 5), dice.randrange(100)]
            case "configure" | "restore" | "drop":
                return dice.randrange(100)
            case "replace":
                return draw_replacement(self, dice)
            case _:
                return dice.choice([5, 1000])

    def _die(self, details: list[Any], ours: Callable[[Dataset], object]) -> bool:
        handle = self.ours()
        at, done = details
        try:
            with dying(at, done=done):
                ours(handle)
        except DiedError:
            restart()
            return True
        return False

    def _write_beaten(
        self, rival: Rival, ours: Callable[[Dataset], object], build: Build, look: bool
    ) -> None:
        """Let a rival commit versions while we write.

        If that is after our commit, our version comes before its own. Without a commit, we may have
        come before it, too: a verb that found nothing to change.
        """
        handle = self.ours()
        before = self.now
        committed: set[str] = set()
        with self._meanwhile(rival, build, committed):
            try:
                ours(handle)
            except (CommitConflictError, InvalidInputError, NotFoundError) as error:
                if rival.name == "replace" and "rival" in committed:
                    return self._check_refused(error)
                if isinstance(error, CommitConflictError):
                    self.life.counts["conflicts"] += 1
                elif rival.name == "drop" and isinstance(error, InvalidInputError):
                    self.life.counts["refused beside a drop"] += 1
                else:
                    raise
                return self.advance(unchanged, may_stay=True, look=look)
        if rival.name == "replace" and "rival" in committed and "ours" not in committed:
            is_new = self.ours().version > self.newest
            if is_new and not self.has_version_of(handle):
                assert "looked" not in committed, "a commit to another table"
                self.life.counts["replaced between the last look and the commit"] += 1
                return replace_table(self, "new", [])
        if "ours" in committed or (rival.name == "twin" and "rival" in committed):
            return self.advance(unchanged, may_stay=True, look=look)
        is_newest = self.ours().version == self.newest
        changes_nothing = is_newest and build(before, self.newest + 1) == before
        return self.advance(build, may_stay=changes_nothing, look=look)

    def _check_refused(self, error: Exception) -> None:
        """Check that a verb which the table's replacement has stopped has left nothing."""
        if isinstance(error, InvalidInputError) and self.now.columns == self.replaced_columns:
            raise error
        self.life.counts["refused by another table"] += 1
        assert self.ours().version == self.newest
        assert files_of(self) <= self.files, f"left: {files_of(self) - self.files}"
        self.snapshot(self.newest)

    def has_version_of(self, ds: Dataset) -> bool:
        """Return whether the table has the very version that a handle has opened."""
        if ds.version not in self.existing:
            return False
        return is_same_version(self.ours(ds.version).table.manifest, ds.table.manifest)

    def may_have_had_version_of(self, ds: Dataset) -> bool:
        """Return whether the table had the version of a handle, for all that anyone can tell."""
        was_removed = ds.version < self.newest and ds.version not in self.existing
        return was_removed or self.has_version_of(ds)

    @contextmanager
    def _meanwhile(self, rival: Rival, build: Build, committed: set[str]) -> Iterator[None]:
        """Let a rival write before a call of ours to the store, and note who has committed."""
        publish, list_names = ObjectStoreLog.publish, LocalStore.list_names
        num_calls = 0

        def write() -> None:
            committed.add("rival")
            with another_process():  # where the attempt of a task dies, the rival does not
                if self.ours().version > self.newest:
                    self.advance(build, look=False)
                    committed.add("ours")
                self.let_rival_write(rival)
            committed.discard("looked")

        def looking(store: LocalStore, folder: str, *arguments: Any) -> Any:
            if folder == "_versions" and "rival" in committed:
                committed.add("looked")
            return list_names(store, folder, *arguments)

        def beaten(log: ObjectStoreLog, *arguments: Any, **named: Any) -> Any:
            if not committed and log.store.uri.rstrip("/").endswith(self.uri):
                write()
            return publish(log, *arguments, **named)

        def counting(inner: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal num_calls
                num_calls += 1
                if num_calls >= rival.at and not committed:
                    write()
                return inner(*arguments, **named)

            return call

        with ExitStack() as stack:
            stack.enter_context(patch.object(LocalStore, "list_names", looking))
            if rival.at == 0:
                stack.enter_context(patch.object(ObjectStoreLog, "publish", beaten))
            for name in STORE_CALLS if rival.at else ():
                replacement = counting(getattr(LocalStore, name))
                stack.enter_context(patch.object(LocalStore, name, replacement))
            yield

    def let_rival_write(self, rival: Rival) -> None:
        """Let a rival write: pylance, LanceDB, or we in the second process.

        In this one it would enter locks that we hold, which no other thread of a process can do.
        """
        details, is_ours = rival.details, rival.writer == "we"
        now = self.now

        def write(
            verb: Callable[[Any], object], lancedb: Callable[[Any], object] | None = None
        ) -> None:
            if is_ours:
                self.life.second_process.run(verb, self.uri)
            elif rival.writer == "lancedb":
                (lancedb or verb)(self.lancedb())
                self.life.counts["rivals: lancedb"] += 1
            else:  # in another thread: this one may be in pylance's call of our commit lock
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(lambda: verb(self.pylance())).result()

        match rival.name:
            case "append":
                rows = self.life.fitting_new_rows(now, details)
                data = now.table(rows)
                if rival.writer == "pylance":
                    write(lambda ds: lance.write_dataset(data, ds, mode="append"))
                else:
                    write(lambda ds: ds.append(data), lambda table: table.add(data))
                self.advance(lambda state, at: self.life.inserted(state, rows, at), look=False)
            case "upsert" if rival.writer != "pylance" and all(
                {*now.row_names} == row.keys() for row in details.values()
            ):
                rows = self.life.fitting_rows(now, details)
                data = now.table(rows)
                write(lambda ds: ds.upsert(data, on=KEY), lambda table: merge_all(table, data))
                self.advance(lambda state, at: self.life.upserted(state, rows, at), look=False)
            case "delete":
                write(lambda ds: ds.delete(in_list(details)))
                self.advance(lambda state, _: state.without(details), may_stay=True, look=False)
            case "update" if numbers := [
                c.name for c in now.columns if ALL_KINDS[c.kind].is_number
            ]:
                keys, value = details
                update, where = {numbers[0]: str(value)}, in_list(keys)
                write(
                    lambda ds: ds.update(update, where),
                    lambda table: table.update(where, values_sql=update),
                )
                changes = {key: {numbers[0]: value} for key in keys}
                self.advance(
                    lambda state, at: state.updated(changes, at), may_stay=True, look=False
                )
            case "restore" if not is_ours and (alike := self._versions_with_these_columns()):
                version = alike[details % len(alike)]
                write(
                    lambda _: self.pylance(version).restore(),
                    lambda table: table.restore(version),
                )
                self.advance(lambda *_: self.states[version], look=False)
                self.restored.add(self.newest)
                self.memory["restored by pylance"] = True
            case "drop" if len(free := self.columns_to_drop()) > 1:
                name = free[details % len(free)]
                write(lambda ds: ds.drop_columns([name]))
                self.advance(lambda state, _: state.without_column(name), look=False)
            case "compact" if is_ours:
                write(lambda ds: ds.compact(details))
                self.advance(unchanged, may_stay=True, look=False)
            case "compact" if self.has_deferred_remaps or not self.has_indices_to_misplace:
                write(
                    lambda ds: ds.optimize.compact_files(
                        target_rows_per_fragment=details,
                        defer_index_remap=self.has_deferred_remaps,
                    ),
                    lambda table: table.optimize(),
                )
                self.advance(unchanged, may_stay=True, look=False)
            case "twin":
                self.twin()
            case "replace":
                self.replaced_columns = self.now.columns
                replace_table(self, *details)
                self.files = files_of(self)
            case _:
                write(lambda ds: ds.update_config({"rival": str(details)}))
                self.advance(unchanged, look=False)

    def columns_to_drop(self) -> list[str]:
        needed = {*self.indexed(), self.now.deletes_by, *self.now.computed_from}
        return [column.name for column in self.now.plain_columns if column.name not in needed]

    def _versions_with_these_columns(self) -> list[int]:
        columns = self.now.columns
        return sorted(v for v in self.existing if self.states[v].columns == columns)

    def advance(self, build: Build, *, may_stay: bool = False, look: bool = True) -> None:
        """Compare the versions that were committed since with the model.

        Args:
            build: Builds the state of the last of them.
            may_stay: Whether nothing may have happened.
            look: Whether the rows are read.
        """
        previous, latest = self.newest, self.ours().version
        if latest == previous:
            if not may_stay:
                state = build(self.now, latest + 1)
                assert state == self.now, "rows have changed, but no version was committed"
            return
        for version in range(previous + 1, latest):
            self.states[version] = self.states[previous]
        self.states[latest] = build(self.states[previous], latest)
        self.existing.update(range(previous + 1, latest + 1))
        if look:
            self.snapshot(latest)

    # --- reading

    def compare(self, ds: Dataset, version: int) -> list[dict[str, Any]]:
        """Compare the rows of a version, as we read them, with the model."""
        state = self.states[version]
        schema = ds.schema
        assert schema.names == [KEY, *state.names], (schema.names, state.names)
        for column in state.columns:
            stored = schema.field(column.name)
            assert stored.type == ALL_KINDS[column.kind].arrow, (stored, column)
            note = (stored.metadata or {}).get(b"note", b"").decode()
            assert note == column.note, f"metadata of {column.name}: {note!r}, not {column.note!r}"
        stable = self.life.is_stable
        table = ds.to_table(with_row_id=stable, with_row_versions=stable)
        rows = plain_rows(table)
        check_rows(rows, state)
        if stable:
            for row in rows:
                expected_row = state.rows[row[KEY]]
                seen = self.row_ids.setdefault(expected_row.serial, row["_rowid"])
                assert seen == row["_rowid"], f"the row id of {row[KEY]} was {seen}: {row}"
                stamps = row["_row_created_at_version"], row["_row_last_updated_at_version"]
                expected = expected_row.created, expected_row.updated
                assert stamps == expected, f"stamps of {row[KEY]} are {stamps}, not {expected}"
        return rows

    def snapshot(self, version: int) -> dict[int, dict[str, Any]]:
        """Return a version's rows, compared with the model, by row id, or by key without these."""
        if version == 0:
            return {}
        if version not in self.snapshots:
            rows = self.compare(self.ours(version), version)
            name = "_rowid" if self.life.is_stable else KEY
            self.snapshots[version] = {row[name]: row for row in rows}
        return self.snapshots[version]

    def stamps(self) -> dict[int, int]:
        """Return the last-updated version of each row of the newest version, by key."""
        rows = self.ours().to_table([KEY], with_row_versions=True)
        return dict(zip(rows[KEY].to_pylist(), rows[STAMPS[2]].to_pylist(), strict=True))

    def indexed(self) -> set[str]:
        """Return the columns that have an index."""
        if "indices" not in self.memory:
            return set()
        indices = self.pylance().list_indices()
        return {name.partition(".")[0] for index in indices for name in index["fields"]}


def merge_all(table: Any, data: pa.Table) -> None:
    """Upsert rows by pylance or LanceDB."""
    merge = table.merge_insert(KEY).when_matched_update_all().when_not_matched_insert_all()
    merge.execute(data)


def in_list(keys: Iterable[int]) -> str:
    return f"{KEY} IN ({', '.join(map(str, keys)) or '-1'})"


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: from_arrow(value) for name, value in row.items()} for row in table.to_pylist()]


def check_rows(rows: list[dict[str, Any]], state: State) -> None:
    """Check that rows are those of the model, in any order."""
    by_key = {row[KEY]: row for row in rows}
    assert len(by_key) == len(rows), "a key occurs twice"
    assert by_key.keys() == state.rows.keys(), (
        f"missing: {sorted(state.rows.keys() - by_key.keys())}, "
        f"unexpected: {sorted(by_key.keys() - state.rows.keys())}"
    )
    for key, row in state.rows.items():
        for column in state.columns:
            expected = row.values.get(column.ident)
            value = by_key[key][column.name]
            assert value == expected, f"{column.name} of {key} is {value!r}, not {expected!r}"


class Life:
    """A table's whole life.

    Args:
        folder: An empty folder.
        limits: What is lowered.
    """

    def __init__(self, folder: str, limits: Mapping[str, Any]) -> None:
        self.folder = folder
        self.limits = limits
        self.lines: list[Line] = []
        self.counts: Counter[str] = Counter()
        self.tags: dict[tuple[str, str], tuple[Line, int]] = {}
        self.copies: list[Copy] = []
        self.origins: dict[int, int] = {}
        self.memory: dict[str, Any] = {}
        self.is_stable = True
        self.has_lancedb = HAS_LANCEDB
        self.file_version = "2.2"
        self.next_key = 0
        self._serial = self._ident = self._number = 0

    @cached_property
    def second_process(self) -> SecondProcess:
        """A process that writes, too, and remembers nothing of other lives."""
        return second_process(self.limits)

    def number(self) -> int:
        self._number += 1
        return self._number

    def ident(self) -> int:
        self._ident += 1
        return self._ident

    def line(self, choose: Choices) -> Line:
        """Return one of the lines, mostly the first."""
        if not self.lines:
            raise DoesNotFit("there is no table")
        if len(self.lines) == 1 and "line" not in choose.recorded:
            return self.lines[0]
        index = choose(
            "line", lambda dice: 0 if dice.random() < 0.4 else dice.randrange(len(self.lines))
        )
        if index >= len(self.lines):
            raise DoesNotFit("there is no such line")
        return self.lines[index]

    def root_of(self, ident: int) -> int:
        """Return the column that a column was in the beginning, before casts and overwrites."""
        while ident in self.origins:
            ident = self.origins[ident]
        return ident

    # --- drawing

    def kinds(self) -> list[str]:
        """Return the kinds that the table may have; those drawn more often occur three times."""
        common = [n for n, kind in KINDS.items() if kind.lowest_file_version <= self.file_version]
        return [*3 * common, *SPECIAL_KINDS]

    def draw_columns(self, dice: random.Random) -> list[list[str]]:
        names = dice.sample(NAMES, dice.randint(1, 3))
        return [[name, dice.choice(self.kinds())] for name in names]

    def draw_values(self, columns: Iterable[Column], dice: random.Random) -> dict[str, Any]:
        return {
            column.name: None
            if not column.is_required and dice.random() < 0.2
            else ALL_KINDS[column.kind].draw(dice)
            for column in columns
            if not column.computed_from
        }

    def draw_new_keys(self, dice: random.Random, maximum: int = 6) -> list[int]:
        return list(range(self.next_key, self.next_key + dice.randint(1, maximum)))

    def draw_new_rows(
        self, state: State, dice: random.Random, maximum: int = 6
    ) -> dict[int, dict[str, Any]]:
        keys = self.draw_new_keys(dice, maximum)
        return {key: self.draw_values(state.columns, dice) for key in keys}

    def draw_keys(self, dice: random.Random, maximum: int = 5) -> list[int]:
        """Draw keys that are there or were once."""
        return dice.sample(range(self.next_key), min(self.next_key, dice.randint(1, maximum)))

    # --- the model's side of verbs

    def use_keys(self, keys: Iterable[int]) -> None:
        self.next_key = max(self.next_key, 1 + max(keys, default=-1))

    def fitting_rows(self, state: State, rows: Mapping[int, Values]) -> dict[int, Values]:
        """Return recorded rows with the columns that the state has; `DoesNotFit` for others."""
        for values in rows.values():
            for name, value in values.items():
                column = state.column(name)
                if column is None or not fits(value, column):
                    raise DoesNotFit(f"column {name}")
        self.use_keys(rows)
        return {int(key): values for key, values in rows.items()}

    def fitting_new_rows(self, state: State, rows: Mapping[int, Values]) -> dict[int, Values]:
        if not state.rows.keys().isdisjoint(rows) or len(state.rows) > MAX_ROWS:
            raise DoesNotFit("keys that exist")
        required = {column.name for column in state.columns if column.is_required}
        if any(not required <= values.keys() for values in rows.values()):
            raise DoesNotFit("a required column")
        return self.fitting_rows(state, rows)

    def inserted(self, state: State, rows: Mapping[int, Values], at: int) -> State:
        new = {}
        for key, values in rows.items():
            self._serial += 1
            new[key] = Row(self._serial, state.stored(values), at, at)
        return replace(state, rows={**state.rows, **new})

    def upserted(self, state: State, rows: Mapping[int, Values], at: int) -> State:
        new = {key: values for key, values in rows.items() if key not in state.rows}
        return self.inserted(state.updated(rows, at), new, at)

    def new_state(self, columns: Iterable[tuple[str, str]]) -> State:
        return State(tuple(Column(self.ident(), name, kind) for name, kind in columns))


def fits(value: Any, column: Column) -> bool:
    """Return whether a recorded value can be stored in a column."""
    if value is None:
        return not column.is_required
    kinds: Mapping[str, type | tuple[type, ...]] = {
        "string": str, "uuid": str, "bool": bool, "pair": dict, "list": list, "vector": list,
        "float32": float, "float64": float, "int32": int, "int64": int,
    }  # fmt: skip
    if column.kind in SPECIAL_KINDS or column.kind in DERIVED_KINDS:
        try:
            to_arrow([value], column.kind)
        except (ArithmeticError, TypeError, ValueError, pa.ArrowException):
            return False
        return True
    if not isinstance(value, kinds[column.kind]):
        return False
    if column.kind == "uuid":
        return len(value) == 32
    if column.kind == "vector":
        return len(value) == 4 and None not in value
    return not (column.kind.startswith("int") and isinstance(value, bool))
