"""Tables on Google Cloud Storage that pylance and we write in turn, and at once."""

import threading
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.google_front import GoogleFront
from tests.servers.store_faults import CutAfter

pytestmark = [pytest.mark.oracle, pytest.mark.nightly]

NUM_APPENDS = 12


@pytest.fixture
def bucket(google_front: GoogleFront) -> Bucket:
    return google_front.new_bucket()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {id_}" for id_ in ids]})


def ids_of(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_each_side_continues_the_others_table(bucket: Bucket) -> None:
    """Names with spaces and conditional writes are encoded differently by each client."""
    uri, options = f"{bucket.uri}/a table", bucket.storage_options
    lance.write_dataset(rows(1), uri, storage_options=options)
    ours = lance_stream.open_dataset(uri, storage_options=options)
    assert ids_of(ours.to_table()) == [1]
    ours.append(rows(2))
    theirs = lance.write_dataset(rows(3), uri, mode="append", storage_options=options)
    assert (theirs.version, ids_of(theirs.to_table())) == (3, [1, 2, 3])
    theirs.delete("id = 1")
    ours = lance_stream.open_dataset(uri, storage_options=options)
    ours.delete("id = 2")
    assert ids_of(lance.dataset(uri, storage_options=options).to_table()) == [3]


def test_multipart_uploads_are_read_by_both(bucket: Bucket) -> None:
    """Large files are uploaded in parts that the service joins."""
    options = bucket.storage_options
    large = pa.table({"id": range(1_500_000), "x": [number / 7 for number in range(1_500_000)]})
    by_us, by_them = f"{bucket.uri}/ours", f"{bucket.uri}/theirs"
    lance_stream.create_dataset(by_us, large.schema, storage_options=options).append(large)
    lance.write_dataset(large, by_them, storage_options=options)
    assert lance.dataset(by_us, storage_options=options).to_table().equals(large)
    assert lance_stream.open_dataset(by_them, storage_options=options).to_table().equals(large)


def test_concurrent_appends_of_both_all_commit(bucket: Bucket) -> None:
    """Both must create manifests by the same precondition of the service."""
    uri, options = f"{bucket.uri}/t", bucket.storage_options
    lance_stream.create_dataset(uri, rows(0).schema, storage_options=options).append(rows(0))

    def ours(key: int) -> None:
        lance_stream.open_dataset(uri, storage_options=options).append(rows(key))

    def theirs(key: int) -> None:
        lance.write_dataset(rows(key), uri, mode="append", storage_options=options)

    problems: list[BaseException] = []

    def run(append: Callable[[int], Any], first: int) -> None:
        try:
            for key in range(first, first + NUM_APPENDS):
                append(key)
        except BaseException as problem:
            problems.append(problem)

    writers = [(ours, 100), (theirs, 200), (ours, 300), (theirs, 400)]
    threads = [threading.Thread(target=run, args=writer) for writer in writers]
    for thread in threads:
        thread.start()
    for worker in threads:
        worker.join()
    assert problems == []
    expected = sorted(
        [0, *(first + number for _, first in writers for number in range(NUM_APPENDS))]
    )
    assert ids_of(lance_stream.open_dataset(uri, storage_options=options).to_table()) == expected
    final = lance.dataset(uri, storage_options=options)
    assert ids_of(final.to_table()) == expected
    assert final.version == 2 + 4 * NUM_APPENDS


def test_lost_replies_write_rows_once(google_front: GoogleFront) -> None:
    """A writer that does not see the answer must find out whether its commit succeeded."""
    with FaultProxy(google_front.url) as proxy:
        bucket = google_front.new_bucket(proxy.url)
        uri, options = f"{bucket.uri}/t", bucket.storage_options
        lance.write_dataset(rows(0), uri, storage_options=options)
        proxy.add(CutAfter(), kind="put once", key=".manifest")
        lance_stream.open_dataset(uri, storage_options=options).append(rows(1))
        final = lance.write_dataset(rows(2), uri, mode="append", storage_options=options)
        assert [request.fault for request in proxy.requests if request.fault] != []
    assert final.version == 3
    ids = lance_stream.open_dataset(
        uri, storage_options={**options, "google_base_url": google_front.url}
    )
    assert ids_of(ids.to_table()) == [0, 1, 2]
