"""Levels in mini-block chunks: one stream of a page, split at the page's chunks.

Each chunk contains its levels as a block of u16 words, encoded separately:

    flat                     plain
    in-line bit-packing      up to 1,024 levels: width, packed words
    out-of-line bit-packing  full blocks of 1,024 packed words, then a tail, packed or plain;
                             0 bits wide if all levels are 0
    rle                      u64 bytes of values | values | u8 lengths
    others                   one chunk after the other

All requested chunks are decoded at once; the levels are then those of all chunks in order.

Source:  encodings21.MiniBlockLayout, rep_compression and def_compression.
Differs: We pack levels out of line or store them as runs (2.2), whichever is smaller, unless all
         chunks are so short that plain levels are smaller. The reference decides from the levels
         of the whole page, and packs those of a short page in-line.
"""

import numpy as np
import numpy.typing as npt

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Mask, Positions
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.chunked_buffers import (
    ChunkedBuffer,
    check_chunks,
    consecutive,
    joined,
    slices_joined,
    starts_of,
)
from lance_stream.file.blocks.data_blocks import DataBlock, FixedWidthBlock
from lance_stream.file.compression import fastlanes
from lance_stream.file.compression.compiled import loops
from lance_stream.file.v2_1.codecs import (
    EncodedBlock,
    bitpacking,
    decode_block,
    decode_mini_block,
    encode_block,
    rle,
)
from lance_stream.file.v2_1.codecs.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lance_stream.file.v2_1.codecs.flat import Flat
from lance_stream.file.v2_1.codecs.registry import parse
from lance_stream.file.v2_1.codecs.rle import Rle
from lance_stream.file.v2_1.layouts.levels import LevelArray, alternating

BITS_PER_LEVEL = 16
MAX_CUT_LEVELS = (2**16 - 1 - 8) // 3 * rle.MAX_RUN
"""The largest sum of the runs in 65,535 bytes, the most that a chunk's levels can have."""

PLAIN_RUNS = Rle.of(BITS_PER_LEVEL)
"""The encoding of runs of levels in all writers."""

_BYTES_PER_LEVEL = 2
_RUN_BYTES = 3


def decode_level_chunks(
    encoding: pb.CompressiveEncoding, buffer: ChunkedBuffer, num_levels: Positions
) -> LevelArray:
    """Decode the levels of some chunks.

    Args:
        encoding: The encoding of each chunk's levels.
        buffer: Their bytes.
        num_levels: (num_chunks,) the number of each chunk's levels.

    Returns:
        (num_levels.sum(),) levels.

    Raises:
        CorruptDataError: The bytes do not match the number of levels, or they are not words of 16
            bits.
        UnsupportedFeatureError: The encoding is unknown; the message names it.
    """
    check_chunks([buffer], np.zeros_like(num_levels))
    codec = parse(encoding)
    if isinstance(codec, Flat | InlineBitpacking):
        levels = _words(decode_mini_block(encoding, [buffer], num_levels))
    elif codec == PLAIN_RUNS:
        levels = _decode_runs(_split_runs(buffer), num_levels)
    elif isinstance(codec, Rle):
        levels = _words(decode_mini_block(encoding, _split_runs(buffer), num_levels))
    elif isinstance(codec, OutOfLineBitpacking):
        levels = _decode_out_of_line(codec, buffer, num_levels)
    else:
        levels = _decode_chunks(encoding, buffer, num_levels)
    if len(levels) != int(num_levels.sum()):
        raise CorruptDataError(f"there are {len(levels)} levels instead of {num_levels.sum()}")
    return levels


def actual_counts(
    encoding: pb.CompressiveEncoding, buffer: ChunkedBuffer, stored: Positions
) -> Positions:
    """Return the actual number of levels of chunks; the stored number may be truncated.

    One writer of 2.2 stored only the lower 16 bits of the number; the runs add up to the actual
    number.

    Args:
        encoding: The encoding of each chunk's levels.
        buffer: Their bytes.
        stored: (num_chunks,) the stored number of each chunk.

    Raises:
        CorruptDataError: The runs add up to another number.
    """
    if parse(encoding) != PLAIN_RUNS:
        return stored
    check_chunks([buffer], np.zeros_like(stored))
    lengths = _split_runs(buffer)[1]
    sums = np.append(0, np.cumsum(joined(lengths), dtype=np.int64))
    firsts = starts_of(lengths.sizes)
    counts: Positions = sums[firsts + lengths.sizes] - sums[firsts]
    is_wrong = (counts != stored) & (
        (counts % (1 << 16) != stored) | (counts < stored) | (counts > MAX_CUT_LEVELS)
    )
    if is_wrong.any():
        index = int(np.argmax(is_wrong))
        raise CorruptDataError(
            f"the runs of a chunk add up to {counts[index]} levels, but {stored[index]} are stated"
        )
    return counts


