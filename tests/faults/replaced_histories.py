"""Random histories of a table that is re-created, restored from a copy, or cloned at any moment.

    python -m tests.faults.replaced_histories --minutes 10 --seed 1

In each step a verb of ours runs, or one of pylance's. In some steps, when the verb first opens or
ends a data file, writes its transaction or looks at the versions, the table is replaced: deleted
and re-created by one of the two writers, with the same columns or others; or restored from a copy
of an earlier moment, which may be written to before the verb continues; or the verb works on a
shallow clone of the table, in which another writer deletes rows at that moment. Then

    the verb failed           the table is what took its place, and nothing else
    the verb succeeded        it had looked at the table that is there now, or that table has the
                              very version which the verb was planned on
    either way                both writers can read the table, and no file of a failed verb is
                              left in it

Readers follow the table with limits, so that positions lie inside versions, and start again from
their last position, as after a restart. When a reader has caught up, the changes that it got are
those of the table that is there; or it got the error that this is another table, and starts at the
first version.

The seed settles everything.
"""

import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa

from lance_stream import TableReplacedError, create_dataset, open_dataset
from lance_stream.errors import NotFoundError
from lance_stream.feed.change_units import read_changes
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Limits, Position
from lance_stream.feed.rules import FeedRules
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.resolving import open_version
from lance_stream.storage.local_store import LocalFileWriter, LocalStore
from lance_stream.table.version_marks import is_same_version
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.jobs import commit_job, plan_job
from lance_stream.write.fragments import write_fragments, write_target
from tests import seeded_runs as histories

STEPS: Final = 25
COLUMNS: Final = (("id", "name"), ("place", "who"))
MOMENTS: Final = ("data file", "end of a data file", "transaction", "first look", "second look")

Change = tuple[int, str, int]
Verb = Callable[[str, pa.Table, int], object]


def rows(columns: tuple[str, str], numbers: list[int]) -> pa.Table:
    texts = pa.array([f"n{number}" for number in numbers], pa.string())
    values = [pa.array(numbers, pa.int64()), texts]
    return pa.table(values, names=list(columns))


def _append(uri: str, data: pa.Table, _number: int) -> object:
    return open_dataset(uri).append(data)


def _append_batch(uri: str, data: pa.Table, number: int) -> object:
    table = open_newest(uri)
    written = write_fragments(data.to_batches(), write_target(table))
    return append_fragments(table, written, PendingBatch.of("app", number, "query"))


def _upsert_batch(uri: str, data: pa.Table, number: int) -> object:
    rules = UpsertRules((data.schema.names[0],))
    return upsert(open_newest(uri), data, rules, PendingBatch.of("app", number, "query"))


def _job(uri: str, data: pa.Table, _number: int) -> object:
    job = plan_job(uri, data.schema)
    return commit_job(job, write_fragments(data.to_batches(), job.target))


def _delete(uri: str, data: pa.Table, number: int) -> object:
    return open_dataset(uri).delete(f"{data.schema.names[0]} % 7 = {number % 7}")


def _update(uri: str, data: pa.Table, number: int) -> object:
    name, text = data.schema.names
    return open_dataset(uri).update({text: "'changed'"}, where=f"{name} % 5 = {number % 5}")


VERBS: dict[str, Verb] = {
    "append": _append,
    "batch": _append_batch,
    "upsert": _upsert_batch,
    "job": _job,
    "delete": _delete,
    "update": _update,
    "overwrite": lambda uri, data, _number: open_dataset(uri).overwrite(data),
    "compact": lambda uri, _data, _number: open_dataset(uri).compact(),
    "configure": lambda uri, _data, number: open_dataset(uri).update_config({"n": str(number)}),
}
PLANNED_ON_ITS_OWN_LOOK: Final = {"append", "batch", "job"}
"""Verbs whose files are written for the version that was opened, before the commit looks again."""


