"""Assigns ids, row ids and row versions to new fragments.

    fragment id     one after the largest ever used
    row ids         from next_row_id on; moved rows come first, and keep theirs
    created at      this version; moved rows keep theirs
    last updated    this version

Source:  transaction.proto; measured on the reference.
Differs: The created-at version of a moved row is looked up first in the fragments from which the
         operation moves rows, and only then in the others: an upsert into a table of 20,000
         fragments decodes only the few that it changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lance_stream.arrays import Positions, RowIds, RowVersions
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.feature_flags import MIXED_FILE_VERSIONS, has_stable_row_ids
from lance_stream.table.fragments.fragment import MAX_FRAGMENT_ID, DataFile, Fragment, LineageColumn
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids, encode_row_ids
from lance_stream.table.lineage.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)
from lance_stream.table.manifest import FragmentList, Manifest

MAX_ROW_ID = (1 << 64) - 1


def with_new_fragments(
    start: Manifest, carried: FragmentList, fragments: Sequence[Fragment]
) -> Manifest:
    """Return the version with more fragments, whose rows are all new.

    Raises:
        InvalidInputError: A fragment has row ids or deletions, or is of another file version; or
            the table has used up its ids.
    """
    for fragment in fragments:
        if fragment.row_ids is not None:
            raise InvalidInputError("a new fragment has row ids before it is committed")
    return with_moved_rows(start, carried, fragments, ())


def with_moved_rows(
    start: Manifest,
    carried: FragmentList,
    fragments: Sequence[Fragment],
    sources: Sequence[Fragment],
) -> Manifest:
    """Return the version with more fragments, which may begin with moved rows.

    Args:
        start: The version being created.
        carried: The fragments that the version keeps.
        fragments: The new fragments. If their first rows were in the table before, they have the
            row ids of these rows, and of no others.
        sources: The fragments from which these rows were moved, as they were before.

    Raises:
        CorruptDataError: A fragment has row ids or versions that no row of the table can have.
        InvalidInputError: A fragment has more ids than rows; and as in `with_new_fragments`.
    """
    if not fragments:
        return replace(start, fragments=carried, max_fragment_id=max_fragment_id(start))
    check_new_fragments(start, fragments)
    manifest = with_ids(start, fragments)
    next_row_id = start.next_row_id
    if has_stable_row_ids(start):
        manifest, next_row_id = _with_row_ids(start, manifest, sources)
    return replace(
        start,
        fragments=carried.appended(manifest),
        max_fragment_id=max(fragment.id for fragment in manifest),
        next_row_id=next_row_id,
    )


def with_ids(start: Manifest, fragments: Iterable[Fragment]) -> list[Fragment]:
    """Return fragments with ids that no fragment of the table has ever had.

    Raises:
        InvalidInputError: The table has used up its fragment ids.
    """
    highest = max_fragment_id(start)
    next_id = 0 if highest is None else highest + 1
    numbered = [replace(fragment, id=id_) for id_, fragment in enumerate(fragments, next_id)]
    if numbered and numbered[-1].id > MAX_FRAGMENT_ID:
        raise InvalidInputError(f"the table has used up its fragment ids: the last was {highest}")
    return numbered


def check_new_fragments(start: Manifest, fragments: Iterable[Fragment]) -> None:
    """Raise unless fragments have rows, all live, in files of the table's file version.

    Raises:
        InvalidInputError: A fragment has no rows, or deleted rows, or other files.
    """
    for fragment in fragments:
        if fragment.physical_rows < 1 or not fragment.files:
            raise InvalidInputError("a new fragment has no rows, or no data file")
        if fragment.deletion_file is not None:
            raise InvalidInputError("a new fragment has deleted rows before it is committed")
        for file in fragment.files:
            check_file_version(start, file)


def check_file_version(start: Manifest, file: DataFile) -> None:
    """Raise unless a data file has the file version of the table's files.

    Raises:
        InvalidInputError: The file has another version, and the table does not allow several.
    """
    major, minor = file.file_version
    version = start.data_format.version
    if major >= 2 and f"{major}.{minor}" != version:
        if start.writer_feature_flags & MIXED_FILE_VERSIONS:
            return
        raise InvalidInputError(
            f"the data file {file.path!r} is of file version {major}.{minor}, but the table's "
            f"files are of version {version}"
        )


def max_fragment_id(manifest: Manifest) -> int | None:
    """Return the largest fragment id ever used; None if none was.

    Old writers did not record it. A recorded id below an id in use is ignored, since new fragments
    would get ids that others have; the next version records the right one.

    Raises:
        CorruptDataError: It is larger than the format allows.
    """
    ids = manifest.fragments.numbers.ids
    in_use = int(ids.max()) if len(ids) else -1
    recorded = -1 if manifest.max_fragment_id is None else manifest.max_fragment_id
    highest = max(in_use, recorded)
    if highest > MAX_FRAGMENT_ID:
        raise CorruptDataError(f"the largest fragment id is {highest}")
    return highest if highest >= 0 else None


def has_only_moved_rows(planned: Fragment) -> bool:
    """Return whether all rows of a new fragment have a row id, so were in the table before."""
    return isinstance(planned.row_ids, LineageColumn) or (
        isinstance(planned.row_ids, bytes)
        and len(decode_row_ids(planned.row_ids)) == planned.physical_rows
    )


def uniform_stamps(fragment: Fragment, version: int) -> bytes:
    """Return the encoded row versions of a fragment whose rows all have the same version."""
    return encode_row_versions(RowVersionSequence.uniform(fragment.physical_rows, version))


def _with_row_ids(
    start: Manifest, fragments: Sequence[Fragment], sources: Sequence[Fragment]
) -> tuple[list[Fragment], int]:
    inline = [fragment for fragment in fragments if not _is_hidden(fragment)]
    moved = [_moved_ids(start, fragment) for fragment in inline]
    lineage = iter(zip(moved, _created_at(start, inline, moved, sources), strict=True))
    sized: list[Fragment] = []
    next_row_id = start.next_row_id
    for fragment in fragments:
        if _is_hidden(fragment):
            sized.append(_with_hidden_lineage(start, fragment))
            continue
        moved_ids, versions = next(lineage)
        num_new = fragment.physical_rows - len(moved_ids)
        if next_row_id + num_new > MAX_ROW_ID:
            raise InvalidInputError(f"the table has used up its row ids: the next is {next_row_id}")
        ids = RowIdSequence.from_range(next_row_id, next_row_id + num_new)
        stamps = RowVersionSequence.uniform(num_new, start.version)
        if len(moved_ids):
            ids = RowIdSequence.concat([RowIdSequence.from_array(moved_ids), ids])
            stamps = RowVersionSequence.concat([RowVersionSequence.from_array(versions), stamps])
        sized.append(
            replace(
                fragment,
                row_ids=encode_row_ids(ids),
                last_updated_at_versions=uniform_stamps(fragment, start.version),
                created_at_versions=encode_row_versions(stamps),
            )
        )
        next_row_id += num_new
    return sized, next_row_id


def _is_hidden(planned: Fragment) -> bool:
    """Return whether row ids or created-at versions of a new fragment are in hidden columns."""
    return isinstance(planned.row_ids, LineageColumn) or isinstance(
        planned.created_at_versions, LineageColumn
    )


def _with_hidden_lineage(start: Manifest, fragment: Fragment) -> Fragment:
    """Return a fragment of rows that were all in the table before, with their new row versions.

    The hidden columns are not read: their writer has checked them.
    """
    if fragment.created_at_versions is None or not has_only_moved_rows(fragment):
        raise InvalidInputError(
            "a new fragment can have row ids and created-at versions in hidden columns only if all "
            "of its rows existed before, because the commit assigns those of new rows"
        )
    _moved_ids(start, fragment)
    _stated(start, fragment, fragment.physical_rows)
    return replace(fragment, last_updated_at_versions=uniform_stamps(fragment, start.version))


_REMEDY: Final = (
    "the table is damaged, or was replaced. Nothing was committed. `lance-stream verify` lists the "
    "problems; write the rows to a new table, or restore an older version"
)


def _moved_ids(start: Manifest, fragment: Fragment) -> RowIds:
    """Return the row ids of the rows that a fragment took over, its first ones."""
    if fragment.row_ids is None or isinstance(fragment.row_ids, LineageColumn):
        return np.empty(0, np.uint64)
    if not isinstance(fragment.row_ids, bytes):
        raise UnsupportedFeatureError("row ids of a new fragment that are in a separate file")
    ids = decode_row_ids(fragment.row_ids)
    if len(ids) > fragment.physical_rows:
        raise InvalidInputError(
            f"a new fragment of {fragment.physical_rows} rows states {len(ids)} row ids"
        )
    row_ids = ids.to_array()
    if len(row_ids) and int(row_ids.max()) >= start.next_row_id:
        raise CorruptDataError(
            f"a row to be moved has the row id {int(row_ids.max())}, but the table has assigned "
            f"none from {start.next_row_id} on: {_REMEDY}"
        )
    return row_ids


def _created_at(
    start: Manifest,
    fragments: Sequence[Fragment],
    moved: Sequence[RowIds],
    sources: Sequence[Fragment],
) -> list[RowVersions]:
    """Return the created-at versions of the rows that each fragment took over."""
    stated = [
        _stated(start, fragment, len(ids)) for fragment, ids in zip(fragments, moved, strict=True)
    ]
    unknown = [ids for ids, stamps in zip(moved, stated, strict=True) if stamps is None]
    from_sources = _stored_created_at(
        start, np.concatenate([np.empty(0, np.uint64), *unknown]), sources
    )
    created: list[RowVersions] = []
    for ids, stamps in zip(moved, stated, strict=True):
        if stamps is None:
            stamps, from_sources = from_sources[: len(ids)], from_sources[len(ids) :]
        created.append(stamps)
    return created


def _stated(start: Manifest, fragment: Fragment, num_moved: int) -> RowVersions | None:
    """Return the created-at versions that a new fragment states of the rows that it took over.

    A row has the same one as long as it lives, so whoever planned the operation knows them. The
    reference's operations do not state them.
    """
    stored = fragment.created_at_versions
    if not num_moved or not isinstance(stored, bytes):
        return None
    versions = decode_row_versions(stored, num_moved).to_array()
    if int(versions.max()) >= start.version:
        raise CorruptDataError(
            f"a row to be moved has the created-at version {int(versions.max())}, but the "
            f"newest one is {start.version - 1}: {_REMEDY}"
        )
    return versions


def _stored_created_at(start: Manifest, ids: RowIds, sources: Sequence[Fragment]) -> RowVersions:
    """Return the created-at version of some rows, (n,) u64.

    A row that no fragment has counts as created now, as in the reference.
    """
    created: RowVersions = np.full(len(ids), start.version, np.uint64)
    missing = np.arange(len(ids))
    for fragment in sources:
        missing = _fill_created(created, ids, missing, fragment)
    others = start.fragments if len(missing) else ()
    for fragment in others:
        if not len(missing):
            break
        missing = _fill_created(created, ids, missing, fragment)
    return created


def _fill_created(
    created: RowVersions, ids: RowIds, missing: Positions, fragment: Fragment
) -> Positions:
    """Fill in the versions of the rows that a fragment has; return which are still missing."""
    if not len(missing) or fragment.row_ids is None:
        return missing
    stored_ids, stored_versions = fragment.row_ids, fragment.created_at_versions
    if not isinstance(stored_ids, bytes) or not isinstance(stored_versions, bytes | None):
        raise UnsupportedFeatureError(
            f"the row ids or row versions of fragment {fragment.id} are stored outside the "
            "manifest; which rows an operation moves cannot be determined"
        )
    offsets = decode_row_ids(stored_ids, fragment.physical_rows).find(ids[missing])
    hit = offsets >= 0
    versions = decode_row_versions(stored_versions, fragment.physical_rows)
    created[missing[hit]] = versions.take(offsets[hit])
    return missing[~hit]
