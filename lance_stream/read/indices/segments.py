"""The indices of a version that filters can use, and their segments.

An index serves if everything about it is known: a BTREE of version 0 or 1 or a BITMAP of version 0,
on one column of a type with an order that is the same here and there, which its files have, too;
with a stated coverage, and with files that no other index of the version has. In a table whose
compactions leave a history of moved rows for its indices (a fragment reuse index), none serves.

What was opened is kept by the process, under its kind and the names of its store and folder, which
has a uuid.
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
from lance_stream.caches import ByIdentity, Cache
from lance_stream.errors import CorruptDataError, LanceStreamError
from lance_stream.read.indices.bitmap import Bitmap, open_bitmap
from lance_stream.read.indices.btree import BTree, open_btree
from lance_stream.read.indices.column_conditions import ColumnCondition
from lance_stream.read.indices.evaluation import is_true_for_null
from lance_stream.read.indices.index_file import PartOfIndex
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
"""What a damaged index may raise; the scan does without it."""

MAX_CACHED_INDEX_BYTES: Final = 64 << 20
"""How much memory open indices take at most, of all tables; their pages are kept apart."""

_log = logging.getLogger(__name__)

_NEWEST_VERSIONS: Final = {"BTREE": 1, "BITMAP": 0}
_TYPES: Final = re.compile(
    r"bool|u?int(8|16|32|64)|float|double|(large_)?string|(large_)?binary|date32:day"
    r"|timestamp:.*|decimal:128:.*"
)

_OPEN: Final = Cache[str, BTree | Bitmap](MAX_CACHED_INDEX_BYTES, lambda index: index.cached_bytes)


def forget_indices() -> None:
    """Close all indices."""
    _OPEN.clear()


@dataclass(frozen=True)
class Segment:
    """A segment of an index on one column, in one version of a table.

    Attributes:
        metadata: What the manifest says of it.
        kind: "BTREE" or "BITMAP".
        field: Its column.
    """

    metadata: IndexMetadata
    kind: str
    field: Field

    def opened(self, table: TableVersion) -> tuple[BTree | Bitmap, PartOfIndex]:
        """Return it, open, and what reads its files.

        Raises:
            BadDataError: It is damaged, or of a form that is not known.
            NotFoundError: A file is missing.
        """
        metadata = self.metadata
        store = table.store
        if metadata.base_id is not None:
            store = table.files.store_of_base(metadata.base_id)
        sizes = {file.path: file.size_bytes for file in metadata.files}
        part = PartOfIndex(store, index_folder(metadata.uuid), sizes)
        name = f"{self.kind} {store.uri}/{part.folder}"

        def make() -> BTree | Bitmap:
            return open_btree(name, part) if self.kind == "BTREE" else open_bitmap(part)

        index = _OPEN.get_or_make(name, make)
        if index.logical_type != self.field.logical_type:
            raise CorruptDataError(
                f"the index {metadata.name!r} has values of {index.logical_type}, but its column "
                f"is a {self.field.logical_type}"
            )
        return index, part


def segments_by_column(table: TableVersion) -> dict[Path, list[list[Segment]]]:
    """Return the indices that can serve filters, by column; each as its segments.

    Only the manifest is read. A BTREE comes before a BITMAP on the same column.

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
            report(CorruptDataError(f"the files of {indices[0].name!r} are listed twice"), table)
            continue
        column = leaves.get(indices[0].field_ids[0]) if indices[0].field_ids else None
        if column is not None and _serves(indices, column[1]):
            kind = kind_of(indices[0])
            segments = [Segment(index, kind, column[1]) for index in indices]
            segments_by_path.setdefault(column[0], []).append(segments)
    for several in segments_by_path.values():
        several.sort(key=lambda segments: segments[0].kind != "BTREE")
    return segments_by_path


@lru_cache(maxsize=32)
def _listed(section: bytes) -> tuple[IndexMetadata, ...]:
    return decode_index_section(section)


_COVERED: Final = ByIdentity[dict[bytes, Mask]](lambda _: {})
"""By the list of a version's fragments: which of them a fragment bitmap has."""


def _covered(fragments: FragmentList, index: IndexMetadata) -> Mask:
    """Return which fragments of a version an index covers, (num_fragments,) booleans.

    Raises:
        CorruptDataError: Its fragment bitmap is damaged.
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


def _serves(indices: Sequence[IndexMetadata], field: Field) -> bool:
    kinds = {kind_of(index) for index in indices}
    return (
        len(kinds) == 1
        and _TYPES.fullmatch(field.logical_type) is not None
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
    """How a segment serves a condition.

    Attributes:
        segment: The segment.
        condition: The condition.
        index: The segment, open.
        part: What reads its files.
        covered: (num_fragments,) which fragments of the version it covers.
        positions: What of the index has to be read.
        num_rows: How many entries that is, about.
    """

    segment: Segment
    condition: ColumnCondition
    index: BTree | Bitmap
    part: PartOfIndex
    covered: Mask
    positions: npt.NDArray[np.int64]
    num_rows: int

    @property
    def has_addresses(self) -> bool:
        """Whether its ids are row addresses, also in a table with stable row ids."""
        return refers_by_address(self.segment.metadata)

    def search(self, most: int) -> RowIds | None:
        """Return the ids of rows for which the condition may be true; None if more than `most`.

        Raises:
            BadDataError: The index is damaged.
        """
        if isinstance(self.index, BTree):
            ids = self.index.search(self.condition, self.positions, self.part)
        else:
            matches = self.index.search(self.positions, self.part, most)
            if matches is None:
                return None
            ids = matches
        return ids if len(ids) <= most else None


def plan_index(
    table: TableVersion, segments: Sequence[Segment], condition: ColumnCondition
) -> list[Plan] | None:
    """Return how the segments of an index serve a condition; None if they cannot.

    Args:
        table: The version.
        segments: All segments of an index on the condition's column.
        condition: The condition.

    Raises:
        LanceStreamError: The index is damaged; or another of `FAILURES`.
    """
    plans: list[Plan] = []
    arrow = field_to_arrow(segments[0].field).type
    if len(condition.path) > 1 and is_true_for_null(condition, arrow):
        return None  # what an index has for rows whose struct is null is not known
    for segment in segments:
        covered = _covered(table.manifest.fragments, segment.metadata)
        if not covered.any():
            continue
        index, part = segment.opened(table)
        live = int(table.row_counts.live[covered].sum())
        if isinstance(index, BTree):
            if index.num_entries < live:
                raise CorruptDataError(
                    f"the index {segment.metadata.name!r} has {index.num_entries} entries for "
                    f"{live} rows"
                )
            positions, num_rows = index.plan(condition)
        else:
            if live and not index.num_keys:
                raise CorruptDataError(
                    f"the index {segment.metadata.name!r} has no key of {live} rows"
                )
            positions, num_rows = index.plan(condition, live)
        plans.append(Plan(segment, condition, index, part, covered, positions, num_rows))
    return plans


def report(error: BaseException, table: TableVersion) -> None:
    """Log that an index could not be used."""
    _log.info(
        "a filter on %s is evaluated without indices, as one cannot be used: %s", table.uri, error
    )
