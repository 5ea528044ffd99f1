"""Variable codec: byte strings as offsets and bytes.

A mini-block chunk is one buffer, little-endian:

    offsets   (num_values + 1,) u32 or u64   the position in this buffer at which each value
    starts; the last one:
                                             the end of the last value
    values    bytes
    padding   0x48 up to a whole number of offsets, which belongs to the buffer

The first offset is therefore (num_values + 1) * bytes of an offset.

A block (items of a dictionary) is

    32    u32, or 64   u64     bits of an offset
    start u32, or      u64     where in this buffer the values start
    offsets                    (num_values + 1,) u32 or u64, the first 0, relative to `start`
    values                     bytes, up to the end of the buffer

Per value, the layout has already split values from lengths.

Source:  encodings21.Variable in the proto.
Differs: Before 2.1 was stable, writers put one byte for the bits and the number of values (u32 or
         u64) after it into a block's head, before `start`. The three bytes after the first
         distinguish them: those are 0 in the later head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import (
    ChunkedBuffer,
    consecutive,
    locate_values,
    slices_joined,
    starts_of,
    words_at,
)
from lance_stream.file.blocks.data_blocks import (
    INT32_MAX,
    Offsets,
    VariableWidthBlock,
    Words,
    offsets_of,
    word_of,
)
from lance_stream.file.blocks.scattered_bytes import gather
from lance_stream.file.v2_1.codecs.codec import (
    BlockCodec,
    EncodedBlock,
    EncodedMiniBlock,
    EncodedValues,
    MiniBlockCodec,
    Parse,
    PerValueCodec,
    ValueBlock,
    byte_strings,
    only,
)
from lance_stream.file.v2_1.codecs.flat import Flat

PADDING = 0x48


@dataclass(frozen=True, slots=True)
class Variable(MiniBlockCodec, BlockCodec, PerValueCodec):
    """Byte strings as offsets and bytes.

    Args:
        bits_per_offset: 32 or 64; otherwise damaged.
    """

    name = "variable"

    bits_per_offset: int

    @classmethod
    def of(cls, block: VariableWidthBlock) -> Self:
        """Return the codec of byte strings with offsets of the same width."""
        return cls(block.offsets.itemsize * 8)

    @classmethod
    def from_proto(cls, message: pb.Variable, parse: Parse) -> Self:
        if message.HasField("values"):
            raise UnsupportedFeatureError(
                "byte strings that are compressed as a whole are not supported"
            )
        return cls(only(parse(message.offsets), Flat, cls.name).bits_per_value)

    def to_proto(self) -> pb.CompressiveEncoding:
        offsets = Flat(self.bits_per_offset).to_proto()
        return pb.CompressiveEncoding(variable=pb.Variable(offsets=offsets))

    @property
    def always_picks(self) -> bool:
        return True

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> VariableWidthBlock:
        """Decode chunks; offsets are int32 if theirs are u32 and all bytes together allow it."""
        (buffer,) = buffers
        width, head_bytes = _checked_heads(buffer, num_values, self.bits_per_offset)
        if len(num_values) == 0:
            return VariableWidthBlock(0, np.zeros(1, dtype=np.int32), buffer.data[:0])
        stored = slices_joined(buffer.data, buffer.starts, buffer.starts + head_bytes)
        offsets = stored.view(word_of(self.bits_per_offset))
        if offsets.max() > buffer.sizes.max():
            raise CorruptDataError(
                f"an offset of {offsets.max()} exceeds its chunk of at most "
                f"{buffer.sizes.max()} bytes"
            )
        positions = starts_of(num_values + 1)
        firsts = offsets[positions].astype(np.int64)
        lasts = offsets[positions + num_values].astype(np.int64)
        if (firsts < head_bytes).any() or (lasts > buffer.sizes).any():
            raise CorruptDataError("a chunk's values overlap its offsets or exceed the chunk")
        lengths = np.diff(_signed(offsets))
        lengths = np.delete(lengths, positions[1:] - 1)
        if len(lengths) and lengths.min() < 0:
            raise CorruptDataError("a chunk's offsets descend")
        num_bytes = int((lasts - firsts).sum())
        return VariableWidthBlock(
            int(num_values.sum()),
            offsets_of(lengths, as_int32=width == 4 and num_bytes <= INT32_MAX),
            slices_joined(buffer.data, buffer.starts + firsts, buffer.starts + lasts),
        )

    def pick(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts, positions: Counts
    ) -> VariableWidthBlock:
        (buffer,) = buffers
        width, head_bytes = _checked_heads(buffer, num_values, self.bits_per_offset)
        word = word_of(self.bits_per_offset)
        chunks, inside = locate_values(num_values, positions)
        at = buffer.starts[chunks] + inside * width
        firsts, lasts = (
            words_at(buffer.data, index, word).astype(np.int64) for index in (at, at + width)
        )
        if (
            (firsts < head_bytes[chunks]).any()
            or (lasts < firsts).any()
            or (lasts > buffer.sizes[chunks]).any()
        ):
            raise CorruptDataError("a value of a chunk overlaps its offsets or exceeds the chunk")
        starts = buffer.starts[chunks] + firsts
        stops = buffer.starts[chunks] + lasts
        if (starts[1:] < stops[:-1]).any():
            raise CorruptDataError("the values of a chunk overlap")
        _, data = gather(buffer.data, starts, stops)
        as_int32 = width == 4 and len(data) <= INT32_MAX
        return VariableWidthBlock(
            len(positions), offsets_of(lasts - firsts, as_int32=as_int32), data
        )

    def decode_block(self, buffer: Bytes, num_values: int) -> VariableWidthBlock:
        check_bits_per_offset(self.bits_per_offset)
        is_early = bool(buffer[1:4].any())
        bits_per_offset = int(buffer[0]) if len(buffer) >= 4 else 0
        width = check_bits_per_offset(bits_per_offset)
        head_bytes = 1 + 2 * width if is_early else 2 * width
        if len(buffer) < head_bytes:
            raise CorruptDataError(f"a block of {len(buffer)} bytes is too short for its header")
        stated = np.frombuffer(buffer[head_bytes - width : head_bytes].tobytes(), f"<u{width}")
        start = int(stated[0])
        if start != head_bytes + (num_values + 1) * width or start > len(buffer):
            raise CorruptDataError(
                f"a block of {len(buffer)} bytes with {num_values} values cannot have "
                f"values that start at {start}"
            )
        offsets = np.ascontiguousarray(buffer[head_bytes:start]).view(f"<i{width}")
        data = buffer[start:]
        check_offsets(offsets, len(data))
        return VariableWidthBlock(num_values, offsets, data[: int(offsets[-1])])

    def decode_per_value(self, block: ValueBlock) -> VariableWidthBlock:
        check_bits_per_offset(self.bits_per_offset)
        return byte_strings(block, self.name)


def encode_mini_block(
    block: VariableWidthBlock, *, max_chunk_values: int, max_chunk_bytes: int
) -> EncodedMiniBlock:
    """Cut values into chunks; one over `max_chunk_bytes` has two values."""
    width = block.offsets.itemsize
    starts = _chunk_starts(block, max_chunk_values, max_chunk_bytes)
    stops = np.append(starts[1:], block.num_values)
    num_values = stops - starts
    head_bytes = (num_values + 1) * width
    firsts, lasts = block.offsets[starts], block.offsets[stops]
    used = head_bytes + lasts - firsts
    sizes = -(-used // width) * width

    shifts = np.repeat((head_bytes - firsts).astype(block.offsets.dtype), num_values + 1)
    positions = np.arange(len(shifts)) - np.repeat(np.arange(len(starts)), num_values + 1)
    heads = (block.offsets[positions] + shifts).view(np.uint8).data
    head_stops = np.cumsum(head_bytes)

    values = block.data.data
    padding = bytes([PADDING]) * width
    pieces: list[memoryview | bytes] = []
    for head_start, head_stop, first, last, padding_bytes in zip(
        (head_stops - head_bytes).tolist(),
        head_stops.tolist(),
        firsts.tolist(),
        lasts.tolist(),
        (sizes - used).tolist(),
        strict=True,
    ):
        pieces += [heads[head_start:head_stop], values[first:last], padding[:padding_bytes]]
    buffer = consecutive(np.frombuffer(b"".join(pieces), dtype=np.uint8), sizes)
    return EncodedMiniBlock(Variable.of(block), (buffer,), num_values)


def encode_block(block: VariableWidthBlock) -> EncodedBlock:
    """Encode values into one buffer that is read as a whole."""
    width = block.offsets.itemsize
    head = np.array([8 * width, (block.num_values + 3) * width], dtype=f"<u{width}")
    used = block.data[: int(block.offsets[-1])]
    data = np.concatenate([head.view(np.uint8), block.offsets.view(np.uint8), used])
    return EncodedBlock(Variable.of(block), data, block.num_values)


def encode_per_value(block: VariableWidthBlock) -> EncodedValues:
    """Encode each value separately, without a copy."""
    return EncodedValues(Variable.of(block), block)


def check_bits_per_offset(bits_per_offset: int) -> int:
    """Return the bytes of an offset.

    Raises:
        CorruptDataError: It is neither 32 nor 64 bits wide.
    """
    if bits_per_offset not in (32, 64):
        raise CorruptDataError(f"offsets have 32 or 64 bits, not {bits_per_offset}")
    return bits_per_offset // 8


def check_offsets(offsets: Offsets, num_bytes: int) -> None:
    """Check stored offsets into values of this many bytes.

    Raises:
        CorruptDataError: They do not start at 0, descend, or exceed the values.
    """
    if offsets[0] != 0 or offsets[-1] > num_bytes or (offsets[1:] < offsets[:-1]).any():
        raise CorruptDataError(
            f"offsets from {offsets[0]} to {offsets[-1]} into {num_bytes} bytes of values "
            "do not ascend from 0"
        )


def _checked_heads(
    buffer: ChunkedBuffer, num_values: Counts, bits_per_offset: int
) -> tuple[int, Counts]:
    """Return the bytes of an offset, and of each chunk's offsets, after a check."""
    width = check_bits_per_offset(bits_per_offset)
    head_bytes = (num_values + 1) * width
    if (buffer.sizes < head_bytes).any() or (buffer.sizes % width).any():
        raise CorruptDataError(
            f"chunks of {buffer.sizes.min()} to {buffer.sizes.max()} bytes are too short for their "
            f"values' offsets, or are not padded to a multiple of {width} bytes"
        )
    return width, head_bytes


