"""Update, Rewrite, Merge, Project, DataReplacement: what the oracle's histories do not reach."""

from dataclasses import replace
from typing import Any

import pytest
from pyroaring import BitMap

from lance_stream.errors import (
    CorruptDataError,
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
    UnsupportedFeatureError,
)
from lance_stream.schema.fields import Schema
from lance_stream.table.apply import Commit, apply, index_coverage
from lance_stream.table.apply.new_fragments import has_only_moved_rows, uniform_stamps
from lance_stream.table.apply.stable_row_ids import check_can_have_row_ids, with_row_ids
from lance_stream.table.feature_flags import DELETION_FILES, FRAGMENT_REUSE_INDEX
from lance_stream.table.fragments.fragment import (
    LINEAGE_FIELD_IDS,
    MAX_FRAGMENT_ID,
    DeletionFile,
    DeletionFileType,
    ExternalFile,
    Fragment,
    LineageColumn,
)
from lance_stream.table.indices import IndexMetadata, decode_index_section, encode_index_section
from lance_stream.table.lineage.row_ids import encode_row_ids
from lance_stream.table.manifest import FragmentList, Manifest
from lance_stream.table.operations.columns import DataReplacement, Merge, Project
from lance_stream.table.operations.moved_rows import (
    ReserveFragments,
    Rewrite,
    RewriteGroup,
    RewrittenIndex,
)
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Delete, Update, UpdateMode
from lance_stream.table.operations.versions import CreateIndex
from tests.commit.tables import CREATION, SCHEMA, new_fragment
from tests.table.apply.test_next_version import ids, killing, stamps, table, then

ID, X = (field.id for field in SCHEMA.fields)
HIDDEN = LineageColumn(LINEAGE_FIELD_IDS["row_ids"], None)


def moved(num_rows: int, *row_ids: int) -> Fragment:
    return replace(new_fragment(num_rows), row_ids=encode_row_ids(list(row_ids)))


def index(name: str, field_id: int, *fragment_ids: int, **arguments: Any) -> IndexMetadata:
    uuid = arguments.pop("uuid", name.encode().ljust(16, b"."))
    return IndexMetadata(uuid, (field_id,), name, 1, BitMap(fragment_ids).serialize(), **arguments)


def with_index(manifest: Manifest, *indices: IndexMetadata) -> Manifest:
    return replace(manifest, index_section=encode_index_section(indices))


def covered(manifest: Manifest) -> dict[str, set[int]]:
    assert manifest.index_section is not None
    indices = decode_index_section(manifest.index_section)
    return {entry.name: set(index_coverage.coverage(entry)) for entry in indices}


def changed_fragment(manifest: Manifest, **fields: Any) -> Manifest:
    """Return a version whose first fragment has other fields."""
    first = replace(manifest.fragments[0], **fields)
    return replace(manifest, fragments=manifest.fragments.replaced({0: first}))


def test_updated_rows_keep_id_and_creation() -> None:
    """Change feeds recognise an update by the unchanged id and creation version."""
    old = then(table(3, 2), Update())
    manifest = then(
        old,
        Update(
            updated_fragments=(killing(old.fragments[0], 1),),
            removed_fragment_ids=(1,),
            new_fragments=(moved(5, 4, 1, 3),),
        ),
    )
    assert [fragment.id for fragment in manifest.fragments] == [0, 2]
    assert ids(manifest.fragments[1]) == [4, 1, 3, 5, 6]
    assert stamps(manifest.fragments[1]) == ([1, 1, 1, 3, 3], [3] * 5)
    assert manifest.next_row_id == 7


def test_updates_decode_only_touched_fragments() -> None:
    """The cost of an update must depend on what it changes, not on the size of the table."""
    old = table(*[3] * 50)
    fresh = replace(old, fragments=FragmentList(old.fragments.raws))
    manifest = then(
        fresh,
        Update(updated_fragments=(killing(old.fragments[7], 1),), new_fragments=(moved(1, 22),)),
    )
    assert stamps(manifest.fragments[-1]) == ([1], [2])
    assert fresh.fragments.num_decoded == 1


