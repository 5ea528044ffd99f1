"""Flat encoding: values of one width, one after the other, in one buffer.

    bits_per_value 1        a bitmap, least significant bit first
    bits_per_value 8, 16..  little-endian values of whole bytes, without gaps

Null values have a slot with arbitrary contents. The buffer can be compressed as a whole (see
`compressed_buffers`); then all of it is read for any of its values. Bitmaps are never compressed,
even if their encoding states otherwise: early writers marked uncompressed bitmaps as compressed.

Source:  encodings_v2_0.proto, message Flat.
Differs: The proto allows any width; the reference reads whole bytes and single bits only, and so do
         we.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange, ByteRequests, answer, read_from
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks import scattered_bytes
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings.compressed_buffers import PLAIN_SCHEMES, decompress
from lance_stream.file.v2_0.pages import Decode, Encode, NewPage, PageBuffers

T = TypeVar("T")

_WORDS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def decode_flat(
    encoding: pb.Flat, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`.

    Raises:
        CorruptDataError: The width is not that of the type, or the buffer is too short.
        UnsupportedFeatureError: The compression of the buffer is unknown.
    """
    del decode  # no nested encoding
    if not has_fixed_width(arrow) or encoding.bits_per_value != arrow.bit_width:
        raise CorruptDataError(
            f"values of {encoding.bits_per_value} bits are stored for a column of type {arrow}"
        )
    if arrow.bit_width == 1:
        values = yield from read_bits(page.find(encoding.buffer), rows)
    else:
        width = arrow.bit_width // 8
        values = yield from read_flat(
            encoding, page, lambda buffer: read_values(buffer, width, rows)
        )
    return pa.Array.from_buffers(arrow, len(rows), [None, arrow_buffer(values)])


def encode_flat(
    chunks: Sequence[pa.Array], arrow: pa.DataType, page: NewPage, encode: Encode
) -> pb.ArrayEncoding:
    """Add the values of some arrays, without a copy; nulls are ignored."""
    del encode  # no nested encoding
    if arrow.bit_width == 1:
        parts = pack_bits([(chunk.buffers()[1], chunk.offset, len(chunk)) for chunk in chunks])
    else:
        width = arrow.bit_width // 8
        parts = [
            memoryview(chunk.buffers()[1])[
                chunk.offset * width : (chunk.offset + len(chunk)) * width
            ]
            for chunk in chunks
            if len(chunk)
        ]
    return flat_encoding(arrow.bit_width, page.add(parts))


def flat_encoding(bits_per_value: int, buffer: pb.Buffer) -> pb.ArrayEncoding:
    """Return the message of a flat buffer."""
    return pb.ArrayEncoding(flat=pb.Flat(bits_per_value=bits_per_value, buffer=buffer))


def read_flat(
    encoding: pb.Flat, page: PageBuffers, read: Callable[[ByteRange], ByteRequests[T]]
) -> ByteRequests[T]:
    """Read from the buffer of values; a compressed one is read as a whole, in one round.

    Args:
        encoding: The buffer, and its compression.
        page: The page's buffers.
        read: Reads some values, given their range.

    Raises:
        CorruptDataError: The buffer does not exist, or does not decompress.
        UnsupportedFeatureError: Its compression is unknown.
    """
    buffer = page.find(encoding.buffer)
    if not is_compressed(encoding):
        return (yield from read(buffer))
    (stored,) = yield [buffer]
    raw = decompress(stored, encoding.compression.scheme)
    return answer(read(ByteRange(0, len(raw))), read_from(raw))


def is_compressed(encoding: pb.Flat) -> bool:
    """Return whether the buffer of values is compressed as a whole."""
    return encoding.compression.scheme not in PLAIN_SCHEMES


def plain_flat(encoding: pb.ArrayEncoding) -> pb.Flat | None:
    """Return the flat encoding of values without nulls; None for another encoding."""
    while encoding.WhichOneof("array_encoding") == "nullable":
        if encoding.nullable.WhichOneof("nullability") != "no_nulls":
            return None
        encoding = encoding.nullable.no_nulls.values
    return encoding.flat if encoding.WhichOneof("array_encoding") == "flat" else None


def has_fixed_width(arrow: pa.DataType) -> bool:
    """Return whether each value of a type is the same number of bits in one buffer."""
    return bool(
        pa.types.is_primitive(arrow)
        or pa.types.is_decimal(arrow)
        or pa.types.is_fixed_size_binary(arrow)
    )


