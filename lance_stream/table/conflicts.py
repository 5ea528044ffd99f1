"""May our operation follow theirs? One table of rules for every pair of operations.

We planned an operation on some version; meanwhile others made newer ones. For each of those,
`RULES[ours][theirs]` says what becomes of ours:

    yes       it means on the newer version what it meant on the older one
    rebase    so it does, once their change is folded into ours: see `rebase`
    retry     it is still meant, but has to be planned again
    no        it no longer means the same

A rule is one of these words, or looks into the two operations first (`retry_if`, `rebase_if`,
`no_if`, ...). Three rules stand above the table, because they hold for whole classes of pairs: see
`ABOVE`. What cannot be known conflicts: an unknown operation, a missing transaction.

Source:  the table format's "Conflict Resolution"; facts of the format, section 5, measured on the
         reference.
Differs: The reference folds some changes into an index under way; we let such an index be planned
         again. It plans a rewrite of indexed fragments again after a new index on them; ours, which
         rewrites no index, follows it. It plans an upsert again after rows that were only changed,
         or if it inserts none itself. It lets a clone follow anything; a clone is the first
         version of a table, and follows nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

from lance_stream.errors import IncompatibleConflictError, RetryableConflictError
from lance_stream.table.apply.index_coverage import coverage, is_system_index
from lance_stream.table.apply.new_fragments import has_only_moved_rows
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.operations import (
    Append,
    Clone,
    CreateIndex,
    DataOverlay,
    DataReplacement,
    Delete,
    KeyExistenceFilter,
    KnownOperation,
    MapUpdate,
    Merge,
    Operation,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    UnknownOperation,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMemWalState,
    UpdateMode,
    operation_name,
)
from lance_stream.table.transaction import Transaction


class Verdict(Enum):
    """What becomes of our operation after theirs."""

    YES = "yes"
    REBASE = "rebase"
    RETRY = "retry"
    NO = "no"


Rule: TypeAlias = Callable[[Any, Any], Verdict]
Test: TypeAlias = Callable[[Any, Any], bool]


def check(ours: Transaction, theirs: Transaction | None, version: int) -> Verdict:
    """Return whether our transaction may follow theirs as it is, or once it is rebased.

    Args:
        ours: The transaction to commit.
        theirs: The one that made a version newer than the one ours was planned on; None when it
            is missing or cannot be read.
        version: The version it made.

    Returns:
        `YES` or `REBASE`.

    Raises:
        RetryableConflictError: Ours has to be planned again on the newer version.
        IncompatibleConflictError: Ours no longer means the same.
    """
    if theirs is None:
        raise RetryableConflictError(
            f"this {operation_name(ours.operation)} was planned on version {ours.read_version}, "
            f"but what made version {version} is not known: its transaction is missing or cannot "
            "be read. Plan the operation again on the newest version",
            version,
        )
    verdict = judge(ours.operation, theirs.operation)
    names = f"this {operation_name(ours.operation)}", operation_name(theirs.operation)
    if verdict is Verdict.RETRY:
        raise RetryableConflictError(
            f"{names[0]} was planned on version {ours.read_version}, and {names[1]} made version "
            f"{version} meanwhile and changed what it builds on. Plan it again on the newest "
            "version",
            version,
        )
    if verdict is Verdict.NO:
        raise IncompatibleConflictError(
            f"{names[0]} was planned on version {ours.read_version}, but no longer means the same "
            f"after {names[1]}, which made version {version} meanwhile",
            version,
        )
    return verdict


def judge(ours: Operation, theirs: Operation) -> Verdict:
    """Return what becomes of our operation after theirs."""
    if isinstance(ours, UnknownOperation) or isinstance(theirs, UnknownOperation):
        return Verdict.NO
    for test, verdict in ABOVE:
        if test(ours, theirs) or test(theirs, ours):
            return verdict
    return RULES[type(ours)][type(theirs)](ours, theirs)


def touched_fragments(operation: Operation) -> frozenset[int]:
    """Return the ids of the existing fragments that an operation changes or removes."""
    if isinstance(operation, Delete):
        return frozenset(
            [each.id for each in operation.updated_fragments] + [*operation.deleted_fragment_ids]
        )
    if isinstance(operation, Update):
        return frozenset(
            [each.id for each in operation.updated_fragments] + [*operation.removed_fragment_ids]
        )
    if isinstance(operation, Rewrite):
        return frozenset(
            [each.id for group in operation.groups for each in group.old_fragments]
            + [each.id for each in operation.old_fragments]
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


# What rules ask. Each takes our operation and theirs.


def _same_fragments(ours: Operation, theirs: Operation) -> bool:
    return not touched_fragments(ours).isdisjoint(touched_fragments(theirs))


def _removes_ours(ours: Operation, theirs: Delete | Update) -> bool:
    return not touched_fragments(ours).isdisjoint(_removed_fragments(theirs))


def _moves_rows_of_ours(ours: Operation, theirs: Update) -> bool:
    return _moves_rows(theirs) and _same_fragments(ours, theirs)


def _moves_rows(update: Update) -> bool:
    return bool(update.new_fragments) and update.update_mode is UpdateMode.REWRITE_ROWS


def _more_than_rows_died(ours: Delete | Update, theirs: Delete | Update) -> bool:
    """Whether a fragment of both was changed in another way than by further dead rows."""
    if not _same_fragments(ours, theirs):
        return False
    files = {each.id: each.files for each in ours.updated_fragments}
    return (
        not touched_fragments(theirs).isdisjoint(_removed_fragments(ours))
        or not touched_fragments(ours).isdisjoint(_removed_fragments(theirs))
        or any(files.get(each.id, each.files) != each.files for each in theirs.updated_fragments)
    )


def _may_insert_same_keys(ours: Update, theirs: Update) -> bool:
    """Whether ours keeps its keys unique, and theirs may have brought one of them."""
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
        or _names_keys_alone(others)
    )


def _may_change_fields(update: Update, field_ids: Iterable[int]) -> bool:
    """Whether rows that were only changed may have other values in some columns."""
    changed = update.fields_for_preserving_frag_bitmap
    return bool(update.new_fragments) and not (changed and set(changed).isdisjoint(field_ids))


def _inserts_unique_keys(ours: Update, _theirs: Append) -> bool:
    return ours.inserted_rows is not None and ours.inserted_rows.key_hashes != ()


def _names_keys_alone(keys: KeyExistenceFilter | None) -> bool:
    """Whether keys are named that need not be those of new rows: of deletes that are remembered."""
    if keys is None:
        return False
    return bool(keys.key_hashes) or (keys.bloom is not None and keys.bloom.holds_anything)


def _inserts_rows(update: Update) -> bool:
    """Whether some row of the new fragments was not in the table before, as far as can be told."""
    return not all(map(has_only_moved_rows, update.new_fragments))


def _drops_modified_field(ours: Update, theirs: Project) -> bool:
    return not set(ours.fields_modified) <= _field_ids(theirs)


def _drops_replaced_field(ours: DataReplacement, theirs: Project) -> bool:
    return not _replaced_fields(ours) <= _field_ids(theirs)


def _drops_indexed_field(ours: CreateIndex, theirs: Project) -> bool:
    return not _indexed_fields(ours) <= _field_ids(theirs)


def _rewrites_indexed_field(ours: CreateIndex, theirs: Update) -> bool:
    return not _indexed_fields(ours).isdisjoint(theirs.fields_modified)


def _replaces_indexed_field(ours: CreateIndex, theirs: DataReplacement) -> bool:
    return not _indexed_fields(ours).isdisjoint(_replaced_fields(theirs))


def _indexes_replaced_field(ours: DataReplacement, theirs: CreateIndex) -> bool:
    return _replaces_indexed_field(theirs, ours)


def _rewrites_replaced_field(ours: DataReplacement, theirs: Update) -> bool:
    touches = _same_fragments(ours, theirs)
    return touches and not _replaced_fields(ours).isdisjoint(theirs.fields_modified)


def _replaces_same_field(ours: DataReplacement, theirs: DataReplacement) -> bool:
    pairs = {(fragment, field) for fragment, file in ours.replacements for field in file.field_ids}
    return any(
        (fragment, field) in pairs
        for fragment, file in theirs.replacements
        for field in file.field_ids
    )


def _changes_same_index(ours: CreateIndex, theirs: CreateIndex) -> bool:
    """Whether one makes what the other makes or drops; to drop the same twice does no harm."""
    added = _names(ours.new_indices), _names(theirs.new_indices)
    dropped = _names(ours.removed_indices), _names(theirs.removed_indices)
    replaced = {each.uuid for each in ours.removed_indices} & {
        each.uuid for each in theirs.removed_indices
    }
    names = {each.name for each in ours.removed_indices if each.uuid in replaced}
    return not (
        added[0].isdisjoint(added[1])
        and (added[0] - dropped[0]).isdisjoint(dropped[1])
        and (added[1] - dropped[1]).isdisjoint(dropped[0])
        and names.isdisjoint(added[0] | added[1])
    )


def _names(indices: Iterable[IndexMetadata]) -> set[str]:
    return {each.name for each in indices}


def _indexes_moved_rows(ours: CreateIndex, theirs: Rewrite) -> bool:
    """Whether an index of ours answers for rows that theirs has moved."""
    moved = touched_fragments(theirs)
    return any(
        is_system_index(each) or not each.fragment_bitmap or not moved.isdisjoint(coverage(each))
        for each in ours.new_indices
    )


def _rewrites_indices_beside(ours: Rewrite, theirs: CreateIndex) -> bool:
    """Whether ours moves indices with its rows, and does not know one that theirs made.

    Without that the new index is dealt with as ours is applied: it follows the rows, or no longer
    covers them.
    """
    return any(
        is_system_index(each) or not each.fragment_bitmap for each in theirs.new_indices
    ) or bool(ours.rewritten_indices and _indexes_moved_rows(theirs, ours))


def _has_log_index(ours: Operation, theirs: Operation) -> bool:
    return any(
        each.name == _LOG_INDEX
        for operation in (ours, theirs)
        if isinstance(operation, CreateIndex)
        for each in operation.new_indices
    )


def _same_config_keys(ours: Overwrite | UpdateConfig, theirs: Overwrite | UpdateConfig) -> bool:
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


def _same_config_or_metadata(ours: UpdateConfig, theirs: UpdateConfig) -> bool:
    return _same_config_keys(ours, theirs) or _same_metadata(ours, theirs)


def _config_is_overwritten(ours: UpdateConfig, theirs: Overwrite) -> bool:
    return _sets_schema_or_field_metadata(ours) or _same_config_keys(ours, theirs)


def _same_bases(ours: UpdateBases, theirs: UpdateBases) -> bool:
    return any(
        (mine.id and mine.id == other.id)
        or (mine.name is not None and mine.name == other.name)
        or mine.path == other.path
        for mine in ours.new_bases
        for other in theirs.new_bases
    )


def _compacts_the_log(ours: Operation, theirs: Operation) -> bool:
    return any(
        isinstance(operation, Update) and bool(operation.compacted_sstables)
        for operation in (ours, theirs)
    )


def _falsifies_nullability(schema_change: Operation, values: Operation) -> bool:
    """Whether the one may make a column less nullable, and the other may bring nulls into it."""
    return (
        isinstance(schema_change, Project | Merge)
        and not schema_change.preserves_nullability
        and isinstance(values, Append | Update | DataReplacement | DataOverlay)
    )


def _merges_over_metadata(merge: Operation, config: Operation) -> bool:
    """Whether the one states a whole schema, and the other changes metadata within it."""
    return isinstance(merge, Merge) and _sets_schema_or_field_metadata(config)


def _restores_over_metadata(restore: Operation, config: Operation) -> bool:
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
    """Return the config keys that an operation sets, and the ones that it takes away."""
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
    return {each.id for top in operation.fields for each in top.walk()}


def _replaced_fields(operation: DataReplacement) -> set[int]:
    return {each for _, file in operation.replacements for each in file.field_ids if each >= 0}


def _indexed_fields(operation: CreateIndex) -> set[int]:
    return {each for index in operation.new_indices for each in index.field_ids}


# The words of the table.


def yes(_ours: Any, _theirs: Any) -> Verdict:
    """It means the same."""
    return Verdict.YES


def retry(_ours: Any, _theirs: Any) -> Verdict:
    """It has to be planned again."""
    return Verdict.RETRY


def no(_ours: Any, _theirs: Any) -> Verdict:
    """It no longer means the same."""
    return Verdict.NO


def first(*cases: tuple[Test, Verdict]) -> Rule:
    """Return the rule that gives the verdict of the first test that is true, and else yes."""

    def rule(ours: Any, theirs: Any) -> Verdict:
        return next((verdict for test, verdict in cases if test(ours, theirs)), Verdict.YES)

    return rule


def retry_if(*tests: Test) -> Rule:
    """Return the rule that says retry if one of the tests is true, and else yes."""
    return first(*((test, Verdict.RETRY) for test in tests))


def no_if(*tests: Test) -> Rule:
    """Return the rule that says no if one of the tests is true, and else yes."""
    return first(*((test, Verdict.NO) for test in tests))


_LOG_INDEX = "__lance_mem_wal"

ABOVE: tuple[tuple[Test, Verdict], ...] = (
    (_falsifies_nullability, Verdict.RETRY),
    (_merges_over_metadata, Verdict.RETRY),
    (_restores_over_metadata, Verdict.NO),
)
"""Rules that come before the table. Each is asked both ways round."""

_dead_rows = first(
    (_more_than_rows_died, Verdict.RETRY),
    (_same_fragments, Verdict.REBASE),
)

RULES: Mapping[type[KnownOperation], Mapping[type[KnownOperation], Rule]] = MappingProxyType(
    {
        # ours: {theirs: ...}
        Append: {
            Append: yes,
            Delete: yes,
            Overwrite: no,
            CreateIndex: yes,
            Rewrite: yes,
            Merge: yes,
            Restore: no,
            ReserveFragments: yes,
            Update: yes,
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: yes,
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        Delete: {
            Append: yes,
            Delete: _dead_rows,
            Overwrite: no,
            CreateIndex: yes,
            Rewrite: retry_if(_same_fragments),
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: _dead_rows,
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: retry_if(_same_fragments),
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        Overwrite: {
            Append: yes,
            Delete: yes,
            Overwrite: first((_same_config_keys, Verdict.NO), (lambda *_: True, Verdict.RETRY)),
            CreateIndex: yes,
            Rewrite: yes,
            Merge: yes,
            Restore: yes,
            ReserveFragments: yes,
            Update: yes,
            Project: yes,
            UpdateConfig: no_if(_same_config_keys),
            DataReplacement: yes,
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        CreateIndex: {
            Append: yes,
            Delete: yes,
            Overwrite: no,
            CreateIndex: retry_if(_changes_same_index),
            Rewrite: retry_if(_indexes_moved_rows),
            Merge: retry_if(_has_log_index),
            Restore: no,
            ReserveFragments: yes,
            Update: retry_if(_rewrites_indexed_field),
            Project: retry_if(_drops_indexed_field),
            UpdateConfig: yes,
            DataReplacement: retry_if(_replaces_indexed_field),
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        Rewrite: {
            Append: yes,
            Delete: retry_if(_same_fragments),
            Overwrite: no,
            CreateIndex: retry_if(_rewrites_indices_beside),
            Rewrite: retry_if(_same_fragments),
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: retry_if(_same_fragments),
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: retry_if(_same_fragments),
            UpdateMemWalState: yes,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: retry_if(_same_fragments),
        },
        Merge: {
            Append: retry,
            Delete: retry,
            Overwrite: no,
            CreateIndex: retry_if(_has_log_index),
            Rewrite: retry,
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: retry,
            Project: no,
            UpdateConfig: yes,
            DataReplacement: retry,
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: retry,
        },
        Restore: {
            Append: yes,
            Delete: yes,
            Overwrite: yes,
            CreateIndex: yes,
            Rewrite: yes,
            Merge: yes,
            Restore: yes,
            ReserveFragments: yes,
            Update: yes,
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: yes,
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        ReserveFragments: {
            Append: yes,
            Delete: yes,
            Overwrite: no,
            CreateIndex: yes,
            Rewrite: yes,
            Merge: yes,
            Restore: no,
            ReserveFragments: yes,
            Update: yes,
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: yes,
            UpdateMemWalState: yes,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        Update: {
            Append: retry_if(_inserts_unique_keys),
            Delete: _dead_rows,
            Overwrite: no,
            CreateIndex: yes,
            Rewrite: retry_if(_same_fragments),
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: first(
                (_may_insert_same_keys, Verdict.RETRY),
                (_more_than_rows_died, Verdict.RETRY),
                (_same_fragments, Verdict.REBASE),
            ),
            Project: retry_if(_drops_modified_field),
            UpdateConfig: yes,
            DataReplacement: retry_if(_same_fragments),
            UpdateMemWalState: no_if(_compacts_the_log),
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: retry_if(_same_fragments),
        },
        Project: {
            Append: yes,
            Delete: yes,
            Overwrite: no,
            CreateIndex: yes,
            Rewrite: yes,
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: yes,
            Project: retry,
            UpdateConfig: yes,
            DataReplacement: yes,
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        UpdateConfig: {
            Append: yes,
            Delete: yes,
            Overwrite: no_if(_config_is_overwritten),
            CreateIndex: yes,
            Rewrite: yes,
            Merge: yes,
            Restore: yes,
            ReserveFragments: yes,
            Update: yes,
            Project: yes,
            UpdateConfig: no_if(_same_config_or_metadata),
            DataReplacement: yes,
            UpdateMemWalState: yes,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        DataReplacement: {
            Append: yes,
            Delete: no_if(_removes_ours),
            Overwrite: no,
            CreateIndex: retry_if(_indexes_replaced_field),
            Rewrite: retry_if(_same_fragments),
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: first(
                (_removes_ours, Verdict.NO),
                (_moves_rows_of_ours, Verdict.RETRY),
                (_rewrites_replaced_field, Verdict.RETRY),
            ),
            Project: no_if(_drops_replaced_field),
            UpdateConfig: yes,
            DataReplacement: retry_if(_replaces_same_field),
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
        UpdateMemWalState: {
            Append: no,
            Delete: no,
            Overwrite: no,
            CreateIndex: retry_if(_has_log_index),
            Rewrite: yes,
            Merge: no,
            Restore: no,
            ReserveFragments: yes,
            Update: retry_if(_compacts_the_log),
            Project: no,
            UpdateConfig: yes,
            DataReplacement: no,
            UpdateMemWalState: retry,
            Clone: no,
            UpdateBases: yes,
            DataOverlay: no,
        },
        Clone: {
            Append: no,
            Delete: no,
            Overwrite: no,
            CreateIndex: no,
            Rewrite: no,
            Merge: no,
            Restore: no,
            ReserveFragments: no,
            Update: no,
            Project: no,
            UpdateConfig: no,
            DataReplacement: no,
            UpdateMemWalState: no,
            Clone: no,
            UpdateBases: no,
            DataOverlay: no,
        },
        UpdateBases: {
            Append: yes,
            Delete: yes,
            Overwrite: yes,
            CreateIndex: yes,
            Rewrite: yes,
            Merge: yes,
            Restore: yes,
            ReserveFragments: yes,
            Update: yes,
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: yes,
            UpdateMemWalState: yes,
            Clone: yes,
            UpdateBases: no_if(_same_bases),
            DataOverlay: yes,
        },
        DataOverlay: {
            Append: yes,
            Delete: retry_if(_removes_ours),
            Overwrite: no,
            CreateIndex: yes,
            Rewrite: retry_if(_same_fragments),
            Merge: retry,
            Restore: no,
            ReserveFragments: yes,
            Update: retry_if(_removes_ours, _moves_rows_of_ours),
            Project: yes,
            UpdateConfig: yes,
            DataReplacement: yes,
            UpdateMemWalState: no,
            Clone: yes,
            UpdateBases: yes,
            DataOverlay: yes,
        },
    }
)
"""What becomes of our operation (first key) after theirs (second key)."""
