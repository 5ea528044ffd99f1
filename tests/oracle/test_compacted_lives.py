"""A table that compacts itself while we and pylance write into it: the same rows as a model's.

Each batch updates, inserts and deletes rows at random places. Rounds of compaction begin on their
own, and end beside later batches. Whatever they move, the rows are those of the model, for pylance,
too; each keeps its row id and the version that created it; and between any two versions the feed
says what changed.
"""

import random
from functools import partial
from pathlib import Path
from typing import NamedTuple

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.compaction import automatic
from lance_stream.maintenance.compaction.automatic import AUTO
from lance_stream.maintenance.compaction.background import ROUND, BackgroundCompaction, Round
from lance_stream.snapshot.opening import open_newest

pytestmark = pytest.mark.oracle

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), ("value", pa.int64())])
NUM_ROWS = 3_000
LINEAGE = ("_rowid", "_row_created_at_version")


class Row(NamedTuple):
    """What is known of a row, by its key."""

    value: int
    row_id: int
    created: int


class Life:
    """A table, its model, and the rounds of compaction so far."""

    def __init__(self, uri: str, seed: int, config: dict[str, str]) -> None:
        self.uri = uri
        self.random = random.Random(seed)
        self.compaction = BackgroundCompaction(AUTO, ROUND)
        self.rounds: list[Round] = []
        self.next_key = NUM_ROWS
        self.values = dict.fromkeys(range(NUM_ROWS), 0)
        ds = lance_stream.create_dataset(uri, SCHEMA, primary_key=["key"], config=config)
        ds.append(self.table(self.values))
        self.seen = self.stored()

    @staticmethod
    def table(rows: dict[int, int]) -> pa.Table:
        return pa.table({"key": list(rows), "value": list(rows.values())}, schema=SCHEMA)

    def batch(self, number: int) -> None:
        updated = self.random.sample(sorted(self.values), self.random.randrange(1, 150))
        inserted = range(self.next_key, self.next_key + self.random.randrange(10))
        self.next_key = inserted.stop
        rows = dict.fromkeys([*updated, *inserted], number)
        deleted_keys = self.random.sample(sorted(self.values), self.random.randrange(10))
        with self.compaction.batch():
            self.write(rows, deleted_keys, by_us=self.random.random() < 0.8)
        self.values |= rows
        for key in deleted_keys:
            del self.values[key]
        self.compaction.after_batch(number, partial(open_newest, self.uri), lookup_seconds=0.0)
        if self.random.random() < 0.5:
            self.end_round()

    def write(self, rows: dict[int, int], deleted_keys: list[int], *, by_us: bool) -> None:
        condition = f"key in ({', '.join(map(str, [-1, *deleted_keys]))})"
        if by_us:
            ds = lance_stream.open_dataset(self.uri)
            ds.upsert(self.table(rows), on=["key"]).delete(condition)
            return
        theirs = lance.dataset(self.uri)
        merge = theirs.merge_insert("key").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(self.table(rows))
        theirs.delete(condition)

    def end_round(self) -> None:
        assert self.compaction.wait(60)
        last = self.compaction.last_round
        if last is not None and last not in self.rounds:
            assert last.error is None
            self.rounds.append(last)

    def stored(self, version: int | None = None) -> dict[int, Row]:
        ds = lance_stream.open_dataset(self.uri, version=version)
        table = ds.to_table(with_row_id=True, with_row_versions=True)
        return {
            row["key"]: Row(row["value"], *(row[value] for value in LINEAGE))
            for row in _rows(table)
        }

    def check(self) -> None:
        """Compare with the model, with pylance, and with what was known of each row before."""
        stored = self.stored()
        assert {key: row.value for key, row in stored.items()} == self.values
        theirs = lance.dataset(self.uri).to_table(with_row_id=True)
        assert {row["key"]: (row["value"], row["_rowid"]) for row in _rows(theirs)} == {
            key: (row.value, row.row_id) for key, row in stored.items()
        }
        for key in stored.keys() & self.seen.keys():
            assert stored[key][1:] == self.seen[key][1:]
        self.seen = stored

    def check_feed(self, older: int, newer: int) -> None:
        """Apply the changes between two versions to the older one."""
        rows = {row.row_id: (key, row.value) for key, row in self.stored(older).items()}
        changes = lance_stream.open_dataset(self.uri, version=newer).changes(after=older)
        for change in _rows(changes.read_all()):
            row = change["_rowid"], (change["key"], change["value"])
            match change["_change_type"]:
                case "insert":
                    assert row[0] not in rows
                    rows[row[0]] = row[1]
                case "update_postimage":
                    assert row[0] in rows
                    rows[row[0]] = row[1]
                case "update_preimage":
                    assert rows[row[0]] == row[1]
                case "delete":
                    assert rows.pop(row[0]) == row[1]
        assert rows == {row.row_id: (key, row.value) for key, row in self.stored(newer).items()}


def _rows(table: pa.Table) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = table.to_pylist()
    return rows


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(
    ("seed", "config"),
    [
        (1, {}),
        (2, {}),
        (3, {"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "64"}),
    ],
)
def test_rows_and_feed_survive_automatic_compactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, config: dict[str, str]
) -> None:
    """Compactions run between the commits of others, and may neither lose rows nor report them."""
    monkeypatch.setattr(automatic, "BATCHES_BETWEEN_CHECKS", 1)
    monkeypatch.setattr(automatic, "FAN_IN", 4)
    monkeypatch.setattr(automatic, "SMALL_MANIFEST", 4096)
    life = Life(str(tmp_path / "t.lance"), seed, config)
    for number in range(1, 41):
        life.batch(number)
        if number % 4 == 0:
            life.check()
    life.end_round()
    life.check()
    committed = [version for version in life.rounds if version.version is not None]
    assert len(committed) >= 5
    assert len({value.reason for value in committed}) >= 2
    newest = lance_stream.open_dataset(life.uri)
    assert newest.verify() == []
    for _ in range(8):
        older, newer = sorted(life.random.sample(range(2, newest.version + 1), 2))
        life.check_feed(older, newer)
    life.check_feed(2, newest.version)
