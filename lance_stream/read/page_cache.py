"""Caches pages between the batches of a scan of an object store.

A batch often needs a part of each column's page only: a page of 8 MiB has a million numbers, but a
batch of twenty such columns has 200,000 rows. Without a cache, each column and batch would cost a
request. So the bytes that a batch needs are rounded up to *parts* of pages, which are fetched once
and cached for the next batches, whatever the columns' encodings:

    most pages                  one part, unless the pages that a batch of all columns touches are
                                larger than `WINDOW_BYTES` in total
    the scan's first pages      a part for the first batch, and the rest, so that a scan that ends
                                after a few rows does not fetch whole pages
    pages of the other columns
    of a scan with a filter     the same, if few or no rows matched in some batches

The size of the cache is twice that of the pages that a batch touches, plus the parts that are being
fetched; the least recently used parts are evicted first. Bytes outside of these pages are requested
separately, and so are rows so far apart that the bytes between them are not worth reading.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from cachetools import LRUCache

from lance_stream.byte_ranges import Buffer, ByteRange, ReadRanges
from lance_stream.file.metadata.stored_pages import StoredPage

WINDOW_BYTES: Final = 128 << 20
"""The maximum total size of the parts, one of each column, that a batch touches."""

START_BYTES: Final = 32 << 20
"""The total size of a scan's first parts, unless a batch needs more: that of a default batch."""

REQUEST_BYTES: Final = 256 << 10
"""The bytes that are transferred in about the latency of a request: the minimum size of a part,
and the maximum gap between rows that is read as well."""

_ALIGNMENT: Final = 4096

_PartKey: TypeAlias = tuple[object, int]
"""The name of a file, and the offset of a part of it."""


class CachedRows(NamedTuple):
    """The rows of a file that a scan reads.

    Attributes:
        start: The first row.
        stop: One past the last row.
        in_batch: The maximum number of rows that a batch spans.
    """

    start: int
    stop: int
    in_batch: int


class PageCache:
    """The cached parts of pages of one scan; thread-safe."""

    def __init__(self) -> None:
        self._parts: LRUCache[_PartKey, Future[Buffer]] = LRUCache(
            float("inf"), getsizeof=lambda fetch: len(fetch.result())
        )
        self._capacity = 0
        self._fetches: dict[_PartKey, Future[Buffer]] = {}
        self._finished: deque[object] = deque()
        self._lock = threading.Lock()
        self._matches_everywhere = True

    @property
    def matches_everywhere(self) -> bool:
        """Whether the rows that matched the filter were spread over each batch so far."""
        return self._matches_everywhere

    def record_filter_result(self, *, matches_everywhere: bool) -> None:
        """Record whether the rows that matched the filter were spread over a batch."""
        self._matches_everywhere = self._matches_everywhere and matches_everywhere

    @property
    def num_bytes(self) -> int:
        """The size of the cached parts in bytes."""
        return int(self._parts.currsize)

    def grow(self, window_bytes: int) -> None:
        """Increase the capacity to twice the size of the pages that a batch touches."""
        with self._lock:
            self._capacity = max(self._capacity, 2 * window_bytes)

    def fetch(
        self,
        owner: object,
        parts: Sequence[ByteRange],
        more: Sequence[ByteRange],
        read_ranges: ReadRanges,
    ) -> tuple[list[Buffer], Sequence[Any]]:
        """Return the bytes of parts, and of other ranges, with at most one call of `read_ranges`.

        Args:
            owner: The name of the file.
            parts: Parts of its pages, which are cached.
            more: Ranges that are not cached.
            read_ranges: Reads the ranges, and the parts that are neither cached nor being fetched
                by another thread.
        """
        new: dict[_PartKey, ByteRange] = {}
        fetches: list[Future[Buffer]] = []
        with self._lock:
            self._drop_finished_files()
            for part in parts:
                key = (owner, part.start)
                fetch = self._parts.get(key) or self._fetches.get(key)
                if fetch is None:
                    fetch = self._fetches[key] = Future()
                    new[key] = part
                fetches.append(fetch)
        answers: Sequence[Any] = ()
        try:
            if new or more:
                answers = read_ranges([*new.values(), *more])
        finally:
            self._finish(list(new), answers)
        data = [
            _bytes_of(fetch, part, read_ranges) for fetch, part in zip(fetches, parts, strict=True)
        ]
        return data, answers[len(new) :]

    def forget(self, owner: object) -> None:
        """Drop a file's parts with the next call of `fetch`.

        Takes no lock, because the garbage collector may call it anywhere.
        """
        self._finished.append(owner)

    def _finish(self, keys: Sequence[_PartKey], answers: Sequence[Any]) -> None:
        """Cache parts that were fetched, and evict the least recently used ones.

        Args:
            keys: The parts.
            answers: Their bytes; empty if the request has failed.
        """
        with self._lock:
            fetches = {key: self._fetches.pop(key) for key in keys}
            for (key, fetch), data in zip(fetches.items(), answers, strict=False):
                fetch.set_result(memoryview(data))
                self._parts[key] = fetch
            for fetch in fetches.values():
                fetch.cancel()  # has no effect on a finished fetch
            while self._parts.currsize > self._capacity:
                self._parts.popitem()

    def _drop_finished_files(self) -> None:
        while self._finished:
            owner = self._finished.popleft()
            for key in [part_key for part_key in self._parts if part_key[0] is owner]:
                del self._parts[key]


