"""The codecs of file versions 2.1 and 2.2 by the names of their fields in CompressiveEncoding.

An encoding is a tree: FSST over variable, general over anything. `parse` creates codecs from it,
each of which requests those inside of it in the same way; so codecs need not know this table.
"""

from collections.abc import Sequence

import numpy as np

from lance_stream._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_stream.arrays import Bytes, Counts
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, check_chunks
from lance_stream.file.blocks.data_blocks import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    StructBlock,
    VariableWidthBlock,
)
from lance_stream.file.v2_1.codecs import fixed_size_list, flat, packed_struct, variable
from lance_stream.file.v2_1.codecs.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lance_stream.file.v2_1.codecs.byte_stream_split import ByteStreamSplit
from lance_stream.file.v2_1.codecs.codec import (
    Codec,
    EncodedBlock,
    EncodedMiniBlock,
    EncodedValues,
    ValueBlock,
    in_block,
    in_full_zip,
    in_mini_block,
)
from lance_stream.file.v2_1.codecs.constant import Constant
from lance_stream.file.v2_1.codecs.fixed_size_list import FixedSizeList
from lance_stream.file.v2_1.codecs.flat import Flat
from lance_stream.file.v2_1.codecs.fsst import Fsst
from lance_stream.file.v2_1.codecs.general import General
from lance_stream.file.v2_1.codecs.packed_struct import PackedStruct, VariablePackedStruct
from lance_stream.file.v2_1.codecs.rle import Rle
from lance_stream.file.v2_1.codecs.variable import Variable

CODECS: dict[str, type[Codec]] = {
    "flat": Flat,
    "variable": Variable,
    "constant": Constant,
    "out_of_line_bitpacking": OutOfLineBitpacking,
    "inline_bitpacking": InlineBitpacking,
    "fsst": Fsst,
    "rle": Rle,
    "byte_stream_split": ByteStreamSplit,
    "general": General,
    "fixed_size_list": FixedSizeList,
    "packed_struct": PackedStruct,
    "variable_packed_struct": VariablePackedStruct,
}
"""The codecs that we decode."""

REFUSED: dict[str, str] = {
    "dictionary": "2.1 and 2.2 keep a dictionary in the layout; as a codec, 2.3 tries it out",
    "range": "an experiment of file version 2.3, which is not stable yet",
    "delta": "an experiment of file version 2.3, which is not stable yet",
}
"""The codecs that we do not decode, and why."""

MAX_CHUNK_VALUES = 4096
"""The most values in a mini-block chunk, as the reference writes them (it reads 32,768)."""

MAX_CHUNK_BYTES = 8 * 1024 - 6
"""The reference's target for the bytes of values in a mini-block chunk."""


def parse(encoding: CompressiveEncoding) -> Codec:
    """Return the codec that an encoding describes.

    Raises:
        CorruptDataError: The codec is impossible.
        UnsupportedFeatureError: It, or one inside of it, is unknown; the message names it.
    """
    name: str | None = encoding.WhichOneof("compression")
    if name is None:
        raise UnsupportedFeatureError("an encoding is missing, or of an unknown kind")
    if name in REFUSED:
        raise UnsupportedFeatureError(f"the encoding {name!r} is not supported: {REFUSED[name]}")
    return CODECS[name].from_proto(getattr(encoding, name), parse)


def num_mini_block_buffers(encoding: CompressiveEncoding) -> int:
    """Return the number of value buffers in each mini-block chunk of this encoding.

    Raises:
        BadDataError: The encoding is unknown, or not supported in a mini-block.
    """
    return in_mini_block(parse(encoding)).num_buffers


def decode_mini_block(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkedBuffer], num_values: Counts
) -> DataBlock:
    """Decode the chosen chunks of a mini-block page.

    Args:
        encoding: The page's value compression.
        buffers: Its value buffers, `num_mini_block_buffers(encoding)` of them.
        num_values: (num_chunks,) the number of values of each chunk.

    Returns:
        The values of all chunks, in order.

    Raises:
        CorruptDataError: The bytes do not match the number of values, or are damaged.
        UnsupportedFeatureError: The encoding is unknown; the message names it.
    """
    codec = in_mini_block(parse(encoding))
    if len(buffers) != codec.num_buffers:
        raise CorruptDataError(
            f"a mini-block page with the encoding {codec.name!r} needs {codec.num_buffers} value "
            f"buffers, but has {len(buffers)}"
        )
    check_chunks(buffers, num_values)
    return codec.decode_mini_block(buffers, num_values)


