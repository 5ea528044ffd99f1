"""The indices of a version that filters can use, and their segments.

An index can be used if it is a BTREE of version 0 or 1 or a BITMAP of version 0, on one column,
whose type has the same order in Lance and here and agrees with the index's files. Its coverage must
be stated, and no other index of the version may have its files. If the table's compactions maintain
a fragment reuse index, a history of moved rows, no index can be used.

The process caches open indices by their kind, store and folder; the name of a folder is a uuid.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Mask, RowIds
from lance_stream.caches import Cache, IdentityCache
from lance_stream.errors import CorruptDataError, LanceStreamError
from lance_stream.read.indices.bitmap import Bitmap, open_bitmap
from lance_stream.read.indices.btree import BTree, open_btree
from lance_stream.read.indices.column_conditions import ColumnCondition
from lance_stream.read.indices.evaluation import is_true_for_null
from lance_stream.read.indices.index_file import IndexFolder
from lance_stream.read.skipping.row_ranges import Path
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.index_coverage import FRAGMENT_REUSE, refers_by_address
from lance_stream.table.fragments.deletion_vectors import which_in_bitmap
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.index_kinds import kind_of
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.paths import index_folder

FAILURES: Final = (
    LanceStreamError,
    OSError,
    ValueError,
    ArithmeticError,
    MemoryError,
    pa.ArrowException,
)
"""The errors that a damaged index may raise; then the scan does not use it."""

MAX_CACHED_INDEX_BYTES: Final = 64 << 20
"""The maximum size of the open indices of all tables, without their cached pages."""

_log = logging.getLogger(__name__)

_NEWEST_VERSIONS: Final = {"BTREE": 1, "BITMAP": 0}
_ORDERED_TYPES: Final = re.compile(
    r"bool|u?int(8|16|32|64)|float|double|(large_)?string|(large_)?binary|date32:day"
    r"|timestamp:.*|decimal:128:.*"
)

_OPEN: Final = Cache[str, BTree | Bitmap](MAX_CACHED_INDEX_BYTES, lambda index: index.cached_bytes)


def clear_index_cache() -> None:
    """Empty the cache of open indices."""
    _OPEN.clear()


@dataclass(frozen=True)
class Segment:
    """A segment of an index on one column, in one version of a table.

    Attributes:
        metadata: The manifest's metadata of the segment.
        kind: "BTREE" or "BITMAP".
        field: The indexed column.
    """

    metadata: IndexMetadata
    kind: str
    field: Field

    def open(self, table: TableVersion) -> tuple[BTree | Bitmap, IndexFolder]:
        """Return the open segment, from the cache if possible, and its files.

        Raises:
            BadDataError: The segment is damaged, or of an unknown form.
            NotFoundError: A file is missing.
        """
        metadata = self.metadata
        store = table.store
        if metadata.base_id is not None:
            store = table.files.store_of_base(metadata.base_id)
        sizes = {file.path: file.size_bytes for file in metadata.files}
        part = IndexFolder(store, index_folder(metadata.uuid), sizes)
        name = f"{self.kind} {store.uri}/{part.folder}"

        def open_files() -> BTree | Bitmap:
            return open_btree(name, part) if self.kind == "BTREE" else open_bitmap(part)

        index = _OPEN.get_or_make(name, open_files)
        if index.logical_type != self.field.logical_type:
            raise CorruptDataError(
                f"the index {metadata.name!r} has values of type {index.logical_type}, but its "
                f"column has type {self.field.logical_type}"
            )
        return index, part


def segments_by_column(table: TableVersion) -> dict[Path, list[list[Segment]]]:
    """Return the indices that filters can use, as lists of their segments, by column.

    Only the manifest is read. A BTREE index comes before a BITMAP index on the same column.

    Raises:
        CorruptDataError: The list of indices is damaged.
    """
    section = table.manifest.index_section
    if section is None:
        return {}
    listed = _listed(section)
    if any(index.name == FRAGMENT_REUSE for index in listed):
        return {}
    by_name: dict[str, list[IndexMetadata]] = {}
    times = Counter(index.uuid for index in listed)
    for index in listed:
        if kind_of(index) in _NEWEST_VERSIONS:
            by_name.setdefault(index.name, []).append(index)
    if not by_name:
        return {}
    leaves = {field.id: (path, field) for path, field in _leaves(table.schema.fields)}
    segments_by_path: dict[Path, list[list[Segment]]] = {}
    for indices in by_name.values():
        if any(times[index.uuid] > 1 for index in indices):
            log_failure(
                CorruptDataError(f"the files of {indices[0].name!r} are listed twice"), table
            )
            continue
        column = leaves.get(indices[0].field_ids[0]) if indices[0].field_ids else None
        if column is not None and _is_usable(indices, column[1]):
            kind = kind_of(indices[0])
            segments = [Segment(index, kind, column[1]) for index in indices]
            segments_by_path.setdefault(column[0], []).append(segments)
    for several in segments_by_path.values():
        several.sort(key=lambda segments: segments[0].kind != "BTREE")
    return segments_by_path


@lru_cache(maxsize=32)
def _listed(section: bytes) -> tuple[IndexMetadata, ...]:
    return decode_index_section(section)


_COVERED: Final = IdentityCache[dict[bytes, Mask]](lambda _: {})
"""For the fragment list of a version: its covered fragments, by fragment bitmap."""


def _covered(fragments: FragmentList, index: IndexMetadata) -> Mask:
    """Return which fragments of a version an index covers, (num_fragments,) booleans.

    Raises:
        CorruptDataError: The index's fragment bitmap is damaged.
    """
    cached = _COVERED.of(fragments)
    bitmap = index.fragment_bitmap
    if bitmap not in cached:
        try:
            cached[bitmap] = which_in_bitmap(bitmap, fragments.numbers.ids)
        except CorruptDataError as error:
            raise CorruptDataError(
                f"the coverage of the index {index.name!r} cannot be read: {error}"
            ) from error
    return cached[bitmap]


def _is_usable(indices: Sequence[IndexMetadata], field: Field) -> bool:
    kinds = {kind_of(index) for index in indices}
    return (
        len(kinds) == 1
        and _ORDERED_TYPES.fullmatch(field.logical_type) is not None
        and not field.extension_name
        and all(
            index.field_ids == (field.id,)
            and bool(index.fragment_bitmap)
            and 0 <= (index.index_version or 0) <= _NEWEST_VERSIONS[kind_of(index)]
            for index in indices
        )
    )


def _leaves(fields: Iterable[Field], above: Path = ()) -> Iterable[tuple[Path, Field]]:
    for field in fields:
        path = (*above, field.name)
        if not field.children:
            yield path, field
        elif field.logical_type == STRUCT:
            yield from _leaves(field.children, path)


@dataclass(frozen=True)
class Plan:
    """The search of a segment for a condition.

    Attributes:
        segment: The segment.
        condition: The condition.
        index: The open segment.
        part: The files of the segment.
        covered: (num_fragments,) whether the segment covers the fragment.
        positions: The pages of a BTREE, or the keys of a BITMAP, to read.
        num_rows: The approximate number of their entries.
    """

    segment: Segment
    condition: ColumnCondition
    index: BTree | Bitmap
    part: IndexFolder
    covered: Mask
    positions: npt.NDArray[np.int64]
    num_rows: int

    @property
    def has_addresses(self) -> bool:
        """Whether the segment's ids are row addresses even if the table has stable row ids."""
        return refers_by_address(self.segment.metadata)

    def search(self, max_ids: int) -> RowIds | None:
        """Return the ids of rows for which the condition is true; None if more than `max_ids`.

        Raises:
            BadDataError: The index is damaged.
        """
        if isinstance(self.index, BTree):
            ids = self.index.search(self.condition, self.positions, self.part)
        else:
            matches = self.index.search(self.positions, self.part, max_ids)
            if matches is None:
                return None
            ids = matches
        return ids if len(ids) <= max_ids else None


