"""Random histories of a table on S3: two writers whose requests fail, and pylance beside them.

    python -m tests.faults.store_histories --minutes 10 --seed 1

Each of our writers has a proxy, where a share of its requests meets a fault: they are cut, delayed
beyond their time-out, repeated, or get a forged response. A writer commits micro-batches (appends
and upserts), which it retries until they are acknowledged, and other appends and deletes, which it
tries once. No two writers share keys, so each knows its rows in the final table:

    acknowledged                          exactly once
    tried once, with an error             once, or not at all

Histories of odd seeds publish versions in DynamoDB, behind the same proxies.

The kit of random lives (`tests.histories`) cannot check this: here requests to a store server and
to DynamoDB fail in real time, while there each step ends before the next one begins.

The seed determines the actions and the fault of a writer's n-th request, but not how the requests
of the writers interleave.
"""

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import lance
import pyarrow as pa

from lance_stream import create_dataset, open_dataset
from lance_stream.errors import LanceStreamError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from tests import seeded_runs as histories
from tests.faults.drivers import SCHEMA
from tests.faults.faulty_buckets import Options, through
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import DynamoTable, MotoServer
from tests.servers.store_faults import (
    CutAfter,
    CutBefore,
    CutBody,
    Fault,
    Forge,
    Hold,
    Repeat,
    Slow,
)
from tests.servers.store_requests import StoreRequest

FAULT_SHARE: Final = 0.05
OUTAGE_SHARE: Final = 0.15
IMPATIENT: Final[Options] = {
    "connect_timeout": "5s",
    "request_timeout": "700ms",
    "client_max_retries": "2",
    "client_retry_timeout": "4s",
}
ROWS_AT_ONCE: Final = 3
FAULTS: Final[tuple[Callable[[random.Random], Fault], ...]] = (
    lambda dice: CutBefore(reset=dice.random() < 0.5),
    lambda dice: CutAfter(reset=dice.random() < 0.5),
    lambda dice: CutBody(dice.random()),
    lambda dice: Hold(dice.uniform(0.2, 4.0)),
    lambda dice: Slow(dice.uniform(0.2, 1.5)),
    lambda _dice: Repeat(),
    lambda dice: Forge(dice.choice((500, 503, 429)), landed=dice.random() < 0.5),
    lambda _dice: Forge(403),
)
LIES: Final = (Forge(409), Forge(412), Forge(409, landed=True), Forge(412, landed=True))


def faults_by_chance(dice: random.Random) -> Callable[[StoreRequest], Fault | None]:
    """Return what chooses a fault for some requests, now and then one for several in a row."""
    outage: list[Fault] = []

    def choose(request: StoreRequest) -> Fault | None:
        if outage:
            return outage.pop()
        if dice.random() >= FAULT_SHARE:
            return None
        if request.kind.endswith("once") and dice.random() < 0.4:
            return dice.choice(LIES)
        fault = dice.choice(FAULTS)(dice)
        if dice.random() < OUTAGE_SHARE:
            outage.extend([fault] * dice.randrange(2, 14))
        return fault

    return choose


