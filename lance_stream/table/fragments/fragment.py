"""A fragment: a horizontal slice of a table's rows, with its data files and its deleted rows.

The rows of a fragment have *offsets* from 0 to `physical_rows`, exclusive; its deletion file has
the offsets of deleted rows. The columns are stored in one or more data files, each with some of the
fields. Row ids and row versions are undecoded bytes here: see `row_ids`, `row_versions`.

Source: table.proto, messages DataFragment, DataFile, DeletionFile, ExternalFile.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.schema.fields import TOMBSTONED_ID
from lance_stream.table.lineage.row_ids import MAX_PHYSICAL_ROWS
from lance_stream.table.messages import wire

MAX_FRAGMENT_ID = (1 << 32) - 1
_OVERLAYS = 11

INLINE_SEQUENCES: Final = MappingProxyType(
    {5: "row_ids", 7: "last_updated_at_versions", 9: "created_at_versions"}
)
"""The names of the sequences that a fragment's message may contain, by field number."""

_EXTERNAL_SEQUENCES: Final = frozenset((6, 8, 10, 12, 13, 14))
_LONG_MESSAGE: Final = 4096
"""The size in bytes from which finding the sequences in a message is cheaper than copying them."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file with some of the columns of a fragment.

    Attributes:
        path: The path below `data/`, or below the data directory of the base path.
        field_ids: The fields in the file; -2 marks one whose values here are no longer used.
        column_indices: The file's column of each of `field_ids`; -1 for a field without a column.
            Empty in files of version 0.1.
        file_version: (major, minor) as stored; (0, 2) and (0, 0) to (0, 3) are old spellings.
        size_bytes: The file's size; 0 if unknown.
        base_id: The base path that `path` is relative to; None for the table's directory.
        unknown: Serialized unknown fields of the message, kept unchanged.
    """

    path: str
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    file_version: tuple[int, int]
    size_bytes: int = 0
    base_id: int | None = None
    unknown: bytes = b""

    def column_of(self) -> dict[int, int]:
        """Return the column in the file of each field that is in use.

        In files of version 0.1, the column is the field's position in the page table, which begins
        with the smallest field id.

        Raises:
            UnsupportedFeatureError: The first field id of a file of version 0.1 is unknown.
            CorruptDataError: A field or a column occurs twice.
        """
        self._check_no_field_twice()
        if not self.column_indices and self.field_ids:
            first = self.field_ids[0]
            if first == TOMBSTONED_ID:
                raise UnsupportedFeatureError(
                    f"the first column of the data file {self.path!r} of version 0.1 is no longer "
                    "used, so the positions of the others are unknown; compact the table with "
                    "another writer"
                )
            return {
                field_id: field_id - first
                for field_id in self.field_ids
                if field_id != TOMBSTONED_ID
            }
        return {
            field_id: column
            for field_id, column in zip(self.field_ids, self.column_indices, strict=True)
            if field_id != TOMBSTONED_ID
        }

    def _check_no_field_twice(self) -> None:
        live = [field_id for field_id in self.field_ids if field_id != TOMBSTONED_ID]
        columns = [column_index for column_index in self.column_indices if column_index >= 0]
        if len(set(live)) != len(live) or len(set(columns)) != len(columns):
            raise CorruptDataError(
                f"the manifest lists fields or columns of the data file {self.path!r} twice: "
                f"fields {list(self.field_ids)}, columns {list(self.column_indices)}"
            )


def total_size(files: Iterable[DataFile]) -> int | None:
    """Return the size of files in bytes; None if the writer of one did not record it."""
    sizes = [file.size_bytes for file in files]
    return sum(sizes) if all(sizes) else None


def columns_of_files(
    files: Sequence[DataFile], shared: Container[int] = ()
) -> list[dict[int, int]]:
    """Return the columns of the fields that are read from each data file of a fragment.

    A field is read from the last file that has it: Lance 0.10 did not remove a replaced column from
    its old file, which has the same field id.

    Args:
        files: The files.
        shared: Ids of the fields that may be in several files: structs.

    Raises:
        BadDataError: As `DataFile.column_of`.
    """
    seen: set[int] = set()
    columns = []
    for file in reversed(files):
        column_of = {
            field_id: column
            for field_id, column in file.column_of().items()
            if field_id not in seen
        }
        seen.update(field_id for field_id in column_of if field_id not in shared)
        columns.append(column_of)
    return columns[::-1]


