"""Codecs of file versions 2.1 and 2.2: the spec's compressive encodings.

Read `codecs` first: it has the table of them and what the layouts call. Each module beside it
knows the bytes of one codec, in both directions where we write it. May import `data_blocks`.
"""

from lance_stream.file.chunked_buffers import ChunkedBuffer
from lance_stream.file.v2_1.codecs.codecs import (
    EncodedBlock,
    EncodedMiniBlock,
    EncodedValues,
    compress_block,
    compress_mini_block,
    compress_per_value,
    decode_block,
    decode_mini_block,
    decode_per_value,
    encode_block,
    encode_fsst,
    encode_mini_block,
    encode_per_value,
    num_mini_block_buffers,
    pick_mini_block,
)

__all__ = [
    "ChunkedBuffer",
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
    "encode_fsst",
    "encode_mini_block",
    "encode_per_value",
    "num_mini_block_buffers",
    "pick_mini_block",
]