def test_moved_rows_keep_created_versions() -> None:
    """The row may have been in any fragment."""
    manifest = then(table(3, 2), Update(new_fragments=(moved(2, 4, 0),)))
    assert stamps(manifest.fragments[-1]) == ([1, 1], [2, 2])


def test_unassigned_ids_are_refused() -> None:
    """A moved row needs the id of an existing row, since a later insert would get the same id."""
    with pytest.raises(CorruptDataError, match="row id 5, but the table has assigned none from 5"):
        then(table(3, 2), Update(new_fragments=(moved(2, 1, 5),)))
    with pytest.raises(InvalidInputError, match="of 1 rows states 2 row ids"):
        then(table(3, 2), Update(new_fragments=(moved(1, 1, 2),)))


def test_write_ahead_log_rows_are_refused() -> None:
    """The rows of a write-ahead log would be lost, as no part of this package merges them."""
    with pytest.raises(UnsupportedFeatureError, match="write-ahead log"):
        then(table(3), Update(compacted_sstables=(b"x",)))


@pytest.mark.floors
def test_in_place_updates_stamp_named_rows() -> None:
    """Only the named rows changed, and stamping the whole fragment would report false updates."""
    old = table(4)
    planned = replace(old.fragments[0], files=(new_fragment(4).files[0],))
    named = Update(
        updated_fragments=(planned,),
        fields_modified=(X,),
        update_mode=UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offset_bitmaps={0: BitMap([1, 2]).serialize()},
    )
    assert stamps(then(old, named).fragments[0]) == ([1] * 4, [1, 2, 2, 1])
    listed = replace(named, updated_fragment_offset_bitmaps={}, updated_fragment_offsets={0: (3,)})
    assert stamps(then(old, listed).fragments[0]) == ([1] * 4, [1, 1, 1, 2])
    assert (
        stamps(then(old, replace(listed, updated_fragment_offsets={})).fragments[0])[1] == [1] * 4
    )
    with pytest.raises(InvalidInputError, match="row 4 of fragment 0"):
        then(old, replace(listed, updated_fragment_offsets={0: (4,)}))
    unstated = changed_fragment(old, last_updated_at_versions=None)
    assert stamps(then(unstated, listed).fragments[0])[1] == [1, 1, 1, 2]
    with pytest.raises(UnsupportedFeatureError, match="row versions of fragment 0"):
        then(changed_fragment(old, last_updated_at_versions=HIDDEN), listed)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        then(old, replace(named, updated_fragment_offset_bitmaps={0: b"no bitmap"}))
    unstable = then(table(4, stable=False), named)
    assert unstable.fragments[0].last_updated_at_versions is None


def test_in_place_updates_can_remove_fragments() -> None:
    """An upsert deletes the last rows of one fragment and changes others in place."""
    old = table(3, 2, 2)
    manifest = then(
        old,
        Update(
            updated_fragments=(old.fragments[0], killing(old.fragments[1], 2)),
            removed_fragment_ids=(2,),
            update_mode=UpdateMode.REWRITE_COLUMNS,
            updated_fragment_offsets={0: (1,), 1: (0,), 2: (0,)},
        ),
    )
    assert [(entry.id, stamps(entry)[1]) for entry in manifest.fragments] == [(0, [1, 2, 1])]


def test_in_place_updates_drop_unused_files() -> None:
    """A file whose columns are all in newer files would be kept and copied forever."""
    old = table(3)
    (file,) = old.fragments[0].files
    unused = replace(file, path="unused.lance", field_ids=(-2, 9), column_indices=(0, 1))
    planned = replace(old.fragments[0], files=(unused, file))
    operation = Update(updated_fragments=(planned,), update_mode=UpdateMode.REWRITE_COLUMNS)
    assert then(old, operation).fragments[0].files == (file,)


