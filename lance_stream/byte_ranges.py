"""Byte ranges: how pure code requests bytes.

A decoder that needs bytes is a generator: it yields a list of byte ranges (one *round* of
requests) and is sent a list of buffers of the same length and order. It touches no file. One
small driver, `answer`, feeds it from whatever holds the bytes: a file, an object store, or a
literal in a test.

    def decode_header(size_bytes: int) -> Asking[Header]:
        (tail,) = yield [ByteRange(size_bytes - 16, size_bytes)]
        return parse_header(tail)

Several such generators run in step with `read_together`: the ranges of all of them go out in one
round, so that reading a hundred columns costs as many rounds as reading one. The number of
rounds is deterministic, and therefore a plain assertion in tests.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from lance_stream.errors import CorruptDataError

T = TypeVar("T")


class ByteRange(NamedTuple):
    """The bytes from `start` up to but not including `stop`."""

    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the range."""
        return self.stop - self.start


Buffer: TypeAlias = memoryview
Asking: TypeAlias = Generator[list[ByteRange], list[Buffer], T]
ReadRanges: TypeAlias = Callable[[Sequence[ByteRange]], Sequence[Any]]


def answer(asking: Asking[T], read_ranges: ReadRanges) -> T:
    """Run a generator that asks for byte ranges to its end.

    Args:
        asking: The generator.
        read_ranges: Gives one bytes-like object for each range, in order. A range that ends
            past the end of the file may be answered short.

    Returns:
        What the generator returns.

    Raises:
        CorruptDataError: An answer is shorter than its range: the file is cut short, or an offset
            stored in it is wrong.
    """
    try:
        ranges = next(asking)
        while True:
            buffers = [_as_bytes_view(span) for span in read_ranges(ranges)] if ranges else []
            for target, buffer in zip(ranges, buffers, strict=True):
                if len(buffer) != target.size_bytes:
                    raise CorruptDataError(
                        f"bytes {target.start} to {target.stop} were asked for, but only "
                        f"{len(buffer)} are there: the file is cut short or damaged"
                    )
            ranges = asking.send(buffers)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        asking.close()


def read_together(askings: Sequence[Asking[T]]) -> Asking[list[T]]:
    """Run several generators in step: each round asks for the ranges of all of them.

    Returns:
        Their results, in the order of `askings`.
    """
    if len(askings) == 1:
        return [(yield from askings[0])]
    results: dict[int, T] = {}
    requests: dict[int, list[ByteRange]] = {}

    def advance(index: int, buffers: list[Buffer] | None) -> None:
        try:
            if buffers is None:
                requests[index] = next(askings[index])
            else:
                requests[index] = askings[index].send(buffers)
        except StopIteration as stop:
            requests.pop(index, None)
            results[index] = stop.value

    try:
        for index in range(len(askings)):
            advance(index, None)
        while requests:
            running = list(requests.items())
            buffers = yield [span for _, ranges in running for span in ranges]
            num_sent = 0
            for index, ranges in running:
                advance(index, buffers[num_sent : num_sent + len(ranges)])
                num_sent += len(ranges)
    finally:
        for asking in askings:
            asking.close()
    return [results[index] for index in range(len(askings))]


def read_from(data: bytes | memoryview) -> ReadRanges:
    """Return a reader of ranges over bytes in memory, for tests and for cached file ends."""
    view = memoryview(data)
    return lambda ranges: [view[span.start : span.stop] for span in ranges]


def _as_bytes_view(data: Any) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
