"""Random upserts by several threads, beside a compaction without pause, held against their order.

    python -m tests.upsert.concurrent_histories --minutes 10 --seed 1

Each thread upserts random rows of the same keys, some without a column, some only where they differ
or where they are new, and deletes rows now and then. Another one compacts all
the time; both write, find, merge and lose runs of the index of keys, which have a few rows here.
Sometimes everything is forgotten, as by a new process, and on a disk side files disappear. Requests
that are slow now and then, and pauses after runs are written, let other threads come between. Then

    each look-up     of a file that is known, the keys of all its rows are known
    in the end       the table is what the batches give in the order of their versions

The seed settles what the threads do, not in which order.
"""

import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import lance_stream
from lance_stream import CommitError
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.opening import open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments import Fragment
from lance_stream.upsert import key_index, remembered_keys
from lance_stream.upsert.incoming import IGNORE, UpsertRules
from lance_stream.upsert.key_index import LostRunError
from lance_stream.upsert.remembered_keys import Known, RememberedKeys
from lance_stream.upsert.upsert import upsert
from tests import seeded_runs as histories
from tests.contracts.watched_stores import WatchedStore
from tests.upsert.keyed_tables import use_small_runs
from tests.upsert.small_runs import restart

KEYS: Final = 300
NUM_THREADS: Final = 3
_RUNS: Final = "_lance_stream/key_index"

Row = tuple[int, int | None]
Batch = tuple[int, list[Any], int, str]
"""The version, the keys, the value of all its rows, and one of `KINDS`."""

KINDS: Final[dict[str, UpsertRules]] = {
    "whole": UpsertRules(("id",)),
    "without w": UpsertRules(("id",)),
    "only changes": UpsertRules(("id",), skip_unchanged=True),
    "only new rows": UpsertRules(("id",), when_matched=IGNORE),
    "delete": UpsertRules(("id",)),
}
"""What a batch does, by its name; a delete is no upsert."""


