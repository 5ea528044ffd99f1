"""Compaction: rewrites small fragments, and fragments with many deleted rows, into larger ones.

No row changes: rows keep their row ids and row versions, deleted rows are dropped, and the change
feed has no changes.

    prepare     plan on some version, and write the files: slow, but blocks no writer  (`rewrites`)
    adapt       adapt the groups to the old fragments in the newest version
    commit      one Rewrite for all groups; if another writer was faster, adapt again

Other writers may commit in the meantime. The prepared files are adapted to their changes:

    rows of an old fragment were       they are marked as deleted in the new fragment, too
    deleted
    an old fragment was removed, has   it stays as it is; its rows are marked as deleted in the new
    other files, or restored rows      fragment
    more than half of the rows of a    the group is dropped: it would soon be rewritten again
    group were deleted
    new indices cover a part of a      the group is dropped: they could not cover the new fragments
    group

The transaction states the ids of the new fragments, from which readers of transactions, such as
LanceDB's materialized views, know that these fragments have no new rows. The ids follow those of
the version on which the attempt is based, so the attempt fails if another writer has used them.

Source:  transaction.proto; measured on the reference.
Differs: The reference drops a compaction if one of its rows has been deleted or changed. It
         reserves the ids in a separate version (ReserveFragments); here a compaction is one
         version.
"""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final

import numpy as np

from lance_stream.arrays import Positions, RowOffsets
from lance_stream.commit.committer import POLICY, BeforeAttempt, CommittedTransaction, commit
from lance_stream.commit.rebasing import delete_deletion_files, write_deletion_file
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CommitConflictError,
    CommitUncertainError,
    InvalidInputError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.maintenance.compaction.plan import TARGET_ROWS, CompactionRules, coverage_of
from lance_stream.maintenance.compaction.rewrites import (
    PreparedCompaction,
    PreparedGroup,
    WriteTasks,
    prepare,
    write_locally,
)
from lance_stream.retries import Retrying, RetryPolicy
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.new_fragments import max_fragment_id
from lance_stream.table.conflicts.carried_rows import RewrittenRows, by_new_fragment, deleted_since
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.moved_rows import Rewrite, RewriteGroup
from lance_stream.table.operations.transaction import Transaction
from lance_stream.write.after_commit import after_commit
from lance_stream.write.fragments import delete_files
from lance_stream.write.planning import MAX_PLANS, replan_on_conflict

MAX_DELETED_BEFORE_COMMIT: Final = 0.5
"""A group is dropped if more than this share of its rows was deleted before the commit."""

_ONE_ATTEMPT = RetryPolicy(max_attempts=1, first_delay_seconds=0.0, max_delay_seconds=0.0)


@dataclass(frozen=True)
class CompactionResult:
    """The outcome of a compaction.

    Attributes:
        table: The committed version; the newest one if there was nothing to compact.
        num_removed: The number of removed fragments.
        num_added: The number of added fragments.
        num_abandoned: The number of groups that were rewritten but not committed.
    """

    table: TableVersion
    num_removed: int = 0
    num_added: int = 0
    num_abandoned: int = 0


def compact(
    table: TableVersion,
    target_rows: int = TARGET_ROWS,
    write: WriteTasks = write_locally,
    environment: Environment = MACHINE,
    bytes_per_commit: int | None = None,
) -> CompactionResult:
    """Rewrite small fragments, and those with many deleted rows; see `Dataset.compact`.

    If one of several commits fails, the earlier ones remain in the table.

    Args:
        table: Any version; the newest one is compacted.
        target_rows: The desired number of rows of a fragment.
        write: Writes the new files.
        environment: The clock and randomness.
        bytes_per_commit: The approximate size in bytes of the data files that one commit rewrites;
            each commit rewrites at least one group of fragments, those with the largest gain
            first. Fragments that other writers add in the meantime are not rewritten. None for one
            commit.

    Returns:
        The version after the last commit, and the numbers of fragments in all commits.

    Raises:
        InvalidInputError: A number is invalid.
        RetryableConflictError: Other writers changed the fragments many times in a row, or were
            faster in every attempt to commit.
        CommitUncertainError: The store did not report whether the version was published.
        BadDataError: A file is damaged, or uses an unsupported feature.
    """
    rules = CompactionRules(target_rows, max_bytes=bytes_per_commit, whole_groups=True)
    newest = None
    if bytes_per_commit is not None:
        newest = newest_version_of(table)
        rules = replace(rules, newest_fragment=max_fragment_id(newest.manifest))
    num_removed = num_added = num_failed = 0
    while num_failed < MAX_PLANS:
        prepared = replan_on_conflict(partial(_prepare_newest, table, newest, rules, write))
        result = commit_prepared(prepared, environment=environment)
        newest = result.table
        num_removed += result.num_removed
        num_added += result.num_added
        num_failed = num_failed + 1 if result.num_abandoned else 0
        is_last = bytes_per_commit is None or not prepared.groups
        if is_last and not result.num_abandoned:
            return replace(result, num_removed=num_removed, num_added=num_added)
    raise RetryableConflictError(
        f"other writers changed the fragments of this compaction {MAX_PLANS} times in a row. Try "
        "again when fewer rows change, or with a smaller target_rows",
        result.table.version,
    )


