"""Packed struct codecs: the parts of a struct side by side, value by value.

Parts of fixed width (in a mini-block chunk, or per value), without gaps:

    value   the bytes of the first part, of the second, ...

Parts of which one has no fixed width (2.2, per value only); the layout has the length of the whole:

    value   for each part its bytes; before those of one without a fixed width their number,
            u32 or u64

A value of no bytes at all stands for a null: its parts are zeros and empty strings.

Source:  encodings21.PackedStruct and VariablePackedStruct in the proto.
Differs: Some writers gave a part 1 bit (booleans). No reader ever understood such pages; they are
         refused.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.chunked_buffers import slices_joined
from lance_stream.file.data_blocks import (
    INT32,
    INT64,
    Bytes,
    DataBlock,
    FixedWidthBlock,
    Offsets,
    StructBlock,
    VariableWidthBlock,
)
from lance_stream.file.v2_1.codecs import variable

Places = npt.NDArray[np.int64]

MAX_PARTS = 1 << 16
"""Far more than a struct has; a page's description that says more is damaged."""


def check_widths(bits_of_parts: Sequence[int], bits_per_value: int) -> None:
    """Raise unless parts of these widths make up values of that width.

    Raises:
        UnsupportedFeatureError: A part is not of whole bytes.
        CorruptDataError: They do not.
    """
    if len(bits_of_parts) > MAX_PARTS:
        raise CorruptDataError(f"a packed struct of {len(bits_of_parts)} parts")
    if any(bits % 8 for bits in bits_of_parts):
        raise UnsupportedFeatureError("packed structs whose parts do not fill whole bytes")
    if not bits_of_parts or 0 in bits_of_parts or sum(bits_of_parts) != bits_per_value:
        raise CorruptDataError(
            f"the parts of a packed struct have {list(bits_of_parts)[:16]} bits, but its values "
            f"{bits_per_value}"
        )


def split(rows: FixedWidthBlock, bits_of_parts: Sequence[int]) -> StructBlock:
    """Return the parts of values of fixed width; `check_widths` has passed."""
    row_bytes = rows.bits_per_value // 8
    parts: list[DataBlock] = []
    start = 0
    for bits in bits_of_parts:
        width = bits // 8
        # As values of one dtype: numpy copies those far faster than rows of a few bytes.
        strided = np.ndarray(
            (rows.num_values,), np.dtype((np.void, width)), rows.data, start, (row_bytes,)
        )
        data = np.ascontiguousarray(strided).view(np.uint8)
        parts.append(FixedWidthBlock(bits, rows.num_values, data))
        start += width
    return StructBlock(tuple(parts), rows.num_values)


