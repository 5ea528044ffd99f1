"""FSST encoding: byte strings in which frequent pieces are replaced by 1-byte codes.

    binary          the coded values, as byte strings, with their nulls
    symbol_table    2,312 bytes in the encoding itself: the meaning of the codes

Each page has its own table; pages of less than 32 KiB have one that is switched off, and plain
values. Codes and table are those of later file versions.

Source:  encodings_v2_0.proto, message Fsst; file.compression.fsst.
Differs: The reference cannot read back large strings that it stores in this way; we can.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.data_blocks import VariableWidthBlock
from lance_stream.file.compression import fsst
from lance_stream.file.compression.fsst_symbols import decode_symbol_table, encode_symbol_table
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.binary import (
    check_text,
    encode_ends_and_bytes,
    is_binary_like,
)
from lance_stream.file.v2_0.encodings.end_offsets import arrow_offsets, has_wide_offsets, offsets_of
from lance_stream.file.v2_0.pages import Decode, NewPage, PageBuffers


def decode_fsst(
    encoding: pb.Fsst, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`.

    Raises:
        CorruptDataError: The column is of another type, the table or a code is wrong, or text is
            not UTF-8.
        InvalidInputError: The values are too large for one array.
    """
    if not is_binary_like(arrow):
        raise CorruptDataError(f"byte strings are stored for a column of type {arrow}")
    table = decode_symbol_table(encoding.symbol_table)
    is_wide = has_wide_offsets(arrow)
    coded = yield from decode(
        encoding.binary, pa.large_binary() if is_wide else pa.binary(), page, rows
    )
    # Codes decode independently: a value without codes is empty, a null one too.
    codes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(coded.buffers()[2] or b"", np.uint8)
    values = fsst.decode(VariableWidthBlock(len(coded), offsets_of(coded), codes), table)
    offsets = arrow_offsets(
        values.offsets[1:].astype(np.int64, copy=False), 0, wide=is_wide, what="bytes"
    )
    array = pa.Array.from_buffers(
        arrow, len(coded), [coded.buffers()[0], offsets, pa.py_buffer(values.data)]
    )
    check_text(array)
    return array


def encode_fsst(chunks: Sequence[pa.Array], page: NewPage) -> pb.ArrayEncoding:
    """Add the values of some arrays of byte strings or text, coded by a new table.

    Args:
        chunks: The arrays; offsets are 32 bits wide.
        page: The page that gets the buffers.
    """
    ends = np.empty(sum(len(chunk) for chunk in chunks) + 1, np.int64)
    ends[0] = 0
    parts = []
    position = 0
    for chunk in chunks:
        offsets = offsets_of(chunk)
        first, last = int(offsets[0]), int(offsets[-1])
        np.add(
            offsets[1:], ends[position] - first, out=ends[position + 1 : position + 1 + len(chunk)]
        )
        parts.append(np.frombuffer(chunk.buffers()[2] or b"", np.uint8)[first:last])
        position += len(chunk)
    data = np.concatenate(parts) if len(parts) > 1 else parts[0]
    coded, table = fsst.encode(VariableWidthBlock(position, ends, data))
    codes = np.ascontiguousarray(coded.data[: int(coded.offsets[-1])])
    inner = encode_ends_and_bytes(
        coded.offsets[1:].astype(np.uint64), [codes.data] if len(codes) else [], chunks, page
    )
    return pb.ArrayEncoding(fsst=pb.Fsst(binary=inner, symbol_table=encode_symbol_table(table)))
