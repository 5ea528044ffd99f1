"""Verbs run beside a sink and a follower of its table; their process is killed at any moment."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.maintenance.compaction.background import BackgroundCompaction
from lance_stream.maintenance.consumers import record_progress
from lance_stream.row_updates.in_place_costs import FragmentCosts
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.faults.verbs_process import FIRST_PERMANENT_KEY
from tests.keys.keyed_tables import use_small_runs

PROCESS = Path(__file__).parent / "verbs_process.py"
NUM_ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
NUM_KEYS = FIRST_PERMANENT_KEY
WIDTH = 64
CONSUMER = "follower"


def batch_of(number: int) -> pa.Table:
    """Changes of some old keys, and two new ones; some old ones are deleted."""
    old = [key for key in range(NUM_KEYS) if key % 11 == number % 11]
    keys = [*old, NUM_KEYS + 2 * number, NUM_KEYS + 2 * number + 1]
    deletes = [key < NUM_KEYS and (key + number) % 13 == 0 for key in keys]
    return pa.table({"id": keys, "x": [number] * len(keys), "gone": deletes})


def content_after(num_batches: int) -> dict[int, tuple[int, list[float] | None]]:
    """Return `x` and `w` of each key; only the first rows have the latter."""
    content = {key: (-1, wide_value(key)) for key in range(NUM_KEYS)}
    for number in range(num_batches):
        for key, x, is_delete in zip(*batch_of(number).to_pydict().values(), strict=True):
            if is_delete:
                content.pop(key, None)
            else:
                content[key] = (x, content[key][1] if key in content else None)
    return content


def wide_value(key: int) -> list[float] | None:
    return [float(key)] * WIDTH


class Sink(threading.Thread):
    """Upserts batch after batch, each once, with a compaction beside them."""

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self.uri = uri
        self.num_batches = self.num_in_place = 0
        self.ends = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        rules = UpsertRules(("id",), delete_when="gone", except_columns=("gone",))
        compaction = BackgroundCompaction(5)
        try:
            while not self.ends.is_set():
                rows, number = batch_of(self.num_batches), self.num_batches
                table = lance_stream.open_dataset(self.uri).table
                identity = PendingBatch.of("app", number, digest=digest_of(rows))
                with compaction.batch():
                    result = upsert(table, rows, rules, identity)
                assert result.is_new
                self.num_in_place += is_in_place(result.table)
                self.num_batches += 1
                compaction.after_batch(number, lambda: lance_stream.open_dataset(self.uri).table)
                time.sleep(0.02)
            compaction.wait()
        except BaseException as error:
            self.error = error


class Follower:
    """Applies the feed to a copy of the rows, and compares it with the table."""

    def __init__(self, uri: str) -> None:
        ds = lance_stream.open_dataset(uri)
        self.uri = uri
        self.version = ds.version
        self.rows = rows_by_id(ds)
        record_progress(ds.table.refs, CONSUMER, ds.version)

    def follow(self) -> None:
        ds = lance_stream.open_dataset(self.uri)
        feed = ds.changes(self.version, columns=["id", "x", "n"]).read_all()
        for change in feed.to_pylist():
            row = (change["id"], change["x"], change["n"])
            if change["_change_type"] in ("delete", "update_preimage"):
                assert self.rows.pop(change["_rowid"]) == row
            else:
                assert change["_rowid"] not in self.rows
                self.rows[change["_rowid"]] = row
        assert self.rows == rows_by_id(ds)
        self.version = ds.version
        record_progress(ds.table.refs, CONSUMER, ds.version)


def rows_by_id(ds: Any) -> dict[int, tuple[int, int, int]]:
    rows = ds.to_table(["id", "x", "n"], with_row_id=True).to_pydict()
    values = zip(rows["id"], rows["x"], rows["n"], strict=True)
    return dict(zip(rows["_rowid"], values, strict=True))


def is_in_place(table: TableVersion) -> bool:
    """Say whether the version's commit left changed rows in place."""
    transaction = read_transaction(table.store, table.manifest)
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    return transaction.operation.update_mode is UpdateMode.REWRITE_COLUMNS


def content(rows: pa.Table) -> dict[int, tuple[int, list[float] | None]]:
    return {row["id"]: (row["x"], row["w"]) for row in rows.to_pylist()}


@pytest.mark.slow
@pytest.mark.nightly
def test_verbs_survive_kills_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshot and feed stay right while a sink writes, each batch counts once, and pylance reads
    the table.
    """
    dice, uri = random.Random(7), str(tmp_path / "t")
    use_small_runs(monkeypatch.setattr)
    stays = property(lambda _: dice.random() < 0.5)  # so that rows move, too
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", stays)
    numbers = [pa.field("id", pa.int64(), nullable=False), ("x", pa.int64()), ("n", pa.int64())]
    schema = pa.schema([*numbers, ("w", pa.list_(pa.float32(), WIDTH))])
    keys = range(NUM_KEYS)
    wide = [wide_value(key) for key in keys]
    first = pa.table({"id": keys, "x": [-1] * NUM_KEYS, "n": keys, "w": wide}, schema=schema)
    lance_stream.create_dataset(uri, first, primary_key=["id"])
    sink, follower = Sink(uri), Follower(uri)
    verbs: Counter[str] = Counter()
    killed_in: Counter[str] = Counter()
    sink.start()
    for number in range(NUM_ROUNDS):
        with subprocess.Popen(
            [sys.executable, str(PROCESS), uri, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), process.communicate()[1]
            ends = time.monotonic() + dice.uniform(0.2, 4)
            while time.monotonic() < ends:
                follower.follow()
                assert sink.error is None, sink.error
            assert process.poll() is None, process.communicate()[1]
            process.send_signal(signal.SIGKILL)
            begun = [part for part in process.stdout.read().split("\n") if part.isidentifier()]
        verbs.update(begun)
        killed_in.update(begun[-1:])
        follower.follow()
    sink.ends.set()
    sink.join(timeout=120)
    assert sink.error is None, sink.error
    follower.follow()
    assert 0 < sink.num_in_place < sink.num_batches
    ds, expected = lance_stream.open_dataset(uri), content_after(sink.num_batches)
    assert content(ds.to_table(["id", "x", "w"])) == expected
    assert ds.count_rows() == len(expected)
    assert ds.verify(deep=True) == []
    theirs = lance.dataset(uri)
    theirs.validate()
    assert content(theirs.to_table(["id", "x", "w"])) == expected
    ds.compact().cleanup(retain_versions=1)
    assert content(lance_stream.open_dataset(uri).to_table(["id", "x", "w"])) == expected
    print(
        f"{sink.num_batches} batches, {sink.num_in_place} in place, versions up to {ds.version}, "
        f"{verbs=}, {killed_in=}"
    )
