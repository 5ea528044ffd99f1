from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lance_stream._proto import table_pb2
from lance_stream.errors import BadDataError, CorruptDataError, InvalidInputError
from lance_stream.schema.fields import Field, Schema
from lance_stream.table import feature_flags
from lance_stream.table import manifest as manifests
from lance_stream.table.fragments.fragment import DataFile, Fragment, encode_fragment
from lance_stream.table.manifest import (
    BasePath,
    DataFormat,
    FragmentList,
    Manifest,
    WriterVersion,
    decode_manifest,
    encode_manifest,
)
from lance_stream.table.messages import wire

SCHEMA = Schema((Field("a", "int64", 0), Field("b", "string", 1)), {"k": b"\xff"})


def fragment(fragment_id: int, **changes: object) -> Fragment:
    file = DataFile(f"{fragment_id}.lance", (0, 1), (0, 1), (2, 2), 1000)
    return replace(Fragment(fragment_id, (file,), 10), **changes)


def full_manifest() -> Manifest:
    return Manifest(
        version=7,
        schema=SCHEMA,
        fragments=FragmentList.of([fragment(0), fragment(3)]),
        data_format=DataFormat("lance", "2.2"),
        timestamp_nanos=1_700_000_000_123_456_789,
        tag="t",
        reader_feature_flags=2,
        writer_feature_flags=10,
        max_fragment_id=0,
        transaction_file="6-x.txn",
        writer_version=WriterVersion("lance-stream", "0.1.0", "rc.1", ""),
        next_row_id=20,
        config={"x": "1", "": ""},
        table_metadata={"m": "2"},
        base_paths=(BasePath(0, "/elsewhere", "", True), BasePath(1, "s3://b/c")),
        branch="",
        version_aux_data=5,
        index_section=b"",
        inline_transaction=b"any bytes",
        unknown=wire.frame(99, b"later"),
    )


@pytest.mark.parametrize(
    "manifest",
    [
        full_manifest(),
        Manifest(1, Schema(), FragmentList(), DataFormat("lance", "2.0")),
        replace(full_manifest(), index_section=None),
        replace(full_manifest(), inline_transaction=None),
        replace(full_manifest(), inline_transaction=b"", index_section=None),
        replace(full_manifest(), timestamp_nanos=0),
        replace(full_manifest(), writer_version=WriterVersion("lance", "14.0.2", "", "build")),
        replace(full_manifest(), writer_version=WriterVersion("lance", "14.0.2")),
        replace(full_manifest(), timestamp_nanos=-1),
    ],
)
def test_manifests_round_trip(manifest: Manifest) -> None:
    """Each commit decodes a manifest and writes the next one from it."""
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    assert encode_manifest(decode_manifest(data)) == data


@pytest.mark.parametrize("num_fragments", [1, 200, 255, 256, 257, 1000])
def test_fragments_are_found_among_other_fields(num_fragments: int) -> None:
    """A few are found without protobuf, many with it: the same, in any order of fields."""
    fragments = [fragment(number, row_ids=b"x" * (number % 50)) for number in range(num_fragments)]
    manifest = replace(full_manifest(), fragments=FragmentList.of(fragments))
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    position = manifests.FOOTER.unpack_from(data, len(data) - manifests.FOOTER.size)[0]
    body = data[position + 4 : -manifests.FOOTER.size]
    fields = [body[span.start : span.stop] for span in wire.split_message(body)]
    turned = b"".join([fields[-1], *fields[:-1]])
    assert decode_manifest(data.replace(body, turned)).fragments == manifest.fragments


def test_equal_columns_share_one_schema() -> None:
    """What depends on a schema is computed once per object, and a feed reads many versions."""
    manifest = full_manifest()
    wider = Schema((*SCHEMA.fields, Field("c", "double", 2)), SCHEMA.metadata)
    other = Schema(SCHEMA.fields, {"k": b"other"})
    versions = [
        decode_manifest(encode_manifest(replace(manifest, version=number, schema=schema)))
        for number, schema in enumerate((SCHEMA, SCHEMA, wider, other, SCHEMA), start=1)
    ]
    assert [version.schema for version in versions] == [SCHEMA, SCHEMA, wider, other, SCHEMA]
    assert versions[0].schema is versions[1].schema is versions[4].schema


