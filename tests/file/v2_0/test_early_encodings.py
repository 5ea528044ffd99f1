"""Encodings that writers choose no longer, or only on demand: made by hand from the proto."""

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.compression import fastlanes
from lance_stream.file.compression.fsst_symbols import MAGIC, SIZE_BYTES
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.encodings import compressed_buffers
from tests.file.v2_0.pages import binary, decode, flat, no_nulls, some_nulls, u64

INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
SOME_ROWS = [
    Rows(0, 3000),
    Rows(0, 0),
    Rows(5, 6),
    Rows(1023, 2050),
    Rows.of(np.array([0, 1, 2, 1024, 2999])),
    Rows.of(np.arange(3, 3000, 7)),
]


def bitpacked(width: int, bits: int, *, signed: bool = False, buffer: int = 0) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(
        bitpacked=pb.Bitpacked(
            compressed_bits_per_value=width,
            uncompressed_bits_per_value=bits,
            buffer=pb.Buffer(buffer_index=buffer),
            signed=signed,
        )
    )


def packed_in_order(values: list[int], width: int) -> bytes:
    """Pack one value after the other, least significant bit first."""
    words = np.array(values, np.int64)[:, None]
    bits = ((words >> np.arange(width)) & 1).astype(np.uint8)
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()


def at(values: list[Any], rows: Rows) -> list[Any]:
    offsets = range(rows.start, rows.stop) if rows.offsets is None else rows.offsets.tolist()
    return [values[offset] for offset in offsets]