@pytest.mark.floors
def test_indices_follow_rows_they_fully_cover() -> None:
    """An index that claims a fragment without holding all of its rows would lose matches."""
    old = with_index(
        table(3, 2), index("all", X, 0, 1), index("some", X, 0), index("key", ID, 0, 1)
    )
    manifest = then(
        old,
        Update(
            updated_fragments=(killing(old.fragments[0], 1), killing(old.fragments[1], 1)),
            new_fragments=(moved(1, 0), moved(2, 3)),
            fields_for_preserving_frag_bitmap=(ID,),
        ),
    )
    assert covered(manifest) == {"all": {0, 1, 2}, "some": {0}, "key": {0, 1}}


def test_indices_by_address_follow_no_rows() -> None:
    """They would claim a fragment and find none of its rows: with zones, or in unstable tables."""
    zones = index("zones", X, 0, details=("/lance.table.ZoneMapIndexDetails", b""))
    for stable, entry, fragment_ids in (
        (True, index("ids", X, 0), {0, 1}),
        (True, zones, {0}),
        (False, index("addresses", X, 0), {0}),
    ):
        old = with_index(table(3, stable=stable), entry)
        update = Update(
            updated_fragments=(killing(old.fragments[0], 1),), new_fragments=(moved(1, 0),)
        )
        assert covered(then(old, update)) == {entry.name: fragment_ids}


def test_moved_rows_leave_other_columns_coverage() -> None:
    """The operation names the columns, too, but the fragment's other rows did not change."""
    old = with_index(table(3), index("xs", X, 0))
    update = Update(
        updated_fragments=(killing(old.fragments[0], 1),),
        new_fragments=(moved(1, 0),),
        fields_modified=(X,),
        fields_for_preserving_frag_bitmap=(X,),
    )
    assert covered(then(old, update)) == {"xs": {0}}
    in_place = replace(update, new_fragments=(), update_mode=UpdateMode.REWRITE_COLUMNS)
    assert covered(then(old, in_place)) == {"xs": set()}
    assert covered(then(old, replace(in_place, fields_modified=()))) == {"xs": {0}}


def rewritten(old: Manifest, *fragment_ids: int, **arguments: Any) -> Rewrite:
    chosen = [fragment for fragment in old.fragments if fragment.id in fragment_ids]
    every = [row_id for value in chosen for row_id in ids(value)]
    next_id = (old.max_fragment_id or 0) + 1
    new = replace(moved(len(every), *every), **{"id": next_id, **arguments})
    return Rewrite((RewriteGroup(tuple(chosen), (new,)),))


def test_rewritten_fragments_are_placed_by_id() -> None:
    """The specification keeps fragments in ascending order of their ids."""
    old = then(table(3, 2), ReserveFragments(1))
    old = then(old, Update(new_fragments=(new_fragment(1),)))
    manifest = then(old, rewritten(old, 0, 1, id=2))
    assert [(fragment.id, ids(fragment)) for fragment in manifest.fragments] == [
        (2, [0, 1, 2, 3, 4]),
        (3, [5]),
    ]
    assert manifest.max_fragment_id == 3
    without_reserve = then(old, rewritten(old, 0, 1))
    assert [fragment.id for fragment in without_reserve.fragments] == [3, 4]
    assert without_reserve.max_fragment_id == 4