@dataclass
class Writer:
    """A writer of rows with keys that no other writer has; it knows their expected state.

    Attributes:
        number: Its number; its keys begin with it.
        uri: The table.
        dice: Decides its actions.
        values: By key, the value in the final table: None for no row.
        in_doubt: Groups of rows that are in the final table completely or not at all.
        maybe_deleted: Keys whose row may have been deleted.
        done: The number of actions, by kind.
        error: The unexpected error that ended it.
    """

    number: int
    uri: str
    dice: random.Random
    values: dict[int, str | None] = field(default_factory=dict)
    in_doubt: list[dict[int, str]] = field(default_factory=list)
    maybe_deleted: set[int] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    _next_key: int = 0

    def run(self, act: Callable[[], None], until: float) -> None:
        try:
            while time.monotonic() < until:
                act()
        except BaseException as error:
            self.error = error

    def note(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def new_rows(self, value: str) -> dict[int, str]:
        first = self.number * 1_000_000 + self._next_key
        self._next_key += ROWS_AT_ONCE
        return dict.fromkeys(range(first, first + ROWS_AT_ONCE), value)

    def sure_keys(self) -> list[int]:
        return [
            key
            for key, value in self.values.items()
            if value is not None and key not in self.maybe_deleted
        ]


@dataclass
class OurWriter(Writer):
    """A writer of lance-stream, whose requests fail.

    Attributes:
        options: Storage options, through its proxy.
        next_batch: The id of the next micro-batch.
    """

    options: Options = field(default_factory=dict)
    next_batch: int = 0

    def act(self) -> None:
        what = self.dice.choice((self.batch, self.batch, self.change, self.append, self.delete))
        what()

    def batch(self) -> None:
        """A micro-batch of new rows."""
        rows = self.new_rows(f"batch {self.next_batch}")
        self._until_acknowledged(
            lambda micro_batch: append(
                open_newest(self.uri, storage_options=self.options), to_arrow(rows), micro_batch
            )
        )
        self.values |= rows

    def change(self) -> None:
        """A micro-batch that changes rows, and inserts some."""
        keys = self.sure_keys()
        chosen = self.dice.sample(keys, min(len(keys), 2))
        value = f"change {self.next_batch}"
        rows = {**dict.fromkeys(chosen, value), **self.new_rows(value)}
        self._until_acknowledged(
            lambda micro_batch: upsert(
                open_newest(self.uri, storage_options=self.options),
                to_arrow(rows),
                UpsertRules(("id",)),
                micro_batch,
            )
        )
        self.values |= rows

    def append(self) -> None:
        """An append that is tried once."""
        rows = self.new_rows("appended")
        try:
            open_dataset(self.uri, storage_options=self.options).append(to_arrow(rows))
        except LanceStreamError as error:
            self.note(f"append: {type(error).__name__}")
            self.in_doubt.append(rows)
        else:
            self.note("append")
            self.values |= rows

    def delete(self) -> None:
        """A delete that is tried once."""
        keys = self.sure_keys()
        if not keys:
            return
        key = self.dice.choice(keys)
        try:
            open_dataset(self.uri, storage_options=self.options).delete(f"id = {key}")
        except LanceStreamError as error:
            self.note(f"delete: {type(error).__name__}")
            self.maybe_deleted.add(key)
        else:
            self.note("delete")
            self.values[key] = None

    def _until_acknowledged(self, take_in: Callable[[PendingBatch], object]) -> None:
        micro_batch = PendingBatch.of(f"writer {self.number}", self.next_batch, "query")
        self.next_batch += 1
        while True:
            try:
                take_in(micro_batch)
            except LanceStreamError as error:
                self.note(f"batch: {type(error).__name__}")
            else:
                self.note("batch")
                return


@dataclass
class LanceWriter(Writer):
    """Lance itself, whose requests go well."""

    options: Options = field(default_factory=dict)

    def act(self) -> None:
        rows = self.new_rows("lance")
        lance.write_dataset(
            to_arrow(rows), self.uri, mode="append", storage_options=dict(self.options)
        )
        self.values |= rows
        self.note("lance append")
        time.sleep(self.dice.uniform(0.4, 1.6))


def to_arrow(rows: dict[int, str]) -> pa.Table:
    columns = [list(rows), list(rows.values()), [1] * len(rows)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def run_history(
    bucket: Bucket,
    server_url: str,
    seed: int,
    seconds: float,
    items: DynamoTable | None = None,
) -> dict[str, int]:
    """Run a history, and compare the table with the expectations of its writers.

    Args:
        bucket: The bucket of the table.
        server_url: The server behind the proxies.
        seed: Decides the actions.
        seconds: How long new things are begun.
        items: The table of DynamoDB in which versions are published, on the same server; None for
            the table's own directory.

    Returns:
        How often what was done, and how many requests met a fault.
    """
    uri, direct = f"{bucket.uri}/history-{seed}", dict(bucket.storage_options)
    if items is not None:
        uri = f"{uri.replace('s3://', 's3+ddb://')}?ddbTableName={items.name}"
        direct["dynamodb_endpoint"] = items.endpoint
    create_dataset(uri, SCHEMA, primary_key=["id"], storage_options=direct)
    with FaultProxy(server_url) as one, FaultProxy(server_url) as other:
        writers: list[OurWriter | LanceWriter] = [
            LanceWriter(3, uri, random.Random(f"{seed} 3"), options=direct)
        ]
        for number, proxy in enumerate((one, other), 1):
            proxy.choose = faults_by_chance(random.Random(f"{seed} {number} faults"))
            options = dict(through(bucket, proxy, IMPATIENT))
            if items is not None:
                options["dynamodb_endpoint"] = proxy.url
            writers.append(
                OurWriter(number, uri, random.Random(f"{seed} {number}"), options=options)
            )
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=writer.run, args=(writer.act, until), daemon=True)
            for writer in writers
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        one.choose = other.choose = None  # what is not acknowledged yet will be
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), f"seed {seed}: a writer hangs\n{one.story()}"
        one.quiet()
        other.quiet()
        num_faults = sum(bool(request.fault) for request in one.requests + other.requests)
        num_requests = len(one.requests) + len(other.requests)
    for writer in writers:
        if writer.error is not None:
            raise AssertionError(f"seed {seed}: writer {writer.number}") from writer.error
    check(uri, direct, writers, f"seed {seed}")
    counts = {"requests": num_requests, "faults": num_faults}
    for writer in writers:
        for what, times in writer.done.items():
            counts[what] = counts.get(what, 0) + times
    return counts


