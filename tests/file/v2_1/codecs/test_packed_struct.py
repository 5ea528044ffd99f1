from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream._proto.encodings_v2_1_pb2 import (
    CompressiveEncoding,
    Flat,
    PackedStruct,
    Variable,
    VariablePackedStruct,
)
from lance_stream.errors import BadDataError, CorruptDataError, InvalidInputError
from lance_stream.file.blocks.data_blocks import (
    DataBlock,
    FixedWidthBlock,
    StructBlock,
    VariableWidthBlock,
)
from lance_stream.file.v2_1.codecs import (
    decode_mini_block,
    decode_per_value,
    encode_mini_block,
    encode_per_value,
    packed_struct,
)


def fixed(values: list[bytes], width: int) -> FixedWidthBlock:
    return FixedWidthBlock(8 * width, len(values), np.frombuffer(b"".join(values), np.uint8))


def strings(values: list[bytes], offsets: type = np.int32) -> VariableWidthBlock:
    bounds = np.cumsum([0, *map(len, values)]).astype(offsets)
    return VariableWidthBlock(len(values), bounds, np.frombuffer(b"".join(values), np.uint8))


def values_of(block: DataBlock) -> list[bytes]:
    if isinstance(block, FixedWidthBlock):
        width, data = block.bits_per_value // 8, block.data.tobytes()
        return [data[start : start + width] for start in range(0, len(data), width)]
    assert isinstance(block, VariableWidthBlock)
    data = block.data.tobytes()
    return [data[start:stop] for start, stop in pairwise(block.offsets.tolist())]


def parts_of(block: DataBlock) -> list[list[bytes]]:
    assert isinstance(block, StructBlock)
    return [values_of(part) for part in block.parts]


@st.composite
def structs(draw: st.DrawFn, *, variable: bool) -> StructBlock:
    count = draw(st.integers(1, 40))
    parts: list[DataBlock] = []
    for width in draw(st.lists(st.integers(1, 9) | st.just(0) if variable else st.integers(1, 9))):
        if width:
            some = draw(st.lists(st.binary(min_size=width, max_size=width), min_size=1))
            parts.append(fixed([some[index % len(some)] for index in range(count)], width))
        else:
            some = draw(st.lists(st.binary(max_size=12), min_size=1))
            offsets = draw(st.sampled_from([np.int32, np.int64]))
            parts.append(strings([some[index % len(some)] for index in range(count)], offsets))
    parts = parts or [fixed([b"x"] * count, 1)]
    return StructBlock(tuple(parts), count)


@settings(max_examples=60, deadline=None)
@given(block=structs(variable=False), max_chunk_values=st.sampled_from([2, 8, 4096]))
def test_fixed_width_fields_round_trip(block: StructBlock, max_chunk_values: int) -> None:
    """The fields of a value must stay together when a page is cut into chunks."""
    encoded = encode_mini_block(block, max_chunk_values=max_chunk_values)
    decoded = decode_mini_block(encoded.encoding, encoded.buffers, encoded.num_values)
    assert parts_of(decoded) == parts_of(block)


@settings(max_examples=80, deadline=None)
@given(block=structs(variable=True))
def test_per_value_fields_round_trip(block: StructBlock) -> None:
    """Fields of variable length move those after them in each value."""
    encoded = encode_per_value(block)
    assert parts_of(decode_per_value(encoded.encoding, encoded.values)) == parts_of(block)


def test_fields_of_a_value_are_adjacent() -> None:
    """Lance reads lengths and bytes in this order."""
    block = StructBlock(
        (fixed([b"ab", b"cd"], 2), strings([b"xyz", b""]), fixed([b"1", b"2"], 1)), 2
    )
    encoded = encode_per_value(block)
    assert values_of(encoded.values) == [b"ab\3\0\0\0xyz1", b"cd\0\0\0\0002"]


def test_an_empty_value_has_empty_fields() -> None:
    """Zeros where the width is fixed, empty strings where it is not."""
    rows = strings([b"ab\1\0\0\0x", b"", b"cd\0\0\0\0"])
    parts = packed_struct.split_variable(rows, [16, 32], [False, True])
    assert [values_of(part) for part in parts] == [[b"ab", b"\0\0", b"cd"], [b"x", b"", b""]]


@pytest.mark.parametrize(
    "value",
    [b"a", b"ab", b"ab\2\0\0\0x", b"ab\1\0\0\0xy", b"ab\xff\xff\xff\xffxy", b"ab\1\0\0"],
    ids=lambda value: value.hex(),
)
def test_fields_must_fill_their_value(value: bytes) -> None:
    """Bytes of the next value must not complete a short one, and none may be left over."""
    with pytest.raises(CorruptDataError):
        packed_struct.split_variable(strings([b"ab\0\0\0\0", value]), [16, 32], [False, True])


@pytest.mark.floors
def test_absurd_64_bit_lengths_are_corrupt() -> None:
    """The sum with the position would overflow and pass a check of bounds."""
    rows = strings([b"\xff" * 8 + b"x"])
    with pytest.raises(CorruptDataError, match="18446744073709551615 bytes"):
        packed_struct.split_variable(rows, [64], [True])


@pytest.mark.parametrize(
    ("bits", "total"),
    [([], 0), ([8, 8], 24), ([0, 16], 16), ([1, 8], 9), ([2**63, 2**63], 2**33), ([8] * 70_000, 8)],
    ids=str,
)
def test_field_widths_must_add_up(bits: list[int], total: int) -> None:
    """A wrong sum would shift every later field."""
    message = PackedStruct(
        bits_per_value=bits, values=CompressiveEncoding(flat=Flat(bits_per_value=total))
    )
    with pytest.raises(BadDataError):
        decode_per_value(CompressiveEncoding(packed_struct=message), fixed([b"abc"], 3))


@pytest.mark.parametrize("layout", [{}, {"bits_per_value": 12}, {"bits_per_length": 16}], ids=str)
def test_fields_without_valid_widths_are_corrupt(layout: dict[str, int]) -> None:
    """Lengths have 32 or 64 bits, and whole bytes are required."""
    offsets = CompressiveEncoding(flat=Flat(bits_per_value=32))
    value = CompressiveEncoding(variable=Variable(offsets=offsets))
    field = VariablePackedStruct.FieldEncoding(value=value, **layout)
    message = CompressiveEncoding(variable_packed_struct=VariablePackedStruct(fields=[field]))
    with pytest.raises(BadDataError):
        decode_per_value(message, strings([b"\1\0\0\0x"]))


def test_booleans_are_refused_by_name() -> None:
    """Bits cannot be packed next to bytes, and the error names a type that can."""
    bits = FixedWidthBlock(1, 2, np.array([3], np.uint8))
    with pytest.raises(InvalidInputError, match="int8"):
        encode_per_value(StructBlock((bits,), 2))
