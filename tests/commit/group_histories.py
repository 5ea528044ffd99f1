"""Random histories of tables that are committed together: a batch is in all of them, or in none.

    python -m tests.commit.group_histories --minutes 10

Two streams write to three or four tables in one manifest store; some tables are appended to, others
are upserted into by key. Their batches meet what happens in production:

    an answer of the manifest store is lost, or a request, once or for good
    a table refuses its rows
    a writer dies at any call to its files or to the manifest store
    other writers append, delete, update, compact and clean up in single tables meanwhile
    a second driver commits the same batch, or the other stream its own, at the same time
    a batch is repeated, at once or later

A batch that failed is repeated, as Spark does, until it is there; after each try, all tables have
it or none, read at one moment, each as the model says: a list of rows, or a dictionary by key. A
thread reads all the while. At the end each feed, applied to an older version, gives the newest.
"""

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
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
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from tests import seeded_runs as histories
from tests.contracts.watched_stores import WatchedManifests, WatchedStore

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
    ]
)
STREAMS: Final = ("a", "b")
OTHERS: Final = "others"
NUM_KEYS: Final = 30
REFUSAL: Final = "these rows do not fit"

Row = tuple[int, str, int]


class DiedError(BaseException):
    """A writer's process is gone: nothing that it would do on an error is done."""


@dataclass
class Model:
    """What a table holds: rows, or rows by key."""

    by_key: bool
    rows: list[Row]

    def write(self, rows: list[Row]) -> None:
        if self.by_key:
            rows_by_id = {row[0]: row for row in self.rows} | {row[0]: row for row in rows}
            self.rows = list(rows_by_id.values())
        else:
            self.rows = [*self.rows, *rows]


