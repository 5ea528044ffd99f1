"""Which indices a new version keeps."""

from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_stream.schema.fields import TOMBSTONED_ID
from lance_stream.table.apply import Commit, apply
from lance_stream.table.apply.index_coverage import (
    FRAGMENT_REUSE,
    coverage,
    keep_old_values,
    refers_by_address,
    relevant,
    with_rewritten_fragments,
    without_rewritten_columns,
)
from lance_stream.table.fragments.fragment import DataFile, DeletionFile, DeletionFileType
from lance_stream.table.indices import (
    IndexMetadata,
    decode_index_section,
    encode_index_section,
)
from lance_stream.table.operations.columns import Merge
from lance_stream.table.operations.moved_rows import RewriteGroup, RewrittenIndex
from lance_stream.table.operations.rows import Overwrite
from tests.commit.tables import CREATION, SCHEMA, new_fragment

SEGMENT = IndexMetadata(bytes(16), (0,), "x_idx", 1)


def segment(number: int, created_at: int | None, *fragments: int) -> IndexMetadata:
    bitmap = BitMap(fragments).serialize()
    return replace(
        SEGMENT, uuid=bytes([number]) * 16, created_at=created_at, fragment_bitmap=bitmap
    )


def test_rewritten_indices_cover_only_new_fragments() -> None:
    """The writer has removed the dropped rows from such an index; another one still has them, and
    would return them after a restore unless it names their fragments.
    """
    deletion_file = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, 2)
    old = [
        replace(new_fragment(5), id=1),
        replace(new_fragment(5), id=2, deletion_file=deletion_file),
    ]
    group = RewriteGroup(tuple(old), (replace(new_fragment(8), id=9),))
    index = replace(segment(1, 20, 1, 2), base_id=0)
    rewritten = RewrittenIndex(index.uuid, bytes(15) + b"x")
    (new,) = with_rewritten_fragments((index,), [group], [rewritten], stable_row_ids=True)
    assert (new.uuid, list(coverage(new))) == (rewritten.new_id, [9])
    assert new.base_id is None  # it is in the directory of the table that was rewritten
    (original,) = with_rewritten_fragments((index,), [group], [], stable_row_ids=True)
    assert (original.uuid, list(coverage(original))) == (index.uuid, [1, 2, 9])


def test_oldest_segment_remembers_the_index() -> None:
    """Without any segment, a later refresh would not know that the column is indexed."""
    segments = [segment(1, 20, 1), segment(2, 10, 2), segment(3, 30, 3), segment(4, None, 4)]
    assert relevant(tuple(segments), SCHEMA, [7, 8]) == (segments[1],)
    assert relevant(tuple(segments), SCHEMA, [3, 8]) == (segments[2],)


@pytest.mark.parametrize(
    ("details", "version", "expected"),
    [
        (None, 1, False),
        ("/lance.table.BTreeIndexDetails", None, False),
        ("/lance.table.BTreeIndexDetails", 0, False),
        ("/lance.table.BTreeIndexDetails", 1, True),
        ("/lance.table.BitmapIndexDetails", 1, False),
        ("/lance.index.pb.FMIndexDetails", 0, True),
        ("/lance.index.pb.fmindexdetails", None, True),
        ("/lance.index.pb.ZoneMapIndexDetails", None, True),
        ("/lance.index.pb.BloomFilterIndexDetails", 0, True),
        ("/lance.index.pb.InvertedIndexDetails", 1, False),
    ],
)
def test_some_indices_refer_by_address(
    details: str | None, version: int | None, expected: bool
) -> None:
    """An index that refers to rows by address loses those that move, although ids are stable."""
    described = None if details is None else (details, b"")
    index = replace(SEGMENT, details=described, index_version=version)
    assert refers_by_address(index) == expected


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (None, False),
        (SEGMENT, False),
        (replace(SEGMENT, details=("/lance.table.BTreeIndexDetails", b"")), False),
        (replace(SEGMENT, details=("/lance.index.pb.ZoneMapIndexDetails", b"")), True),
        (replace(SEGMENT, details=("/x.BloomFilterIndexDetails", b""), field_ids=(1,)), False),
        (replace(SEGMENT, name=FRAGMENT_REUSE, field_ids=()), True),
    ],
)
def test_zones_keep_values_of_changed_columns(index: IndexMetadata | None, expected: bool) -> None:
    """Then a column is not changed in place: queries would find its old values."""
    table = apply(None, Overwrite((new_fragment(5),), SCHEMA), Commit(1000), CREATION)
    section = None if index is None else encode_index_section((SEGMENT, index))
    assert keep_old_values(replace(table, index_section=section), {0}) is expected


