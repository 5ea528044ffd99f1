"""The manifest: one version of a table, and the bytes of its file.

A manifest file consists of (all numbers little-endian):

    dictionaries       values of dictionary columns; only in tables of file version 0.1
    u32 n, n bytes     an IndexSection message; only when the table has indices
    u32 n, n bytes     a Transaction message: a copy of the one that created this version
    u32 n, n bytes     the Manifest message, at position P
    u64 P
    u16 0, u16 2       format version of the frame; readers ignore it
    "LANC"

The Manifest message has the byte offsets of both earlier sections (index_section,
transaction_section). Offset 0 is valid, so test these fields for presence, not for truth.

The index section and the fragments stay undecoded bytes (see `fragment_list`).

Source:  table.proto, message Manifest; files that the reference wrote.
Differs: The offset of the inline transaction is field 23 in files of Lance 14, and was field 21
         before; both are read, 23 is written. A wrong frame version is accepted, as in the
         reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from struct import Struct
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from lance_stream._proto import outlines_pb2, table_pb2
from lance_stream.caches import IdentityCache
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.schema.fields import Schema, fields_from_proto, fields_to_proto
from lance_stream.schema.types.dictionaries import decode_dictionary, encode_dictionary
from lance_stream.schema.types.logical_types import logical_to_leaf
from lance_stream.table.fragments.fragment import without_counts
from lance_stream.table.fragments.fragment_list import FRAGMENTS
from lance_stream.table.fragments.fragment_list import FragmentList as FragmentList
from lance_stream.table.messages import wire

MAGIC = b"LANC"
FOOTER = Struct("<QHH4s")
WRITER_LIBRARY = "lance-stream"
"""The `writer_version.library` of every manifest that this library writes. The reference checks for
its own old bugs only if the library is "lance", and treats a missing writer version as one of its
oldest.
"""

_FRAME_VERSION = (0, 2)
_FEW_FIELDS = 256
_COLUMNS = (table_pb2.Manifest.FIELDS_FIELD_NUMBER, table_pb2.Manifest.SCHEMA_METADATA_FIELD_NUMBER)
_LENGTH = Struct("<I")
_NANOS = 1_000_000_000
_MIXED_FILE_VERSIONS = 1 << 8  # as in `feature_flags`, which imports this module
# google.protobuf.Timestamp: from 0001-01-01 to 9999-12-31.
_MIN_SECONDS, _MAX_SECONDS = -62_135_596_800, 253_402_300_799


@dataclass(frozen=True, slots=True)
class WriterVersion:
    """The program that wrote a manifest."""

    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None


@dataclass(frozen=True, slots=True)
class DataFormat:
    """The format of the table's data files.

    Attributes:
        file_format: "lance".
        version: The file version of new data files, for example "2.2".
    """

    file_format: str
    version: str


@dataclass(frozen=True, slots=True)
class BasePath:
    """A directory outside of the table's in which its files may be stored.

    Attributes:
        id: The number that `base_id` of a data or deletion file refers to.
        path: A URI or an absolute path.
        name: The name that the user gave it.
        is_dataset_root: Whether data files are stored below `path`/data, as in a table's
            directory, or in `path` itself.
    """

    id: int
    path: str
    name: str | None = None
    is_dataset_root: bool = False


@dataclass(frozen=True)
class Manifest:
    """One version of a table.

    Attributes:
        version: From 1; each commit adds 1. A detached version has its highest bit set.
        schema: The columns, and the metadata of the schema.
        fragments: The rows, in scan order.
        data_format: The file format and file version of new data files.
        timestamp_nanos: When it was committed, in nanoseconds since 1970-01-01 UTC; None if
            unknown.
        tag: A tag in the manifest itself; unused, because tags are separate files.
        reader_feature_flags: See `feature_flags`.
        writer_feature_flags: See `feature_flags`.
        max_fragment_id: The largest fragment id ever used; None without any, and in manifests of
            old writers.
        transaction_file: The name of the transaction's file below `_transactions`; empty for none.
        writer_version: The program that wrote the manifest.
        next_row_id: The first stable row id that has never been used.
        config: The table's configuration; `lance.` is the prefix of the reference's keys,
            `lance_stream.` of ours.
        table_metadata: The user's metadata of the table.
        base_paths: Directories outside of the table's.
        branch: The branch of the version; None for the main branch.
        version_aux_data: A file position of old writers.
        index_section: The IndexSection message, undecoded; None without indices.
        inline_transaction: The Transaction message, undecoded; None when the file has none.
        unknown: Serialized unknown fields of the message; they are not inherited.
        dictionaries: The values of dictionary columns, by field id, in tables of file version 0.1.
        distrusted_fragments: The fragments as in the file, if `fragments` lack the row counts; None
            if both are the same. Lance 0.8 wrote wrong counts into manifests without a writer
            version; without a count, rows are counted in the files.
    """

    version: int
    schema: Schema
    fragments: FragmentList
    data_format: DataFormat
    timestamp_nanos: int | None = None
    tag: str = ""
    reader_feature_flags: int = 0
    writer_feature_flags: int = 0
    max_fragment_id: int | None = None
    transaction_file: str = ""
    writer_version: WriterVersion | None = None
    next_row_id: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    table_metadata: Mapping[str, str] = field(default_factory=dict)
    base_paths: tuple[BasePath, ...] = ()
    branch: str | None = None
    version_aux_data: int = 0
    index_section: bytes | None = None
    inline_transaction: bytes | None = None
    unknown: bytes = b""
    dictionaries: Mapping[int, pa.Array] = field(default_factory=dict)
    distrusted_fragments: FragmentList | None = None

    def successor(self) -> "Manifest":
        """Return a copy from which the next version starts, without what belongs to this version.

        Transaction, tag, timestamp, writer and auxiliary data are not inherited. Neither are
        offsets into this version's file, nor unknown fields, which may be such offsets. The index
        section is inherited as bytes; an operation that invalidates indices drops it.
        """
        return replace(
            self,
            version=self.version + 1,
            timestamp_nanos=None,
            tag="",
            transaction_file="",
            writer_version=None,
            version_aux_data=0,
            inline_transaction=None,
            unknown=b"",
            distrusted_fragments=None,
        )


def decode_manifest(data: bytes | bytearray | memoryview) -> Manifest:
    """Return the version that a manifest file describes.

    Args:
        data: The whole file.

    Raises:
        CorruptDataError: The file is truncated or damaged. Fragments are checked when they are
            decoded.
    """
    data = bytes(data)
    if len(data) < FOOTER.size:
        raise CorruptDataError(f"a manifest of {len(data)} bytes is shorter than its footer")
    position, _, _, magic = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    if magic != MAGIC:
        raise CorruptDataError(f"a manifest ends in {magic!r} instead of {MAGIC!r}")
    body_stop = len(data) - FOOTER.size
    start, stop = _find_section(data, position, body_stop, "the manifest message")
    if stop != body_stop:
        raise CorruptDataError(
            f"the manifest message is {stop - start} bytes long, but "
            f"{body_stop - start} precede the footer"
        )
    rest, columns, raws, unknown = _split_manifest(data, start, stop)
    message = wire.parse_message(table_pb2.Manifest, rest)
    wire.unknown_fields(message)  # raises for fields of a wrong type; there are no others
    fragments_in_file = fragments = FragmentList(raws)
    if not message.HasField("writer_version") and not message.HasField("data_format"):
        fragments = FragmentList(map(without_counts, raws))
    transaction_section: int | None = None
    if message.HasField("transaction_section"):
        transaction_section = message.transaction_section
    elif message.HasField("transaction_section_deprecated"):
        transaction_section = message.transaction_section_deprecated
    data_format = _data_format(message, fragments)
    return Manifest(
        version=message.version,
        schema=_decode_schema(columns, message),
        fragments=fragments,
        data_format=data_format,
        timestamp_nanos=_nanos(message) if message.HasField("timestamp") else None,
        tag=message.tag,
        reader_feature_flags=message.reader_feature_flags,
        writer_feature_flags=message.writer_feature_flags,
        max_fragment_id=message.max_fragment_id if message.HasField("max_fragment_id") else None,
        transaction_file=message.transaction_file,
        writer_version=_writer_version(message) if message.HasField("writer_version") else None,
        next_row_id=message.next_row_id,
        config=dict(message.config),
        table_metadata=dict(message.table_metadata),
        base_paths=tuple(base_path_from_proto(base_path) for base_path in message.base_paths),
        branch=message.branch if message.HasField("branch") else None,
        version_aux_data=message.version_aux_data,
        index_section=(
            _read_section(data, message.index_section, position, "the index section")
            if message.HasField("index_section")
            else None
        ),
        inline_transaction=(
            _read_section(data, transaction_section, position, "the inline transaction")
            if transaction_section is not None
            else None
        ),
        unknown=unknown,
        dictionaries=_dictionaries(message, data) if data_format.version == "0.1" else {},
        distrusted_fragments=None if fragments == fragments_in_file else fragments_in_file,
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a version's manifest file.

    Raises:
        InvalidInputError: A value of the manifest cannot be written, or a section is larger than 4
            GiB.
    """
    parts: list[bytes] = []

    def add_section(*bodies: bytes) -> int:
        position, size = sum(map(len, parts)), sum(map(len, bodies))
        if size >> 32:
            raise InvalidInputError(f"a section of a manifest has {size} bytes, more than 4 GiB")
        parts.extend((_LENGTH.pack(size), *bodies))
        return position

    dictionaries: dict[int, int] = {}
    for schema_field in manifest.schema.walk():
        if schema_field.id in manifest.dictionaries:
            values = manifest.dictionaries[schema_field.id]
            body, dictionaries[schema_field.id] = encode_dictionary(values, sum(map(len, parts)))
            parts.append(body)
    index_section = transaction_section = None
    if manifest.index_section is not None:
        index_section = add_section(manifest.index_section)
    if manifest.inline_transaction is not None:
        transaction_section = add_section(manifest.inline_transaction)
    try:
        fields = _FIELDS.of(manifest.schema)
        if dictionaries:
            fields = _encode_fields(manifest.schema, manifest.dictionaries, dictionaries)
        rest = fields + wire.serialize(_message(manifest, index_section, transaction_section))
        fragments = manifest.fragments.framed_parts
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"the manifest cannot be written: {error}") from error
    # The fields that are unique to a version come last, as in the reference's files: the last bytes
    # of a manifest distinguish it from every other one (see `commit.manifest_files`).
    position = add_section(*fragments, rest, manifest.unknown)
    parts.append(FOOTER.pack(position, *_FRAME_VERSION, MAGIC))
    return b"".join(parts)


