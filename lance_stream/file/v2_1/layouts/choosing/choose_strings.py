"""Chooses the layout and the codecs of a page of byte strings.

    few distinct values         mini-block, a dictionary
    small, compressible         mini-block, chunks compressed by zstd
    large, compressible         full-zip, each value compressed by zstd
    other, short                mini-block, plain
    other, long                 full-zip, plain

With compiled loops, strings that FSST makes about as small as zstd are compressed by FSST; by numpy
it would take several times as long.

A column's metadata can request a layout, or another compression (lz4, fsst, none), and set limits
for dictionaries. A few pieces of a page show whether it is compressible.

Differs: The reference uses FSST for strings and nothing for binary; and full-zip for any page that
         has a value of 256 bytes. Chunks by zstd are mostly smaller, and cost us less time.
"""

from collections.abc import Iterator

import numpy as np

from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import VariableWidthBlock
from lance_stream.file.compression import zstd_lz4
from lance_stream.file.compression.compiled import loops
from lance_stream.file.compression.fsst import TrainedSymbols, trained
from lance_stream.file.encoding_options import (
    FSST,
    FULLZIP,
    LZ4,
    MINIBLOCK,
    NONE,
    ZSTD,
    EncodingOptions,
)
from lance_stream.file.v2_1.codecs import (
    EncodedMiniBlock,
    EncodedValues,
    compress_mini_block,
    compress_per_value,
    encode_mini_block,
    encode_per_value,
    fsst,
)
from lance_stream.file.v2_1.codecs.variable import Variable
from lance_stream.file.v2_1.layouts.choosing.choose_fixed import encode_indices, live_values
from lance_stream.file.v2_1.layouts.choosing.string_dictionaries import encode_in_dictionary
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout
from lance_stream.file.v2_1.layouts.full_zip.full_zip import encode_full_zip_page
from lance_stream.file.v2_1.layouts.levels import Levels
from lance_stream.file.v2_1.layouts.mini_block.mini_block import (
    MAX_VALUE_BYTES,
    encode_mini_block_page,
)
from lance_stream.file.versions import FileVersion

WIDE_BYTES = 256
"""A page whose byte strings are all shorter is split into chunks."""

LONG_BYTES = 4096
"""An uncompressed page with a byte string this long is not split into chunks, ..."""

LONG_MEAN_BYTES = 128
"""... nor is one with byte strings of this average length."""

LARGE_BYTES = {False: LONG_BYTES, True: 1 << 20}
"""The same for a compressed page: without and with large chunks."""

LARGE_MEAN_BYTES = 2048

MIN_COMPRESSED_BYTES = 4096
"""A smaller page is not compressed unless the metadata request it."""

MIN_COMPRESSED_MEAN_BYTES = 512
"""Values shorter than this on average are not compressed individually."""

MAX_COMPRESSED_RATIO = {True: 0.92, False: 0.5}
"""The largest ratio of compressed to raw bytes of the samples for which compression is worth its
time: for strings, and for binary, which the reference never compresses, and which takes three times
as long to write when compressed."""

DICTIONARY_BONUS = 1.25
"""A dictionary may be this much larger than compressed values, because it is faster to read."""

CHUNK_BYTES = {False: MAX_VALUE_BYTES, True: 32 * 1024}
"""Bytes of a chunk before it is compressed: without and with large chunks."""

MAX_SMALL_CHUNK_BYTES = 30 * 1024

FSST_RATIOS = (0.2, 0.5)
"""FSST is tried if zstd's ratio of compressed to raw bytes is between these. Below, FSST compresses
less than zstd, because a symbol has at most 8 bytes; above, too, because zstd encodes random
letters in fewer bits."""

FSST_BONUS = 1.1
"""FSST may be this much larger than zstd, because reads are faster, above all of single rows."""

MIN_FSST_BYTES = 4 << 20
"""Symbols are chosen for pages of at least this size. Choosing them takes 12 ms, the time that FSST
saves over zstd when it encodes 4 MiB."""

_CHUNK_VALUES = (4096, 256, 16, 2)
_NUM_SAMPLES = 4
_SAMPLE_BYTES = 8 * 1024


def encode_string_page(
    levels: Levels,
    block: VariableWidthBlock,
    version: FileVersion,
    options: EncodingOptions,
    *,
    is_text: bool = True,
) -> EncodedLayout | None:
    """Encode the rows of a page of one leaf column of byte strings.

    Args:
        levels: The nesting of the values.
        block: One for each visible entry; null ones are arbitrary. At least one is not null.
        version: 2.1 or 2.2.
        options: The options in the column's metadata.
        is_text: Whether they are strings, not binary.

    Returns:
        The page; None if it must be split into pages of fewer rows.
    """
    large = version is not FileVersion.V2_1
    scheme = options.compression
    ratio = _compression_ratio(block) if scheme is None else 1.0
    if options.structural_encoding != FULLZIP and scheme not in (NONE, FSST):
        encoded_page = _encode_in_dictionary(levels, block, ratio, options, large=large)
        if encoded_page is not None:
            return encoded_page
    choice = None
    if scheme is None:
        scheme = ZSTD if ratio < MAX_COMPRESSED_RATIO[is_text] else NONE
        if scheme == ZSTD and is_text:
            choice = _smaller_fsst(block, ratio)
            scheme = ZSTD if choice is None else FSST
    if _suits_chunks(block, options, is_compressed=scheme != NONE, large=large):
        for encoded in _in_chunks(block, scheme, options, choice, large=large):
            layout = encode_mini_block_page(levels, encoded, None, has_large_chunk=large)
            if layout is not None:
                return layout
    return encode_full_zip_page(levels, _encode_individually(block, scheme, options, choice))


