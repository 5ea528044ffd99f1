"""Operations on rows: inserting, deleting, updating and replacing them.

    Append       new fragments after the old ones, whose bytes are copied unchanged
    Delete       new deletion files; a fragment without live rows is dropped
    Update       changed rows are deleted in their fragments and written to new ones, with their
                 row ids; or changed columns are written to new files of the same fragments
    Overwrite    new fragments and another schema, with new fragment ids and row ids; or the first
                 version of a table

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.apply import index_coverage
from lance_stream.table.apply.new_fragments import (
    has_only_moved_rows,
    max_fragment_id,
    with_moved_rows,
    with_new_fragments,
)
from lance_stream.table.feature_flags import has_stable_row_ids
from lance_stream.table.fragments.deletion_vectors import decode_bitmap
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)
from lance_stream.table.manifest import DataFormat, FragmentList, Manifest
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update, UpdateMode


def append(start: Manifest, operation: Append) -> Manifest:
    """Return the version with more rows."""
    return with_new_fragments(start, start.fragments, operation.fragments)


def overwrite(start: Manifest, operation: Overwrite, data_format: DataFormat | None) -> Manifest:
    """Return the version with other rows and columns.

    Raises:
        InvalidInputError: Base paths are declared for an existing table.
    """
    if operation.initial_bases and start.version > 1:
        raise InvalidInputError("an Overwrite can declare base paths only when it creates a table")
    emptied = replace(
        start,
        schema=operation.schema,
        index_section=None,
        # New fragment ids continue after the largest one ever used.
        max_fragment_id=max_fragment_id(start),
        fragments=FragmentList(),
        data_format=data_format or start.data_format,
        config={**start.config, **operation.config_upserts},
        base_paths=start.base_paths + operation.initial_bases,
    )
    return with_new_fragments(emptied, emptied.fragments, operation.fragments)


def delete(start: Manifest, operation: Delete) -> Manifest:
    """Return the version in which more rows are deleted.

    Raises:
        InvalidInputError: A fragment with rows to delete does not exist.
    """
    changes = _changes(
        start,
        operation.updated_fragments,
        operation.deleted_fragment_ids,
        # Take only the deletion file: the rest may be from an older version.
        _with_deletion_file,
    )
    manifest = replace(
        start,
        max_fragment_id=max_fragment_id(start),
        fragments=start.fragments.replaced(changes),
    )
    return _with_relevant_indices(manifest)


def update(start: Manifest, operation: Update) -> Manifest:
    """Return the version with updated rows, and the inserted ones of an upsert.

    Raises:
        UnsupportedFeatureError: The operation moves rows out of the write-ahead log.
        InvalidInputError: A fragment with rows to change does not exist, or a new fragment is
            invalid.
    """
    if operation.compacted_sstables:
        raise UnsupportedFeatureError("rows cannot be moved out of a write-ahead log")
    sources = _sources(start, operation)
    in_place = operation.update_mode is UpdateMode.REWRITE_COLUMNS
    changes = _changes(
        start,
        operation.updated_fragments,
        operation.removed_fragment_ids,
        partial(_with_new_columns, start.schema.ids_in_files())
        if in_place
        else _with_deletion_file,
    )
    if in_place:
        changes.update(_with_new_row_versions(start, operation, changes))
    manifest = with_moved_rows(
        start, start.fragments.replaced(changes), operation.new_fragments, sources
    )
    if start.index_section is None:
        return manifest
    return _with_indices_after_update(manifest, operation, [source.id for source in sources])


def _sources(start: Manifest, operation: Update) -> list[Fragment]:
    """Return the fragments from which rows are moved, as they are in the newest version."""
    touched = {fragment.id for fragment in operation.updated_fragments}
    touched.update(operation.removed_fragment_ids)
    positions = start.fragments.index_by_id if touched else {}
    return [
        start.fragments[positions[fragment_id]]
        for fragment_id in sorted(touched)
        if fragment_id in positions
    ]


def _with_deletion_file(current: Fragment, planned: Fragment) -> Fragment:
    return replace(current, deletion_file=planned.deletion_file)


def _with_new_columns(columns: set[int], current: Fragment, planned: Fragment) -> Fragment:
    # A file is dropped once newer files have all of its columns that are still used.
    files = tuple(file for file in planned.files if not columns.isdisjoint(file.field_ids))
    return replace(current, files=files, deletion_file=planned.deletion_file)


def _changes(
    start: Manifest,
    updated: Iterable[Fragment],
    removed: Iterable[int],
    change: Callable[[Fragment, Fragment], Fragment],
) -> dict[int, Fragment | None]:
    """Return changed fragments by their index in the list of fragments; None for removed ones."""
    positions = start.fragments.index_by_id

    def index_of(fragment_id: int) -> int:
        if fragment_id not in positions:
            raise InvalidInputError(
                f"rows of fragment {fragment_id} are to be deleted or changed, but version "
                f"{start.version - 1} has no such fragment"
            )
        return positions[fragment_id]

    changes: dict[int, Fragment | None] = {}
    for planned in updated:
        index = index_of(planned.id)
        fragment = change(start.fragments[index], planned)
        changes[index] = fragment if fragment.num_live_rows else None
    changes.update((index_of(fragment_id), None) for fragment_id in removed)
    return changes


def _with_new_row_versions(
    start: Manifest, operation: Update, changes: dict[int, Fragment | None]
) -> dict[int, Fragment]:
    """Return the fragments that were changed in place, with new versions of the changed rows.

    If the operation does not list the rows, no row version is set, as in the reference. The
    reference also sets none in a fragment without row versions, and the feed would omit its rows;
    here the other rows get version 1, which is how missing row versions are read.
    """
    stamped: dict[int, Fragment] = {}
    if not has_stable_row_ids(start):
        return stamped
    for index, fragment in changes.items():
        if fragment is None:
            continue
        offsets = _changed_offsets(operation, fragment)
        stored = fragment.last_updated_at_versions
        if not len(offsets):
            continue
        if not isinstance(stored, bytes | None):
            raise UnsupportedFeatureError(
                f"the row versions of fragment {fragment.id} are stored outside the manifest"
            )
        versions = decode_row_versions(stored, fragment.physical_rows).to_array().copy()
        versions[offsets] = start.version
        stamped[index] = replace(
            fragment,
            last_updated_at_versions=encode_row_versions(RowVersionSequence.from_array(versions)),
        )
    return stamped


def _changed_offsets(
    operation: Update, fragment: Fragment
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    bitmap = operation.updated_fragment_offset_bitmaps.get(fragment.id)
    if bitmap is not None:
        try:
            offsets = decode_bitmap(bitmap, fragment.physical_rows).astype(np.int64)
        except CorruptDataError as error:
            raise InvalidInputError(
                f"the offsets of the changed rows of fragment {fragment.id} cannot be read: {error}"
            ) from None
    else:
        listed = operation.updated_fragment_offsets.get(fragment.id, ())
        offsets = np.array(listed, np.int64)
    if len(offsets) and int(offsets.max()) >= fragment.physical_rows:
        raise InvalidInputError(
            f"row {int(offsets.max())} of fragment {fragment.id} is listed as changed, but the "
            f"fragment has {fragment.physical_rows} rows"
        )
    return offsets


def _with_indices_after_update(
    manifest: Manifest, operation: Update, source_ids: list[int]
) -> Manifest:
    if operation.update_mode is UpdateMode.REWRITE_COLUMNS:
        rewritten = {
            fragment.id: operation.fields_modified for fragment in operation.updated_fragments
        }
        manifest = index_coverage.with_indices(
            manifest,
            lambda indices: index_coverage.without_rewritten_columns(
                indices, rewritten, manifest.schema
            ),
        )
    if operation.update_mode is UpdateMode.REWRITE_ROWS and has_stable_row_ids(manifest):
        new = manifest.fragments[len(manifest.fragments) - len(operation.new_fragments) :]
        only_moved = map(has_only_moved_rows, operation.new_fragments)
        moved_ids = [fragment.id for fragment, moved in zip(new, only_moved, strict=True) if moved]
        manifest = index_coverage.with_indices(
            manifest,
            lambda indices: index_coverage.with_moved_rows(
                indices, moved_ids, source_ids, operation.fields_for_preserving_frag_bitmap
            ),
        )
    return _with_relevant_indices(manifest)


def _with_relevant_indices(manifest: Manifest) -> Manifest:
    return index_coverage.with_indices(
        manifest,
        lambda indices: index_coverage.relevant(indices, manifest.schema, manifest.fragments.ids),
    )
