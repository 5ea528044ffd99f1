"""Replicas: the feed in batches of limited size, applied to another table by key."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_stream
from lance_stream.change_streams.change_stream import BATCH_ROWS, ChangeStream, FollowRules
from lance_stream.change_streams.progress import parse_position
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.feed.following.positions import Limits, Position
from lance_stream.maintenance.consumers import drop_consumer, list_consumers
from lance_stream.upsert.rules import UpsertRules
from tests.histories.actions.streams import upsert_by_tasks
from tests.histories.life import Life, Line, plain_rows
from tests.histories.model import KEY, State
from tests.histories.steps import Choices, DoesNotFit, check


class Replica:
    """Follows a line, and applies its changes to a table of its own.

    It begins anew where the columns of the line change, which the feed does not tell of, and where
    versions that it has not read are gone.

    Args:
        line: What it follows.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.uri = str(Path(line.life.folder) / f"replica{line.life.number()}")
        self.position: str | None = None
        self.columns = columns_of(line.now)
        self.ds: lance_stream.Dataset | None = None

    def take(self, limits: Limits, *, by_tasks: bool = False) -> bool:
        """Apply one batch, as a reader that starts anew; return whether there was one."""
        following = FollowRules(limits=limits, after=self.position, wait=False)
        with ChangeStream(self.line.ours().table, following) as stream:
            batch = next(stream, None)
            self.position = stream.position
        if batch is None:
            return False
        self.apply(batch.rows, by_tasks=by_tasks)
        return True

    def apply(self, changes: pa.Table, *, by_tasks: bool = False) -> None:
        """Apply a batch to the table, which the first one creates."""
        if self.ds is None:
            fields = [  # a feed's columns may be null, but those of a primary key must not be
                field.with_nullable(field.name != KEY)
                for field in changes.schema
                if not field.name.startswith("_")
            ]
            computed = {c.name for c in self.line.now.columns if c.computed_from}
            shutil.rmtree(self.uri, ignore_errors=True)
            schema = pa.schema([f.remove_metadata() if f.name in computed else f for f in fields])
            self.ds = lance_stream.create_dataset(self.uri, schema, self.line.life.file_version)
        if by_tasks:
            feed_columns = [name for name in changes.schema.names if name.startswith("_")]
            rules = UpsertRules((KEY,), except_columns=tuple(feed_columns), applies_changes=True)
            upsert_by_tasks(self.ds.table, changes, rules)
            self.ds = lance_stream.open_dataset(self.uri)
        else:
            self.ds = self.ds.apply_changes(changes, on=KEY)

    @property
    def reached(self) -> Position:
        """Where it is."""
        return Position(0) if self.position is None else parse_position(self.position)

    def needs(self) -> int:
        """Return the oldest version that is still needed: the rest of one is compared with it."""
        return self.reached.version or self.reached.last_version

    def check(self) -> None:
        """Check that the replica has the rows of the version that it has reached."""
        reached = self.reached
        if reached.num_delivered or reached.is_snapshot:
            return
        state = self.line.states[reached.version]
        rows = [] if self.ds is None else plain_rows(self.ds.to_table())
        by_key = {row[KEY]: row for row in rows}
        expected = {key: {KEY: key, **state.values_by_name(row)} for key, row in state.rows.items()}
        assert by_key == expected, (
            f"the replica of version {reached.version} is wrong: missing "
            f"{sorted(expected.keys() - by_key.keys())}, unexpected "
            f"{sorted(by_key.keys() - expected.keys())}, different "
            f"{[(by_key[k], row) for k, row in expected.items() if by_key.get(k, row) != row]}"
        )


