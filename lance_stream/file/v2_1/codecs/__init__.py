"""Codecs of file versions 2.1 and 2.2: the spec's compressive encodings.

Read `codec` first: what a codec is, and where it can stand. `registry` has the table of them and
what the layouts call. Each module beside these is one codec: its message, its bytes, and both
directions where we write it.

Codecs that have others inside of them do not import the table: `registry` hands its own functions
in, `parse` to what reads a message and `encode_per_value` to what packs structs. May import
`data_blocks`, `chunked_buffers`, `compression`.
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
