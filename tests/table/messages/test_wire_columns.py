import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.table.messages import wire
from lance_stream.table.messages.wire_columns import Spans, WalkedFields, short_frames, walk

NUMBERS = st.integers(0, (1 << 64) - 1)


def varint(number: int, value: int) -> bytes:
    return wire.encode_varint(number << 3) + wire.encode_varint(value)


FIELDS = st.one_of(
    st.builds(varint, st.integers(1, 15), NUMBERS),
    st.builds(wire.frame, st.integers(4, 15), st.binary(max_size=200)),
    st.builds(lambda value: b"\x29" + value, st.binary(min_size=8, max_size=8)),
    st.builds(lambda value: b"\x2d" + value, st.binary(min_size=4, max_size=4)),
)


def walk_all(messages: list[bytes]) -> WalkedFields:
    sizes = np.array([len(message) for message in messages], np.int64)
    stops = np.cumsum(sizes)
    data = np.frombuffer(b"".join(messages), np.uint8)
    return walk(data, Spans(stops - sizes, stops), (1, 2), (3,))


@given(st.lists(st.lists(FIELDS, max_size=6).map(b"".join), max_size=20))
@settings(deadline=None, max_examples=50)
def test_walking_columns_agrees_with_each_message(messages: list[bytes]) -> None:
    """The numpy walk over many messages replaces a loop, and the plain reader is the judge."""
    walked = walk_all(messages)
    assert not walked.is_odd.any()
    for index, message in enumerate(messages):
        stated = {1: 0, 2: 0}
        for number, wire_type, _, value_start, _ in wire.split_message(message):
            if number in stated and wire_type == wire.VARINT:
                stated[number], _ = wire.read_varint(message, value_start)
        assert {number: int(column[index]) for number, column in walked.numbers.items()} == stated


def test_embedded_messages_are_found_in_place() -> None:
    """Nested messages are read later, from the same bytes."""
    messages = [b"", wire.frame(3, b""), varint(1, 9) + wire.frame(3, b"x" * 300) + varint(2, 1)]
    spans = walk_all(messages).spans[3]
    assert spans.starts.tolist() == [-1, 2, 2 + 2 + 3]
    assert (spans.stops - spans.starts).tolist() == [0, 0, 300]


@pytest.mark.parametrize(
    "odd",
    [
        b"\x08",
        b"\x08\x80",
        b"\x08" + b"\xff" * 9 + b"\x02",
        b"\x08" + b"\x80" * 10 + b"\x00",
        b"\x12\x05abc",
        b"\x12" + b"\xff" * 9 + b"\x01",
        b"\x29abc",
        b"\x2dabc",
        b"\x00\x00",
        b"\x0b\x0c",
        b"\x0f",
        b"\xff",
        varint(16, 1),
        wire.frame(3, b"") * 2,
        varint(2, 1) + varint(1, 1) + b"\x08",
        (varint(2, 1) + varint(1, 1)) * 33,
    ],
)
def test_odd_messages_do_not_affect_neighbours(odd: bytes) -> None:
    """One unusual message must not shift the reading of the others."""
    plain = varint(1, 1 << 40) + varint(2, 7)
    walked = walk_all([plain, odd, plain, odd])
    assert walked.is_odd.tolist() == [False, True, False, True]
    assert walked.numbers[1][[0, 2]].tolist() == [1 << 40] * 2
    assert walked.numbers[2][[0, 2]].tolist() == [7] * 2


@given(st.lists(st.binary(max_size=40), max_size=10))
@settings(deadline=None)
def test_any_bytes_are_plain_or_odd(messages: list[bytes]) -> None:
    """A message that counts as plain must be one that the plain reader accepts."""
    walked = walk_all([*messages, varint(1, 5)])
    assert len(walked.is_odd) == len(messages) + 1
    assert int(walked.numbers[1][-1]) == 5
    for message, is_odd in zip(messages, walked.is_odd, strict=False):
        if not is_odd:
            wire.split_message(message)


@pytest.mark.parametrize(
    ("data", "spans"),
    [
        (b"", []),
        (wire.frame(1, b""), [(2, 2)]),
        (
            wire.frame(1, b"abc") + wire.frame(1, b"") + wire.frame(1, b"d"),
            [(2, 5), (7, 7), (9, 10)],
        ),
        (wire.frame(1, b"x" * 127), [(2, 129)]),
        (wire.frame(1, b"x" * 128), None),
        (wire.frame(1, b"x") + wire.frame(2, b"x"), None),
        (wire.frame(1, b"x") + wire.frame(1, b"x" * 128), None),
        (wire.frame(1, b"x") + b"\x0a", None),
        (b"\x0a", None),
        (wire.frame(1, b"xyz")[:-1], None),
        (b"\x0a\x80\x01" + b"x" * 128, None),
    ],
)
def test_short_frames_are_found(data: bytes, spans: list[tuple[int, int]] | None) -> None:
    """Sequences of runs are read at once if they have this form, and run by run otherwise."""
    frames = short_frames(data, 1)
    if frames is None:
        assert spans is None
    else:
        assert list(zip(*(part.tolist() for part in frames), strict=True)) == spans
