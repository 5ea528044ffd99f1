"""Packed struct codecs: the parts of a struct side by side, value by value.

Parts of fixed width (in a mini-block chunk, or per value), without gaps:

    value   the bytes of the first part, of the second, ...

With a part of no fixed width (2.2, per value only); the layout has the length of the whole:

    value   for each part its bytes; before those of one without a fixed width their number,
            u32 or u64

A value of no bytes is a null: its parts are zeros and empty strings.

Source:  encodings21.PackedStruct and VariablePackedStruct in the proto.
Differs: Some writers gave a part 1 bit (booleans). No reader ever supported such pages; they are
         refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Bytes, Counts, Positions
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, slices_joined
from lance_stream.file.blocks.data_blocks import (
    INT32,
    INT64,
    DataBlock,
    FixedWidthBlock,
    Offsets,
    StructBlock,
    VariableWidthBlock,
)
from lance_stream.file.v2_1.codecs import flat, variable
from lance_stream.file.v2_1.codecs.codec import (
    EncodedMiniBlock,
    EncodedValues,
    MiniBlockCodec,
    Parse,
    PerValueCodec,
    ValueBlock,
    byte_strings,
    fixed_width,
    in_full_zip,
    only,
)
from lance_stream.file.v2_1.codecs.flat import Flat

EncodePart: TypeAlias = Callable[[DataBlock], EncodedValues]
"""Encodes a part value by value: `registry.encode_per_value`, as an argument."""

MAX_PARTS = 1 << 16
"""The maximum number of parts, far more than any real struct has: a page with more is damaged."""


@dataclass(frozen=True, slots=True)
class PackedStruct(MiniBlockCodec, PerValueCodec):
    """Structs with parts of fixed width only.

    Args:
        bits_of_parts: The width of each part.
        values: The structs as fixed-width values.
    """

    name = "packed_struct"

    bits_of_parts: tuple[int, ...]
    values: Flat

    @classmethod
    def from_proto(cls, message: pb.PackedStruct, parse: Parse) -> Self:
        values = only(parse(message.values), Flat, cls.name)
        values.check()
        _check_widths(message.bits_per_value, values.bits_per_value)
        return cls(tuple(message.bits_per_value), values)

    def to_proto(self) -> pb.CompressiveEncoding:
        inner = pb.PackedStruct(bits_per_value=self.bits_of_parts, values=self.values.to_proto())
        return pb.CompressiveEncoding(packed_struct=inner)

    def decode_mini_block(
        self, buffers: Sequence[ChunkedBuffer], num_values: Counts
    ) -> StructBlock:
        return _split(self.values.decode_mini_block(buffers, num_values), self.bits_of_parts)

    def decode_per_value(self, block: ValueBlock) -> StructBlock:
        rows = fixed_width(block, self.name)
        if rows.bits_per_value != self.values.bits_per_value:
            raise CorruptDataError(
                f"the structs have {self.values.bits_per_value} bits, but the values of the page "
                f"{rows.bits_per_value}"
            )
        return _split(rows, self.bits_of_parts)


class VariablePart(NamedTuple):
    """A part of a struct that may have no fixed width.

    Args:
        codec: The codec of its individual values.
        bits: The width of an encoded value, or of its length.
        has_length: Whether it is a length followed by bytes.
    """

    codec: PerValueCodec
    bits: int
    has_length: bool


@dataclass(frozen=True, slots=True)
class VariablePackedStruct(PerValueCodec):
    """Structs with a part of no fixed width."""

    name = "variable_packed_struct"

    parts: tuple[VariablePart, ...]

    @classmethod
    def from_proto(cls, message: pb.VariablePackedStruct, parse: Parse) -> Self:
        parts = []
        for field in message.fields:
            layout = field.WhichOneof("layout")
            if layout is None:
                raise CorruptDataError("a part of a packed struct has no width")
            codec = in_full_zip(parse(field.value))
            parts.append(VariablePart(codec, getattr(field, layout), layout == "bits_per_length"))
        return cls(tuple(parts))

    def to_proto(self) -> pb.CompressiveEncoding:
        fields = []
        for part in self.parts:
            field = pb.VariablePackedStruct.FieldEncoding(value=part.codec.to_proto())
            if part.has_length:
                field.bits_per_length = part.bits
            else:
                field.bits_per_value = part.bits
            fields.append(field)
        inner = pb.VariablePackedStruct(fields=fields)
        return pb.CompressiveEncoding(variable_packed_struct=inner)

    def decode_per_value(self, block: ValueBlock) -> StructBlock:
        encoded = split_variable(
            byte_strings(block, self.name),
            [part.bits for part in self.parts],
            [part.has_length for part in self.parts],
        )
        parts = [
            part.codec.decode_per_value(child)
            for part, child in zip(self.parts, encoded, strict=True)
        ]
        return StructBlock(tuple(parts), block.num_values)


def encode_mini_block(
    block: StructBlock, *, max_chunk_values: int, max_chunk_bytes: int
) -> EncodedMiniBlock:
    """Cut structs with parts of fixed width only into chunks.

    Raises:
        InvalidInputError: A part has no fixed width or no whole bytes, or two structs are larger
            than a chunk.
    """
    codec, rows = _packed(block, _fixed_parts(block))
    cut = flat.encode_mini_block(
        rows, max_chunk_values=max_chunk_values, max_chunk_bytes=max_chunk_bytes
    )
    return cut._replace(codec=codec)


def encode_per_value(block: StructBlock, encode_part: EncodePart) -> EncodedValues:
    """Encode structs value by value; if all parts have a fixed width, so have the structs.

    Args:
        block: The structs.
        encode_part: Encodes one part.

    Raises:
        InvalidInputError: A part has no whole bytes.
    """
    fixed = _fixed_parts(block)
    if len(fixed) == len(block.parts):
        return EncodedValues(*_packed(block, fixed))
    encoded = [encode_part(part) for part in block.parts]
    parts = tuple(VariablePart(codec, *_width_of(values)) for codec, values in encoded)
    return EncodedValues(
        VariablePackedStruct(parts), _zip_variable([values for _, values in encoded])
    )


def _packed(
    block: StructBlock, parts: Sequence[FixedWidthBlock]
) -> tuple[PackedStruct, FixedWidthBlock]:
    if len(parts) != len(block.parts):
        raise InvalidInputError("structs with a part of no fixed width cannot be cut into chunks")
    rows = _zipped(parts)
    widths = tuple(part.bits_per_value for part in parts)
    return PackedStruct(widths, Flat(rows.bits_per_value)), rows


def _fixed_parts(block: StructBlock) -> list[FixedWidthBlock]:
    """Return the parts of fixed width; all parts have whole bytes."""
    for part in block.parts:
        _check_whole_bytes(part)
    return [part for part in block.parts if isinstance(part, FixedWidthBlock)]


def _width_of(values: ValueBlock) -> tuple[int, bool]:
    """Return the width of encoded values or of their lengths, and whether they have lengths."""
    if isinstance(values, FixedWidthBlock):
        return values.bits_per_value, False
    return values.offsets.itemsize * 8, True


def _check_widths(bits_of_parts: Sequence[int], bits_per_value: int) -> None:
    """Check that parts of these widths add up to values of that width.

    Raises:
        UnsupportedFeatureError: A part has no whole bytes.
        CorruptDataError: They do not add up.
    """
    if len(bits_of_parts) > MAX_PARTS:
        raise CorruptDataError(f"a packed struct cannot have {len(bits_of_parts)} parts")
    if any(bits % 8 for bits in bits_of_parts):
        raise UnsupportedFeatureError(
            "packed structs with parts of other than whole bytes are not supported"
        )
    if not bits_of_parts or 0 in bits_of_parts or sum(bits_of_parts) != bits_per_value:
        raise CorruptDataError(
            f"the parts of a packed struct have {list(bits_of_parts)[:16]} bits, but its values "
            f"{bits_per_value}"
        )


def _split(rows: FixedWidthBlock, bits_of_parts: Sequence[int]) -> StructBlock:
    """Return the parts of fixed-width values; their widths have been checked."""
    row_bytes = rows.bits_per_value // 8
    parts: list[DataBlock] = []
    start = 0
    for bits in bits_of_parts:
        width = bits // 8
        # As values of one dtype: numpy copies these far faster than rows of a few bytes.
        strided = np.ndarray(
            (rows.num_values,), np.dtype((np.void, width)), rows.data, start, (row_bytes,)
        )
        data = np.ascontiguousarray(strided).view(np.uint8)
        parts.append(FixedWidthBlock(bits, rows.num_values, data))
        start += width
    return StructBlock(tuple(parts), rows.num_values)


def _zipped(parts: Sequence[FixedWidthBlock]) -> FixedWidthBlock:
    """Return fixed-width values from parts of whole bytes; the reverse of `_split`."""
    widths = [part.bits_per_value // 8 for part in parts]
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
    """Return the encoded parts of values without a fixed width.

    Args:
        rows: The values.
        bits_of_parts: The width of each part, or of its length.
        has_length: For each part whether it is a length followed by bytes.

    Raises:
        CorruptDataError: A part reaches past its value, or a value is longer than its parts.
        UnsupportedFeatureError: A part has no whole bytes.
    """
    if not bits_of_parts or len(bits_of_parts) > MAX_PARTS:
        raise CorruptDataError(f"a packed struct cannot have {len(bits_of_parts)} parts")
    positions = rows.offsets[:-1].astype(np.int64)
    stops = rows.offsets[1:].astype(np.int64)
    is_present = stops > positions
    all_present = bool(is_present.all())
    if not all_present:
        positions, stops = positions[is_present], stops[is_present]
    parts: list[FixedWidthBlock | VariableWidthBlock] = []
    for bits, is_variable in zip(bits_of_parts, has_length, strict=True):
        if is_variable:
            width = variable.check_bits_per_offset(bits)
            lengths = _words_at(rows.data, positions, stops, width)
            positions = positions + width
            if (lengths > (stops - positions).astype(np.uint64)).any():
                raise CorruptDataError(
                    f"a part of {lengths.max()} bytes does not fit into a packed struct of at "
                    f"most {_longest(rows)} bytes"
                )
            sizes = lengths.astype(np.int64)
            data = slices_joined(rows.data, positions, positions + sizes)
            parts.append(_strings(_scatter_sizes(sizes, None if all_present else is_present), data))
            positions = positions + sizes
        else:
            if bits <= 0 or bits % 8:
                raise UnsupportedFeatureError(
                    f"a part of {bits} bits is not supported in a packed struct"
                )
            values = _bytes_at(rows.data, positions, stops, bits // 8)
            if not all_present:
                filled = np.zeros((len(is_present), bits // 8), np.uint8)
                filled[is_present] = values
                values = filled
            parts.append(FixedWidthBlock(bits, len(is_present), values.reshape(-1)))
            positions = positions + bits // 8
    if (positions != stops).any():
        raise CorruptDataError("a packed struct is longer than its parts")
    return parts


def _zip_variable(parts: Sequence[FixedWidthBlock | VariableWidthBlock]) -> VariableWidthBlock:
    """Return values without a fixed width from their parts; the reverse of `split_variable`."""
    num_values = parts[0].num_values
    pieces: list[pa.Array] = []
    fixed: list[FixedWidthBlock] = []

    def flush() -> None:
        if fixed:
            rows = _zipped(fixed)
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


def _check_whole_bytes(part: DataBlock) -> None:
    """Check that a packed struct can contain a part.

    Raises:
        InvalidInputError: It cannot contain it.
    """
    if isinstance(part, FixedWidthBlock) and part.bits_per_value % 8:
        raise InvalidInputError(
            "a packed struct supports values of whole bytes, not booleans; store them as int8, or "
            "omit the metadata 'lance-encoding:packed'"
        )


def _longest(rows: VariableWidthBlock) -> int:
    return int(np.diff(rows.offsets).max())


def _bytes_at(data: Bytes, positions: Positions, stops: Positions, width: int) -> Bytes:
    """Return (len(positions), width) bytes.

    Raises:
        CorruptDataError: They extend past their values.
    """
    if (stops - positions < width).any():
        raise CorruptDataError(f"a part of {width} bytes exceeds its packed struct")
    if len(positions) == 0:
        return np.zeros((0, width), np.uint8)
    windows = np.ndarray((len(data) - width + 1,), np.dtype((np.void, width)), data, 0, (1,))
    return windows[positions].view(np.uint8).reshape(len(positions), width)


def _words_at(
    data: Bytes, positions: Positions, stops: Positions, width: int
) -> npt.NDArray[np.uint64]:
    words = _bytes_at(data, positions, stops, width)
    return np.ascontiguousarray(words).reshape(-1).view(f"<u{width}").astype(np.uint64)


def _scatter_sizes(sizes: Positions, is_present: npt.NDArray[np.bool_] | None) -> Positions:
    if is_present is None:
        return sizes
    spread = np.zeros(len(is_present), np.int64)
    spread[is_present] = sizes
    return spread


def _strings(lengths: Positions, data: Bytes) -> VariableWidthBlock:
    small = len(data) <= np.iinfo(np.int32).max
    offsets: Offsets = np.zeros(len(lengths) + 1, INT32 if small else INT64)
    np.cumsum(lengths, out=offsets[1:])
    return VariableWidthBlock(len(lengths), offsets, data)


def _binary(offsets: Positions, data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))],
        0,
    )
