"""zstd and lz4: separately compressed pieces, each prefixed with its uncompressed size.

A piece is a buffer of a mini-block chunk, a whole buffer, or one value:

    zstd   raw size u64 | frame      or, from early writers, a bare frame with its raw size
    lz4    raw size u32 | block

An empty piece is stored as an empty one.

A zstd decoder accepts consecutive frames, so one call decompresses any number of pieces.

A stored size is trusted only up to the largest possible growth of the pieces (zstd: 128 KiB for
every 3 bytes; lz4: 255 times), and up to what their contents can need; for all pieces together,
`MAX_TOTAL_RATIO` is the limit.

Source:  encodings21.General and encodings_v2_0.proto, message Compression; RFC 8878 for the head
         of a zstd frame.
Differs: We write an empty zstd piece as an empty one, the reference as an empty frame; it reads
    both,
         but requires lz4's size in any case.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, consecutive, slices_joined
from lance_stream.file.blocks.data_blocks import INT32_MAX, VariableWidthBlock, offsets_of

ZSTD = "zstd"
LZ4 = "lz4"

MAX_RAW_BYTES = 1 << 32
"""The maximum size to which one call may decompress."""

MAX_SMALL_RAW_BYTES = 1 << 29
MAX_TOTAL_RATIO = 1024
"""The same limit in total, unless it is within this multiple of the compressed bytes."""

ZSTD_MAGIC = 0xFD2FB528
FRAME_HEAD_BYTES = 18
ZSTD_BLOCK_BYTES = 1 << 17
LZ4_MAX_RATIO = 255
MAX_LZ4_BYTES = 0x7E000000

DEFAULT_ZSTD_LEVEL = 1
"""Level 3, zstd's default, takes 1.5 times as long and saves 3 % more of a chunk."""

_ZSTD_DEFAULT_LEVEL = 3
_ENCODERS = {ZSTD: ("zstd", 8), LZ4: ("lz4_raw", 4)}
"""Arrow's name of each scheme, and the bytes of the raw size in front."""


def decode_chunks(buffer: ChunkedBuffer, scheme: str, max_raw_bytes: int) -> ChunkedBuffer:
    """Decompress a value buffer of the chosen chunks of a page.

    Args:
        buffer: The compressed pieces.
        scheme: "zstd" or "lz4".
        max_raw_bytes: The maximum size of a decompressed piece.

    Raises:
        CorruptDataError: A piece is damaged, or its stated size is impossible.
    """
    decompress = {ZSTD: _decompress_zstd, LZ4: _decompress_lz4}.get(scheme)
    if decompress is None:
        raise UnsupportedFeatureError(
            f"unknown compression scheme {scheme}; only zstd and lz4 are supported"
        )
    return decompress(buffer, max_raw_bytes)


def decode(buffer: Bytes, scheme: str, max_raw_bytes: int) -> Bytes:
    """Decompress one buffer that is read as a whole.

    Raises:
        CorruptDataError: It is damaged, or its stated size is impossible.
    """
    whole = consecutive(buffer, np.array([len(buffer)], dtype=np.int64))
    return decode_chunks(whole, scheme, max_raw_bytes).data


def decode_per_value(block: VariableWidthBlock, scheme: str) -> VariableWidthBlock:
    """Decompress values.

    Returns:
        The same number of values; offsets are int64 if the compressed ones' are, or if needed.

    Raises:
        CorruptDataError: A value is damaged, or its stated size is impossible.
    """
    stops = block.offsets.astype(np.int64, copy=False)
    pieces = ChunkedBuffer(block.data, stops[:-1], np.diff(stops))
    raw = decode_chunks(pieces, scheme, MAX_RAW_BYTES)
    as_int32 = block.offsets.itemsize == 4 and len(raw.data) <= INT32_MAX
    return VariableWidthBlock(block.num_values, offsets_of(raw.sizes, as_int32=as_int32), raw.data)


