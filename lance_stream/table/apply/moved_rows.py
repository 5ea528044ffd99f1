"""Operations that move rows without changing them.

    ReserveFragments    reserves fragment ids for the new fragments of a compaction
    Rewrite             replaces fragments by others with the same rows, row ids and row versions

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Sequence
from dataclasses import replace

from lance_stream.errors import (
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
)
from lance_stream.table.apply import index_coverage
from lance_stream.table.apply.new_fragments import check_new_fragments, max_fragment_id
from lance_stream.table.feature_flags import has_stable_row_ids
from lance_stream.table.fragments.fragment import MAX_FRAGMENT_ID, Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite, RewriteGroup


def reserve_fragments(start: Manifest, operation: ReserveFragments) -> Manifest:
    """Return the version in which more fragment ids are reserved.

    Raises:
        InvalidInputError: There are not enough ids left.
    """
    highest = max_fragment_id(start)
    reserved = (-1 if highest is None else highest) + operation.num_fragments
    if reserved > MAX_FRAGMENT_ID:
        raise InvalidInputError(
            f"the table has fewer than {operation.num_fragments} unused fragment ids"
        )
    return replace(start, max_fragment_id=reserved if reserved >= 0 else None)


def rewrite(start: Manifest, operation: Rewrite) -> Manifest:
    """Return the version in which fragments are replaced by others.

    Raises:
        IncompatibleConflictError: A replaced fragment does not exist.
        RetryableConflictError: The id of a new fragment is in use.
        InvalidInputError: A fragment is replaced twice; a new one has no unique id, or lacks its
            row ids and row versions; or a group does not have as many live rows as before.
    """
    groups = operation.groups or _one_group(operation)
    positions = start.fragments.index_by_id
    changes: dict[int, Fragment | None] = {}
    for old in (fragment for group in groups for fragment in group.old_fragments):
        if old.id not in positions:
            raise IncompatibleConflictError(
                f"fragment {old.id} is to be rewritten, but version {start.version - 1} has no "
                "such fragment",
                start.version - 1,
            )
        if positions[old.id] in changes:
            raise InvalidInputError(f"fragment {old.id} is rewritten twice")
        changes[positions[old.id]] = None
    new = [fragment for group in groups for fragment in group.new_fragments]
    _check_ids(start, new)
    for group in groups:
        _check_group(start, group)
    fragments = start.fragments.replaced(changes)
    manifest = replace(
        start,
        fragments=fragments.appended(new).sorted_by_id(),
        max_fragment_id=max([max_fragment_id(start) or 0, *(fragment.id for fragment in new)]),
    )
    return index_coverage.with_indices(
        manifest,
        lambda indices: index_coverage.with_rewritten_fragments(
            indices,
            groups,
            operation.rewritten_indices,
            stable_row_ids=has_stable_row_ids(manifest),
        ),
    )


def _one_group(operation: Rewrite) -> tuple[RewriteGroup, ...]:
    if not operation.old_fragments:
        return ()
    return (RewriteGroup(operation.old_fragments, operation.new_fragments),)


def _check_ids(start: Manifest, new: Sequence[Fragment]) -> None:
    """Raise unless every new fragment has a distinct id that is not in use."""
    ids = [fragment.id for fragment in new]
    if len(set(ids)) < len(ids) or not all(0 < id_ <= MAX_FRAGMENT_ID for id_ in ids):
        raise InvalidInputError(f"rewritten fragments cannot have the ids {ids}")
    used_ids = sorted(set(ids).intersection(start.fragments.ids))
    if used_ids:
        raise RetryableConflictError(
            f"another writer has used the fragment ids {used_ids} of a rewrite's new fragments. "
            "Plan the rewrite again",
            start.version - 1,
        )


def _check_group(start: Manifest, group: RewriteGroup) -> None:
    # A new fragment has a deletion file if rows were deleted while they were rewritten.
    without_deletions = [replace(fragment, deletion_file=None) for fragment in group.new_fragments]
    check_new_fragments(start, without_deletions)
    if not all(fragment.num_live_rows > 0 for fragment in group.new_fragments):
        raise InvalidInputError("a rewritten fragment has no live row")
    stable = has_stable_row_ids(start)
    if any(fragment.row_ids is None for fragment in group.new_fragments) and stable:
        raise InvalidInputError("a rewritten fragment has no row ids")
    old = sum(
        start.fragments[start.fragments.index_by_id[fragment.id]].num_live_rows
        for fragment in group.old_fragments
    )
    new = sum(fragment.num_live_rows for fragment in group.new_fragments)
    if old != new:
        ids = [fragment.id for fragment in group.old_fragments]
        raise InvalidInputError(
            f"the fragments {ids} have {old} live rows, but {new} after the rewrite"
        )
