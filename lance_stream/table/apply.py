"""A version and a transaction make the next version.

What depends on the newest version is settled here, and anew on each attempt to commit: the ids of
new fragments, the row ids of new rows, the version stamps of rows, config entries.

    Append        new fragments behind the old ones, which are carried as bytes
    Delete        new deletion files; a fragment without a live row is dropped
    Overwrite     new fragments and another schema; fragment ids and row ids go on counting;
                  or the first version of a table
    UpdateConfig  config and metadata

Source:  facts of the format, sections 1.2 and 4; measured on the reference.
Differs: Indices are carried as they are where they stay valid; the reference also drops empty
         segments of them. Replacing the whole config keeps the ledger's entries: without them a
         stream would write its last batches twice. An entry that is named is still taken away.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.schema.fields import Field, Schema
from lance_stream.table import ledger
from lance_stream.table.feature_flags import (
    MIXED_FILE_VERSIONS,
    STABLE_ROW_IDS,
    check_writable,
    flags_for,
    has_stable_row_ids,
)
from lance_stream.table.fragments import MAX_FRAGMENT_ID, DataFile, Fragment
from lance_stream.table.manifest import DataFormat, FragmentList, Manifest, WriterVersion
from lance_stream.table.operations import (
    Append,
    Delete,
    KnownOperation,
    MapUpdate,
    Operation,
    Overwrite,
    UnknownOperation,
    UpdateConfig,
    operation_name,
)
from lance_stream.table.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.row_versions import RowVersionSequence, encode_row_versions

_MAX_ROW_ID = (1 << 64) - 1
_PRIMARY_KEY = (
    "lance-schema:unenforced-primary-key",
    "lance-schema:unenforced-primary-key:position",
)


@dataclass(frozen=True, slots=True)
class Creation:
    """What a new table is, and cannot become later.

    Attributes:
        data_format: The format of its data files.
        stable_row_ids: Whether its rows have stable row ids.
        table_metadata: Its metadata.
    """

    data_format: DataFormat
    stable_row_ids: bool = True
    table_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """What the next version says of its making.

    Attributes:
        timestamp_nanos: When it is made, nanoseconds since 1970-01-01 UTC. A version is later
            than the one before it, whatever the clock says.
        transaction_file: Name of the transaction's file; empty for none.
        inline_transaction: The transaction's bytes; None where they are too many.
        writer_version: Who makes it.
        config_entries: Config entries that it sets besides what the operation says.
    """

    timestamp_nanos: int
    transaction_file: str = ""
    inline_transaction: bytes | None = None
    writer_version: WriterVersion | None = None
    config_entries: Mapping[str, str] = field(default_factory=dict)


def apply(
    manifest: Manifest | None,
    operation: Operation,
    commit: Commit,
    creation: Creation | None = None,
) -> Manifest:
    """Return the version that follows on a version by an operation.

    Args:
        manifest: The newest version; None when there is no table yet.
        operation: What is done; it was found, or made, to mean on this version what was planned.
        commit: What the next version says of its making.
        creation: What a new table is; needed when there is none yet. On an existing table an
            Overwrite takes from it the data format of its files, and nothing else.

    Raises:
        UnsupportedFeatureError: The operation cannot be made yet, or the table uses a feature
            that we may not write.
        InvalidInputError: The operation does not fit on the version.
        NotFoundError: There is no table, and the operation does not make one.
    """
    if isinstance(operation, UnknownOperation) or type(operation) not in APPLY:
        raise UnsupportedFeatureError(
            f"a transaction that does {operation_name(operation)} cannot be committed by this "
            f"version of lance-stream; it can commit {', '.join(each.__name__ for each in APPLY)}"
        )
    if manifest is None:
        start = _first_version(operation, creation)
    else:
        check_writable(manifest)
        start = manifest.heir()
    made = APPLY[type(operation)](start, operation, creation)
    made = replace(
        made,
        timestamp_nanos=_later(commit.timestamp_nanos, manifest),
        transaction_file=commit.transaction_file,
        inline_transaction=commit.inline_transaction,
        writer_version=commit.writer_version,
        config={**made.config, **commit.config_entries},
    )
    reader_flags, writer_flags = flags_for(made)
    return replace(made, reader_feature_flags=reader_flags, writer_feature_flags=writer_flags)


def _first_version(operation: Operation, creation: Creation | None) -> Manifest:
    if not isinstance(operation, Overwrite):
        raise NotFoundError(f"there is no table to {operation_name(operation)} on")
    if creation is None:
        raise InvalidInputError("a new table needs a data format")
    flags = STABLE_ROW_IDS if creation.stable_row_ids else 0
    return Manifest(
        version=1,
        schema=Schema(),
        fragments=FragmentList(),
        data_format=creation.data_format,
        reader_feature_flags=flags,
        writer_feature_flags=flags,
        table_metadata=dict(creation.table_metadata),
    )


def _later(timestamp_nanos: int, before: Manifest | None) -> int:
    if before is None or before.timestamp_nanos is None:
        return timestamp_nanos
    return max(timestamp_nanos, before.timestamp_nanos + 1)


def _append(start: Manifest, operation: Append, _creation: Creation | None) -> Manifest:
    return _with_new_fragments(start, start.fragments, operation.fragments)


def _overwrite(start: Manifest, operation: Overwrite, creation: Creation | None) -> Manifest:
    if operation.initial_bases and start.version > 1:
        raise InvalidInputError(
            "base paths can be declared by an Overwrite only as it makes a table"
        )
    emptied = replace(
        start,
        schema=operation.schema,
        index_section=None,
        # Kept for its fragment ids: the largest one ever used goes on.
        max_fragment_id=_max_fragment_id(start),
        fragments=FragmentList(),
        data_format=creation.data_format if creation else start.data_format,
        config={**start.config, **operation.config_upserts},
        base_paths=start.base_paths + operation.initial_bases,
    )
    return _with_new_fragments(emptied, emptied.fragments, operation.fragments)


def _delete(start: Manifest, operation: Delete, _creation: Creation | None) -> Manifest:
    changes: dict[int, Fragment | None] = {}
    places = start.fragments.place_of

    def place(fragment_id: int) -> int:
        if fragment_id not in places:
            raise InvalidInputError(
                f"rows of fragment {fragment_id} are to be deleted, but version "
                f"{start.version - 1} has no such fragment"
            )
        return places[fragment_id]

    for updated in operation.updated_fragments:
        at = place(updated.id)
        # Only the deletion file is new: the rest was planned on an older version.
        fragment = replace(start.fragments[at], deletion_file=updated.deletion_file)
        changes[at] = fragment if fragment.num_live_rows else None
    changes.update((place(fragment_id), None) for fragment_id in operation.deleted_fragment_ids)
    return replace(
        start,
        max_fragment_id=_max_fragment_id(start),
        fragments=start.fragments.replaced(changes),
    )


def _update_config(
    start: Manifest, operation: UpdateConfig, _creation: Creation | None
) -> Manifest:
    config = dict(start.config)
    config.update(operation.old_upserts)
    for key in operation.old_delete_keys:
        config.pop(key, None)
    if operation.config is not None:
        kept = {key: value for key, value in config.items() if key.startswith(ledger.PREFIX)}
        if operation.config.replace:
            config = kept
        config = _updated(config, replace(operation.config, replace=False), str)
    return replace(
        start,
        config=config,
        table_metadata=_updated(start.table_metadata, operation.table_metadata, str),
        schema=_with_metadata(start.schema, operation),
    )


def _with_metadata(schema: Schema, operation: UpdateConfig) -> Schema:
    metadata: Mapping[str, bytes] = schema.metadata
    if operation.old_schema_metadata:
        metadata = {key: value.encode() for key, value in operation.old_schema_metadata.items()}
    metadata = _updated(metadata, operation.schema_metadata, str.encode)
    updates = {
        **{
            field_id: MapUpdate(tuple(entries.items()), replace=True)
            for field_id, entries in operation.old_field_metadata.items()
        },
        **operation.field_metadata,
    }
    for field_id in updates:
        if schema.field_by_id(field_id) is None:
            raise InvalidInputError(f"the table has no field with the id {field_id}")
    if any(each.primary_key_position is not None for each in schema.walk()):
        named = {key for update in updates.values() for key, _ in update.entries}
        if not named.isdisjoint(_PRIMARY_KEY) or any(each.replace for each in updates.values()):
            raise InvalidInputError("the primary key of a table cannot be changed once it is set")
    return Schema(tuple(_field_with_metadata(each, updates) for each in schema.fields), metadata)


def _field_with_metadata(field: Field, updates: Mapping[int, MapUpdate]) -> Field:
    children = tuple(_field_with_metadata(each, updates) for each in field.children)
    update = updates.get(field.id)
    if update is None:
        return field if children == field.children else replace(field, children=children)
    metadata = _updated(field.metadata, update, str.encode)
    named = {key for key, _ in update.entries}
    if named.isdisjoint(_PRIMARY_KEY):
        return replace(field, children=children, metadata=metadata)
    return replace(
        field,
        children=children,
        metadata=metadata,
        primary_key_position=_primary_key_position(metadata),
    )


def _primary_key_position(metadata: Mapping[str, bytes]) -> int | None:
    flag, position = (metadata.get(key, b"").decode(errors="replace") for key in _PRIMARY_KEY)
    if position.isdecimal():
        return int(position)
    if flag.lower() in ("true", "1", "yes", "on"):
        return 0
    raise InvalidInputError(
        f"{flag or position!r} does not make a field part of the primary key: "
        f"{_PRIMARY_KEY[0]} is 'true', or {_PRIMARY_KEY[1]} a number"
    )


def _updated(
    values: Mapping[str, Any], update: MapUpdate | None, convert: Callable[[str], Any]
) -> dict[str, Any]:
    updated = {} if update is not None and update.replace else dict(values)
    for key, value in update.entries if update is not None else ():
        if value is None:
            updated.pop(key, None)
        else:
            updated[key] = convert(value)
    return updated


def _with_new_fragments(
    start: Manifest, carried: FragmentList, fragments: Sequence[Fragment]
) -> Manifest:
    """Return the version with new fragments at its end, which get ids, row ids and stamps."""
    if not fragments:
        return replace(start, fragments=carried, max_fragment_id=_max_fragment_id(start))
    highest = _max_fragment_id(start)
    next_id = 0 if highest is None else highest + 1
    if next_id + len(fragments) - 1 > MAX_FRAGMENT_ID:
        raise InvalidInputError(f"the table has used up its fragment ids: the last was {highest}")
    _check_files(start, fragments)
    made = [replace(each, id=next_id + at) for at, each in enumerate(fragments)]
    next_row_id = start.next_row_id
    if has_stable_row_ids(start):
        made, next_row_id = _with_row_ids(made, start.next_row_id, start.version)
    return replace(
        start,
        fragments=carried.appended(made),
        max_fragment_id=made[-1].id,
        next_row_id=next_row_id,
    )


def _with_row_ids(
    fragments: Iterable[Fragment], next_row_id: int, version: int
) -> tuple[list[Fragment], int]:
    made: list[Fragment] = []
    for each in fragments:
        stop = next_row_id + each.physical_rows
        if stop > _MAX_ROW_ID:
            raise InvalidInputError(f"the table has used up its row ids: the next is {next_row_id}")
        stamps = encode_row_versions(RowVersionSequence.uniform(each.physical_rows, version))
        made.append(
            replace(
                each,
                row_ids=encode_row_ids(RowIdSequence.from_range(next_row_id, stop)),
                last_updated_at_versions=stamps,
                created_at_versions=stamps,
            )
        )
        next_row_id = stop
    return made, next_row_id


def _check_files(start: Manifest, fragments: Iterable[Fragment]) -> None:
    for fragment in fragments:
        if fragment.physical_rows < 1 or not fragment.files:
            raise InvalidInputError("a new fragment has no rows, or no data file")
        if fragment.row_ids is not None or fragment.deletion_file is not None:
            raise InvalidInputError(
                "a new fragment has row ids or dead rows before it is committed"
            )
        for file in fragment.files:
            _check_file_version(start, file)


def _check_file_version(start: Manifest, file: DataFile) -> None:
    major, minor = file.file_version
    wanted = start.data_format.version
    if major >= 2 and f"{major}.{minor}" != wanted:
        if start.writer_feature_flags & MIXED_FILE_VERSIONS:
            return
        raise InvalidInputError(
            f"the data file {file.path!r} is of file version {major}.{minor}, but the table's "
            f"files are of version {wanted}"
        )


def _max_fragment_id(manifest: Manifest) -> int | None:
    """Return the largest fragment id ever used; old writers did not state it."""
    if manifest.max_fragment_id is not None:
        if manifest.max_fragment_id > MAX_FRAGMENT_ID:
            raise CorruptDataError(f"the largest fragment id is {manifest.max_fragment_id}")
        return manifest.max_fragment_id
    return max(manifest.fragments.ids, default=None)


Applier: TypeAlias = Callable[[Manifest, Any, Creation | None], Manifest]

APPLY: Mapping[type[KnownOperation], Applier] = MappingProxyType(
    {Append: _append, Delete: _delete, Overwrite: _overwrite, UpdateConfig: _update_config}
)
"""How each operation that we make is applied. The others are refused."""
