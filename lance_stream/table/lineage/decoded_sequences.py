"""A cache of decoded sequences, since every batch of a stream needs those of all fragments.

The bytes of a sequence are the key. Most of a manifest's bytes are sequences that do not change
from version to version, while the messages that contain them change with every deleted row.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from lance_stream.caches import Cache

S = TypeVar("S")

_MIN_BYTES: Final = 512
_SAMPLE: Final = 32


class _DecodedSequence(NamedTuple, Generic[S]):
    data: bytes
    sequence: S
    size: int


class DecodedSequences(Generic[S]):
    """The most recently used sequences of one kind; safe for several threads.

    Args:
        size_of: Returns the approximate size in memory of a decoded sequence, in bytes.
        max_bytes: The maximum size in memory of all cached sequences.
    """

    def __init__(self, size_of: Callable[[S], int], max_bytes: int) -> None:
        self._size_of = size_of
        self._cache = Cache[tuple[int, bytes], _DecodedSequence[S]](
            max_bytes, lambda decoded: decoded.size
        )

    def get_or_decode(self, data: bytes, decode: Callable[[bytes], S]) -> S:
        """Return the decoded sequence, which the caller must not change.

        Args:
            data: The bytes of a sequence. A short one is decoded each time, which is faster.
            decode: Decodes the bytes. Errors are not cached.
        """
        if len(data) < _MIN_BYTES:
            return decode(data)
        # Hash only a sample: comparing all bytes with one candidate is faster than hashing them.
        middle = len(data) // 2
        key = len(data), data[:_SAMPLE] + data[middle : middle + _SAMPLE] + data[-_SAMPLE:]
        cached = self._cache.get(key)
        if cached is not None and cached.data == data:
            return cached.sequence
        sequence = decode(data)
        self._cache.put(key, _DecodedSequence(data, sequence, len(data) + self._size_of(sequence)))
        return sequence

    def clear(self) -> None:
        """Remove all sequences."""
        self._cache.clear()
