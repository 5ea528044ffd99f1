"""A cache of decoded sequences: every batch of a stream needs those of all fragments.

A sequence is known by its bytes. Most of a manifest's bytes are sequences that do not change from
version to version, though the messages of their fragments do, with each row that is deleted.
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
    """The sequences of one kind that were used last; safe for several threads.

    Args:
        size_of: Returns about how many bytes of memory a decoded sequence takes.
        room_bytes: How much memory they take at most.
    """

    def __init__(self, size_of: Callable[[S], int], room_bytes: int) -> None:
        self._size_of = size_of
        self._cache = Cache[tuple[int, bytes], _DecodedSequence[S]](
            room_bytes, lambda decoded: decoded.size
        )

    def get_or_decode(self, data: bytes, decode: Callable[[bytes], S]) -> S:
        """Return what the bytes mean; the caller must not change it.

        Args:
            data: The bytes of a sequence. Few are decoded faster than looked up.
            decode: Decodes them; what it raises is not kept.
        """
        if len(data) < _MIN_BYTES:
            return decode(data)
        # Hashing all of the bytes would take longer than comparing them with the likely ones.
        middle = len(data) // 2
        key = len(data), data[:_SAMPLE] + data[middle : middle + _SAMPLE] + data[-_SAMPLE:]
        cached = self._cache.get(key)
        if cached is not None and cached.data == data:
            return cached.sequence
        sequence = decode(data)
        self._cache.put(key, _DecodedSequence(data, sequence, len(data) + self._size_of(sequence)))
        return sequence

    def clear(self) -> None:
        """Forget all sequences."""
        self._cache.clear()
