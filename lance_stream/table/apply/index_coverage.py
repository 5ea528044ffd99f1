"""The coverage of indices after an operation.

An index lists the fragments that it covers. A query takes the rows of these from the index and
scans the others. So a missing fragment costs time, and one too many gives wrong results. Most
indices refer to rows by row id, which stays the same when a row moves; some by row address, which
does not.

    a column is rewritten in place   indices on the column no longer cover the fragments
    rows move to a new fragment      an index covers it if it refers to rows by row id, is on no
                                     changed column, and covered all fragments the rows came from
    fragments are rewritten          an index by row id covers the new fragments, any other index
                                     neither the new nor the old ones. Old fragments with deleted
                                     rows stay covered as well: a covered fragment that no longer
                                     exists tells readers that the index has deleted rows
    a column is dropped              indices on it are dropped
    an index covers nothing          the oldest segment of its name is kept, as a definition to
                                     rebuild the index from; others are dropped

Source:  table.proto, IndexMetadata; measured on the reference.
Differs: Indices on parts of a rewritten struct lose the coverage, too. After a rewrite that drops
         deleted rows, the reference removes the old fragments from the coverage. Then its nearest
         vector search returns fewer rows than requested, because deleted rows are among the
         nearest.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.schema.fields import Schema
from lance_stream.table.fragments.deletion_vectors import decode_bitmap
from lance_stream.table.indices import IndexMetadata, decode_index_section, encode_index_section
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.moved_rows import RewriteGroup, RewrittenIndex
from lance_stream.table.write_ahead_logs import WRITE_AHEAD_LOG

FRAGMENT_REUSE = "__lance_frag_reuse"
"""The name of the index that records where compactions have moved rows."""

Indices = tuple[IndexMetadata, ...]

_MAX_FRAGMENTS = 1 << 26
_ZONE_DETAILS = ("ZoneMapIndexDetails", "BloomFilterIndexDetails")
_BTREE = "BTreeIndexDetails"
_FM = "lance.index.pb.FMIndexDetails"


def with_indices(manifest: Manifest, change: Callable[[Indices], Indices]) -> Manifest:
    """Return the version with its indices changed; the same object if nothing changes.

    Raises:
        CorruptDataError: The index section is damaged.
    """
    if manifest.index_section is None:
        return manifest
    before = decode_index_section(manifest.index_section)
    after = change(before)
    if after == before:
        return manifest
    return replace(manifest, index_section=encode_index_section(after) if after else None)


def keep_old_values(manifest: Manifest, field_ids: Collection[int]) -> bool:
    """Return whether indices may return old values of columns that are changed in place.

    After a compaction with deferred remapping, indices may cover removed fragments. Queries find
    their rows through the fragment reuse index, so a new fragment cannot be removed from the
    coverage when its values change in place.

    When the reference updates a zone map or a Bloom filter, it adds the new zones and keeps those
    of fragments that the index no longer covered. So a query for nulls returns rows that are not
    null any more.

    Args:
        manifest: The version.
        field_ids: The columns and all their parts.

    Raises:
        CorruptDataError: The index section is damaged.
    """
    section = manifest.index_section
    return section is not None and any(
        entry.name == FRAGMENT_REUSE
        or (has_zones(entry) and not set(field_ids).isdisjoint(entry.field_ids))
        for entry in decode_index_section(section)
    )


def has_zones(index: IndexMetadata) -> bool:
    """Return whether an index is a zone map or a Bloom filter.

    These store which values may occur in each zone of a fragment.
    """
    return index.details is not None and index.details[0].endswith(_ZONE_DETAILS)


def refers_by_address(index: IndexMetadata) -> bool:
    """Return whether an index refers to rows by address, so that it cannot follow moved rows."""
    if index.details is None:
        return False
    type_url = index.details[0]
    return (
        has_zones(index)
        or type_url.rpartition("/")[2].lower() == _FM.lower()
        or (type_url.endswith(_BTREE) and (index.index_version or 0) >= 1)
    )


def without_rewritten_columns(
    indices: Indices, rewritten: Mapping[int, Collection[int]], schema: Schema
) -> Indices:
    """Return indices without the fragments whose indexed columns have new values.

    Args:
        indices: The indices before.
        rewritten: Maps fragment ids to the ids of the fields that were rewritten.
        schema: The table's columns.
    """
    by_fields: dict[frozenset[int], BitMap] = {}
    for fragment_id, field_ids in rewritten.items():
        key = frozenset(_with_descendants(schema, field_ids))
        by_fields.setdefault(key, BitMap()).add(fragment_id)

    def change(index: IndexMetadata) -> IndexMetadata:
        rewritten_ids = BitMap()
        for field_ids, fragment_ids in by_fields.items():
            if not field_ids.isdisjoint(index.field_ids):
                rewritten_ids |= fragment_ids
        return _without_fragments(index, rewritten_ids)

    return tuple(index if is_system_index(index) else change(index) for index in indices)


def with_moved_rows(
    indices: Indices,
    new_ids: Iterable[int],
    source_ids: Iterable[int],
    changed_fields: Collection[int],
) -> Indices:
    """Return indices that also cover new fragments, where they have all of their rows.

    Args:
        indices: The indices before.
        new_ids: The new fragments whose rows were all in the table before.
        source_ids: All fragments from which rows were moved.
        changed_fields: The fields that have new values in the moved rows.
    """
    added, sources = BitMap(new_ids), BitMap(source_ids)

    def change(index: IndexMetadata) -> IndexMetadata:
        if refers_by_address(index) or not index.fragment_bitmap:
            return index
        if not set(changed_fields).isdisjoint(index.field_ids):
            return index
        covered = coverage(index)
        if not sources.issubset(covered):
            return index
        return replace(index, fragment_bitmap=(covered | added).serialize())

    return tuple(map(change, indices)) if added else indices


def with_rewritten_fragments(
    indices: Indices,
    groups: Sequence[RewriteGroup],
    rewritten: Iterable[RewrittenIndex],
    *,
    stable_row_ids: bool,
) -> Indices:
    """Return indices after fragments were rewritten without a change to their rows.

    Args:
        indices: The indices before.
        groups: Old fragments and those that replace them, which have their final ids.
        rewritten: The indices that were rewritten together with the fragments.
        stable_row_ids: Whether the table has stable row ids.

    Raises:
        UnsupportedFeatureError: The table keeps a history of moved rows for its indices.
        InvalidInputError: An index is listed as rewritten twice.
    """
    replacements: dict[bytes, RewrittenIndex] = {}
    for rewrite in rewritten:
        if rewrite.old_id in replacements:
            raise InvalidInputError(f"the index {rewrite.old_id.hex()} is rewritten twice")
        replacements[rewrite.old_id] = rewrite
    old = BitMap(fragment.id for group in groups for fragment in group.old_fragments)

    def change(index: IndexMetadata) -> IndexMetadata:
        if index.name == FRAGMENT_REUSE and index.index_version:
            raise UnsupportedFeatureError(
                "fragments cannot be rewritten in a table whose fragment reuse index keeps a "
                "history of moved rows"
            )
        replacement = replacements.get(index.uuid)
        if replacement is not None:
            covering = _with_new_fragments(index, groups, has_deleted_rows=False)
            # Its writer wrote it to the table's directory, even if the old one is in another table.
            return replace(
                covering, uuid=replacement.new_id, files=replacement.new_files, base_id=None
            )
        if is_system_index(index) or not index.fragment_bitmap:
            return index
        if not stable_row_ids or refers_by_address(index):
            return _without_fragments(index, old)
        return _with_new_fragments(index, groups, has_deleted_rows=True)

    return tuple(map(change, indices))


def relevant(indices: Indices, schema: Schema, fragment_ids: Iterable[int]) -> Indices:
    """Return the indices that are worth keeping.

    Args:
        indices: The indices before.
        schema: The columns of the new version.
        fragment_ids: The fragments of the new version.
    """
    field_ids = {field.id for field in schema.walk()}
    survivors = [
        index
        for index in indices
        if is_system_index(index) or field_ids.issuperset(index.field_ids)
    ]
    if any(index.name == FRAGMENT_REUSE and index.index_version for index in survivors):
        # The coverage is mapped through the history, so it is not empty although it looks so.
        return tuple(survivors)
    current_ids = BitMap(fragment_ids)
    num_serving: dict[str, int] = {}
    oldest: dict[str, IndexMetadata] = {}
    for index in survivors:
        if index.fragment_bitmap:
            num_serving.setdefault(index.name, 0)
            num_serving[index.name] += bool(coverage(index) & current_ids)
            previous = oldest.get(index.name)
            if previous is None or _age(index) < _age(previous):
                oldest[index.name] = index

    def keeps(index: IndexMetadata) -> bool:
        # Without a bitmap the coverage is unknown, not empty.
        if index.name == FRAGMENT_REUSE or not index.fragment_bitmap:
            return True
        if num_serving[index.name]:
            return bool(coverage(index) & current_ids)
        return index is oldest[index.name]

    return tuple(filter(keeps, survivors))


def is_system_index(index: IndexMetadata) -> bool:
    """Return whether an index does not serve queries."""
    return index.name in {FRAGMENT_REUSE, WRITE_AHEAD_LOG}


def coverage(index: IndexMetadata) -> BitMap:
    """Return the ids of the fragments that an index covers.

    Raises:
        CorruptDataError: Its bitmap is damaged.
    """
    try:
        return BitMap(decode_bitmap(index.fragment_bitmap, _MAX_FRAGMENTS))
    except CorruptDataError as error:
        error.add_note(f"the fragment bitmap of the index {index.name!r}")
        raise


def _age(index: IndexMetadata) -> tuple[bool, int, int]:
    # The dataset version of an index is not its age: it increases when the index is rewritten.
    return index.created_at is None, index.created_at or 0, index.dataset_version


def _without_fragments(index: IndexMetadata, removed_ids: BitMap) -> IndexMetadata:
    if not index.fragment_bitmap or not removed_ids:
        return index
    covered = coverage(index)
    if not covered & removed_ids:
        return index
    return replace(index, fragment_bitmap=(covered - removed_ids).serialize())


def _with_new_fragments(
    index: IndexMetadata, groups: Sequence[RewriteGroup], *, has_deleted_rows: bool
) -> IndexMetadata:
    """Return an index that covers the new fragments of all groups that it covered completely.

    Args:
        index: The index before.
        groups: Old fragments and those that replace them.
        has_deleted_rows: Whether the index still has the deleted rows that the rewrite dropped.
    """
    before = covered = coverage(index)
    for group in groups:
        old = BitMap(fragment.id for fragment in group.old_fragments)
        if not old & before:
            continue
        covers_all = old.issubset(before)
        has_deletions = any(fragment.deletion_file is not None for fragment in group.old_fragments)
        if not (covers_all and has_deletions and has_deleted_rows):
            covered = covered - old
        if covers_all:
            covered |= BitMap(fragment.id for fragment in group.new_fragments)
    return replace(index, fragment_bitmap=covered.serialize())


def _with_descendants(schema: Schema, field_ids: Collection[int]) -> set[int]:
    descendants: set[int] = set()
    for field_id in field_ids:
        field = schema.field_by_id(field_id)
        descendants.update(
            {field_id} if field is None else {descendant.id for descendant in field.walk()}
        )
    return descendants
