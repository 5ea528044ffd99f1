"""Codecs of file versions 2.1 and 2.2: the spec's compressive encodings.

Read `codec` first: the definition of a codec, and its possible positions. `registry` has the table
of them and the functions for the layouts. Each other module is one codec: its message, its bytes,
and both directions if we write it.

Codecs that contain others do not import the table: `registry` passes its own functions to them,
`parse` to read a message and `encode_per_value` to pack structs. May import `data_blocks`,
`chunked_buffers`, `compression`.
"""

from lance_stream.file.v2_1.codecs.codec import EncodedBlock, EncodedMiniBlock, EncodedValues
from lance_stream.file.v2_1.codecs.general import (
    compress_block,
    compress_mini_block,
    compress_per_value,
)
from lance_stream.file.v2_1.codecs.registry import (
    decode_block,
    decode_mini_block,
    decode_per_value,
    encode_block,
    encode_mini_block,
    encode_per_value,
    num_mini_block_buffers,
    pick_mini_block,
)

__all__ = [
    "EncodedBlock",
    "EncodedMiniBlock",
    "EncodedValues",
    "compress_block",
    "compress_mini_block",
    "compress_per_value",
    "decode_block",
    "decode_mini_block",
    "decode_per_value",
    "encode_block",
    "encode_mini_block",
    "encode_per_value",
    "num_mini_block_buffers",
    "pick_mini_block",
]
