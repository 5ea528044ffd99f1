import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError
from lance_stream.table.messages import wire


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3))
def test_varints_round_trip_with_their_end(value: int, behind: bytes) -> None:
    """The next field begins where the number ends."""
    data = b"\xff" + wire.encode_varint(value) + behind
    assert wire.read_varint(data, 1) == (value, len(data) - len(behind))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_truncated_and_overlong_varints_are_refused(data: bytes) -> None:
    """Stored bytes are not trusted, and an endless number must not be read on."""
    with pytest.raises(CorruptDataError):
        wire.read_varint(data, 0)


def test_message_fields_cover_its_bytes() -> None:
    """Unknown fields are carried over as slices of the message."""
    message = table_pb2.DeletionFile(read_version=300, id=1 << 63, base_id=0)
    data = message.SerializeToString()
    fields = wire.split_message(data)
    assert [field.number for field in fields] == [2, 3, 7]
    assert b"".join(data[field.start : field.stop] for field in fields) == data
    assert all(field.start < field.value_start < field.stop for field in fields)


def test_each_wire_type_has_its_length() -> None:
    """A wrong length for one type shifts all fields after it."""
    data = b"\x09" + b"8bytes!!" + b"\x15" + b"four" + b"\x1a\x03abc" + b"\x20\x96\x01"
    values = [data[span.value_start : span.stop] for span in wire.split_message(data)]
    assert values == [b"8bytes!!", b"four", b"abc", b"\x96\x01"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x0a", "varint"),
        (b"\x0a\x05abc", "needs bytes up to"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01abc", "needs bytes up to"),
        (b"\x09abc", "needs bytes up to"),
        (b"\x0d\x00", "needs bytes up to"),
        (b"\x00\x00", "field number 0"),
        (b"\xf8\xff\xff\xff\xff\x01\x00", "field number"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0f", "wire type 7"),
    ],
)
def test_a_damaged_message_is_refused(data: bytes, what: str) -> None:
    """Stored bytes are not trusted, and the error must say what is wrong with them."""
    with pytest.raises(CorruptDataError, match=what):
        wire.split_message(data)


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 1 << 20))
def test_joined_frames_split_into_their_bodies(bodies: list[bytes], number: int) -> None:
    """Manifests are assembled from raw fragments in this way."""
    data = wire.join_frames(number, bodies)
    assert data == b"".join(wire.frame(number, body) for body in bodies)
    fields = wire.split_message(data)
    assert [data[field.value_start : field.stop] for field in fields] == bodies
    assert {field.number for field in fields} <= {number}


def test_bytes_of_no_message_are_corrupt() -> None:
    """Callers handle CorruptDataError, not the errors of protobuf."""
    with pytest.raises(CorruptDataError, match="not a DataFile message"):
        wire.parse_message(table_pb2.DataFile, b"\x0a\x7f")
    with pytest.raises(CorruptDataError, match="not a DataFile message"):
        wire.parse_message(table_pb2.DataFile, b"\x0a\x02\xff\xfe")  # a path that is not UTF-8


def test_unknown_fields_are_those_undefined() -> None:
    """Losing a later release's field in a rewrite could change the meaning of the table."""
    encoded = table_pb2.ExternalFile(path="p", size=3).SerializeToString()
    future = wire.frame(99, b"later") + b"\x80\x06\x01"
    message = wire.parse_message(table_pb2.ExternalFile, encoded + future)
    assert wire.unknown_fields(message) == future
    assert wire.unknown_fields(message, also=(3,)) == b"\x18\x03" + future
    assert wire.unknown_fields(table_pb2.ExternalFile(path="p")) == b""


def test_wrong_wire_types_are_corrupt() -> None:
    """Protobuf treats such a field as unknown, which would lose its value without an error."""
    message = wire.parse_message(table_pb2.ExternalFile, b"\x12\x01x")
    with pytest.raises(CorruptDataError, match="the wrong wire type"):
        wire.unknown_fields(message)
