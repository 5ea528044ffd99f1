"""What the manifest says about indices, as old and other writers state it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_stream.maintenance.indices.coverage import IndexCoverage, index_coverage
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.table.indices import IndexFile, IndexMetadata, encode_index_section
from lance_stream.table.manifest import FragmentList
from tests.commit.tables import create


def table_of(indices: Sequence[IndexMetadata], fragment_ids: Sequence[int]) -> TableVersion:
    """Return a table whose fragments have 1, 2, 4... rows."""
    log = create(*[1 << number for number in range(len(fragment_ids))])
    manifest = log.read(1)
    fragments = [
        replace(fragment, id=id_)
        for fragment, id_ in zip(manifest.fragments, fragment_ids, strict=True)
    ]
    section = encode_index_section(indices)
    manifest = replace(manifest, fragments=FragmentList.of(fragments), index_section=section)
    return TableVersion("t", {}, log.store, log, manifest)


def segment(
    number: int, *covered: int, created_at: int | None = None, size: int | None = None
) -> IndexMetadata:
    files = () if size is None else (IndexFile("page_data.lance", size),)
    bitmap = BitMap(covered).serialize()
    return IndexMetadata(
        bytes([number] * 16), (0,), "id_idx", number, bitmap, created_at=created_at, files=files
    )


def only(table: TableVersion) -> IndexCoverage:
    (coverage,) = index_coverage(table)
    return coverage


def test_the_newest_segment_states_the_time() -> None:
    """Old writers state none, which is older than any."""
    for times, newest in (((None, None), None), ((None, 7), 7), ((9, None), 9), ((3, 5), 5)):
        segments = [segment(number, 0, created_at=time) for number, time in enumerate(times, 1)]
        built_at = None if newest is None else moment_at(newest * 1000)
        coverage = only(table_of(segments, [0]))
        assert (coverage.built_at, coverage.num_segments) == (built_at, 2)
        assert coverage.built_from_version == 2


@pytest.mark.parametrize(
    ("sizes", "total"), [((3, 4), 7), ((3, None), None), ((None, None), None), ((0, 4), 4)]
)
def test_sizes_are_known_of_all_segments(sizes: tuple[int | None, ...], total: int | None) -> None:
    """Part of the size would be taken for all of it."""
    segments = [segment(number, 0, size=size) for number, size in enumerate(sizes, 1)]
    assert only(table_of(segments, [0])).size_bytes == total


def test_bitmaps_end_at_32_bits() -> None:
    """No bitmap can have a larger id, so that no index covers such a fragment."""
    largest = 0xFFFFFFFF
    coverage = only(table_of([segment(1, 0, 9, largest)], [0, 5, largest, largest + 1]))
    assert (coverage.rows_indexed, coverage.rows_unindexed) == (1 + 4, 2 + 8)


def test_tables_without_indices_have_none() -> None:
    """A section may list only those that serve no query."""
    system = replace(segment(1), name="__lance_frag_reuse")
    assert index_coverage(table_of([], [0])) == []
    assert index_coverage(table_of([system], [0])) == []
    assert only(table_of([system, segment(2, 0)], [0])).name == "id_idx"