def plan_index(
    table: TableVersion, segments: Sequence[Segment], condition: ColumnCondition
) -> list[Plan] | None:
    """Plan the search of an index for a condition.

    Args:
        table: The version.
        segments: All segments of an index on the condition's column.
        condition: The condition.

    Returns:
        The search of each segment that covers fragments; None if the index cannot be used.

    Raises:
        LanceStreamError: The index is damaged; or another of `FAILURES`.
    """
    plans: list[Plan] = []
    arrow = field_to_arrow(segments[0].field).type
    if len(condition.path) > 1 and is_true_for_null(condition, arrow):
        return None  # it is unknown what an index contains for rows whose struct is null
    for segment in segments:
        covered = _covered(table.manifest.fragments, segment.metadata)
        if not covered.any():
            continue
        index, part = segment.open(table)
        live = int(table.row_counts.live[covered].sum())
        if isinstance(index, BTree):
            if index.num_entries < live:
                raise CorruptDataError(
                    f"the index {segment.metadata.name!r} has only {index.num_entries} entries for "
                    f"{live} rows"
                )
            positions, num_rows = index.plan(condition)
        else:
            if live and not index.num_keys:
                raise CorruptDataError(
                    f"the index {segment.metadata.name!r} has no key for {live} rows"
                )
            positions, num_rows = index.plan(condition, live)
        plans.append(Plan(segment, condition, index, part, covered, positions, num_rows))
    return plans


def log_failure(error: BaseException, table: TableVersion) -> None:
    """Log why an index cannot be used."""
    _log.info(
        "a filter on %s is evaluated without indices because one cannot be used: %s",
        table.uri,
        error,
    )
