"""General compression of one buffer: zstd or lz4 around all of its bytes.

    zstd    raw size u64 | frame      or, by early writers, a bare frame, which may say no raw size
    lz4     raw size u32 | block

A stored size is believed only as far as the format of the compressed bytes lets them grow, and no
further than `max_raw_bytes_of`: a few kilobytes of zstd can stand for a gigabyte of zeros.

Source:  encodings_v2_0.proto, message Compression; files that the reference wrote.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.errors import CorruptDataError
from lance_stream.file.compression import zstd_lz4

PLAIN_SCHEMES: Final = frozenset({"", "none"})
"""What stands for a buffer that is not compressed."""

LEAST_RAW_LIMIT: Final = 256 << 20
"""To so many bytes a buffer may decompress, however few are stored."""

_PIECE_BYTES: Final = 1 << 20
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def max_raw_bytes_of(stored_bytes: int) -> int:
    """Return to how many bytes a buffer may decompress, at most."""
    return min(max(LEAST_RAW_LIMIT, 256 * stored_bytes), zstd_lz4.MAX_RAW_BYTES)


def decompress(stored: memoryview, scheme: str) -> memoryview:
    """Return the raw bytes of a compressed buffer.

    Args:
        stored: All bytes of the buffer.
        scheme: "zstd" or "lz4".

    Raises:
        CorruptDataError: The buffer is damaged, or says that it is larger than it can be.
        UnsupportedFeatureError: The scheme is another one; the message names it.
    """
    limit = max_raw_bytes_of(len(stored))
    if scheme == zstd_lz4.ZSTD and _is_frame_of_unknown_size(stored):
        return _decompress_to_its_end(stored, limit)
    raw: memoryview = zstd_lz4.decode(np.frombuffer(stored, np.uint8), scheme, limit).data
    return raw


def compress(parts: Sequence[memoryview], scheme: str, level: int | None) -> memoryview:
    """Return the parts of a buffer, one after the other, compressed at once.

    Args:
        parts: At least one byte in all.
        scheme: "zstd" or "lz4".
        level: zstd's compression level; None: chosen by us.

    Raises:
        InvalidInputError: They are more than an lz4 block can be.
    """
    raw = parts[0] if len(parts) == 1 else b"".join(parts)
    compressed: memoryview = zstd_lz4.encode(np.frombuffer(raw, np.uint8), scheme, level).data
    return compressed


def _is_frame_of_unknown_size(stored: memoryview) -> bool:
    """Return whether a zstd frame stands without a size before it and without one in its head.

    The byte behind the magic number describes the head: bits 7 to 5 are 0 if no size follows, and
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