class DeletionFileType(IntEnum):
    """The format of a deletion file."""

    ARROW_ARRAY = 0
    BITMAP = 1


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """The file with the offsets of a fragment's deleted rows.

    Attributes:
        file_type: The format; see `deletion_vectors`.
        read_version: The version that its writer had read.
        id: A random u64 that distinguishes the files of two writers.
        num_deleted_rows: The number of offsets; 0 if an old writer omitted it.
        base_id: The file's base path; None for the table's directory.
        unknown: Serialized unknown fields of the message, kept unchanged.
    """

    file_type: DeletionFileType
    read_version: int
    id: int
    num_deleted_rows: int = 0
    base_id: int | None = None
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """A slice of a file with a sequence that is too large for the manifest."""

    path: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class LineageColumn:
    """A sequence that is stored as a hidden u64 column of one of the data files.

    Two equal objects have the same values, even if the file has other columns.

    Attributes:
        field_id: The column's id, one of `LINEAGE_FIELD_IDS`.
        file: The file, with this column only; None if not exactly one file of the fragment has it.
        num_files: The number of files with the column, if not one.
    """

    field_id: int
    file: "DataFile | None"
    num_files: int = 0

    @classmethod
    def among(cls, field_id: int, files: Sequence["DataFile"]) -> "LineageColumn":
        """Find the column among the files of a fragment."""
        holding = [file for file in files if field_id in file.field_ids]
        if len(holding) != 1:
            return cls(field_id, None, len(holding))
        (file,) = holding
        if file.field_ids.count(field_id) == 1 and len(file.column_indices) == len(file.field_ids):
            column = file.column_indices[file.field_ids.index(field_id)]
            file = replace(file, field_ids=(field_id,), column_indices=(column,))
        return cls(field_id, file)


LINEAGE_FIELD_IDS: Mapping[str, int] = MappingProxyType(
    {"row_ids": -3, "created_at_versions": -4, "last_updated_at_versions": -5}
)
"""The field ids of sequences that data files have as hidden columns."""


StoredSequence: TypeAlias = bytes | ExternalFile | LineageColumn
"""A row id or row version sequence in the manifest: inline bytes, or its location."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A horizontal slice of a table's rows.

    Attributes:
        id: Unique among all fragments that the table ever had; u32.
        files: The data files, which have each used field at most once. A field of the schema that
            is in none of them reads as nulls.
        physical_rows: The number of rows in the files, including deleted ones.
        deletion_file: The file of deleted rows; None without any.
        row_ids: The stable row ids, one per physical row; None without stable row ids.
        last_updated_at_versions: One version per physical row; None means version 1 for all rows.
        created_at_versions: The same for the version that created the row.
        unknown: Serialized unknown fields of the message, kept unchanged; among them `overlays`.
    """

    id: int
    files: tuple[DataFile, ...]
    physical_rows: int
    deletion_file: DeletionFile | None = None
    row_ids: StoredSequence | None = None
    last_updated_at_versions: StoredSequence | None = None
    created_at_versions: StoredSequence | None = None
    unknown: bytes = b""

    @property
    def sequences(
        self,
    ) -> tuple[StoredSequence | None, StoredSequence | None, StoredSequence | None]:
        """Its row ids, last-updated-at and created-at versions."""
        return self.row_ids, self.last_updated_at_versions, self.created_at_versions

    @property
    def has_hidden_lineage(self) -> bool:
        """Whether a sequence is a hidden column of a data file."""
        return any(isinstance(sequence, LineageColumn) for sequence in self.sequences)

    @property
    def num_live_rows(self) -> int:
        """The number of physical rows minus deleted ones, according to the manifest."""
        num_deleted = self.deletion_file.num_deleted_rows if self.deletion_file else 0
        return self.physical_rows - num_deleted


def data_file_to_proto(file: DataFile) -> table_pb2.DataFile:
    """Return the message of a data file."""
    major, minor = file.file_version
    message = table_pb2.DataFile(
        path=file.path,
        fields=file.field_ids,
        column_indices=file.column_indices,
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=file.size_bytes,
        base_id=file.base_id,
    )
    if file.unknown:
        message.MergeFromString(file.unknown)
    return message


