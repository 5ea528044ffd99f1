"""The conditions of the conflict rules, on two operations: ours, to be committed, and theirs.

Each condition takes both, in this order; see `rules`.
"""

from collections.abc import Iterable

from lance_stream.table.apply.index_coverage import coverage, is_system_index
from lance_stream.table.apply.new_fragments import has_only_moved_rows
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.operations.columns import DataOverlay, DataReplacement, Merge, Project
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.key_filters import KeyExistenceFilter
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update, UpdateMode
from lance_stream.table.operations.versions import CreateIndex, Restore, UpdateBases
from lance_stream.table.write_ahead_logs import WRITE_AHEAD_LOG


def touched_fragments(operation: Operation) -> frozenset[int]:
    """Return the ids of the existing fragments that an operation changes or removes."""
    if isinstance(operation, Delete):
        return frozenset(
            [fragment.id for fragment in operation.updated_fragments]
            + [*operation.deleted_fragment_ids]
        )
    if isinstance(operation, Update):
        return frozenset(
            [fragment.id for fragment in operation.updated_fragments]
            + [*operation.removed_fragment_ids]
        )
    if isinstance(operation, Rewrite):
        return frozenset(
            [fragment.id for group in operation.groups for fragment in group.old_fragments]
            + [fragment.id for fragment in operation.old_fragments]
        )
    if isinstance(operation, DataReplacement):
        return frozenset(fragment_id for fragment_id, _ in operation.replacements)
    if isinstance(operation, DataOverlay):
        return frozenset(fragment_id for fragment_id, _ in operation.groups)
    return frozenset()


def _removed_fragments(operation: Delete | Update) -> frozenset[int]:
    if isinstance(operation, Delete):
        return frozenset(operation.deleted_fragment_ids)
    return frozenset(operation.removed_fragment_ids)


def same_fragments(ours: Operation, theirs: Operation) -> bool:
    """Whether both change or remove the same fragment."""
    return not touched_fragments(ours).isdisjoint(touched_fragments(theirs))


def removes_ours(ours: Operation, theirs: Delete | Update) -> bool:
    """Whether theirs removes a fragment that ours changes."""
    return not touched_fragments(ours).isdisjoint(_removed_fragments(theirs))


def moves_rows_of_ours(ours: Operation, theirs: Update) -> bool:
    """Whether theirs moves rows out of a fragment that ours changes."""
    return _moves_rows(theirs) and same_fragments(ours, theirs)


def _moves_rows(update: Update) -> bool:
    return bool(update.new_fragments) and update.update_mode is UpdateMode.REWRITE_ROWS


def changes_more_than_deletions(ours: Delete | Update, theirs: Delete | Update) -> bool:
    """Whether a fragment that both change differs in more than its deleted rows."""
    if not same_fragments(ours, theirs):
        return False
    files = {fragment.id: fragment.files for fragment in ours.updated_fragments}
    return (
        not touched_fragments(theirs).isdisjoint(_removed_fragments(ours))
        or not touched_fragments(ours).isdisjoint(_removed_fragments(theirs))
        or any(
            files.get(fragment.id, fragment.files) != fragment.files
            for fragment in theirs.updated_fragments
        )
    )


def may_insert_same_keys(ours: Update, theirs: Update) -> bool:
    """Whether ours requires unique keys, and theirs may have inserted one of them."""
    keys, others = ours.inserted_rows, theirs.inserted_rows
    if keys is None or keys.key_hashes == ():
        return False
    if (
        others is not None
        and keys.field_ids == others.field_ids
        and keys.key_hashes is not None
        and others.key_hashes is not None
    ):
        return not set(keys.key_hashes).isdisjoint(others.key_hashes)
    return (
        _inserts_rows(theirs)
        or _may_change_fields(theirs, keys.field_ids)
        or _may_list_deleted_keys(others)
    )


def _may_change_fields(update: Update, field_ids: Iterable[int]) -> bool:
    """Whether an update may have changed the values of existing rows in some columns."""
    targets = set(field_ids)
    if update.update_mode is UpdateMode.REWRITE_COLUMNS and update.updated_fragments:
        changed = update.fields_modified
        if not (changed and targets.isdisjoint(changed)):
            return True
    changed = update.fields_for_preserving_frag_bitmap
    return bool(update.new_fragments) and not (changed and targets.isdisjoint(changed))


def inserts_unique_keys(ours: Update, _theirs: Append) -> bool:
    """Whether ours requires unique keys; an append may insert one of them."""
    return ours.inserted_rows is not None and ours.inserted_rows.key_hashes != ()


def _may_list_deleted_keys(keys: KeyExistenceFilter | None) -> bool:
    """Whether some listed keys may be those of tombstones instead of new rows."""
    if keys is None:
        return False
    return bool(keys.key_hashes) or (keys.bloom is not None and keys.bloom.contains_everything)


