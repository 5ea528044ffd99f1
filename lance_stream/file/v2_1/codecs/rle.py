"""Run-length codec: each run of equal values is stored once, with its length.

A mini-block chunk is two buffers, little-endian:

    values    (num_runs,) of 8, 16, 32 or 64 bits   the value of each run
    lengths   (num_runs,) u8 (or u16, u32)          the number of repetitions, from 1

A run that is too long for its length's width is split. A block is both in one buffer:

    size      u64                                   bytes of `values`
    values
    lengths

Either may itself be encoded as a block (general, out-of-line bit-packing). The number of runs
follows from the size of the values or lengths that are flat, possibly compressed.

Source:  encodings21.Rle in the proto.
Differs: The lengths of a mini-block chunk may add up to more than its values: some writers cut the
         chunk after they had written the run. Lance's reader drops the surplus, and so do we. A
         block's must add up exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.chunked_buffers import (
    ChunkedBuffer,
    consecutive,
    joined,
    single_chunks,
    starts_of,
)
from lance_stream.file.blocks.data_blocks import FixedWidthBlock, Words
from lance_stream.file.v2_1.codecs import flat
from lance_stream.file.v2_1.codecs.bitpacking import OutOfLineBitpacking
from lance_stream.file.v2_1.codecs.codec import (
    BlockCodec,
    Codec,
    EncodedBlock,
    EncodedMiniBlock,
    MiniBlockCodec,
    Parse,
    fixed_width,
    in_block,
    only,
)
from lance_stream.file.v2_1.codecs.flat import Flat
from lance_stream.file.v2_1.codecs.general import General

LENGTH_BITS = (8, 16, 32)

MAX_RUN = 255
"""We write lengths of 8 bits, the only ones that all readers of 2.1 and 2.2 support."""

MAX_CHUNK_VALUES = 4096

ValuesAndLengths: TypeAlias = tuple[FixedWidthBlock, FixedWidthBlock]
"""The value of each run, and its length."""


@dataclass(frozen=True, slots=True)
class Rle(MiniBlockCodec, BlockCodec):
    """Runs of equal words.

    Args:
        values: The codec of the runs' values.
        run_lengths: The codec of the lengths.
    """

    name = "rle"

    values: Codec
    run_lengths: Codec

    @classmethod
    def of(cls, bits_per_value: int) -> Self:
        """Return the codec of runs of words of one width, as we write them."""
        return cls(Flat(bits_per_value), Flat(8))

    @classmethod
    def from_proto(cls, message: pb.Rle, parse: Parse) -> Self:
        return cls(parse(message.values), parse(message.run_lengths))

    def to_proto(self) -> pb.CompressiveEncoding:
        return pb.CompressiveEncoding(
            rle=pb.Rle(values=self.values.to_proto(), run_lengths=self.run_lengths.to_proto())
        )

    @property
    def num_buffers(self) -> int:
        return 2

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> FixedWidthBlock:
        if isinstance(self.values, Flat) and isinstance(self.run_lengths, Flat):
            return decode_chunks(*self._flat_runs(buffers), num_values)
        values, lengths = buffers
        runs = [
            self._runs(joined(chunk_values), joined(chunk_lengths))
            for chunk_values, chunk_lengths in zip(
                single_chunks(values), single_chunks(lengths), strict=True
            )
        ]
        return decode_chunks(
            _concatenated([run[0] for run in runs], _bits_of(self.values)),
            _concatenated([run[1] for run in runs], _bits_of(self.run_lengths)),
            np.array([run[1].num_values for run in runs], dtype=np.int64),
            num_values,
        )

    def pick(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts, positions: Counts
    ) -> FixedWidthBlock | None:
        if isinstance(self.values, Flat) and isinstance(self.run_lengths, Flat):
            return _pick_chunks(*self._flat_runs(buffers), num_values, positions)
        return None

    def decode_block(self, buffer: Bytes, num_values: int) -> FixedWidthBlock:
        values, lengths = self._runs(*_split_block(buffer))
        repeats = _checked_lengths(values, lengths)
        total = int(repeats.sum(dtype=np.uint64))
        if total != num_values:
            raise CorruptDataError(f"runs add up to {total}, but there are {num_values} values")
        return _repeated(values, repeats)

    def _flat_runs(
        self, buffers: Sequence[ChunkedBuffer]
    ) -> tuple[FixedWidthBlock, FixedWidthBlock, Counts]:
        """Return the values and lengths of the runs of chunks, and the runs per chunk."""
        values, lengths = _flat(self.values), _flat(self.run_lengths)
        num_runs = buffers[1].sizes * 8 // lengths.bits_per_value
        if (num_runs * values.bits_per_value != buffers[0].sizes * 8).any():
            raise CorruptDataError("a run-length chunk has different numbers of values and lengths")
        return (
            values.decode_mini_block(buffers[:1], num_runs),
            lengths.decode_mini_block(buffers[1:], num_runs),
            num_runs,
        )

    def _runs(self, values: Bytes, lengths: Bytes) -> ValuesAndLengths:
        """Decode runs; the buffer whose size determines the number of runs is decoded first."""
        if _determines_count(self.run_lengths):
            lengths_block = _decode_all(self.run_lengths, lengths)
            num_runs = lengths_block.num_values
            decoded = in_block(self.values).decode_block(values, num_runs)
            return fixed_width(decoded, self.name), lengths_block
        values_block = _decode_all(self.values, values)
        num_runs = values_block.num_values
        decoded = in_block(self.run_lengths).decode_block(lengths, num_runs)
        return values_block, fixed_width(decoded, self.name)


class Runs(NamedTuple):
    """Runs of equal values, none longer than `MAX_RUN`, none across a chunk's end.

    Args:
        values: (num_runs,) the value of each.
        lengths: (num_runs,) its number of repetitions.
        per_chunk: (num_chunks,) the number of runs of each chunk.
    """

    values: Words
    lengths: npt.NDArray[np.uint8]
    per_chunk: Counts


def find_runs(words: Words, chunk_starts: Counts) -> Runs:
    """Find the runs in values.

    Args:
        words: The values; at least one.
        chunk_starts: (num_chunks,) the start of each chunk, ascending, the first 0.
    """
    is_start = np.empty(len(words), np.bool_)
    np.not_equal(words[1:], words[:-1], out=is_start[1:])
    is_start[chunk_starts[chunk_starts < len(words)]] = True
    starts = np.flatnonzero(is_start)
    lengths = np.diff(starts, append=len(words))
    values = words[starts]
    if lengths.max() > MAX_RUN:
        pieces = -(-lengths // MAX_RUN)
        lasts = np.cumsum(pieces) - 1
        rests = lengths - (pieces - 1) * MAX_RUN
        starts = np.repeat(starts, pieces) + MAX_RUN * (
            np.arange(lasts[-1] + 1) - np.repeat(lasts - pieces + 1, pieces)
        )
        values = np.repeat(values, pieces)
        lengths = np.full(len(values), MAX_RUN, np.int64)
        lengths[lasts] = rests
    firsts = np.searchsorted(starts, np.append(chunk_starts, len(words)))
    return Runs(values, lengths.astype(np.uint8), np.diff(firsts))


def encode_mini_block(block: FixedWidthBlock, max_chunk_bytes: int) -> EncodedMiniBlock:
    """Cut words of 8, 16, 32 or 64 bits into mini-block chunks of one size, as runs.

    Args:
        block: The values.
        max_chunk_bytes: The most bytes in a chunk; at least those of two values and their lengths.
    """
    max_values = MAX_CHUNK_VALUES
    while True:
        num_values = flat.chunk_counts(
            block.num_values,
            bits_per_value=block.bits_per_value,
            max_chunk_values=max_values,
            max_chunk_bytes=max_values * block.bits_per_value // 8,
        )
        buffers = _encode_chunks(block.words(), num_values)
        if max_values == 2 or int((buffers[0].sizes + buffers[1].sizes).max()) <= max_chunk_bytes:
            break
        max_values //= 2
    return EncodedMiniBlock(Rle.of(block.bits_per_value), buffers, num_values)


def encode_block(block: FixedWidthBlock) -> EncodedBlock:
    """Encode words of 8, 16, 32 or 64 bits as one buffer."""
    runs = find_runs(block.words(), np.zeros(1, np.int64))
    size = np.array([runs.values.nbytes], "<u8")
    data = np.concatenate([size.view(np.uint8), runs.values.view(np.uint8), runs.lengths])
    return EncodedBlock(Rle.of(block.bits_per_value), data, block.num_values)


def _encode_chunks(words: Words, num_values: Counts) -> tuple[ChunkedBuffer, ChunkedBuffer]:
    """Encode values for chunks of a page.

    Args:
        words: The values.
        num_values: (num_chunks,) the number of values of each chunk.

    Returns:
        The values of the runs of each chunk, and their lengths.
    """
    runs = find_runs(words, starts_of(num_values))
    return (
        consecutive(runs.values.view(np.uint8), runs.per_chunk * words.itemsize),
        consecutive(runs.lengths, runs.per_chunk),
    )


def encode_blocks(words: Words, starts: Counts) -> ChunkedBuffer:
    """Encode slices of values, each as a separate block.

    Args:
        words: The values; at least one.
        starts: (num_slices,) the start of each, ascending, the first 0. Slices can be empty.
    """
    runs = find_runs(words, starts)
    value_bytes = runs.per_chunk * words.itemsize
    sizes = 8 + value_bytes + runs.per_chunk
    blocks = consecutive(np.empty(int(sizes.sum()), np.uint8), sizes)
    # The position of each byte: head, then values, then lengths of each block.
    kinds = np.repeat(
        np.tile(np.array([0, 1, 2], np.uint8), len(sizes)),
        np.stack([np.full_like(sizes, 8), value_bytes, runs.per_chunk], axis=1).reshape(-1),
    )
    blocks.data[kinds == 0] = value_bytes.astype("<u8").view(np.uint8)
    blocks.data[kinds == 1] = runs.values.view(np.uint8)
    blocks.data[kinds == 2] = runs.lengths
    return blocks


def decode_chunks(
    values: FixedWidthBlock, lengths: FixedWidthBlock, num_runs: Counts, num_values: Counts
) -> FixedWidthBlock:
    """Decode the chosen chunks of a page.

    Args:
        values: The values of all runs of all chunks.
        lengths: Their lengths.
        num_runs: (num_chunks,) the number of runs of each chunk.
        num_values: (num_chunks,) the number of values of each chunk.

    Raises:
        CorruptDataError: A length is 0, or a chunk's lengths add up to less than its values.
    """
    stops, sums = _stops_of(values, lengths, num_runs, num_values)
    if (sums > num_values).any():
        stops = np.minimum(
            stops - np.repeat(starts_of(sums), num_runs), np.repeat(num_values, num_runs)
        )
        stops += np.repeat(starts_of(num_values), num_runs)
    return _repeated(values, np.diff(stops, prepend=0))


def _pick_chunks(
    values: FixedWidthBlock,
    lengths: FixedWidthBlock,
    num_runs: Counts,
    num_values: Counts,
    positions: Counts,
) -> FixedWidthBlock:
    """Decode single values of chunks; arguments and errors as in `decode_chunks`."""
    stops, sums = _stops_of(values, lengths, num_runs, num_values)
    firsts = starts_of(num_values)
    chunks = np.searchsorted(firsts + num_values, positions, side="right")
    at = starts_of(sums)[chunks] + positions - firsts[chunks]
    picked = values.words()[np.searchsorted(stops, at, side="right")]
    return FixedWidthBlock(values.bits_per_value, len(picked), picked.view(np.uint8))


def _stops_of(
    values: FixedWidthBlock, lengths: FixedWidthBlock, num_runs: Counts, num_values: Counts
) -> tuple[Counts, Counts]:
    """Return the stop of each run, counted over all runs, and the sum of each chunk's lengths."""
    stops = np.cumsum(_checked_lengths(values, lengths), dtype=np.int64)
    bounds = np.append(0, stops)
    last_runs = np.cumsum(num_runs)
    sums: Counts = bounds[last_runs] - bounds[last_runs - num_runs]
    if (sums < num_values).any():
        index = int(np.argmax(sums < num_values))
        raise CorruptDataError(
            f"the runs of a chunk add up to {sums[index]}, but it has {num_values[index]} values"
        )
    return stops, sums


