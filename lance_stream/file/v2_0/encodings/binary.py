"""Binary encoding: byte strings as end offsets and bytes.

    indices     (num_values,) u64 end offsets, see `end_offsets`
    bytes       the values in order; can be compressed together

The oldest 2.0 writers stored strings as lists of u8 instead, in two columns: see `read_fields`.

Source:  encodings_v2_0.proto, message Binary.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange, ByteRequests, answer, read_from, read_together
from lance_stream.errors import CorruptDataError
from lance_stream.file.rows import MAX_POSITION, Rows
from lance_stream.file.v2_0.encodings.compressed_buffers import compress, decompress
from lance_stream.file.v2_0.encodings.end_offsets import (
    Spans,
    encode_end_offsets,
    offsets_of,
    read_spans,
)
from lance_stream.file.v2_0.encodings.flat import (
    as_bytes,
    flat_encoding,
    is_compressed,
    plain_flat,
    read_slices,
)
from lance_stream.file.v2_0.pages import Decode, NewPage, PageBuffers

SMALL_BYTES: Final = 32 << 10
"""Bytes up to this size are read together with the offsets, not in a later round."""


def decode_binary(
    encoding: pb.Binary, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return the values at `rows`: first their offsets are read, then their bytes.

    Raises:
        CorruptDataError: The column is of another type, offsets are wrong, or text is not UTF-8.
        InvalidInputError: The values are too large for one array.
    """
    if not is_binary_like(arrow):
        raise CorruptDataError(f"byte strings are stored for a column of type {arrow}")
    flat = plain_flat(encoding.bytes)
    if flat is None or flat.bits_per_value != 8:
        return (yield from _decode_packed(encoding, arrow, page, rows, decode))
    buffer = page.find(flat.buffer)
    limit = MAX_POSITION if is_compressed(flat) else buffer.size_bytes
    reading_spans = _read_spans(encoding, page, rows, decode, limit)
    if (
        is_compressed(flat)
        or buffer.size_bytes <= SMALL_BYTES
        or _is_whole_page(encoding, page, rows)
    ):
        both: list[ByteRequests[Any]] = [reading_spans, _read_everything(buffer)]
        spans, everything = yield from read_together(both)
        if is_compressed(flat):
            everything = _decompressed(everything, flat, spans)
        in_memory = ByteRange(0, len(everything))
        data = answer(_read_bytes(in_memory, spans), read_from(everything))
    else:
        spans = yield from reading_spans
        data = yield from _read_bytes(buffer, spans)
    return _to_array(arrow, spans, data)


def encode_binary(
    chunks: Sequence[pa.Array],
    page: NewPage,
    compression: str | None = None,
    level: int | None = None,
) -> pb.ArrayEncoding:
    """Add the end offsets and the bytes of some arrays; only the offsets are copied.

    Args:
        chunks: Arrays of byte strings or text.
        page: The page that gets the buffers.
        compression: "zstd" or "lz4", for the bytes; None if they are stored plain.
        level: zstd's compression level; None: chosen by us.
    """
    ends = np.empty(sum(len(chunk) for chunk in chunks), np.uint64)
    parts: list[memoryview] = []
    position, size = 0, 0
    for chunk in chunks:
        offsets = offsets_of(chunk)
        first, last = int(offsets[0]), int(offsets[-1])
        np.add(
            offsets[1:], size - first, out=ends[position : position + len(chunk)], casting="unsafe"
        )
        if last > first:
            parts.append(memoryview(chunk.buffers()[2])[first:last])
        position += len(chunk)
        size += last - first
    return encode_ends_and_bytes(ends, parts, chunks, page, compression, level)