def _prepare_newest(
    table: TableVersion, newest: TableVersion | None, rules: CompactionRules, write: WriteTasks
) -> PreparedCompaction:
    newest = newest_version_of(table if newest is None else newest)
    return prepare(newest, rules, write)


def commit_prepared(
    prepared: PreparedCompaction,
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    environment: Environment = MACHINE,
    retries: RetryPolicy = POLICY,
) -> CompactionResult:
    """Commit the prepared groups that still apply to the newest version.

    Args:
        prepared: The files and their rows. Files that are certainly not committed are deleted.
        turn: Returns a context for an attempt. It ends before the wait for the next attempt, so
            others that take turns wait for at most one attempt.
        environment: The clock and randomness.
        retries: The limits of the commit.

    Returns:
        The outcome. If no group still applies, no version is committed.

    Raises:
        RetryableConflictError: Other writers were faster in every attempt.
        TableReplacedError: The table was replaced.
        CommitUncertainError: The store did not report whether the version was published; the files
            are not deleted.
    """
    if not prepared.groups:
        return CompactionResult(prepared.table)
    store = prepared.table.store
    try:
        attempts = Retrying(retries, environment)
        for _ in attempts:
            with turn():
                adapted = _adapt(newest_version_of(prepared.table), prepared, environment)
                committed = _try_to_commit(adapted, environment) if adapted.groups else None
            if committed is not None or not adapted.groups:
                break
        else:
            raise RetryableConflictError(
                "other writers were faster in every attempt to commit this compaction: "
                f"{attempts}. Try again, or let fewer writers commit at the same time",
                adapted.table.version,
            )
    except CommitUncertainError:
        raise
    except Exception:
        prepared.delete_files(store)  # certainly not committed
        raise
    new_paths = {file.path for fragment in adapted.new_fragments for file in fragment.files}
    delete_files(
        store,
        [
            fragment
            for group in prepared.groups
            for fragment in group.new
            if not any(file.path in new_paths for file in fragment.files)
        ],
    )
    table = adapted.table
    if committed is not None:
        table = table.at(committed.manifest)
        after_commit(table, environment)
    return CompactionResult(
        table,
        sum(len(group.old_fragments) for group in adapted.groups),
        len(adapted.new_fragments),
        len(prepared.groups) - len(adapted.groups),
    )


@dataclass(frozen=True)
class _AdaptedGroups:
    """Prepared groups, adapted to a newer version.

    Attributes:
        table: The version.
        groups: What remains of the groups.
    """

    table: TableVersion
    groups: tuple[RewriteGroup, ...]

    @property
    def new_fragments(self) -> list[Fragment]:
        return [fragment for group in self.groups for fragment in group.new_fragments]


