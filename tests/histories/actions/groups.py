"""Tables beside the table that are committed together: a batch is in all of them, or in none.

Two streams write to three tables in one manifest store; some tables are appended to, others are
upserted into by key. What happens to a batch:

    an answer of the manifest store is lost, or a request, once or for good
    a table refuses its rows
    the writer dies at any call to its files or to the manifest store
    another writer changes one of the tables at the same time
    a second driver commits the same batch, or the other stream its own
    it is repeated, at once or later

A batch that failed is repeated, as Spark does, until it is there; after each attempt, all tables
have it or none. A thread reads all the while.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa

import lance_stream
from lance_stream.commit.commit_groups import Member, run_together
from lance_stream.dataset import Dataset
from lance_stream.errors import (
    CommitAbortedError,
    CommitUncertainError,
    InvalidInputError,
    StoreUnavailableError,
)
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from tests.contracts.watched_stores import WatchedManifests, WatchedStore
from tests.histories.life import Life
from tests.histories.steps import Choices, DoesNotFit, action, check
from tests.histories.trouble import DiedError

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
    ]
)
NAMES: Final = ("orders", "lines", "totals")
ALWAYS: Final = ("orders", "lines")
"""The tables that have rows of each batch."""

STREAMS: Final = ("a", "b")
OTHERS: Final = "others"
NUM_KEYS: Final = 30
MAX_ATTEMPTS: Final = 20
REFUSAL: Final = "these rows do not fit"
TROUBLES: Final = (
    "none",
    "answer lost",
    "answers lost",
    "request lost",
    "requests lost",
    "refusal",
    "death at files",
    "death at manifests",
    "other writer",
)
VERBS: Final = ("append", "delete", "update", "compact", "cleanup")

Row = tuple[int, str, int]


class Troubles:
    """What happens to the calls of one attempt; shared by its members, as their manifest store is.

    Args:
        kind: One of `TROUBLES`.
        dice: Draw when it happens.
        meanwhile: Changes a table.
    """

    def __init__(self, kind: str, dice: random.Random, meanwhile: Callable[[], None]) -> None:
        self.kind = kind
        self._meanwhile = meanwhile
        self._lock = threading.Lock()
        self._manifests: WatchedManifests | None = None
        self._num_remaining = (
            99 if kind.startswith(("answers", "requests")) else dice.randrange(1, 3)
        )
        self._at_call = dice.randrange(0, 60)
        self._num_calls = 0

    def watch(self, table: Any) -> None:
        """Put watches into the log of a table that was opened for a member."""
        log = table.log
        with self._lock:
            if self._manifests is None:
                self._manifests = WatchedManifests(log.manifests, self._before, self._after)
            log.manifests = self._manifests
        if self.kind == "death at files":
            log.store = WatchedStore(log.store, before=lambda _call, _path: self._count())

    def _before(self, call: str, _version: int) -> None:
        if call == "put_all_if_not_exist":
            if self.kind.startswith("request"):
                self._lose()
            if self.kind == "other writer" and self._happens():
                self._meanwhile()
        if self.kind == "death at manifests":
            self._count(every=6)

    def _after(self, call: str, _version: int) -> None:
        if call == "put_all_if_not_exist" and self.kind.startswith("answer"):
            self._lose()

    def _happens(self) -> bool:
        with self._lock:
            self._num_remaining -= 1
            return self._num_remaining >= 0

    def _lose(self) -> None:
        if self._happens():
            raise StoreUnavailableError(self.kind)

    def _count(self, every: int = 1) -> None:
        with self._lock:
            self._num_calls += every
            if self._num_calls > self._at_call:
                raise DiedError


class Group:
    """The tables, their models, and the streams' batches.

    Args:
        folder: Where the tables are.
        by_key: The tables that are upserted into.
    """

    def __init__(self, folder: str, by_key: list[str]) -> None:
        self.options = {"manifest_store": f"sqlite://{folder}/group.db"}
        self.uris = {name: f"{folder}/group/{name}" for name in NAMES}
        self.by_key = by_key
        self.rows: dict[str, list[Row]] = {name: [] for name in NAMES}
        self.newest = dict.fromkeys(STREAMS, -1)
        for uri in self.uris.values():
            lance_stream.create_dataset(uri, SCHEMA, storage_options=self.options)

    def open(self, name: str) -> Dataset:
        return lance_stream.open_dataset(self.uris[name], storage_options=self.options)

    def open_all(self) -> Mapping[str, Dataset]:
        datasets = lance_stream.open_together([*self.uris.values()], self.options)
        return dict(zip(self.uris, datasets, strict=True))

    # --- batches

    def rows_of(self, stream: str, batch_id: int, name: str) -> list[Row]:
        """Return the rows of a batch for a table, the same with each call."""
        dice = random.Random(f"{stream} {batch_id} {name}")
        ids = dice.sample(range(NUM_KEYS), dice.randrange(int(name in ALWAYS), 6))
        return [(row_id, stream, batch_id) for row_id in ids]

    def _write(
        self, name: str, stream: str, batch_id: int, troubles: Troubles, refuses: bool, to: Member
    ) -> Any:
        table = open_newest(self.uris[name], storage_options=self.options)
        troubles.watch(table)
        if refuses:
            raise InvalidInputError(REFUSAL)
        table = replace(table, log=to.join(table.log))
        rows = as_table(self.rows_of(stream, batch_id, name))
        batch = PendingBatch.of(f"stream {stream}", batch_id)
        if name in self.by_key:
            return upsert(table, rows, UpsertRules(("id",)), batch)
        return append(table, rows, batch)

    def attempt(self, stream: str, batch_id: int, kind: str, seed: int) -> bool:
        """Commit a batch to all tables; return whether that succeeded."""
        dice = random.Random(seed)
        troubles = Troubles(kind, dice, lambda: self.change_one(random.Random(seed)))
        refusing = dice.choice(NAMES) if kind == "refusal" else None
        work = {
            name: partial(self._write, name, stream, batch_id, troubles, name == refusing)
            for name in dice.sample(NAMES, len(NAMES))
        }
        try:
            run_together(work)
        except InvalidInputError as error:
            if str(error) != REFUSAL:
                raise
        except (CommitUncertainError, CommitAbortedError, StoreUnavailableError, DiedError):
            pass
        else:
            return True
        return False

    def note(self, stream: str, batch_id: int, name: str) -> None:
        """Write a batch to the model of a table."""
        rows = self.rows_of(stream, batch_id, name)
        if name in self.by_key:
            rows_by_id = {row[0]: row for row in [*self.rows[name], *rows]}
            self.rows[name] = list(rows_by_id.values())
        else:
            self.rows[name] += rows

    def has(self, stream: str, batch_id: int) -> bool:
        """Return whether the tables have a batch, of which none has it alone."""
        has_batch = set()
        for name, ds in self.open_all().items():
            if self.rows_of(stream, batch_id, name):
                entry = ds.ledger().get(f"stream {stream}")
                has_batch.add(entry is not None and entry.batch_id >= batch_id)
        assert len(has_batch) == 1, f"some tables have batch {batch_id} of {stream}, some do not"
        return has_batch.pop()

    def committed_at(self, stream: str, name: str) -> int:
        entry = self.open(name).ledger().get(f"stream {stream}")
        return entry.version if entry is not None else 0

    # --- another writer

    def change_one(self, dice: random.Random) -> None:
        """Change one table alone."""
        name, verb, key = dice.choice(NAMES), dice.choice(VERBS), dice.randrange(NUM_KEYS)
        ds, rows = self.open(name), self.rows[name]
        if verb == "append" and name not in self.by_key:
            ds.append(as_table([(key, OTHERS, -1)]))
            rows = [*rows, (key, OTHERS, -1)]
        elif verb == "delete":
            ds.delete(f"id >= {key} AND id < {key + 3}")
            rows = [row for row in rows if not key <= row[0] < key + 3]
        elif verb == "update":
            ds.update({"batch": "-2"}, where=f"id = {key}")
            rows = [(*row[:2], -2) if row[0] == key else row for row in rows]
        elif verb == "compact":
            ds.compact()
        elif verb == "cleanup":
            ds.cleanup(timedelta(0), 2)
        self.rows[name] = rows

    # --- checks

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """Read the tables that have rows of each batch, all through the body."""
        has_ended = threading.Event()
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(self._read_until, has_ended)
            try:
                yield
            finally:
                has_ended.set()
        reading.result()

    def _read_until(self, has_ended: threading.Event) -> None:
        while not has_ended.is_set():
            datasets = self.open_all()
            for stream in STREAMS:
                entries = [datasets[name].ledger().get(f"stream {stream}") for name in ALWAYS]
                batch_ids = {entry and entry.batch_id for entry in entries}
                assert len(batch_ids) == 1, f"{stream}: {batch_ids}"

    def check_rows(self) -> None:
        for name, ds in self.open_all().items():
            for handle in (ds, self.open(name)):
                assert rows_in(handle) == sorted(self.rows[name]), name


def as_table(rows: list[Row]) -> pa.Table:
    columns = [pa.array([row[index] for row in rows], SCHEMA.types[index]) for index in range(3)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def rows_in(ds: Dataset) -> list[Row]:
    return sorted((row["id"], row["stream"], row["batch"]) for row in ds.to_table().to_pylist())


def group_of(life: Life, choose: Choices) -> Group:
    """Return the group of a life, which is created by the first step that needs it."""
    if not life.lines:
        raise DoesNotFit("there is no table")
    if "group" not in life.memory:
        by_key = choose("by_key", lambda dice: dice.sample(NAMES, dice.randint(0, 3)))
        life.memory["group"] = Group(life.folder, by_key)
    group: Group = life.memory["group"]
    return group


@action(weight=0.6)
def group_batch(life: Life, choose: Choices) -> None:
    """The next batch of a stream, repeated until all tables have it."""
    group = group_of(life, choose)
    stream = choose.one_of("stream", STREAMS)
    batch_id = group.newest[stream] + 1
    attempts = choose(
        "attempts",
        lambda dice: [
            [dice.choice(TROUBLES), dice.randrange(1000)] for _ in range(dice.randint(1, 4))
        ],
    )
    is_noted = False
    for kind, seed in [*attempts, ["none", 0]]:
        with group.being_read():
            is_done = group.attempt(stream, batch_id, kind, seed)
        is_there = group.has(stream, batch_id)
        life.counts[f"group: {kind}"] += 1
        assert is_there or not is_done
        if is_there and not is_noted:
            is_noted = True
            group.newest[stream] = batch_id
            for name in NAMES:
                group.note(stream, batch_id, name)
        group.check_rows()
    assert is_noted


@action(weight=0.2)
def group_drivers(life: Life, choose: Choices) -> None:
    """Several drivers commit a batch of each stream at once."""
    group = group_of(life, choose)
    streams = choose("drivers", lambda dice: [*STREAMS, *dice.sample(STREAMS, dice.randint(0, 2))])
    drivers = Counter(stream for stream in streams if stream in STREAMS)
    group.newest = {stream: group.newest[stream] + (stream in drivers) for stream in STREAMS}
    with group.being_read(), ThreadPoolExecutor(len(streams)) as threads:
        attempts = [
            threads.submit(group.attempt, stream, group.newest[stream], "none", number)
            for number, stream in enumerate(drivers.elements())
        ]
        assert all(attempt.result() for attempt in attempts)
    for name in NAMES:  # each table may have its own order of the two
        for stream in sorted(drivers, key=lambda stream: group.committed_at(stream, name)):
            assert group.has(stream, group.newest[stream])
            group.note(stream, group.newest[stream], name)
    group.check_rows()


@action(weight=0.3)
def group_change_one(life: Life, choose: Choices) -> None:
    """Another writer changes one table, and an old batch is repeated without effect."""
    group = group_of(life, choose)
    seed = choose("seed", lambda dice: dice.randrange(1000))
    dice = random.Random(seed)
    with group.being_read():
        group.change_one(dice)
    stream = dice.choice(STREAMS)
    if group.newest[stream] >= 0:
        versions = {name: group.open(name).version for name in NAMES}
        batch_id = dice.randint(max(0, group.newest[stream] - 3), group.newest[stream])
        assert group.attempt(stream, batch_id, "none", seed)
        assert {name: group.open(name).version for name in NAMES} == versions
    group.check_rows()


@check(weight=0.3)
def group_feeds(life: Life, choose: Choices) -> None:
    """The tables are valid, and the changes since a version lead from its rows to the newest."""
    if "group" not in life.memory:
        raise DoesNotFit("no group")
    group = group_of(life, choose)
    for name, uri in group.uris.items():
        ds = group.open(name)
        assert ds.verify() == [], name
        first = min(info.version for info in ds.versions())
        rows = Counter(
            rows_in(lance_stream.open_dataset(uri, first, storage_options=group.options))
        )
        for change in ds.changes(after=first).read_all().to_pylist():
            is_removed = change["_change_type"] in ("delete", "update_preimage")
            rows[change["id"], change["stream"], change["batch"]] += -1 if is_removed else 1
        assert min(rows.values(), default=0) >= 0
        assert sorted(rows.elements()) == rows_in(ds), name
