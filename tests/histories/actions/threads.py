"""Writers in threads: upserts and deletes of the same keys, beside compactions and index updates.

The choices say what each thread does; the order comes from the threads. So a life with this step
may end otherwise when it is replayed. Each writer notes its versions, and the model plays them in
their order. At each look-up in the key index, the files that it knows have to have all their
keys.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from lance_stream.dataset import Dataset
from lance_stream.errors import CommitError
from lance_stream.keys.index.key_index import IndexSnapshot, KeyIndex
from lance_stream.keys.index.run_files import RunUnavailableError
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.upsert.rules import IGNORE, UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.contracts.watched_stores import WatchedStore
from tests.histories.actions.indices import brought_up_to_date
from tests.histories.life import Build, Life, Line, in_list, unchanged
from tests.histories.model import KEY, State, Values
from tests.histories.steps import Choices, DoesNotFit, action
from tests.keys.index.small_runs import restart

RULES: Mapping[str, UpsertRules] = {
    "all columns": UpsertRules((KEY,)),
    "some columns": UpsertRules((KEY,)),
    "only changes": UpsertRules((KEY,), skip_unchanged=True),
    "only new rows": UpsertRules((KEY,), when_matched=IGNORE),
}
FORMS = [*RULES, "delete"]


class Writers:
    """Threads that write to one line.

    Args:
        line: What they write to.
        work: For each thread its batches: the form, the keys and values, and whether it forgets all
            that the process remembers afterwards.
        seed: Of the pauses.
    """

    def __init__(self, line: Line, work: list[list[Any]], seed: int) -> None:
        self.line = line
        self.work = work
        self.seed = seed
        self.versions: dict[int, Build] = {}
        self.errors: list[BaseException] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        """Let them write until all batches are done, beside compactions without pause."""
        tasks: list[Callable[[], None]] = [
            partial(self._write, number) for number in range(len(self.work))
        ]
        writers = [threading.Thread(target=self._guarded, args=(task,)) for task in tasks]
        maintenance = threading.Thread(target=self._guarded, args=(self._maintain,))
        for thread in (*writers, maintenance):
            thread.start()
        for thread in writers:
            thread.join()
        self.is_over.set()
        maintenance.join()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self.errors.append(error)
            self.is_over.set()

    def _open(self, dice: random.Random) -> TableVersion:
        """Return the newest version, on a store that sometimes waits."""

        def wait(_call: str, path: str) -> None:
            if dice.random() < (0.3 if "_lance_stream/key_index" in path else 0.05):
                time.sleep(dice.random() * 0.002)

        table = self.line.ours().table
        return replace(table, store=WatchedStore(table.store, before=wait, after=wait))

    def _write(self, number: int) -> None:
        dice = random.Random(self.seed + number)
        state = self.line.now
        for serial, (form, rows, forgets) in enumerate(self.work[number]):
            if self.is_over.is_set():
                return
            with suppress(CommitError):
                if form == "delete":
                    self._delete(self._open(dice), [*rows], 1000 * (number + 1) + serial)
                else:
                    self._upsert(self._open(dice), state, form, rows)
            if forgets:
                restart()

    def _upsert(
        self, table: TableVersion, state: State, form: str, rows: Mapping[int, Values]
    ) -> None:
        column_names = [column.name for column in state.plain_columns]
        names = column_names[::2] if form == "some columns" else state.row_names
        result = upsert(table, state.table(rows, names), RULES[form])
        life = self.line.life
        if not result.is_new:
            return

        def build(before: State, at: int) -> State:
            changed: dict[int, Values] = {}
            for key, values in rows.items():
                row = before.rows.get(key)
                new = {name: values[name] for name in names}
                if row is None or (
                    form != "only new rows"
                    and (form != "only changes" or before.values_by_name(row) != new)
                ):
                    changed[key] = new
            return life.upserted(before, changed, at)

        self.versions[result.table.version] = build

    def _delete(self, table: TableVersion, keys: Sequence[int], serial: int) -> None:
        """Delete rows; those that others insert meanwhile stay, so look which are gone."""
        condition = f"{in_list(keys)} AND {KEY} < {1_000_000 + serial}"
        version = Dataset(table).delete(condition).version
        ds = self.line.ours(version)
        transaction = read_transaction(ds.table.store, ds.table.manifest)
        if getattr(getattr(transaction, "operation", None), "predicate", "") != condition:
            return  # there was nothing to delete
        before = set(self.line.ours(version - 1).to_table([KEY])[KEY].to_pylist())
        removed = before - set(ds.to_table([KEY])[KEY].to_pylist())
        assert removed <= {*keys}, f"a delete of {keys} has removed {removed}"
        self.versions[version] = lambda state, _: state.without(removed)

    def _maintain(self) -> None:
        dice = random.Random(-self.seed)
        runs = Path(self.line.uri) / "_lance_stream" / "key_index"
        while not self.is_over.is_set():
            ds = Dataset(self._open(dice))
            with suppress(CommitError):
                ds.compact(dice.choice([7, 30, 1000]))
            if "indices" in self.line.memory and self.line.branch is None:
                with suppress(CommitError):
                    brought_up_to_date(self.line.ours())
            for path in runs.glob("*") if dice.random() < 0.2 else ():
                path.unlink(missing_ok=True)


@action(weight=0.25)
def concurrent_writers(life: Life, choose: Choices) -> None:
    """Three threads upsert and delete rows of the same keys, and a fourth one compacts."""
    line = life.line(choose)
    now = line.now
    if any(column.is_required for column in now.columns):
        raise DoesNotFit("a required column")

    def draw(dice: random.Random) -> list[list[Any]]:
        keys = range(life.next_key + 4)
        return [
            [
                [
                    dice.choice(FORMS),
                    {
                        key: life.draw_values(now.columns, dice)
                        for key in dice.sample(keys, min(len(keys), dice.choice([2, 5, 12])))
                    },
                    dice.random() < 0.1,
                ]
                for _ in range(3)
            ]
            for _ in range(3)
        ]

    work = choose("work", draw)
    for _, rows, _ in (batch for batches in work for batch in batches):
        life.fitting_rows(now, rows)
        if any(values.keys() != {*now.row_names} for values in rows.values()):
            raise DoesNotFit("columns")
    seed = choose("seed", lambda dice: dice.randrange(1000))
    writers = Writers(line, work, seed)
    with checked_look_ups(life.counts):
        writers.run()
    for version in range(line.newest + 1, line.ours().version + 1):
        build = writers.versions.get(version, unchanged)
        line.states[version] = build(line.now, version)
        line.existing.add(version)
    line.compare(line.ours(), line.newest)


@contextmanager
def checked_look_ups(counts: Counter[str]) -> Iterator[None]:
    """Check at each look-up that of the files that are known, no key is missing."""
    real = KeyIndex.look_up

    def look_up(
        self: KeyIndex, fragments: Sequence[Fragment], num_fragments: int, store: Store
    ) -> IndexSnapshot:
        snapshot = real(self, fragments, num_fragments, store)
        with suppress(RunUnavailableError):  # as the look-up will notice
            num_keys = _keys_of(snapshot, store)
            for fragment, number in zip(fragments, snapshot.numbers.tolist(), strict=True):
                if number >= 0:
                    assert num_keys[number] == fragment.physical_rows, (
                        f"fragment {fragment.id} lacks keys"
                    )
                    counts["files whose keys are known"] += 1
        return snapshot

    with patch.object(KeyIndex, "look_up", look_up):
        yield


def _keys_of(snapshot: IndexSnapshot, store: Store) -> Counter[int]:
    """Count the keys of each file, by its number."""
    num_keys: Counter[int] = Counter()
    for run in snapshot.runs:
        num_keys.update(run.files.tolist())
    for saved in snapshot.saved:
        saved.fetch_all(store)
        files = np.searchsorted(saved.starts, saved.rows.astype(np.int64), "right") - 1
        num_keys.update(saved.numbers[files].tolist())
    return num_keys