def check(uri: str, options: Options, writers: list[OurWriter | LanceWriter], context: str) -> None:
    """Hold a table against what its writers know, for us, for Lance, and in its own feed."""
    table = open_dataset(uri, storage_options=options)
    rows = table.to_table(["id", "value"], with_row_id=True).to_pylist()
    values = {row["id"]: row["value"] for row in rows}
    assert len(values) == len(rows), f"{context}: a key is there twice"
    for writer in writers:
        check_writer(writer, values, context)
    keys = {key for writer in writers for key in writer.values}
    keys |= {key for writer in writers for group in writer.in_doubt for key in group}
    assert set(values) <= keys, f"{context}: rows that nobody wrote"
    assert table.verify() == [], context
    assert table.table.log.versions() == list(range(1, table.version + 1)), context
    theirs = lance.dataset(uri, storage_options=dict(options)).to_table(["id", "value"]).to_pylist()
    assert {row["id"]: row["value"] for row in theirs} == values, context
    assert len(theirs) == len(rows), context
    rebuilt: dict[int, tuple[int, str]] = {}
    for change in table.changes(1).read_all().to_pylist():
        if change["_change_type"] in ("delete", "update_preimage"):
            del rebuilt[change["_rowid"]]
        else:
            rebuilt[change["_rowid"]] = (change["id"], change["value"])
    assert dict(rebuilt.values()) == values, f"{context}: the feed does not make the table"


def check_writer(writer: OurWriter | LanceWriter, stored: dict[int, str], context: str) -> None:
    for key, value in writer.values.items():
        if key in writer.maybe_deleted and key not in stored:
            continue
        assert stored.get(key) == value, f"{context}: {key} is {stored.get(key)!r}, not {value!r}"
    for group in writer.in_doubt:
        there = {key: stored[key] for key in group if key in stored}
        assert there in ({}, group), f"{context}: part of {group}"


def play(seed: int, seconds: int) -> dict[str, int]:
    """Play a history on a server of its own."""
    with MotoServer() as moto:
        items = moto.new_table() if seed % 2 else None
        return run_history(moto.new_bucket(), moto.endpoint, seed, seconds, items)


if __name__ == "__main__":
    sys.exit(histories.main(play, steps=30, what="seconds"))
