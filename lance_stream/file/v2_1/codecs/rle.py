"""Run-length codec: each run of equal values is stored once, with its length.

A mini-block chunk is two buffers, little-endian:

    values    (num_runs,) of 8, 16, 32 or 64 bits   the value of each run
    lengths   (num_runs,) u8 (or u16, u32)          how often it repeats, from 1 on

A run that is too long for its length's width is cut. A block is both in one buffer:

    size      u64                                   bytes of `values`
    values
    lengths

Either may itself be encoded as a block (general, out-of-line bit-packing); the layers above have
decoded that already.

Source:  encodings21.Rle in the proto.
Differs: The lengths of a mini-block chunk may add up to more than its values: some writers cut the
         chunk after they had written the run. Lance's reader drops the surplus, and so do we. A
         block's must add up exactly.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream.errors import CorruptDataError
from lance_stream.file.chunked_buffers import ChunkedBuffer, Counts, consecutive, starts_of
from lance_stream.file.data_blocks import Bytes, FixedWidthBlock, Words

LENGTH_BITS = (8, 16, 32)

MAX_RUN = 255
"""We write lengths of 8 bits, the only ones that all readers of 2.1 and 2.2 know."""


class Runs(NamedTuple):
    """Runs of equal values, none longer than `MAX_RUN`, none over a chunk's end.

    Args:
        values: (num_runs,) the value of each.
        lengths: (num_runs,) how often it repeats.
        per_chunk: (num_chunks,) how many runs each chunk has.
    """

    values: Words
    lengths: npt.NDArray[np.uint8]
    per_chunk: Counts


def find_runs(words: Words, chunk_starts: Counts) -> Runs:
    """Find the runs in values.

    Args:
        words: The values; at least one.
        chunk_starts: (num_chunks,) where each chunk starts, ascending, the first 0.
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


def encode_chunks(words: Words, num_values: Counts) -> tuple[ChunkedBuffer, ChunkedBuffer]:
    """Encode values for chunks of a page.

    Args:
        words: The values.
        num_values: (num_chunks,) how many go into each chunk.

    Returns:
        The values of the runs of each chunk, and their lengths.
    """
    runs = find_runs(words, starts_of(num_values))
    return (
        consecutive(runs.values.view(np.uint8), runs.per_chunk * words.itemsize),
        consecutive(runs.lengths, runs.per_chunk),
    )


def encode(words: Words) -> Bytes:
    """Encode values as a block."""
    runs = find_runs(words, np.zeros(1, np.int64))
    size = np.array([runs.values.nbytes], "<u8")
    return np.concatenate([size.view(np.uint8), runs.values.view(np.uint8), runs.lengths])


def encode_blocks(words: Words, starts: Counts) -> ChunkedBuffer:
    """Encode slices of values, each as a block of its own.

    Args:
        words: The values; at least one.
        starts: (num_slices,) where each starts, ascending, the first 0. Slices can be empty.
    """
    runs = find_runs(words, starts)
    value_bytes = runs.per_chunk * words.itemsize
    sizes = 8 + value_bytes + runs.per_chunk
    blocks = consecutive(np.empty(int(sizes.sum()), np.uint8), sizes)
    # Where a byte belongs: heads, then values, then lengths, of each block.
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
        num_runs: (num_chunks,) how many runs each chunk has.
        num_values: (num_chunks,) how many values each chunk has.

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


def pick_chunks(
    values: FixedWidthBlock,
    lengths: FixedWidthBlock,
    num_runs: Counts,
    num_values: Counts,
    places: Counts,
) -> FixedWidthBlock:
    """Decode single values of the chosen chunks of a page.

    Args:
        values: As in `decode_chunks`.
        lengths: As in `decode_chunks`.
        num_runs: As in `decode_chunks`.
        num_values: As in `decode_chunks`.
        places: Which values, counted over all chunks.

    Raises:
        CorruptDataError: As in `decode_chunks`.
    """
    stops, sums = _stops_of(values, lengths, num_runs, num_values)
    firsts = starts_of(num_values)
    chunks = np.searchsorted(firsts + num_values, places, side="right")
    at = starts_of(sums)[chunks] + places - firsts[chunks]
    picked = values.words()[np.searchsorted(stops, at, side="right")]
    return FixedWidthBlock(values.bits_per_value, len(picked), picked.view(np.uint8))


def _stops_of(
    values: FixedWidthBlock, lengths: FixedWidthBlock, num_runs: Counts, num_values: Counts
) -> tuple[Counts, Counts]:
    """Return where each run stops, counted over all runs, and what each chunk's add up to."""
    stops = np.cumsum(_checked_lengths(values, lengths), dtype=np.int64)
    bounds = np.append(0, stops)
    last_runs = np.cumsum(num_runs)
    sums: Counts = bounds[last_runs] - bounds[last_runs - num_runs]
    if (sums < num_values).any():
        place = int(np.argmax(sums < num_values))
        raise CorruptDataError(
            f"the runs of a chunk add up to {sums[place]}, but it has {num_values[place]} values"
        )
    return stops, sums


def decode(values: FixedWidthBlock, lengths: FixedWidthBlock, num_values: int) -> FixedWidthBlock:
    """Decode the runs of a block.

    Raises:
        CorruptDataError: A length is 0, or they do not add up to the number of values.
    """
    repeats = _checked_lengths(values, lengths)
    total = int(repeats.sum(dtype=np.uint64))
    if total != num_values:
        raise CorruptDataError(f"runs add up to {total}, but there are {num_values} values")
    return _repeated(values, repeats)


def parted(buffer: Bytes) -> tuple[Bytes, Bytes]:
    """Part a block into its values and its lengths.

    Raises:
        CorruptDataError: The values are said to be longer than the block.
    """
    size = int(buffer[:8].view("<u8")[0]) if len(buffer) >= 8 else -1
    if not 0 <= size <= len(buffer) - 8:
        raise CorruptDataError(
            f"a run-length block of {len(buffer)} bytes says that it has {size} bytes of values"
        )
    return buffer[8 : 8 + size], buffer[8 + size :]


def _checked_lengths(
    values: FixedWidthBlock, lengths: FixedWidthBlock
) -> npt.NDArray[np.unsignedinteger]:
    if lengths.bits_per_value not in LENGTH_BITS:
        raise CorruptDataError(f"run lengths of {lengths.bits_per_value} bits cannot be")
    if values.num_values != lengths.num_values:
        raise CorruptDataError(f"{values.num_values} runs have {lengths.num_values} lengths")
    repeats = lengths.words()
    if len(repeats) and repeats.min() == 0:
        raise CorruptDataError("a run has the length 0")
    return repeats


def _repeated(values: FixedWidthBlock, repeats: npt.NDArray[np.integer]) -> FixedWidthBlock:
    repeated = np.repeat(values.words(), repeats.astype(np.int64, copy=False))
    return FixedWidthBlock(values.bits_per_value, len(repeated), repeated.view(np.uint8))