def _smaller_fsst(block: VariableWidthBlock, ratio: float) -> TrainedSymbols | None:
    """Return symbols for a page if FSST makes it about as small as zstd, and takes no longer.

    Args:
        block: The values.
        ratio: The ratio of compressed to raw bytes for zstd.
    """
    total = int(block.offsets[-1])
    min_ratio, max_ratio = FSST_RATIOS
    if total < MIN_FSST_BYTES or not min_ratio <= ratio < max_ratio or loops.get() is None:
        return None
    choice = trained(block)
    if choice is None:
        return None
    # zstd compresses the offsets of values, too, but not by much.
    zstd_bytes = ratio * total + 3 * block.num_values
    fsst_bytes = choice.ratio * total + block.offsets.itemsize * block.num_values
    return choice if fsst_bytes < FSST_BONUS * zstd_bytes else None


def _in_chunks(
    block: VariableWidthBlock,
    scheme: str,
    options: EncodingOptions,
    choice: TrainedSymbols | None,
    *,
    large: bool,
) -> Iterator[EncodedMiniBlock]:
    """Yield the values in chunks, then in smaller and smaller ones."""
    max_bytes = options.minichunk_bytes or (
        CHUNK_BYTES[large] if scheme in (LZ4, ZSTD) else MAX_VALUE_BYTES
    )
    if not large:
        max_bytes = min(max_bytes, MAX_SMALL_CHUNK_BYTES)
    codec, values = fsst.encode(block, choice) if scheme == FSST else (Variable.of(block), block)
    for max_values in _CHUNK_VALUES:
        chunks = encode_mini_block(values, max_chunk_values=max_values, max_chunk_bytes=max_bytes)
        encoded = chunks._replace(codec=codec)
        if scheme in (LZ4, ZSTD):
            encoded = compress_mini_block(encoded, scheme, options.compression_level)
        yield encoded


def _encode_individually(
    block: VariableWidthBlock, scheme: str, options: EncodingOptions, choice: TrainedSymbols | None
) -> EncodedValues:
    # The reference cannot read nulls among individual lz4 values, and writes zstd for lz4.
    is_long = int(block.offsets[-1]) >= MIN_COMPRESSED_MEAN_BYTES * block.num_values
    if scheme in (LZ4, ZSTD) and (is_long or options.compression is not None):
        return compress_per_value(block, ZSTD, options.compression_level)
    return encode_per_value(block) if scheme == NONE else EncodedValues(*fsst.encode(block, choice))


def _suits_chunks(
    block: VariableWidthBlock, options: EncodingOptions, *, is_compressed: bool, large: bool
) -> bool:
    if options.structural_encoding is not None:
        return options.structural_encoding == MINIBLOCK
    total = int(block.offsets[-1])
    longest = int(np.diff(block.offsets).max()) if total >= WIDE_BYTES else total
    if is_compressed:
        return longest < LARGE_BYTES[large] and total < LARGE_MEAN_BYTES * block.num_values
    return longest < WIDE_BYTES or (
        longest < LONG_BYTES and total < LONG_MEAN_BYTES * block.num_values
    )


def _compression_ratio(block: VariableWidthBlock) -> float:
    """Return zstd's ratio of compressed to raw bytes for samples of a page; 1 for a small page."""
    total = int(block.offsets[-1])
    if total < MIN_COMPRESSED_BYTES:
        return 1.0
    size = min(total, _SAMPLE_BYTES)
    starts = np.unique(np.linspace(0, total - size, _NUM_SAMPLES).astype(np.int64))
    samples = ChunkedBuffer(block.data, starts, np.full(len(starts), size, np.int64))
    compressed = int(zstd_lz4.encode_chunks(samples, ZSTD, None).sizes.sum())
    return compressed / (size * len(starts))


def _encode_in_dictionary(
    levels: Levels,
    block: VariableWidthBlock,
    ratio: float,
    options: EncodingOptions,
    *,
    large: bool,
) -> EncodedLayout | None:
    """Encode a page with a dictionary, unless compression is much better.

    Args:
        levels: As in `encode_string_page`.
        block: As in `encode_string_page`.
        ratio: The ratio of compressed to raw bytes of the values; a compressed offset is assumed to
            take one byte.
        options: As in `encode_string_page`.
        large: Whether chunks can be large.
    """
    max_bytes = int(DICTIONARY_BONUS * (ratio * int(block.offsets[-1]) + block.num_values))
    live = live_values(levels)
    dictionary = encode_in_dictionary(block, live, max_bytes, options)
    if dictionary is None:
        return None
    for indices in (encode_indices(dictionary.indices, live, options), dictionary.indices):
        if indices is not None:
            layout = encode_mini_block_page(
                levels, indices, dictionary.items, has_large_chunk=large
            )
            if layout is not None:
                return layout
    return None