@contextmanager
def at(moment: str, act: Callable[[], None]) -> Iterator[list[str]]:
    """Do something once, just before a verb comes to a moment."""
    done: list[str] = []
    looks = 0
    real = {
        name: getattr(LocalStore, name) for name in ("open_writer", "create_once", "list_names")
    }
    real_close = LocalFileWriter.close

    def arrive(here: str) -> None:
        if here and here == moment and not done:
            done.append(here)
            act()

    def open_writer(self: LocalStore, path: str) -> Any:
        arrive("data file" if path.startswith("data/") else "")
        return real["open_writer"](self, path)

    def create_once(self: LocalStore, path: str, data: Any, **named: Any) -> Any:
        arrive("transaction" if path.startswith("_transactions/") else "")
        return real["create_once"](self, path, data, **named)

    def list_names(self: LocalStore, folder: str, limit: int | None = None) -> Any:
        nonlocal looks
        if folder == "_versions" and not done:
            looks += 1
            arrive({1: "first look", 2: "second look"}.get(looks, ""))
        return real["list_names"](self, folder, limit)

    def close(self: LocalFileWriter) -> None:
        arrive("end of a data file" if "/data/" in self._target else "")
        real_close(self)

    fakes = {"open_writer": open_writer, "create_once": create_once, "list_names": list_names}
    for name, fake in fakes.items():
        setattr(LocalStore, name, fake)
    LocalFileWriter.close = close  # type: ignore[method-assign]  # until the end of the block
    try:
        yield done
    finally:
        LocalFileWriter.close = real_close  # type: ignore[method-assign]  # as it was
        for name, method in real.items():
            setattr(LocalStore, name, method)


