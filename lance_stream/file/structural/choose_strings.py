"""Which layout a page of byte strings is written in.

    long      full-zip
    short     mini-block

Differs: The reference takes full-zip for any page that has one value of 256 bytes.
"""

import numpy as np

from lance_stream.file.data_blocks import VariableWidthBlock
from lance_stream.file.encoding_options import MINIBLOCK, EncodingOptions
from lance_stream.file.levels import Levels
from lance_stream.file.structural.encoded_layouts import EncodedLayout
from lance_stream.file.structural.full_zip import encode_full_zip_page
from lance_stream.file.structural.mini_block import encode_mini_block_page
from lance_stream.file.versions import FileVersion

WIDE_BYTES = 256
"""A page whose byte strings are all shorter is cut into chunks."""

LONG_BYTES = 4096
"""A page with a byte string this long is not cut into chunks."""

LONG_MEAN_BYTES = 128
"""Neither is one whose byte strings are so long on average."""


def encode_string_page(
    levels: Levels, block: VariableWidthBlock, version: FileVersion, options: EncodingOptions
) -> EncodedLayout | None:
    """Encode the rows of a page of one leaf column of byte strings.

    Args:
        levels: How the values hang together.
        block: One for each visible entry; null ones have any filler. At least one is not null.
        version: 2.1 or 2.2.
        options: What the column's metadata asks for.

    Returns:
        The page; None if it has to be cut into pages of fewer rows.
    """
    if _suits_chunks(block, options):
        large = version is not FileVersion.V2_1
        encoded = encode_mini_block_page(levels, block, None, has_large_chunk=large)
        if encoded is not None:
            return encoded
    return encode_full_zip_page(levels, block)


def _suits_chunks(block: VariableWidthBlock, options: EncodingOptions) -> bool:
    if options.structural_encoding is not None:
        return options.structural_encoding == MINIBLOCK
    total = int(block.offsets[-1])
    longest = int(np.diff(block.offsets).max()) if total >= WIDE_BYTES else total
    return longest < WIDE_BYTES or (
        longest < LONG_BYTES and total < LONG_MEAN_BYTES * block.num_values
    )