def test_rewrites_that_lose_rows_are_refused() -> None:
    """A compaction must neither lose rows or row ids nor take ids that are in use."""
    old = table(3, 2)
    fine = rewritten(old, 0, 1)
    (group,) = fine.groups
    for new, match in (
        (replace(moved(4, 0, 1, 2, 3), id=2), "have 5 live rows"),
        (replace(group.new_fragments[0], row_ids=None), "row ids"),
        (replace(group.new_fragments[0], id=0), r"cannot have the ids \[0\]"),
        (replace(group.new_fragments[0], id=1 << 32), r"cannot have the ids \[4294967296\]"),
        (killing(group.new_fragments[0], 1), "have 5 live rows"),
        (killing(group.new_fragments[0], 5), "no live row"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            then(old, Rewrite((replace(group, new_fragments=(new,)),)))
    halves = (replace(moved(3, 0, 1, 2), id=2), replace(moved(2, 3, 4), id=2))
    with pytest.raises(InvalidInputError, match=r"cannot have the ids \[2, 2\]"):
        then(old, Rewrite((replace(group, new_fragments=halves),)))
    with pytest.raises(InvalidInputError, match="rewritten twice"):
        then(old, Rewrite((group, group)))
    taken = replace(group, new_fragments=(replace(group.new_fragments[0], id=1),))
    with pytest.raises(RetryableConflictError, match=r"used the fragment ids \[1\]"):
        then(old, Rewrite((taken,)))
    with pytest.raises(IncompatibleConflictError, match="no such fragment"):
        then(then(old, Update(removed_fragment_ids=(1,))), fine)


def test_old_writers_rewrites_have_no_groups() -> None:
    """Their fragments are one group; without any, nothing is rewritten."""
    old = table(3, 2)
    (group,) = rewritten(old, 0, 1).groups
    operation = Rewrite((), (), group.old_fragments, group.new_fragments)
    assert then(old, operation).fragments == then(old, Rewrite((group,))).fragments
    assert then(old, Rewrite(())).fragments == old.fragments


def test_only_moved_rows_have_hidden_lineage() -> None:
    """A commit assigns the row ids of new rows, and so cannot leave them in a data file."""
    old = table(3)
    created = old.fragments[0].created_at_versions
    for row_ids, stated, match in (
        (HIDDEN, None, "hidden columns only if"),
        (HIDDEN, HIDDEN, ""),
        (HIDDEN, created, ""),
        (None, HIDDEN, "hidden columns only if"),
        (encode_row_ids([1, 2]), HIDDEN, "hidden columns only if"),
        (encode_row_ids([0, 1, 2]), HIDDEN, ""),
    ):
        new = replace(new_fragment(3), row_ids=row_ids, created_at_versions=stated)
        operation = Update(removed_fragment_ids=(0,), new_fragments=(new,))
        assert has_only_moved_rows(new) is (
            row_ids is HIDDEN or row_ids == encode_row_ids([0, 1, 2])
        )
        if match:
            with pytest.raises(InvalidInputError, match=match):
                then(old, operation)
            continue
        (fragment,) = then(old, operation).fragments
        assert (fragment.row_ids, fragment.created_at_versions) == (row_ids, stated)
        assert fragment.last_updated_at_versions == uniform_stamps(new, 2)
    external = replace(new_fragment(3), row_ids=ExternalFile("x", 0, 1))
    with pytest.raises(UnsupportedFeatureError, match="in a separate file"):
        then(old, Update(new_fragments=(external,)))


def test_new_rows_ignore_stated_creation() -> None:
    """Only rows that were in the table before can have an earlier version."""
    old = table(3)
    stated = replace(new_fragment(2), created_at_versions=old.fragments[0].created_at_versions)
    none_moved = replace(stated, row_ids=encode_row_ids([]))
    for new in (stated, none_moved):
        fragment = then(old, Update(new_fragments=(new,))).fragments[-1]
        assert (ids(fragment), stamps(fragment)) == ([3, 4], ([2, 2], [2, 2]))


def test_each_fragment_may_state_its_creation() -> None:
    """The creation of the others is looked up, and each gets its own."""
    old = then(then(table(2), Append((new_fragment(1),))), Append((new_fragment(2),)))
    assert [stamps(fragment)[0] for fragment in old.fragments] == [[1, 1], [2], [3, 3]]
    stated = replace(moved(1, 0), created_at_versions=uniform_stamps(new_fragment(1), 3))
    update = Update(new_fragments=(moved(1, 2), stated, moved(2, 1, 4)))
    manifest = then(old, update)
    assert [stamps(fragment)[0] for fragment in manifest.fragments[3:]] == [[2], [3], [1, 3]]
    future = replace(stated, created_at_versions=uniform_stamps(new_fragment(1), 4))
    with pytest.raises(CorruptDataError, match="created-at version 4, but the newest one is 3"):
        then(old, replace(update, new_fragments=(future,)))


def test_creation_is_searched_in_row_ids() -> None:
    """Fragments without row ids have no moved row; those in data files cannot be searched."""
    update = Update(updated_fragments=(killing(table(3).fragments[0], 1),))
    update = replace(update, new_fragments=(moved(1, 1),))
    bare = changed_fragment(table(3), row_ids=None, created_at_versions=None)
    assert stamps(then(bare, update).fragments[1])[0] == [2]
    for name in ("row_ids", "created_at_versions"):
        hidden = changed_fragment(table(3), **{name: HIDDEN})
        with pytest.raises(UnsupportedFeatureError, match="of fragment 0 are stored outside"):
            then(hidden, update)


def test_concurrently_deleted_rows_stay_deleted() -> None:
    """A compaction that read the older version must not bring the rows back."""
    old = table(3, 2)
    (group,) = rewritten(old, 0, 1).groups
    dying = then(old, Delete((killing(old.fragments[0], 1),), ()))
    carried = replace(group, new_fragments=(killing(replace(group.new_fragments[0], id=2), 1),))
    manifest = then(dying, Rewrite((carried,)))
    (fragment,) = manifest.fragments
    assert (fragment.id, fragment.num_live_rows, ids(fragment)) == (2, 4, [0, 1, 2, 3, 4])
    assert manifest.reader_feature_flags & DELETION_FILES
    with pytest.raises(InvalidInputError, match="have 4 live rows"):
        then(dying, Rewrite((group,)))


@pytest.mark.floors
def test_address_indices_do_not_follow_rewrites() -> None:
    """A compaction changes addresses and offsets, so only indices over stable ids stay valid."""
    zones = ("/lance.table.ZoneMapIndexDetails", b"")
    old = with_index(
        table(3, 2, 1),
        index("ids", X, 0, 1, 2),
        index("zones", X, 0, 1, 2, details=zones),
        index("split", X, 0, 2),
        index("versioned", X, 0, 1, index_version=1),
        index("new", X, 0, 1, uuid=b"o" * 16),
    )
    operation = replace(
        rewritten(old, 0, 1), rewritten_indices=(RewrittenIndex(b"o" * 16, b"n" * 16),)
    )
    manifest = then(old, operation)
    assert covered(manifest) == {
        "ids": {2, 3},
        "zones": {2},
        "split": {2},
        "versioned": {3},
        "new": {3},
    }
    twice = replace(operation, rewritten_indices=operation.rewritten_indices * 2)
    with pytest.raises(InvalidInputError, match="rewritten twice"):
        then(old, twice)


def test_rewrites_with_fragment_reuse_are_refused() -> None:
    """The fragment reuse index would need an entry for the rewrite, which this package does not
    write.
    """
    reuse = index(index_coverage.FRAGMENT_REUSE, X, 0, index_version=1)
    old = with_index(table(3, 2), reuse)
    flagged = replace(
        old,
        reader_feature_flags=old.reader_feature_flags | FRAGMENT_REUSE_INDEX,
        writer_feature_flags=old.writer_feature_flags | FRAGMENT_REUSE_INDEX,
    )
    with pytest.raises(UnsupportedFeatureError, match="history of moved rows"):
        then(flagged, rewritten(flagged, 0, 1))


def test_coverage_ends_without_stable_ids() -> None:
    """Without stable ids an index holds addresses, which the rewrite invalidates."""
    old = with_index(table(3, 2, stable=False), index("ids", X, 0, 1))
    group = RewriteGroup(tuple(old.fragments), (replace(new_fragment(5), id=2),))
    assert covered(then(old, Rewrite((group,)))) == {"ids": set()}


def test_a_merge_restates_fragments_and_rows() -> None:
    """A merge only adds columns, so a missing fragment or row count shows that rows would
    be lost.
    """
    old = table(3, 2)
    with pytest.raises(InvalidInputError, match=r"\[1\] are missing"):
        then(old, Merge((old.fragments[0],), SCHEMA))
    with pytest.raises(InvalidInputError, match="3 rows, but 4"):
        then(old, Merge((replace(old.fragments[0], physical_rows=4), old.fragments[1]), SCHEMA))
    unstated = replace(old.fragments[0], physical_rows=0)  # planned on a version of an old writer
    merged = then(old, Merge((unstated, old.fragments[1]), SCHEMA))
    assert [fragment.physical_rows for fragment in merged.fragments] == [3, 2]


def test_merges_stamp_only_changed_fragments() -> None:
    """Rows of untouched fragments did not change, and the feed must not report them."""
    old = table(3, 2)
    grown = replace(old.fragments[1], files=(*old.fragments[1].files, new_fragment(2).files[0]))
    manifest = then(old, Merge((old.fragments[0], grown, new_fragment(1)), SCHEMA))
    assert [stamps(fragment)[1] for fragment in manifest.fragments] == [[1, 1, 1], [2, 2], [2]]
    assert [ids(fragment) for fragment in manifest.fragments] == [[0, 1, 2], [3, 4], [5]]
    unstable = table(2, stable=False)
    merged = then(unstable, Merge((replace(grown, id=0),), SCHEMA))
    assert merged.fragments[0].files == grown.files
    assert merged.fragments[0].last_updated_at_versions is None


def test_dropped_columns_drop_files_and_indices() -> None:
    """A file or index of a dropped column would be opened for nothing; the rows are unchanged."""
    (file,) = new_fragment(3).files
    files = (
        replace(file, path="a.lance", field_ids=(ID,), column_indices=(0,)),
        replace(file, path="b.lance", field_ids=(X,), column_indices=(0,)),
    )
    start = table(3, 2)
    old = replace(
        start, fragments=start.fragments.replaced({0: replace(start.fragments[0], files=files)})
    )
    old = with_index(old, index("ids", ID, 0, 1), index("xs", X, 0, 1))
    manifest = then(old, Project(SCHEMA.fields[:1]))
    assert [len(fragment.files) for fragment in manifest.fragments] == [1, 1]
    assert covered(manifest) == {"ids": {0, 1}}
    only_dropped = with_index(old, index("xs", X, 0, 1))
    assert then(only_dropped, Project(SCHEMA.fields[:1])).index_section is None
    assert [stamps(fragment)[1] for fragment in manifest.fragments] == [[1, 1, 1], [1, 1]]


def test_renamed_columns_decode_no_fragments() -> None:
    """No file can lose its last column, so the cost must not grow with the table."""
    old = table(*[1] * 20)
    fresh = replace(old, fragments=FragmentList(old.fragments.raws))
    renamed = (SCHEMA.fields[0], replace(SCHEMA.fields[1], name="y"))
    assert then(fresh, Project(renamed)).fragments == fresh.fragments
    assert fresh.fragments.num_decoded == 0


@pytest.mark.floors
def test_data_files_are_replaced_or_added() -> None:
    """A replacement takes the place of a whole file, or is added next to it."""
    old = with_index(table(3, 2), index("ids", ID, 0, 1), index("xs", X, 0, 1))
    (file,) = old.fragments[0].files
    whole = replace(file, path="whole.lance")
    manifest = then(old, DataReplacement(((0, whole),)))
    assert [file.path for file in manifest.fragments[0].files] == ["whole.lance"]
    assert stamps(manifest.fragments[0]) == ([1, 1, 1], [2, 2, 2])
    assert stamps(manifest.fragments[1])[1] == [1, 1]
    assert covered(manifest) == {"ids": {1}, "xs": {1}}
    part = replace(file, path="part.lance", field_ids=(X,), column_indices=(0,))
    manifest = then(old, DataReplacement(((0, part),)))
    assert [file.field_ids for file in manifest.fragments[0].files] == [(ID, -2), (X,)]
    assert covered(manifest) == {"ids": {0, 1}, "xs": {1}}
    again = then(manifest, DataReplacement(((0, replace(part, path="again.lance")),)))
    assert [file.path for file in again.fragments[0].files] == [file.path, "again.lance"]
    added = replace(part, path="added.lance", field_ids=(99,))
    manifest = then(old, DataReplacement(((0, added),)))
    assert [file.path for file in manifest.fragments[0].files] == [file.path, "added.lance"]
    unstable = then(table(3, stable=False), DataReplacement(((0, whole),)))
    assert unstable.fragments[0].last_updated_at_versions is None
    legacy = replace(file, path="legacy.lance", field_ids=(ID,), file_version=(0, 1))
    unused = replace(file, path="unused.lance", field_ids=(X, 7))
    mixed = changed_fragment(old, files=(legacy, unused))
    manifest = then(mixed, DataReplacement(((0, part),)))
    assert [file.path for file in manifest.fragments[0].files] == ["legacy.lance", "part.lance"]
    mixed = changed_fragment(old, files=(replace(legacy, field_ids=(ID, X)),))
    with pytest.raises(InvalidInputError, match=r"in a file of version 0\.1"):
        then(mixed, DataReplacement(((0, part),)))
    for replacements, match in (
        (((9, whole),), "no such fragment"),
        (((0, whole), (1, part)), "the same columns"),
        (((0, replace(part, field_ids=(X, 99), column_indices=(0, 1))),), "write two files"),
        (((0, replace(whole, file_version=(2, 1))),), "file version 2.1"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            then(old, DataReplacement(replacements))


def test_an_index_keeps_its_last_segment() -> None:
    """The segment stays even when it covers no fragment."""
    segments = [
        index("xs", X, 0, uuid=b"a" * 16, created_at=5),
        index("xs", X, 1, uuid=b"b" * 16, created_at=3),
    ]
    old = with_index(table(3, 2, 1), *segments)
    deleted = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, 3)
    half = then(old, Update(updated_fragments=(replace(old.fragments[0], deletion_file=deleted),)))
    assert [entry.uuid for entry in decode_index_section(half.index_section or b"")] == [b"b" * 16]
    none = then(old, Update(removed_fragment_ids=(0, 1)))
    assert [entry.uuid for entry in decode_index_section(none.index_section or b"")] == [b"b" * 16]


def test_tables_without_indices_have_no_section() -> None:
    """An empty section would be read with every version."""
    old = table(3)
    assert then(old, CreateIndex((), ())).index_section is None
    with_one = then(old, CreateIndex((index("xs", X, 0),), ()))
    assert covered(with_one) == {"xs": {0}}
    assert then(with_one, CreateIndex((), (index("xs", X, 0),))).index_section is None


def test_stable_row_ids_change_nothing_else() -> None:
    """Another change of the same commit would be lost, or change rows without a version."""
    old = table(3, 2, stable=False)
    numbered, _ = with_row_ids(old.fragments, 0)
    creation = replace(CREATION, stable_row_ids=True)
    manifest = apply(old, Merge(tuple(numbered), SCHEMA), Commit(1000), creation)
    assert [ids(fragment) for fragment in manifest.fragments] == [[0, 1, 2], [3, 4]]
    others, _ = with_row_ids(old.fragments, 1)
    for fragments, schema in (
        (others, SCHEMA),
        (numbered[:1], SCHEMA),
        (numbered, Schema(SCHEMA.fields[:1])),
    ):
        with pytest.raises(InvalidInputError, match="must change nothing else"):
            apply(old, Merge(tuple(fragments), schema), Commit(1000), creation)
    uncounted = [replace(fragment, physical_rows=0) for fragment in old.fragments]
    from_old_writer = replace(old, fragments=FragmentList.of(uncounted))
    counted = apply(from_old_writer, Merge(tuple(numbered), SCHEMA), Commit(1000), creation)
    assert counted.fragments == manifest.fragments
    without = replace(CREATION, stable_row_ids=False)
    plain = apply(old, Merge(tuple(old.fragments), SCHEMA), Commit(1000), without)
    assert plain.fragments[0].row_ids is None
    again = apply(manifest, Merge(tuple(manifest.fragments), SCHEMA), Commit(1000), creation)
    assert again.fragments == manifest.fragments


def test_indices_by_address_prevent_row_ids() -> None:
    """They would find other rows once rows have ids of their own."""
    old = table(3, stable=False)
    unused = replace(index("", X), name=index_coverage.FRAGMENT_REUSE)
    check_can_have_row_ids(old)
    check_can_have_row_ids(with_index(old, unused))
    with pytest.raises(InvalidInputError, match="address: 'xs'"):
        check_can_have_row_ids(with_index(old, unused, index("xs", X, 0)))
    with pytest.raises(UnsupportedFeatureError, match="keeps a history of moved rows"):
        check_can_have_row_ids(replace(old, writer_feature_flags=FRAGMENT_REUSE_INDEX))


def test_updates_of_missing_fragments_are_refused() -> None:
    """The rows to move are searched in the fragments, of which another writer removed one."""
    with pytest.raises(InvalidInputError, match="rows of fragment 9 are to be deleted or changed"):
        then(table(3), Update(removed_fragment_ids=(9,), new_fragments=(new_fragment(1),)))


def test_reserved_ids_are_not_reused() -> None:
    """A rewrite that runs later uses the reserved ids for its fragments."""
    manifest = then(then(table(3), ReserveFragments(4)), Update(new_fragments=(new_fragment(1),)))
    assert [fragment.id for fragment in manifest.fragments] == [0, 5]
    assert then(table(3), ReserveFragments(MAX_FRAGMENT_ID)).max_fragment_id == MAX_FRAGMENT_ID
    with pytest.raises(InvalidInputError, match="unused fragment ids"):
        then(table(3), ReserveFragments(MAX_FRAGMENT_ID + 1))
    assert then(table(), ReserveFragments(1)).max_fragment_id == 0
    assert then(table(), ReserveFragments(0)).max_fragment_id is None


def test_indices_of_unknown_coverage_stay_unchanged() -> None:
    """Old writers state no bitmap: which fragments an index covers is unknown, not nothing."""
    unknown = replace(index("xs", X), fragment_bitmap=b"")
    old = with_index(table(3, 2), unknown, index("ids", ID, 0, 1))
    first = old.fragments[0]
    rewritten = Update(
        updated_fragments=(replace(first, files=(new_fragment(3).files[0],)),),
        fields_modified=(X,),
        update_mode=UpdateMode.REWRITE_COLUMNS,
    )
    operations: list[Operation] = [
        Delete((), deleted_fragment_ids=(0, 1)),
        rewritten,
        Update(updated_fragments=(killing(first, 1),), new_fragments=(moved(1, 1),)),
        Rewrite((RewriteGroup(tuple(old.fragments), (replace(moved(5, *range(5)), id=2),)),)),
    ]
    for operation in operations:
        section = then(old, operation).index_section
        assert section is not None
        assert unknown in decode_index_section(section)


def test_uncovered_indices_are_dropped_beside_others() -> None:
    """One segment of a name is the definition to rebuild from; unknown coverage is no segment."""
    segments = [
        index("xs", X, 0, uuid=b"a" * 16),
        index("xs", X, 1, uuid=b"b" * 16),
        replace(index("xs", X, uuid=b"c" * 16), fragment_bitmap=b""),
    ]
    manifest = then(with_index(table(3, 2), *segments), Update(removed_fragment_ids=(0,)))
    remaining = [entry.uuid[:1] for entry in decode_index_section(manifest.index_section or b"")]
    assert remaining == [b"b", b"c"]
