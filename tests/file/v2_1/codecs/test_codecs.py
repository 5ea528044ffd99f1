"""The table of codecs, and the properties of every codec that we write."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import (
    ConstantBlock,
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    VariableWidthBlock,
    size_in_bytes,
)
from lance_stream.file.compression.fsst_symbols import SymbolTable
from lance_stream.file.v2_1.codecs import (
    bitpacking,
    compress_mini_block,
    decode_block,
    decode_mini_block,
    decode_per_value,
    encode_block,
    encode_mini_block,
    encode_per_value,
    fsst,
    num_mini_block_buffers,
    pick_mini_block,
)
from lance_stream.file.v2_1.codecs.bitpacking import InlineBitpacking, OutOfLineBitpacking
from lance_stream.file.v2_1.codecs.byte_stream_split import ByteStreamSplit
from lance_stream.file.v2_1.codecs.codec import Codec
from lance_stream.file.v2_1.codecs.constant import Constant
from lance_stream.file.v2_1.codecs.fixed_size_list import FixedSizeList, ListLayer
from lance_stream.file.v2_1.codecs.flat import Flat
from lance_stream.file.v2_1.codecs.fsst import Fsst
from lance_stream.file.v2_1.codecs.general import General
from lance_stream.file.v2_1.codecs.packed_struct import (
    PackedStruct,
    VariablePackedStruct,
    VariablePart,
)
from lance_stream.file.v2_1.codecs.registry import CODECS, REFUSED, parse
from lance_stream.file.v2_1.codecs.rle import Rle
from lance_stream.file.v2_1.codecs.variable import Variable

ENCODINGS = {
    field.name for field in pb.CompressiveEncoding.DESCRIPTOR.oneofs_by_name["compression"].fields
}
NO_VALUES = np.zeros(0, np.int64)


def masked(data: bytes, num_bits: int) -> np.ndarray:
    """Return bytes with zeros behind the last used bit."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    bits[num_bits:] = 0
    return np.packbits(bits, bitorder="little")


@st.composite
def fixed_blocks(draw: st.DrawFn, num_values: int | None = None) -> FixedWidthBlock:
    bits = draw(st.sampled_from([1, 8, 16, 24, 32, 64, 128]))
    count = draw(st.integers(1, 300)) if num_values is None else num_values
    size = size_in_bytes(count, bits)
    return FixedWidthBlock(
        bits, count, masked(draw(st.binary(min_size=size, max_size=size)), count * bits)
    )


@st.composite
def variable_blocks(draw: st.DrawFn) -> VariableWidthBlock:
    lengths = draw(
        st.lists(st.integers(0, 60) | st.sampled_from([0, 400]), min_size=1, max_size=80)
    )
    offsets = np.cumsum([0, *lengths]).astype(draw(st.sampled_from([np.int32, np.int64])))
    data = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, offsets[-1])
    return VariableWidthBlock(len(lengths), offsets, data.astype(np.uint8))


@st.composite
def list_blocks(draw: st.DrawFn) -> FixedSizeListBlock:
    count = draw(st.integers(1, 40))
    dimensions = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    counts = [count * int(np.prod(dimensions[: depth + 1])) for depth in range(len(dimensions))]
    block: DataBlock = draw(fixed_blocks(num_values=counts[-1]))
    for depth in reversed(range(len(dimensions))):
        validity = None
        if draw(st.booleans()):
            size = size_in_bytes(counts[depth], 1)
            validity = masked(draw(st.binary(min_size=size, max_size=size)), counts[depth])
        num_values = counts[depth] // dimensions[depth]
        block = FixedSizeListBlock(dimensions[depth], block, validity, num_values)
    assert isinstance(block, FixedSizeListBlock)
    return block


def plain(block: DataBlock | None) -> object:
    """Return a block in a form that can be compared."""
    if isinstance(block, FixedSizeListBlock):
        validity = None if block.validity is None else block.validity.tobytes()
        return (block.items_per_value, block.num_values, validity, plain(block.items))
    if isinstance(block, VariableWidthBlock):
        return (block.offsets.tolist(), block.data.tobytes())
    if isinstance(block, FixedWidthBlock):
        return (block.bits_per_value, block.num_values, block.data.tobytes())
    return block


def row_bits(block: DataBlock) -> int:
    rows = encode_per_value(block)[1]
    return rows.bits_per_value if isinstance(rows, FixedWidthBlock) else 8


def apart(buffer: ChunkedBuffer) -> ChunkedBuffer:
    """Return the same chunks with gaps between them, as a page has them."""
    starts = np.cumsum([5, *(buffer.sizes[:-1] + 3)]) if len(buffer.sizes) else buffer.starts
    data = np.full(int(buffer.sizes.sum()) + 5 + 3 * len(starts), 0xFE, np.uint8)
    for old, new, size in zip(buffer.starts, starts, buffer.sizes, strict=True):
        data[new : new + size] = buffer.data[old : old + size]
    return ChunkedBuffer(data, starts.astype(np.int64), buffer.sizes)