def zipped(parts: Sequence[FixedWidthBlock]) -> FixedWidthBlock:
    """Return values of fixed width from their parts, each of whole bytes; the way back."""
    widths = [each.bits_per_value // 8 for each in parts]
    num_values = parts[0].num_values
    rows = np.empty((num_values, sum(widths)), np.uint8)
    start = 0
    for part, width in zip(parts, widths, strict=True):
        target = np.ndarray(
            (num_values,), np.dtype((np.void, width)), rows.data, start, (rows.shape[1],)
        )
        target[...] = part.data[: num_values * width].view(np.dtype((np.void, width)))
        start += width
    return FixedWidthBlock(8 * rows.shape[1], num_values, rows.reshape(-1))


def split_variable(
    rows: VariableWidthBlock, bits_of_parts: Sequence[int], has_length: Sequence[bool]
) -> list[FixedWidthBlock | VariableWidthBlock]:
    """Return the parts of values without a fixed width, each as it is encoded.

    Args:
        rows: The values.
        bits_of_parts: The width of each part, or of its length.
        has_length: For each part whether it is a length and so many bytes.

    Raises:
        CorruptDataError: A part reaches past its value, or a value is longer than its parts.
        UnsupportedFeatureError: A part is not of whole bytes.
    """
    if not bits_of_parts or len(bits_of_parts) > MAX_PARTS:
        raise CorruptDataError(f"a packed struct of {len(bits_of_parts)} parts")
    at = rows.offsets[:-1].astype(np.int64)
    stops = rows.offsets[1:].astype(np.int64)
    there = stops > at
    everywhere = bool(there.all())
    if not everywhere:
        at, stops = at[there], stops[there]
    parts: list[FixedWidthBlock | VariableWidthBlock] = []
    for bits, is_variable in zip(bits_of_parts, has_length, strict=True):
        if is_variable:
            width = variable.check_bits_per_offset(bits)
            lengths = _words_at(rows.data, at, stops, width)
            at = at + width
            if (lengths > (stops - at).astype(np.uint64)).any():
                raise CorruptDataError(
                    f"a part of {lengths.max()} bytes is said to stand in a packed struct of at "
                    f"most {_longest(rows)} bytes"
                )
            sizes = lengths.astype(np.int64)
            data = slices_joined(rows.data, at, at + sizes)
            parts.append(_strings(_spread(sizes, None if everywhere else there), data))
            at = at + sizes
        else:
            if bits <= 0 or bits % 8:
                raise UnsupportedFeatureError(f"a part of a packed struct has {bits} bits")
            values = _bytes_at(rows.data, at, stops, bits // 8)
            if not everywhere:
                filled = np.zeros((len(there), bits // 8), np.uint8)
                filled[there] = values
                values = filled
            parts.append(FixedWidthBlock(bits, len(there), values.reshape(-1)))
            at = at + bits // 8
    if (at != stops).any():
        raise CorruptDataError("a packed struct is longer than its parts")
    return parts


def zip_variable(parts: Sequence[FixedWidthBlock | VariableWidthBlock]) -> VariableWidthBlock:
    """Return values without a fixed width from their encoded parts; the way back."""
    num_values = parts[0].num_values
    pieces: list[pa.Array] = []
    fixed: list[FixedWidthBlock] = []

    def flush() -> None:
        if fixed:
            rows = zipped(fixed)
            offsets = np.arange(num_values + 1, dtype=np.int64) * (rows.bits_per_value // 8)
            pieces.append(_binary(offsets, rows.data))
            fixed.clear()

    for part in parts:
        if isinstance(part, FixedWidthBlock):
            fixed.append(part)
            continue
        width = part.offsets.itemsize
        lengths = np.diff(part.offsets).astype(f"<u{width}")
        fixed.append(FixedWidthBlock(8 * width, num_values, lengths.view(np.uint8)))
        flush()
        pieces.append(_binary(part.offsets.astype(np.int64), part.data))
    flush()
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    offsets = np.frombuffer(joined.buffers()[1], np.int64)[: num_values + 1]
    total = int(offsets[-1])
    if total <= np.iinfo(np.int32).max:
        offsets = offsets.astype(np.int32)
    return VariableWidthBlock(
        num_values, offsets, np.frombuffer(joined.buffers()[2] or b"", np.uint8)[:total]
    )


def check_whole_bytes(part: DataBlock) -> None:
    """Raise unless a part can stand in a packed struct.

    Raises:
        InvalidInputError: It cannot.
    """
    if isinstance(part, FixedWidthBlock) and part.bits_per_value % 8:
        raise InvalidInputError(
            "a packed struct holds values of whole bytes, not booleans; store them as int8, or "
            "leave the metadata 'lance-encoding:packed' out"
        )


def _longest(rows: VariableWidthBlock) -> int:
    return int(np.diff(rows.offsets).max())


def _bytes_at(data: Bytes, places: Places, stops: Places, width: int) -> Bytes:
    """Return (len(places), width) bytes.

    Raises:
        CorruptDataError: They reach past the values that they are in.
    """
    if (stops - places < width).any():
        raise CorruptDataError(f"a part of {width} bytes reaches past its packed struct")
    if len(places) == 0:
        return np.zeros((0, width), np.uint8)
    windows = np.ndarray((len(data) - width + 1,), np.dtype((np.void, width)), data, 0, (1,))
    return windows[places].view(np.uint8).reshape(len(places), width)


def _words_at(data: Bytes, places: Places, stops: Places, width: int) -> npt.NDArray[np.uint64]:
    words = _bytes_at(data, places, stops, width)
    return np.ascontiguousarray(words).reshape(-1).view(f"<u{width}").astype(np.uint64)


def _spread(sizes: Places, there: npt.NDArray[np.bool_] | None) -> Places:
    if there is None:
        return sizes
    spread = np.zeros(len(there), np.int64)
    spread[there] = sizes
    return spread


def _strings(lengths: Places, data: Bytes) -> VariableWidthBlock:
    small = len(data) <= np.iinfo(np.int32).max
    offsets: Offsets = np.zeros(len(lengths) + 1, INT32 if small else INT64)
    np.cumsum(lengths, out=offsets[1:])
    return VariableWidthBlock(len(lengths), offsets, data)


def _binary(offsets: Places, data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))],
        0,
    )