def unique_parts(manifest: Manifest) -> tuple[bytes, ...]:
    """Return byte strings that together occur only in this version's message.

    They are the timestamp and the name of the transaction file, in the only encoding that
    serializers use. Empty if the manifest lacks one of them.
    """
    if manifest.timestamp_nanos is None or not manifest.transaction_file:
        return ()
    timestamp = wire.serialize(_timestamp(manifest.timestamp_nanos))
    return timestamp, manifest.transaction_file.encode()


def base_path_to_proto(base: BasePath) -> table_pb2.BasePath:
    """Return the message of a base path."""
    return table_pb2.BasePath(
        id=base.id, name=base.name, is_dataset_root=base.is_dataset_root, path=base.path
    )


def base_path_from_proto(message: table_pb2.BasePath) -> BasePath:
    """Return the base path that a message describes."""
    return BasePath(
        id=message.id,
        path=message.path,
        name=message.name if message.HasField("name") else None,
        is_dataset_root=message.is_dataset_root,
    )


def _encode_fields(
    schema: Schema,
    dictionaries: Mapping[int, pa.Array] = MappingProxyType({}),
    offsets: Mapping[int, int] = MappingProxyType({}),
) -> bytes:
    """Encode the fields of a schema as the first bytes of a Manifest message.

    Args:
        schema: The columns.
        dictionaries: The values of dictionary columns, by field id.
        offsets: The byte offsets of these values in the file.
    """
    message = table_pb2.Manifest(fields=fields_to_proto(schema.fields))
    for stored in message.fields:
        if stored.id in offsets:
            stored.dictionary.offset = offsets[stored.id]
            stored.dictionary.length = len(dictionaries[stored.id])
    return wire.serialize(message)