def _split_block(buffer: Bytes) -> tuple[Bytes, Bytes]:
    """Split a block into its values and its lengths.

    Raises:
        CorruptDataError: The block is too short.
    """
    size = int(buffer[:8].view("<u8")[0]) if len(buffer) >= 8 else -1
    if not 0 <= size <= len(buffer) - 8:
        raise CorruptDataError(
            f"a run-length block of {len(buffer)} bytes claims to have {size} bytes of values"
        )
    return buffer[8 : 8 + size], buffer[8 + size :]


def _checked_lengths(
    values: FixedWidthBlock, lengths: FixedWidthBlock
) -> npt.NDArray[np.unsignedinteger]:
    if lengths.bits_per_value not in LENGTH_BITS:
        raise CorruptDataError(f"run lengths cannot have {lengths.bits_per_value} bits")
    if values.num_values != lengths.num_values:
        raise CorruptDataError(f"{values.num_values} runs have {lengths.num_values} lengths")
    repeats = lengths.words()
    if len(repeats) and repeats.min() == 0:
        raise CorruptDataError("a run has the length 0")
    return repeats


def _repeated(values: FixedWidthBlock, repeats: npt.NDArray[np.integer]) -> FixedWidthBlock:
    repeated = np.repeat(values.words(), repeats.astype(np.int64, copy=False))
    return FixedWidthBlock(values.bits_per_value, len(repeated), repeated.view(np.uint8))