def data_file_from_proto(message: table_pb2.DataFile) -> DataFile:
    """Return the data file that a message describes.

    Raises:
        CorruptDataError: It has column indices, but not one per field.

    Source:
        table.proto, DataFile. Files of version 0.1 and 0.2, stored as (0, 0) to (0, 2), have no
        column indices: columns follow from field ids.
    """
    field_ids, column_indices = tuple(message.fields), tuple(message.column_indices)
    file_version = (message.file_major_version, message.file_minor_version)
    if len(column_indices) != len(field_ids) and (column_indices or file_version > (0, 2)):
        raise CorruptDataError(
            f"the data file {message.path!r} lists {len(field_ids)} fields but "
            f"{len(column_indices)} column indices"
        )
    return DataFile(
        path=message.path,
        field_ids=field_ids,
        column_indices=column_indices,
        file_version=file_version,
        size_bytes=message.file_size_bytes,
        base_id=message.base_id if message.HasField("base_id") else None,
        unknown=wire.unknown_fields(message),
    )


def deletion_file_to_proto(file: DeletionFile) -> table_pb2.DeletionFile:
    """Return the message of a deletion file."""
    message = table_pb2.DeletionFile(
        file_type=file.file_type.name,
        read_version=file.read_version,
        id=file.id,
        num_deleted_rows=file.num_deleted_rows,
        base_id=file.base_id,
    )
    if file.unknown:
        message.MergeFromString(file.unknown)
    return message


def deletion_file_from_proto(message: table_pb2.DeletionFile) -> DeletionFile:
    """Return the deletion file that a message describes.

    Raises:
        UnsupportedFeatureError: Its format is neither Arrow nor a roaring bitmap.
    """
    try:
        file_type = DeletionFileType(int(message.file_type))
    except ValueError as error:
        raise UnsupportedFeatureError(
            f"a deletion file has the type {message.file_type}; only 0 (Arrow) and 1 (bitmap) are "
            "supported"
        ) from error
    return DeletionFile(
        file_type=file_type,
        read_version=message.read_version,
        id=message.id,
        num_deleted_rows=message.num_deleted_rows,
        base_id=message.base_id if message.HasField("base_id") else None,
        unknown=wire.unknown_fields(message),
    )


def fragment_to_proto(fragment: Fragment) -> table_pb2.DataFragment:
    """Return the message of a fragment."""
    message = table_pb2.DataFragment(
        id=fragment.id,
        files=[data_file_to_proto(file) for file in fragment.files],
        physical_rows=fragment.physical_rows,
    )
    if fragment.deletion_file is not None:
        message.deletion_file.CopyFrom(deletion_file_to_proto(fragment.deletion_file))
    for name, sequence in (
        ("row_ids", fragment.row_ids),
        ("last_updated_at_versions", fragment.last_updated_at_versions),
        ("created_at_versions", fragment.created_at_versions),
    ):
        _set_sequence(message, name, sequence)
    if fragment.unknown:
        message.MergeFromString(fragment.unknown)
    return message


def fragment_from_proto(message: table_pb2.DataFragment) -> Fragment:
    """Return the fragment that a message describes.

    Raises:
        CorruptDataError: The id or the number of rows is out of range, there are more deleted rows
            than rows, or a file is invalid.
        UnsupportedFeatureError: The deletion file has an unknown format.
    """
    if message.id > MAX_FRAGMENT_ID:
        raise CorruptDataError(f"fragment id {message.id} does not fit in 32 bits")
    if message.physical_rows > MAX_PHYSICAL_ROWS:
        raise CorruptDataError(
            f"fragment {message.id} claims {message.physical_rows} rows; row offsets have 32 bits"
        )
    deletion_file = (
        deletion_file_from_proto(message.deletion_file)
        if message.HasField("deletion_file")
        else None
    )
    if deletion_file and 0 < message.physical_rows < deletion_file.num_deleted_rows:
        raise CorruptDataError(
            f"fragment {message.id} claims {deletion_file.num_deleted_rows} deleted rows, but only "
            f"{message.physical_rows} rows"
        )
    files = tuple(data_file_from_proto(file) for file in message.files)
    return Fragment(
        id=message.id,
        files=files,
        physical_rows=message.physical_rows,
        deletion_file=deletion_file,
        row_ids=_get_sequence(message, "row_ids", files),
        last_updated_at_versions=_get_sequence(message, "last_updated_at_versions", files),
        created_at_versions=_get_sequence(message, "created_at_versions", files),
        unknown=wire.unknown_fields(message, also=(_OVERLAYS,)),
    )


def fragments_to_proto(fragments: Iterable[Fragment]) -> list[table_pb2.DataFragment]:
    """Return the messages of fragments."""
    return [fragment_to_proto(fragment) for fragment in fragments]