class History:
    """One history.

    Args:
        folder: An empty directory.
        seed: What is done.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.uri = str(folder / "table")
        self.copies: list[str] = []
        self.columns = COLUMNS[0]
        self.number = 0
        self.counts: Counter[str] = Counter()
        self.position = Position(0)
        self.given: list[Change] = []
        self.recreate()

    def some_rows(self) -> pa.Table:
        first = self.number * 10
        self.number += 1
        return rows(self.columns, list(range(first, first + self.random.randrange(1, 9))))

    def recreate(self) -> None:
        """Delete the table, and make another one with some versions."""
        self.counts["re-created"] += 1
        shutil.rmtree(self.uri, ignore_errors=True)
        self.columns = self.random.choice(COLUMNS)
        num_versions = self.random.randrange(1, 8)
        if self.random.random() < 0.5:
            create_dataset(self.uri, rows(self.columns, []).schema)
        else:
            lance.write_dataset(self.some_rows(), self.uri, enable_stable_row_ids=True)
        for _ in range(num_versions):
            self.write()

    def write(self) -> None:
        """Add a version that others make."""
        if self.random.random() < 0.5:
            open_dataset(self.uri).append(self.some_rows())
        else:
            lance.write_dataset(self.some_rows(), self.uri, mode="append")

    def copy(self) -> None:
        self.copies.append(f"{self.folder}/copy-{len(self.copies)}")
        shutil.copytree(self.uri, self.copies[-1])

    def restore_copy(self) -> None:
        """Put a copy of an earlier moment in the table's place."""
        self.counts["put back"] += 1
        shutil.rmtree(self.uri)
        shutil.copytree(self.random.choice(self.copies), self.uri)
        self.columns = tuple(open_dataset(self.uri).schema.names)  # type: ignore[assignment]  # no types there
        for _ in range(self.random.randrange(5)):
            self.write()

    def replace(self) -> None:
        self.restore_copy() if self.copies and self.random.random() < 0.6 else self.recreate()

    def state(self, uri: str) -> tuple[int, list[dict[str, Any]], set[str]]:
        """Return what a table holds, once both writers have read it."""
        ds = open_dataset(uri)
        assert ds.verify() == [], ds.verify()
        found = ds.to_table().to_pylist()
        assert sorted(map(str, lance.dataset(uri).to_table().to_pylist())) == sorted(
            map(str, found)
        )
        files = {
            str(path.relative_to(uri))
            for name in ("data", "_deletions")
            for path in (Path(uri) / name).glob("*")
        }
        return ds.version, found, files

    def run_verb(self) -> None:
        name, moment = self.random.choice(list(VERBS)), self.random.choice(MOMENTS)
        data, number = self.some_rows(), self.number
        stands: list[tuple[int, list[dict[str, Any]], set[str]]] = []
        planned_on = open_newest(self.uri).manifest
        still_there: list[bool] = []

        def act() -> None:
            self.replace()
            stands.append(self.state(self.uri))
            with suppress(NotFoundError):
                there = open_version(self.uri, planned_on.version).manifest
                still_there.append(is_same_version(there, planned_on))

        is_replaced = self.random.random() < 0.6
        failed = False
        with at(moment if is_replaced else "", act) as done:
            try:
                VERBS[name](self.uri, data, number)
            except Exception as error:
                is_refusal = isinstance(error, TableReplacedError | NotFoundError)
                # rows of other columns are refused, whatever they were planned on
                if not done or not (is_refusal or data.schema.names != list(self.columns)):
                    error.add_note(f"{name} when the table was replaced at {done}")
                    raise
                failed = True
        try:
            now = self.state(self.uri)
        except Exception as error:
            ended = "failed" if failed else "succeeded"
            error.add_note(f"{name} {ended}; the table was replaced at {done or 'no moment'}")
            raise
        self.columns = tuple(open_dataset(self.uri).schema.names)  # type: ignore[assignment]  # no types there
        if not done:
            self.counts[f"{name}"] += 1
            return
        self.counts[f"{name} {'refused' if failed else 'on the new table'}"] += 1
        if failed:
            version, found, files = now
            assert (version, found) == stands[0][:2], f"{name} failed at {moment}, but is there"
            assert files <= stands[0][2], f"{name} left {files - stands[0][2]}"
            return
        is_written = moment in ("data file", "end of a data file", "transaction") or (
            moment == "second look" and name in PLANNED_ON_ITS_OWN_LOOK
        )
        if name == "overwrite":  # perhaps with other columns, in which nobody can follow the table
            self.recreate()
        if name in PLANNED_ON_ITS_OWN_LOOK and is_written and not any(still_there):
            raise AssertionError(f"{name} went into another table at {moment}")

    def race_on_a_clone(self) -> None:
        """Delete or upsert in a clone while another writer deletes other rows there."""
        uri = f"{self.folder}/clone-{self.counts['clone']}"
        lance.dataset(self.uri).shallow_clone(uri, open_dataset(self.uri).version)
        before = self.state(self.uri)
        name = self.columns[0]
        ours, theirs = f"{name} % 2 = 0", f"{name} % 10 = 1"
        writer = self.random.choice([open_dataset, lance.dataset])
        with at("transaction", lambda: writer(uri).delete(theirs) and None):
            open_dataset(uri).delete(ours)
        _, found, files = self.state(uri)
        expected = [row for row in before[1] if row[name] % 2 and row[name] % 10 != 1]
        assert sorted(map(str, found)) == sorted(map(str, expected))
        num_named = sum(
            fragment.deletion_file is not None and fragment.deletion_file.base_id is None
            for version in open_dataset(uri).versions()
            for fragment in open_version(uri, version.version).manifest.fragments
        )
        assert len([file for file in files if file.startswith("_del")]) <= num_named
        assert self.state(self.uri) == before
        self.counts["clone"] += 1

    def follow(self) -> None:
        """Take some batches, each by somebody who was started again; hold what was given."""
        limits = Limits(rows=self.random.randrange(1, 7))
        for _ in range(self.random.choice([1, 3, 1000])):
            followed = TableFollower(self.uri, None, FollowerRules(FeedRules()))
            try:
                end = followed.advance(self.position, limits)
                units = followed.units(self.position, end)
                found = [
                    (row["_commit_version"], row["_change_type"], row[self.columns[0]])
                    for batch in read_changes(units)
                    for row in batch.to_pylist()
                ]
            except NotFoundError as error:
                if "re-created" not in str(error):
                    raise
                self.counts["noticed"] += 1
                self.position, self.given = Position(0), []
                continue
            if end == self.position:
                expected = [
                    (row["_commit_version"], row["_change_type"], row[self.columns[0]])
                    for row in open_dataset(self.uri).changes(0).read_all().to_pylist()
                ]
                assert sorted(self.given) == sorted(expected), "other changes than the table's"
                self.counts["caught up"] += 1
                return
            self.position, self.given = end, self.given + found

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.copy()
        act = self.random.choices(
            [self.run_verb, self.write, self.replace, self.race_on_a_clone, self.follow],
            [8, 2, 1, 1, 4],
        )
        act[0]()


def run_history(folder: Path, seed: int, num_steps: int = STEPS) -> Counter[str]:
    """Play a history, and return what was done how often."""
    history = History(folder, seed)
    for number in range(num_steps):
        try:
            history.step()
        except Exception as error:
            error.add_note(f"seed {seed}, step {number}")
            raise
    return history.counts


def play(seed: int, num_steps: int) -> Counter[str]:
    """Play a history in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return run_history(Path(folder), seed, num_steps)


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=STEPS))