def _flat(codec: Codec) -> Flat:
    """Return the codec of plain words."""
    words = only(codec, Flat, Rle.name)
    words.check()
    return words


def _determines_count(codec: Codec) -> bool:
    """Return whether the size of a buffer determines the number of its values."""
    return isinstance(codec.values if isinstance(codec, General) else codec, Flat)


def _decode_all(codec: Codec, buffer: Bytes) -> FixedWidthBlock:
    """Decode all flat values, possibly compressed, of a buffer."""
    if isinstance(codec, General):
        return _decode_all(codec.values, codec.raw_block(buffer))
    words = _flat(codec)
    return words.decode_block(buffer, len(buffer) * 8 // words.bits_per_value)


def _bits_of(codec: Codec) -> int:
    """Return the width of the decoded values or lengths."""
    if isinstance(codec, General):
        return _bits_of(codec.values)
    if isinstance(codec, OutOfLineBitpacking):
        return codec.bits_per_word
    return _flat(codec).bits_per_value


def _concatenated(blocks: Sequence[FixedWidthBlock], bits_per_value: int) -> FixedWidthBlock:
    """Join blocks of whole bytes."""
    if any(block.bits_per_value != bits_per_value for block in blocks) or bits_per_value % 8:
        raise CorruptDataError(f"the values of runs do not have {bits_per_value} bits")
    data = np.concatenate([np.empty(0, dtype=np.uint8), *(block.data for block in blocks)])
    return FixedWidthBlock(bits_per_value, sum(block.num_values for block in blocks), data)