def test_encodings_are_decoded_or_refused() -> None:
    """Every encoding that the proto names is in exactly one of the two tables."""
    assert CODECS.keys() | REFUSED.keys() == ENCODINGS
    assert not CODECS.keys() & REFUSED.keys()


EXAMPLES: list[Codec] = [
    Flat(24),
    Variable(64),
    Constant(b"\1\2"),
    OutOfLineBitpacking(32, 5),
    InlineBitpacking(64),
    Fsst(SymbolTable(is_on=True, symbols=(b"ab", b"c"), terminator=7), Variable(32)),
    Rle(General(Flat(32), "lz4"), OutOfLineBitpacking(8, 2)),
    ByteStreamSplit(Flat(32)),
    General(Rle.of(16), "zstd", 9),
    FixedSizeList((ListLayer(3, True), ListLayer(2, False)), 16),
    PackedStruct((8, 16), Flat(24)),
    VariablePackedStruct((VariablePart(Flat(8), 8, False), VariablePart(Variable(32), 32, True))),
]


@pytest.mark.parametrize("name", sorted(CODECS))
def test_each_codec_reads_its_own_message(name: str) -> None:
    """The table of codecs must lead each message to its class and lose no parameter."""
    (example,) = [example for example in EXAMPLES if example.name == name]
    encoding = example.to_proto()
    assert encoding.WhichOneof("compression") == name
    codec = parse(encoding)
    assert codec == example
    assert type(codec) is CODECS[name]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_encodings_give_their_reason(name: str) -> None:
    """The user learns why, wherever in a page the encoding occurs."""
    encoding = pb.CompressiveEncoding()
    getattr(encoding, name).SetInParent()
    with pytest.raises(UnsupportedFeatureError, match=f"'{name}'.*{REFUSED[name][:20]}"):
        num_mini_block_buffers(encoding)
    with pytest.raises(UnsupportedFeatureError, match=name):
        decode_mini_block(encoding, [], NO_VALUES)
    with pytest.raises(UnsupportedFeatureError, match=name):
        decode_block(encoding, b"", 0)
    with pytest.raises(UnsupportedFeatureError, match=name):
        decode_per_value(encoding, FixedWidthBlock(8, 0, np.zeros(0, np.uint8)))


def test_unknown_encodings_are_refused() -> None:
    """A later release's encoding reads as an empty message in protobuf."""
    later = pb.CompressiveEncoding.FromString(bytes([0xA2, 0x06, 0x00]))  # field 100
    with pytest.raises(UnsupportedFeatureError, match="of an unknown kind"):
        decode_block(later, b"", 0)


def test_misplaced_codecs_are_refused() -> None:
    """Not every codec has a meaning in blocks, chunks and single values."""
    split = ByteStreamSplit(Flat(32)).to_proto()
    with pytest.raises(UnsupportedFeatureError, match=r"'byte_stream_split' is not .* in a block"):
        decode_block(split, b"", 0)
    packed = OutOfLineBitpacking(16, 3).to_proto()
    with pytest.raises(UnsupportedFeatureError, match="not supported in a mini-block page"):
        num_mini_block_buffers(packed)


@settings(max_examples=60, deadline=None)
@given(
    block=fixed_blocks() | variable_blocks() | list_blocks(),
    max_values=st.sampled_from([8, 16, 64, 4096]),
    max_bytes=st.sampled_from([850, 8186]),  # two of the widest lists fit: 2 x 3,240 bits
)
def test_mini_block_encoding_round_trips(block: DataBlock, max_values: int, max_bytes: int) -> None:
    """Values at the edges of chunks are where they get lost."""
    page = encode_mini_block(block, max_chunk_values=max_values, max_chunk_bytes=max_bytes)
    assert len(page.buffers) == num_mini_block_buffers(page.encoding)
    decoded = decode_mini_block(
        page.encoding, [apart(buffer) for buffer in page.buffers], page.num_values
    )
    assert plain(decoded) == plain(block)


