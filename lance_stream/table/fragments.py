"""A fragment: a horizontal slice of a table's rows, with its data files and its dead rows.

The rows of a fragment have *offsets* 0 to `physical_rows`; the offsets of dead ones stand in its
deletion file. The columns of the rows lie in one or more data files, each with some of the
fields. Row ids and row versions stand here as undecoded bytes: see `row_ids`, `row_versions`.

Source: table.proto, messages DataFragment, DataFile, DeletionFile, ExternalFile.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from lance_stream.schema.fields import TOMBSTONED_ID


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file with some of the columns of a fragment.

    Attributes:
        path: Below `data/`, or below the base path's own data directory.
        field_ids: The fields that the file holds; -2 marks one whose data here is void.
        column_indices: For each of `field_ids` the file's column; -1 for a field without one.
            Empty in files of version 0.1.
        file_version: (major, minor) as stored; (0, 2) and (0, 0) to (0, 3) are old spellings.
        size_bytes: The file's size; 0 when the writer did not say.
        base_id: The base path that `path` is relative to; None for the table's own directory.
        unknown: Serialized fields of the message that we do not know, kept as they came.
    """

    path: str
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    file_version: tuple[int, int]
    size_bytes: int = 0
    base_id: int | None = None
    unknown: bytes = b""

    def column_of(self) -> dict[int, int]:
        """Return which column of the file holds each field that is live in it."""
        return {
            field_id: column
            for field_id, column in zip(self.field_ids, self.column_indices, strict=True)
            if field_id != TOMBSTONED_ID
        }


class DeletionFileType(IntEnum):
    """How a deletion file stores its offsets."""

    ARROW_ARRAY = 0
    BITMAP = 1


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """Where the offsets of a fragment's dead rows are written.

    Attributes:
        file_type: Its flavour; see `deletion_vectors`.
        read_version: The version that its writer had read.
        id: A random u64 that keeps the files of two writers apart.
        num_deleted_rows: How many offsets it holds; 0 when an old writer did not say.
        base_id: The base path it lies below; None for the table's own directory.
    """

    file_type: DeletionFileType
    read_version: int
    id: int
    num_deleted_rows: int = 0
    base_id: int | None = None


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """A slice of a file that holds a sequence too large to stand in the manifest."""

    path: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class LineageColumn:
    """Says that a sequence is stored as a hidden column of the fragment's data files."""


StoredSequence: TypeAlias = bytes | ExternalFile | LineageColumn
"""A row id or row version sequence as the manifest has it: inline bytes, or where it is."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A horizontal slice of a table's rows.

    Attributes:
        id: Unique among all fragments that the table ever had; u32.
        files: Its data files; together they hold each live field at most once. A field of the
            schema that none of them holds reads as nulls.
        physical_rows: The number of rows in its files, dead ones too.
        deletion_file: Its dead rows, if it has any.
        row_ids: The stable row ids, one for each physical row; None without stable row ids.
        last_updated_at_versions: One version for each physical row; None reads as 1 for all.
        created_at_versions: The same for the version that created the row.
        unknown: Serialized fields of the message that we do not know, kept as they came.
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
    def num_live_rows(self) -> int:
        """Physical rows less dead ones, as the manifest tells them."""
        dead = self.deletion_file.num_deleted_rows if self.deletion_file else 0
        return self.physical_rows - dead
