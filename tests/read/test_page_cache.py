"""Requests and bytes of scans whose batches are parts of pages, at 1/16 of the real sizes."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.byte_ranges import ByteRange
from lance_stream.file.metadata.stored_pages import StoredPage
from lance_stream.read import fragment, page_cache
from lance_stream.read import prefetch as reading_ahead
from lance_stream.read.page_cache import CachedRows, PageCache, PagesOfFile
from lance_stream.read.prefetch import plan_batches
from lance_stream.read.scan import plan_scan
from lance_stream.storage import protocols
from lance_stream.storage.coalesce import Joining
from lance_stream.storage.objects import object_store
from lance_stream.storage.protocols import StoreKind
from tests.contracts.object_service import ObjectService

URI = "test://bucket/t"
SMALLER = 16
NUM_COLUMNS = 20
NUM_ROWS = 27_000
FILE_BYTES = NUM_COLUMNS * NUM_ROWS * 8
NUM_FILES = 4
ALL = [f"n{number}" for number in range(NUM_COLUMNS)]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ObjectService:
    service = ObjectService()
    monkeypatch.setitem(protocols.PROTOCOLS, "test", StoreKind("test", lambda *_: service.store()))
    for module, name in (
        (fragment, "BATCH_BYTES"),
        (reading_ahead, "BATCH_BYTES"),
        (reading_ahead, "MAX_WAITING_BYTES"),
        (page_cache, "START_BYTES"),
        (page_cache, "WINDOW_BYTES"),
        (page_cache, "REQUEST_BYTES"),
        (object_store, "PIECE_BYTES"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) // SMALLER)
    joining = object_store.JOINING
    smaller = Joining(
        joining.max_gap_bytes // SMALLER, joining.max_request_bytes // SMALLER, joining.alignment
    )
    monkeypatch.setattr(object_store, "JOINING", smaller)
    return service


@pytest.fixture
def cache_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes a scan keeps, after each of its reads."""
    seen: list[int] = []
    fetch = PageCache.fetch

    def noting(cache: PageCache, *arguments: Any) -> Any:
        result = fetch(cache, *arguments)
        seen.append(cache.num_bytes)
        return result

    monkeypatch.setattr(PageCache, "fetch", noting)
    return seen


def numbers(count: int, columns: Sequence[str] = ALL) -> pa.Table:
    dice = np.random.default_rng(count)
    return pa.table({name: dice.random(count) for name in columns})


def table_of(rows: pa.Table, version: str = "2.2", num_files: int = NUM_FILES) -> Dataset:
    ds = lance_stream.create_dataset(URI, rows.schema, version)
    for _ in range(num_files):
        ds = ds.append(rows)
    return lance_stream.open_dataset(URI)


def gets(service: ObjectService) -> tuple[int, int]:
    """Return the requests since the last `clear`, and the bytes of their answers."""
    sizes = [request.num_bytes for request in service.requests if request.kind == "get"]
    return len(sizes), sum(sizes)


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.1", "2.2"])
def test_scan_of_many_columns(service: ObjectService, cache_sizes: list[int], version: str) -> None:
    """A file costs five requests and one for its end; the first pages are read in two parts."""
    rows = numbers(NUM_ROWS)
    ds = table_of(rows, version)
    service.clear()
    assert ds.to_table().equals(pa.concat_tables([rows] * NUM_FILES))
    num_requests, num_bytes = gets(service)
    assert num_requests <= 3 * NUM_COLUMNS
    assert num_bytes < 1.15 * NUM_FILES * FILE_BYTES
    assert max(cache_sizes, default=0) <= 2.2 * FILE_BYTES


@pytest.mark.parametrize("batch_size", [1000, 5000])
def test_small_batches_are_not_requests(service: ObjectService, batch_size: int) -> None:
    """Batches of a few rows must share the fetched pages without further requests."""
    ds = table_of(numbers(NUM_ROWS), num_files=2)
    service.clear()
    assert sum(batch.num_rows for batch in ds.scan(batch_size=batch_size)) == 2 * NUM_ROWS
    num_requests, num_bytes = gets(service)
    assert num_requests <= 3 * NUM_COLUMNS
    assert num_bytes < 1.15 * 2 * FILE_BYTES