@settings(max_examples=60, deadline=None)
@given(
    block=fixed_blocks() | variable_blocks(),
    max_values=st.sampled_from([8, 64, 4096]),
    around=st.sampled_from(["nothing", "zstd", "lz4", "fsst"]),
    seed=st.integers(0, 99),
)
def test_picked_values_match_the_whole(
    block: FixedWidthBlock | VariableWidthBlock, max_values: int, around: str, seed: int
) -> None:
    """Random access decodes only the wanted values, and must agree with decoding all."""
    page = encode_mini_block(block, max_chunk_values=max_values)
    if around == "fsst" and isinstance(block, VariableWidthBlock):
        codec, stored = fsst.encode(block)
        page = encode_mini_block(stored, max_chunk_values=max_values)._replace(codec=codec)
    elif around in ("zstd", "lz4"):
        page = compress_mini_block(page, around)
    random = np.random.default_rng(seed)
    count = random.integers(1, block.num_values + 1)
    indices = np.sort(random.choice(block.num_values, count, replace=False))
    buffers = [apart(buffer) for buffer in page.buffers]
    picked = pick_mini_block(page.encoding, buffers, page.num_values, indices)
    if isinstance(block, VariableWidthBlock):
        assert isinstance(picked, VariableWidthBlock)
        expected = [
            block.data[block.offsets[index] : block.offsets[index + 1]] for index in indices
        ]
        assert picked.data.tobytes() == b"".join(value.tobytes() for value in expected)
        assert np.diff(picked.offsets).tolist() == [len(value) for value in expected]
    elif block.bits_per_value in (8, 16, 32, 64):
        assert isinstance(picked, FixedWidthBlock)
        assert np.array_equal(picked.words(), block.words()[indices])
    else:
        assert picked is None


@pytest.mark.parametrize(("index", "offset"), [(0, 3), (0, 4000), (1, 1000), (2, 17)], ids=str)
def test_offsets_outside_their_chunk_are_corrupt(index: int, offset: int) -> None:
    """Picking single values must check offsets as reading whole chunks does."""
    block = VariableWidthBlock(3, np.array([0, 4, 8, 12], np.int32), np.zeros(12, np.uint8))
    page = encode_mini_block(block)
    indices = np.arange(3)
    assert pick_mini_block(page.encoding, page.buffers, page.num_values, indices) is not None
    data = page.buffers[0].data.copy()
    data.view("<u4")[index] = offset
    damaged = [page.buffers[0]._replace(data=data)]
    with pytest.raises(CorruptDataError):
        pick_mini_block(page.encoding, damaged, page.num_values, indices)


@settings(max_examples=60, deadline=None)
@given(
    block=fixed_blocks() | variable_blocks() | list_blocks(),
    max_values=st.sampled_from([8, 64, 4096]),
)
def test_chunk_sizes_are_powers_of_two(block: DataBlock, max_values: int) -> None:
    """All but the last, and each within its limits of values and bytes."""
    page = encode_mini_block(block, max_chunk_values=max_values, max_chunk_bytes=900)
    sizes = sum(buffer.sizes for buffer in page.buffers)
    assert page.num_values.sum() == block.num_values
    assert page.num_values.min() >= 1
    assert page.num_values.max() <= max_values
    for count in page.num_values[:-1].tolist():
        assert count >= 2
        assert count & (count - 1) == 0
    assert ((sizes <= 900 + 8) | (page.num_values <= 2)).all()


@settings(max_examples=40, deadline=None)
@given(block=fixed_blocks() | variable_blocks() | list_blocks())
def test_block_encoding_round_trips(block: DataBlock) -> None:
    """Dictionaries and levels are stored as single blocks."""
    if isinstance(block, FixedSizeListBlock) and row_bits_are_broken(block):
        with pytest.raises(UnsupportedFeatureError, match="not whole bytes"):
            encode_block(block)
        return
    encoded = encode_block(block)
    assert encoded.num_values == block.num_values
    decoded = decode_block(encoded.encoding, encoded.data.tobytes(), block.num_values)
    assert plain(decoded) == plain(block)


@settings(max_examples=40, deadline=None)
@given(block=fixed_blocks() | variable_blocks() | list_blocks())
def test_per_value_encoding_round_trips(block: DataBlock) -> None:
    """Full-zip pages store each value on its own."""
    if isinstance(block, FixedSizeListBlock) and row_bits_are_broken(block):
        with pytest.raises(UnsupportedFeatureError, match="not whole bytes"):
            encode_per_value(block)
        return
    encoded = encode_per_value(block)
    assert plain(decode_per_value(encoded.encoding, encoded.values)) == plain(block)


def row_bits_are_broken(block: FixedSizeListBlock) -> bool:
    """Tell whether rows with a bitmap do not fill bytes."""
    items, inner, has_validity = 1, block, False
    while isinstance(inner, FixedSizeListBlock):
        items *= inner.items_per_value
        has_validity |= inner.validity is not None
        inner = inner.items
    assert isinstance(inner, FixedWidthBlock)
    return has_validity and items * inner.bits_per_value % 8 != 0


