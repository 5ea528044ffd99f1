"""Long sequences are decoded once, and those that look alike are never confused."""

import pytest

from lance_stream.errors import CorruptDataError
from lance_stream.table.lineage.decoded_sequences import DecodedSequences

LONG = bytes(range(256)) * 4


class Decoder:
    """Counts the sequences that it decodes."""

    def __init__(self) -> None:
        self.num_decoded = 0

    def __call__(self, data: bytes) -> list[int]:
        self.num_decoded += 1
        if data.endswith(b"!"):
            raise CorruptDataError("damaged")
        return list(data)


def test_equal_bytes_are_decoded_once() -> None:
    """Versions share most sequences, and decoding them costs more than reading the manifest."""
    cache, decode = DecodedSequences[list[int]](len, 1 << 20), Decoder()
    first = cache.get_or_decode(LONG, decode)
    assert cache.get_or_decode(bytes(bytearray(LONG)), decode) is first
    assert decode.num_decoded == 1


def test_bytes_outside_the_sample_count() -> None:
    """Only some of the bytes are hashed: the other ones can differ."""
    cache, decode = DecodedSequences[list[int]](len, 1 << 20), Decoder()
    cache.get_or_decode(LONG, decode)
    for index in range(len(LONG)):
        other = LONG[:index] + bytes([LONG[index] ^ 1]) + LONG[index + 1 :]
        assert cache.get_or_decode(other, decode) == list(other)
    assert cache.get_or_decode(LONG[:-1], decode) == list(LONG[:-1])


def test_damage_is_reported_each_time() -> None:
    """An error that was cached would hide a repaired file."""
    cache, decode = DecodedSequences[list[int]](len, 1 << 20), Decoder()
    for _ in range(2):
        with pytest.raises(CorruptDataError):
            cache.get_or_decode(LONG + b"!", decode)
    assert decode.num_decoded == 2