def encode_level_chunks(
    levels: LevelArray, starts: Positions, *, as_runs: bool
) -> tuple[pb.CompressiveEncoding, ChunkedBuffer]:
    """Encode levels for the chunks of a page, in as few bytes as possible.

    Args:
        levels: (num_levels,) all levels of the page.
        starts: (num_chunks,) the first level of each chunk.
        as_runs: Whether runs may be stored, as in 2.2.

    Returns:
        The encoding, and the bytes of each chunk.
    """
    counts = np.diff(np.append(starts, len(levels)))
    width = max(1, int(levels.max(initial=0)).bit_length())
    words_per_block = width * fastlanes.VALUES // BITS_PER_LEVEL
    num_full, num_rest = np.divmod(counts, fastlanes.VALUES)
    packed_words = num_full * words_per_block + np.minimum(num_rest, words_per_block)
    if as_runs and len(levels):
        changes = int(np.count_nonzero(levels[1:] != levels[:-1]))
        min_bytes = _RUN_BYTES * (len(starts) + changes + len(levels) // rle.MAX_RUN)
        if 8 * len(starts) + min_bytes < _BYTES_PER_LEVEL * int(packed_words.sum()):
            return PLAIN_RUNS.to_proto(), rle.encode_blocks(levels, starts)
    if not num_full.any() and not (num_rest > words_per_block).any():
        return Flat(BITS_PER_LEVEL).to_proto(), consecutive(
            np.ascontiguousarray(levels).view(np.uint8), counts * _BYTES_PER_LEVEL
        )
    codec = OutOfLineBitpacking(BITS_PER_LEVEL, width)
    return codec.to_proto(), _packed(levels, counts, width)


def encode_level_block(levels: LevelArray) -> EncodedBlock:
    """Encode all levels of a page in one buffer, in as few bytes as possible."""
    block = FixedWidthBlock(BITS_PER_LEVEL, len(levels), levels.view(np.uint8))
    width = max(1, int(levels.max(initial=0)).bit_length())
    packed_bytes = bitpacking.out_of_line_size(len(levels), width, _BYTES_PER_LEVEL)
    runs = 1 + int(np.count_nonzero(levels[1:] != levels[:-1]))
    if 8 + _RUN_BYTES * (runs + len(levels) // rle.MAX_RUN) < min(packed_bytes, levels.nbytes):
        return rle.encode_block(block)
    if packed_bytes < levels.nbytes:
        return bitpacking.encode_block(block, width)
    return encode_block(block)


def _packed(levels: LevelArray, counts: Positions, width: int) -> ChunkedBuffer:
    words_per_block = width * fastlanes.VALUES // BITS_PER_LEVEL
    num_full, num_rest = np.divmod(counts, fastlanes.VALUES)
    packs_tail = num_rest > words_per_block
    num_blocks = num_full + packs_tail
    num_packed = np.where(packs_tail, counts, num_full * fastlanes.VALUES)
    num_raw = counts - num_packed
    if num_raw.any():
        is_raw = alternating(num_packed, num_raw)
        raw, levels = levels[is_raw], levels[~is_raw]
    if (num_packed == num_blocks * fastlanes.VALUES).all():
        blocks = levels
    else:
        room = num_blocks * fastlanes.VALUES - num_packed
        blocks = np.zeros(int(num_blocks.sum()) * fastlanes.VALUES, np.uint16)
        blocks[~alternating(num_packed, room)] = levels
    words = fastlanes.pack(blocks.reshape(-1, fastlanes.VALUES), width).reshape(-1)
    if num_raw.any():
        is_raw = alternating(num_blocks * words_per_block, num_raw)
        spliced = np.empty(len(is_raw), np.uint16)
        spliced[is_raw], spliced[~is_raw] = raw, words
        words = spliced
    sizes = (num_blocks * words_per_block + num_raw) * _BYTES_PER_LEVEL
    return consecutive(words.view(np.uint8), sizes)


def _words(block: DataBlock) -> LevelArray:
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value != BITS_PER_LEVEL:
        raise CorruptDataError("the levels of a page are not words of 16 bits")
    return block.data.view(np.uint16)


def _decode_runs(parts: list[ChunkedBuffer], num_levels: Positions) -> LevelArray:
    values, lengths = parts
    if (values.sizes != lengths.sizes * _BYTES_PER_LEVEL).any():
        raise CorruptDataError("a run-length block has different numbers of values and lengths")
    num_runs = lengths.sizes
    total = int(num_runs.sum())
    return _words(
        rle.decode_chunks(
            FixedWidthBlock(BITS_PER_LEVEL, total, joined(values)),
            FixedWidthBlock(8, total, joined(lengths)),
            num_runs,
            num_levels,
        )
    )


def _decode_chunks(
    encoding: pb.CompressiveEncoding, buffer: ChunkedBuffer, num_levels: Positions
) -> LevelArray:
    parts = [
        _words(decode_block(encoding, buffer.data[start : start + size], count))
        for start, size, count in zip(
            buffer.starts.tolist(), buffer.sizes.tolist(), num_levels.tolist(), strict=True
        )
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint16)


def _split_runs(buffer: ChunkedBuffer) -> list[ChunkedBuffer]:
    """Split each chunk's run-length block into its values and its lengths."""
    if len(buffer.sizes) and buffer.sizes.min() < 8:
        raise CorruptDataError("a run-length block is too short for its header")
    heads = joined(ChunkedBuffer(buffer.data, buffer.starts, np.full_like(buffer.sizes, 8)))
    sizes = heads.view(np.uint64)
    if (sizes > (buffer.sizes - 8).astype(np.uint64)).any():
        raise CorruptDataError("the values of a run-length block are longer than the block")
    sizes_of_values = sizes.astype(np.int64)
    starts = buffer.starts + 8
    return [
        ChunkedBuffer(buffer.data, starts, sizes_of_values),
        ChunkedBuffer(buffer.data, starts + sizes_of_values, buffer.sizes - 8 - sizes_of_values),
    ]


def _decode_out_of_line(
    codec: OutOfLineBitpacking, buffer: ChunkedBuffer, num_levels: Positions
) -> LevelArray:
    width = codec.bits_per_packed
    if codec.bits_per_word != BITS_PER_LEVEL or not 0 <= width <= BITS_PER_LEVEL:
        raise CorruptDataError(f"levels cannot be packed in {width} bits")
    words_per_block = width * fastlanes.VALUES // BITS_PER_LEVEL
    num_full, num_rest = np.divmod(num_levels, fastlanes.VALUES)
    full_bytes = num_full * (words_per_block * _BYTES_PER_LEVEL)
    tail_bytes = buffer.sizes - full_bytes
    has_raw_tail = tail_bytes == num_rest * _BYTES_PER_LEVEL
    has_packed_tail = (
        ~has_raw_tail & (num_rest > 0) & (tail_bytes == words_per_block * _BYTES_PER_LEVEL)
    )
    if not (has_raw_tail | has_packed_tail).all():
        index = int(np.argmin(has_raw_tail | has_packed_tail))
        raise CorruptDataError(
            f"{num_levels[index]} levels packed in {width} bits cannot be "
            f"{buffer.sizes[index]} bytes"
        )
    by_loop = _unpacked_by_loop(buffer, num_levels, has_packed_tail, width)
    if by_loop is not None:
        return by_loop
    num_packed = num_full + has_packed_tail
    packed_bytes = num_packed * (words_per_block * _BYTES_PER_LEVEL)
    unpacked = _unpacked(
        ChunkedBuffer(buffer.data, buffer.starts, packed_bytes), int(num_packed.sum()), width
    ).view(np.uint8)
    starts = starts_of(num_packed) * (fastlanes.VALUES * _BYTES_PER_LEVEL)
    stops = starts + (num_levels - np.where(has_raw_tail, num_rest, 0)) * _BYTES_PER_LEVEL
    levels = unpacked.reshape(-1)
    if has_packed_tail.all() or not num_rest.any():
        return slices_joined(levels, starts, stops).view(np.uint16)
    pieces = []
    packed, raw = levels.data, buffer.data.data
    for start, stop, tail, end in zip(
        starts.tolist(),
        stops.tolist(),
        (buffer.starts + packed_bytes).tolist(),
        (buffer.starts + buffer.sizes).tolist(),
        strict=True,
    ):
        pieces += [packed[start:stop], raw[tail:end]]
    return np.frombuffer(b"".join(pieces), np.uint16)


def _unpacked_by_loop(
    buffer: ChunkedBuffer, num_levels: Positions, has_packed_tail: Mask, width: int
) -> LevelArray | None:
    """Unpack all chunks by a compiled loop; return None if none is loaded or suits them.

    Args:
        buffer: Chunks inside their bytes, each with the words that its levels need.
        num_levels: (num_chunks,) the levels of each.
        has_packed_tail: (num_chunks,) whether those beyond the last full block are packed.
        width: Bits of each level.
    """
    even = len(buffer.data) // _BYTES_PER_LEVEL * _BYTES_PER_LEVEL
    words = buffer.data[:even].view(np.uint16)
    if not words.flags.aligned or (buffer.starts % _BYTES_PER_LEVEL).any():
        return None
    total = int(num_levels.sum())
    kernels = loops.get()
    if kernels is None:
        return None
    levels = np.empty(total, np.uint16)
    starts = buffer.starts // _BYTES_PER_LEVEL
    kernels.unpack_levels(words, starts, num_levels, has_packed_tail, width, levels)
    return levels


def _unpacked(
    buffer: ChunkedBuffer, num_blocks: int, width: int
) -> npt.NDArray[np.unsignedinteger]:
    """Return (num_blocks, 1024) levels of consecutive packed blocks."""
    words_per_block = width * fastlanes.VALUES // BITS_PER_LEVEL
    words = joined(buffer).view(np.uint16)
    return fastlanes.unpack(words.reshape(num_blocks, words_per_block), width)