class ConsumingReplica(Replica):
    """Keeps no position: the table stores it under the name of a consumer, and keeps its versions.

    A batch that was applied and not recorded comes again, perhaps cut otherwise.
    """

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self.name = f"replica-{line.life.number()}"
        self.farthest = 0

    def take_and_record(self, limits: Limits, *, dies: bool) -> bool:
        """Apply one batch, and record it or die before that; return whether there was one."""
        with self.line.ours().follow(
            self.name,
            wait=False,
            max_rows=limits.rows or BATCH_ROWS,
            max_bytes=limits.size_bytes,
            max_versions=limits.versions,
        ) as stream:
            batch = next(stream, None)
            self.position = stream.position
            self.farthest = max(self.farthest, self.reached.last_version)
            if batch is not None:
                self.apply(batch.rows)
                if not dies:
                    stream.commit()
        refs = self.line.ours().table.refs
        consumers = self.line.memory.setdefault("consumers", {})
        consumers |= {c.name: c.version for c in list_consumers(refs) if c.name == self.name}
        return batch is not None

    def check(self) -> None:
        """Check the rows, unless older changes than they have are being repeated."""
        if self.reached.version >= self.farthest:
            super().check()

    def drop(self) -> None:
        """Drop the consumer."""
        self.line.memory.get("consumers", {}).pop(self.name, None)
        with suppress(NotFoundError):
            drop_consumer(self.line.ours().table.refs, self.name)


@check(weight=2)
def consuming_replica(life: Life, choose: Choices) -> None:
    """A consumer loses no change, whatever was cleaned up, and although its batches come again."""
    line = life.line(choose)
    if not life.is_stable:
        raise DoesNotFit("no stable row ids")
    limits = choose(
        "limits",
        lambda dice: {
            "rows": dice.choice([None, 1, 3, 7, 20]),
            "size_bytes": dice.choice([None, None, 100, 1000]),
            "versions": dice.choice([None, None, 1, 2]),
        },
    )
    following: ConsumingReplica | None = line.memory.get("consuming_replica")
    if following is not None and columns_change(line, following):
        following.drop()
        following = None
    if following is None:
        following = line.memory["consuming_replica"] = ConsumingReplica(line)
    deaths = choose("deaths", lambda dice: [dice.random() < 0.4 for _ in range(dice.randint(1, 4))])
    for dies in deaths:
        if not following.take_and_record(Limits(**limits), dies=dies):
            break
        following.check()
    if choose.happens("stays behind", 0.7):
        return
    while following.take_and_record(Limits(), dies=False):
        pass
    assert following.reached.version == line.newest
    following.check()


def columns_of(state: State) -> list[Any]:
    return [(column.ident, column.name, column.kind) for column in state.columns]


@check(weight=2.5)
def replica(life: Life, choose: Choices) -> None:
    """A table that gets all changes, in batches cut anywhere, equals its source."""
    line = life.line(choose)
    if not life.is_stable:
        raise DoesNotFit("no stable row ids")
    limits = choose(
        "limits",
        lambda dice: {
            "rows": dice.choice([None, 1, 3, 7, 20]),
            "size_bytes": dice.choice([None, None, 100, 1000]),
            "versions": dice.choice([None, None, 1, 2]),
        },
    )
    following: Replica | None = line.memory.get("replica")
    if line.memory.pop("is_replaced", False) and following is not None:
        following = following_on(following, Limits(**limits))
    is_behind = following is not None and not line.existing.issuperset(
        range(following.needs() or line.newest + 1, line.newest + 1)
    )
    if following is None or is_behind or columns_change(line, following):
        following = line.memory["replica"] = Replica(line)
    maximum = choose("batches", lambda dice: dice.choice([1, 2, 4]))
    by_tasks = choose.happens("by_tasks", 0.2)
    for _ in range(maximum):
        if not following.take(Limits(**limits), by_tasks=by_tasks):
            break
    following.check()
    if choose.happens("stays behind", 0.5):
        return
    while following.take(Limits()):
        pass
    assert following.reached.version == line.newest
    following.check()


def following_on(replica: Replica, limits: Limits) -> Replica | None:
    """Return a replica of a table that another one has replaced; None if it has to begin anew.

    It continues if the other table has the very version that it has reached.
    """
    try:
        replica.take(limits)
    except (InvalidInputError, NotFoundError):
        replica.line.life.counts["replacements noticed by a replica"] += 1
        return None
    replica.line.life.counts["replicas of replaced tables that continue"] += 1
    return replica


def columns_change(line: Line, following: Replica) -> bool:
    """Return whether it was created with other columns than a version that it has yet to read."""
    versions = range(following.needs() or line.newest, line.newest + 1)
    return any(columns_of(line.states[version]) != following.columns for version in versions)
