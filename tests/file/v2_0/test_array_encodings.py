"""Single pages, made by hand: what each encoding means, and what is refused."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange, answer, read_from
from lance_stream.errors import BadDataError, CorruptDataError, UnsupportedFeatureError
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.array_encodings import DECODERS, REFUSED, decode_array
from lance_stream.file.v2_0.pages import PageBuffers
from tests.file.v2_0.pages import binary, decode, flat, no_nulls, some_nulls, u64


def test_encodings_are_decoded_or_refused() -> None:
    """Every encoding that the proto names is in exactly one of the two tables."""
    names = {field.name for field in pb.ArrayEncoding.DESCRIPTOR.oneofs[0].fields}
    assert set(DECODERS) | set(REFUSED) == names
    assert not set(DECODERS) & set(REFUSED)


@pytest.mark.parametrize("kind", REFUSED)
def test_unsupported_encodings_are_named(kind: str) -> None:
    """The user learns which encoding another writer chose."""
    encoding = pb.ArrayEncoding()
    getattr(encoding, kind).SetInParent()
    with pytest.raises(UnsupportedFeatureError, match=kind):
        decode(encoding, pa.int32(), [b"1234"], Rows(0, 1))


def test_pages_without_an_encoding_are_corrupt() -> None:
    """An empty message is valid protobuf and must not read as a default."""
    with pytest.raises(CorruptDataError, match="does not state"):
        decode(pb.ArrayEncoding(), pa.int32(), [], Rows(0, 1))


def test_flat_bits_start_at_the_lowest() -> None:
    """The other order would read plausible, but wrong, booleans."""
    stored = [bytes([0b0000_0101, 0b1000_0000])]
    assert decode(flat(1), pa.bool_(), stored, Rows(0, 3)).to_pylist() == [True, False, True]
    assert decode(flat(1), pa.bool_(), stored, Rows(7, 16)).to_pylist() == [*[False] * 8, True]
    scattered = Rows.of(np.array([0, 1, 15]))
    assert decode(flat(1), pa.bool_(), stored, scattered).to_pylist() == [True, False, True]


def test_bitmaps_mark_the_valid_values() -> None:
    """The other polarity would exchange nulls and values."""
    encoding = some_nulls(flat(1), flat(16, 1))
    stored = [bytes([0b101]), struct.pack("<3h", 7, 8, 9)]
    assert decode(encoding, pa.int16(), stored, Rows(0, 3)).to_pylist() == [7, None, 9]
    assert decode(encoding, pa.int16(), stored, Rows(1, 3)).to_pylist() == [None, 9]


def test_all_nulls_have_no_buffer() -> None:
    """The encoding alone states the nulls, for every type."""
    encoding = pb.ArrayEncoding(nullable=pb.Nullable(all_nulls=pb.Nullable.AllNull()))
    for arrow in (pa.int8(), pa.string(), pa.list_(pa.float32(), 3), pa.null()):
        array = decode(encoding, arrow, [], Rows(2, 4))
        assert array.type == arrow
        assert array.to_pylist() == [None, None]


def test_a_null_string_adds_the_adjustment() -> None:
    """Version 2.0 marks nulls by adding a constant to the end offset."""
    stored = [u64(2, 2 + 4, 2, 3), b"abc"]
    array = decode(binary(4), pa.string(), stored, Rows(0, 4))
    assert array.to_pylist() == ["ab", None, "", "c"]
    assert decode(binary(4), pa.string(), stored, Rows(2, 4)).to_pylist() == ["", "c"]
    scattered = Rows.of(np.array([1, 3]))
    assert decode(binary(4), pa.large_binary(), stored, scattered).to_pylist() == [None, b"c"]


@pytest.mark.floors
def test_fixed_length_strings_have_no_offsets() -> None:
    """Lance writes strings of equal length without offsets."""
    encoding = pb.ArrayEncoding(
        fixed_size_binary=pb.FixedSizeBinary(bytes=no_nulls(flat(8)), byte_width=2)
    )
    array = decode(encoding, pa.string(), [b"aabbcc"], Rows(1, 3))
    assert array.to_pylist() == ["bb", "cc"]
    scattered = decode(encoding, pa.large_binary(), [b"aabbcc"], Rows.of(np.array([0, 2])))
    assert scattered.to_pylist() == [b"aa", b"cc"]


def dictionary(index_bits: int, items: int) -> pb.ArrayEncoding:
    return pb.ArrayEncoding(
        dictionary=pb.Dictionary(
            indices=no_nulls(flat(index_bits)), items=binary(100, 1, 2), num_dictionary_items=items
        )
    )


@pytest.mark.parametrize(("bits", "word"), [(8, "B"), (16, "H"), (32, "I"), (64, "Q")])
def test_string_indices_start_at_one(bits: int, word: str) -> None:
    """Index 0 is null."""
    stored = [struct.pack(f"<4{word}", 0, 2, 1, 2), u64(1, 3), b"abb"]
    array = decode(dictionary(bits, 2), pa.string(), stored, Rows(0, 4))
    assert array.to_pylist() == [None, "bb", "a", "bb"]


def test_dictionary_indices_start_at_zero() -> None:
    """A null is an item of its own."""
    stored = [bytes([0, 1, 2, 0]), u64(1, 3, 3 + 100), b"abb"]
    arrow = pa.dictionary(pa.int8(), pa.string())
    array = decode(dictionary(8, 3), arrow, stored, Rows(0, 4))
    assert array.type == arrow
    assert array.to_pylist() == ["a", "bb", None, "a"]
    assert array.null_count == 1
    assert array.dictionary.to_pylist() == ["a", "bb"]


@pytest.mark.parametrize("index", [3, 255])
def test_indices_without_an_item_are_corrupt(index: int) -> None:
    """Arrow does not check indices and would read foreign memory."""
    stored = [bytes([0, index]), u64(1, 3), b"abb"]
    for arrow in (pa.string(), pa.dictionary(pa.int8(), pa.string())):
        with pytest.raises(CorruptDataError, match="2 items"):
            decode(dictionary(8, 2), arrow, stored, Rows(0, 2))


@pytest.mark.parametrize(
    ("encoding", "arrow", "buffers"),
    [
        (flat(32), pa.int64(), [bytes(8)]),
        (flat(1), pa.int8(), [bytes(8)]),
        (flat(64), pa.string(), [bytes(8)]),
        (flat(0), pa.int64(), [bytes(8)]),
        (flat(64), pa.int64(), [bytes(7)]),
        (flat(1), pa.bool_(), [b""]),
        (flat(64, 1), pa.int64(), [bytes(8)]),
        (binary(4), pa.int64(), [u64(1), b"a"]),
        (binary(0), pa.string(), [u64(1), b"a"]),
        (binary(3), pa.string(), [u64(2), b"a"]),
        (binary(2), pa.string(), [u64(5), b"a"]),
        (binary(2**63), pa.string(), [u64(2**64 - 1), b"a"]),
        (binary(2), pa.string(), [u64(1), b"\xff"]),
        (some_nulls(flat(1), pb.ArrayEncoding()), pa.int8(), [b"\1", b"\1"]),
        (some_nulls(flat(8), flat(8, 1)), pa.int8(), [b"\1", b"\1"]),
        (pb.ArrayEncoding(nullable=pb.Nullable()), pa.int8(), []),
        (no_nulls(pb.ArrayEncoding()), pa.int8(), []),
        (
            pb.ArrayEncoding(
                fixed_size_list=pb.FixedSizeList(dimension=3, items=no_nulls(flat(8)))
            ),
            pa.list_(pa.int8(), 2),
            [bytes(6)],
        ),
        (
            pb.ArrayEncoding(
                fixed_size_list=pb.FixedSizeList(dimension=2, items=no_nulls(flat(16)))
            ),
            pa.list_(pa.int8(), 2),
            [bytes(8)],
        ),
    ],
)
def test_mismatched_buffers_are_corrupt(
    encoding: pb.ArrayEncoding, arrow: pa.DataType, buffers: list[bytes]
) -> None:
    """Encodings and buffers are stored apart, and must be checked against each other."""
    for rows in (Rows(0, 1),):
        with pytest.raises(CorruptDataError):
            decode(encoding, arrow, buffers, rows)


def test_descending_end_offsets_are_corrupt() -> None:
    """Wherever in the page the rows that are read start."""
    stored = [u64(3, 1, 4, 4), b"abcd"]
    for rows in (Rows(0, 4), Rows(1, 2), Rows.of(np.array([1, 3]))):
        with pytest.raises(CorruptDataError, match="ascend"):
            decode(binary(5), pa.binary(), stored, rows)


def test_utf_8_is_checked_per_value() -> None:
    """The bytes of a page may be valid together, while an offset cuts a character."""
    stored = [u64(1, 2), "é".encode()]
    with pytest.raises(CorruptDataError, match="UTF-8"):
        decode(binary(3), pa.string(), stored, Rows(0, 2))
    assert decode(binary(3), pa.binary(), stored, Rows(0, 2)).to_pylist() == [b"\xc3", b"\xa9"]


@pytest.mark.parametrize("kind", [pb.Buffer.column, pb.Buffer.file])
def test_buffers_of_columns_and_files_decode(kind: Any) -> None:
    """The protocol lets pages refer to shared buffers."""
    encoding = pb.ArrayEncoding(
        flat=pb.Flat(bits_per_value=8, buffer=pb.Buffer(buffer_index=1, buffer_type=kind))
    )
    of_kind = (ByteRange(0, 1), ByteRange(1, 3))
    page = (
        PageBuffers((), of_column=of_kind)
        if kind == pb.Buffer.column
        else PageBuffers((), of_file=of_kind)
    )
    array = answer(decode_array(encoding, pa.int8(), page, Rows(0, 2)), read_from(b"\7\1\2"))
    assert array.to_pylist() == [1, 2]
    with pytest.raises(CorruptDataError, match="has 0 buffers"):
        decode(encoding, pa.int8(), [b"a", b"b"], Rows(0, 1))


def test_unknown_buffer_kinds_are_corrupt() -> None:
    """Protobuf accepts numbers that its enum does not name."""
    encoding = pb.ArrayEncoding(
        flat=pb.Flat(bits_per_value=8, buffer=pb.Buffer(buffer_index=0, buffer_type=7))  # type: ignore[arg-type]  # a number that the proto does not name
    )
    with pytest.raises(CorruptDataError, match="kind 7"):
        decode(encoding, pa.int8(), [b"a"], Rows(0, 1))


def test_two_null_sources_are_corrupt() -> None:
    """Two sources of nulls would contradict each other."""
    with pytest.raises(BadDataError):
        decode(
            some_nulls(flat(1), binary(2, 1, 2)), pa.string(), [b"\3", u64(1, 3), b"a"], Rows(0, 2)
        )
