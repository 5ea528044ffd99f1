"""Bit-packed encodings: integers without their high bits. Read-only: no current writer uses them.

Integers, the end offsets and the bytes of strings were stored this way on request.

Bitpacked, values of W bits one after the other, least significant bit first, without gaps:

    buffer      ceil(num_values * W / 8) bytes
    signed      the highest of the W bits is the sign, and is extended; otherwise zeros are

Eight values are W whole bytes, so eight shifts unpack any number of them.

BitpackedForNonNeg, values in the FastLanes order, the last 1,024 padded:

    buffer      ceil(num_values / 1024) * 128 * W bytes

Source: encodings_v2_0.proto, messages Bitpacked and BitpackedForNonNeg; compression.fastlanes.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange, ByteRequests
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.data_blocks import WORDS
from lance_stream.file.compression import fastlanes
from lance_stream.file.rows import MAX_POSITION, Rows
from lance_stream.file.v2_0.encodings.flat import (
    as_bytes,
    has_fixed_width,
    read_slices,
    read_values,
)
from lance_stream.file.v2_0.pages import Decode, PageBuffers

_BYTES_PER_BLOCK_AND_BIT = fastlanes.VALUES // 8


def decode_bitpacked(
    encoding: pb.Bitpacked, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`.

    Raises:
        CorruptDataError: The widths are impossible or do not fit the type, or the buffer is too
            short.
    """
    del decode  # no nested encoding
    width = encoding.compressed_bits_per_value
    word = _word(arrow, width, encoding.uncompressed_bits_per_value)
    buffer = page.find(encoding.buffer)
    if rows.stop * width > MAX_POSITION or (rows.stop * width + 7) // 8 > buffer.size_bytes:
        raise CorruptDataError(
            f"{rows.stop} values of {width} bits do not fit into {buffer.size_bytes} bytes"
        )
    groups, positions = _groups_of(rows, 8)
    packed = yield from _read_groups(buffer, groups, width)
    values = _unpack(packed, width, is_signed=encoding.signed)[positions]
    return _to_array(arrow, values.astype(word, copy=False))


def decode_bitpacked_for_non_neg(
    encoding: pb.BitpackedForNonNeg,
    arrow: pa.DataType,
    page: PageBuffers,
    rows: Rows,
    decode: Decode,
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`.

    Raises:
        CorruptDataError: The widths are impossible or do not fit the type, or the buffer is too
            short.
    """
    del decode  # no nested encoding
    width = encoding.compressed_bits_per_value
    word = _word(arrow, width, encoding.uncompressed_bits_per_value)
    blocks, positions = _groups_of(rows, fastlanes.VALUES)
    block_bytes = _BYTES_PER_BLOCK_AND_BIT * width
    data = yield from read_values(page.find(encoding.buffer), block_bytes, blocks)
    words = np.frombuffer(data, word).reshape(len(blocks), block_bytes // word.itemsize)
    return _to_array(arrow, fastlanes.unpack(words, width).reshape(-1)[positions])


def _word(arrow: pa.DataType, width: int, word_bits: int) -> np.dtype[np.unsignedinteger]:
    if (
        not has_fixed_width(arrow)
        or word_bits not in WORDS
        or word_bits != arrow.bit_width
        or not 0 < width <= word_bits
    ):
        raise CorruptDataError(
            f"values of {word_bits} bits packed in {width} are stored for a column of type {arrow}"
        )
    return WORDS[word_bits]


def _groups_of(rows: Rows, num_values: int) -> tuple[Rows, slice | npt.NDArray[np.int64]]:
    """Return the groups of this many values that contain some rows, and their positions in them."""
    if rows.offsets is None:
        first = rows.start // num_values
        start = rows.start - first * num_values
        groups = Rows(first, -(-rows.stop // num_values)) if len(rows) else Rows(first, first)
        return groups, slice(start, start + len(rows))
    group_of_row = rows.offsets // num_values
    distinct, index_of_group = np.unique(group_of_row, return_inverse=True)
    return Rows.of(distinct), index_of_group * num_values + rows.offsets % num_values


def _read_groups(
    buffer: ByteRange, groups: Rows, width: int
) -> ByteRequests[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Read groups of 8 values, which are `width` bytes, followed by 8 arbitrary bytes.

    The last group of a buffer can be truncated.
    """
    size = buffer.size_bytes
    if groups.offsets is None:
        start, stop = groups.start * width, min(groups.stop * width, size)
        (data,) = yield [ByteRange(buffer.start + start, buffer.start + stop)]
    else:
        starts = groups.offsets * width
        data = yield from read_slices(buffer, starts, np.minimum(starts + width, size))
    packed = np.zeros(len(groups) * width + 8, np.uint8)
    packed[: len(data)] = np.frombuffer(data, np.uint8)
    return packed


def _unpack(
    packed: np.ndarray[Any, np.dtype[np.uint8]], width: int, *, is_signed: bool
) -> npt.NDArray[np.uint64]:
    """Return eight u64 for each `width` bytes, which are followed by 8 more bytes."""
    num_groups = (len(packed) - 8) // width
    values = np.empty((num_groups, 8), np.uint64)
    if num_groups == 0:
        return values.reshape(-1)
    mask = np.uint64((1 << width) - 1)
    for index in range(8):
        first_byte, shift = divmod(index * width, 8)
        # Eight bytes from any position contain all of the value's bits, or all but the last seven.
        low = np.ndarray((num_groups,), "<u8", packed, first_byte, (width,))
        column = low >> np.uint64(shift)
        if shift + width > 64:
            high = np.ndarray((num_groups,), np.uint8, packed, first_byte + 8, (width,))
            column |= high.astype(np.uint64) << np.uint64(64 - shift)
        values[:, index] = column & mask
    if is_signed:
        sign = np.uint64(1 << (width - 1))
        values ^= sign
        values -= sign
    return values.reshape(-1)


def _to_array(arrow: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(as_bytes(values))])
