"""Buckets behind a proxy that makes requests fail, and actions on tables in them.

An action states the rows before and after it, so a table has one of the two, whatever fails. Each
action runs on a fresh copy of one small table.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lance_stream import create_dataset, open_dataset
from lance_stream.errors import (
    CommitUncertainError,
    LanceStreamError,
    NotFoundError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.locations import open_store
from lance_stream.table.config import ledger_entries
from tests.faults.drivers import (
    APP,
    FIRST_VERSION,
    MODES,
    QUERY,
    SCHEMA,
    START,
    Change,
    Rows,
    batch_for,
    make_table,
    named_files,
    rows_of_batch,
    to_arrow,
)
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import Fault, Forge
from tests.servers.store_requests import StoreRequest

Options = Mapping[str, Any]

QUICK: Options = {"connect_timeout": "5s", "request_timeout": "20s", "client_max_retries": "3"}
"""Four attempts, with time-outs that only a fault exceeds."""

HASTY: Options = {
    "connect_timeout": "5s",
    "request_timeout": "800ms",
    "client_max_retries": "3",
    "client_retry_timeout": "6s",
}
"""For faults that take longer than a request may."""


@dataclass(frozen=True)
class FaultyBucket:
    """A bucket, and the proxy in front of its server.

    Attributes:
        bucket: The bucket.
        proxy: The proxy, which no other test uses meanwhile.
    """

    bucket: Bucket
    proxy: FaultProxy

    @property
    def direct(self) -> Options:
        """Options that bypass the proxy."""
        return self.bucket.storage_options

    def through(self, patience: Options = QUICK) -> Options:
        """Options that send requests through the proxy."""
        return through(self.bucket, self.proxy, patience)

    def new_uri(self) -> str:
        """Return the URI of a table that does not exist yet."""
        return f"{self.bucket.uri}/{uuid.uuid4().hex[:8]}/table.lance"

    def new_table(self) -> str:
        """Copy a table of the rows `START`, at version `FIRST_VERSION`; return its URI."""
        uri = self.new_uri()
        store = open_store(uri, self.direct)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda file: store.write(*file), _files_of_a_table()))
        return uri


def through(bucket: Bucket, proxy: FaultProxy, patience: Options = QUICK) -> Options:
    """Return a bucket's options with the proxy instead of its server."""
    server = urlsplit(bucket.endpoint)
    at_server, at_proxy = f"{server.scheme}://{server.netloc}", proxy.url
    options = bucket.storage_options.items()
    return {**{name: option.replace(at_server, at_proxy) for name, option in options}, **patience}


@cache
def _files_of_a_table() -> tuple[tuple[str, bytes], ...]:
    store = open_store(make_table(f"memory://{uuid.uuid4()}/table"))
    return tuple((file.path, store.read(file.path)) for file in store.list())


@dataclass(frozen=True)
class Action:
    """Something that is committed to a table.

    Attributes:
        act: Commits it, given the table's URI and options.
        before: The rows before it; None if there is no table.
        after: The rows after it.
        version: The version after it.
        batch_id: The newest batch in the ledger after it; None for none.
        prepare: Called with the same arguments before.
    """

    act: Callable[[str, Options], object]
    before: Rows | None
    after: Rows
    version: int = FIRST_VERSION + 1
    batch_id: int | None = None
    prepare: Callable[[str, Options], object] = lambda _uri, _options: None

    def new_table(self, bucket: FaultyBucket) -> str:
        """Create the table that the action starts with; return its URI."""
        if self.before is None:
            return bucket.new_uri()
        uri = bucket.new_table()
        self.prepare(uri, bucket.direct)
        return uri


def take_in(mode: str, batch_id: int = 0) -> Callable[[str, Options], None]:
    """Return a function that writes a micro-batch as a sink does."""

    def act(uri: str, options: Options) -> None:
        MODES[mode].take_in(
            open_newest(uri, storage_options=options),
            batch_for(mode, APP, batch_id),
            PendingBatch.of(APP, batch_id, QUERY),
        )

    return act


