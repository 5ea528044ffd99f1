"""A fault at each request of a reader in turn, on each kind of store: right data or a clear error.

An answer that breaks off is asked for again. One that is short and says so itself, as a broken
cache on the way may make it, is noticed where the store tells the range that it holds; where it
does not, the format notices. Wrong or short data never come out.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from lance_stream import create_dataset, open_dataset
from lance_stream.commit.manifest_files import MANIFESTS
from lance_stream.errors import (
    LanceStreamError,
    StoreRefusedError,
    StoreUnavailableError,
)
from tests.faults.faulty_buckets import QUICK, FaultyBucket, Options
from tests.sampling import some_of
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import (
    CutBefore,
    CutBody,
    Fault,
    Forge,
    Hold,
    Shorten,
    Slow,
)

NUM_ROWS = 30_000
RANDOM = np.random.default_rng(5)
ROWS = pa.table(
    {
        "id": pa.array(range(NUM_ROWS)),
        "noise": RANDOM.integers(0, 1 << 62, NUM_ROWS),
        "text": [f"text {n}" for n in RANDOM.integers(0, 1 << 30, NUM_ROWS)],
    }
)
ROW_OFFSETS = [3, NUM_ROWS - 100, 17_000, 400]

Read = Callable[[str, Options], Any]
READS: Mapping[str, Read] = {
    "open": lambda uri, options: open_dataset(uri, storage_options=options).schema,
    "versions": lambda uri, options: [
        version.version for version in open_dataset(uri, storage_options=options).versions()
    ],
    "scan": lambda uri, options: open_dataset(uri, storage_options=options).to_table(),
    "take": lambda uri, options: open_dataset(uri, storage_options=options).take(ROW_OFFSETS),
    "feed": lambda uri, options: (
        open_dataset(uri, storage_options=options).changes(3).read_all().drop(["_commit_timestamp"])
    ),
    "old version": lambda uri, options: open_dataset(uri, 2, options).to_table(["noise"]),
}

ONCE: Mapping[str, Fault] = {
    "cut before": CutBefore(reset=True),
    "cut in the body": CutBody(),
    "cut at the end of the body": CutBody(0.999),
    "503": Forge(503),
    "429": Forge(429),
    "the answer is late": Slow(1.6),
}
LATE: Options = {**QUICK, "request_timeout": "1200ms"}
FOR_EVER: Mapping[str, Fault] = {
    "cut in the body": CutBody(),
    "503": Forge(503),
    "403": Forge(403),
    "late": Slow(0.6),
}
BRIEF: Options = {**QUICK, "client_max_retries": "1"}


STORES = {"s3_bucket": "moto", "google_bucket": "fake_gcs", "azure_container": "azurite"}
# On the other stores than the first.
CHIEF_READS = ("scan", "take", "feed")
CHIEF_FAULTS = ("cut in the body", "the answer is late", "0.5", "503")


@pytest.fixture
def bucket(request: pytest.FixtureRequest, store: str) -> Iterator[FaultyBucket]:
    direct = request.getfixturevalue(store)
    url = urlsplit(direct.endpoint)
    with FaultProxy(f"{url.scheme}://{url.netloc}") as proxy:
        yield FaultyBucket(direct, proxy)


@pytest.fixture
def uri(bucket: FaultyBucket) -> str:
    """Version 2 and 3 append, 4 deletes, 5 updates."""
    table = create_dataset(bucket.new_uri(), ROWS.schema, storage_options=bucket.direct)
    half = NUM_ROWS // 2
    table = table.append(ROWS[:half]).append(ROWS[half:])
    table.delete("id % 1000 = 7").update({"text": "'new'"}, "id % 5000 = 1")
    return table.uri


def open_and_read(read: Read, uri: str, options: Options) -> Any:
    """Read as a process does that has never seen the table."""
    MANIFESTS.__init__()  # type: ignore[misc]  # there is no other way to make it forget
    return read(uri, options)


def num_requests(bucket: FaultyBucket, read: Read, uri: str, options: Options) -> int:
    bucket.proxy.clear()
    open_and_read(read, uri, options)
    return len(bucket.proxy.requests)


def cases(faults: Iterable[str], fast: Iterable[tuple[str, str]] = ()) -> list[object]:
    """Return stores, reads and faults that belong together, the slow ones marked."""
    return [
        pytest.param(
            store,
            read,
            fault,
            marks=[
                pytest.mark.server(server),
                *([] if (read, fault) in fast else [pytest.mark.slow]),
            ],
        )
        for store, server in STORES.items()
        for read in READS
        for fault in faults
        if store == "s3_bucket" or (read in CHIEF_READS and fault in CHIEF_FAULTS)
    ]


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize(("store", "name", "fault"), cases(ONCE, [("scan", "cut in the body")]))
def test_readers_overcome_single_faults(
    bucket: FaultyBucket, uri: str, name: str, fault: str
) -> None:
    """A fault at any request of a reader is overcome at once."""
    read, proxy, is_late = READS[name], bucket.proxy, isinstance(ONCE[fault], Hold | Slow)
    expected = open_and_read(read, uri, bucket.direct)
    options = bucket.through(LATE if is_late else QUICK)
    last = num_requests(bucket, read, uri, options)
    for number in some_of(range(1, last + 1), 4 if is_late else 2):
        proxy.clear()
        rule = proxy.add(ONCE[fault], at=number)
        assert open_and_read(read, uri, options) == expected, proxy.story()
        # Two that need the same bytes at the same time may both ask for them.
        assert rule.num_fired == 1 or number > last - 4
        proxy.quiet()


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize(("store", "name", "share"), cases(["0.5", "0.999"], [("scan", "0.5")]))
def test_short_responses_give_no_wrong_data(
    bucket: FaultyBucket, uri: str, name: str, share: str
) -> None:
    """A short response that claims to be whole never gives wrong data."""
    read, proxy = READS[name], bucket.proxy
    expected = open_and_read(read, uri, bucket.direct)
    options = bucket.through({**QUICK, "client_max_retries": "1"})
    last = num_requests(bucket, read, uri, options)
    assert last > 0
    for times in (1, None):
        for number in some_of(range(1, last + 1), 2):
            proxy.clear()
            rule = proxy.add(Shorten(float(share)), at=number, times=times)
            try:
                data = open_and_read(read, uri, options)
            except LanceStreamError:
                data = expected  # that it says so is as good
            assert data == expected, proxy.story()
            # Two that need the same bytes at the same time may both ask for them, or only one.
            assert rule.num_fired or number > last - 4, proxy.story()


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize(("store", "name", "fault"), cases(FOR_EVER, [("scan", "503")]))
def test_readers_soon_report_lasting_faults(
    bucket: FaultyBucket, uri: str, name: str, fault: str
) -> None:
    """A reader that retries for minutes looks as if it hung, and the error must name the server."""
    read, proxy = READS[name], bucket.proxy
    is_late = isinstance(FOR_EVER[fault], Slow)
    options = bucket.through({**BRIEF, "request_timeout": "400ms"} if is_late else BRIEF)
    for number in some_of(range(1, num_requests(bucket, read, uri, bucket.through()) - 2), 3):
        proxy.clear()
        proxy.add(FOR_EVER[fault], at=number, times=None)
        started = time.monotonic()
        with pytest.raises((StoreUnavailableError, StoreRefusedError)) as caught:
            open_and_read(read, uri, options)
        context = f"at {number}: {caught.value}\n{proxy.story()}"
        assert time.monotonic() - started < 10, context
        assert isinstance(caught.value, StoreRefusedError) == (fault == "403"), context
        assert re.search("403|2 attempts", str(caught.value)), context
        assert urlsplit(proxy.url).netloc in str(caught.value), context
        proxy.quiet()
