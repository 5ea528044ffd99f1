"""Which indices a new version keeps."""

from dataclasses import replace

from pyroaring import BitMap

from lance_stream.table.apply.index_coverage import (
    coverage,
    relevant,
    with_rewritten_fragments,
)
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType
from lance_stream.table.indices import IndexMetadata
from lance_stream.table.operations.moved_rows import RewriteGroup, RewrittenIndex
from tests.commit.tables import SCHEMA, new_fragment

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
    index = segment(1, 20, 1, 2)
    rewritten = RewrittenIndex(index.uuid, bytes(15) + b"x")
    (new,) = with_rewritten_fragments((index,), [group], [rewritten], stable_row_ids=True)
    assert (new.uuid, list(coverage(new))) == (rewritten.new_id, [9])
    (original,) = with_rewritten_fragments((index,), [group], [], stable_row_ids=True)
    assert (original.uuid, list(coverage(original))) == (index.uuid, [1, 2, 9])


def test_the_oldest_segment_stays_if_none_serves() -> None:
    """It remembers the index, so that a later refresh covers the new fragments."""
    segments = [segment(1, 20, 1), segment(2, 10, 2), segment(3, 30, 3), segment(4, None, 4)]
    assert relevant(tuple(segments), SCHEMA, [7, 8]) == (segments[1],)
    assert relevant(tuple(segments), SCHEMA, [3, 8]) == (segments[2],)