def _takes_in(mode: str) -> Action:
    after = MODES[mode].model(START, batch_for(mode, APP, 0))
    return Action(take_in(mode), START, after, batch_id=0)


def _create(uri: str, options: Options) -> None:
    try:
        open_newest(uri, storage_options=options)
    except NotFoundError:
        create_dataset(uri, SCHEMA, primary_key=["id"], storage_options=options)


def _delete(uri: str, options: Options) -> None:
    open_dataset(uri, storage_options=options).delete("id IN (1, 4)")


ACTIONS: Mapping[str, Action] = {
    "create": Action(_create, None, [], version=1),
    "append": _takes_in("append"),
    "upsert": _takes_in("upsert"),
    "overwrite": _takes_in("overwrite"),
    "delete": Action(_delete, START, [row for row in START if row[0] not in (1, 4)]),
    "replay": Action(
        take_in("append"),
        MODES["append"].model(START, batch_for("append", APP, 0)),
        MODES["append"].model(START, batch_for("append", APP, 0)),
        batch_id=0,
        prepare=take_in("append"),
    ),
}

OTHERS_ROWS = [Change(n, "theirs", 9) for n in (70, 71)]


def append_others_rows(uri: str, options: Options) -> Rows:
    """Append rows as another writer may do at any time; return them."""
    open_dataset(uri, storage_options=options).append(to_arrow(OTHERS_ROWS))
    return rows_of_batch(OTHERS_ROWS)


def rows_there(uri: str, options: Options) -> Rows | None:
    """Return the rows of a table; None if there is none."""
    try:
        table = open_dataset(uri, storage_options=options).to_table(["id", "value", "seq"])
    except NotFoundError:
        return None
    return sorted(tuple(row.values()) for row in table.to_pylist())


def check_done(action: Action, uri: str, options: Options, context: str) -> None:
    """Check that the action took effect once, with its ledger entry, and no file is missing."""
    table = open_dataset(uri, storage_options=options)
    assert rows_there(uri, options) == action.after, context
    assert table.version == action.version, context
    entry = ledger_entries.read_entry(table.table.manifest.config, APP)
    assert (entry and entry.batch_id) == action.batch_id, context
    assert table.verify() == [], context
    assert named_files(table.table) <= {file.path for file in table.table.store.list()}, context


# --- faults at each request

BOUND_SECONDS = 30.0
NUM_AT_ONCE = 4


class Case(NamedTuple):
    """A fault, and which requests can meet it."""

    fault: Fault
    kinds: tuple[str, ...] = ()
    patience: Options = QUICK

    def can_meet(self, request: StoreRequest) -> bool:
        return not self.kinds or request.kind in self.kinds


class Proxies:
    """Several proxies in front of each server, so that several tables are tested at once."""

    def __init__(self) -> None:
        self._idle: dict[str, list[FaultProxy]] = {}
        self._all: list[FaultProxy] = []

    @contextmanager
    def before(self, server: str) -> Iterator[FaultProxy]:
        """Lend a proxy in front of a server, given any URL of it."""
        url = urlsplit(server)
        idle = self._idle.setdefault(url.netloc, [])
        try:
            proxy = idle.pop()
        except IndexError:
            proxy = FaultProxy(f"{url.scheme}://{url.netloc}")
            self._all.append(proxy)
        proxy.clear()
        yield proxy
        proxy.clear()
        proxy.quiet()
        idle.append(proxy)

    def close(self) -> None:
        for value in self._all:
            value.close()


def num_requests(action: Action, case: Case, bucket: FaultyBucket) -> int:
    """Return how many requests of an action can meet a fault."""
    uri = action.new_table(bucket)
    bucket.proxy.clear()
    action.act(uri, bucket.through(case.patience))
    check_done(action, uri, bucket.direct, bucket.proxy.story())
    return sum(map(case.can_meet, bucket.proxy.requests))