@pytest.mark.floors
@pytest.mark.parametrize("bits", INTEGERS)
def test_bitpacked_values_read_at_every_width(bits: int) -> None:
    """Values cross bytes differently at each width, and signed ones need their sign extended."""
    chance = random.Random(bits)
    for width in sorted({1, 2, 3, 5, 7, 8, bits // 2 + 1, bits - 1, bits}):
        if width > bits:
            continue
        limit = 1 << (width - 1)
        signed = [
            chance.choice([-limit, limit - 1, chance.randrange(-limit, limit)]) for _ in range(3000)
        ]
        stored = [packed_in_order(signed, width)]
        for rows in SOME_ROWS:
            array = decode(bitpacked(width, bits, signed=True), INTEGERS[bits], stored, rows)
            assert array.to_pylist() == at(signed, rows), (width, rows)
        unsigned = [value & ((1 << width) - 1) for value in signed]
        arrow = pa.from_numpy_dtype(np.dtype(f"u{bits // 8}"))
        for rows in SOME_ROWS:
            array = decode(bitpacked(width, bits), arrow, stored, rows)
            assert array.to_pylist() == at(unsigned, rows), (width, rows)


@pytest.mark.floors
@pytest.mark.parametrize("bits", INTEGERS)
def test_fastlanes_blocks_decode_without_padding(bits: int) -> None:
    """The last block is padded, and its surplus must not be returned."""
    word = np.dtype(f"<u{bits // 8}")
    random_words = np.random.default_rng(bits)
    for width in sorted({1, 3, bits // 2, bits - 1, bits}):
        values = np.zeros(3072, word)
        limit = (1 << width) - 1
        values[:3000] = random_words.integers(0, limit, 3000, dtype=word, endpoint=True)
        stored = [fastlanes.pack(values.reshape(3, 1024), width).tobytes()]
        encoding = pb.ArrayEncoding(
            bitpacked_for_non_neg=pb.BitpackedForNonNeg(
                compressed_bits_per_value=width,
                uncompressed_bits_per_value=bits,
                buffer=pb.Buffer(buffer_index=0),
            )
        )
        for rows in SOME_ROWS:
            array = decode(encoding, pa.from_numpy_dtype(word), stored, rows)
            assert array.to_pylist() == at(values.tolist(), rows), (width, rows)
        with pytest.raises(CorruptDataError):
            decode(encoding, pa.from_numpy_dtype(word), [stored[0][:-1]], Rows(0, 3000))


@pytest.mark.parametrize(
    ("encoding", "arrow", "size"),
    [
        (bitpacked(0, 8), pa.int8(), 9),
        (bitpacked(9, 8), pa.int8(), 9),
        (bitpacked(5, 16), pa.int8(), 9),
        (bitpacked(5, 12), pa.int8(), 9),
        (bitpacked(5, 8), pa.string(), 9),
        (bitpacked(5, 8), pa.int8(), 1),
        (bitpacked(2**63, 8), pa.int8(), 9),
        (bitpacked(5, 2**63), pa.int8(), 9),
        (bitpacked(5, 8, buffer=1), pa.int8(), 9),
    ],
)
def test_bitpacking_of_wrong_sizes_is_corrupt(
    encoding: pb.ArrayEncoding, arrow: pa.DataType, size: int
) -> None:
    """Widths and buffers are stored apart, and must be checked against each other."""
    with pytest.raises(CorruptDataError):
        decode(encoding, arrow, [bytes(size)], Rows(0, 3))


def test_bytes_and_offsets_may_be_bitpacked() -> None:
    """Early writers packed both parts of a string column."""
    words = ["one", "", "three", "four"]
    text = "".join(words).encode()
    ends = [3, 3 + 20, 8, 12]
    encoding = binary(20, no_nulls(bitpacked(5, 64)), no_nulls(bitpacked(7, 8, buffer=1)))
    stored = [packed_in_order(ends, 5), packed_in_order(list(text), 7)]
    expected = ["one", None, "three", "four"]
    for rows in (Rows(0, 4), Rows(1, 3), Rows.of(np.array([0, 3]))):
        assert decode(encoding, pa.string(), stored, rows).to_pylist() == at(expected, rows)
    with pytest.raises(CorruptDataError):
        decode(encoding, pa.string(), [stored[0], stored[1][:3]], Rows(0, 4))


def zstd(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + pa.Codec("zstd").compress(raw, asbytes=True)


def zstd_frame(raw: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(raw, asbytes=True))


def zstd_frame_of_unknown_size(raw: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(raw)
    return bytes(sink.getvalue().to_pybytes())


def lz4(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + pa.Codec("lz4_raw").compress(raw, asbytes=True)


SCHEMES = [
    ("zstd", zstd),
    ("zstd", zstd_frame),
    ("zstd", zstd_frame_of_unknown_size),
    ("lz4", lz4),
]


@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_compressed_values_read_like_plain_ones(scheme: str, compress: Any) -> None:
    """A compressed buffer must be decompressed as a whole before rows are picked."""
    numbers = np.arange(0, 6000, 2, dtype=np.int64)
    stored = [compress(numbers.tobytes())]
    for rows in SOME_ROWS:
        array = decode(no_nulls(flat(64, scheme=scheme)), pa.int64(), stored, rows)
        assert array.to_pylist() == at(numbers.tolist(), rows)
    lists = no_nulls(
        pb.ArrayEncoding(
            fixed_size_list=pb.FixedSizeList(dimension=3, items=flat(64, scheme=scheme))
        )
    )
    assert decode(lists, pa.list_(pa.int64(), 3), stored, Rows(1, 2)).to_pylist() == [[6, 8, 10]]
    with pytest.raises(CorruptDataError):
        decode(flat(64, scheme=scheme), pa.int64(), stored, Rows(0, 3001))


@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_compressed_strings_read_like_plain_ones(scheme: str, compress: Any) -> None:
    """Offsets count decompressed bytes."""
    encoding = binary(13, 0, flat(8, 1, scheme))
    stored = [u64(3, 3 + 13, 8, 12), compress(b"onethreefour")]
    expected = ["one", None, "three", "four"]
    for rows in (Rows(0, 4), Rows(1, 3), Rows(2, 2), Rows.of(np.array([0, 3]))):
        assert decode(encoding, pa.string(), stored, rows).to_pylist() == at(expected, rows)
    with pytest.raises(CorruptDataError, match="ends at byte 12"):
        decode(encoding, pa.string(), [stored[0], compress(b"onethree")], Rows(0, 4))


def test_empty_strings_need_no_decompression() -> None:
    """Writers store no frame for no bytes."""
    for scheme in ("zstd", "lz4"):
        array = decode(binary(1, 0, flat(8, 1, scheme)), pa.string(), [b"", b""], Rows(0, 0))
        assert array.to_pylist() == []


def test_bitmaps_are_never_compressed() -> None:
    """Whatever their encoding declares."""
    encoding = some_nulls(flat(1), flat(1, 1, "zstd"))
    array = decode(encoding, pa.bool_(), [b"\6", b"\5"], Rows(0, 3))
    assert array.to_pylist() == [None, False, True]


def test_unknown_compressions_are_refused_by_name() -> None:
    """The user learns which compression another writer chose."""
    with pytest.raises(UnsupportedFeatureError, match="snappy"):
        decode(flat(8, scheme="snappy"), pa.int8(), [b"abc"], Rows(0, 1))


@pytest.mark.parametrize(
    ("scheme", "stored"),
    [
        ("zstd", zstd(bytes(4 << 20))),
        ("zstd", zstd_frame_of_unknown_size(bytes(4 << 20))),
        ("zstd", struct.pack("<Q", 1 << 40) + zstd_frame(bytes(1000))),
        ("zstd", struct.pack("<Q", 5) + zstd_frame(bytes(1000))),
        ("zstd", b"\x28\xb5\x2f\xfd\0"),
        ("zstd", b"\x28\xb5\x2f\xfd\0" + bytes(range(40))),
        ("zstd", b"abc"),
        ("lz4", struct.pack("<I", 2**32 - 1) + lz4(bytes(1000))[4:]),
        ("lz4", b"abc"),
        ("lz4", lz4(bytes(1000))[:-2]),
    ],
)
def test_bytes_that_decompress_wrongly_are_corrupt(
    monkeypatch: pytest.MonkeyPatch, scheme: str, stored: bytes
) -> None:
    """A claimed size must not allocate more than the page can hold."""
    monkeypatch.setattr(compressed_buffers, "MIN_RAW_LIMIT", 3 << 20)
    with pytest.raises(CorruptDataError):
        decode(flat(8, scheme=scheme), pa.int8(), [stored], Rows(0, 3))


def symbol_table(*symbols: bytes, is_on: bool = True) -> bytes:
    header = bytes([len(symbols), 0, 0, is_on]) + struct.pack("<I", MAGIC)
    body = b"".join(symbol.ljust(8, b"\0") for symbol in symbols)
    return (header + body + bytes(map(len, symbols))).ljust(SIZE_BYTES, b"\0")


def fsst(table: bytes) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(fsst=pb.Fsst(binary=binary(100), symbol_table=table))


@pytest.mark.parametrize("arrow", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_fsst_codes_decode_to_symbols(arrow: pa.DataType) -> None:
    """Nulls stay null."""
    table = symbol_table(b"http://", b"ab")
    stored = [u64(2, 2 + 100, 5, 5), b"\0\1\1\xffx"]
    expected = pa.array(["http://ab", None, "abx", ""]).cast(arrow).to_pylist()
    for rows in (Rows(0, 4), Rows(1, 3), Rows.of(np.array([0, 2]))):
        array = decode(fsst(table), arrow, stored, rows)
        assert array.type == arrow
        assert array.to_pylist() == at(expected, rows)


def test_a_disabled_symbol_table_keeps_bytes() -> None:
    """Lance writes a disabled table where compression does not pay."""
    array = decode(fsst(symbol_table(is_on=False)), pa.string(), [u64(2, 3), b"abc"], Rows(0, 2))
    assert array.to_pylist() == ["ab", "c"]


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        (symbol_table(b"a"), b"\1"),
        (symbol_table(b"a"), b"\xff"),
        (b"", b"\0"),
        (bytes(2312), b"\0"),
    ],
)
def test_codes_without_a_symbol_are_corrupt(table: bytes, codes: bytes) -> None:
    """A missing symbol would silently shorten the value."""
    with pytest.raises(CorruptDataError):
        decode(fsst(table), pa.string(), [u64(1), codes], Rows(0, 1))


POINT = pa.struct([("id", pa.int32()), ("at", pa.list_(pa.float32(), 2)), ("kind", pa.uint8())])


def packed_struct(*inner: pb.ArrayEncoding) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(
        packed_struct=pb.PackedStruct(inner=inner, buffer=pb.Buffer(buffer_index=0))
    )


def fixed_size_list(dimension: int, items: pb.ArrayEncoding) -> pb.ArrayEncoding:
    return no_nulls(
        pb.ArrayEncoding(fixed_size_list=pb.FixedSizeList(dimension=dimension, items=items))
    )


POINT_PARTS = (no_nulls(flat(32)), fixed_size_list(2, no_nulls(flat(32))), no_nulls(flat(8)))


@pytest.mark.floors
def test_packed_struct_fields_are_adjacent() -> None:
    """The fields of one row lie next to each other, without padding."""
    stored = [b"".join(struct.pack("<iffB", n, n / 2, -n, n + 1) for n in range(5))]
    expected = [{"id": n, "at": [n / 2, -n], "kind": n + 1} for n in range(5)]
    for rows in (Rows(0, 5), Rows(2, 3), Rows(1, 1), Rows.of(np.array([0, 2, 4]))):
        array = decode(packed_struct(*POINT_PARTS), POINT, stored, rows)
        assert array.type == POINT
        assert array.to_pylist() == at(expected, rows)


@pytest.mark.parametrize(
    ("parts", "arrow", "size"),
    [
        (POINT_PARTS, POINT, 12),
        (POINT_PARTS[:2], POINT, 13),
        (POINT_PARTS, pa.int32(), 13),
        ((POINT_PARTS[0], POINT_PARTS[0], POINT_PARTS[2]), POINT, 13),
        ((no_nulls(flat(1)),), pa.struct([("a", pa.bool_())]), 13),
        ((no_nulls(flat(32)),), pa.struct([("a", pa.string())]), 13),
        ((fixed_size_list(2**31, fixed_size_list(2**31, flat(8))),), POINT, 13),
        ((), pa.struct([]), 13),
    ],
)
def test_mismatched_packed_structs_are_corrupt(
    parts: tuple[pb.ArrayEncoding, ...], arrow: pa.DataType, size: int
) -> None:
    """A wrong width would shift every later field."""
    with pytest.raises(CorruptDataError):
        decode(packed_struct(*parts), arrow, [bytes(size)], Rows(0, 1))


def test_encoded_packed_fields_are_refused() -> None:
    """The protocol allows them, but no writer produces them."""
    with pytest.raises(UnsupportedFeatureError, match="bitpacked"):
        decode(
            packed_struct(bitpacked(3, 32)), pa.struct([("a", pa.int32())]), [b"1234"], Rows(0, 1)
        )
