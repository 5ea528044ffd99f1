"""Chooses the codec of a page of fixed-width values.

    what the values are                        codec, in the mini-block layout
    often equal to the previous value                  runs
    far from the largest of their width        bit-packing, in line
    few distinct ones, of 64 (2.2), 128 bits   a dictionary, its indices by one of the two above
    none of these                              plain

A sample of the page shows which of them may pay off; only these are computed, and the smallest is
used if it saves enough. A null value is arbitrary: it becomes what suits the codec best (a zero, or
the value before it), and its original bytes are never stored.

If a column requests general compression, chunks are compressed on top of that, floats perhaps
split into their bytes before.

Differs: The reference tries a dictionary before it examines the values' bits, and gives up early
         on one of many items; it does not treat null values. A run-length page of ours has
         chunks of up to 16 KiB.
"""

from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Mask
from lance_stream.file.blocks.data_blocks import WORDS, FixedWidthBlock, Words
from lance_stream.file.encoding_options import (
    AUTO,
    LZ4,
    MINIBLOCK,
    NONE,
    ON,
    ZSTD,
    EncodingOptions,
)
from lance_stream.file.v2_1.codecs import (
    EncodedBlock,
    EncodedMiniBlock,
    bitpacking,
    byte_stream_split,
    compress_block,
    compress_mini_block,
    encode_block,
    encode_mini_block,
    rle,
)
from lance_stream.file.v2_1.layouts.levels import Levels
from lance_stream.file.v2_1.layouts.mini_block.mini_block import MAX_VALUE_BYTES
from lance_stream.file.versions import FileVersion

S = TypeVar("S", bound=np.generic)

WIDE_BYTES = 256
"""Values of at least this size are stored individually instead of in chunks."""

MAX_ENCODED_SHARE = 0.96
"""The maximum size of encoded values as a fraction of the plain ones, because a codec slows down
reads."""

MIN_BYTES = 256
"""Pages with fewer bytes of values are written plain."""

MIN_DICTIONARY_VALUES = 100
MAX_DICTIONARY_ITEMS = 100_000
"""As in the reference: pages of fewer values, and dictionaries of more items, are not tried."""

MAX_DISTINCT_SHARE = 0.5
"""No dictionary is tried if a larger fraction of the sample is distinct."""

DICTIONARY_GAIN = 0.8
"""The maximum size of a page with a dictionary as a fraction of the next best codec's page, because
a dictionary is read as a whole."""

SMALL_ENOUGH = 1 / 16
"""If runs are at most this fraction of the plain values, packing is not tried; if runs or packed
values are, a dictionary is not tried."""

_SAMPLE_BLOCKS = 32
_BLOCK_VALUES = 128
_INDEX_BITS = 32
_DICTIONARY_TYPES = {64: pa.uint64(), 128: pa.binary(16)}
_SPLIT_ENTROPY = 4.0
"""Bits per byte, on average over a value's bytes, below which splitting is assumed to pay off."""


class FixedEncoding(NamedTuple):
    """A page's values, encoded for mini-blocks.

    Attributes:
        values: In chunks.
        items: The dictionary, if `values` are indices into one.
    """

    values: EncodedMiniBlock
    items: EncodedBlock | None


def encode_fixed_values(
    block: FixedWidthBlock, live: Mask | None, version: FileVersion, options: EncodingOptions
) -> FixedEncoding | None:
    """Encode values of fixed width for a mini-block page.

    Args:
        block: One for each visible entry.
        live: Which of them are not null, one at least; None: all of them.
        version: 2.1 or 2.2.
        options: The options in the column's metadata.

    Returns:
        None if they are best stored plain.
    """
    if options.compression == NONE or len(block.data) < MIN_BYTES:
        return None
    is_wide = block.bits_per_value >= 8 * WIDE_BYTES and options.structural_encoding != MINIBLOCK
    if is_wide or 2 * block.bits_per_value > 8 * MAX_VALUE_BYTES:
        return None
    if options.compression not in (ZSTD, LZ4):
        return _smallest_encoding(block, live, version, options)
    if _splits(block, options):
        chosen = FixedEncoding(byte_stream_split.encode_mini_block(block), None)
    else:
        plain = FixedEncoding(encode_mini_block(block, max_chunk_bytes=MAX_VALUE_BYTES), None)
        chosen = _smallest_encoding(block, live, version, options) or plain
    compressed = compress_mini_block(chosen.values, options.compression, options.compression_level)
    if _size_of(compressed) < _size_of(chosen.values):
        return FixedEncoding(compressed, chosen.items)
    return chosen


