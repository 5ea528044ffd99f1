"""General compression of one buffer: zstd or lz4 around all of its bytes.

    zstd    raw size u64 | frame      or, from early writers, a bare frame, possibly without a raw
    size lz4     raw size u32 | block

A stored size is trusted only up to the largest possible growth of the compressed bytes, and up to
`max_raw_bytes_of`: a few kilobytes of zstd can expand to a gigabyte of zeros.

Source:  encodings_v2_0.proto, message Compression; files that the reference wrote.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.errors import CorruptDataError
from lance_stream.file.compression import zstd_lz4

PLAIN_SCHEMES: Final = frozenset({"", "none"})
"""The scheme name of an uncompressed buffer."""

MIN_RAW_LIMIT: Final = 256 << 20
"""A buffer may decompress to this many bytes, even from very few."""

_PIECE_BYTES: Final = 1 << 20
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def max_raw_bytes_of(stored_bytes: int) -> int:
    """Return the most bytes to which a buffer may decompress."""
    return min(max(MIN_RAW_LIMIT, 256 * stored_bytes), zstd_lz4.MAX_RAW_BYTES)


def decompress(stored: memoryview, scheme: str) -> memoryview:
    """Return the raw bytes of a compressed buffer.

    Args:
        stored: All bytes of the buffer.
        scheme: "zstd" or "lz4".

    Raises:
        CorruptDataError: The buffer is damaged, or its stated size is impossible.
        UnsupportedFeatureError: The scheme is unknown; the message names it.
    """
    limit = max_raw_bytes_of(len(stored))
    if scheme == zstd_lz4.ZSTD and _is_frame_of_unknown_size(stored):
        return _decompress_to_its_end(stored, limit)
    raw: memoryview = zstd_lz4.decode(np.frombuffer(stored, np.uint8), scheme, limit).data
    return raw


def compress(parts: Sequence[memoryview], scheme: str, level: int | None) -> memoryview:
    """Return the concatenated parts of a buffer, compressed together.

    Args:
        parts: At least one byte in all.
        scheme: "zstd" or "lz4".
        level: zstd's compression level; None: chosen by us.

    Raises:
        InvalidInputError: They are larger than an lz4 block can be.
    """
    raw = parts[0] if len(parts) == 1 else b"".join(parts)
    compressed: memoryview = zstd_lz4.encode(np.frombuffer(raw, np.uint8), scheme, level).data
    return compressed


def _is_frame_of_unknown_size(stored: memoryview) -> bool:
    """Return whether a zstd frame has a size neither before it nor in its head.

    The byte after the magic number describes the head: bits 7 to 5 are 0 if no size follows, and
    bit 4 is 0 in every frame.
    """
    return len(stored) > 4 and bytes(stored[:4]) == _ZSTD_MAGIC and stored[4] & 0xF0 == 0


def _decompress_to_its_end(stored: memoryview, limit: int) -> memoryview:
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored)), "zstd")
    pieces, size = [], 0
    try:
        while piece := stream.read(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise CorruptDataError(
                    f"{len(stored)} bytes of zstd decompress to over {limit} bytes"
                )
    except OSError as error:
        raise CorruptDataError(f"a zstd frame is damaged: {error}") from None
    return memoryview(b"".join(pieces))
