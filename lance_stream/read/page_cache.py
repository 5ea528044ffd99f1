"""Pages that a scan of an object store fetches ahead, and keeps until its next batches need them.

A batch is often a part of each of its columns' pages: a page of 8 MiB has a million numbers, but a
batch of twenty such columns has two hundred thousand rows. Read by themselves, those parts are a
request for each column and batch. So the bytes that a batch needs are rounded up to *parts* of
pages, which are fetched once and kept for the next batches, whatever the columns' encodings:

    a page                one part, unless the pages under way are larger than `WINDOW_BYTES`
    the scan's first page a part for the first batch, and the rest: a scan that is ended after a
                          few rows has not fetched whole pages
    the other columns of a scan with a filter
                          likewise, if there were batches of which no rows, or few, matched

A scan keeps twice what is under way, besides what it is fetching; what was used least recently goes
first. Bytes outside of these pages are requested as they are, and so are rows so far apart that
what lies between them is not worth reading.
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
"""The pages of all columns that are under way at once are cut into parts of this total size."""

START_BYTES: Final = 32 << 20
"""The size of a scan's first parts of all columns, unless a batch needs more: a default batch's."""

REQUEST_BYTES: Final = 256 << 10
"""What arrives in about the time of a request: no part is smaller, nor a gap that is read along."""

_ALIGNMENT: Final = 4096

_PartKey: TypeAlias = tuple[object, int]
"""The name of a file, and where a part of it begins."""


class Rows(NamedTuple):
    """The rows of a file that a scan reads.

    Attributes:
        start: The first of them.
        stop: One past the last.
        in_batch: How many rows the largest batch spans.
    """

    start: int
    stop: int
    in_batch: int


class PageCache:
    """The parts of pages that one scan keeps; safe for several threads."""

    def __init__(self) -> None:
        self._parts: LRUCache[_PartKey, Future[Buffer]] = LRUCache(
            float("inf"), getsizeof=lambda fetch: len(fetch.result())
        )
        self._room = 0
        self._fetches: dict[_PartKey, Future[Buffer]] = {}
        self._finished: deque[object] = deque()
        self._lock = threading.Lock()
        self._matches_everywhere = True

    @property
    def matches_everywhere(self) -> bool:
        """Whether the scan's filter has matched rows all over each batch so far."""
        return self._matches_everywhere

    def note_filter(self, *, matches_everywhere: bool) -> None:
        """Note whether a filter has matched rows all over a batch."""
        self._matches_everywhere = self._matches_everywhere and matches_everywhere

    @property
    def num_bytes(self) -> int:
        """How much is kept."""
        return int(self._parts.currsize)

    def make_room(self, window_bytes: int) -> None:
        """Keep twice as much as is under way at once."""
        with self._lock:
            self._room = max(self._room, 2 * window_bytes)

    def fetch(
        self,
        owner: object,
        parts: Sequence[ByteRange],
        more: Sequence[ByteRange],
        read_ranges: ReadRanges,
    ) -> tuple[list[Buffer], Sequence[Any]]:
        """Return the bytes of some parts, and of ranges that are not kept: one call at most.

        Args:
            owner: The name of the file whose parts these are.
            parts: The parts.
            more: The ranges.
            read_ranges: Reads what is not kept and not being fetched by another thread.
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
        """Keep nothing more of a file, from the next call of `fetch` on.

        Takes no lock: the garbage collector may call it anywhere.
        """
        self._finished.append(owner)

    def _finish(self, keys: Sequence[_PartKey], answers: Sequence[Any]) -> None:
        """Keep parts that were fetched, and drop what was used least recently.

        Args:
            keys: The parts.
            answers: The bytes of each; nothing if the request has failed.
        """
        with self._lock:
            fetches = {key: self._fetches.pop(key) for key in keys}
            for (key, fetch), data in zip(fetches.items(), answers, strict=False):
                fetch.set_result(memoryview(data))
                self._parts[key] = fetch
            for fetch in fetches.values():
                fetch.cancel()  # of no effect if it has a result
            while self._parts.currsize > self._room:
                self._parts.popitem()

    def _drop_finished_files(self) -> None:
        while self._finished:
            owner = self._finished.popleft()
            for key in [part_key for part_key in self._parts if part_key[0] is owner]:
                del self._parts[key]


def _bytes_of(fetch: "Future[Buffer]", part: ByteRange, read_ranges: ReadRanges) -> Buffer:
    try:
        return fetch.result()
    except CancelledError:  # the thread that fetched it has failed, and raises its own error
        (data,) = read_ranges([part])
        return memoryview(data)


class PagesOfFile:
    """Reads bytes of a file by way of the pages that a scan keeps.

    Args:
        cache: The scan's.
        columns: The pages of each column that is read, and whether it is one of the filter's.
        rows: Those that are read of the file.
        read_ranges: Reads bytes of the file itself.
        is_first: Whether the scan begins with this file.

    Attributes:
        name: What the cache calls the file.
    """

    def __init__(
        self,
        cache: PageCache,
        columns: Sequence[tuple[Sequence[StoredPage], bool]],
        rows: Rows,
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
            pages = []  # of a damaged file nothing is fetched ahead
        self._pages = pages
        self._starts = [page.start for page, _ in pages]
        self._parts: dict[int, list[ByteRange]] = {}
        cache.make_room(min(window, WINDOW_BYTES))

    def read_ranges(self, ranges: Sequence[ByteRange], rows_apart: float) -> Sequence[Any]:
        """Return the bytes of some ranges.

        Args:
            ranges: As decoders ask for them.
            rows_apart: How far the rows lie apart for which they are; 1 if no row is left out.
        """
        needed = [self._parts_for(span, rows_apart) for span in ranges]
        positions = dict.fromkeys(part for parts in needed for part in parts)
        more = [span for span, parts in zip(ranges, needed, strict=True) if not parts]
        if not positions:
            return self._read_ranges(ranges)
        fetched, rest = self._cache.fetch(self.name, list(positions), more, self._read_ranges)
        data_of = dict(zip(positions, fetched, strict=True))
        others = iter(rest)
        return [
            _cut(target, [(part, data_of[part]) for part in parts]) if parts else next(others)
            for target, parts in zip(ranges, needed, strict=True)
        ]

    def _parts_for(self, span: ByteRange, rows_apart: float) -> list[ByteRange]:
        """Return the parts that hold a range; none if it is to be read by itself."""
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
            # once: of two threads that cut it at a time, both take what the first one made
            self._parts.setdefault(index, self._cut_page(page, starts_small=starts_small))
        parts = self._parts[index]
        first = bisect_right(parts, span.start, key=lambda part: part.start) - 1
        last = bisect_right(parts, span.stop - 1, key=lambda part: part.start) - 1
        if first < 0 or span.stop > parts[last].stop:
            return []
        return parts[first : last + 1]

    def _cut_page(self, page: StoredPage, *, starts_small: bool) -> list[ByteRange]:
        """Return the parts of a page, in order."""
        num_rows = max(page.stop_row - page.first_row, 1)
        begin = max(self._rows.start - page.first_row, 0) / num_rows
        end = min(self._rows.stop - page.first_row, num_rows) / num_rows
        first_share = share = self._share
        if starts_small:
            start = max(self._start, self._rows.in_batch / num_rows)
            if 2 * start <= share:  # else the rest is too little for another request
                first_share = start
        if first_share == 1 and (begin, end) == (0, 1):
            return [ByteRange(page.start, page.stop)]
        return [
            part
            for extent in _extents(page)
            for part in _cut_extent(extent, begin, end, first_share, share)
        ]


def _cut_extent(
    extent: ByteRange, begin: float, end: float, first_share: float, share: float
) -> list[ByteRange]:
    """Return the parts of a buffer, of which the rows asked for are from `begin` to `end`.

    Where each row is stored is only estimated: outside of what is asked for parts are as small as
    can be.
    """
    size = extent.size_bytes
    low, high = int(begin * size), int(end * size)
    largest = max(share * size, REQUEST_BYTES)
    step = min(first_share * size + REQUEST_BYTES, largest) if first_share < share else largest
    bounds = [*range(0, low, REQUEST_BYTES)]
    at = float(low)
    while at < high:
        bounds.append(int(at))
        at += step
        step = largest
        if high - at < REQUEST_BYTES:
            break
    bounds += range(high, size, REQUEST_BYTES)
    return _aligned([extent.start + bound for bound in bounds], extent)


def _extents(page: StoredPage) -> list[ByteRange]:
    """Return the buffers of a page, small ones with what follows them."""
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


def _aligned(bounds: Sequence[int], extent: ByteRange) -> list[ByteRange]:
    """Return the ranges between some bounds, moved to multiples of a block of the file."""
    inside = {bound - bound % _ALIGNMENT for bound in bounds}
    ends = sorted(bound for bound in inside if extent.start < bound < extent.stop)
    return [
        ByteRange(*ends_of_part) for ends_of_part in pairwise([extent.start, *ends, extent.stop])
    ]


def _cut(span: ByteRange, parts: Sequence[tuple[ByteRange, Buffer]]) -> Buffer:
    """Return the bytes of a range out of the parts that hold it; short where they are short."""
    pieces = [
        data[max(span.start - part.start, 0) : span.stop - part.start] for part, data in parts
    ]
    if len(pieces) == 1:
        return pieces[0]
    total = sum(map(len, pieces))
    # decoders want as many bytes before a multiple of 8 in memory as in the file
    shift = span.start % 8
    joined = memoryview(pa.allocate_buffer(total + shift)).cast("B")
    done = shift
    for piece in pieces:
        joined[done : done + len(piece)] = piece
        done += len(piece)
    return joined[shift:].toreadonly()