class History:
    """One history.

    Args:
        folder: An empty directory.
        seed: What the threads do.
        num_batches: How many each of them upserts.
    """

    def __init__(self, folder: Path, seed: int, num_batches: int) -> None:
        dice = random.Random(seed)
        self.seed = seed
        self.num_batches = num_batches
        is_on_disk = dice.random() < 0.5
        self.uri = str(folder / "t") if is_on_disk else f"memory://{uuid.uuid4()}/t"
        self.runs = folder / "t" / _RUNS if is_on_disk else None
        self.kind = pa.int64() if dice.random() < 0.3 else pa.string()
        self.limits = {
            "LEAST_SAVED_ROWS": dice.choice([1, 20, 100]),
            "MOST_SAVED_ROWS": dice.choice([40, 1000]),
            "MOST_MERGED_KEYS": dice.choice([200, 16 << 20]),
        }
        self.batches: list[Batch] = []
        self.errors: list[BaseException] = []
        self.is_over = threading.Event()
        self.counts: Counter[str] = Counter()

    def key(self, number: int) -> Any:
        if self.kind == pa.int64():
            return number * 7 - 300
        return f"k{number * 7919 % 9973}" + "\0" * (number % 3)

    def rows(self, numbers: Sequence[int], value: int, *, is_whole: bool) -> pa.Table:
        columns = {
            "id": pa.array(map(self.key, numbers), self.kind),
            "v": pa.array([value] * len(numbers), pa.int64()),
            "w": pa.array([value] * len(numbers), pa.int64()),
        }
        return pa.table(columns).select(["id", "v", "w"] if is_whole else ["id", "v"])

    def play(self) -> Counter[str]:
        """Let the threads work, and check what has come of it."""
        first = self.rows(range(KEYS // 2), 0, is_whole=True)
        lance_stream.create_dataset(self.uri, first)
        writers = [
            threading.Thread(target=self._noted, args=(self._write, number))
            for number in range(1, NUM_THREADS + 1)
        ]
        compacting = threading.Thread(target=self._noted, args=(self._compact,))
        with small_runs(self.limits), checked_look_ups(self.counts):
            for each in (*writers, compacting):
                each.start()
            for writer in writers:
                writer.join()
            self.is_over.set()
            compacting.join()
        if self.errors:
            raise self.errors[0]
        self._check()
        return self.counts

    def _noted(self, work: Any, *given: Any) -> None:
        try:
            work(*given)
        except BaseException as error:
            self.errors.append(error)
            self.is_over.set()

    def _open(self, dice: random.Random) -> TableVersion:
        """Return the table, on a store that sometimes waits."""
        own = random.Random(dice.random())

        def wait(_call: str, path: str) -> None:
            if _RUNS in path and own.random() < 0.3:
                time.sleep(own.random() * 0.004)

        table = open_table(self.uri)
        return replace(table, store=WatchedStore(table.store, before=wait, after=wait))

    def _write(self, number: int) -> None:
        dice = random.Random(self.seed * 100 + number)
        for batch in range(self.num_batches):
            if self.is_over.is_set():
                return
            numbers = dice.sample(range(KEYS), dice.choice([3, 30, 80]))
            kind, value = dice.choice([*KINDS]), dice.randrange(3)
            rows = self.rows(numbers, value, is_whole=kind != "without w")
            keys = rows["id"].to_pylist()
            table = self._open(dice)
            self.counts["batches"] += 1
            if kind == "delete":
                self._delete(table, keys, number * 1000 + batch)
            else:
                done = upsert(table, rows, KINDS[kind])
                if done.is_new:
                    self.batches.append((done.table.version, keys, value, kind))
                    self.counts[kind] += 1
            if dice.random() < 0.1:
                restart()
                self.counts["restarts"] += 1

    def _delete(self, table: TableVersion, keys: Sequence[Any], serial: int) -> None:
        """Delete rows, and record those of the version before: later ones are not deleted."""
        listed = ", ".join(repr(key) for key in keys if "\0" not in str(key))
        if not listed:
            return
        condition = f"id IN ({listed}) AND v < {1000 + serial}"
        version = lance_stream.Dataset(table).delete(condition).version
        ds = lance_stream.open_dataset(self.uri, version)
        transaction = read_transaction(ds.table.store, ds.table.manifest)
        assert transaction is not None
        if getattr(transaction.operation, "predicate", "") != condition:
            return  # there was nothing to delete
        before = ds.checkout(version - 1).to_table(["id"])["id"].to_pylist()
        deleted = set(before) - set(ds.to_table(["id"])["id"].to_pylist())
        self.batches.append((version, [*deleted], 0, "delete"))
        self.counts["delete"] += 1

    def _compact(self) -> None:
        dice = random.Random(-self.seed)
        while not self.is_over.is_set():
            ds = lance_stream.Dataset(self._open(dice))
            with suppress(CommitError):
                self.counts["compactions"] += (
                    ds.compact(dice.choice([60, 1000])).version > ds.version
                )
            for path in self.runs.glob("*") if self.runs is not None else ():
                if dice.random() < 0.1:
                    path.unlink(missing_ok=True)
                    self.counts["runs deleted"] += 1

    def _check(self) -> None:
        model: dict[Any, Row] = {self.key(each): (0, 0) for each in range(KEYS // 2)}
        for _, keys, value, kind in sorted(self.batches, key=lambda batch: batch[0]):
            for key in keys:
                if kind == "delete":
                    model.pop(key, None)
                elif kind != "only new rows" or key not in model:
                    before = model.get(key, (0, None))[1]
                    model[key] = (value, before if kind == "without w" else value)
        found = lance_stream.open_dataset(self.uri).to_table().to_pydict()
        rows = list(zip(found["id"], zip(found["v"], found["w"], strict=True), strict=True))
        assert len(rows) == len(dict(rows)), f"{len(rows) - len(dict(rows))} keys occur twice"
        assert dict(rows) == model


@contextmanager
def small_runs(limits: dict[str, int]) -> Iterator[None]:
    """Have runs of a few rows, within limits; afterwards nothing is remembered."""
    before: list[tuple[Any, str, object]] = []

    def set_attribute(owner: Any, name: str, value: object) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    real = key_index.write_run

    def write_slowly(*given: Any) -> Any:
        run = real(*given)
        time.sleep(random.random() * 0.02)
        return run

    try:
        use_small_runs(set_attribute)
        set_attribute(key_index, "write_run", write_slowly)
        for name, value in limits.items():
            set_attribute(remembered_keys, name, value)
        restart()
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
        restart()


@contextmanager
def checked_look_ups(counts: Counter[str]) -> Iterator[None]:
    """Check at each look-up that of the files that are known, no key is missing."""
    real = RememberedKeys.look_up

    def look_up(
        self: RememberedKeys, fragments: Sequence[Fragment], num_fragments: int, store: Store
    ) -> Known:
        known = real(self, fragments, num_fragments, store)
        with suppress(LostRunError):  # as the look-up will notice
            num_keys = _keys_of(known, store)
            for fragment, number in zip(fragments, known.numbers.tolist(), strict=True):
                if number >= 0:
                    assert num_keys[number] == fragment.physical_rows, (
                        f"fragment {fragment.id} lacks keys"
                    )
                    counts["known files"] += 1
        return known

    with patch.object(RememberedKeys, "look_up", look_up):
        yield


def _keys_of(known: Known, store: Store) -> Counter[int]:
    """Count the keys of each file, by its number."""
    num_keys: Counter[int] = Counter()
    for run in known.runs:
        num_keys.update(run.files.tolist())
    for saved in known.saved:
        saved.fetch_all(store)
        files = np.searchsorted(saved.starts, saved.rows.astype(np.int64), "right") - 1
        num_keys.update(saved.numbers[files].tolist())
    return num_keys


def played(seed: int, num_batches: int) -> Counter[str]:
    """Play a history in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="lance-stream-") as folder:
        return History(Path(folder), seed, num_batches).play()


if __name__ == "__main__":
    sys.exit(histories.main(played, steps=8, what="batches of each thread"))