def fragments_from_proto(messages: Iterable[table_pb2.DataFragment]) -> tuple[Fragment, ...]:
    """Return the fragments that messages describe.

    Raises:
        CorruptDataError, UnsupportedFeatureError: As `fragment_from_proto`.
    """
    return tuple(fragment_from_proto(message) for message in messages)


def encode_fragment(fragment: Fragment) -> bytes:
    """Return the bytes of a fragment's message."""
    sequences = fragment.sequences
    if fragment.unknown or not all(
        sequence is None or isinstance(sequence, bytes) for sequence in sequences
    ):
        return wire.serialize(fragment_to_proto(fragment))
    # The sequences may be megabytes, and are the last fields: protobuf would copy them twice.
    rest = replace(fragment, row_ids=None, last_updated_at_versions=None, created_at_versions=None)
    parts = [wire.serialize(fragment_to_proto(rest))]
    for number, sequence in zip(INLINE_SEQUENCES, sequences, strict=True):
        if isinstance(sequence, bytes):
            parts += (wire.frame_start(number, len(sequence)), sequence)
    return b"".join(parts)


def decode_fragment(data: bytes) -> Fragment:
    """Return the fragment that the bytes of a message describe.

    Raises:
        BadDataError: As `fragment_from_proto`, or the bytes are not a message.
    """
    rest, positions = without_sequences(data)
    fragment = fragment_from_proto(wire.parse_message(table_pb2.DataFragment, rest))
    if not positions:
        return fragment
    sequences = {name: data[position] for name, position in positions.items()}
    return replace(
        fragment,
        row_ids=sequences.get("row_ids"),
        last_updated_at_versions=sequences.get("last_updated_at_versions"),
        created_at_versions=sequences.get("created_at_versions"),
    )


def without_sequences(data: bytes) -> tuple[bytes, dict[str, slice]]:
    """Cut long sequences out of a fragment's message, before it is parsed.

    Returns:
        The message's other fields, and the slices of the sequences by the attribute names of
        `Fragment`. If the message is short, or not as this library and the reference write it, the
        whole message and no slice.
    """
    if len(data) < _LONG_MESSAGE:
        return data, {}
    rest: list[bytes] = []
    sequences: dict[str, slice] = {}
    try:
        for number, wire_type, start, value_start, stop in wire.split_message(data):
            name = INLINE_SEQUENCES.get(number)
            if name is None:
                rest.append(data[start:stop])
                if number in _EXTERNAL_SEQUENCES:
                    return data, {}
            elif name in sequences or wire_type != wire.LENGTH_DELIMITED:
                return data, {}
            else:
                sequences[name] = slice(value_start, stop)
    except CorruptDataError:  # the parser reports it
        return data, {}
    return b"".join(rest), sequences


def without_counts(data: bytes) -> bytes:
    """Return the message of a fragment without its counts of rows and deleted rows.

    Raises:
        CorruptDataError: The bytes are not a DataFragment message.
    """
    message = wire.parse_message(table_pb2.DataFragment, data)
    message.ClearField("physical_rows")
    if message.HasField("deletion_file"):
        message.deletion_file.ClearField("num_deleted_rows")
    return wire.serialize(message)


def has_overlays(fragment: Fragment) -> bool:
    """Return whether a fragment has data overlay files, which are not supported."""
    return any(field.number == _OVERLAYS for field in wire.split_message(fragment.unknown))


def _set_sequence(
    message: table_pb2.DataFragment, name: str, sequence: StoredSequence | None
) -> None:
    if isinstance(sequence, bytes):
        setattr(message, f"inline_{name}", sequence)
    elif isinstance(sequence, ExternalFile):
        getattr(message, f"external_{name}").MergeFrom(
            table_pb2.ExternalFile(path=sequence.path, offset=sequence.offset, size=sequence.size)
        )
        getattr(message, f"external_{name}").SetInParent()
    elif isinstance(sequence, LineageColumn):
        getattr(message, f"column_{name}").SetInParent()


def _get_sequence(
    message: table_pb2.DataFragment, name: str, files: Sequence[DataFile]
) -> StoredSequence | None:
    if message.HasField(f"inline_{name}"):
        inline: bytes = getattr(message, f"inline_{name}")
        return inline
    if message.HasField(f"external_{name}"):
        external: table_pb2.ExternalFile = getattr(message, f"external_{name}")
        return ExternalFile(external.path, external.offset, external.size)
    if message.HasField(f"column_{name}"):
        return LineageColumn.among(LINEAGE_FIELD_IDS[name], files)
    return None