def _smallest_encoding(
    block: FixedWidthBlock, live: Mask | None, version: FileVersion, options: EncodingOptions
) -> FixedEncoding | None:
    """Return the smallest of runs, packing and a dictionary; None if none saves enough."""
    encoded = _encode_words(block, live, options)
    raw_bytes = block.num_values * block.bits_per_value // 8
    min_bytes = raw_bytes if encoded is None else _size_of(encoded)
    if block.bits_per_value in _dictionary_bits(version) and min_bytes > SMALL_ENOUGH * raw_bytes:
        in_dictionary = _encode_dictionary(block, live, min_bytes, options)
        if in_dictionary is not None:
            return in_dictionary
    return None if encoded is None else FixedEncoding(encoded, None)


def encode_indices(
    indices: FixedWidthBlock, live: Mask | None, options: EncodingOptions
) -> EncodedMiniBlock | None:
    """Encode indices into a dictionary for a mini-block page; None if plain ones are best."""
    if options.compression == NONE or len(indices.data) < MIN_BYTES:
        return None
    return _encode_words(indices, live, options)


def live_values(levels: Levels) -> Mask | None:
    """Return which of the values are not null; None if all are."""
    if levels.definition is None:
        return None
    visible = levels.visible()
    live: Mask = (levels.definition if visible is None else levels.definition[visible]) == 0
    return None if live.all() else live


def _encode_words(
    block: FixedWidthBlock, live: Mask | None, options: EncodingOptions
) -> EncodedMiniBlock | None:
    """Encode words as runs or packed; None if neither saves enough."""
    if block.bits_per_value not in WORDS:
        return None
    words = block.words()
    bits = block.bits_per_value
    raw_bytes = words.nbytes
    sample = _sampled(words, live)
    candidates: list[EncodedMiniBlock] = []
    bytes_per_run = words.itemsize + 1
    if sample.run_rate * bytes_per_run < MAX_ENCODED_SHARE * min(
        words.itemsize, sample.bits / 8 + 1
    ):
        filled = words if live is None else _filled_forward(words, live)
        runs = 1 + int(np.count_nonzero(filled[1:] != filled[:-1]))
        if options.rle_threshold is None or runs < options.rle_threshold * len(words):
            runs_block = replace(block, data=filled.view(np.uint8))
            candidates.append(rle.encode_mini_block(runs_block, MAX_VALUE_BYTES))
            if _size_of(candidates[0]) <= SMALL_ENOUGH * raw_bytes:
                return candidates[0]
    if sample.bits <= MAX_ENCODED_SHARE * bits:
        filled = words if live is None else _filled_with_zeros(words, live)
        widths = bitpacking.chunk_widths(filled)
        packed_bytes = int(bitpacking.inline_sizes(widths, words.itemsize).sum())
        min_bytes = min((_size_of(candidate) for candidate in candidates), default=raw_bytes)
        if packed_bytes < min_bytes:
            block_of_zeros = replace(block, data=filled.view(np.uint8))
            packed = bitpacking.encode_mini_block(block_of_zeros, widths)
            return _if_saving(packed, block)
    return _if_saving(candidates[0], block) if candidates else None


class _Sample(NamedTuple):
    """Statistics of a sample of a page's values.

    Attributes:
        run_rate: Runs per value.
        bits: Bits that the largest value of a block needs, on average.
    """

    run_rate: float
    bits: float


def _sampled(words: Words, live: Mask | None) -> _Sample:
    blocks = _sample_blocks(words)
    differs = blocks[:, 1:] != blocks[:, :-1]
    if live is None:
        run_rate = differs.mean() if differs.size else 1.0
    else:
        live_blocks = _sample_blocks(live)
        blocks = np.where(live_blocks, blocks, 0)
        both = live_blocks[:, 1:] & live_blocks[:, :-1]
        run_rate = (differs & both).sum() / max(1, both.sum())
    tops = np.bitwise_or.reduce(blocks, axis=1)
    return _Sample(float(run_rate), float(bitpacking.widths_of(tops).mean()))


def _sample_blocks(values: npt.NDArray[S]) -> npt.NDArray[S]:
    """Return evenly spread blocks of adjacent values; all values, in one block, if they are few."""
    if len(values) <= _SAMPLE_BLOCKS * _BLOCK_VALUES:
        return values.reshape(1, -1)
    starts = np.linspace(0, len(values) - _BLOCK_VALUES, _SAMPLE_BLOCKS).astype(np.int64)
    blocks: npt.NDArray[S] = values[starts[:, None] + np.arange(_BLOCK_VALUES)]
    return blocks