def test_manifest_files_follow_the_specification() -> None:
    """Other readers find the sections by the offsets and the footer."""
    manifest = replace(full_manifest(), index_section=b"II", inline_transaction=b"TTT")
    data = encode_manifest(manifest)
    assert data.startswith(b"\x02\0\0\0II\x03\0\0\0TTT")
    position = 6 + 7
    assert data[-16:] == position.to_bytes(8, "little") + b"\0\0\x02\0LANC"
    size = int.from_bytes(data[position : position + 4], "little")
    assert position + 4 + size + 16 == len(data)
    message = table_pb2.Manifest.FromString(data[position + 4 : -16])
    assert (message.index_section, message.transaction_section) == (0, 6)
    assert not message.HasField("transaction_section_deprecated")
    assert len(message.fragments) == 2


def test_sections_at_offset_zero_are_read() -> None:
    """Zero is a valid position and not the absence of the section."""
    manifest = replace(full_manifest(), index_section=None, inline_transaction=b"at zero")
    assert decode_manifest(encode_manifest(manifest)).inline_transaction == b"at zero"


def file_of(message: table_pb2.Manifest, before: bytes = b"") -> bytes:
    body = message.SerializeToString()
    footer = manifests.FOOTER.pack(len(before), 0, 2, b"LANC")
    return before + len(body).to_bytes(4, "little") + body + footer


def test_the_deprecated_transaction_offset_is_read() -> None:
    """Older files state it in another field."""
    section = b"\x03\0\0\0abc"
    old = table_pb2.Manifest(version=1, transaction_section_deprecated=0)
    assert decode_manifest(file_of(old, section)).inline_transaction == b"abc"
    both = table_pb2.Manifest(transaction_section_deprecated=3, transaction_section=0)
    assert decode_manifest(file_of(both, section)).inline_transaction == b"abc"


@pytest.mark.parametrize(
    ("file_version", "flags", "expected"),
    [
        ((0, 2), 0, "0.1"),
        ((0, 3), 0, "2.0"),
        ((2, 1), 0, "2.1"),
        (None, 4, "2.0"),
        (None, 0, "0.1"),
    ],
)
def test_missing_data_formats_are_inferred(
    file_version: tuple[int, int] | None, flags: int, expected: str
) -> None:
    """Old writers stated no format, and new files in their table must have the version of the old
    ones.
    """
    message = table_pb2.Manifest(version=1, writer_feature_flags=flags)
    if file_version:
        major, minor = file_version
        message.fragments.add().files.add(file_major_version=major, file_minor_version=minor)
    assert decode_manifest(file_of(message)).data_format == DataFormat("lance", expected)


@pytest.mark.parametrize(
    ("stated", "file_version", "flags", "expected"),
    [
        ("0.1", None, 0, "0.1"),
        ("0.1", (0, 2), 0, "0.1"),
        ("0.1", (0, 3), 0, "2.0"),
        ("0.1", (2, 1), 0, "2.1"),
        ("2.0", (2, 1), 0, "2.0"),
        ("0.1", (2, 1), feature_flags.MIXED_FILE_VERSIONS, "0.1"),
    ],
)
def test_wrong_data_formats_are_corrected(
    stated: str, file_version: tuple[int, int] | None, flags: int, expected: str
) -> None:
    """Lance 0.16 wrote 0.1 for tables with files of later versions; tables with mixed versions
    state the version of new files.
    """
    message = table_pb2.Manifest(version=1, reader_feature_flags=flags)
    message.data_format.file_format, message.data_format.version = "lance", stated
    if file_version:
        major, minor = file_version
        message.fragments.add().files.add(file_major_version=major, file_minor_version=minor)
    assert decode_manifest(file_of(message)).data_format == DataFormat("lance", expected)