def test_system_indices_keep_their_coverage() -> None:
    """They serve no query, and their coverage means something else."""
    reuse = replace(segment(1, None, 1, 2), name=FRAGMENT_REUSE, field_ids=(99,))
    group = RewriteGroup((replace(new_fragment(5), id=1),), (replace(new_fragment(5), id=9),))
    assert without_rewritten_columns((reuse,), {1: (99,)}, SCHEMA) == (reuse,)
    assert with_rewritten_fragments((reuse,), [group], [], stable_row_ids=True) == (reuse,)
    assert relevant((reuse, segment(2, 1, 7)), SCHEMA, [7]) == (reuse, segment(2, 1, 7))


def test_unknown_columns_end_their_coverage() -> None:
    """A rewritten column may be gone from the schema when the operation is applied."""
    index = replace(segment(1, None, 1, 2), field_ids=(99,))
    (changed,) = without_rewritten_columns((index,), {1: (99,)}, SCHEMA)
    assert list(coverage(changed)) == [2]


def test_partly_covered_groups_are_not_covered() -> None:
    """The new fragments have rows that the index lacks."""
    deletions = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 7, 2)
    old = [replace(new_fragment(5), id=number, deletion_file=deletions) for number in (1, 2)]
    new = (replace(new_fragment(6), id=9),)
    for group, expected in (
        (RewriteGroup(tuple(old), new), [3]),
        (RewriteGroup((), new), [1, 3]),
        (RewriteGroup((old[1],), new), [1, 3]),
    ):
        (index,) = with_rewritten_fragments(
            (segment(1, 5, 1, 3),), [group], [], stable_row_ids=True
        )
        assert list(coverage(index)) == expected


def test_mapped_coverage_is_not_judged() -> None:
    """The history of compactions maps the coverage to later fragments. Without it, a segment that
    covers no fragment serves no row.
    """
    unused, used = segment(1, 20, 1), segment(2, 10, 7)
    history = replace(SEGMENT, uuid=b"h" * 16, name=FRAGMENT_REUSE, index_version=1)
    without_history = replace(history, index_version=0)
    for reuse_index, expected in ((history, (unused, used)), (without_history, (used,))):
        indices = relevant((reuse_index, unused, used), SCHEMA, [7])
        assert indices == (reuse_index, *expected)


@pytest.mark.parametrize("field_id", [0, 1])
def test_merges_end_coverage_of_moved_columns(field_id: int) -> None:
    """A merge that stores a column in another file has rewritten its values, also those of the
    first column, whose id is 0.
    """
    indices = (
        replace(segment(1, 20, 0), name="first", field_ids=(0,)),
        replace(segment(2, 20, 0), name="second", field_ids=(1,)),
    )
    commit = Commit(timestamp_nanos=1000)
    table = apply(None, Overwrite((new_fragment(5),), SCHEMA), commit, CREATION)
    table = replace(table, index_section=encode_index_section(indices))
    (fragment,) = table.fragments
    (file,) = fragment.files
    ids = tuple(TOMBSTONED_ID if other == field_id else other for other in file.field_ids)
    moved = DataFile("moved.lance", (field_id,), (0,), (2, 2), 1000)
    merge = Merge(
        (replace(fragment, files=(replace(file, field_ids=ids), moved)),),
        SCHEMA,
        preserves_nullability=True,
    )
    section = apply(table, merge, commit).index_section
    assert section is not None
    covered = {index.field_ids[0]: list(coverage(index)) for index in decode_index_section(section)}
    assert covered == {field_id: [], 1 - field_id: [0]}
