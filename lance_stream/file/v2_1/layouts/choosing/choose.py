"""Chooses the layout of a page.

    no value (nulls, empty lists)            constant
    2.2: one value for all rows, no levels          constant
    a dictionary                                    mini-block
    packed structs                     see `choose_packed`
    byte strings                                    see `choose_strings`
    fixed width, and a codec saves enough           mini-block; see `choose_fixed`
    fixed width, wide                               full-zip
    fixed width, narrow, no levels, whole bytes     full-zip: the plain values
    fixed width, narrow, other                       mini-block
    levels that fit into no mini-block chunk        full-zip

A column's metadata take precedence.

Differs: The reference uses mini-block for all narrow values. Plain values in full-zip are the
         array's own memory, and each row can be read separately.
"""

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Mask
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.arrow_blocks import block_from_array
from lance_stream.file.blocks.data_blocks import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    StructBlock,
    VariableWidthBlock,
)
from lance_stream.file.encoding_options import (
    DEFAULT_OPTIONS,
    FULLZIP,
    MINIBLOCK,
    EncodingOptions,
)
from lance_stream.file.v2_1.codecs import EncodedBlock
from lance_stream.file.v2_1.codecs.fixed_size_list import FixedSizeList
from lance_stream.file.v2_1.layouts.choosing.choose_fixed import (
    WIDE_BYTES,
    encode_fixed_values,
    encode_indices,
    encode_items,
    live_values,
)
from lance_stream.file.v2_1.layouts.choosing.choose_packed import encode_packed_page
from lance_stream.file.v2_1.layouts.choosing.choose_strings import encode_string_page
from lance_stream.file.v2_1.layouts.choosing.string_dictionaries import encode_string_items
from lance_stream.file.v2_1.layouts.constant import encode_null_page, encode_value_page
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout
from lance_stream.file.v2_1.layouts.full_zip.full_zip import encode_full_zip_page
from lance_stream.file.v2_1.layouts.levels import Levels
from lance_stream.file.v2_1.layouts.mini_block.mini_block import (
    MAX_VALUE_BYTES,
    encode_mini_block_page,
)
from lance_stream.file.versions import FileVersion

_SAMPLE = 64


def encode_page(
    levels: Levels,
    values: pa.Array,
    valid: Mask | None,
    version: FileVersion,
    options: EncodingOptions = DEFAULT_OPTIONS,
) -> EncodedLayout | None:
    """Encode the rows of a page of one leaf column.

    Args:
        levels: The nesting of the values.
        values: One for each visible entry; null ones are arbitrary.
        valid: Which of them are not null; None if all are.
        version: 2.1 or 2.2.
        options: The options in the column's metadata.

    Returns:
        The page; None if it must be split into pages of fewer rows.

    Raises:
        UnsupportedFeatureError: We do not write this type.
        InvalidInputError: A value is too large for the format.
    """
    large = version is not FileVersion.V2_1
    live = live_values(levels)
    if len(values) == 0 or pa.types.is_null(values.type) or (live is not None and not live.any()):
        return encode_null_page(levels, packs_levels=large)
    if pa.types.is_struct(values.type) and values.type.num_fields == 0:
        raise UnsupportedFeatureError("structs without fields are not supported")
    if pa.types.is_dictionary(values.type):
        indices, items = _dictionary_blocks(values, valid)
        stored: DataBlock | EncodedBlock = items
        if isinstance(items, FixedWidthBlock):
            stored = encode_items(items, options)
        elif isinstance(items, VariableWidthBlock):
            stored = encode_string_items(items, options)
        for chunks in (encode_indices(indices, live, options), indices):
            if chunks is not None:
                encoded = encode_mini_block_page(levels, chunks, stored, has_large_chunk=large)
                if encoded is not None:
                    return encoded
        return None
    block = block_from_array(values)
    if isinstance(block, StructBlock):
        return encode_packed_page(levels, block, version, options)
    has_levels = levels.repetition is not None or levels.definition is not None
    if large and not has_levels:
        value = _only_value(block)
        if value is not None:
            return encode_value_page(levels, value)
    if isinstance(block, VariableWidthBlock):
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        return encode_string_page(levels, block, version, options, is_text=is_text)
    if isinstance(block, FixedWidthBlock) and options.structural_encoding != FULLZIP:
        chosen = encode_fixed_values(block, live, version, options)
        if chosen is not None:
            encoded = encode_mini_block_page(
                levels, chosen.values, chosen.items, has_large_chunk=large
            )
            if encoded is not None:
                return encoded
    if _suits_chunks(block, options, has_levels=has_levels):
        encoded = encode_mini_block_page(levels, block, None, has_large_chunk=large)
        if encoded is not None:
            return encoded
    if isinstance(block, FixedWidthBlock) and block.bits_per_value == 1:
        bits = np.unpackbits(block.data, count=block.num_values, bitorder="little")
        block = FixedWidthBlock(8, block.num_values, bits)
    return encode_full_zip_page(levels, block)


def _suits_chunks(block: DataBlock, options: EncodingOptions, *, has_levels: bool) -> bool:
    bits = (
        FixedSizeList.of(block).bits_per_row
        if isinstance(block, FixedSizeListBlock)
        else _bits_per_value(block)
    )
    if options.structural_encoding is not None:
        return options.structural_encoding == MINIBLOCK and 2 * bits <= 8 * MAX_VALUE_BYTES
    return bits % 8 != 0 or (has_levels and bits < 8 * WIDE_BYTES)


def _bits_per_value(block: DataBlock) -> int:
    if not isinstance(block, FixedWidthBlock):
        raise InvalidInputError(f"a {type(block).__name__} cannot be written")
    return block.bits_per_value


def _only_value(block: DataBlock) -> DataBlock | None:
    """Return a block's only distinct value; None if it has several."""
    count = block.num_values
    if isinstance(block, VariableWidthBlock):
        size = int(block.offsets[1])
        used = block.data[: int(block.offsets[-1])]
        if len(used) != size * count or (np.diff(block.offsets) != size).any():
            return None
        if size and not _repeats(used.reshape(count, size)):
            return None
        return VariableWidthBlock(1, block.offsets[:2], used[:size])
    if not isinstance(block, FixedWidthBlock):
        return None
    if block.bits_per_value == 1:
        ones = np.unpackbits(block.data[: (count + 7) // 8], count=count, bitorder="little")
        if ones.any() and not ones.all():
            return None
        return FixedWidthBlock(1, 1, ones[:1])
    width = block.bits_per_value // 8
    if not _repeats(block.data.reshape(count, width)):
        return None
    return FixedWidthBlock(block.bits_per_value, 1, block.data[:width])


def _repeats(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> bool:
    """Return whether all rows are the same; a few are compared first."""
    sample = rows[:: max(1, len(rows) // _SAMPLE)]
    if not (sample == rows[0]).all():
        return False
    width = rows.shape[1]
    data = rows.reshape(-1)
    if width in (2, 4, 8):
        data, width = data.view(f"<u{width}"), 1
    return bool((data[width:] == data[:-width]).all())


def _dictionary_blocks(values: pa.Array, valid: Mask | None) -> tuple[FixedWidthBlock, DataBlock]:
    """Return indices, with 0 for nulls, and items."""
    indices = block_from_array(values.indices)
    if not isinstance(indices, FixedWidthBlock):
        raise InvalidInputError("the indices of a dictionary are not integers")
    if valid is not None:
        words = np.where(valid, indices.words(), 0).astype(indices.words().dtype)
        indices = FixedWidthBlock(indices.bits_per_value, len(words), words.view(np.uint8))
    return indices, block_from_array(values.dictionary)