def test_formats_without_files_are_believed() -> None:
    """Only files can show that Lance 0.16 stated a wrong version."""
    for num_fragments in 0, 1:
        message = table_pb2.Manifest(version=1, writer_feature_flags=4)
        message.data_format.version = "0.1"
        for _ in range(num_fragments):
            message.fragments.add()
        assert decode_manifest(file_of(message)).data_format.version == "0.1"


@pytest.mark.parametrize("has_writer", [False, True])
@pytest.mark.parametrize("has_format", [False, True])
def test_only_the_oldest_counts_are_distrusted(has_writer: bool, has_format: bool) -> None:
    """Before Lance stated its version, its counts of rows were wrong; no other writer's are."""
    message = table_pb2.Manifest(version=1)
    message.fragments.add(physical_rows=5).files.add(file_minor_version=2)
    if has_writer:
        message.writer_version.library = "lance"
    if has_format:
        message.data_format.version = "0.1"
    manifest = decode_manifest(file_of(message))
    is_trusted = has_writer or has_format
    assert manifest.fragments[0].physical_rows == (5 if is_trusted else 0)
    if is_trusted:
        assert manifest.distrusted_fragments is None
    else:
        assert manifest.distrusted_fragments is not None
        assert manifest.distrusted_fragments[0].physical_rows == 5


def test_uncounted_fragments_need_no_second_list() -> None:
    """There is nothing to distrust in manifests that state no counts."""
    message = table_pb2.Manifest(version=1)
    message.fragments.add(id=3)
    assert decode_manifest(file_of(message)).distrusted_fragments is None


def test_dictionaries_are_in_the_file() -> None:
    """Columns of version 0.1 store indices of values that are only in the manifest."""
    dictionary = Field("d", "dict:string:int16:false", 0)
    schema = Schema((dictionary, replace(dictionary, name="e", id=1), Field("n", "int64", 2)))
    values = {0: pa.array(["x", "v", "yz"]), 1: pa.array(["w"])}
    manifest = replace(
        full_manifest(),
        schema=schema,
        data_format=DataFormat("lance", "0.1"),
        fragments=FragmentList(),
        dictionaries=values,
    )
    data = encode_manifest(manifest)
    assert decode_manifest(data).dictionaries == values
    assert decode_manifest(data).index_section == manifest.index_section
    one = replace(manifest, dictionaries={1: values[1]})
    assert decode_manifest(encode_manifest(one)).dictionaries == {1: values[1]}
    message = table_pb2.Manifest.FromString(body_of(data))
    message.fields[0].logical_type = "int64"  # another program's, which says nothing
    message.ClearField("transaction_section")
    message.ClearField("index_section")
    position = int.from_bytes(data[-16:-8], "little")
    others = decode_manifest(file_of(message, data[:position])).dictionaries
    assert others == {1: values[1]}


def test_fragments_of_another_type_are_damage() -> None:
    """A number in the place of a fragment would be read as a message."""
    body = b"\x10\x05" + table_pb2.Manifest(version=1).SerializeToString()
    footer = manifests.FOOTER.pack(0, 0, 2, b"LANC")
    with pytest.raises(CorruptDataError):
        decode_manifest(len(body).to_bytes(4, "little") + body + footer)


class Huge(bytes):
    """Bytes that say to be more than they are."""

    def __len__(self) -> int:
        return 1 << 32


def test_sections_have_32_bit_lengths() -> None:
    """A longer one would be read as a shorter one."""
    for section in "index_section", "inline_transaction":
        with pytest.raises(InvalidInputError, match="has 4294967296 bytes, more than 4 GiB"):
            encode_manifest(replace(full_manifest(), **{section: Huge()}))


def test_a_successor_omits_version_specific_fields() -> None:
    """A tag or transaction of the predecessor would describe the wrong version."""
    successor = full_manifest().successor()
    assert successor.version == 8
    assert (successor.timestamp_nanos, successor.tag, successor.transaction_file) == (None, "", "")
    assert (successor.writer_version, successor.inline_transaction, successor.version_aux_data) == (
        None,
        None,
        0,
    )
    message = table_pb2.Manifest.FromString(body_of(encode_manifest(successor)))
    assert not message.HasField("transaction_section")
    assert (successor.config, successor.unknown) == (full_manifest().config, b"")
    assert successor.index_section == full_manifest().index_section


