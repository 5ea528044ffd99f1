"""Conflicts: one table with a rule for every pair of operations.

Our operation was planned on some version; since then other writers have committed newer ones. For
each of these, `RULES[ours][theirs]` decides about ours:

    yes       it has the same meaning on the newer version
    rebase    it has the same meaning once their change is merged into it: see `rebase`
    retry     it must be planned again
    no        it no longer means the same

A rule is one of these words, or depends on the two operations (`retry_if`, `no_if`, ...). The rules
in `PRECEDING` come before the table, because they apply to whole classes of pairs. An unknown
operation or a missing transaction conflicts with everything.

Source:  the table format's "Conflict Resolution"; measured on the reference.
Differs: If a column was changed in place meanwhile, a new index on it is committed without coverage
         of the changed fragments. The reference plans a rewrite of fragments again after a new
         index on them; ours, which rewrites no index, may follow it. It plans an upsert again even
         if rows were only changed, or if the upsert inserts none. It lets a clone follow anything;
         but a clone is the first version of a table, and follows nothing.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

from lance_stream.errors import IncompatibleConflictError, RetryableConflictError
from lance_stream.table.conflicts.conflict_tests import (
    changes_more_than_deletions,
    changes_same_index,
    compacts_the_log,
    config_is_overwritten,
    drops_indexed_field,
    drops_modified_field,
    drops_replaced_field,
    falsifies_nullability,
    has_log_index,
    indexes_moved_rows,
    indexes_replaced_field,
    inserts_unique_keys,
    lacks_new_index,
    may_insert_same_keys,
    merges_over_metadata,
    moves_rows_of_ours,
    removes_ours,
    replaces_indexed_field,
    replaces_same_field,
    restores_over_metadata,
    rewrites_indexed_fragments,
    rewrites_replaced_field,
    rewrites_uncertain_index,
    same_bases,
    same_config_keys,
    same_config_or_metadata,
    same_fragments,
)
from lance_stream.table.operations.columns import DataOverlay, DataReplacement, Merge, Project
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite
from lance_stream.table.operations.operation import (
    OPERATIONS,
    Operation,
    SupportedOperation,
    UnknownOperation,
    operation_name,
)
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import (
    Clone,
    CreateIndex,
    Restore,
    UpdateBases,
    UpdateMemWalState,
)


class ConflictVerdict(Enum):
    """Whether our operation may follow theirs, and how."""

    YES = "yes"
    REBASE = "rebase"
    RETRY = "retry"
    NO = "no"


Rule: TypeAlias = Callable[[Any, Any], ConflictVerdict]
Test: TypeAlias = Callable[[Any, Any], bool]


def check(ours: Transaction, theirs: Transaction | None, version: int) -> ConflictVerdict:
    """Return whether our transaction may follow theirs unchanged, or after a rebase.

    Args:
        ours: The transaction to commit.
        theirs: The transaction of a version newer than the one ours was planned on; None if it is
            missing or cannot be read.
        version: Their version.

    Returns:
        `YES` or `REBASE`.

    Raises:
        RetryableConflictError: Ours must be planned again on the newer version.
        IncompatibleConflictError: Ours no longer means the same.
    """
    if theirs is None:
        raise RetryableConflictError(
            f"this {operation_name(ours.operation)} was planned on version {ours.read_version}, "
            f"but the operation of version {version} is unknown: its transaction is missing or "
            "cannot be read. Plan the operation again on the newest version",
            version,
        )
    verdict = verdict_on(ours.operation, theirs.operation)
    names = f"this {operation_name(ours.operation)}", operation_name(theirs.operation)
    if verdict is ConflictVerdict.RETRY:
        raise RetryableConflictError(
            f"{names[0]} was planned on version {ours.read_version}, and the {names[1]} of version "
            f"{version} changed what it depends on. Plan it again on the newest version",
            version,
        )
    if verdict is ConflictVerdict.NO:
        raise IncompatibleConflictError(
            f"{names[0]} was planned on version {ours.read_version}, but no longer means the same "
            f"after the {names[1]} of version {version}",
            version,
        )
    return verdict


def verdict_on(ours: Operation, theirs: Operation) -> ConflictVerdict:
    """Return whether our operation may follow theirs."""
    if isinstance(ours, UnknownOperation) or isinstance(theirs, UnknownOperation):
        return ConflictVerdict.NO
    for test, verdict in PRECEDING:
        if test(ours, theirs) or test(theirs, ours):
            return verdict
    return RULES[type(ours)][type(theirs)](ours, theirs)


# The words of the table.


def yes(_ours: Any, _theirs: Any) -> ConflictVerdict:
    """The operation means the same."""
    return ConflictVerdict.YES


def retry(_ours: Any, _theirs: Any) -> ConflictVerdict:
    """The operation must be planned again."""
    return ConflictVerdict.RETRY


def no(_ours: Any, _theirs: Any) -> ConflictVerdict:
    """The operation no longer means the same."""
    return ConflictVerdict.NO


def usually(
    default: Rule, exceptions: Mapping[type[SupportedOperation], Rule] = MappingProxyType({})
) -> Mapping[type[SupportedOperation], Rule]:
    """Return the rules for one of our operations after all of theirs.

    Args:
        default: The rule after most operations.
        exceptions: The rules after the others.
    """
    return dict.fromkeys(OPERATIONS.values(), default) | dict(exceptions)


def first(*cases: tuple[Test, ConflictVerdict]) -> Rule:
    """Return the rule with the verdict of the first test that is true, or else yes."""

    def rule(ours: Any, theirs: Any) -> ConflictVerdict:
        return next((verdict for test, verdict in cases if test(ours, theirs)), ConflictVerdict.YES)

    return rule


def retry_if(*tests: Test) -> Rule:
    """Return the rule for a retry if one of the tests is true, and else yes."""
    return first(*((test, ConflictVerdict.RETRY) for test in tests))


def no_if(*tests: Test) -> Rule:
    """Return the rule for no if one of the tests is true, and else yes."""
    return first(*((test, ConflictVerdict.NO) for test in tests))


PRECEDING: tuple[tuple[Test, ConflictVerdict], ...] = (
    (falsifies_nullability, ConflictVerdict.RETRY),
    (merges_over_metadata, ConflictVerdict.RETRY),
    (restores_over_metadata, ConflictVerdict.NO),
)
"""Rules that precede the table. Each is tested in both directions."""

_deletes_rows = first(
    (changes_more_than_deletions, ConflictVerdict.RETRY),
    (same_fragments, ConflictVerdict.REBASE),
)

RULES: Mapping[type[SupportedOperation], Mapping[type[SupportedOperation], Rule]] = (
    MappingProxyType(
        {
            # ours: after theirs
            Append: usually(
                yes,
                {
                    Overwrite: no,
                    Restore: no,
                    UpdateMemWalState: no,
                },
            ),
            Delete: usually(
                yes,
                {
                    Delete: _deletes_rows,
                    Overwrite: no,
                    Rewrite: retry_if(same_fragments),
                    Merge: retry,
                    Restore: no,
                    Update: _deletes_rows,
                    DataReplacement: retry_if(same_fragments),
                    UpdateMemWalState: no,
                },
            ),
            Overwrite: usually(
                yes,
                {
                    Overwrite: first(
                        (same_config_keys, ConflictVerdict.NO),
                        (lambda *_: True, ConflictVerdict.RETRY),
                    ),
                    UpdateConfig: no_if(same_config_keys),
                    UpdateMemWalState: no,
                },
            ),
            CreateIndex: usually(
                yes,
                {
                    Overwrite: no,
                    CreateIndex: retry_if(changes_same_index),
                    Rewrite: retry_if(indexes_moved_rows),
                    Merge: retry_if(has_log_index),
                    Restore: no,
                    Update: first(
                        (rewrites_uncertain_index, ConflictVerdict.RETRY),
                        (rewrites_indexed_fragments, ConflictVerdict.REBASE),
                    ),
                    Project: retry_if(drops_indexed_field),
                    DataReplacement: retry_if(replaces_indexed_field),
                    UpdateMemWalState: no,
                },
            ),
            Rewrite: usually(
                yes,
                {
                    Delete: retry_if(same_fragments),
                    Overwrite: no,
                    CreateIndex: retry_if(lacks_new_index),
                    Rewrite: retry_if(same_fragments),
                    Merge: retry,
                    Restore: no,
                    Update: retry_if(same_fragments),
                    DataReplacement: retry_if(same_fragments),
                    DataOverlay: retry_if(same_fragments),
                },
            ),
            Merge: usually(
                yes,
                {
                    Append: retry,
                    Delete: retry,
                    Overwrite: no,
                    CreateIndex: retry_if(has_log_index),
                    Rewrite: retry,
                    Merge: retry,
                    Restore: no,
                    Update: retry,
                    Project: no,
                    DataReplacement: retry,
                    UpdateMemWalState: no,
                    DataOverlay: retry,
                },
            ),
            Restore: usually(
                yes,
                {
                    UpdateMemWalState: no,
                },
            ),
            ReserveFragments: usually(
                yes,
                {
                    Overwrite: no,
                    Restore: no,
                },
            ),
            Update: usually(
                yes,
                {
                    Append: retry_if(inserts_unique_keys),
                    Delete: _deletes_rows,
                    Overwrite: no,
                    Rewrite: retry_if(same_fragments),
                    Merge: retry,
                    Restore: no,
                    Update: first(
                        (may_insert_same_keys, ConflictVerdict.RETRY),
                        (changes_more_than_deletions, ConflictVerdict.RETRY),
                        (same_fragments, ConflictVerdict.REBASE),
                    ),
                    Project: retry_if(drops_modified_field),
                    DataReplacement: retry_if(same_fragments),
                    UpdateMemWalState: no_if(compacts_the_log),
                    DataOverlay: retry_if(same_fragments),
                },
            ),
            Project: usually(
                yes,
                {
                    Overwrite: no,
                    Merge: retry,
                    Restore: no,
                    Project: retry,
                    UpdateMemWalState: no,
                },
            ),
            UpdateConfig: usually(
                yes,
                {
                    Overwrite: no_if(config_is_overwritten),
                    UpdateConfig: no_if(same_config_or_metadata),
                },
            ),
            DataReplacement: usually(
                yes,
                {
                    Delete: no_if(removes_ours),
                    Overwrite: no,
                    CreateIndex: retry_if(indexes_replaced_field),
                    Rewrite: retry_if(same_fragments),
                    Merge: retry,
                    Restore: no,
                    Update: first(
                        (removes_ours, ConflictVerdict.NO),
                        (moves_rows_of_ours, ConflictVerdict.RETRY),
                        (rewrites_replaced_field, ConflictVerdict.RETRY),
                    ),
                    Project: no_if(drops_replaced_field),
                    DataReplacement: retry_if(replaces_same_field),
                    UpdateMemWalState: no,
                },
            ),
            UpdateMemWalState: usually(
                no,
                {
                    CreateIndex: retry_if(has_log_index),
                    Rewrite: yes,
                    ReserveFragments: yes,
                    Update: retry_if(compacts_the_log),
                    UpdateConfig: yes,
                    UpdateMemWalState: retry,
                    UpdateBases: yes,
                },
            ),
            Clone: usually(no),
            UpdateBases: usually(
                yes,
                {
                    UpdateBases: no_if(same_bases),
                },
            ),
            DataOverlay: usually(
                yes,
                {
                    Delete: retry_if(removes_ours),
                    Overwrite: no,
                    Rewrite: retry_if(same_fragments),
                    Merge: retry,
                    Restore: no,
                    Update: retry_if(removes_ours, moves_rows_of_ours),
                    UpdateMemWalState: no,
                },
            ),
        }
    )
)
"""The rule for our operation (first key) after theirs (second key)."""