def encode_chunks(buffer: ChunkedBuffer, scheme: str, level: int | None) -> ChunkedBuffer:
    """Compress each piece separately.

    Args:
        buffer: The pieces.
        scheme: "zstd" or "lz4".
        level: zstd's compression level, 0 for its own default; None: `DEFAULT_ZSTD_LEVEL`. lz4 has
            no level.

    Raises:
        InvalidInputError: A piece is larger than an lz4 block can be.
    """
    name, head_bytes = _ENCODERS[scheme]
    largest = int(buffer.sizes.max()) if len(buffer.sizes) else 0
    if scheme == LZ4 and largest > MAX_LZ4_BYTES:
        raise InvalidInputError(
            f"lz4 compresses at most {MAX_LZ4_BYTES} bytes at once, not {largest}; compress the "
            "column with zstd"
        )
    if scheme == ZSTD:
        level = DEFAULT_ZSTD_LEVEL if level is None else level or _ZSTD_DEFAULT_LEVEL
        codec = _codec(name, level)
    else:
        codec = _codec(name, None)
    source = buffer.data.data
    pieces: list[bytes | pa.Buffer] = []
    sizes = np.zeros(len(buffer.sizes), dtype=np.int64)
    for index, (start, size) in enumerate(
        zip(buffer.starts.tolist(), buffer.sizes.tolist(), strict=True)
    ):
        if size or scheme == LZ4:
            compressed = codec.compress(source[start : start + size])
            pieces += (size.to_bytes(head_bytes, "little"), compressed)
            sizes[index] = head_bytes + compressed.size
    return consecutive(np.frombuffer(b"".join(pieces), dtype=np.uint8), sizes)


def encode(buffer: Bytes, scheme: str, level: int | None) -> Bytes:
    """Compress one buffer that is read as a whole; arguments and errors as in `encode_chunks`."""
    whole = consecutive(buffer, np.array([len(buffer)], dtype=np.int64))
    return encode_chunks(whole, scheme, level).data


def encode_per_value(
    block: VariableWidthBlock, scheme: str, level: int | None
) -> VariableWidthBlock:
    """Compress each value separately; arguments and errors as in `encode_chunks`."""
    starts = block.offsets[:-1].astype(np.int64, copy=False)
    pieces = encode_chunks(
        ChunkedBuffer(block.data, starts, np.diff(block.offsets).astype(np.int64)), scheme, level
    )
    as_int32 = block.offsets.itemsize == 4 and len(pieces.data) <= INT32_MAX
    return VariableWidthBlock(
        block.num_values, offsets_of(pieces.sizes, as_int32=as_int32), pieces.data
    )