def pick_mini_block(
    encoding: CompressiveEncoding,
    buffers: Sequence[ChunkedBuffer],
    num_values: Counts,
    positions: Counts,
) -> DataBlock | None:
    """Decode single values of the chosen chunks of a mini-block page.

    Args:
        encoding: As in `decode_mini_block`.
        buffers: As in `decode_mini_block`.
        num_values: As in `decode_mini_block`.
        positions: Which values, counted over all chunks.

    Returns:
        None if decoding whole chunks is the codec's fastest way.

    Raises:
        CorruptDataError: The bytes do not match the number of values, or are damaged.
        UnsupportedFeatureError: The encoding is unknown; the message names it.
    """
    codec = in_mini_block(parse(encoding))
    if len(buffers) != codec.num_buffers:
        return None
    check_chunks(buffers, num_values)
    return codec.pick(buffers, num_values, positions)


def decode_block(
    encoding: CompressiveEncoding, buffer: Bytes | memoryview | bytes, num_values: int
) -> DataBlock:
    """Decode a buffer that is always read as a whole: a dictionary's items, a chunk's levels.

    Args:
        encoding: Its encoding.
        buffer: All its bytes and no others.
        num_values: The number of its values. If the encoding is a constant, the caller has checked
            it against stored data.

    Raises:
        CorruptDataError: The bytes do not match the number of values, or are damaged.
        UnsupportedFeatureError: The encoding is unknown; the message names it.
    """
    codec = in_block(parse(encoding))
    if num_values < 0:
        raise CorruptDataError(f"a block cannot have {num_values} values")
    return codec.decode_block(np.frombuffer(buffer, dtype=np.uint8), num_values)


def decode_per_value(encoding: CompressiveEncoding, block: ValueBlock) -> DataBlock:
    """Decode the values of a full-zip page, each of which was encoded separately.

    Args:
        encoding: The page's value compression.
        block: The encoded values: of `bits_per_value` of the layout, or variable ones, without
            their length words. Its offsets have been checked.

    Raises:
        CorruptDataError: The bytes do not match the number of values, or are damaged.
        UnsupportedFeatureError: The encoding is unknown; the message names it.
    """
    return in_full_zip(parse(encoding)).decode_per_value(block)


def encode_mini_block(
    block: DataBlock,
    *,
    max_chunk_values: int = MAX_CHUNK_VALUES,
    max_chunk_bytes: int = MAX_CHUNK_BYTES,
) -> EncodedMiniBlock:
    """Cut values into mini-block chunks, without compression.

    Args:
        block: Fixed width, variable width, fixed-size list, or structs of fixed width; at least
            one value.
        max_chunk_values: The most values in a chunk, from 2.
        max_chunk_bytes: The most bytes of values in a chunk. A chunk of two byte strings may be
            larger.

    Raises:
        InvalidInputError: Two values of fixed width are larger than a chunk.
    """
    if not 2 <= max_chunk_values <= 1 << 15:
        raise InvalidInputError(f"a mini-block chunk cannot have {max_chunk_values} values")
    limits = {"max_chunk_values": max_chunk_values, "max_chunk_bytes": max_chunk_bytes}
    if isinstance(block, FixedWidthBlock):
        return flat.encode_mini_block(block, **limits)
    if isinstance(block, VariableWidthBlock):
        return variable.encode_mini_block(block, **limits)
    if isinstance(block, FixedSizeListBlock):
        return fixed_size_list.encode_mini_block(block, **limits)
    if isinstance(block, StructBlock):
        return packed_struct.encode_mini_block(block, **limits)
    raise InvalidInputError(f"a {type(block).__name__} cannot be cut into chunks")


def encode_block(block: DataBlock) -> EncodedBlock:
    """Encode values into one buffer that is always read as a whole, without compression.

    Args:
        block: Fixed width, variable width or fixed-size list.
    """
    if isinstance(block, FixedWidthBlock):
        return flat.encode_block(block)
    if isinstance(block, VariableWidthBlock):
        return variable.encode_block(block)
    if isinstance(block, FixedSizeListBlock):
        return fixed_size_list.encode_block(block)
    raise InvalidInputError(f"a {type(block).__name__} cannot be encoded as a block")


def encode_per_value(block: DataBlock) -> EncodedValues:
    """Encode each value separately, for a full-zip page, without compression.

    Args:
        block: Fixed width, variable width, fixed-size list or structs.
    """
    if isinstance(block, FixedWidthBlock):
        return flat.encode_per_value(block)
    if isinstance(block, VariableWidthBlock):
        return variable.encode_per_value(block)
    if isinstance(block, FixedSizeListBlock):
        return fixed_size_list.encode_per_value(block)
    if isinstance(block, StructBlock):
        return packed_struct.encode_per_value(block, encode_per_value)
    raise InvalidInputError(f"a {type(block).__name__} cannot be encoded value by value")
