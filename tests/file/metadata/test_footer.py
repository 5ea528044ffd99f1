import struct

import pytest

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.metadata.footer import (
    FOOTER_BYTES,
    MAX_ROWS,
    Footer,
    decode_file_descriptor,
    decode_footer,
    decode_position_table,
    encode_file_descriptor,
    encode_footer,
    encode_position_table,
    padding_to_alignment,
)
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field, Schema

FOOTER = Footer(100, ByteRange(200, 264), ByteRange(264, 280), FileVersion.V2_1)
SIZE = 280 + FOOTER_BYTES


def test_a_footer_has_its_forty_bytes() -> None:
    """Every reader of Lance starts from these bytes."""
    stored = encode_footer(FOOTER)
    assert stored == struct.pack("<QQQIIHH4s", 100, 200, 264, 1, 4, 2, 1, b"LANC")
    assert decode_footer(stored, SIZE) == FOOTER


@pytest.mark.parametrize("size", [0, 3, 4, 7, 8, 39])
def test_files_without_a_footer_are_corrupt(size: int) -> None:
    """An interrupted upload must be reported as such, not as an error of struct."""
    with pytest.raises(CorruptDataError):
        decode_footer(encode_footer(FOOTER)[FOOTER_BYTES - size :] if size else b"", size)


def test_a_file_without_magic_is_corrupt() -> None:
    """Files of other formats must be recognised before their bytes are interpreted."""
    with pytest.raises(CorruptDataError, match="LANC"):
        decode_footer(encode_footer(FOOTER)[:-4] + b"PAR1", SIZE)


@pytest.mark.parametrize(("major", "minor", "named"), [(2, 3, r"2\.3"), (9, 9, r"9\.9")])
def test_an_unsupported_version_is_named_first(major: int, minor: int, named: str) -> None:
    """In another version the rest of the footer may have another meaning."""
    end = struct.pack("<QHH4s", 0, major, minor, b"LANC")
    with pytest.raises(UnsupportedFeatureError, match=named):
        decode_footer(end, len(end))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_positions_past_the_end_are_corrupt(index: int) -> None:
    """The store would answer such a request with an error that names no cause."""
    stored = bytearray(encode_footer(FOOTER))
    struct.pack_into("<Q", stored, 8 * index, SIZE - FOOTER_BYTES + 1)
    with pytest.raises(CorruptDataError, match="beyond its end"):
        decode_footer(stored, SIZE)


@pytest.mark.parametrize("position", [24, 28])
def test_tables_beyond_the_file_are_corrupt(position: int) -> None:
    """The count decides how much is read and allocated."""
    stored = bytearray(encode_footer(FOOTER))
    struct.pack_into("<I", stored, position, 2**32 - 1)
    with pytest.raises(CorruptDataError, match="beyond its end"):
        decode_footer(stored, SIZE)


def test_files_without_a_schema_are_corrupt() -> None:
    """The first global buffer is the schema, without which no column has a type."""
    footer = Footer(100, ByteRange(200, 264), ByteRange(264, 264), FileVersion.V2_0)
    with pytest.raises(CorruptDataError, match="schema"):
        decode_footer(encode_footer(footer), SIZE)


def test_position_tables_hold_starts_and_sizes() -> None:
    """Other readers expect pairs of start and size, not of start and stop."""
    ranges = (ByteRange(64, 70), ByteRange(128, 128))
    stored = encode_position_table(ranges)
    assert stored == struct.pack("<4Q", 64, 6, 128, 0)
    assert decode_position_table(stored, SIZE) == ranges
    assert decode_position_table(b"", SIZE) == ()


@pytest.mark.parametrize("entry", [(0, 2**64 - 1), (2**64 - 1, 2**64 - 1), (281, 0)])
def test_entries_past_the_end_are_corrupt(entry: tuple[int, int]) -> None:
    """Start and size together may overflow 64 bits."""
    with pytest.raises(CorruptDataError, match="beyond its end"):
        decode_position_table(struct.pack("<2Q", *entry), SIZE)


def test_the_descriptor_holds_schema_and_rows() -> None:
    """The number of rows of a file is stated nowhere else."""
    schema = Schema((Field("a", "int64", id=3),), {"who": b"we"})
    assert decode_file_descriptor(encode_file_descriptor(schema, 7)) == (schema, 7)


def test_too_many_rows_are_corrupt() -> None:
    """Row offsets have 32 bits, so later rows could not be addressed."""
    with pytest.raises(CorruptDataError, match=str(MAX_ROWS + 1)):
        decode_file_descriptor(encode_file_descriptor(Schema(), MAX_ROWS + 1))


def test_a_malformed_descriptor_is_corrupt() -> None:
    """Callers handle CorruptDataError, not the errors of protobuf."""
    with pytest.raises(CorruptDataError, match="malformed"):
        decode_file_descriptor(b"\xff\xff\xff")


def test_padding_aligns_to_64_bytes() -> None:
    """Lance aligns buffers to 64 bytes, and readers map them without a copy."""
    assert [padding_to_alignment(number) for number in (0, 1, 63, 64, 65)] == [0, 63, 1, 0, 63]
