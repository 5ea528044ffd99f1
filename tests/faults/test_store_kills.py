"""SIGKILL of a writer at each request of a commit to S3: the next writer needs no repair."""

import multiprocessing
import os
import signal
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

from lance_stream import create_dataset, open_dataset
from tests.faults.faulty_buckets import (
    ACTIONS,
    FaultyBucket,
    Options,
    append_others_rows,
    check_done,
    rows_there,
)
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import MotoServer
from tests.servers.store_faults import Act, CutBefore
from tests.servers.store_requests import StoreRequest

pytestmark = pytest.mark.slow

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.test_store_kills"])

LARGE = pa.table({"noise": np.random.default_rng(3).integers(0, 1 << 62, 3_500_000)})


@pytest.fixture
def bucket(moto: MotoServer, s3_bucket: Bucket) -> Iterator[FaultyBucket]:
    with FaultProxy(moto.endpoint) as proxy:
        yield FaultyBucket(s3_bucket, proxy)


def do(action: str, uri: str, options: Options) -> None:
    ACTIONS[action].act(uri, options)


def append_much(uri: str, options: Options) -> None:
    open_dataset(uri, storage_options=options).append(LARGE)


def run_and_kill(bucket: FaultyBucket, target: object, *arguments: object, **when: object) -> bool:
    """Run something in a process; kill that when a request comes. Return whether one came."""
    process = PROCESSES.Process(target=target, args=arguments)  # type: ignore[arg-type]  # of any kind

    def kill(_request: StoreRequest) -> None:
        assert process.pid is not None
        with suppress(ProcessLookupError):
            while True:
                os.kill(process.pid, signal.SIGKILL)
                time.sleep(0.002)

    rule = bucket.proxy.add(Act(kill, then=when.pop("then", None)), **when)  # type: ignore[arg-type]  # of any kind
    process.start()
    process.join(120)
    bucket.proxy.quiet()
    assert process.exitcode == (-signal.SIGKILL if rule.num_fired else 0), bucket.proxy.story()
    bucket.proxy.clear()
    return bool(rule.num_fired)


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize(
    ("name", "arrives"),
    [("append", False), ("append", True), ("create", True), ("upsert", False), ("delete", True)],
)
def test_killed_writers_leave_nothing_unfinished(
    bucket: FaultyBucket, name: str, arrives: bool
) -> None:
    """The writer is killed at any of its requests."""
    action, then = ACTIONS[name], None if arrives else CutBefore()
    options = bucket.through()
    outcomes, number = set(), 0
    while True:
        number += 1
        uri = action.new_table(bucket)
        was_killed = run_and_kill(bucket, do, name, uri, options, at=number, then=then)
        context = f"killed at {number}"
        there = rows_there(uri, bucket.direct)
        assert there in (action.before, action.after), context
        outcomes.add(there == action.after)
        action.act(uri, options)
        check_done(action, uri, bucket.direct, context)
        if not was_killed:
            break
        if action.before is not None:
            others = append_others_rows(uri, bucket.direct)
            assert rows_there(uri, bucket.direct) == sorted(action.after + others)
    assert number > 5
    assert outcomes == {False, True}


@pytest.mark.nightly
def test_killed_uploads_leave_invisible_parts(
    bucket: FaultyBucket,
) -> None:
    """The parts cost money until the bucket's rule for incomplete uploads deletes them."""
    uri = bucket.new_uri()
    table = create_dataset(uri, LARGE.schema, storage_options=bucket.direct)
    options = bucket.through()
    for kind, at in (("start upload", 1), ("part", 1), ("part", 3), ("complete", 1)):
        assert run_and_kill(bucket, append_much, uri, options, kind=kind, at=at, then=CutBefore())
    leftovers = num_uploads(bucket.bucket)
    assert leftovers >= 3
    assert open_dataset(uri, storage_options=bucket.direct).version == table.version
    assert table.verify() == []
    assert table.append(LARGE).count_rows() == len(LARGE)
    assert num_uploads(bucket.bucket) == leftovers
    assert open_dataset(uri, storage_options=options).to_table() == LARGE


def num_uploads(bucket: Bucket) -> int:
    """Return how many uploads have begun and not ended."""
    with urllib.request.urlopen(f"{bucket.endpoint}/{bucket.name}?uploads") as answer:
        tree = ElementTree.fromstring(answer.read())
    return len([element for element in tree.iter() if element.tag.endswith("}Upload")])
