"""A table that is changed in every way, and what is known of it: its states and its changes."""

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import lance_stream
from tests.faults.locations import create_table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.string())])
Content = dict[int, str]


def rows(ids: Iterable[int], text: str) -> pa.Table:
    keys = list(ids)
    return pa.table({"id": keys, "x": [f"{text} {key}" for key in keys]}, schema=SCHEMA)


def content(ds: lance_stream.Dataset) -> Content:
    table = ds.to_table()
    values = dict(zip(table["id"].to_pylist(), table["x"].to_pylist(), strict=True))
    assert len(values) == table.num_rows, "a key has two rows"
    return values


class Writer:
    """Changes a table at random; its ids stay a key.

    Args:
        uri: The table, which is made with a few rows.
        dice: Chance.

    Attributes:
        ds: The newest version.
        states: What each version holds.
        changes: What the feed said of each version when it was new.
    """

    def __init__(self, uri: str, dice: random.Random) -> None:
        self.ds = create_table(uri, SCHEMA, primary_key=["id"])
        self.dice = dice
        self.next_id = 0
        self.states: dict[int, Content] = {1: {}}
        self.changes: list[dict[str, Any]] = []
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
            sampled = dice.sample(range(self.next_id), 4)
            self.keep(ds.upsert(rows(sampled, f"upserted {n}"), "id"))
        elif verb == "again":  # as other rows
            deleted = [number for number in range(self.next_id) if number not in self.states[n]]
            self.keep(ds.append(rows(deleted[:3], f"again {n}")))
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
        versions = [version.version for version in self.ds.versions()]
        return [version for version in versions if version >= 2]

    def keep(self, ds: lance_stream.Dataset) -> None:
        self.ds = ds
        for version in range(max(self.states) + 1, ds.version + 1):
            self.states[version] = content(ds.checkout(version))
            self.changes += ds.changes(version - 1, version).read_all().to_pylist()


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
    remaining = iter(others)
    return all(any(state == other for other in remaining) for state in states)