_FIELDS: Final = IdentityCache(_encode_fields)


def _message(
    manifest: Manifest, index_section: int | None, transaction_section: int | None
) -> table_pb2.Manifest:
    message = table_pb2.Manifest(
        version=manifest.version,
        version_aux_data=manifest.version_aux_data,
        schema_metadata=dict(manifest.schema.metadata),
        index_section=index_section,
        tag=manifest.tag,
        reader_feature_flags=manifest.reader_feature_flags,
        writer_feature_flags=manifest.writer_feature_flags,
        max_fragment_id=manifest.max_fragment_id,
        transaction_file=manifest.transaction_file,
        next_row_id=manifest.next_row_id,
        data_format=table_pb2.Manifest.DataStorageFormat(
            file_format=manifest.data_format.file_format, version=manifest.data_format.version
        ),
        config=dict(manifest.config),
        base_paths=[base_path_to_proto(base_path) for base_path in manifest.base_paths],
        table_metadata=dict(manifest.table_metadata),
        branch=manifest.branch,
        transaction_section=transaction_section,
    )
    if manifest.timestamp_nanos is not None:
        message.timestamp.CopyFrom(_timestamp(manifest.timestamp_nanos))
        message.timestamp.SetInParent()
    if manifest.writer_version is not None:
        writer = manifest.writer_version
        message.writer_version.CopyFrom(
            table_pb2.Manifest.WriterVersion(
                library=writer.library,
                version=writer.version,
                prerelease=writer.prerelease,
                build_metadata=writer.build_metadata,
            )
        )
    return message


