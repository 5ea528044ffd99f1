"""Queries from table to table that die before any of their steps, and restart in a new process.

Meanwhile the table that they read is changed in every way, compacted, and cleaned up.
"""

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.upsert.change_feeds import is_change_column
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.faults.changing_tables import SCHEMA, Writer, content, follows, states_of
from tests.faults.killed_processes import NUM_ROUNDS
from tests.faults.locations import create_table, folder_on, on
from tests.faults.micro_batch_engine import Checkpoint, Crashed, Engine

NUM_CRASHES = max(12, 3 * NUM_ROUNDS)
"""How often each query dies; `make soak` lets it 90 times."""


class Replica:
    """A table that follows another, batch by batch, and the batches as they came.

    Args:
        uri: Where it is made.
    """

    def __init__(self, uri: str) -> None:
        self.ds = create_table(uri, SCHEMA, primary_key=["id"])
        self.batches: dict[int, pa.Table] = {}
        self.num_replays = 0

    def __call__(self, batch: pa.Table, batch_id: int) -> None:
        """Take a batch in; one that comes again must be the same."""
        assert batch_id <= len(self.batches), "a batch was left out"
        recorded = self.batches.setdefault(batch_id, batch)
        self.num_replays += recorded is not batch
        assert sorted(map(repr, batch.to_pylist())) == sorted(map(repr, recorded.to_pylist()))
        feed_columns = [name for name in batch.column_names if is_change_column(name)]
        rules = UpsertRules(("id",), except_columns=tuple(feed_columns), applies_changes=True)
        micro_batch = PendingBatch.of("replicate", batch_id)
        self.ds = lance_stream.Dataset(upsert(self.ds.table, batch, rules, micro_batch).table)

    def changes(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches.values() for row in batch.to_pylist()]


def identity(change: dict[str, Any]) -> tuple[Any, ...]:
    return change["_change_type"], change["_commit_version"], change["_rowid"], change["id"]


OPTIONS: dict[str, dict[str, Any]] = {
    "all of the changes": {"startingVersion": 0},
    "a few versions a batch": {"startingVersion": 0, "maxVersionsPerTrigger": 2},
    "a few rows a batch": {"startingVersion": 0, "maxRowsPerTrigger": 4},
    "a few bytes a batch": {"startingVersion": 0, "maxBytesPerTrigger": 200},
    "a snapshot first": {},
    "a snapshot in pieces": {"maxRowsPerTrigger": 4},
    "a consumer from the first version, and cleanup": {"consumer": "r", "startingVersion": 0},
    "a consumer and cleanup": {"consumer": "r", "maxVersionsPerTrigger": 3},
    "a consumer, pieces and cleanup": {"consumer": "r", "maxRowsPerTrigger": 4},
}


# On the oldest dependencies, which are tried a second time, some stand for all.
SLOW = {"all of the changes", "a few bytes a batch", "a snapshot first", "a consumer and cleanup"}
ON_STORES = [
    on("s3", "a snapshot in pieces"),
    on("s3", "a consumer, pieces and cleanup"),
    on("google", "a consumer and cleanup"),
    on("azure", "a few versions a batch"),
]
CASES = [
    pytest.param(name, "local", id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in OPTIONS
]


@pytest.mark.quick_cases(one_in=6)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize(("name", "kind"), [*CASES, *ON_STORES])
def test_a_crashing_query_delivers_changes_once(
    request: pytest.FixtureRequest, name: str, kind: str
) -> None:
    """A query that dies at any step delivers every change once, so the replica equals the source
    at the end of each version.
    """
    dice, options, folder = random.Random(5), OPTIONS[name], folder_on(kind, request)
    is_cut = "maxRowsPerTrigger" in options or "maxBytesPerTrigger" in options
    writer = Writer(f"{folder}/source", dice)
    replica, checkpoint = Replica(f"{folder}/replica"), Checkpoint()
    died_at: Counter[str] = Counter()
    num_whole = 0

    def check(name: str) -> None:
        nonlocal num_whole
        end = json.loads(checkpoint.offsets[-1]) if name == "log the commit" else {}
        if end.get("position") == 0:
            num_whole += 1
            assert content(replica.ds) == writer.states[end["version"]]

    def at_step(name: str) -> None:
        check(name)
        if dice.random() < 0.25:
            writer.change()
        if "consumer" in options and checkpoint.offsets and dice.random() < 0.2:
            writer.ds.cleanup(retain_versions=1)
        if dice.random() < (0.4 if name == "log the commit" else 0.12):
            died_at[name] += 1
            raise Crashed

    while sum(died_at.values()) < NUM_CRASHES:
        try:
            Engine(writer.ds.uri, replica, checkpoint, at_step, **options).run(polls=3)
        except Crashed:
            continue
    Engine(writer.ds.uri, replica, checkpoint, check, **options).run()

    assert len(died_at) > 3
    assert replica.num_replays > 0
    assert num_whole > 1
    assert content(replica.ds) == content(writer.ds)
    assert replica.ds.verify() == []
    expected, delivered = writer.changes, replica.changes()
    if "startingVersion" not in options:
        begin = delivered[0]["_commit_version"]
        snapshot = [row for row in delivered if row["_commit_version"] == begin]
        assert {row["id"]: row["x"] for row in snapshot} == writer.states[begin]
        assert {row["_change_type"] for row in snapshot} == {"insert"}
        delivered = [row for row in delivered if row["_commit_version"] > begin]
        expected = [row for row in expected if row["_commit_version"] > begin]
    assert Counter(map(identity, delivered)) == Counter(map(identity, expected))
    if not is_cut:
        # What the replica's own feed tells is what the source was, at the ends of the batches.
        assert follows(states_of(replica.ds), [{}, *writer.states.values()])
    if "consumer" in options:
        assert len(writer.ds.versions()) < writer.ds.version
