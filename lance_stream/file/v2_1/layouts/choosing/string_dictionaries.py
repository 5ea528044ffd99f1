"""Byte strings of few distinct values: indices into a dictionary, in the mini-block layout.

The number of distinct values is estimated from a sample of the page: if all are equally frequent,
a sample of `size` values contains `num_distinct * (1 - exp(-size / num_distinct))` distinct ones.
Only if the estimate is small enough does Arrow look up all values.

Source:  encodings21.MiniBlockLayout.dictionary.
Differs: The reference assumes that the page has the same fraction of distinct values as its sample,
         so it writes no dictionary for a few thousand distinct values among a million.
"""

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Mask
from lance_stream.file.blocks.arrow_blocks import block_from_array
from lance_stream.file.blocks.data_blocks import FixedWidthBlock, VariableWidthBlock
from lance_stream.file.encoding_options import NONE, EncodingOptions
from lance_stream.file.v2_1.codecs import EncodedBlock, compress_block, encode_block

MIN_VALUES = 100
MAX_ITEMS = 100_000
"""As in the reference: fewer values, and dictionaries of more items, are not tried."""

MIN_COMPRESSED_BYTES = 256
MAX_COMPRESSED_RATIO = 0.96
MAX_DISTINCT_RATIO = 0.9
"""If a larger fraction of the sample is distinct, the number of distinct values is unknown."""

_SAMPLE_VALUES = 4096
_SAMPLE_BYTES = 1 << 18
_MIN_SAMPLE_VALUES = 256
_STRIDE = 2654435761
_NUM_BLOCKS = 16
_BLOCK_VALUES = 64


class StringDictionary(NamedTuple):
    """Values as indices into items.

    Attributes:
        indices: One for each value; 0 for nulls.
        items: The distinct values.
    """

    indices: FixedWidthBlock
    items: EncodedBlock


def encode_in_dictionary(
    block: VariableWidthBlock, live: Mask | None, max_bytes: int, options: EncodingOptions
) -> StringDictionary | None:
    """Look up values in a new dictionary.

    Args:
        block: The values.
        live: Which of them are not null; None if all are.
        max_bytes: The maximum size of the indices and items.
        options: The options in the column's metadata.

    Returns:
        None if there are too many distinct values for a dictionary to pay off.
    """
    count = block.num_values
    total = int(block.offsets[-1])
    max_items = min(MAX_ITEMS, count // options.dict_divisor)
    raw_bytes = total + block.offsets.itemsize * count
    max_bytes = min(max_bytes, int(raw_bytes * options.dict_size_ratio))
    if count < MIN_VALUES or not max_items:
        return None
    values = _array_of(block, live)
    expected = _distinct_values(values, total)
    if expected > max_items:
        return None
    expected_runs = int(_run_rate(values) * count)
    expected_bytes = int(expected * total / count)
    if expected_bytes + _index_bytes(int(expected), count, expected_runs) > max_bytes:
        return None
    encoded = values.dictionary_encode()
    num_items = len(encoded.dictionary)
    items = block_from_array(encoded.dictionary)
    if not num_items or num_items > max_items or not isinstance(items, VariableWidthBlock):
        return None
    indices = encoded.indices.fill_null(0)
    stored = np.frombuffer(indices.buffers()[1], np.int32)[indices.offset :][:count]
    runs = 1 + int(np.count_nonzero(stored[1:] != stored[:-1]))
    item_bytes = int(items.offsets[-1])
    if (
        item_bytes > options.dict_max_bytes
        or item_bytes + _index_bytes(num_items, count, runs) > max_bytes
    ):
        return None
    words = stored.astype(np.min_scalar_type(num_items - 1))
    return StringDictionary(
        FixedWidthBlock(8 * words.itemsize, count, words.view(np.uint8)),
        encode_string_items(items, options),
    )


def encode_string_items(items: VariableWidthBlock, options: EncodingOptions) -> EncodedBlock:
    """Encode the items of a dictionary: compressed or plain, whichever is smaller."""
    encoded = encode_block(items)
    scheme = options.dict_values_compression
    if scheme != NONE and len(encoded.data) >= MIN_COMPRESSED_BYTES:
        compressed = compress_block(encoded, scheme, options.dict_values_compression_level)
        if len(compressed.data) <= MAX_COMPRESSED_RATIO * len(encoded.data):
            return compressed
    return encoded


def _array_of(block: VariableWidthBlock, live: Mask | None) -> pa.Array:
    validity = None
    if live is not None:
        validity = pa.py_buffer(np.packbits(live, bitorder="little"))
    return pa.Array.from_buffers(
        pa.large_binary() if block.offsets.itemsize == 8 else pa.binary(),
        block.num_values,
        [validity, pa.py_buffer(block.offsets), pa.py_buffer(block.data)],
    )


def _distinct_values(values: pa.Array, num_bytes: int) -> float:
    """Estimate the number of distinct values from a sample; infinite if that is impossible."""
    count = len(values)
    sample_size = max(
        _MIN_SAMPLE_VALUES, min(_SAMPLE_VALUES, _SAMPLE_BYTES * count // max(1, num_bytes))
    )
    if count > sample_size:
        positions = np.arange(sample_size, dtype=np.int64) * _STRIDE % count
        values = values.take(pa.array(positions))
    size = len(values) - values.null_count
    num_distinct = len(values.drop_null().unique())
    if size == count:
        return num_distinct
    if num_distinct > MAX_DISTINCT_RATIO * size:
        return math.inf
    low, high = float(num_distinct), 8.0 * max(num_distinct, 1)
    for _ in range(20):
        middle = (low + high) / 2
        expected = middle * -math.expm1(-size / middle) if middle else 0.0
        low, high = (middle, high) if expected < num_distinct else (low, middle)
    return high


def _run_rate(values: pa.Array) -> float:
    """Return runs per value, estimated from a sample of adjacent values."""
    starts = np.linspace(0, max(0, len(values) - _BLOCK_VALUES), _NUM_BLOCKS).astype(np.int64)
    blocks = [values[start : start + _BLOCK_VALUES] for start in np.unique(starts).tolist()]
    same = sum(pc.sum(pc.equal(block[1:], block[:-1])).as_py() or 0 for block in blocks)
    return 1 - same / sum(len(block) for block in blocks)


def _index_bytes(num_items: int, count: int, num_runs: int) -> int:
    """Return the size of the indices, packed or as runs, whichever is smaller."""
    width = max(1, (num_items - 1).bit_length())
    return min(count * width // 8, num_runs * (2 if width <= 8 else 5))