_SCHEMAS: Final[WeakValueDictionary[bytes, Schema]] = WeakValueDictionary()
"""The schemas of the versions in use, by their bytes. What depends on a schema alone is computed
once per object (`IdentityCache`), and versions without a change of columns share one.
"""


def _decode_schema(columns: bytes, message: table_pb2.Manifest) -> Schema:
    schema = _SCHEMAS.get(columns)
    if schema is None:
        schema = Schema(fields_from_proto(message.fields), dict(message.schema_metadata))
        _SCHEMAS[columns] = schema
    return schema


def _split_manifest(
    data: bytes, start: int, stop: int
) -> tuple[bytes, bytes, tuple[bytes, ...], bytes]:
    """Split a Manifest message into known fields, those of columns, fragments and unknown fields.

    Args:
        data: The file.
        start: The position of the message.
        stop: One past its last byte.
    """
    fields = [*islice(wire.iterate_fields(data, start, stop), _FEW_FIELDS + 1)]
    if len(fields) > _FEW_FIELDS:  # protobuf is faster for many fragments, but copies all bytes
        outline = wire.parse_message(outlines_pb2.ManifestOutline, data[start:stop])
        raws = tuple(outline.fragments)
        outline.ClearField("fragments")
        data = wire.serialize(outline)
        fields = wire.split_message(data)
    else:
        raws = tuple(
            data[wire_field.value_start : wire_field.stop]
            for wire_field in fields
            if _is_fragment(wire_field)
        )
        fields = [wire_field for wire_field in fields if not _is_fragment(wire_field)]
    rest: list[bytes] = []
    columns: list[bytes] = []
    unknown: list[bytes] = []
    fields_by_number = table_pb2.Manifest.DESCRIPTOR.fields_by_number
    for wire_field in fields:
        (rest if wire_field.number in fields_by_number else unknown).append(
            data[wire_field.start : wire_field.stop]
        )
        if wire_field.number in _COLUMNS:
            columns.append(rest[-1])
    return b"".join(rest), b"".join(columns), raws, b"".join(unknown)


