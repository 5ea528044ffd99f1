"""Byte ranges: how pure code requests bytes.

A decoder that needs bytes is a generator: it yields a list of byte ranges (one *round* of
requests) and is sent a list of buffers of the same length and order. It touches no file. One
small driver, `answer`, serves it from any source of bytes: a file, an object store, or a literal
in a test.

    def decode_header(size_bytes: int) -> ByteRequests[Header]:
        (tail,) = yield [ByteRange(size_bytes - 16, size_bytes)]
        return parse_header(tail)

`read_together` runs several such generators in step: one round contains the ranges of all of them,
so reading a hundred columns takes as many rounds as reading one. The number of rounds is
deterministic, so tests can assert it.
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
ByteRequests: TypeAlias = Generator[list[ByteRange], list[Buffer], T]
ReadRanges: TypeAlias = Callable[[Sequence[ByteRange]], Sequence[Any]]


def answer(requests: ByteRequests[T], read_ranges: ReadRanges) -> T:
    """Run a generator that requests bytes, and return its result.

    Args:
        requests: The generator.
        read_ranges: Returns one bytes-like object for each range, in order. It may be shorter if
            the range ends beyond the end of the file.

    Raises:
        CorruptDataError: A range ends beyond the end of the file: the file is truncated, or an
            offset stored in it is wrong.
    """
    try:
        ranges = next(requests)
        while True:
            buffers = [_as_bytes_view(span) for span in read_ranges(ranges)] if ranges else []
            for target, buffer in zip(ranges, buffers, strict=True):
                if len(buffer) != target.size_bytes:
                    raise CorruptDataError(
                        f"bytes {target.start} to {target.stop} were requested, but there are only "
                        f"{len(buffer)}: the file is truncated or damaged"
                    )
            ranges = requests.send(buffers)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        requests.close()


def read_together(readers: Sequence[ByteRequests[T]]) -> ByteRequests[list[T]]:
    """Run several generators in step: each round requests the ranges of all of them.

    Returns:
        Their results, in the order of `readers`.
    """
    if len(readers) == 1:
        return [(yield from readers[0])]
    results: dict[int, T] = {}
    pending: dict[int, list[ByteRange]] = {}

    def advance(index: int, buffers: list[Buffer] | None) -> None:
        try:
            if buffers is None:
                pending[index] = next(readers[index])
            else:
                pending[index] = readers[index].send(buffers)
        except StopIteration as stop:
            pending.pop(index, None)
            results[index] = stop.value

    try:
        for index in range(len(readers)):
            advance(index, None)
        while pending:
            running = list(pending.items())
            buffers = yield [span for _, ranges in running for span in ranges]
            num_sent = 0
            for index, ranges in running:
                advance(index, buffers[num_sent : num_sent + len(ranges)])
                num_sent += len(ranges)
    finally:
        for reader in readers:
            reader.close()
    return [results[index] for index in range(len(readers))]


def read_from(data: bytes | memoryview) -> ReadRanges:
    """Return a function that reads ranges of bytes in memory: in tests, or of a cached file end."""
    view = memoryview(data)
    return lambda ranges: [view[span.start : span.stop] for span in ranges]


def _as_bytes_view(data: Any) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