def _inserts_rows(update: Update) -> bool:
    """Whether some row of the new fragments may be new in the table."""
    return not all(map(has_only_moved_rows, update.new_fragments))


def drops_modified_field(ours: Update, theirs: Project) -> bool:
    """Whether theirs drops a column that ours changes."""
    return not set(ours.fields_modified) <= _field_ids(theirs)


def drops_replaced_field(ours: DataReplacement, theirs: Project) -> bool:
    """Whether theirs drops a column whose data file ours replaces."""
    return not _replaced_fields(ours) <= _field_ids(theirs)


def drops_indexed_field(ours: CreateIndex, theirs: Project) -> bool:
    """Whether theirs drops a column that ours indexes."""
    return not _indexed_fields(ours) <= _field_ids(theirs)


def rewrites_uncertain_index(ours: CreateIndex, theirs: Update) -> bool:
    """Whether theirs changes columns in place, and the coverage of an index of ours is unknown."""
    changed = set(theirs.fields_modified)
    return theirs.update_mode is UpdateMode.REWRITE_COLUMNS and any(
        not index.fragment_bitmap and not (changed and changed.isdisjoint(index.field_ids))
        for index in ours.new_indices
    )


def rewrites_indexed_fragments(ours: CreateIndex, theirs: Update) -> bool:
    """Whether theirs changes columns in place in fragments that an index of ours covers.

    Moved rows do not matter: they are deleted in the fragments that ours covers.
    """
    if theirs.update_mode is not UpdateMode.REWRITE_COLUMNS:
        return False
    touched = {fragment.id for fragment in theirs.updated_fragments}
    return any(
        index.fragment_bitmap and not touched.isdisjoint(coverage(index))
        for index in ours.new_indices
    )


def replaces_indexed_field(ours: CreateIndex, theirs: DataReplacement) -> bool:
    """Whether theirs replaces the data file of a column that ours indexes."""
    return not _indexed_fields(ours).isdisjoint(_replaced_fields(theirs))


def indexes_replaced_field(ours: DataReplacement, theirs: CreateIndex) -> bool:
    """Whether theirs indexes a column whose data file ours replaces."""
    return replaces_indexed_field(theirs, ours)


def rewrites_replaced_field(ours: DataReplacement, theirs: Update) -> bool:
    """Whether theirs changes a column whose data file ours replaces."""
    touches = same_fragments(ours, theirs)
    return touches and not _replaced_fields(ours).isdisjoint(theirs.fields_modified)


def replaces_same_field(ours: DataReplacement, theirs: DataReplacement) -> bool:
    """Whether both replace the data file of a column in a fragment."""
    pairs = {(fragment, field) for fragment, file in ours.replacements for field in file.field_ids}
    return any(
        (fragment, field) in pairs
        for fragment, file in theirs.replacements
        for field in file.field_ids
    )


def changes_same_index(ours: CreateIndex, theirs: CreateIndex) -> bool:
    """Whether one creates what the other creates or drops. Both may drop the same index."""
    added = _names(ours.new_indices), _names(theirs.new_indices)
    dropped = _names(ours.removed_indices), _names(theirs.removed_indices)
    replaced = {index.uuid for index in ours.removed_indices} & {
        index.uuid for index in theirs.removed_indices
    }
    names = {index.name for index in ours.removed_indices if index.uuid in replaced}
    return not (
        added[0].isdisjoint(added[1])
        and (added[0] - dropped[0]).isdisjoint(dropped[1])
        and (added[1] - dropped[1]).isdisjoint(dropped[0])
        and names.isdisjoint(added[0] | added[1])
    )


def _names(indices: Iterable[IndexMetadata]) -> set[str]:
    return {index.name for index in indices}


def indexes_moved_rows(ours: CreateIndex, theirs: Rewrite) -> bool:
    """Whether an index of ours covers rows that theirs has moved."""
    moved = touched_fragments(theirs)
    return any(
        is_system_index(index) or not index.fragment_bitmap or not moved.isdisjoint(coverage(index))
        for index in ours.new_indices
    )


def lacks_new_index(ours: Rewrite, theirs: CreateIndex) -> bool:
    """Whether ours rewrites indices along with its rows, but not one that theirs created.

    If ours rewrites no index, applying it adapts the coverage of the new index.
    """
    return any(
        is_system_index(index) or not index.fragment_bitmap for index in theirs.new_indices
    ) or bool(ours.rewritten_indices and indexes_moved_rows(theirs, ours))


def has_log_index(ours: Operation, theirs: Operation) -> bool:
    """Whether one operation creates the index of a write-ahead log."""
    return any(
        index.name == WRITE_AHEAD_LOG
        for operation in (ours, theirs)
        if isinstance(operation, CreateIndex)
        for index in operation.new_indices
    )