class Troubles:
    """What happens to the calls of one try; shared by its members, as their manifest store is.

    Args:
        dice: Settles it.
        kind: Of `KINDS`.
        meanwhile: Changes a table.
    """

    KINDS: Final = (
        *("none",) * 3,
        "answer lost",
        "answers lost",
        "request lost",
        "requests lost",
        "refusal",
        "death at files",
        "death at manifests",
        "other writer",
    )

    def __init__(self, dice: random.Random, kind: str, meanwhile: Callable[[], None]) -> None:
        self.kind = kind
        self._meanwhile = meanwhile
        self._lock = threading.Lock()
        self._manifests: WatchedManifests | None = None
        self._left = dice.randrange(1, 3) if kind.endswith("r lost") or "request " in kind else 99
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
            if self.kind == "other writer" and self._take():
                self._meanwhile()
        if self.kind == "death at manifests":
            self._count(every=6)

    def _after(self, call: str, _version: int) -> None:
        if call == "put_all_if_not_exist" and self.kind.startswith("answer"):
            self._lose()

    def _take(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def _lose(self) -> None:
        if self._take():
            raise StoreUnavailableError(self.kind)

    def _count(self, every: int = 1) -> None:
        with self._lock:
            self._num_calls += every
            if self._num_calls > self._at_call:
                raise DiedError


class History:
    """Tables, their models, and the streams' batches.

    Args:
        folder: Where the tables are.
        seed: Settles what happens.
    """

    def __init__(self, folder: str, seed: int) -> None:
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self.dice = random.Random(seed)
        self.options = {"manifest_store": f"sqlite://{folder}/m.db"}
        names = ["orders", "lines", "totals", "log"][: self.dice.choice([3, 4])]
        self.uris = {name: str(Path(folder, name)) for name in names}
        self.models = {name: Model(by_key=self.dice.random() < 0.5, rows=[]) for name in self.uris}
        self.newest = dict.fromkeys(STREAMS, -1)
        self._lock = threading.Lock()
        for name, uri in self.uris.items():
            lance_stream.create_dataset(uri, SCHEMA, storage_options=self.options)
            key = "by key" if self.models[name].by_key else "appended"
            self.notes.append(f"{name}: {key}")

    # --- what is written

    def rows_of(self, stream: str, batch_id: int, name: str) -> list[Row]:
        """Return the rows of a batch for a table: the same whenever it is asked; the first two
        tables always have some."""
        dice = random.Random(f"{stream} {batch_id} {name}")
        least = 1 if name in ("orders", "lines") else 0
        ids = dice.sample(range(NUM_KEYS), dice.randrange(least, 6))
        return [(id_, stream, batch_id) for id_ in ids]

    def open(self, name: str) -> Dataset:
        return lance_stream.open_dataset(self.uris[name], storage_options=self.options)

    def _write(
        self, name: str, stream: str, batch_id: int, troubles: Troubles, refuses: bool, to: Member
    ) -> Any:
        table = open_newest(self.uris[name], storage_options=self.options)
        troubles.watch(table)
        rows = self.rows_of(stream, batch_id, name)
        if refuses:
            raise InvalidInputError(REFUSAL)
        table = replace(table, log=to.join(table.log))
        batch = PendingBatch.of(f"stream {stream}", batch_id)
        if self.models[name].by_key:
            return upsert(table, as_table(rows), UpsertRules(("id",)), batch)
        return append(table, as_table(rows), batch)

    def attempt(self, stream: str, batch_id: int, troubles: Troubles) -> str:
        """Commit a batch to all tables; return "done" or what failed."""
        refusing = self.dice.choice([*self.uris]) if troubles.kind == "refusal" else None
        names = [*self.uris]
        self.dice.shuffle(names)
        work = {
            name: partial(self._write, name, stream, batch_id, troubles, name == refusing)
            for name in names
        }
        try:
            run_together(work)
        except InvalidInputError as error:
            if str(error) != REFUSAL:
                raise
            return "refused"
        except (CommitUncertainError, CommitAbortedError, StoreUnavailableError) as error:
            return type(error).__name__
        except DiedError:
            return "died"
        return "done"

    # --- steps

    def step(self) -> None:
        kind = self.dice.random()
        with self.being_read():
            if kind < 0.55:
                self.batch()
            elif kind < 0.7:
                self.several_drivers()
            elif kind < 0.75:
                self.repeat()
            else:
                self.other_writer()
        self.check()

    def batch(self) -> None:
        """Commit the next batch of a stream, repeated until it is there."""
        stream = self.dice.choice(STREAMS)
        batch_id = self.newest[stream] + 1
        for _ in range(20):
            troubles = Troubles(self.dice, self.dice.choice(Troubles.KINDS), self.other_writer)
            outcome = self.attempt(stream, batch_id, troubles)
            there = self.which_have(stream, batch_id)
            self.note(f"batch {stream}{batch_id}, {troubles.kind}: {outcome}, there: {there}")
            self.counts[troubles.kind] += 1
            if there:
                self.learn(stream, batch_id)
                self.counts["batches"] += 1
                if outcome == "done" or self.dice.random() < 0.5:
                    return
            else:
                assert outcome != "done"

    def several_drivers(self) -> None:
        """Commit a batch of each stream by some drivers at once."""
        ids = {stream: self.newest[stream] + 1 for stream in STREAMS}
        drivers = [(each, ids[each]) for each in STREAMS for _ in range(self.dice.choice([1, 2]))]
        self.note(f"drivers {drivers}")
        quiet = [Troubles(self.dice, "none", self.other_writer) for _ in drivers]
        with ThreadPoolExecutor(len(drivers)) as threads:
            tries = [
                threads.submit(self.attempt, *driver, troubles)
                for driver, troubles in zip(drivers, quiet, strict=True)
            ]
            assert [each.result() for each in tries] == ["done"] * len(drivers)
        order = sorted(STREAMS, key=lambda each: self.committed_at(each, "orders"))
        for stream in order:
            assert self.which_have(stream, ids[stream])
            self.counts["batches"] += 1
        for name, model in self.models.items():  # each table may have its own order of the two
            for stream in sorted(STREAMS, key=lambda each: self.committed_at(each, name)):
                model.write(self.rows_of(stream, ids[stream], name))
        self.newest = ids

    def repeat(self) -> None:
        """Commit a batch again that is there."""
        stream = self.dice.choice(STREAMS)
        if self.newest[stream] < 0:
            return
        batch_id = self.dice.randint(max(0, self.newest[stream] - 3), self.newest[stream])
        before = {name: self.open(name).version for name in self.uris}
        troubles = Troubles(self.dice, "none", self.other_writer)
        assert self.attempt(stream, batch_id, troubles) == "done"
        assert {name: self.open(name).version for name in self.uris} == before
        self.note(f"repeated {stream}{batch_id}")

    def other_writer(self) -> None:
        """Change one table alone."""
        name = self.dice.choice([*self.uris])
        ds, model = self.open(name), self.models[name]
        verb = self.dice.choice(["append", "delete", "update", "compact", "cleanup"])
        with self._lock:
            if verb == "append" and not model.by_key:
                rows = [(self.dice.randrange(NUM_KEYS), OTHERS, -1)]
                ds.append(as_table(rows))
                model.write(rows)
            elif verb == "delete":
                low = self.dice.randrange(NUM_KEYS)
                ds.delete(f"id >= {low} AND id < {low + 3}")
                model.rows = [row for row in model.rows if not low <= row[0] < low + 3]
            elif verb == "update":
                key = self.dice.randrange(NUM_KEYS)
                ds.update({"batch": "-2"}, where=f"id = {key}")
                model.rows = [(*row[:2], -2) if row[0] == key else row for row in model.rows]
            elif verb == "compact":
                ds.compact()
            elif verb == "cleanup":
                ds.cleanup(timedelta(0), 2)
        self.note(f"{verb} in {name}")
        self.counts["other writers"] += 1

    # --- checks

    def note(self, text: str) -> None:
        self.notes.append(text)

    def learn(self, stream: str, batch_id: int) -> None:
        if batch_id <= self.newest[stream]:
            return
        self.newest[stream] = batch_id
        for name, model in self.models.items():
            model.write(self.rows_of(stream, batch_id, name))

    def committed_at(self, stream: str, name: str) -> int:
        entry = self.open(name).ledger().get(f"stream {stream}")
        return entry.version if entry is not None else 0

    def opened_together(self) -> Mapping[str, Dataset]:
        datasets = lance_stream.open_together([*self.uris.values()], self.options)
        return dict(zip(self.uris, datasets, strict=True))

    def which_have(self, stream: str, batch_id: int) -> bool:
        """Return whether the tables have a batch, of which none has it alone."""
        has: dict[str, bool] = {}
        for name, ds in self.opened_together().items():
            entry = ds.ledger().get(f"stream {stream}")
            if self.rows_of(stream, batch_id, name):
                has[name] = entry is not None and entry.batch_id >= batch_id
        assert len(set(has.values())) == 1, (stream, batch_id, has)
        return next(iter(has.values()))

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """Read the first two tables, which have rows of each batch, all through the body."""
        ended = threading.Event()
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(self._read_until, ended)
            try:
                yield
            finally:
                ended.set()
        reading.result()

    def _read_until(self, ended: threading.Event) -> None:
        while not ended.is_set():
            datasets = self.opened_together()
            for stream in STREAMS:
                entries = [
                    datasets[each].ledger().get(f"stream {stream}") for each in [*datasets][:2]
                ]
                seen = {entry and entry.batch_id for entry in entries}
                assert len(seen) == 1, f"{stream}: {seen}"
            self.counts["reads"] += 1

    def check(self) -> None:
        for name, ds in self.opened_together().items():
            assert rows_in(ds) == sorted(self.models[name].rows), name
            assert rows_in(self.open(name)) == sorted(self.models[name].rows), name

    def finish(self) -> None:
        for name in self.uris:
            ds = self.open(name)
            assert ds.verify() == [], name
            first = min(version.version for version in ds.versions())
            self.check_feed(name, first, ds)

    def check_feed(self, name: str, first: int, ds: Dataset) -> None:
        """Apply the changes since a version to its rows: they become the newest."""
        uri = self.uris[name]
        old = lance_stream.open_dataset(uri, first, storage_options=self.options)
        rows = Counter(rows_in(old))
        changes = ds.changes(after=first).read_all().to_pylist()
        for change in changes:
            row = (change["id"], change["stream"], change["batch"])
            is_gone = change["_change_type"] in ("delete", "update_preimage")
            rows[row] += -1 if is_gone else 1
        assert sorted(rows.elements()) == rows_in(ds), name
        assert min(rows.values(), default=0) >= 0


def as_table(rows: list[Row]) -> pa.Table:
    columns = [pa.array([row[index] for row in rows], SCHEMA.types[index]) for index in range(3)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def rows_in(ds: Dataset) -> list[Row]:
    return sorted((row["id"], row["stream"], row["batch"]) for row in ds.to_table().to_pylist())


def play(seed: int, num_steps: int) -> Mapping[str, int]:
    return histories.run(History, seed, num_steps).counts


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=20))