def _filled_forward(words: Words, live: Mask) -> Words:
    """Return values with each null one replaced by the last non-null one before it."""
    first = words[int(np.argmax(live))]
    if bool(((words == first) | ~live).all()):
        return np.full(len(words), first)
    positions = np.where(live, np.arange(len(words), dtype=np.int64), 0)
    positions[: int(np.argmax(live))] = int(np.argmax(live))
    return words[np.maximum.accumulate(positions)]


def _filled_with_zeros(words: Words, live: Mask) -> Words:
    return words * live


def _if_saving(encoded: EncodedMiniBlock, block: FixedWidthBlock) -> EncodedMiniBlock | None:
    raw_bytes = block.num_values * block.bits_per_value / 8
    return encoded if _size_of(encoded) <= MAX_ENCODED_SHARE * raw_bytes else None


def _size_of(encoded: EncodedMiniBlock) -> int:
    return sum(int(buffer.sizes.sum()) for buffer in encoded.buffers)


def _dictionary_bits(version: FileVersion) -> tuple[int, ...]:
    return (128,) if version is FileVersion.V2_1 else (64, 128)


def _encode_dictionary(
    block: FixedWidthBlock, live: Mask | None, max_bytes: int, options: EncodingOptions
) -> FixedEncoding | None:
    """Encode values by a dictionary, if that is smaller than `max_bytes` by enough."""
    count = block.num_values
    max_items = min(MAX_DICTIONARY_ITEMS, count // options.dict_divisor)
    max_bytes = int(max_bytes * min(DICTIONARY_GAIN, options.dict_size_ratio))
    if count < MIN_DICTIONARY_VALUES or not max_items:
        return None
    item_bytes = block.bits_per_value // 8
    rows = block.data.view(f"V{item_bytes}" if item_bytes == 16 else "<u8")
    sample = _sample_blocks(rows if live is None else rows[live]).reshape(-1)
    distinct = len(set(sample.tolist()))
    min_bits = max(distinct - 1, 0).bit_length()
    if (
        distinct > MAX_DISTINCT_SHARE * len(sample)
        or distinct * item_bytes + count * min_bits // 8 > max_bytes
    ):
        return None
    validity = None
    if live is not None:
        validity = pa.py_buffer(np.packbits(live, bitorder="little"))
    values = pa.Array.from_buffers(
        _DICTIONARY_TYPES[block.bits_per_value], count, [validity, pa.py_buffer(block.data)]
    ).dictionary_encode()
    num_items = len(values.dictionary)
    if num_items > max_items:
        return None
    stored = np.frombuffer(values.indices.buffers()[1], "<u4")[:count]
    indices = FixedWidthBlock(_INDEX_BITS, count, stored.view(np.uint8))
    encoded = _encode_words(indices, live, options)
    if encoded is None:
        return None
    items = FixedWidthBlock(
        block.bits_per_value,
        num_items,
        np.frombuffer(values.dictionary.buffers()[1], np.uint8)[: num_items * item_bytes],
    )
    if _size_of(encoded) + len(items.data) > max_bytes:
        return None
    return FixedEncoding(encoded, encode_items(items, options))


def encode_items(items: FixedWidthBlock, options: EncodingOptions) -> EncodedBlock:
    """Encode a dictionary's items: packed, compressed or plain, whichever is best."""
    raw_bytes = len(items.data)
    if items.bits_per_value in WORDS:
        words = items.words()
        width = int(np.bitwise_or.reduce(words)).bit_length()
        size = bitpacking.out_of_line_size(len(words), width, words.itemsize)
        if 0 < width < items.bits_per_value and size <= MAX_ENCODED_SHARE * raw_bytes:
            return bitpacking.encode_block(items, width)
    encoded = encode_block(items)
    scheme = options.dict_values_compression
    if scheme != NONE and raw_bytes >= MIN_BYTES:
        compressed = compress_block(encoded, scheme, options.dict_values_compression_level)
        if len(compressed.data) <= MAX_ENCODED_SHARE * raw_bytes:
            return compressed
    return encoded


def _splits(block: FixedWidthBlock, options: EncodingOptions) -> bool:
    """Return whether to split values into their bytes before compressing them."""
    if block.bits_per_value not in byte_stream_split.BITS_PER_VALUE:
        return False
    if options.byte_stream_split != AUTO:
        return options.byte_stream_split == ON
    sample = _sample_blocks(block.words()).reshape(-1).view(np.uint8)
    width = block.bits_per_value // 8
    entropies = []
    for index in range(width):
        stream = sample[index::width]
        counts = np.bincount(stream)
        parts = counts[counts > 0] / len(stream)
        entropies.append(float(-(parts * np.log2(parts)).sum()))
    return sum(entropies) / len(entropies) < _SPLIT_ENTROPY