def test_late_batches_share_their_pages(service: ObjectService) -> None:
    """Tasks that share a large fragment begin in its middle, and their batches share pages, too."""
    ds = table_of(numbers(NUM_ROWS), num_files=1)
    (unit,) = plan_scan(ds.table, batch_size=500)
    service.clear()
    late = plan_batches([replace(unit, start=NUM_ROWS * 3 // 4)])
    assert sum(part.reader.read(part.selection).num_rows for part in late) == NUM_ROWS // 4
    assert gets(service)[0] <= 3 * NUM_COLUMNS


def test_one_column_costs_its_own_bytes(service: ObjectService) -> None:
    """Two requests per file suffice for one column, and its neighbours must not be fetched."""
    ds = table_of(numbers(NUM_ROWS))
    service.clear()
    ds.to_table(["n3"])
    num_requests, num_bytes = gets(service)
    assert num_requests == 2 * NUM_FILES
    assert num_bytes < NUM_FILES * (1.1 * 8 * NUM_ROWS + 66_000)


@pytest.mark.parametrize("batch_size", [None, 10])
def test_stopping_early_saves_bytes(service: ObjectService, batch_size: int | None) -> None:
    """A reader of the first rows must not fetch the whole file."""
    ds = table_of(numbers(NUM_ROWS))
    service.clear()
    scan = ds.scan(batch_size=batch_size)
    scan.read_next_batch()
    scan.close()
    assert gets(service)[1] < 0.75 * FILE_BYTES


def test_scattered_matches_cost_few_requests(service: ObjectService) -> None:
    """Matches on all pages must not become one request per row."""
    ds = table_of(numbers(NUM_ROWS))
    service.clear()
    assert 0 < ds.to_table(filter="n0 < 0.3").num_rows < 0.4 * NUM_FILES * NUM_ROWS
    num_requests, num_bytes = gets(service)
    assert num_requests <= 3 * NUM_COLUMNS + NUM_FILES
    assert num_bytes < 1.15 * NUM_FILES * FILE_BYTES


def test_filter_with_adjacent_matches(service: ObjectService) -> None:
    """Other columns are read only for batches with matches."""
    rows = numbers(NUM_ROWS).append_column("id", pa.array(np.arange(NUM_ROWS)))
    ds = table_of(rows)
    service.clear()
    table = ds.to_table(filter=f"id >= {NUM_ROWS // 2} AND id < {NUM_ROWS // 2 + 100}")
    assert table.num_rows == NUM_FILES * 100
    assert gets(service)[1] < 0.3 * NUM_FILES * FILE_BYTES


def test_deleted_rows_cost_few_requests(service: ObjectService) -> None:
    """Holes of deleted rows must not split the reads of a page."""
    ds = table_of(numbers(NUM_ROWS)).delete("n0 < 0.1")
    ds = lance_stream.open_dataset(URI)
    service.clear()
    assert ds.to_table().num_rows == ds.count_rows()
    num_requests, num_bytes = gets(service)
    assert num_requests <= 3 * NUM_COLUMNS + NUM_FILES
    assert num_bytes < 1.15 * NUM_FILES * FILE_BYTES


def test_takes_keep_no_pages(service: ObjectService, cache_sizes: list[int]) -> None:
    """Random access rarely returns to a page, so caching whole pages would waste bytes
    and memory.
    """
    ds = table_of(numbers(NUM_ROWS))
    service.clear()
    ds.take(row_offsets=[5, NUM_ROWS // 2, 2 * NUM_ROWS + 7])
    assert cache_sizes == []
    assert gets(service)[1] < 0.7 * FILE_BYTES


def test_unrequested_blobs_are_not_fetched(service: ObjectService) -> None:
    """The bytes of blobs lie between the pages of other columns and are far larger."""
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), field])
    rows = pa.table([range(20), [bytes(1 << 18)] * 20], schema=schema)
    ds = table_of(rows, num_files=2)
    service.clear()
    for _ in ds.scan(["id"], batch_size=3):
        pass
    num_requests, num_bytes = gets(service)
    assert num_requests <= 4
    assert num_bytes < 150_000


def shapes() -> Iterator[tuple[str, pa.Table]]:
    dice = np.random.default_rng(3)
    count = 3000
    ends = pa.array(np.arange(0, 30 * count + 1, 30, dtype=np.int32))
    pairs = pa.StructArray.from_arrays(
        [dice.random(30 * count), dice.integers(0, 1 << 40, 30 * count)], names=["x", "y"]
    )
    parts = [pa.array(dice.random(count)) for _ in range(3)]
    yield (
        "nested",
        pa.table(
            {
                "s": pa.StructArray.from_arrays(parts, names=list("abc")),
                "l": pa.ListArray.from_arrays(ends, pairs),
            }
        ),
    )
    letters = pa.py_buffer(dice.integers(97, 123, 1024 * count, np.uint8))
    offsets = pa.py_buffer(np.arange(0, 1024 * count + 1, 1024, dtype=np.int32))
    yield "text", pa.table({"t": pa.StringArray.from_buffers(count, offsets, letters)})
    vectors = pa.FixedSizeListArray.from_arrays(dice.random(768 * count, np.float32), 768)
    yield "vectors", pa.table({"id": np.arange(count), "v": vectors})


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize(("name", "rows"), [*shapes()], ids=["nested", "text", "vectors"])
def test_nested_columns_cost_few_requests(
    service: ObjectService, version: str, name: str, rows: pa.Table
) -> None:
    """Strings, lists and structs have several buffers per page, which must be fetched together."""
    ds = table_of(rows, version, 2)
    service.clear()
    batches = list(ds.scan(batch_size=300))
    assert pa.Table.from_batches(batches).equals(pa.concat_tables([rows, rows]))
    assert len(batches) == 20
    num_requests, num_bytes = gets(service)
    stored = sum(len(data) for key, data in service.objects.items() if "/data/" in key)
    assert num_requests <= 2 + 2 * 8 + stored // (1 << 19), name
    assert num_bytes < 1.15 * stored


def test_wide_pages_are_read_in_parts(
    service: ObjectService, cache_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache stays within its limit, and nothing is read twice."""
    monkeypatch.setattr(page_cache, "WINDOW_BYTES", FILE_BYTES // 4)
    monkeypatch.setattr(reading_ahead, "MAX_WAITING_BYTES", FILE_BYTES // 8)
    rows = numbers(NUM_ROWS)
    ds = table_of(rows, num_files=2)
    service.clear()
    scanned = pa.Table.from_batches(ds.scan(batch_size=1500))
    assert scanned.equals(pa.concat_tables([rows, rows]))
    assert max(cache_sizes) <= 0.75 * FILE_BYTES
    assert gets(service)[1] < 1.2 * 2 * FILE_BYTES


# One file, without a table


class Bytes:
    """A file of ascending bytes that records the ranges that are read."""

    def __init__(self, size: int) -> None:
        self.data = (np.arange(size) % 251).astype(np.uint8).tobytes()
        self.requested: list[ByteRange] = []

    def __call__(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.requested += ranges
        return [memoryview(self.data)[span.start : span.stop] for span in ranges]


PAGE = StoredPage((ByteRange(4096, 6000), ByteRange(6016, 5_000_000)), 0, 1000)


def pages_of(file: Any, rows: CachedRows, *, is_first: bool = False) -> PagesOfFile:
    cache = PageCache()
    return PagesOfFile(cache, [([PAGE], False)], rows, file, is_first=is_first)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "rows", [CachedRows(0, 1000, 100), CachedRows(300, 700, 100), CachedRows(990, 1000, 1)]
)
def test_any_range_is_answered(
    rows: CachedRows, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range may cross parts of a page, and decoders rely on its alignment in memory."""
    monkeypatch.setattr(page_cache, "START_BYTES", 1 << 20)
    file = Bytes(5_100_000)
    pages = pages_of(file, rows, is_first=is_first)
    dice = np.random.default_rng(1)
    for _ in range(60):
        start = int(dice.integers(0, 5_099_000))
        ranges = [ByteRange(start, start + int(dice.integers(0, 900_000))), ByteRange(5, 9)]
        buffers = pages.read_ranges(ranges, 1)
        for span, data in zip(ranges, buffers, strict=True):
            assert bytes(data) == file.data[span.start : span.stop]
            if len(data):
                address = np.frombuffer(data, np.uint8).ctypes.data
                base = np.frombuffer(file.data, np.uint8).ctypes.data
                assert (address - span.start) % 8 in (0, base % 8)


def test_rows_far_apart_are_read_separately() -> None:
    """A single row of a large page does not justify fetching the whole page."""
    file = Bytes(5_100_000)
    pages = pages_of(file, CachedRows(0, 1000, 100))
    ranges = [ByteRange(10_000, 10_100)]
    pages.read_ranges(ranges, 500)
    assert file.requested == ranges
    pages.read_ranges(ranges, 2)
    assert file.requested == [*ranges, ByteRange(4096, 5_000_000)]


def test_overlapping_pages_bypass_the_cache() -> None:
    """Pages of damaged or foreign files may overlap, where the cache could not tell whose bytes it
    holds.
    """
    file = Bytes(5_100_000)
    pages = [PAGE, StoredPage((ByteRange(5000, 7000),), 0, 1000)]
    reader = PagesOfFile(
        PageCache(), [(pages, False)], CachedRows(0, 1000, 10), file, is_first=False
    )
    reader.read_ranges([ByteRange(5000, 5100)], 1)
    assert file.requested == [ByteRange(5000, 5100)]


def test_empty_ranges_fetch_nothing() -> None:
    """A decoder may request a buffer without bytes inside a page."""
    file = Bytes(5_100_000)
    pages = pages_of(file, CachedRows(0, 1000, 100))
    (data,) = pages.read_ranges([ByteRange(10_000, 10_000)], 1)
    assert bytes(data) == b""
    assert file.requested == [ByteRange(10_000, 10_000)]


def test_parts_end_with_large_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a part are estimated within a buffer: the next one starts with row 0 again."""
    monkeypatch.setattr(page_cache, "WINDOW_BYTES", 3 << 20)
    file = Bytes(6_100_000)
    second = ByteRange(3_000_320, 6_000_000)
    page = StoredPage((ByteRange(4096, 3_000_000), second), 0, 1000)
    reader = PagesOfFile(
        PageCache(), [([page], False)], CachedRows(0, 1000, 1000), file, is_first=False
    )
    reader.read_ranges([ByteRange(second.start, second.start + 10)], 1)
    assert [part.start for part in file.requested] == [second.start]


def test_concurrent_readers_fetch_parts_once() -> None:
    """Threads that wait for the same part must share one request."""
    file = Bytes(5_100_000)
    begun, go_on = threading.Event(), threading.Event()

    def slow(ranges: Sequence[ByteRange]) -> list[memoryview]:
        begun.set()
        assert go_on.wait(10)
        return file(ranges)

    pages = pages_of(slow, CachedRows(0, 1000, 100))
    buffers: list[bytes] = []

    def read() -> None:
        buffers.append(bytes(pages.read_ranges([ByteRange(10_000, 10_010)], 1)[0]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    go_on.set()
    for worker in threads:
        worker.join(10)
    assert buffers == [file.data[10_000:10_010]] * 4
    assert len(file.requested) == 1


def test_failed_parts_are_fetched_again() -> None:
    """A cached failure would outlive the network fault that caused it."""
    file = Bytes(5_100_000)
    failures = [OSError("no answer")]

    def failing(ranges: Sequence[ByteRange]) -> list[memoryview]:
        if failures:
            raise failures.pop()
        return file(ranges)

    pages = pages_of(failing, CachedRows(0, 1000, 100))
    with pytest.raises(OSError, match="no answer"):
        pages.read_ranges([ByteRange(10_000, 10_010)], 1)
    buffers = pages.read_ranges([ByteRange(10_000, 10_010)], 1)
    assert bytes(buffers[0]) == file.data[10_000:10_010]


def test_threads_splitting_pages_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread still sees that the filter matched everywhere, the other that it did not."""
    monkeypatch.setattr(page_cache, "START_BYTES", 1 << 20)
    file = Bytes(5_100_000)
    ranges = [ByteRange(4_000, 4_100), ByteRange(1_000_000, 4_900_000)]
    others: list[threading.Thread] = []
    buffers: list[list[bytes]] = []

    def read() -> None:
        buffers.append([bytes(span) for span in pages.read_ranges(ranges, 1)])

    class Changing(PageCache):
        """`matches_everywhere` is true for the first thread and false for the second."""

        @property
        def matches_everywhere(self) -> bool:
            if not others:
                others.append(threading.Thread(target=read))
                others[0].start()
                others[0].join(10)
                return False
            return True

    pages = PagesOfFile(
        Changing(), [([PAGE], False)], CachedRows(0, 1000, 100), file, is_first=False
    )
    read()
    read()
    assert buffers == [[file.data[span.start : span.stop] for span in ranges]] * 3
