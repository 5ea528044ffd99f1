"""Every field that a manifest can state is read, known to be harmless, or refused."""

import pytest

from lance_stream._proto import file_pb2, table_pb2
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.table.manifest_fields import FIELDS, Treatment, check_manifest_fields
from lance_stream.table.messages import wire

MESSAGES = {
    "Manifest": table_pb2.Manifest,
    "Manifest.WriterVersion": table_pb2.Manifest.WriterVersion,
    "Manifest.DataStorageFormat": table_pb2.Manifest.DataStorageFormat,
    "BasePath": table_pb2.BasePath,
    "DataFragment": table_pb2.DataFragment,
    "RowLineageColumn": table_pb2.RowLineageColumn,
    "DataFile": table_pb2.DataFile,
    "DeletionFile": table_pb2.DeletionFile,
    "ExternalFile": table_pb2.ExternalFile,
    "Field": file_pb2.Field,
    "Dictionary": file_pb2.Dictionary,
}


def varint(number: int, value: int) -> bytes:
    return wire.encode_varint(number << 3) + wire.encode_varint(value)


def test_every_message_field_has_a_treatment() -> None:
    """An update of the protocol must not bring a field that is silently ignored."""
    assert FIELDS.keys() == MESSAGES.keys()
    for name, message in MESSAGES.items():
        defined = {field.number for field in message.DESCRIPTOR.fields}
        assert defined <= FIELDS[name].keys(), name


def test_every_field_number_is_decided() -> None:
    """Removed fields keep their numbers in old tables and need a decision, too."""
    assert FIELDS["Manifest"].keys() == set(range(1, 27))
    assert FIELDS["DataFragment"].keys() == set(range(1, 17))


def test_refused_and_ignored_fields_give_reasons() -> None:
    """A decision without its reason cannot be reviewed when the specification changes."""
    for fields in FIELDS.values():
        for rule in fields.values():
            assert (rule.treatment is Treatment.READ) == (not rule.reason)


def test_read_fields_exist_in_their_messages() -> None:
    """A number that is said to be read, but is not in the protocol, is ignored in fact."""
    for name, fields in FIELDS.items():
        defined = {field.number for field in MESSAGES[name].DESCRIPTOR.fields}
        for number, rule in fields.items():
            assert rule.treatment is not Treatment.READ or number in defined


@pytest.mark.parametrize(
    ("field", "refused_by_readers"),
    [
        (varint(17, 1), True),
        (wire.frame(22, b""), True),
        (varint(24, 7), False),
        (wire.frame(25, b"x"), False),
        (varint(26, 1), False),
    ],
)
def test_fields_that_change_meaning_are_refused(field: bytes, refused_by_readers: bool) -> None:
    """Ignoring such a field would show other rows than its writer meant."""
    with pytest.raises(UnsupportedFeatureError, match="of its manifest has"):
        check_manifest_fields(wire.frame(99, b"") + field, for_writing=True)
    if refused_by_readers:
        with pytest.raises(UnsupportedFeatureError, match="cannot be read"):
            check_manifest_fields(field, for_writing=False)
    else:
        check_manifest_fields(field, for_writing=False)


def test_future_fields_and_zeros_are_ignored() -> None:
    """Protobuf's rule: unknown fields are optional, and a zero is the same as no field."""
    for field in (b"", wire.frame(99, b"later"), varint(17, 0), varint(26, 0)):
        check_manifest_fields(field, for_writing=True)