def encode_ends_and_bytes(
    ends: npt.NDArray[np.uint64],
    parts: list[memoryview],
    chunks: Sequence[pa.Array],
    page: NewPage,
    compression: str | None = None,
    level: int | None = None,
) -> pb.ArrayEncoding:
    """Add existing end offsets and bytes.

    Args:
        ends: (num_values,) ends of the values, ascending. Changed in place.
        parts: The bytes.
        chunks: The arrays that the values came from, for their nulls.
        page: As in `encode_binary`.
        compression: As there.
        level: As there.
    """
    size = sum(part.nbytes for part in parts)
    stored, null_adjustment = encode_end_offsets(ends, chunks)
    indices = flat_encoding(64, page.add([as_bytes(stored)]))
    # The reference cannot decompress a buffer of no bytes.
    is_compressed = compression is not None and size > 0
    if is_compressed:
        parts = [compress(parts, str(compression), level)]
    data = flat_encoding(8, page.add(parts))
    if is_compressed:
        data.flat.compression.scheme = str(compression)
        if level is not None:
            data.flat.compression.level = level
    return pb.ArrayEncoding(
        binary=pb.Binary(
            indices=pb.ArrayEncoding(
                nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=indices))
            ),
            bytes=data,
            null_adjustment=null_adjustment,
        )
    )


def is_binary_like(arrow: pa.DataType) -> bool:
    """Return whether a type is one of byte strings or text with offsets."""
    return bool(
        pa.types.is_string(arrow)
        or pa.types.is_large_string(arrow)
        or pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
    )


def check_text(array: pa.Array) -> None:
    """Check that each value of an array of text is UTF-8.

    Raises:
        CorruptDataError: A value is not UTF-8.
    """
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    # Plain ASCII is detected ten times as fast, and needs no check of value boundaries.
    if len(data) and int(data.max()) >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptDataError(f"text is not UTF-8: {error}") from None


def _read_everything(buffer: ByteRange) -> ByteRequests[memoryview]:
    (data,) = yield [buffer]
    return data


def _read_bytes(buffer: ByteRange, spans: Spans) -> ByteRequests[memoryview]:
    if spans.starts is None:
        return (
            yield from _read_everything(
                ByteRange(buffer.start + spans.first, buffer.start + spans.stop)
            )
        )
    return (yield from read_slices(buffer, spans.starts, spans.stops))


def _to_array(arrow: pa.DataType, spans: Spans, data: memoryview) -> pa.Array:
    offsets = spans.arrow_offsets(arrow, "bytes")
    array = pa.Array.from_buffers(
        arrow, len(spans.stops), [spans.validity(), offsets, pa.py_buffer(data)]
    )
    check_text(array)
    return array


def _read_spans(
    encoding: pb.Binary, page: PageBuffers, rows: Rows, decode: Decode, limit: int
) -> ByteRequests[Spans]:
    return read_spans(
        lambda rows_needed: decode(encoding.indices, pa.uint64(), page, rows_needed),
        rows,
        encoding.null_adjustment,
        limit,
    )


def _decode_packed(
    encoding: pb.Binary, arrow: pa.DataType, page: PageBuffers, rows: Rows, decode: Decode
) -> ByteRequests[pa.Array]:
    """Return values with encoded bytes, as early writers stored ASCII."""
    spans = yield from _read_spans(encoding, page, rows, decode, MAX_POSITION)
    array = yield from decode(encoding.bytes, pa.uint8(), page, spans.items())
    if array.null_count:
        raise CorruptDataError("a byte of a string is null")
    return _to_array(arrow, spans, memoryview(array.buffers()[1] or b""))


def _decompressed(stored: memoryview, flat: pb.Flat, spans: Spans) -> memoryview:
    if len(spans.stops) == 0:
        return stored[:0]
    raw = decompress(stored, flat.compression.scheme)
    if spans.stop > len(raw):
        raise CorruptDataError(
            f"a string ends at byte {spans.stop}, but the page's bytes decompress to {len(raw)}"
        )
    return raw


def _is_whole_page(encoding: pb.Binary, page: PageBuffers, rows: Rows) -> bool:
    flat = plain_flat(encoding.indices)
    if flat is None or rows.offsets is not None or rows.start != 0:
        return False
    return page.find(flat.buffer).size_bytes == rows.stop * 8