def same_config_keys(ours: Overwrite | UpdateConfig, theirs: Overwrite | UpdateConfig) -> bool:
    """Whether both set or remove a config key, or one replaces the whole config."""
    our_sets, our_removes = _config_keys(ours)
    their_sets, their_removes = _config_keys(theirs)
    return (
        not our_sets.isdisjoint(their_sets | their_removes)
        or not their_sets.isdisjoint(our_removes)
        or _replaces_config(ours)
        or _replaces_config(theirs)
    )


def _same_metadata(ours: UpdateConfig, theirs: UpdateConfig) -> bool:
    our_fields = {*ours.field_metadata, *ours.old_field_metadata}
    their_fields = {*theirs.field_metadata, *theirs.old_field_metadata}
    return (
        _same_keys(ours.table_metadata, theirs.table_metadata)
        or (_sets_schema_metadata(ours) and _sets_schema_metadata(theirs))
        or not our_fields.isdisjoint(their_fields)
    )


def same_config_or_metadata(ours: UpdateConfig, theirs: UpdateConfig) -> bool:
    """Whether both change the same config key or metadata."""
    return same_config_keys(ours, theirs) or _same_metadata(ours, theirs)


def config_is_overwritten(ours: UpdateConfig, theirs: Overwrite) -> bool:
    """Whether an overwrite sets the same config keys, or replaces the schema that ours changes."""
    return _sets_schema_or_field_metadata(ours) or same_config_keys(ours, theirs)


def same_bases(ours: UpdateBases, theirs: UpdateBases) -> bool:
    """Whether both declare a base path with the same id, name or path."""
    return any(
        (base.id and base.id == other.id)
        or (base.name is not None and base.name == other.name)
        or base.path == other.path
        for base in ours.new_bases
        for other in theirs.new_bases
    )


def compacts_the_log(ours: Operation, theirs: Operation) -> bool:
    """Whether one operation merges rows out of a write-ahead log."""
    return any(
        isinstance(operation, Update) and bool(operation.compacted_sstables)
        for operation in (ours, theirs)
    )


def falsifies_nullability(schema_change: Operation, values: Operation) -> bool:
    """Whether one operation may make a column non-nullable, and the other may add nulls to it."""
    return (
        isinstance(schema_change, Project | Merge)
        and not schema_change.preserves_nullability
        and isinstance(values, Append | Update | DataReplacement | DataOverlay)
    )


def merges_over_metadata(merge: Operation, config: Operation) -> bool:
    """Whether one operation replaces the whole schema, and the other changes metadata in it."""
    return isinstance(merge, Merge) and _sets_schema_or_field_metadata(config)


def restores_over_metadata(restore: Operation, config: Operation) -> bool:
    """Whether one operation restores a schema, and the other changes metadata in it."""
    return isinstance(restore, Restore) and _sets_schema_or_field_metadata(config)


def _sets_schema_metadata(operation: UpdateConfig) -> bool:
    return _changes_something(operation.schema_metadata) or bool(operation.old_schema_metadata)


def _sets_schema_or_field_metadata(operation: Operation) -> bool:
    return isinstance(operation, UpdateConfig) and (
        _sets_schema_metadata(operation)
        or any(map(_changes_something, operation.field_metadata.values()))
        or bool(operation.old_field_metadata)
    )


def _changes_something(update: MapUpdate | None) -> bool:
    return update is not None and (update.replace or bool(update.entries))


def _same_keys(ours: MapUpdate | None, theirs: MapUpdate | None) -> bool:
    if ours is None or theirs is None:
        return False
    keys = {key for key, _ in ours.entries}
    return ours.replace or theirs.replace or any(key in keys for key, _ in theirs.entries)


def _config_keys(operation: Overwrite | UpdateConfig) -> tuple[set[str], set[str]]:
    """Return the config keys that an operation sets, and those that it removes."""
    if isinstance(operation, Overwrite):
        return set(operation.config_upserts), set()
    entries = operation.config.entries if operation.config else ()
    return (
        {key for key, value in entries if value is not None} | set(operation.old_upserts),
        {key for key, value in entries if value is None} | set(operation.old_delete_keys),
    )


def _replaces_config(operation: Overwrite | UpdateConfig) -> bool:
    return (
        isinstance(operation, UpdateConfig)
        and operation.config is not None
        and operation.config.replace
    )


def _field_ids(operation: Project) -> set[int]:
    return {field.id for top in operation.fields for field in top.walk()}


def _replaced_fields(operation: DataReplacement) -> set[int]:
    return {
        field_id
        for _, file in operation.replacements
        for field_id in file.field_ids
        if field_id >= 0
    }


def _indexed_fields(operation: CreateIndex) -> set[int]:
    return {field_id for index in operation.new_indices for field_id in index.field_ids}