def read_values(buffer: ByteRange, width_bytes: int, rows: Rows) -> ByteRequests[memoryview]:
    """Read the values at `rows` from a buffer of values of whole bytes.

    Returns:
        len(rows) * width_bytes bytes.

    Raises:
        CorruptDataError: The buffer is too short for the rows.
    """
    _check_size(buffer, rows.stop * width_bytes)
    if rows.offsets is None:
        (data,) = yield [
            ByteRange(
                buffer.start + rows.start * width_bytes, buffer.start + rows.stop * width_bytes
            )
        ]
        return data
    starts = buffer.start + rows.offsets * width_bytes
    return as_bytes((yield from scattered_bytes.read_slices(starts, starts + width_bytes)))


def read_bits(buffer: ByteRange, rows: Rows) -> ByteRequests[memoryview]:
    """Read the bits at `rows` from a bitmap.

    Returns:
        ceil(len(rows) / 8) bytes, least significant bit first; bits after the rows are 0.

    Raises:
        CorruptDataError: The bitmap is too short for the rows.
    """
    _check_size(buffer, (rows.stop + 7) // 8)
    if rows.offsets is None:
        first_byte, last_byte = rows.start // 8, (rows.stop + 7) // 8
        (data,) = yield [ByteRange(buffer.start + first_byte, buffer.start + last_byte)]
        return as_bytes(shift_bits(np.frombuffer(data, np.uint8), rows.start % 8, len(rows)))
    in_byte = rows.offsets >> 3
    byte_positions = np.unique(in_byte)
    data = yield from read_values(buffer, 1, Rows.of(byte_positions))
    holders = np.frombuffer(data, np.uint8)[np.searchsorted(byte_positions, in_byte)]
    bits = (holders >> (rows.offsets & 7).astype(np.uint8)) & 1
    return as_bytes(np.packbits(bits, bitorder="little"))


def read_slices(
    buffer: ByteRange, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> ByteRequests[memoryview]:
    """Read scattered slices of a buffer and concatenate them.

    Args:
        buffer: The range of the buffer.
        starts: (n,) first byte of each slice, ascending.
        stops: (n,) one past the last byte of each; slices do not overlap and are inside the buffer.
    """
    return as_bytes(
        (yield from scattered_bytes.read_slices(buffer.start + starts, buffer.start + stops))
    )


def shift_bits(data: npt.NDArray[np.uint8], first_bit: int, num_bits: int) -> npt.NDArray[np.uint8]:
    """Return a bitmap that begins at `first_bit` of another's first byte, with surplus bits 0.

    Copied only if it must be changed; the other bitmap stays unchanged.
    """
    if first_bit == 0 and num_bits % 8 == 0:
        return data[: num_bits // 8]
    shifted = data >> np.uint8(first_bit)
    if first_bit:
        shifted[:-1] |= data[1:] << np.uint8(8 - first_bit)
    shifted = shifted[: (num_bits + 7) // 8]
    if num_bits % 8:
        shifted[-1] &= (1 << num_bits % 8) - 1
    return shifted


def pack_bits(chunks: Sequence[tuple[pa.Buffer | None, int, int]]) -> list[memoryview]:
    """Join bitmaps of any bit offset.

    Args:
        chunks: For each its buffer (None if all bits are set), its first bit, its number of bits.

    Returns:
        The parts of one bitmap, least significant bit first.
    """
    arrays = [
        pa.repeat(pa.scalar(value=True), num_bits)
        if buffer is None
        else pa.Array.from_buffers(pa.bool_(), num_bits, [None, buffer], offset=first_bit)
        for buffer, first_bit, num_bits in chunks
        if num_bits
    ]
    if not arrays:
        return []
    joined = pa.concat_arrays(arrays)
    data = np.frombuffer(joined.buffers()[1], np.uint8)[joined.offset // 8 :]
    return [as_bytes(shift_bits(data[: _bytes_for(joined)], joined.offset % 8, len(joined)))]


def value_of_bytes(width_bytes: int) -> np.dtype[Any]:
    """Return the dtype by which numpy moves values of this many bytes fastest."""
    return _WORDS.get(width_bytes, np.dtype((np.void, width_bytes)))


def as_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of an array of numbers."""
    return np.ascontiguousarray(array).view(np.uint8).data if len(array) else memoryview(b"")


def arrow_buffer(data: memoryview) -> pa.Buffer:
    """Return bytes as an Arrow buffer, copied only if they are unaligned.

    Slices of a larger answer begin anywhere, but Arrow requires words at multiples of 8.
    """
    buffer = pa.py_buffer(data)
    return pa.py_buffer(bytes(data)) if buffer.address % 8 else buffer


def _check_size(buffer: ByteRange, num_bytes: int) -> None:
    if num_bytes > buffer.size_bytes:
        raise CorruptDataError(
            f"the page's rows need a buffer of {num_bytes} bytes, but it has {buffer.size_bytes}"
        )


def _bytes_for(bits: pa.Array) -> int:
    return (int(bits.offset) % 8 + len(bits) + 7) // 8
