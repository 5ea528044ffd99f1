"""The table of array encodings: their decoders, the refused ones, and the encoder of each type.

`choose` selects the encoding of a page's strings.

Complete: its keys are the fields of the proto's oneof, which a test checks.

Source: encodings_v2_0.proto, message ArrayEncoding.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.binary import decode_binary, encode_binary, is_binary_like
from lance_stream.file.v2_0.encodings.bitpacked import (
    decode_bitpacked,
    decode_bitpacked_for_non_neg,
)
from lance_stream.file.v2_0.encodings.dictionary import decode_dictionary, encode_dictionary
from lance_stream.file.v2_0.encodings.fixed_size_binary import decode_fixed_size_binary
from lance_stream.file.v2_0.encodings.fixed_size_lists import (
    decode_fixed_size_list,
    encode_fixed_size_list,
)
from lance_stream.file.v2_0.encodings.flat import decode_flat, encode_flat, has_fixed_width
from lance_stream.file.v2_0.encodings.fsst import decode_fsst
from lance_stream.file.v2_0.encodings.nullable import decode_nullable, encode_nullable
from lance_stream.file.v2_0.encodings.packed_structs import (
    decode_packed_struct,
    encode_packed_struct,
)
from lance_stream.file.v2_0.pages import NewPage, PageBuffers

DECODERS: Final[dict[str, Callable[..., ByteRequests[pa.Array]]]] = {
    "flat": decode_flat,
    "nullable": decode_nullable,
    "fixed_size_list": decode_fixed_size_list,
    "binary": decode_binary,
    "dictionary": decode_dictionary,
    "fixed_size_binary": decode_fixed_size_binary,
    "fsst": decode_fsst,
    "packed_struct": decode_packed_struct,
    "bitpacked": decode_bitpacked,
    "bitpacked_for_non_neg": decode_bitpacked_for_non_neg,
}

REFUSED: Final[dict[str, str]] = {
    "list": "it stores the ends of lists, not values",
    "struct": "a struct has no values",
    "constant": "no known writer uses it in files of version 2.0",
    "inline_bitpacking": "an encoding of later file versions",
    "out_of_line_bitpacking": "an encoding of later file versions",
    "variable": "an encoding of later file versions",
    "packed_struct_fixed_width_mini_block": "an encoding of later file versions",
    "block": "an encoding of later file versions",
    "rle": "an encoding of later file versions",
    "general_mini_block": "an encoding of later file versions",
    "byte_stream_split": "an encoding of later file versions",
}
"""Encodings that are not supported for a page of values, and why."""


def decode_array(
    encoding: pb.ArrayEncoding, arrow: pa.DataType, page: PageBuffers, rows: Rows
) -> ByteRequests[pa.Array]:
    """Return the values at `rows` of a page, or of a part of it with its own encoding.

    Args:
        encoding: The encoding.
        arrow: The type of the values.
        page: The page's buffers.
        rows: The requested values.

    Raises:
        CorruptDataError: The encoding does not fit the type or the buffers.
        UnsupportedFeatureError: The encoding is not supported; the message names it.
        InvalidInputError: The values are too large for one array.
    """
    kind = encoding.WhichOneof("array_encoding")
    if kind is None:
        raise CorruptDataError("a page does not state its encoding")
    decode = DECODERS.get(kind)
    if decode is None:
        raise UnsupportedFeatureError(
            f"the array encoding {kind!r} is not supported here: {REFUSED[kind]}"
        )
    inner: Any = getattr(encoding, kind)
    return (yield from page.cached.serve(decode(inner, arrow, page, rows, decode_array)))


def encode_array(chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage) -> pb.ArrayEncoding:
    """Add the buffers of some arrays, in order, to a page.

    Args:
        chunks: Arrays of type `arrow`; those of a dictionary type share their dictionary.
        arrow: Their type.
        page: The page that gets the buffers.

    Raises:
        InvalidInputError: Files of version 2.0 do not support the values.
    """
    if is_binary_like(arrow):
        return encode_binary(chunks, page)
    if pa.types.is_dictionary(arrow):
        return encode_dictionary(chunks, arrow, page, encode_array)
    if pa.types.is_null(arrow):
        nothing = pb.Nullable(all_nulls=pb.Nullable.AllNull())
        return pb.ArrayEncoding(nullable=nothing)
    if pa.types.is_struct(arrow):
        return encode_packed_struct(chunks, arrow, page, encode_array)
    return encode_nullable(chunks, arrow, page, _encode_values)


def _encode_values(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage
) -> pb.ArrayEncoding:
    if pa.types.is_fixed_size_list(arrow):
        return encode_fixed_size_list(chunks, arrow, page, encode_array)
    if has_fixed_width(arrow):
        return encode_flat(chunks, arrow, page, encode_array)
    raise InvalidInputError(f"files of version 2.0 do not support columns of type {arrow}")
