import pytest

from lance_stream._proto import encodings_v2_0_pb2, encodings_v2_1_pb2, file2_pb2
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.metadata.columns import (
    ColumnMetadata,
    Page,
    decode_column_metadata,
    encode_column_metadata,
    fields_with_column,
    holds_blobs,
    pack_encoding,
    unpack_encoding,
)
from lance_stream.file.versions import FileVersion
from lance_stream.schema.fields import Field

COLUMN = ColumnMetadata(
    pages=(
        Page((ByteRange(0, 8), ByteRange(64, 64)), length=1, encoding=b"first"),
        Page((), length=2**40, encoding=b"second", priority=1),
    ),
    encoding=b"whole",
    buffers=(ByteRange(128, 130),),
)


def test_column_metadata_round_trips() -> None:
    """Readers find each page by the metadata that the writer stored."""
    assert decode_column_metadata(encode_column_metadata(COLUMN), data_stop=130) == COLUMN


def test_buffers_past_the_data_are_corrupt() -> None:
    """The buffer would overlap with metadata and be read as values."""
    with pytest.raises(CorruptDataError, match="128 to 130"):
        decode_column_metadata(encode_column_metadata(COLUMN), data_stop=129)


def test_buffers_without_sizes_are_corrupt() -> None:
    """Pairing two lists of different lengths would silently drop buffers."""
    message = file2_pb2.ColumnMetadata(buffer_offsets=[1, 2], buffer_sizes=[1])
    with pytest.raises(CorruptDataError, match="2 buffers start, but 1"):
        decode_column_metadata(message.SerializeToString(), data_stop=100)


def test_an_uncountable_page_length_is_corrupt() -> None:
    """Sums of page lengths would overflow and give wrong row offsets."""
    message = file2_pb2.ColumnMetadata(pages=[file2_pb2.ColumnMetadata.Page(length=2**64 - 1)])
    with pytest.raises(CorruptDataError, match="claims"):
        decode_column_metadata(message.SerializeToString(), data_stop=100)


def test_malformed_metadata_is_corrupt() -> None:
    """Callers handle CorruptDataError, not the errors of protobuf."""
    with pytest.raises(CorruptDataError, match="malformed"):
        decode_column_metadata(b"\xff\xff", data_stop=100)


def test_deferred_encodings_are_refused() -> None:
    """The protocol allows encodings stored elsewhere, which no writer uses."""
    elsewhere = file2_pb2.Encoding(indirect=file2_pb2.DeferredEncoding(buffer_length=1))
    message = file2_pb2.ColumnMetadata(encoding=elsewhere)
    with pytest.raises(UnsupportedFeatureError, match="elsewhere"):
        decode_column_metadata(message.SerializeToString(), data_stop=100)


def test_an_encoding_names_its_kind() -> None:
    """The type name distinguishes encodings of 2.0 from those of 2.1."""
    encoding = encodings_v2_0_pb2.ArrayEncoding(struct=encodings_v2_0_pb2.SimpleStruct())
    packed = pack_encoding(encoding)
    assert b"/lance.encodings.ArrayEncoding" in packed
    assert unpack_encoding(packed, encodings_v2_0_pb2.ArrayEncoding) == encoding
    with pytest.raises(UnsupportedFeatureError, match=r"lance\.encodings\.ArrayEncoding"):
        unpack_encoding(packed, encodings_v2_1_pb2.PageLayout)


def test_columns_with_blobs_are_recognized() -> None:
    """Their pages hold descriptions, which must not be returned as values."""
    encoding = encodings_v2_0_pb2.ColumnEncoding()
    encoding.values.SetInParent()
    assert not holds_blobs(ColumnMetadata((), pack_encoding(encoding)))
    assert not holds_blobs(ColumnMetadata((), b""))
    blobs = encodings_v2_0_pb2.ColumnEncoding()
    blobs.blob.inner.CopyFrom(encoding)
    assert holds_blobs(ColumnMetadata((), pack_encoding(blobs)))
    around = encodings_v2_0_pb2.ColumnEncoding()
    around.zone_index.rows_per_zone = 100
    around.zone_index.inner.CopyFrom(blobs)
    assert holds_blobs(ColumnMetadata((), pack_encoding(around)))


def test_zone_maps_are_not_blobs() -> None:
    """Old writers wrapped columns in zone maps, around plain values or blobs."""
    encoding = encodings_v2_0_pb2.ColumnEncoding()
    encoding.zone_index.rows_per_zone = 100
    encoding.zone_index.inner.values.SetInParent()
    assert not holds_blobs(ColumnMetadata((), pack_encoding(encoding)))


def test_only_2_0_has_struct_columns() -> None:
    """A column too many or too few shifts all columns after it."""
    field = Field("s", "struct", children=(Field("a", "int8"), Field("b", "string")))
    assert [entry.name for entry in fields_with_column(field, FileVersion.V2_0)] == ["s", "a", "b"]
    assert [entry.name for entry in fields_with_column(field, FileVersion.V2_2)] == ["a", "b"]


def test_packed_struct_fields_have_no_columns() -> None:
    """A packed struct stores its fields in one column of its own."""
    field = Field(
        "s",
        "struct",
        children=(Field("a", "int8"), Field("b", "int8")),
        metadata={"lance-encoding:packed": b"true"},
    )
    assert [entry.name for entry in fields_with_column(field, FileVersion.V2_0)] == ["s"]