def _bytes_of(fetch: "Future[Buffer]", part: ByteRange, read_ranges: ReadRanges) -> Buffer:
    try:
        return fetch.result()
    except CancelledError:  # the request of another thread failed, and that raises its own error
        (data,) = read_ranges([part])
        return memoryview(data)


class PagesOfFile:
    """Reads bytes of a file through the scan's cache of pages.

    Args:
        cache: The scan's cache.
        columns: The pages of each column that is read, and whether the filter names the column.
        rows: The rows that the scan reads.
        read_ranges: Reads bytes of the file.
        is_first: Whether the scan starts with this file.

    Attributes:
        name: The name of the file in the cache.
    """

    def __init__(
        self,
        cache: PageCache,
        columns: Sequence[tuple[Sequence[StoredPage], bool]],
        rows: CachedRows,
        read_ranges: ReadRanges,
        *,
        is_first: bool,
    ) -> None:
        self._cache = cache
        self.name = object()
        self._rows = rows
        self._read_ranges = read_ranges
        window = sum(
            max((page.stop - page.start for page in pages), default=0) for pages, _ in columns
        )
        self._share = min(1.0, WINDOW_BYTES / max(window, 1))
        self._start = START_BYTES / max(window, 1)
        self._is_first = is_first
        pages = sorted(
            (
                (page, is_of_filter)
                for pages, is_of_filter in columns
                for page in pages
                if page.first_row < rows.stop and page.stop_row > rows.start
            ),
            key=lambda pair: pair[0].start,
        )
        if any(one.stop > other.start for (one, _), (other, _) in pairwise(pages)):
            pages = []  # a damaged file is read without the cache
        self._pages = pages
        self._starts = [page.start for page, _ in pages]
        self._parts: dict[int, list[ByteRange]] = {}
        cache.grow(min(window, WINDOW_BYTES))

    def read_ranges(self, ranges: Sequence[ByteRange], rows_apart: float) -> Sequence[Any]:
        """Return the bytes of ranges.

        Args:
            ranges: The ranges that decoders request.
            rows_apart: The average distance of the requested rows; 1 if all rows are read.
        """
        parts_by_range = [self._parts_for(span, rows_apart) for span in ranges]
        distinct_parts = dict.fromkeys(part for parts in parts_by_range for part in parts)
        more = [span for span, parts in zip(ranges, parts_by_range, strict=True) if not parts]
        if not distinct_parts:
            return self._read_ranges(ranges)
        fetched, rest = self._cache.fetch(self.name, list(distinct_parts), more, self._read_ranges)
        data_of = dict(zip(distinct_parts, fetched, strict=True))
        others = iter(rest)
        return [
            _slice(target, [(part, data_of[part]) for part in parts]) if parts else next(others)
            for target, parts in zip(ranges, parts_by_range, strict=True)
        ]

    def _parts_for(self, span: ByteRange, rows_apart: float) -> list[ByteRange]:
        """Return the parts that contain a range; none if it is to be read separately."""
        index = bisect_right(self._starts, span.start) - 1
        if index < 0 or span.size_bytes == 0 or span.stop > self._pages[index][0].stop:
            return []
        page, is_of_filter = self._pages[index]
        if rows_apart > 1:
            row_bytes = (page.stop - page.start) / max(page.stop_row - page.first_row, 1)
            if row_bytes * rows_apart > REQUEST_BYTES:
                return []
        if index not in self._parts:
            is_first = self._is_first and page.first_row <= self._rows.start
            starts_small = not is_of_filter and (is_first or not self._cache.matches_everywhere)
            # `setdefault` is atomic: if two threads split a page, both use the parts of the first.
            self._parts.setdefault(index, self._split_page(page, starts_small=starts_small))
        parts = self._parts[index]
        first = bisect_right(parts, span.start, key=lambda part: part.start) - 1
        last = bisect_right(parts, span.stop - 1, key=lambda part: part.start) - 1
        return parts[first : last + 1]

    def _split_page(self, page: StoredPage, *, starts_small: bool) -> list[ByteRange]:
        """Return the parts of a page, in order."""
        num_rows = max(page.stop_row - page.first_row, 1)
        begin = max(self._rows.start - page.first_row, 0) / num_rows
        end = min(self._rows.stop - page.first_row, num_rows) / num_rows
        first_share = share = self._share
        if starts_small:
            start = max(self._start, self._rows.in_batch / num_rows)
            if 2 * start <= share:  # otherwise the rest is too small for another request
                first_share = start
        if first_share == 1 and (begin, end) == (0, 1):
            return [ByteRange(page.start, page.stop)]
        return [
            part
            for extent in _extents(page)
            for part in _split_extent(extent, begin, end, first_share, share)
        ]


