"""The metadata of an index in a table: the columns and fragments that it covers.

The files of the index are not read.

Source: table.proto, messages IndexMetadata, IndexFile, IndexSection.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lance_stream._proto import table_pb2
from lance_stream.table.messages import wire

_INDICES = 1


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of an index."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """One index, or one segment of it.

    Attributes:
        uuid: 16 bytes; also the name of the index's directory below `_indices`.
        field_ids: The key columns.
        name: The index's name, which all segments of an index share.
        dataset_version: The version that the index was built from.
        fragment_bitmap: A roaring bitmap of the ids of the covered fragments.
        details: The type URL and bytes of the index's description; None if old writers omitted it.
        index_version: The version of the index's format.
        created_at: The time of creation, in milliseconds since 1970-01-01 UTC.
        base_id: The index's base path; None for the table's directory.
        files: The index's files, if the writer listed them.
        covering_field_ids: The columns whose values the index contains.
        unknown: Serialized unknown fields of the message, kept unchanged.
    """

    uuid: bytes
    field_ids: tuple[int, ...]
    name: str
    dataset_version: int
    fragment_bitmap: bytes = b""
    details: tuple[str, bytes] | None = None
    index_version: int | None = None
    created_at: int | None = None
    base_id: int | None = None
    files: tuple[IndexFile, ...] = ()
    covering_field_ids: tuple[int, ...] = ()
    unknown: bytes = b""


def index_to_proto(index: IndexMetadata) -> table_pb2.IndexMetadata:
    """Return the message of an index."""
    message = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=index.uuid),
        fields=index.field_ids,
        name=index.name,
        dataset_version=index.dataset_version,
        fragment_bitmap=index.fragment_bitmap,
        index_version=index.index_version,
        created_at=index.created_at,
        base_id=index.base_id,
        files=[table_pb2.IndexFile(path=f.path, size_bytes=f.size_bytes) for f in index.files],
        covering_fields=index.covering_field_ids,
    )
    if index.details is not None:
        message.index_details.type_url, message.index_details.value = index.details
        message.index_details.SetInParent()
    if index.unknown:
        message.MergeFromString(index.unknown)
    return message


def index_from_proto(message: table_pb2.IndexMetadata) -> IndexMetadata:
    """Return the index that a message describes."""
    return IndexMetadata(
        uuid=message.uuid.uuid,
        field_ids=tuple(message.fields),
        name=message.name,
        dataset_version=message.dataset_version,
        fragment_bitmap=message.fragment_bitmap,
        details=(
            (message.index_details.type_url, message.index_details.value)
            if message.HasField("index_details")
            else None
        ),
        index_version=message.index_version if message.HasField("index_version") else None,
        created_at=message.created_at if message.HasField("created_at") else None,
        base_id=message.base_id if message.HasField("base_id") else None,
        files=tuple(IndexFile(file.path, file.size_bytes) for file in message.files),
        covering_field_ids=tuple(message.covering_fields),
        unknown=wire.unknown_fields(message),
    )


def decode_index_section(data: bytes) -> tuple[IndexMetadata, ...]:
    """Return the indices that the bytes of an IndexSection message list.

    Raises:
        CorruptDataError: The bytes are not an IndexSection message.
    """
    section = wire.parse_message(table_pb2.IndexSection, data)
    return tuple(index_from_proto(index) for index in section.indices)


def encode_index_section(indices: Iterable[IndexMetadata]) -> bytes:
    """Return the bytes of the IndexSection message of some indices."""
    return wire.join_frames(_INDICES, [wire.serialize(index_to_proto(index)) for index in indices])