def run_at_every_request(
    proxies: Proxies,
    server: str,
    bucket_behind: Callable[[FaultProxy], FaultyBucket],
    action: Action,
    case: Case,
    try_at: Callable[[FaultyBucket, int], None],
    choose: Callable[[Sequence[int]], Sequence[int]] = list,
) -> None:
    """Call `try_at` for each request that can meet a fault, with a new table and another proxy.

    Args:
        proxies: Where the proxies come from.
        server: The URL of the server behind them.
        bucket_behind: Returns the bucket behind a proxy.
        action: The action.
        case: The fault.
        try_at: Called with a bucket and the number of the request.
        choose: Returns the request numbers to try, given all of them.
    """

    def at(number: int) -> None:
        with proxies.before(server) as proxy:
            try_at(bucket_behind(proxy), number)

    with proxies.before(server) as proxy:
        numbers = range(1, num_requests(action, case, bucket_behind(proxy)) + 1)
    assert numbers or case.kinds
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(at, choose(numbers)))


def check_is_overcome(action: Action, case: Case) -> Callable[[FaultyBucket, int], None]:
    """Return a check that the action succeeds although one request meets a fault."""

    def try_at(bucket: FaultyBucket, number: int) -> None:
        proxy, options = bucket.proxy, bucket.through(case.patience)
        uri = action.new_table(bucket)
        rule = proxy.add(case.fault, at=number, matches=case.can_meet)
        action.act(uri, options)
        proxy.quiet()
        context = f"at {number}:\n{proxy.story()}"
        assert rule.num_fired == 1, context
        action.act(uri, options)
        check_done(action, uri, bucket.direct, context)

    return try_at


def check_ends_clearly(action: Action, case: Case) -> Callable[[FaultyBucket, int], None]:
    """Return a check that an action fails clearly if all requests from one on meet a fault."""

    def try_at(bucket: FaultyBucket, number: int) -> None:
        proxy, options = bucket.proxy, bucket.through(case.patience)
        uri = action.new_table(bucket)
        rule = proxy.add(case.fault, at=number, times=None, matches=case.can_meet)
        started = time.monotonic()
        error = attempt(action, uri, options)
        seconds = time.monotonic() - started
        proxy.heal()
        proxy.quiet()
        context = f"at {number}, {seconds:.1f} s, {error!r}:\n{proxy.story()}"
        assert rule.num_fired, context
        assert seconds < BOUND_SECONDS, context
        there = rows_there(uri, bucket.direct)
        assert there in (action.before, action.after), context
        if error is None:
            assert there == action.after, context
        else:
            check_is_clear(error, case, context)
        action.act(uri, options)
        check_done(action, uri, bucket.direct, context)

    return try_at


def attempt(action: Action, uri: str, options: Options) -> LanceStreamError | None:
    """Run an action; return the error of this package that it raises."""
    try:
        action.act(uri, options)
    except LanceStreamError as error:
        return error
    return None


def check_is_clear(error: LanceStreamError, case: Case, context: str) -> None:
    """Check that the error names the server and the attempts, or what the store refused."""
    assert isinstance(error, StoreError | CommitUncertainError), context
    text = str(error)
    if isinstance(case.fault, Forge) and case.fault.status == 403:
        # With a manifest store, a version is committed before the last step.
        assert isinstance(error, StoreRefusedError | CommitUncertainError), context
        assert "403" in text, context
    if isinstance(error, StoreUnavailableError):
        assert re.search(r"\d+ (attempts?|names)", text), context
        assert re.search(r"127\.0\.0\.1:\d+|://", text), context
    if isinstance(error, CommitUncertainError):
        assert "again" in text, context
    assert not re.search(r"test-secret|Eby8vdM0|test-token", text), context
