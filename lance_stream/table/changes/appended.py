"""Finds the rows appended between two adjacent versions, by whole fragments.

Without stable row ids, rows cannot be followed from version to version, but fragments can. Their
ids are never reused, so there are five cases:

    a fragment is the same in both                no change
    it is new, with a new id                      its rows are appended
    it is new, by a Rewrite                       no change: a compaction moved its rows there
    it reappears, by a Restore                    rows of the previous version count as changed
    it was removed, or has other deleted          rows of the previous version were deleted or
      rows, or other values                         updated

A version with one of the last two cases is not an append: its new rows cannot be distinguished from
updated rows, which are in new fragments, too. For such a version the reason is returned, and no
rows.

A column added with values (an expression, a join) changes all existing rows, as in tables with
stable row ids.

This is pure: two manifests, and the operation of the newer one.

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lance_stream.table.apply.new_fragments import max_fragment_id
from lance_stream.table.fragments.fragment import DeletionFile, Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import Operation, operation_name
from lance_stream.table.operations.versions import Restore


@dataclass(frozen=True, slots=True)
class AppendedFragments:
    """The fragments that one version appended.

    Attributes:
        version: The version.
        fragments: The fragments whose live rows are new, in scan order.
        changes: Why the version is not an append, as a text that completes "it ..."; None if it is
            an append. If it is not, there are no fragments.
    """

    version: int
    fragments: tuple[Fragment, ...] = ()
    changes: str | None = None


def appended_fragments(
    older: Manifest | None,
    newer: Manifest,
    operation: Operation | None,
    *,
    column_backfills: bool = True,
) -> AppendedFragments:
    """Return the fragments that one version appended to another.

    Args:
        older: The older version; None for the state before the first one.
        newer: The newer version.
        operation: Its operation; None if unknown. Then a compaction counts as a change of rows,
            since the manifests look the same.
        column_backfills: Whether a column added with values changes the existing rows.

    Raises:
        CorruptDataError: A fragment that differs is damaged.
    """
    if older is None:
        return AppendedFragments(newer.version, tuple(newer.fragments))
    before, after = _only_in(older, newer), _only_in(newer, older)
    reason = next(
        _reasons(older, newer, before, after, operation, column_backfills=column_backfills), None
    )
    if reason is not None:
        return AppendedFragments(newer.version, changes=reason)
    if isinstance(operation, Rewrite):
        return AppendedFragments(newer.version)
    new = tuple(fragment for fragment_id, fragment in after.items() if fragment_id not in before)
    return AppendedFragments(newer.version, new)


def _only_in(manifest: Manifest, other: Manifest) -> dict[int, Fragment]:
    """Return the fragments of one version that the other does not have with the same bytes."""
    raws = frozenset(other.fragments.raws)
    return {
        fragment.id: fragment
        for index, raw in enumerate(manifest.fragments.raws)
        if raw not in raws
        for fragment in (manifest.fragments[index],)
    }


def _reasons(
    older: Manifest,
    newer: Manifest,
    before: dict[int, Fragment],
    after: dict[int, Fragment],
    operation: Operation | None,
    *,
    column_backfills: bool,
) -> Iterator[str]:
    """Yield the reasons why a version is not an append."""
    by = f" (by {operation_name(operation)})" if operation is not None else ""
    fields = {field.id for field in newer.schema.walk()}
    if not column_backfills:
        fields &= {field.id for field in older.schema.walk()}
    for fragment_id, old in before.items():
        new = after.get(fragment_id)
        if new is None:
            has_rows = old.num_live_rows > 0 or not old.physical_rows  # 0 from old writers
            if has_rows and not isinstance(operation, Rewrite):
                yield f"removes the rows of fragment {fragment_id}{by}"
        elif _without_count(old.deletion_file) != _without_count(new.deletion_file):
            yield f"changes or deletes rows of fragment {fragment_id}{by}"
        elif not _have_same_values(old, new, fields):
            yield f"gives rows of fragment {fragment_id} other values{by}"
    highest = max_fragment_id(older)
    for fragment_id in after.keys() - before.keys():
        if isinstance(operation, Restore) or (
            operation is None and highest is not None and fragment_id <= highest
        ):
            yield f"brings back the rows of fragment {fragment_id}{by}"


def _without_count(file: DeletionFile | None) -> DeletionFile | None:
    """Return a deletion file without its row count, which old writers omitted."""
    return None if file is None else replace(file, num_deleted_rows=0)


def _have_same_values(old: Fragment, new: Fragment, fields: set[int]) -> bool:
    """Return whether the values of some fields are stored in the same files and columns."""
    if old.files == new.files:
        return True
    locations = _locations(old), _locations(new)
    return all(locations[0].get(field) == locations[1].get(field) for field in fields)


def _locations(fragment: Fragment) -> dict[int, tuple[str, int | None, int]]:
    """Return the file and column of each field. Files of version 0.1 have no columns."""
    return {
        field_id: (
            file.path,
            file.base_id,
            file.column_indices[index] if file.column_indices else -1,
        )
        for file in fragment.files
        for index, field_id in enumerate(file.field_ids)
    }
