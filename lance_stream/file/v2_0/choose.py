"""Chooses the encoding of pages of nulls and of byte strings; others have only one.

    only nulls                      nothing
    text of few distinct values     a dictionary: one byte a value, and each distinct value once
    metadata `compression`          zstd, lz4: the bytes of the page compressed at once; fsst:
                                    coded by a table of symbols, if offsets are 32 bits wide
    everything else                        end offsets and bytes

Source:  files that the reference wrote.
Differs: The reference estimates the number of distinct values, which is exact for so few. It also
    writes
         text that is null throughout as a dictionary, and other null strings as ends. It cannot
         read large strings that it codes by FSST; we store them plain.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.file.encoding_options import FSST, LZ4, ZSTD, EncodingOptions
from lance_stream.file.v2_0.array_encodings import encode_array
from lance_stream.file.v2_0.encodings.binary import encode_binary, is_binary_like
from lance_stream.file.v2_0.encodings.dictionary import encode_distinct_texts
from lance_stream.file.v2_0.encodings.end_offsets import has_wide_offsets
from lance_stream.file.v2_0.encodings.fsst import encode_fsst
from lance_stream.file.v2_0.pages import NewPage

DISTINCT_TEXTS: Final = 100
"""A dictionary has fewer distinct values than this, and at least this many rows."""

_SAMPLES: Final = (500, 20_000)
"""This many values are checked first: they exclude most pages of many distinct values."""


def encode_page(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage, options: EncodingOptions
) -> pb.ArrayEncoding:
    """Add the buffers of a page of values.

    Args:
        chunks: Arrays of type `arrow`; those of a dictionary type share their dictionary.
        arrow: Their type.
        page: The page that gets the buffers.
        options: The options in the column's metadata.

    Raises:
        InvalidInputError: Files of version 2.0 do not support the values.
    """
    num_values = sum(len(chunk) for chunk in chunks)
    if pa.types.is_struct(arrow):
        return encode_array(chunks, arrow, page)
    if num_values and all(chunk.null_count == len(chunk) for chunk in chunks):
        return pb.ArrayEncoding(nullable=pb.Nullable(all_nulls=pb.Nullable.AllNull()))
    if not is_binary_like(arrow):
        return encode_array(chunks, arrow, page)
    if pa.types.is_string(arrow):
        coded = _as_dictionaries(chunks)
        if coded is not None:
            indices = [array.indices for array in coded]
            return encode_distinct_texts(indices, coded[0].dictionary, page, encode_array)
    if options.compression in {LZ4, ZSTD}:
        return encode_binary(chunks, page, options.compression, options.compression_level)
    if options.compression == FSST and not has_wide_offsets(arrow):
        return encode_fsst(chunks, page)
    return encode_array(chunks, arrow, page)


def _as_dictionaries(chunks: Sequence[pa.Array]) -> Sequence[pa.DictionaryArray] | None:
    """Return texts as arrays that share a dictionary; None if too many values are distinct."""
    text = pa.chunked_array(chunks)
    if len(text) < DISTINCT_TEXTS:
        return None
    for num_values in _SAMPLES:
        if num_values < len(text):
            start = (len(text) - num_values) // 2
            if pc.count_distinct(text.slice(start, num_values)).as_py() >= DISTINCT_TEXTS:
                return None
    coded = text.dictionary_encode().unify_dictionaries()
    if len(coded.chunk(0).dictionary) >= DISTINCT_TEXTS:
        return None
    return [chunk for chunk in coded.chunks if len(chunk)]