def _split_extent(
    extent: ByteRange, begin: float, end: float, first_share: float, share: float
) -> list[ByteRange]:
    """Return the parts of a range of bytes, in order.

    Args:
        extent: The range: one or more buffers of a page.
        begin: The start of the requested rows in it, from 0 to 1. This is an estimate, so the bytes
            before and after are split into the smallest parts possible.
        end: The end of the requested rows.
        first_share: The size of the first part of the requested rows, relative to the extent.
        share: The size of the other parts.
    """
    size = extent.size_bytes
    low, high = int(begin * size), int(end * size)
    largest = max(share * size, REQUEST_BYTES)
    step = min(first_share * size + REQUEST_BYTES, largest) if first_share < share else largest
    bounds = [*range(0, low, REQUEST_BYTES)]
    bound = float(low)
    while bound < high:
        bounds.append(int(bound))
        bound += step
        step = largest
        if high - bound < REQUEST_BYTES:
            break
    bounds += range(high, size, REQUEST_BYTES)
    return _aligned_ranges([extent.start + offset for offset in bounds], extent)


def _extents(page: StoredPage) -> list[ByteRange]:
    """Return the buffers of a page, small ones joined with the next one."""
    extents: list[ByteRange] = []
    start = page.start
    for buffer, after in pairwise((*page.buffers, None)):
        assert buffer is not None
        if after is None:
            extents.append(ByteRange(start, page.stop))
        elif buffer.stop - start >= REQUEST_BYTES:
            extents.append(ByteRange(start, after.start))
            start = after.start
    return extents


def _aligned_ranges(bounds: Sequence[int], extent: ByteRange) -> list[ByteRange]:
    """Return the ranges between bounds, rounded down to multiples of `_ALIGNMENT`."""
    inside = {bound - bound % _ALIGNMENT for bound in bounds}
    ends = sorted(bound for bound in inside if extent.start < bound < extent.stop)
    return [
        ByteRange(*ends_of_part) for ends_of_part in pairwise([extent.start, *ends, extent.stop])
    ]


def _slice(span: ByteRange, parts: Sequence[tuple[ByteRange, Buffer]]) -> Buffer:
    """Return the bytes of a range from the parts that contain it; fewer if those are short."""
    pieces = [
        data[max(span.start - part.start, 0) : span.stop - part.start] for part, data in parts
    ]
    if len(pieces) == 1:
        return pieces[0]
    total = sum(map(len, pieces))
    # Decoders require the same alignment to 8 bytes in memory as in the file.
    shift = span.start % 8
    joined = memoryview(pa.allocate_buffer(total + shift)).cast("B")
    position = shift
    for piece in pieces:
        joined[position : position + len(piece)] = piece
        position += len(piece)
    return joined[shift:].toreadonly()
