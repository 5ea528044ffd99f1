"""Encodes pages of a few values without nulls like `choose`, in a fraction of the time.

Ten numbers are always stored uncompressed, and ten short strings as one chunk; from 2.2 on, unless
all are the same. `choose` would spend most of the time of a commit of ten rows and 50 columns on
these decisions. The messages depend only on the number and type of the values, and are cached.

    numbers     full-zip, no levels: the values' own bytes
    strings     mini-block, one chunk, no levels: see `codecs.variable` and `chunk_bytes`
"""

import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lance_stream.file.blocks.data_blocks import FixedWidthBlock, VariableWidthBlock
from lance_stream.file.encoding_options import DEFAULT_OPTIONS, EncodingOptions
from lance_stream.file.metadata.columns import pack_encoding
from lance_stream.file.v2_1.codecs.variable import PADDING
from lance_stream.file.v2_1.layouts.choosing.choose_fixed import MIN_BYTES
from lance_stream.file.v2_1.layouts.choosing.choose_strings import WIDE_BYTES, encode_string_page
from lance_stream.file.v2_1.layouts.choosing.string_dictionaries import MIN_VALUES
from lance_stream.file.v2_1.layouts.full_zip.full_zip import encode_full_zip_page
from lance_stream.file.v2_1.layouts.nesting import LayerWriter
from lance_stream.file.versions import FileVersion

_WIDTHS = {
    array.id: array.byte_width
    for array in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us")),
    )
}
"""Bytes per value of numbers, by Arrow's number of the type."""

_OFFSETS = {pa.string().id: 4, pa.binary().id: 4, pa.large_string().id: 8, pa.large_binary().id: 8}
"""Bytes per offset of byte strings, by Arrow's number of the type."""

_ALIGNMENT = 8


class FewValues(NamedTuple):
    """A page: its buffers, and its packed encoding."""

    buffers: tuple[tuple[memoryview, ...], ...]
    encoding: bytes


def encode_few_values(
    values: pa.Array, version: FileVersion, options: EncodingOptions
) -> FewValues | None:
    """Return a page of the rows of a top-level column.

    Args:
        values: The rows.
        version: 2.1 or 2.2.
        options: The options in the column's metadata.

    Returns:
        The page; None if `choose.encode_page` must choose its layout.
    """
    kind, count = values.type.id, len(values)
    if not count or values.null_count or options != DEFAULT_OPTIONS:
        return None
    if kind in _WIDTHS and count * _WIDTHS[kind] < MIN_BYTES:
        return _numbers(values, _WIDTHS[kind], version)
    if kind in _OFFSETS and count < MIN_VALUES:
        return _strings(values, _OFFSETS[kind], version)
    return None


def _numbers(values: pa.Array, width: int, version: FileVersion) -> FewValues | None:
    count, start = len(values), values.offset * width
    data = values.buffers()[1][start : start + count * width].to_pybytes()
    if version is not FileVersion.V2_1 and data == data[:width] * count:
        return None
    return FewValues(((memoryview(data),),), _full_zip(count, 8 * width))


@lru_cache
def _full_zip(count: int, bits_per_value: int) -> bytes:
    data = np.zeros(count * bits_per_value // 8, np.uint8)
    levels = LayerWriter(count).items(None).finish()
    block = FixedWidthBlock(bits_per_value, count, data)
    return pack_encoding(encode_full_zip_page(levels, block).message)


def _strings(values: pa.Array, width: int, version: FileVersion) -> FewValues | None:
    count = len(values)
    layout = f"<{count + 1}{'i' if width == 4 else 'q'}"
    _, stored, data = values.buffers()
    offsets = struct.unpack_from(layout, stored, values.offset * width)
    first, last = offsets[0], offsets[-1]
    if not first < last < first + WIDE_BYTES:
        return None
    body = data[first:last].to_pybytes()
    size = offsets[1] - first
    is_large = version is not FileVersion.V2_1
    if is_large and body == body[:size] * count and all(np.diff(offsets) == size):
        return None
    head_bytes = (count + 1) * width
    head = struct.pack(layout, *(head_bytes + offset - first for offset in offsets))
    body += bytes([PADDING]) * (-len(body) % width)
    used = len(head) + len(body)
    start = struct.pack("<HI2x" if is_large else "<HH4x", 0, used)
    chunk = b"".join((start, head, body, bytes(-used % _ALIGNMENT)))
    table = struct.pack("<I" if is_large else "<H", (len(chunk) // _ALIGNMENT - 1) << 4)
    return FewValues(
        ((memoryview(table),), (memoryview(chunk),)), _one_chunk(count, width, version)
    )


@lru_cache
def _one_chunk(count: int, offset_bytes: int, version: FileVersion) -> bytes:
    offsets = np.arange(count + 1, dtype=np.int64)
    if offset_bytes == 4:
        offsets = offsets.astype(np.int32)
    block = VariableWidthBlock(count, offsets, np.zeros(count, np.uint8))
    levels = LayerWriter(count).items(None).finish()
    layout = encode_string_page(levels, block, version, DEFAULT_OPTIONS)
    if layout is None:
        raise AssertionError("a few short strings fit into one chunk")
    return pack_encoding(layout.message)
