"""The coverage of indices after an operation.

An index lists the fragments that it covers. A query takes the rows of these from the index and
scans the others, so a missing fragment costs time, and one too many gives wrong results. Most
indices refer to rows by row id, which moved rows keep; some by row address, which they do not.

    a column is rewritten in place   the fragments leave the coverage of indices on the column
    rows move to a new fragment      it enters the coverage of indices by row id that are on no
                                     changed column and covered every fragment the rows came from
    fragments are rewritten          indices by row id follow; the old fragments leave the coverage
                                     of others. Old fragments with deleted rows stay covered beside
                                     the new ones: a covered fragment that no longer exists tells
                                     readers that the index has deleted rows
    a column is dropped              indices on it are dropped
    an index covers nothing          the last segment of its name is kept, as a definition to
                                     rebuild; others are dropped

Source:  table.proto, IndexMetadata; measured on the reference.
Differs: Indices on parts of a rewritten struct lose the coverage, too. After a rewrite that drops
         deleted rows, the reference removes the old fragments from the coverage, and its nearest
         vector search returns fewer rows than requested: deleted rows take their places.
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
"""The name of the index that says where compactions have moved rows."""

Indices = tuple[IndexMetadata, ...]

_MOST_FRAGMENTS = 1 << 26
_HAS_ZONES = ("ZoneMapIndexDetails", "BloomFilterIndexDetails")
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
    """Return whether indices may answer with the old values of columns that are changed in place.

    After a compaction with deferred remapping, indices may name removed fragments. Queries
    follow the history of moved rows in the fragment reuse index, and what is changed in place in
    one of the new fragments cannot leave the coverage of such indices.

    When the reference updates a zone map or a Bloom filter, it keeps the zones of fragments that
    had left its coverage, beside the new ones. So rows that were null are found as nulls.

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

    They say of zones of a fragment which values may be in them.
    """
    return index.details is not None and index.details[0].endswith(_HAS_ZONES)


def says_addresses(index: IndexMetadata) -> bool:
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
    """Return indices that no longer cover fragments whose columns have new values.

    Args:
        indices: The indices before.
        rewritten: By fragment id, the ids of the fields that were rewritten in it.
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
        return _less(index, rewritten_ids)

    return tuple(index if is_system_index(index) else change(index) for index in indices)


def with_moved_rows(
    indices: Indices,
    new_ids: Iterable[int],
    source_ids: Iterable[int],
    changed_fields: Collection[int],
) -> Indices:
    """Return indices that cover new fragments if they have all of their rows.

    Args:
        indices: The indices before.
        new_ids: Fragments whose rows were all in the table before.
        source_ids: All fragments from which rows were moved.
        changed_fields: The fields that have new values in the moved rows.
    """
    added, sources = BitMap(new_ids), BitMap(source_ids)

    def change(index: IndexMetadata) -> IndexMetadata:
        if says_addresses(index) or not index.fragment_bitmap:
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
        groups: Which fragments replaced which; the new ones have their ids.
        rewritten: The indices that were rewritten with them.
        stable_row_ids: Whether rows keep their ids as they move.

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
            following = _following(index, groups, has_deleted_rows=False)
            return replace(following, uuid=replacement.new_id, files=replacement.new_files)
        if is_system_index(index) or not index.fragment_bitmap:
            return index
        if not stable_row_ids or says_addresses(index):
            return _less(index, old)
        return _following(index, groups, has_deleted_rows=True)

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
        # Their coverage is followed through the history: it may look empty without being so.
        return tuple(survivors)
    living = BitMap(fragment_ids)
    serving: dict[str, int] = {}
    first: dict[str, IndexMetadata] = {}
    for index in survivors:
        if index.fragment_bitmap:
            serving.setdefault(index.name, 0)
            serving[index.name] += bool(coverage(index) & living)
            best = first.get(index.name)
            if best is None or _age(index) < _age(best):
                first[index.name] = index

    def keeps(index: IndexMetadata) -> bool:
        # Without a bitmap the coverage is unknown, which is not the same as empty.
        if index.name == FRAGMENT_REUSE or not index.fragment_bitmap:
            return True
        if serving[index.name]:
            alone = sum(other.name == index.name for other in survivors) == 1
            return alone or bool(coverage(index) & living)
        return index is first[index.name]

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
        return BitMap(decode_bitmap(index.fragment_bitmap, _MOST_FRAGMENTS))
    except CorruptDataError as error:
        error.add_note(f"the fragment bitmap of the index {index.name!r}")
        raise


def _age(index: IndexMetadata) -> tuple[bool, int, int]:
    # The version that an index was built from is not its age: rewriting the index raises it.
    return index.created_at is None, index.created_at or 0, index.dataset_version


def _less(index: IndexMetadata, removed_ids: BitMap) -> IndexMetadata:
    if not index.fragment_bitmap or not removed_ids:
        return index
    covered = coverage(index)
    if not covered & removed_ids:
        return index
    return replace(index, fragment_bitmap=(covered - removed_ids).serialize())


def _following(
    index: IndexMetadata, groups: Sequence[RewriteGroup], *, has_deleted_rows: bool
) -> IndexMetadata:
    """Return an index that covers the new fragments of a group if it covered all old ones.

    Args:
        index: The index before.
        groups: Which fragments replaced which.
        has_deleted_rows: Whether the index still has the deleted rows that the groups drop.
    """
    before = covered = coverage(index)
    for group in groups:
        old = BitMap(fragment.id for fragment in group.old_fragments)
        if not old & before:
            continue
        follows = old.issubset(before)
        has_deletions = any(fragment.deletion_file is not None for fragment in group.old_fragments)
        if not (follows and has_deletions and has_deleted_rows):
            covered = covered - old
        if follows:
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