def _is_fragment(field: wire.WireField) -> bool:
    return field.number == FRAGMENTS and field.wire_type == wire.LENGTH_DELIMITED


def _find_section(data: bytes, position: int, limit: int, what: str) -> tuple[int, int]:
    """Return the start and the stop of a section's bytes."""
    start = position + _LENGTH.size
    if start > limit:
        raise CorruptDataError(f"{what} begins at byte {position}, but the limit is byte {limit}")
    (size,) = _LENGTH.unpack_from(data, position)
    if start + size > limit:
        raise CorruptDataError(
            f"{what} should have {size} bytes, but only {limit - start} are left"
        )
    return start, start + size


def _read_section(data: bytes, position: int, limit: int, what: str) -> bytes:
    start, stop = _find_section(data, position, limit, what)
    return data[start:stop]


def _dictionaries(message: table_pb2.Manifest, data: bytes) -> dict[int, pa.Array]:
    """Decode the values of dictionary columns, which are in the same file."""
    return {
        descriptor.id: decode_dictionary(
            logical_to_leaf(descriptor.logical_type).value_type,
            data,
            descriptor.dictionary.offset,
            descriptor.dictionary.length,
        )
        for descriptor in message.fields
        if descriptor.logical_type.startswith("dict:") and descriptor.HasField("dictionary")
    }


def _timestamp(nanos: int) -> Timestamp:
    seconds, rest = divmod(nanos, _NANOS)
    return Timestamp(seconds=seconds, nanos=rest)


def _nanos(message: table_pb2.Manifest) -> int:
    seconds, nanos = message.timestamp.seconds, message.timestamp.nanos
    if not (_MIN_SECONDS <= seconds <= _MAX_SECONDS and 0 <= nanos < _NANOS):
        raise CorruptDataError(f"the timestamp of {seconds} s and {nanos} ns is out of range")
    return seconds * _NANOS + nanos


def _writer_version(message: table_pb2.Manifest) -> WriterVersion:
    writer = message.writer_version
    return WriterVersion(
        library=writer.library,
        version=writer.version,
        prerelease=writer.prerelease if writer.HasField("prerelease") else None,
        build_metadata=writer.build_metadata if writer.HasField("build_metadata") else None,
    )


def _data_format(message: table_pb2.Manifest, fragments: FragmentList) -> DataFormat:
    """Return the data format, derived from the files if an old writer omitted it or was wrong.

    Lance 0.16 wrote version 0.1 for tables whose files have a later version.
    """
    if message.HasField("data_format"):
        data_format = DataFormat(message.data_format.file_format, message.data_format.version)
        may_be_mixed = message.reader_feature_flags & _MIXED_FILE_VERSIONS
        if data_format.version != "0.1" or may_be_mixed:
            return data_format
        if not len(fragments) or not fragments[0].files:
            return data_format
    files = fragments[0].files if len(fragments) else ()
    if files:
        major, minor = files[0].file_version
        is_first = (major, minor) <= (0, 2)
        version = "0.1" if is_first else "2.0" if major == 0 else f"{major}.{minor}"
    else:
        version = "2.0" if message.writer_feature_flags & 4 else "0.1"
    return DataFormat("lance", version)
