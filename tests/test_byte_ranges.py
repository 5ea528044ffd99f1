import pytest

from lance_stream.byte_ranges import ByteRange, ByteRequests, answer, read_from, read_together
from lance_stream.errors import CorruptDataError

DATA = bytes(range(100))


def follow_pointer(start: int) -> ByteRequests[int]:
    """Read a byte, then the byte that it points to."""
    (first,) = yield [ByteRange(start, start + 1)]
    (second,) = yield [ByteRange(first[0], first[0] + 1)]
    return second[0]


def read_nothing() -> ByteRequests[str]:
    return "nothing asked"
    yield []


def test_generators_are_answered_in_rounds() -> None:
    """Decoders ask for bytes that depend on earlier bytes, without knowing who reads."""
    assert answer(follow_pointer(7), read_from(DATA)) == 7


def test_no_request_means_no_read() -> None:
    """A column whose pages are all constant must cost no request."""

    def refuse(_: object) -> list[bytes]:
        raise AssertionError("nothing should be read")

    assert answer(read_nothing(), refuse) == "nothing asked"


def test_parallel_generators_share_their_rounds() -> None:
    """Together they take as many rounds as the longest of them."""
    rounds: list[int] = []

    def counted(ranges: object) -> object:
        rounds.append(len(ranges))
        return read_from(DATA)(ranges)

    askings = [follow_pointer(3), read_nothing(), follow_pointer(9)]
    assert answer(read_together(askings), counted) == [3, "nothing asked", 9]
    assert rounds == [2, 2]


def test_too_short_answers_are_corrupt_data() -> None:
    """A truncated file must not reach a decoder as a short buffer."""
    with pytest.raises(
        CorruptDataError, match="bytes 100 to 101 were requested, but there are only 0"
    ):
        answer(follow_pointer(100), read_from(DATA))


def test_errors_in_one_generator_close_others() -> None:
    """Generators may hold files or threads, which an abandoned one would keep."""
    closed = []

    def waits() -> ByteRequests[None]:
        try:
            yield [ByteRange(0, 1)]
            yield [ByteRange(0, 1)]
        finally:
            closed.append(True)

    def fails() -> ByteRequests[None]:
        yield [ByteRange(0, 1)]
        raise CorruptDataError("bad")

    with pytest.raises(CorruptDataError, match="bad"):
        answer(read_together([waits(), fails()]), read_from(DATA))
    assert closed == [True]


def test_any_buffer_is_passed_as_bytes() -> None:
    """Lengths are counted in bytes, and a buffer of wider items would count otherwise."""

    def asks() -> ByteRequests[int]:
        (buffer,) = yield [ByteRange(0, 8)]
        return len(buffer)

    assert answer(asks(), lambda _: [memoryview(bytes(8)).cast("q")]) == 8