def _adapt(
    newest: TableVersion, prepared: PreparedCompaction, environment: Environment
) -> _AdaptedGroups:
    """Return prepared groups adapted to the newest version; writes the necessary deletion files.

    The ids of the new fragments are correct as long as no other fragment is added.
    """
    covered_by = coverage_of(newest)
    surviving = [_adapt_group(newest, group) for group in prepared.groups]
    applicable = [
        (old, new, deleted)
        for old, new, deleted in surviving
        if len({covered_by(fragment.id) for fragment in old}) == 1
        and sum(map(len, deleted))
        <= MAX_DELETED_BEFORE_COMMIT * sum(fragment.physical_rows for fragment in new)
    ]
    ids = count((max_fragment_id(newest.manifest) or 0) + 1)
    results: list[Fragment] = []
    groups: list[RewriteGroup] = []
    try:
        for old, new, deleted in applicable:
            first = len(results)
            for fragment, offsets in zip(new, deleted, strict=True):
                if len(offsets) < fragment.physical_rows:
                    numbered = replace(fragment, id=next(ids))
                    results.append(_with_deleted_rows(newest, numbered, offsets, environment))
            groups.append(RewriteGroup(old, tuple(results[first:])))
    except Exception:
        delete_deletion_files(newest.store, results)
        raise
    return _AdaptedGroups(newest, tuple(groups))


def _adapt_group(
    newest: TableVersion, group: PreparedGroup
) -> tuple[tuple[Fragment, ...], tuple[Fragment, ...], list[RowOffsets]]:
    """Return a group's replaceable old fragments, the new ones, and their deleted rows."""
    old: list[Fragment] = []
    positions: list[Positions] = []
    for planned, rows in zip(group.old, group.rows, strict=True):
        current = newest.manifest.fragments.by_id(planned.id)
        deleted_positions = None
        if current is not None and replace(current, deletion_file=planned.deletion_file) == planned:
            deleted_now = _deleted_now(newest, current, planned, rows)
            deleted_positions = deleted_since(rows, deleted_now)
            if deleted_positions is not None:
                old.append(_without_lineage(current))
        if deleted_positions is None:
            deleted_positions = np.arange(rows.num_written, dtype=np.int64)
        positions.append(deleted_positions)
    deleted = by_new_fragment(
        positions,
        [row.num_written for row in group.rows],
        [fragment.physical_rows for fragment in group.new],
        group.order,
    )
    return tuple(old), group.new, deleted


def _deleted_now(
    newest: TableVersion, current: Fragment, planned: Fragment, rows: RewrittenRows
) -> RowOffsets:
    """Return the deleted rows of a fragment; reads a file only if its deletion file has changed."""
    is_same = current.deletion_file == planned.deletion_file
    return rows.deleted if is_same else newest.deleted_offsets(current)


def _without_lineage(old: Fragment) -> Fragment:
    """Return a fragment for the transaction without its lineage, which may take megabytes."""
    return replace(old, row_ids=None, created_at_versions=None, last_updated_at_versions=None)


def _with_deleted_rows(
    newest: TableVersion, fragment: Fragment, deleted: RowOffsets, environment: Environment
) -> Fragment:
    if not len(deleted):
        return fragment
    file = write_deletion_file(
        newest.store, fragment.id, deleted, newest.version, environment.random_id()
    )
    return replace(fragment, deletion_file=file)


def _try_to_commit(
    adapted: _AdaptedGroups, environment: Environment
) -> CommittedTransaction | None:
    """Commit the groups; return None, and delete their deletion files, if another was faster."""
    table = adapted.table
    transaction = Transaction(table.version, str(uuid.uuid4()), Rewrite(adapted.groups))
    try:
        result = commit(
            table.log,
            transaction,
            planned_on=table.manifest,
            before_attempt=_check_ids_unused(table),
            retries=_ONE_ATTEMPT,
            environment=environment,
        )
    except CommitUncertainError:
        raise
    except Exception as error:
        delete_deletion_files(table.store, adapted.new_fragments)  # certainly not committed
        if isinstance(error, CommitConflictError) and not isinstance(error, TableReplacedError):
            return None
        raise
    if not isinstance(result, CommittedTransaction):
        raise InvalidInputError(f"nothing was compacted: {result.reason}")
    return result


def _check_ids_unused(table: TableVersion) -> BeforeAttempt:
    """Return a check that fails if fragments were added after the ids were assigned."""
    highest = max_fragment_id(table.manifest)

    def check(newest: Manifest | None) -> str | None:
        if newest is not None and max_fragment_id(newest) != highest:
            raise RetryableConflictError(
                "another writer has used the fragment ids of this compaction. Plan it again",
                newest.version,
            )
        return None

    return check
