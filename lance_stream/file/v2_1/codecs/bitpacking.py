"""Bit-packing codecs: unsigned words without their high zero bits, in FastLanes order.

In-line: a mini-block chunk, or a block, of up to 1,024 values is one buffer of T-bit words:

    width    1 word               bits of a packed value, 0 to T
    packed   1024 * width / T     a last chunk is filled up with zeros to 1,024 values

Out-of-line: a block of any number of values is one buffer of T-bit words; the width is in the
encoding:

    packed   1024 * width / T     for each full 1,024 values
    tail                          the rest: either padded with zeros and packed, or plain,
                                  whichever is shorter; plain if both are the same

The length of the buffer determines which of the two a tail is.

Source:  encodings21.InlineBitpacking, encodings21.OutOfLineBitpacking in the proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts, Positions, count_bits
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import (
    ChunkedBuffer,
    check_chunks,
    consecutive,
    joined,
    locate_values,
    select_chunks,
    words_at,
)
from lance_stream.file.blocks.data_blocks import FixedWidthBlock, Words, word_of
from lance_stream.file.compression import fastlanes
from lance_stream.file.compression.compiled import loops
from lance_stream.file.compression.fastlanes import VALUES
from lance_stream.file.v2_1.codecs.codec import (
    BlockCodec,
    EncodedBlock,
    EncodedMiniBlock,
    MiniBlockCodec,
    Parse,
    only,
)
from lance_stream.file.v2_1.codecs.flat import Flat

_MAX_STRETCHES = 64
"""Up to this number of stretches of chunks of one width are packed one by one; otherwise all chunks
of a width are packed at once and then moved into place."""


_FEW_CHUNKS = 4
"""Up to this number of chunks of a width are unpacked value by value, together with those of other
such widths: unpacking a width by rows has a fixed cost, shared by many chunks."""

_GROUP_BYTES = 2 << 20
"""The approximate bytes of chunks that are unpacked together: larger copies use fresh memory, which
the kernel fills with zeros first."""

_LOOP_WORD_BYTES = (4, 8)
"""Narrower words are unpacked as fast by numpy."""

_RARE_CHUNKS = 32
"""We write no width for fewer chunks if a wider one costs little."""


@dataclass(frozen=True, slots=True)
class InlineBitpacking(MiniBlockCodec, BlockCodec):
    """Words packed 1,024 at a time, each with its own width.

    Args:
        bits_per_word: T.
    """

    name = "inline_bitpacking"

    bits_per_word: int

    @classmethod
    def from_proto(cls, message: pb.InlineBitpacking, parse: Parse) -> Self:
        del parse  # no nested encoding
        if message.HasField("values"):
            raise UnsupportedFeatureError(
                "bit-packed values that are compressed again are not supported"
            )
        return cls(message.uncompressed_bits_per_value)

    def to_proto(self) -> pb.CompressiveEncoding:
        inner = pb.InlineBitpacking(uncompressed_bits_per_value=self.bits_per_word)
        return pb.CompressiveEncoding(inline_bitpacking=inner)

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> FixedWidthBlock:
        """Decode chunks: all of one width at once."""
        (buffer,) = buffers
        word = word_of(self.bits_per_word)
        widths = _widths(buffer, num_values, word)
        values = np.empty((len(num_values), VALUES), dtype=word)
        if _unpacked_by_loop(buffer, num_values, widths, values):
            return _block(_without_padding(values, num_values), self.bits_per_word)
        by_width, counts = np.unique(widths, return_counts=True)
        rare = by_width[counts <= _FEW_CHUNKS] if _is_aligned(buffer, word) else by_width[:0]
        if len(rare) > 1:
            positions = np.flatnonzero(np.isin(widths, rare))
            values[positions] = fastlanes.pick(
                buffer.data.view(word),
                (buffer.starts[positions] // word.itemsize + 1)[:, None],
                widths[positions].astype(np.int64)[:, None],
                np.arange(VALUES)[None],
            )
            by_width = by_width[counts > _FEW_CHUNKS]
        for width in by_width.tolist():
            words_per_chunk = 1 + VALUES * width // self.bits_per_word
            for positions in _groups(
                np.flatnonzero(widths == width), words_per_chunk * word.itemsize
            ):
                first, stop = int(positions[0]), int(positions[-1]) + 1
                words = joined(select_chunks(buffer, positions)).view(word)
                words = words.reshape(len(positions), words_per_chunk)[:, 1:]
                if stop - first == len(positions):
                    fastlanes.unpack(words, width, values[first:stop])
                else:
                    values[positions] = fastlanes.unpack(words, width)
        return _block(_without_padding(values, num_values), self.bits_per_word)

    def pick(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts, positions: Counts
    ) -> FixedWidthBlock | None:
        """Decode single values; None if words are not aligned to their size."""
        (buffer,) = buffers
        word = word_of(self.bits_per_word)
        widths = _widths(buffer, num_values, word).astype(np.int64)
        if not _is_aligned(buffer, word):
            return None
        chunks, inside = locate_values(num_values, positions)
        words = fastlanes.pick(
            buffer.data.view(word),
            buffer.starts[chunks] // word.itemsize + 1,
            widths[chunks],
            inside,
        )
        return _block(words, self.bits_per_word)

    def decode_block(self, buffer: Bytes, num_values: int) -> FixedWidthBlock:
        counts = np.array([num_values] if num_values else [], dtype=np.int64)
        sizes = np.array([len(buffer)] if num_values else [], dtype=np.int64)
        return self.decode_mini_block([consecutive(buffer, sizes)], counts)


@dataclass(frozen=True, slots=True)
class OutOfLineBitpacking(BlockCodec):
    """Words packed 1,024 at a time, all in the same width.

    Args:
        bits_per_word: T.
        bits_per_packed: The width.
    """

    name = "out_of_line_bitpacking"

    bits_per_word: int
    bits_per_packed: int

    @classmethod
    def from_proto(cls, message: pb.OutOfLineBitpacking, parse: Parse) -> Self:
        packed = only(parse(message.values), Flat, cls.name)
        return cls(message.uncompressed_bits_per_value, packed.bits_per_value)

    def to_proto(self) -> pb.CompressiveEncoding:
        inner = pb.OutOfLineBitpacking(
            uncompressed_bits_per_value=self.bits_per_word,
            values=Flat(self.bits_per_packed).to_proto(),
        )
        return pb.CompressiveEncoding(out_of_line_bitpacking=inner)

    def decode_block(self, buffer: Bytes, num_values: int) -> FixedWidthBlock:
        word = word_of(self.bits_per_word)
        if not 0 < self.bits_per_packed <= self.bits_per_word:
            raise CorruptDataError(
                f"{self.bits_per_word}-bit words cannot be packed in {self.bits_per_packed} bits"
            )
        words_per_block = VALUES * self.bits_per_packed // self.bits_per_word
        num_full, num_rest = divmod(num_values, VALUES)
        num_words, surplus = divmod(len(buffer), word.itemsize)
        raw_tail = num_words - num_full * words_per_block
        if surplus or raw_tail not in ((num_rest, words_per_block) if num_rest else (0,)):
            raise CorruptDataError(
                f"{num_values} values packed in {self.bits_per_packed} bits cannot be "
                f"{len(buffer)} bytes of {self.bits_per_word}-bit words"
            )
        words = buffer.view(word)
        num_packed = num_full if raw_tail == num_rest else num_full + 1
        packed = words[: num_packed * words_per_block].reshape(num_packed, words_per_block)
        values = fastlanes.unpack(packed, self.bits_per_packed).reshape(-1)[:num_values]
        if num_packed == num_full and num_rest:
            values = np.concatenate([values, words[num_full * words_per_block :]])
        return _block(values, self.bits_per_word)


def _groups(positions: Positions, chunk_bytes: int) -> list[Positions]:
    """Return the positions of chunks of one size, in groups to unpack together."""
    num_groups = max(1, round(len(positions) * chunk_bytes / _GROUP_BYTES))
    return np.array_split(positions, num_groups)


def encode_mini_block(block: FixedWidthBlock, widths: Counts | None = None) -> EncodedMiniBlock:
    """Pack words of 8, 16, 32 or 64 bits in-line, each chunk about as narrow as its largest value.

    The caller decides whether that saves anything.

    Args:
        block: The values.
        widths: The result of `chunk_widths`, if it is known.
    """
    words = block.words()
    word_bytes = words.itemsize
    widths = _without_rare_widths(chunk_widths(words) if widths is None else widths)
    sizes = inline_sizes(widths, word_bytes)
    chunks = consecutive(np.empty(int(sizes.sum()), dtype=np.uint8), sizes)
    packed = chunks.data.view(words.dtype)
    heads = chunks.starts // word_bytes
    packed[heads] = widths
    if not _packed_by_loop(words, heads + 1, widths, packed):
        _pack_by_width(words, heads, widths, packed)
    num_values = np.full(len(widths), VALUES, dtype=np.int64)
    num_values[-1:] = block.num_values - VALUES * (len(widths) - 1)
    return EncodedMiniBlock(InlineBitpacking(block.bits_per_value), (chunks,), num_values)


def _packed_by_loop(words: Words, starts: Counts, widths: Counts, packed: Words) -> bool:
    """Pack chunks by a compiled loop; return False if none is loaded or suits them.

    Args:
        words: (num_values,) all values.
        starts: (num_chunks,) the first packed word of each chunk.
        widths: (num_chunks,) the width of each.
        packed: Words to fill there.
    """
    if words.itemsize not in _LOOP_WORD_BYTES or not words.flags.aligned:
        return False
    kernels = loops.get()
    if kernels is None:
        return False
    kernels.pack(_padded_rows(words), starts, widths, packed)
    return True


def _pack_by_width(words: Words, heads: Counts, widths: Counts, packed: Words) -> None:
    """Pack chunks: all of one width at once.

    Args:
        words: (num_values,) all values.
        heads: (num_chunks,) the word before the first packed one of each chunk.
        widths: (num_chunks,) the width of each.
        packed: Words to fill there.
    """
    num_full = len(words) // VALUES
    # A partial chunk is a separate stretch.
    borders = np.flatnonzero(np.diff(widths, prepend=-1, append=-1))
    borders = np.unique(np.append(borders, num_full))
    if len(borders) - 1 <= _MAX_STRETCHES:
        # Adjacent chunks of one width are evenly spaced: each stretch is packed in place.
        for first, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            width = int(widths[first])
            stride = 1 + width * VALUES // (8 * words.itemsize)
            target = packed[int(heads[first]) :][: (stop - first) * stride]
            rows = fastlanes.pack(_padded_rows(words[first * VALUES : stop * VALUES]), width)
            target.reshape(stop - first, stride)[:, 1:] = rows
    else:
        filled = _padded_rows(words)
        for width in np.unique(widths).tolist():
            positions = np.flatnonzero(widths == width)
            words_of_width = fastlanes.pack(filled[positions], width)
            to = heads[positions][:, None] + np.arange(1, 1 + words_of_width.shape[1])
            packed[to] = words_of_width


def _without_rare_widths(widths: Counts) -> Counts:
    """Widen chunks of rare widths to the next width, if this adds at most 1 % to the page.

    Each width of a page costs its readers some calls, even if only a few chunks have it.
    """
    counts = np.bincount(widths)
    present = np.flatnonzero(counts).tolist()
    allowed = int(widths.sum()) // 100
    wider = np.arange(len(counts))
    for narrow, wide in pairwise(present):
        count = int(counts[narrow])
        cost = count * (wide - narrow)
        if count < _RARE_CHUNKS and cost <= allowed:
            allowed -= cost
            counts[wide] += count
            wider[narrow] = wide
    for width in reversed(present):
        wider[width] = wider[wider[width]]
    levelled: Counts = wider[widths]
    return levelled


def encode_block(block: FixedWidthBlock, width: int) -> EncodedBlock:
    """Pack words of 8, 16, 32 or 64 bits, all less than 2 to the `width`, out of line.

    Args:
        block: The values.
        width: From 1 to one less than their bits.
    """
    words = block.words()
    words_per_block = VALUES * width // (words.itemsize * 8)
    num_full, num_rest = divmod(len(words), VALUES)
    packs_tail = num_rest > words_per_block
    num_packed = len(words) if packs_tail else num_full * VALUES
    packed = fastlanes.pack(_padded_rows(words[:num_packed]), width).reshape(-1)
    data = np.concatenate([packed, words[num_packed:]]).view(np.uint8)
    codec = OutOfLineBitpacking(block.bits_per_value, width)
    return EncodedBlock(codec, data, block.num_values)


def out_of_line_size(num_values: int, width: int, word_bytes: int) -> int:
    """Return the bytes of a block of values, packed out of line."""
    words_per_block = VALUES * width // (word_bytes * 8)
    num_full, num_rest = divmod(num_values, VALUES)
    return (num_full * words_per_block + min(num_rest, words_per_block)) * word_bytes


def chunk_widths(words: Words) -> Counts:
    """Return the bits that the values of each chunk of 1,024 need; the last may be shorter."""
    num_full = len(words) // VALUES
    tops = np.bitwise_or.reduce(words[: num_full * VALUES].reshape(num_full, VALUES), axis=1)
    if num_full * VALUES < len(words):
        tops = np.append(tops, np.bitwise_or.reduce(words[num_full * VALUES :]))
    return widths_of(tops)


def inline_sizes(widths: Counts, word_bytes: int) -> Counts:
    """Return the bytes of in-line chunks of these widths."""
    return word_bytes + widths * (VALUES // 8)


def _padded_rows(words: Words) -> Words:
    """Return values in rows of 1,024, the last row padded with zeros; a view if it is full."""
    num_full, num_rest = divmod(len(words), VALUES)
    if not num_rest:
        return words.reshape(num_full, VALUES)
    filled = np.empty((num_full + 1, VALUES), dtype=words.dtype)
    filled.reshape(-1)[: len(words)] = words
    filled[-1, num_rest:] = 0
    return filled


def widths_of(values: Words) -> Counts:
    """Return the bits that each value needs."""
    shift = 1
    while shift < values.itemsize * 8:
        values = values | values >> values.dtype.type(shift)
        shift *= 2
    return count_bits(values).astype(np.int64)


def _widths(buffer: ChunkedBuffer, num_values: Counts, word: np.dtype[np.unsignedinteger]) -> Words:
    """Return the width of each chunk, after checking its size."""
    if len(num_values) and num_values.max() > VALUES:
        raise CorruptDataError(f"a bit-packed chunk has {num_values.max()} values, over {VALUES}")
    if (buffer.sizes < word.itemsize).any():
        raise CorruptDataError(
            f"a bit-packed chunk of {buffer.sizes.min()} bytes is too short for its width"
        )
    widths = words_at(buffer.data, buffer.starts, word)
    is_wrong = (widths > word.itemsize * 8) | (
        buffer.sizes != word.itemsize + widths.astype(np.int64) * (VALUES // 8)
    )
    if is_wrong.any():
        index = int(np.argmax(is_wrong))
        raise CorruptDataError(
            f"a bit-packed chunk of {num_values[index]} values and {buffer.sizes[index]} bytes "
            f"states that each is packed in {widths[index]} of {word.itemsize * 8} bits"
        )
    return widths


def _is_aligned(buffer: ChunkedBuffer, word: np.dtype[np.unsignedinteger]) -> bool:
    """Return whether all words are aligned to their size."""
    is_apart = bool((buffer.starts % word.itemsize).any())
    return not is_apart and len(buffer.data) % word.itemsize == 0


def _unpacked_by_loop(
    buffer: ChunkedBuffer, num_values: Counts, widths: Words, values: Words
) -> bool:
    """Unpack all chunks by a compiled loop; return False if none is loaded or suits them."""
    word = values.dtype
    if word.itemsize not in _LOOP_WORD_BYTES or not _is_aligned(buffer, word):
        return False
    words = buffer.data.view(word)
    kernels = loops.get() if words.flags.aligned else None
    if kernels is None:
        return False
    check_chunks([buffer], num_values)  # because the loop checks no bounds
    kernels.unpack(words, buffer.starts // word.itemsize + 1, widths.astype(np.int64), values)
    return True


def _without_padding(values: Words, num_values: Counts) -> Words:
    """Drop the padding of chunks to 1,024 values."""
    if (num_values[:-1] == VALUES).all():
        return values.reshape(-1)[: int(num_values.sum())]
    is_value: npt.NDArray[np.bool_] = np.arange(VALUES) < num_values[:, None]
    return values[is_value]


def _block(values: Words, bits_per_word: int) -> FixedWidthBlock:
    return FixedWidthBlock(bits_per_word, len(values), values.view(np.uint8))