def _decompress_zstd(buffer: ChunkedBuffer, max_raw_bytes: int) -> ChunkedBuffer:
    prefix_bytes = np.where(buffer.sizes > 0, 8, 0)
    heads = _heads(buffer, FRAME_HEAD_BYTES)
    prefix_bytes[_is_zstd_frame(heads)] = 0
    frames = _heads(
        ChunkedBuffer(buffer.data, buffer.starts + prefix_bytes, buffer.sizes - prefix_bytes),
        FRAME_HEAD_BYTES,
    )
    sizes = _frame_content_sizes(frames)
    has_prefix = prefix_bytes > 0
    raw_sizes = np.where(has_prefix, _numbers(heads, 0, 8), sizes)
    is_wrong = (buffer.sizes > 0) & (
        ~_is_zstd_frame(frames)
        | (raw_sizes < 0)
        | (raw_sizes > max_raw_bytes)
        | (raw_sizes > ZSTD_BLOCK_BYTES * (buffer.sizes // 3))
        | (has_prefix & (sizes >= 0) & (sizes != raw_sizes))
    )
    raw_sizes = np.where(buffer.sizes > 0, raw_sizes, 0)
    _check_sizes("zstd", is_wrong, raw_sizes, buffer.sizes)
    starts = buffer.starts + prefix_bytes
    compressed = slices_joined(buffer.data, starts, buffer.starts + buffer.sizes)
    return consecutive(_decompressed("zstd", compressed, int(raw_sizes.sum())), raw_sizes)


def _decompress_lz4(buffer: ChunkedBuffer, max_raw_bytes: int) -> ChunkedBuffer:
    raw_sizes = np.where(buffer.sizes > 0, _numbers(_heads(buffer, 4), 0, 4), 0)
    is_wrong = (buffer.sizes > 0) & (
        (buffer.sizes < 4)
        | (raw_sizes > max_raw_bytes)
        | (raw_sizes > LZ4_MAX_RATIO * (buffer.sizes - 4))
    )
    _check_sizes("lz4", is_wrong, raw_sizes, buffer.sizes)
    pieces = zip(
        (buffer.starts + 4).tolist(),
        (buffer.starts + buffer.sizes).tolist(),
        raw_sizes.tolist(),
        strict=True,
    )
    raw = [_decompressed("lz4_raw", buffer.data[start:stop], size) for start, stop, size in pieces]
    data = np.concatenate(raw) if len(raw) > 1 else (raw[0] if raw else buffer.data[:0])
    return consecutive(data, raw_sizes)


def _decompressed(codec_name: str, compressed: Bytes, raw_size: int) -> Bytes:
    """Decompress bytes whose raw size is known and has been checked."""
    if raw_size == 0:
        return compressed[:0]
    codec = _codec(codec_name, None)
    source = pa.py_buffer(np.ascontiguousarray(compressed))
    try:
        raw = codec.decompress(source, decompressed_size=raw_size)
    except (OSError, ValueError, MemoryError) as error:
        raise CorruptDataError(
            f"{len(compressed)} bytes do not decompress to {raw_size} by {codec_name}: {error}"
        ) from None
    if codec_name == "lz4_raw" and _fits(codec, source, raw_size - 1):
        raise CorruptDataError(f"an lz4 block has less than the {raw_size} bytes that it states")
    return np.frombuffer(raw, dtype=np.uint8)


def _codec(name: str, level: int | None) -> pa.Codec:
    if not pa.Codec.is_available(name):
        raise UnsupportedFeatureError(
            f"this build of pyarrow has no {name}; install a wheel from PyPI, which has it"
        )
    return pa.Codec(name, compression_level=level)


def _fits(codec: pa.Codec, source: pa.Buffer, raw_size: int) -> bool:
    """Return whether an lz4 block has this many bytes or fewer; its decoder reports no size."""
    try:
        codec.decompress(source, decompressed_size=raw_size)
    except OSError:
        return False
    return True


def _check_sizes(
    scheme: str, is_wrong: npt.NDArray[np.bool_], raw_sizes: Counts, sizes: Counts
) -> None:
    if is_wrong.any():
        index = int(np.argmax(is_wrong))
        raise CorruptDataError(
            f"{sizes[index]} bytes of {scheme} claim to decompress to {raw_sizes[index]}"
        )
    max_total = min(MAX_RAW_BYTES, max(MAX_SMALL_RAW_BYTES, MAX_TOTAL_RATIO * int(sizes.sum())))
    if raw_sizes.sum(dtype=np.float64) > max_total:
        raise CorruptDataError(
            f"{sizes.sum()} bytes of {scheme} claim to decompress to over {max_total}"
        )


def _heads(buffer: ChunkedBuffer, num_bytes: int) -> Bytes:
    """Return the (num_pieces, num_bytes) first bytes of pieces; zeros where a piece ends before."""
    positions = np.arange(num_bytes)
    inside = positions < buffer.sizes[:, None]
    indices = np.minimum(buffer.starts[:, None] + positions, max(len(buffer.data) - 1, 0))
    if len(buffer.data) == 0:
        return np.zeros(inside.shape, dtype=np.uint8)
    return np.where(inside, buffer.data[indices], 0).astype(np.uint8, copy=False)


def _numbers(heads: Bytes, start: int, num_bytes: int) -> Counts:
    """Return the little-endian number at a position of each head; -1 if it is over 2^63."""
    wide = np.zeros((len(heads), 8), dtype=np.uint8)
    wide[:, :num_bytes] = heads[:, start : start + num_bytes]
    numbers: Counts = np.maximum(wide.view("<i8")[:, 0], -1)
    return numbers


def _is_zstd_frame(heads: Bytes) -> npt.NDArray[np.bool_]:
    """Return which heads begin a frame: the magic number, and a descriptor without bit 4."""
    is_magic = _numbers(heads, 0, 4) == ZSTD_MAGIC
    return np.asarray(is_magic & (heads[:, 4] & 0x10 == 0))


def _frame_content_sizes(heads: Bytes) -> Counts:
    """Return the raw size in each frame's head; -1 if it has none.

    The magic number is followed by a descriptor: bits 7 and 6 determine the bytes of the size (0,
    2, 4 or 8, and 1 instead of 0 if bit 5 is set), bit 5 means that there is no window byte, bits
    1 and 0 the bytes of a dictionary's id (0, 1, 2 or 4). A 2-byte size counts from 256.
    """
    descriptors = heads[:, 4]
    is_single = (descriptors & 0x20) != 0
    kinds = descriptors >> 6
    starts = 5 + ~is_single + np.array([0, 1, 2, 4])[descriptors & 3]
    sizes = np.full(len(heads), -1, dtype=np.int64)
    for kind, (num_bytes, base) in enumerate([(1, 0), (2, 256), (4, 0), (8, 0)]):
        for start in np.unique(starts).tolist():
            is_it = (kinds == kind) & (starts == start)
            if kind == 0:
                is_it &= is_single
            if is_it.any():
                sizes[is_it] = _numbers(heads[is_it], start, num_bytes) + base
    return sizes