@settings(max_examples=30, deadline=None)
@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    count=st.integers(1, 2500),
    seed=st.integers(0, 99),
)
def test_bit_packed_chunks_round_trip(bits: int, count: int, seed: int) -> None:
    """Chunks of one page have different widths."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**63, count).astype(np.uint64) >> np.uint64(rng.integers(0, 64))
    words[: count // 2] >>= np.uint64(60)
    block = FixedWidthBlock(bits, count, words.astype(f"<u{bits // 8}").view(np.uint8))
    page = bitpacking.encode_mini_block(block)
    decoded = decode_mini_block(
        page.encoding, [apart(buffer) for buffer in page.buffers], page.num_values
    )
    assert plain(decoded) == plain(block)


@pytest.mark.floors
def test_no_chunks_decode_to_no_values() -> None:
    """Empty arrays break code that takes a first chunk for granted."""
    none = ChunkedBuffer(np.zeros(0, np.uint8), NO_VALUES, NO_VALUES)
    flat = pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=32))
    lists = pb.FixedSizeList(items_per_value=2, values=flat, has_validity=True)
    for encoding in [
        flat,
        pb.CompressiveEncoding(variable=pb.Variable(offsets=flat)),
        pb.CompressiveEncoding(
            inline_bitpacking=pb.InlineBitpacking(uncompressed_bits_per_value=8)
        ),
        pb.CompressiveEncoding(rle=pb.Rle(values=flat, run_lengths=flat)),
        pb.CompressiveEncoding(byte_stream_split=pb.ByteStreamSplit(values=flat)),
        pb.CompressiveEncoding(fixed_size_list=lists),
    ]:
        buffers = [none] * num_mini_block_buffers(encoding)
        assert decode_mini_block(encoding, buffers, NO_VALUES).num_values == 0


def test_two_values_must_fit_a_chunk() -> None:
    """A chunk has a limit of bytes, and larger values belong into full-zip pages."""
    block = FixedWidthBlock(8 * 5000, 2, np.zeros(10000, np.uint8))
    with pytest.raises(InvalidInputError, match="full-zip"):
        encode_mini_block(block)


def test_large_strings_are_paired_in_chunks() -> None:
    """A chunk holds at least two values, even where they exceed its size."""
    block = VariableWidthBlock(5, np.arange(6, dtype=np.int32) * 9000, np.zeros(45000, np.uint8))
    assert encode_mini_block(block).num_values.tolist() == [2, 2, 1]


def test_a_constant_without_value_is_null() -> None:
    """The protocol distinguishes an absent value from an empty one."""
    block = decode_block(pb.CompressiveEncoding(constant=pb.Constant()), b"", 7)
    assert block == ConstantBlock(None, 7)
    block = decode_block(pb.CompressiveEncoding(constant=pb.Constant(value=b"\1\0")), b"", 7)
    assert block == ConstantBlock(b"\1\0", 7)


def test_null_list_items_take_no_bytes() -> None:
    """A constant without value has no bytes, however many items the lists have."""
    lists = pb.FixedSizeList(
        items_per_value=3,
        has_validity=True,
        values=pb.CompressiveEncoding(constant=pb.Constant()),
    )
    encoding = pb.CompressiveEncoding(fixed_size_list=lists)
    block = decode_block(encoding, bytes(2), 2)
    assert isinstance(block, FixedSizeListBlock)
    assert block.items == ConstantBlock(None, 6)


@pytest.mark.parametrize("outer", ["zstd", "lz4"])
def test_nested_compression_is_refused(outer: str) -> None:
    """Nesting would multiply a small buffer into a huge one."""
    scheme = pb.COMPRESSION_ALGORITHM_ZSTD if outer == "zstd" else pb.COMPRESSION_ALGORITHM_LZ4
    encoding = pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=8))
    for _ in range(2):
        compression = pb.BufferCompression(scheme=scheme)
        encoding = pb.CompressiveEncoding(
            general=pb.General(compression=compression, values=encoding)
        )
    with pytest.raises(UnsupportedFeatureError, match=r"within '?general"):
        decode_block(encoding, bytes(100), 1)
    with pytest.raises(UnsupportedFeatureError, match=r"within '?general"):
        num_mini_block_buffers(encoding)


@pytest.mark.parametrize("bits", [0, 2**40, 2**63])
def test_an_impossible_width_is_bad_data(bits: int) -> None:
    """The product of widths decides how much memory is allocated."""
    flat = pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))
    lists = pb.FixedSizeList(items_per_value=2**40, values=flat)
    for encoding in [flat, pb.CompressiveEncoding(fixed_size_list=lists)]:
        one = ChunkedBuffer(np.zeros(8, np.uint8), np.array([0]), np.array([8]))
        with pytest.raises(CorruptDataError):
            decode_mini_block(encoding, [one], np.array([1]))
        with pytest.raises(CorruptDataError):
            decode_block(encoding, bytes(8), 1)