def body_of(data: bytes) -> bytes:
    position = int.from_bytes(data[-16:-8], "little")
    return data[position + 4 : -16]


def test_many_fragments_are_never_decoded() -> None:
    """A manifest of 20,000 fragments is read, appended to and written."""
    raws = tuple(encode_fragment(fragment(number)) for number in range(20_000))
    old = replace(full_manifest(), fragments=FragmentList(raws))
    opened = decode_manifest(encode_manifest(old))
    newer = replace(opened.successor(), fragments=opened.fragments.appended([fragment(20_000)]))
    again = decode_manifest(encode_manifest(newer))
    differing = [
        index
        for index, raw in enumerate(again.fragments.raws)
        if index >= len(old.fragments) or raw != old.fragments.raw(index)
    ]
    assert differing == [20_000]
    assert again.fragments.ids == tuple(range(20_001))
    assert again.fragments.num_live_rows == 200_010
    assert not again.fragments.has_deletion_files
    assert opened.fragments.num_decoded == again.fragments.num_decoded == 0
    assert again.fragments[20_000] == fragment(20_000)
    assert again.fragments.num_decoded == 1


def test_unencodable_values_are_refused() -> None:
    """Protobuf's own errors do not name the manifest."""
    with pytest.raises(InvalidInputError, match="cannot be written"):
        encode_manifest(replace(full_manifest(), version=-1))
    with pytest.raises(InvalidInputError, match="cannot be written"):
        encode_manifest(replace(full_manifest(), config={"a": "\ud800"}))


def read_all(data: bytes) -> None:
    manifest = decode_manifest(data)
    list(manifest.fragments)
    _ = manifest.fragments.index_by_id, manifest.fragments.has_deletion_files


def test_every_strict_prefix_is_refused() -> None:
    """An interrupted upload must never read as a smaller table."""
    data = encode_manifest(full_manifest())
    for stop in range(len(data)):
        with pytest.raises(CorruptDataError):
            read_all(data[:stop])


def test_damaged_manifests_raise_bad_data() -> None:
    """Callers handle BadDataError, so damage must raise no other error."""
    data = encode_manifest(full_manifest())
    refused = 0
    for index in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[index] ^= flip
            try:
                read_all(bytes(damaged))
            except BadDataError:
                refused += 1
    assert refused > len(data) // 2


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (table_pb2.Manifest(index_section=1 << 63), "index section"),
        (table_pb2.Manifest(index_section=5), "index section"),
        (table_pb2.Manifest(transaction_section=0), "should have"),
    ],
)
def test_sections_outside_files_are_refused(message: table_pb2.Manifest, what: str) -> None:
    """Damaged offsets must not read other bytes as the section."""
    with pytest.raises(CorruptDataError, match=what):
        decode_manifest(file_of(message, b"\xff\xff\xff\xff"))


FIRST_SECOND = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())
LAST_SECOND = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(FIRST_SECOND, 0), (-1, 10**9 - 1), (LAST_SECOND, 10**9 - 1)]
)
def test_every_calendar_time_is_read(seconds: int, nanos: int) -> None:
    """Writers with a wrong clock exist, and their tables are intact."""
    message = table_pb2.Manifest()
    message.timestamp.seconds, message.timestamp.nanos = seconds, nanos
    assert decode_manifest(file_of(message)).timestamp_nanos == seconds * 10**9 + nanos


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(0, -1), (0, 10**9), (1 << 62, 0), (FIRST_SECOND - 1, 0), (LAST_SECOND + 1, 0)],
)
def test_timestamps_out_of_range_are_refused(seconds: int, nanos: int) -> None:
    """Time travel converts timestamps, which would otherwise fail far from the damage."""
    message = table_pb2.Manifest()
    message.timestamp.seconds, message.timestamp.nanos = seconds, nanos
    with pytest.raises(CorruptDataError, match="timestamp"):
        decode_manifest(file_of(message))
