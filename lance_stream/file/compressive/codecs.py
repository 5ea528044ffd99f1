"""The compressive encodings of file versions 2.1 and 2.2, by their names in the proto.

A codec is asked for in one of three positions:

    mini-block   all chosen chunks of a page at once, each with one to three value buffers
    block        one buffer that is always read whole: dictionaries, levels, constants
    per value    the values of a full-zip page, after they were parted from their levels

`CODECS` says which codec can stand where. An encoding is a tree (FSST over variable, general over
anything): this module walks the tree, the modules beside it know one codec's bytes each.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lance_stream._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_stream.file.compressive.chunks import ChunkedBuffer, Counts
from lance_stream.file.data_blocks import Bytes, DataBlock, FixedWidthBlock, VariableWidthBlock

MAX_CHUNK_VALUES = 4096
"""Values of a mini-block chunk at most, as the reference writes them (it reads 32,768)."""

MAX_CHUNK_BYTES = 8 * 1024 - 6
"""Bytes of values that the reference aims to stay below in a mini-block chunk."""


class EncodedMiniBlock(NamedTuple):
    """A page's values, cut into mini-block chunks.

    Args:
        encoding: How, for the page's layout message.
        buffers: The value buffers, one or more, each with its place in every chunk; sizes are
            not padded to 8.
        num_values: (num_chunks,) values of each chunk: powers of two from 2 on, but for the last.
    """

    encoding: CompressiveEncoding
    buffers: tuple[ChunkedBuffer, ...]
    num_values: Counts


def num_mini_block_buffers(encoding: CompressiveEncoding) -> int:
    """Return how many value buffers each mini-block chunk of this encoding has.

    Raises:
        BadDataError: No known encoding, or none that can stand in a mini-block.
    """
    raise NotImplementedError


def decode_mini_block(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    """Decode the chosen chunks of a mini-block page.

    Args:
        encoding: The page's value compression.
        buffers: Its value buffers, `num_mini_block_buffers(encoding)` of them.
        num_values: (num_chunks,) how many values each chunk holds.

    Returns:
        The values of all chunks, in order.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    raise NotImplementedError


def decode_block(
    encoding: CompressiveEncoding, buffer: Bytes | memoryview | bytes, num_values: int
) -> DataBlock:
    """Decode a buffer that is always read whole: a dictionary's items, a chunk's levels.

    Args:
        encoding: How it is encoded.
        buffer: All its bytes and no others.
        num_values: How many values it holds. The caller has checked it against something that
            exists, if the encoding is a constant.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    raise NotImplementedError


def decode_per_value(
    encoding: CompressiveEncoding, block: FixedWidthBlock | VariableWidthBlock
) -> DataBlock:
    """Decode the values of a full-zip page, each of which was encoded by itself.

    Args:
        encoding: The page's value compression.
        block: The encoded values: of `bits_per_value` of the layout, or variable ones, without
            their length words.

    Raises:
        CorruptDataError: The bytes do not hold so many values, or are damaged.
        UnsupportedFeatureError: The encoding is none that we know, by name.
    """
    raise NotImplementedError


def encode_mini_block(
    block: DataBlock,
    *,
    max_chunk_values: int = MAX_CHUNK_VALUES,
    max_chunk_bytes: int = MAX_CHUNK_BYTES,
) -> EncodedMiniBlock:
    """Cut values into mini-block chunks, without compression.

    Args:
        block: Fixed width, variable width or fixed-size list; at least one value.
        max_chunk_values: A chunk's values at most.
        max_chunk_bytes: A chunk's bytes of values at most, as long as it has more than 2 values.

    Raises:
        InvalidInputError: Two values are larger than a chunk.
    """
    raise NotImplementedError


def encode_block(block: DataBlock) -> tuple[CompressiveEncoding, Bytes]:
    """Encode values into one buffer that is always read whole.

    Args:
        block: Fixed width or variable width.
    """
    raise NotImplementedError


def encode_per_value(
    block: DataBlock,
) -> tuple[CompressiveEncoding, FixedWidthBlock | VariableWidthBlock]:
    """Encode each value by itself, for a full-zip page.

    Args:
        block: Fixed width, variable width or fixed-size list.
    """
    raise NotImplementedError
