"""Which indices a new version keeps."""

from dataclasses import replace

from pyroaring import BitMap

from lance_stream.table.apply.index_coverage import relevant
from lance_stream.table.indices import IndexMetadata
from tests.commit.tables import SCHEMA

SEGMENT = IndexMetadata(bytes(16), (0,), "x_idx", 1)


def segment(number: int, created_at: int | None, *fragments: int) -> IndexMetadata:
    bitmap = BitMap(fragments).serialize()
    return replace(
        SEGMENT, uuid=bytes([number]) * 16, created_at=created_at, fragment_bitmap=bitmap
    )


def test_the_oldest_segment_stays_if_none_serves() -> None:
    """It remembers the index, so that a later refresh covers the new fragments."""
    segments = [segment(1, 20, 1), segment(2, 10, 2), segment(3, 30, 3), segment(4, None, 4)]
    assert relevant(tuple(segments), SCHEMA, [7, 8]) == (segments[1],)
    assert relevant(tuple(segments), SCHEMA, [3, 8]) == (segments[2],)