def _signed(offsets: Words) -> Offsets:
    """Return the same numbers as signed ones, without a copy if they are small."""
    if offsets.itemsize == 4 and offsets.max() <= INT32_MAX:
        return offsets.view(np.int32)
    return offsets.astype(np.int64, copy=False)


def _chunk_starts(block: VariableWidthBlock, max_chunk_values: int, max_chunk_bytes: int) -> Counts:
    """Return the first value of each chunk.

    Chunks are halved until they fit: they start at multiples of their own number of values, so
    that each but the last is a power of two.
    """
    if max_chunk_values < 2:
        raise UnsupportedFeatureError("a mini-block chunk must have at least 2 values")
    width = block.offsets.itemsize
    count = 1 << (max_chunk_values.bit_length() - 1)
    starts = np.arange(0, block.num_values, count, dtype=np.int64)
    results = [starts[:0]]
    while len(starts):
        stops = np.minimum(starts + count, block.num_values)
        size_bytes = (stops - starts + 1) * width + block.offsets[stops] - block.offsets[starts]
        fits = (size_bytes <= max_chunk_bytes) | (count == 2) | (stops - starts == 1)
        results.append(starts[fits])
        count //= 2
        halves = starts[~fits]
        starts = np.concatenate([halves, halves + count])
        starts = starts[starts < block.num_values]
    return np.sort(np.concatenate(results))
