"""The operations on a table: one class for each operation of the transaction message.

An operation is plain data: what its writer planned. `apply` derives the next version from it;
`conflicts` decides which versions it may follow.

`OPERATIONS` maps the message's oneof field names to the classes. Fragments in an operation have
the ids of the version it was planned on; new ones have id 0, and get their ids when they are
committed. Those of a Rewrite state the ids that they will have.

Source:  transaction.proto, message Transaction, oneof operation.
Differs: An operation that is not in the oneof is kept as `UnknownOperation`: it conflicts with
         everything and cannot be applied.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from lance_stream._proto import table_pb2, transaction_pb2
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.schema.fields import Field, Schema, fields_from_proto, fields_to_proto
from lance_stream.table import wire
from lance_stream.table.fragments import (
    DataFile,
    Fragment,
    data_file_from_proto,
    data_file_to_proto,
    fragment_from_proto,
    fragment_to_proto,
)
from lance_stream.table.indices import IndexFile, IndexMetadata, index_from_proto, index_to_proto
from lance_stream.table.manifest import BasePath, base_path_from_proto, base_path_to_proto

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
        return _Pb.Append(fragments=_fragments_out(self.fragments))

    @classmethod
    def from_proto(cls, message: _Pb.Append) -> "Append":
        """Return the operation that a message describes."""
        return cls(_fragments_in(message.fragments))


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes rows.

    Attributes:
        updated_fragments: Fragments of which some rows are deleted, with their new deletion files.
        deleted_fragment_ids: Fragments of which all rows are deleted.
        predicate: The condition that selected the rows, as text for people.
    """

    updated_fragments: tuple[Fragment, ...]
    deleted_fragment_ids: tuple[int, ...]
    predicate: str = ""
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Delete:
        """Return the operation's message."""
        return _Pb.Delete(
            updated_fragments=_fragments_out(self.updated_fragments),
            deleted_fragment_ids=self.deleted_fragment_ids,
            predicate=self.predicate,
        )

    @classmethod
    def from_proto(cls, message: _Pb.Delete) -> "Delete":
        """Return the operation that a message describes."""
        return cls(
            _fragments_in(message.updated_fragments),
            tuple(message.deleted_fragment_ids),
            message.predicate,
        )


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Creates a table, or replaces all its rows and its schema.

    Attributes:
        fragments: All rows of the new version.
        schema: Its schema.
        config_upserts: Config entries to set as well.
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
            fragments=_fragments_out(self.fragments),
            schema=fields_to_proto(self.schema.fields),
            schema_metadata=dict(self.schema.metadata),
            config_upsert_values=dict(self.config_upserts),
            initial_bases=[base_path_to_proto(initial_base) for initial_base in self.initial_bases],
        )

    @classmethod
    def from_proto(cls, message: _Pb.Overwrite) -> "Overwrite":
        """Return the operation that a message describes."""
        return cls(
            _fragments_in(message.fragments),
            Schema(fields_from_proto(message.schema), dict(message.schema_metadata)),
            dict(message.config_upsert_values),
            tuple(base_path_from_proto(initial_base) for initial_base in message.initial_bases),
        )


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """Adds indices, or segments of them, and removes others."""

    new_indices: tuple[IndexMetadata, ...]
    removed_indices: tuple[IndexMetadata, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.CreateIndex:
        """Return the operation's message."""
        return _Pb.CreateIndex(
            new_indices=[index_to_proto(index) for index in self.new_indices],
            removed_indices=[index_to_proto(index) for index in self.removed_indices],
        )

    @classmethod
    def from_proto(cls, message: _Pb.CreateIndex) -> "CreateIndex":
        """Return the operation that a message describes."""
        return cls(
            tuple(index_from_proto(index) for index in message.new_indices),
            tuple(index_from_proto(index) for index in message.removed_indices),
        )


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Some fragments, and the new ones with the same rows."""

    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class RewrittenIndex:
    """An index that was rewritten because its rows moved.

    Attributes:
        old_id: Its previous uuid; 16 bytes.
        new_id: Its new uuid; 16 bytes.
        new_details: Type URL and bytes of its description; None when not stated.
        new_index_version: Version of the index's own format.
        new_files: Its files, if the writer listed them.
    """

    old_id: bytes
    new_id: bytes
    new_details: tuple[str, bytes] | None = None
    new_index_version: int = 0
    new_files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Moves rows to other fragments without changing them: a compaction.

    Attributes:
        groups: Which fragments replace which.
        rewritten_indices: Indices that were rewritten with them.
        old_fragments: The same without groups, from old writers.
        new_fragments: The same without groups, from old writers.
    """

    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[RewrittenIndex, ...] = ()
    old_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Rewrite:
        """Return the operation's message."""
        message = _Pb.Rewrite(
            old_fragments=_fragments_out(self.old_fragments),
            new_fragments=_fragments_out(self.new_fragments),
            groups=[
                _Pb.Rewrite.RewriteGroup(
                    old_fragments=_fragments_out(group.old_fragments),
                    new_fragments=_fragments_out(group.new_fragments),
                )
                for group in self.groups
            ],
        )
        for index in self.rewritten_indices:
            added = message.rewritten_indices.add(
                old_id=table_pb2.UUID(uuid=index.old_id),
                new_id=table_pb2.UUID(uuid=index.new_id),
                new_index_version=index.new_index_version,
                new_index_files=[
                    table_pb2.IndexFile(path=file.path, size_bytes=file.size_bytes)
                    for file in index.new_files
                ],
            )
            if index.new_details is not None:
                details = added.new_index_details
                details.type_url, details.value = index.new_details
                details.SetInParent()
        return message

    @classmethod
    def from_proto(cls, message: _Pb.Rewrite) -> "Rewrite":
        """Return the operation that a message describes."""
        return cls(
            groups=tuple(
                RewriteGroup(_fragments_in(group.old_fragments), _fragments_in(group.new_fragments))
                for group in message.groups
            ),
            rewritten_indices=tuple(
                RewrittenIndex(
                    index.old_id.uuid,
                    index.new_id.uuid,
                    (
                        (index.new_index_details.type_url, index.new_index_details.value)
                        if index.HasField("new_index_details")
                        else None
                    ),
                    index.new_index_version,
                    tuple(IndexFile(file.path, file.size_bytes) for file in index.new_index_files),
                )
                for index in message.rewritten_indices
            ),
            old_fragments=_fragments_in(message.old_fragments),
            new_fragments=_fragments_in(message.new_fragments),
        )


@dataclass(frozen=True, slots=True)
class Merge:
    """Adds columns: replaces the schema and every fragment, with further data files.

    Attributes:
        fragments: All fragments of the table, with old and new data files.
        schema: The new schema.
        preserves_nullability: The writer's promise that no column became less nullable.
    """

    fragments: tuple[Fragment, ...]
    schema: Schema
    preserves_nullability: bool = False
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Merge:
        """Return the operation's message."""
        return _Pb.Merge(
            fragments=_fragments_out(self.fragments),
            schema=fields_to_proto(self.schema.fields),
            schema_metadata=dict(self.schema.metadata),
            preserves_nullability=self.preserves_nullability,
        )

    @classmethod
    def from_proto(cls, message: _Pb.Merge) -> "Merge":
        """Return the operation that a message describes."""
        return cls(
            _fragments_in(message.fragments),
            Schema(fields_from_proto(message.schema), dict(message.schema_metadata)),
            message.preserves_nullability,
        )


@dataclass(frozen=True, slots=True)
class Restore:
    """Makes an older version's rows and schema the newest."""

    version: int
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Restore:
        """Return the operation's message."""
        return _Pb.Restore(version=self.version)

    @classmethod
    def from_proto(cls, message: _Pb.Restore) -> "Restore":
        """Return the operation that a message describes."""
        return cls(message.version)


@dataclass(frozen=True, slots=True)
class ReserveFragments:
    """Reserves fragment ids for a later rewrite."""

    num_fragments: int
    unknown: bytes = b""

    def to_proto(self) -> _Pb.ReserveFragments:
        """Return the operation's message."""
        return _Pb.ReserveFragments(num_fragments=self.num_fragments)

    @classmethod
    def from_proto(cls, message: _Pb.ReserveFragments) -> "ReserveFragments":
        """Return the operation that a message describes."""
        return cls(message.num_fragments)


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """A set of key hashes that may give false positives."""

    bitmap: bytes
    num_bits: int
    number_of_items: int
    probability: float

    @property
    def holds_anything(self) -> bool:
        """Whether it reports every hash as contained."""
        return self.bitmap.count(0xFF) == len(self.bitmap)


@dataclass(frozen=True, slots=True)
class KeyExistenceFilter:
    """The keys of inserted rows, to detect that two writers inserted the same key.

    Attributes:
        field_ids: The key columns.
        key_hashes: A hash of each key, exactly; None if `bloom` is given.
        bloom: The hashes, approximately; None if `key_hashes` are given.
    """

    field_ids: tuple[int, ...]
    key_hashes: tuple[int, ...] | None = None
    bloom: BloomFilter | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Changes rows: an SQL update, or an upsert with inserts and deletes.

    Attributes:
        removed_fragment_ids: Fragments without remaining rows.
        updated_fragments: Fragments with new deletion files or new column files.
        new_fragments: Fragments with changed and inserted rows. Changed rows come first, and only
            their row ids are stated; those of inserted rows are assigned on commit.
        fields_modified: Ids of the columns that changed; empty if all may have.
        compacted_sstables: Serialized messages of the write-ahead log, unchanged.
        fields_for_preserving_frag_bitmap: Ids of the columns whose indices stay valid for the
            new fragments.
        update_mode: How the new values were written.
        inserted_rows: The keys of the inserted rows, if the writer keeps them unique.
        updated_fragment_offsets: By fragment id, the offsets of its changed rows.
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
            updated_fragments=_fragments_out(self.updated_fragments),
            new_fragments=_fragments_out(self.new_fragments),
            fields_modified=self.fields_modified,
            compacted_sstables_raw=self.compacted_sstables,
            fields_for_preserving_frag_bitmap=self.fields_for_preserving_frag_bitmap,
            update_mode=self.update_mode.name,
            inserted_rows=_keys_out(self.inserted_rows) if self.inserted_rows else None,
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
            UnsupportedFeatureError: Its update mode is unknown.
        """
        try:
            update_mode = UpdateMode(int(message.update_mode))
        except ValueError as error:
            raise UnsupportedFeatureError(
                f"an Update has the unknown mode {message.update_mode}; known modes are 0 and 1"
            ) from error
        return cls(
            removed_fragment_ids=tuple(message.removed_fragment_ids),
            updated_fragments=_fragments_in(message.updated_fragments),
            new_fragments=_fragments_in(message.new_fragments),
            fields_modified=tuple(message.fields_modified),
            compacted_sstables=tuple(message.compacted_sstables_raw),
            fields_for_preserving_frag_bitmap=tuple(message.fields_for_preserving_frag_bitmap),
            update_mode=update_mode,
            inserted_rows=(
                _keys_in(message.inserted_rows) if message.HasField("inserted_rows") else None
            ),
            updated_fragment_offsets={
                fragment_id: tuple(offsets.values)
                for fragment_id, offsets in message.updated_fragment_offsets.items()
            },
            updated_fragment_offset_bitmaps=dict(message.updated_fragment_offset_bitmaps),
        )


@dataclass(frozen=True, slots=True)
class Project:
    """Drops, renames or reorders columns: another schema over the same fragments."""

    fields: tuple[Field, ...]
    preserves_nullability: bool = False
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Project:
        """Return the operation's message."""
        return _Pb.Project(
            schema=fields_to_proto(self.fields), preserves_nullability=self.preserves_nullability
        )

    @classmethod
    def from_proto(cls, message: _Pb.Project) -> "Project":
        """Return the operation that a message describes."""
        return cls(fields_from_proto(message.schema), message.preserves_nullability)


@dataclass(frozen=True, slots=True)
class MapUpdate:
    """A change of a map from text to text.

    Attributes:
        entries: Keys with their new values; None removes the key. Later entries win.
        replace: Whether all other keys are removed.
    """

    entries: tuple[tuple[str, str | None], ...] = ()
    replace: bool = False


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Changes config, table metadata, schema metadata and field metadata.

    Attributes:
        config: Change of the table's config.
        table_metadata: Change of the table's metadata.
        schema_metadata: Change of the schema's metadata.
        field_metadata: By field id, the change of that field's metadata.
        old_upserts: Config entries to set, by writers older than `config`.
        old_delete_keys: Config keys to remove, likewise.
        old_schema_metadata: The schema's new metadata, likewise.
        old_field_metadata: By field id, its new metadata, likewise.
    """

    config: MapUpdate | None = None
    table_metadata: MapUpdate | None = None
    schema_metadata: MapUpdate | None = None
    field_metadata: Mapping[int, MapUpdate] = field(default_factory=dict)
    old_upserts: Mapping[str, str] = field(default_factory=dict)
    old_delete_keys: tuple[str, ...] = ()
    old_schema_metadata: Mapping[str, str] = field(default_factory=dict)
    old_field_metadata: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    unknown: bytes = b""

    def to_proto(self) -> _Pb.UpdateConfig:
        """Return the operation's message."""
        return _Pb.UpdateConfig(
            upsert_values=dict(self.old_upserts),
            delete_keys=self.old_delete_keys,
            schema_metadata=dict(self.old_schema_metadata),
            field_metadata={
                field_id: _Pb.UpdateConfig.FieldMetadataUpdate(metadata=dict(metadata))
                for field_id, metadata in self.old_field_metadata.items()
            },
            config_updates=_map_out(self.config),
            table_metadata_updates=_map_out(self.table_metadata),
            schema_metadata_updates=_map_out(self.schema_metadata),
            field_metadata_updates={
                field_id: _update_out(update) for field_id, update in self.field_metadata.items()
            },
        )

    @classmethod
    def from_proto(cls, message: _Pb.UpdateConfig) -> "UpdateConfig":
        """Return the operation that a message describes."""
        return cls(
            config=_update_in(message.config_updates)
            if message.HasField("config_updates")
            else None,
            table_metadata=(
                _update_in(message.table_metadata_updates)
                if message.HasField("table_metadata_updates")
                else None
            ),
            schema_metadata=(
                _update_in(message.schema_metadata_updates)
                if message.HasField("schema_metadata_updates")
                else None
            ),
            field_metadata={
                field_id: _update_in(update)
                for field_id, update in message.field_metadata_updates.items()
            },
            old_upserts=dict(message.upsert_values),
            old_delete_keys=tuple(message.delete_keys),
            old_schema_metadata=dict(message.schema_metadata),
            old_field_metadata={
                field_id: dict(update.metadata)
                for field_id, update in message.field_metadata.items()
            },
        )


@dataclass(frozen=True, slots=True)
class DataReplacement:
    """Replaces data files of some fragments by others with the same columns.

    Attributes:
        replacements: Fragment ids with their new data files.
    """

    replacements: tuple[tuple[int, DataFile], ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.DataReplacement:
        """Return the operation's message."""
        return _Pb.DataReplacement(
            replacements=[
                _Pb.DataReplacementGroup(
                    fragment_id=fragment_id, new_file=data_file_to_proto(new_file)
                )
                for fragment_id, new_file in self.replacements
            ]
        )

    @classmethod
    def from_proto(cls, message: _Pb.DataReplacement) -> "DataReplacement":
        """Return the operation that a message describes."""
        return cls(
            tuple(
                (replacement.fragment_id, data_file_from_proto(replacement.new_file))
                for replacement in message.replacements
            )
        )


@dataclass(frozen=True, slots=True)
class UpdateMemWalState:
    """Changes the state of a write-ahead log in memory.

    Attributes:
        compacted_sstables: Serialized messages, which are not read.
        updated: Likewise, from old writers.
        removed: Likewise, from old writers.
    """

    compacted_sstables: tuple[bytes, ...] = ()
    updated: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.UpdateMemWalState:
        """Return the operation's message."""
        return _Pb.UpdateMemWalState(
            compacted_sstables_raw=self.compacted_sstables,
            updated_raw=self.updated,
            removed_raw=self.removed,
        )

    @classmethod
    def from_proto(cls, message: _Pb.UpdateMemWalState) -> "UpdateMemWalState":
        """Return the operation that a message describes."""
        return cls(
            tuple(message.compacted_sstables_raw),
            tuple(message.updated_raw),
            tuple(message.removed_raw),
        )


@dataclass(frozen=True, slots=True)
class Clone:
    """Creates a table from another table's version.

    Attributes:
        is_shallow: Whether the files stay where they are.
        ref_version: The other table's version.
        ref_path: Where the other table is.
        ref_name: The other table's branch.
        branch_name: The branch that is created.
    """

    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Clone:
        """Return the operation's message."""
        return _Pb.Clone(
            is_shallow=self.is_shallow,
            ref_name=self.ref_name,
            ref_version=self.ref_version,
            ref_path=self.ref_path,
            branch_name=self.branch_name,
        )

    @classmethod
    def from_proto(cls, message: _Pb.Clone) -> "Clone":
        """Return the operation that a message describes."""
        return cls(
            is_shallow=message.is_shallow,
            ref_version=message.ref_version,
            ref_path=message.ref_path,
            ref_name=message.ref_name if message.HasField("ref_name") else None,
            branch_name=message.branch_name if message.HasField("branch_name") else None,
        )


@dataclass(frozen=True, slots=True)
class UpdateBases:
    """Declares further base paths."""

    new_bases: tuple[BasePath, ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.UpdateBases:
        """Return the operation's message."""
        return _Pb.UpdateBases(new_bases=[base_path_to_proto(base) for base in self.new_bases])

    @classmethod
    def from_proto(cls, message: _Pb.UpdateBases) -> "UpdateBases":
        """Return the operation that a message describes."""
        return cls(tuple(base_path_from_proto(base) for base in message.new_bases))


@dataclass(frozen=True, slots=True)
class DataOverlay:
    """Overlays some fragments with new values of single cells.

    Attributes:
        groups: Fragment ids, each with serialized DataOverlayFile messages, which are not read.
    """

    groups: tuple[tuple[int, tuple[bytes, ...]], ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.DataOverlay:
        """Return the operation's message."""
        parse = table_pb2.DataOverlayFile.FromString
        return _Pb.DataOverlay(
            groups=[
                _Pb.DataOverlayGroup(
                    fragment_id=fragment_id, overlays=[parse(overlay) for overlay in overlays]
                )
                for fragment_id, overlays in self.groups
            ]
        )

    @classmethod
    def from_proto(cls, message: _Pb.DataOverlay) -> "DataOverlay":
        """Return the operation that a message describes."""
        return cls(
            tuple(
                (group.fragment_id, tuple(wire.serialize(overlay) for overlay in group.overlays))
                for group in message.groups
            )
        )


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """An operation of a later version of the format.

    Attributes:
        field_number: Its number in the oneof.
        raw: The field's bytes, tag and all.
    """

    field_number: int
    raw: bytes = b""
    unknown: ClassVar[bytes] = b""


KnownOperation: TypeAlias = (
    Append
    | Delete
    | Overwrite
    | CreateIndex
    | Rewrite
    | Merge
    | Restore
    | ReserveFragments
    | Update
    | Project
    | UpdateConfig
    | DataReplacement
    | UpdateMemWalState
    | Clone
    | UpdateBases
    | DataOverlay
)
Operation: TypeAlias = KnownOperation | UnknownOperation

OPERATIONS: Mapping[str, type[KnownOperation]] = MappingProxyType(
    {
        "append": Append,
        "delete": Delete,
        "overwrite": Overwrite,
        "create_index": CreateIndex,
        "rewrite": Rewrite,
        "merge": Merge,
        "restore": Restore,
        "reserve_fragments": ReserveFragments,
        "update": Update,
        "project": Project,
        "update_config": UpdateConfig,
        "data_replacement": DataReplacement,
        "update_mem_wal_state": UpdateMemWalState,
        "clone": Clone,
        "update_bases": UpdateBases,
        "data_overlay": DataOverlay,
    }
)
"""Every operation of the format, by its field name in the transaction message."""

FIELD_NAMES: Mapping[type[KnownOperation], str] = MappingProxyType(
    {operation: name for name, operation in OPERATIONS.items()}
)


def operation_name(operation: Operation) -> str:
    """Return an operation's name for people, for example "Append" or "unknown (field 199)"."""
    if isinstance(operation, UnknownOperation):
        return f"unknown (field {operation.field_number})"
    return type(operation).__name__


def new_fragments(operation: Operation) -> tuple[Fragment, ...]:
    """Return the fragments of an operation whose ids are assigned on commit."""
    if isinstance(operation, Append | Overwrite):
        return operation.fragments
    if isinstance(operation, Update):
        return operation.new_fragments
    return ()


def operation_from_proto(name: str, message: Any) -> KnownOperation:
    """Return the operation that a message describes.

    Args:
        name: The message's field name in the oneof.
        message: The message.

    Raises:
        BadDataError: A part of it is invalid or unknown.
    """
    make: Callable[[Any], KnownOperation] = OPERATIONS[name].from_proto
    operation = make(message)
    unknown = wire.unknown_fields(message)
    if unknown:
        # The classes are frozen plain data: the one field that all have is set here once.
        object.__setattr__(operation, "unknown", unknown)
    return operation


def _fragments_out(fragments: Iterable[Fragment]) -> list[table_pb2.DataFragment]:
    return [fragment_to_proto(fragment) for fragment in fragments]


def _fragments_in(messages: Iterable[table_pb2.DataFragment]) -> tuple[Fragment, ...]:
    return tuple(fragment_from_proto(message) for message in messages)


def _keys_out(keys: KeyExistenceFilter) -> _Pb.KeyExistenceFilter:
    message = _Pb.KeyExistenceFilter(field_ids=keys.field_ids)
    if keys.key_hashes is not None:
        message.exact.key_hashes.extend(keys.key_hashes)
        message.exact.SetInParent()
    elif keys.bloom is not None:
        message.bloom.CopyFrom(
            _Pb.BloomFilter(
                bitmap=keys.bloom.bitmap,
                num_bits=keys.bloom.num_bits,
                number_of_items=keys.bloom.number_of_items,
                probability=keys.bloom.probability,
            )
        )
    return message


def _keys_in(message: _Pb.KeyExistenceFilter) -> KeyExistenceFilter:
    if message.HasField("exact"):
        return KeyExistenceFilter(
            tuple(message.field_ids), key_hashes=tuple(message.exact.key_hashes)
        )
    if message.HasField("bloom"):
        bloom = message.bloom
        return KeyExistenceFilter(
            tuple(message.field_ids),
            bloom=BloomFilter(
                bloom.bitmap, bloom.num_bits, bloom.number_of_items, bloom.probability
            ),
        )
    raise CorruptDataError("the key filter of an Update holds neither hashes nor a bloom filter")


def _map_out(update: MapUpdate | None) -> _Pb.UpdateMap | None:
    return None if update is None else _update_out(update)


def _update_out(update: MapUpdate) -> _Pb.UpdateMap:
    return _Pb.UpdateMap(
        update_entries=[_Pb.UpdateMapEntry(key=key, value=value) for key, value in update.entries],
        replace=update.replace,
    )


def _update_in(message: _Pb.UpdateMap) -> MapUpdate:
    return MapUpdate(
        tuple(
            (entry.key, entry.value if entry.HasField("value") else None)
            for entry in message.update_entries
        ),
        message.replace,
    )
