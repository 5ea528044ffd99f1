"""Operations on rows: inserting, deleting, updating and replacing them.

Source:  transaction.proto, messages Append, Delete, Overwrite and Update.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from lance_stream._proto import transaction_pb2
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.schema.fields import Schema, fields_from_proto, fields_to_proto
from lance_stream.table.fragments.fragment import Fragment, fragments_from_proto, fragments_to_proto
from lance_stream.table.manifest import BasePath, base_path_from_proto, base_path_to_proto
from lance_stream.table.operations.key_filters import (
    KeyExistenceFilter,
    key_filter_from_proto,
    key_filter_to_proto,
)

_Pb: TypeAlias = transaction_pb2.Transaction


class UpdateMode(IntEnum):
    """How an Update wrote its new values."""

    REWRITE_ROWS = 0
    """Changed rows are in new fragments, and deleted in their old ones."""
    REWRITE_COLUMNS = 1
    """Changed columns are in new data files of the same fragments."""


@dataclass(frozen=True, slots=True)
class Append:
    """Adds new fragments."""

    fragments: tuple[Fragment, ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Append:
        """Return the operation's message."""
        return _Pb.Append(fragments=fragments_to_proto(self.fragments))

    @classmethod
    def from_proto(cls, message: _Pb.Append) -> "Append":
        """Return the operation that a message describes."""
        return cls(fragments_from_proto(message.fragments))


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes rows.

    Attributes:
        updated_fragments: Fragments with some deleted rows, with their new deletion files.
        deleted_fragment_ids: Fragments whose rows are all deleted.
        predicate: The condition that selected the rows, for information.
    """

    updated_fragments: tuple[Fragment, ...]
    deleted_fragment_ids: tuple[int, ...]
    predicate: str = ""
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Delete:
        """Return the operation's message."""
        return _Pb.Delete(
            updated_fragments=fragments_to_proto(self.updated_fragments),
            deleted_fragment_ids=self.deleted_fragment_ids,
            predicate=self.predicate,
        )

    @classmethod
    def from_proto(cls, message: _Pb.Delete) -> "Delete":
        """Return the operation that a message describes."""
        return cls(
            fragments_from_proto(message.updated_fragments),
            tuple(message.deleted_fragment_ids),
            message.predicate,
        )


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Creates a table, or replaces all rows and the schema.

    Attributes:
        fragments: All rows of the new version.
        schema: The schema of the new version.
        config_upserts: Config entries to set.
        initial_bases: Base paths of a new table.
    """

    fragments: tuple[Fragment, ...]
    schema: Schema
    config_upserts: Mapping[str, str] = field(default_factory=dict)
    initial_bases: tuple[BasePath, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Overwrite:
        """Return the operation's message."""
        return _Pb.Overwrite(
            fragments=fragments_to_proto(self.fragments),
            schema=fields_to_proto(self.schema.fields),
            schema_metadata=dict(self.schema.metadata),
            config_upsert_values=dict(self.config_upserts),
            initial_bases=[base_path_to_proto(initial_base) for initial_base in self.initial_bases],
        )

    @classmethod
    def from_proto(cls, message: _Pb.Overwrite) -> "Overwrite":
        """Return the operation that a message describes."""
        return cls(
            fragments_from_proto(message.fragments),
            Schema(fields_from_proto(message.schema), dict(message.schema_metadata)),
            dict(message.config_upsert_values),
            tuple(base_path_from_proto(initial_base) for initial_base in message.initial_bases),
        )


@dataclass(frozen=True, slots=True)
class Update:
    """Changes rows: an SQL update, or an upsert with inserts and deletes.

    Attributes:
        removed_fragment_ids: Fragments whose rows were all moved or deleted.
        updated_fragments: Fragments with new deletion files or new column files.
        new_fragments: Fragments with updated and inserted rows. Updated rows come first, and have
            their row ids; those of inserted rows are assigned on commit.
        fields_modified: The ids of the columns that changed; empty if any may have changed.
        compacted_sstables: Serialized messages of the write-ahead log, unchanged.
        fields_for_preserving_frag_bitmap: The ids of the columns that changed in moved rows.
            Indices on other columns cover the new fragments, too.
        update_mode: How the new values were written.
        inserted_rows: The keys of the inserted rows, if they must be unique.
        updated_fragment_offsets: By fragment id, the offsets of the rows that were changed in
            place.
        updated_fragment_offset_bitmaps: The same as roaring bitmaps.
    """

    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    compacted_sstables: tuple[bytes, ...] = ()
    fields_for_preserving_frag_bitmap: tuple[int, ...] = ()
    update_mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_rows: KeyExistenceFilter | None = None
    updated_fragment_offsets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    updated_fragment_offset_bitmaps: Mapping[int, bytes] = field(default_factory=dict)
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Update:
        """Return the operation's message."""
        return _Pb.Update(
            removed_fragment_ids=self.removed_fragment_ids,
            updated_fragments=fragments_to_proto(self.updated_fragments),
            new_fragments=fragments_to_proto(self.new_fragments),
            fields_modified=self.fields_modified,
            compacted_sstables_raw=self.compacted_sstables,
            fields_for_preserving_frag_bitmap=self.fields_for_preserving_frag_bitmap,
            update_mode=self.update_mode.name,
            inserted_rows=key_filter_to_proto(self.inserted_rows) if self.inserted_rows else None,
            updated_fragment_offsets={
                fragment_id: _Pb.UInt32List(values=offsets)
                for fragment_id, offsets in self.updated_fragment_offsets.items()
            },
            updated_fragment_offset_bitmaps=dict(self.updated_fragment_offset_bitmaps),
        )

    @classmethod
    def from_proto(cls, message: _Pb.Update) -> "Update":
        """Return the operation that a message describes.

        Raises:
            UnsupportedFeatureError: The update mode is unknown.
        """
        try:
            update_mode = UpdateMode(int(message.update_mode))
        except ValueError as error:
            raise UnsupportedFeatureError(
                f"an Update has the unknown mode {message.update_mode}; only 0 and 1 are supported"
            ) from error
        return cls(
            removed_fragment_ids=tuple(message.removed_fragment_ids),
            updated_fragments=fragments_from_proto(message.updated_fragments),
            new_fragments=fragments_from_proto(message.new_fragments),
            fields_modified=tuple(message.fields_modified),
            compacted_sstables=tuple(message.compacted_sstables_raw),
            fields_for_preserving_frag_bitmap=tuple(message.fields_for_preserving_frag_bitmap),
            update_mode=update_mode,
            inserted_rows=(
                key_filter_from_proto(message.inserted_rows)
                if message.HasField("inserted_rows")
                else None
            ),
            updated_fragment_offsets={
                fragment_id: tuple(offsets.values)
                for fragment_id, offsets in message.updated_fragment_offsets.items()
            },
            updated_fragment_offset_bitmaps=dict(message.updated_fragment_offset_bitmaps),
        )
