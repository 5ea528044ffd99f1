"""The number of a table's rows that each index covers.

A query looks up rows of covered fragments in the index and scans the others. Rows that are added or
changed later are in fragments that the index does not cover. The manifest states the coverage; no
index file is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from pyroaring import BitMap

from lance_stream.schema.fields import Field
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.table.apply.index_coverage import coverage, is_system_index
from lance_stream.table.index_kinds import kind_of
from lance_stream.table.indices import IndexMetadata, decode_index_section

_MAX_ID = 0xFFFFFFFF
"""The largest id of a fragment that a bitmap can have."""


@dataclass(frozen=True)
class IndexCoverage:
    """One index, and how many of the table's rows it covers.

    Attributes:
        name: The name.
        kind: The type: "BTREE", "BITMAP", "INVERTED", "IVF_PQ" and so on; "VECTOR" or "UNKNOWN"
            if its writer did not state it.
        columns: The columns, as paths ("address.city").
        rows_indexed: The number of live rows in the fragments that it covers; None if its writer
            did not state the fragments.
        rows_unindexed: The number of other live rows, which every query scans; None if unknown.
        num_segments: The number of its segments.
        built_at: When its newest segment was written, in UTC; None if its writer did not record it.
        built_from_version: The newest version from which a segment was first built. An update of
            the index does not change it.
        size_bytes: The size of its files; None if its writer did not list them.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    rows_indexed: int | None
    rows_unindexed: int | None
    num_segments: int
    built_at: datetime | None
    built_from_version: int
    size_bytes: int | None

    @property
    def fraction(self) -> float | None:
        """The share of the live rows that it covers, 0 to 1; 1 for a table without rows."""
        if self.rows_indexed is None or self.rows_unindexed is None:
            return None
        rows = self.rows_indexed + self.rows_unindexed
        return self.rows_indexed / rows if rows else 1.0

    def age(self, now: datetime) -> timedelta | None:
        """Return how long ago its newest segment was written; None if unknown."""
        return None if self.built_at is None else max(now - self.built_at, timedelta(0))


def index_coverage(table: TableVersion) -> list[IndexCoverage]:
    """Return the indices of a version that serve queries, by name.

    Args:
        table: The version. A data or deletion file is opened only if the manifest does not state
            its number of rows.

    Raises:
        CorruptDataError: The list of indices is damaged.
    """
    section = table.manifest.index_section
    if section is None:
        return []
    by_name: dict[str, list[IndexMetadata]] = {}
    for index in decode_index_section(section):
        if not is_system_index(index):
            by_name.setdefault(index.name, []).append(index)
    paths = _paths(table.schema.fields)
    return [_described(name, by_name[name], table, paths) for name in sorted(by_name)]


def _described(
    name: str, segments: Sequence[IndexMetadata], table: TableVersion, paths: Mapping[int, str]
) -> IndexCoverage:
    newest = max(segments, key=lambda segment: segment.created_at or 0)
    live = table.row_counts.live
    rows: int | None = None
    if all(segment.fragment_bitmap for segment in segments):
        ids = table.manifest.fragments.numbers.ids
        existing = BitMap(ids[ids <= _MAX_ID])
        covered = BitMap().union(*(coverage(segment) & existing for segment in segments))
        rows = int(live[np.isin(ids, np.fromiter(covered, ids.dtype, len(covered)))].sum())
    has_sizes = all(segment.files for segment in segments)
    return IndexCoverage(
        name=name,
        kind=kind_of(newest),
        columns=tuple(paths.get(field_id, f"field {field_id}") for field_id in newest.field_ids),
        rows_indexed=rows,
        rows_unindexed=None if rows is None else int(live.sum()) - rows,
        num_segments=len(segments),
        built_at=moment_at(newest.created_at * 1000) if newest.created_at else None,
        built_from_version=max(segment.dataset_version for segment in segments),
        size_bytes=(
            sum(file.size_bytes for segment in segments for file in segment.files)
            if has_sizes
            else None
        ),
    )


def _paths(fields: Sequence[Field], prefix: str = "") -> dict[int, str]:
    """Return the path of each field and of all below it, by id."""
    paths: dict[int, str] = {}
    for field in fields:
        paths[field.id] = prefix + field.name
        paths |= _paths(field.children, f"{prefix}{field.name}.")
    return paths
