"""Chooses the layout of packed structs.

    all parts of fixed width, two structs fit into a chunk    mini-block
    2.2: a part of no fixed width, or a fixed-size list       full-zip
    other                                                      full-zip, of fixed width

Source: files that the reference wrote; it has no packed strings before 2.2.
"""

from lance_stream.errors import InvalidInputError
from lance_stream.file.blocks.data_blocks import FixedWidthBlock, StructBlock
from lance_stream.file.encoding_options import FULLZIP, EncodingOptions
from lance_stream.file.v2_1.layouts.encoded_layouts import EncodedLayout
from lance_stream.file.v2_1.layouts.full_zip.full_zip import encode_full_zip_page
from lance_stream.file.v2_1.layouts.levels import Levels
from lance_stream.file.v2_1.layouts.mini_block.mini_block import (
    MAX_VALUE_BYTES,
    encode_mini_block_page,
)
from lance_stream.file.versions import FileVersion


def encode_packed_page(
    levels: Levels, block: StructBlock, version: FileVersion, options: EncodingOptions
) -> EncodedLayout:
    """Encode a page of packed structs.

    Args:
        levels: Their nesting.
        block: One for each visible entry; null ones are arbitrary.
        version: 2.1 or 2.2.
        options: The options in the column's metadata.

    Raises:
        InvalidInputError: Files of this version do not support a part in a packed struct.
    """
    widths = [part.bits_per_value for part in block.parts if isinstance(part, FixedWidthBlock)]
    has_width = len(widths) == len(block.parts)
    if not has_width and version is FileVersion.V2_1:
        raise InvalidInputError(
            "packed structs of files of version 2.1 support only values of fixed width, no strings "
            "or lists; omit the metadata 'lance-encoding:packed', or write the table in 2.2"
        )
    fits = has_width and 2 * sum(widths) <= 8 * MAX_VALUE_BYTES
    if fits and options.structural_encoding != FULLZIP:
        large = version is not FileVersion.V2_1
        encoded = encode_mini_block_page(levels, block, None, has_large_chunk=large)
        if encoded is not None:
            return encoded
    return encode_full_zip_page(levels, block)
