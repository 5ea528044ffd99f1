"""Pages that a scan of an object store fetches ahead, and keeps until its next batches need them.

A batch is often a part of each of its columns' pages: a page of 8 MiB has a million numbers, but a
batch of twenty such columns has two hundred thousand rows. Read by themselves, those parts are a
request for each column and batch. So the bytes that a batch needs are rounded up to *parts* of
pages, which are fetched once and kept for the next batches, whatever the columns' encodings:

    a page                one part, unless the pages under way are larger than `WINDOW_BYTES`
    the scan's first page a part for the first batch, and parts that grow: a scan that is ended
                          after a few rows has not fetched whole pages
    the other columns of a scan with a filter
                          likewise, if there were batches of which no rows, or few, matched

A scan keeps twice what is under way, at most `MAX_CACHED_BYTES`, and what it is fetching; what was
used least recently goes first. Bytes outside of these pages are requested as they are, and so are
rows so far apart that what lies between them is not worth reading.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lance_stream.byte_ranges import Buffer, ByteRange, ReadRanges
from lance_stream.file.metadata.stored_pages import StoredPage

MAX_CACHED_BYTES: Final = 256 << 20
"""The most that a scan keeps of its pages, besides what its threads are fetching."""

WINDOW_BYTES: Final = MAX_CACHED_BYTES // 2
"""The pages of all columns that are under way at once are cut into parts of this total size."""

START_BYTES: Final = 32 << 20
"""The size of a scan's first parts of all columns, unless a batch needs more: a default batch's."""

LEAST_PART_BYTES: Final = 256 << 10
"""No part is smaller: it takes about as long as a request."""

MOST_OF_A_PAGE: Final = 0.75
"""If a first part would be this much of a page, the rest is not left for another request."""

GROWTH: Final = 8
"""How many times larger than the one before it each of the growing parts is."""

MAX_GAP_BYTES: Final = 256 << 10
"""Rows farther apart than this are read by themselves; nearer ones the store would join."""

_ALIGNMENT: Final = 4096


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


class _Part:
    """A part of a page that was fetched, or is being fetched."""

    def __init__(self, span: ByteRange) -> None:
        self.span = span
        self.is_done = threading.Event()
        self.data: Buffer | None = None


class PageCache:
    """The parts of pages that one scan keeps; safe for several threads."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[object, int], _Part] = OrderedDict()
        self._num_bytes = 0
        self._room = 0
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
        return self._num_bytes

    def make_room(self, window_bytes: int) -> None:
        """Keep twice as much as is under way at once."""
        with self._lock:
            self._room = max(self._room, min(2 * window_bytes, MAX_CACHED_BYTES))

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
        mine: list[_Part] = []
        cached: list[_Part] = []
        with self._lock:
            for span in parts:
                part = self._parts.get((owner, span.start))
                if part is None:
                    part = self._parts[owner, span.start] = _Part(span)
                    self._num_bytes += span.size_bytes
                    mine.append(part)
                else:
                    self._parts.move_to_end((owner, span.start))
                cached.append(part)
            self._leave_out_oldest()
        answers: Sequence[Any] = ()
        try:
            if mine or more:
                answers = read_ranges([*(part.span for part in mine), *more])
            for part, data in zip(mine, answers, strict=False):
                part.data = memoryview(data)
        finally:
            self._finish(owner, mine)
        return [self._bytes_of(part, read_ranges) for part in cached], answers[len(mine) :]

    def forget(self, owner: object) -> None:
        """Keep nothing more of a file, from the next call of `fetch` on.

        Takes no lock: the garbage collector may call it anywhere.
        """
        self._finished.append(owner)

    def _finish(self, owner: object, parts: Sequence[_Part]) -> None:
        with self._lock:
            for part in parts:
                key = (owner, part.span.start)
                if part.data is None and self._parts.get(key) is part:
                    del self._parts[key]
                    self._num_bytes -= part.span.size_bytes
        for part in parts:
            part.is_done.set()

    def _leave_out_oldest(self) -> None:
        while self._finished:
            owner = self._finished.popleft()
            for key in [part_key for part_key in self._parts if part_key[0] is owner]:
                self._num_bytes -= self._parts.pop(key).span.size_bytes
        for key, part in list(self._parts.items()):
            if self._num_bytes <= self._room:
                return
            if part.is_done.is_set():
                del self._parts[key]
                self._num_bytes -= part.span.size_bytes

    @staticmethod
    def _bytes_of(part: _Part, read_ranges: ReadRanges) -> Buffer:
        part.is_done.wait()
        if part.data is None:  # the thread that fetched it has failed; its error is its own
            (data,) = read_ranges([part.span])
            return memoryview(data)
        return part.data


class PagesOfFile:
    """Reads bytes of a file by way of the pages that a scan keeps.

    Args:
        cache: The scan's.
        columns: The pages of each column that is read, and whether it is one of the filter's.
        rows: Those that are read of the file.
        read_ranges: Reads bytes of the file itself.
        is_first: Whether the scan begins with this file.

    Attributes:
        name: What `kept` calls the file.
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
            if row_bytes * rows_apart > MAX_GAP_BYTES:
                return []
        if index not in self._parts:
            is_first = self._is_first and page.first_row <= self._rows.start
            grows = not is_of_filter and (is_first or not self._cache.matches_everywhere)
            # once: of two threads that cut it at a time, both take what the first one made
            self._parts.setdefault(index, self._cut_page(page, grows=grows))
        parts = self._parts[index]
        first = bisect_right(parts, span.start, key=lambda part: part.start) - 1
        last = bisect_right(parts, span.stop - 1, key=lambda part: part.start) - 1
        if first < 0 or span.stop > parts[last].stop:
            return []
        return parts[first : last + 1]

    def _cut_page(self, page: StoredPage, *, grows: bool) -> list[ByteRange]:
        """Return the parts of a page, in order."""
        num_rows = max(page.stop_row - page.first_row, 1)
        begin = max(self._rows.start - page.first_row, 0) / num_rows
        end = min(self._rows.stop - page.first_row, num_rows) / num_rows
        share = self._share
        if grows:
            first = max(self._start, self._rows.in_batch / num_rows)
            share = first if first < MOST_OF_A_PAGE * share else share
        if share == 1 and (begin, end) == (0, 1):
            return [ByteRange(page.start, page.stop)]
        return [
            part
            for extent in _extents(page)
            for part in _cut_extent(extent, begin, end, share, self._share)
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
    largest = max(share * size, LEAST_PART_BYTES)
    step = largest
    if first_share < share:
        step = min(first_share * size + LEAST_PART_BYTES, largest)
    bounds = [*range(0, low, LEAST_PART_BYTES)]
    at = float(low)
    while at < high:
        bounds.append(int(at))
        at += step
        step = min(GROWTH * step, largest)
        if high - at < LEAST_PART_BYTES:
            break
    bounds += range(high, size, LEAST_PART_BYTES)
    return _aligned([extent.start + bound for bound in bounds], extent)


def _extents(page: StoredPage) -> list[ByteRange]:
    """Return the buffers of a page, small ones with what follows them."""
    extents: list[ByteRange] = []
    start = page.start
    for buffer, after in pairwise((*page.buffers, None)):
        assert buffer is not None
        if after is None:
            extents.append(ByteRange(start, page.stop))
        elif buffer.stop - start >= LEAST_PART_BYTES:
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
