"""Queries from table to table that die before any of their steps, and go on in another process.

Meanwhile the table that they read is changed in every way, compacted, and cleaned up.
"""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset.micro_batches import MicroBatch
from lance_stream.dataset.upserts.change_feeds import is_change_column
from lance_stream.dataset.upserts.incoming import UpsertRules
from lance_stream.dataset.upserts.upsert import upsert
from tests.faults.micro_batch_engine import Checkpoint, Crashed, Engine

NUM_CRASHES = 3 * int(os.environ.get("KILL_ROUNDS", "4"))
"""How often each query dies; `make soak` lets it 90 times."""

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.string())])
Content = dict[int, str]


def rows(ids: Any, text: str) -> pa.Table:
    keys = list(ids)
    return pa.table({"id": keys, "x": [f"{text} {key}" for key in keys]}, schema=SCHEMA)


def content(ds: lance_stream.Dataset) -> Content:
    table = ds.to_table()
    found = dict(zip(table["id"].to_pylist(), table["x"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a key has two rows"
    return found


class Writer:
    """Changes a table at random; its ids stay a key.

    Args:
        uri: The table, which is made with a few rows.
        dice: Chance.
    """

    def __init__(self, uri: str, dice: random.Random) -> None:
        self.ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"])
        self.dice = dice
        self.next_id = 0
        self.states: dict[int, Content] = {1: {}}
        for _ in range(3):
            self.append()

    def append(self) -> None:
        first, self.next_id = self.next_id, self.next_id + self.dice.randint(1, 12)
        self.keep(self.ds.append(rows(range(first, self.next_id), "new")))

    def change(self) -> None:
        """Do one thing to the table."""
        dice, ds, n = self.dice, self.ds, self.ds.version
        some = f"id % 5 = {dice.randrange(5)}"
        verb = dice.choice(
            ["append", "update", "delete", "upsert", "again", "move", "compact", "restore", "all"]
        )
        if verb == "append":
            self.append()
        elif verb == "update":
            self.keep(ds.update({"x": f"'version {n + 1}'"}, where=some))
        elif verb == "delete":
            self.keep(ds.delete(some))
        elif verb == "upsert":
            known = dice.sample(range(self.next_id), 4)
            self.keep(ds.upsert(rows(known, f"upserted {n}"), "id"))
        elif verb == "again":  # as other rows
            gone = [each for each in range(self.next_id) if each not in self.states[n]]
            self.keep(ds.append(rows(gone[:3], f"again {n}")))
        elif verb == "move":  # keys of rows go to others
            self.keep(ds.update({"id": "id + 1"}, where=f"id >= {self.next_id - 4}"))
            self.next_id += 1
        elif verb == "compact":
            self.keep(ds.compact())
        elif verb == "restore" and dice.random() < 0.3:
            self.keep(ds.restore(dice.choice(self.still_there())))
        elif verb == "all" and dice.random() < 0.3:
            self.keep(ds.overwrite(rows(range(dice.randrange(self.next_id)), f"all {n}")))

    def still_there(self) -> list[int]:
        versions = [each.version for each in self.ds.versions()]
        return [each for each in versions if each >= 2]

    def keep(self, ds: lance_stream.Dataset) -> None:
        self.ds = ds
        for version in range(max(self.states) + 1, ds.version + 1):
            self.states[version] = content(ds.checkout(version))


class Replica:
    """A table that follows another, batch by batch, and the batches as they came.

    Args:
        uri: Where it is made.
    """

    def __init__(self, uri: str) -> None:
        self.ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"])
        self.batches: dict[int, pa.Table] = {}
        self.num_replays = 0

    def __call__(self, batch: pa.Table, batch_id: int) -> None:
        """Take a batch in; one that comes again must be the same."""
        assert batch_id <= len(self.batches), "a batch was left out"
        known = self.batches.setdefault(batch_id, batch)
        self.num_replays += known is not batch
        assert sorted(map(repr, batch.to_pylist())) == sorted(map(repr, known.to_pylist()))
        own = [name for name in batch.column_names if is_change_column(name)]
        rules = UpsertRules(("id",), except_columns=tuple(own), applies_changes=True)
        micro_batch = MicroBatch("replicate", batch_id)
        self.ds = lance_stream.Dataset(upsert(self.ds.table, batch, rules, micro_batch).table)

    def changes(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches.values() for row in batch.to_pylist()]


def identity(change: dict[str, Any]) -> tuple[Any, ...]:
    return change["_change_type"], change["_commit_version"], change["_rowid"], change["id"]


def states_of(ds: lance_stream.Dataset) -> list[Content]:
    """Return what a table held, version by version, as its own change feed tells it."""
    states: list[Content] = [{}]
    by_row: dict[int, tuple[int, str]] = {}
    for version in range(1, ds.version + 1):
        for change in ds.changes(version - 1, version).read_all().to_pylist():
            if change["_change_type"] in ("delete", "update_preimage"):
                assert by_row.pop(change["_rowid"]) == (change["id"], change["x"])
            else:
                by_row[change["_rowid"]] = change["id"], change["x"]
        if states[-1] != dict(by_row.values()):
            states.append(dict(by_row.values()))
    return states


def follows(states: list[Content], others: list[Content]) -> bool:
    """Return whether each state is one of the others, in their order."""
    left = iter(others)
    return all(any(state == other for other in left) for state in states)


OPTIONS: dict[str, dict[str, Any]] = {
    "all of the changes": {"startingVersion": 0},
    "a few versions a batch": {"startingVersion": 0, "maxVersionsPerTrigger": 2},
    "a snapshot first": {},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_query_that_dies_at_any_step_gives_every_change_once(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    dice = random.Random(5)
    writer = Writer(str(tmp_path / "source"), dice)
    replica = Replica(str(tmp_path / "replica"))
    checkpoint = Checkpoint()
    died_at: Counter[str] = Counter()

    def at_step(name: str) -> None:
        if dice.random() < 0.25:
            writer.change()
        if dice.random() < 0.15:
            died_at[name] += 1
            raise Crashed

    while sum(died_at.values()) < NUM_CRASHES:
        try:
            Engine(writer.ds.uri, replica, checkpoint, at_step, **options).run(polls=3)
        except Crashed:
            continue
    Engine(writer.ds.uri, replica, checkpoint, **options).run()

    assert len(died_at) > 3
    assert replica.num_replays > 0
    assert content(replica.ds) == content(writer.ds)
    assert replica.ds.verify() == []
    expected = writer.ds.changes(0).read_all().to_pylist()
    found = replica.changes()
    if "startingVersion" not in options:
        begin = found[0]["_commit_version"]
        snapshot = [each for each in found if each["_commit_version"] == begin]
        assert {each["id"]: each["x"] for each in snapshot} == writer.states[begin]
        assert {each["_change_type"] for each in snapshot} == {"insert"}
        found = [each for each in found if each["_commit_version"] > begin]
        expected = [each for each in expected if each["_commit_version"] > begin]
    assert Counter(map(identity, found)) == Counter(map(identity, expected))
    # What the replica's own feed tells is what the source was, at the ends of the batches.
    assert follows(states_of(replica.ds), [{}, *writer.states.values()])
