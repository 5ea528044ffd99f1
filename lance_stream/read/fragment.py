"""Reads rows of one fragment as Arrow batches, on a worker.

A `WorkUnit` is picklable and self-contained: the table's location, the version that was planned on,
the fragment's encoded message, the rows and the columns. A worker needs no manifest to read it.

    1. the deletion file            determines live rows, unless the unit has row offsets
    2. the columns of the filter    determine the live rows that match
    3. the other columns            are read whole, or by row offset if few rows match
    4. row ids and row versions     come from the fragment's sequences

Memory is bounded by the size of a batch, not of a file: `batch_size` rows are read at once, by
default about 32 MB.
"""

import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Positions
from lance_stream.byte_ranges import ReadRanges
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    UnsupportedFeatureError,
)
from lance_stream.expressions.predicates import Expression, evaluate_predicate, parse_expression
from lance_stream.file.blocks.arrow_blocks import array_from_numpy
from lance_stream.file.nested_arrays import map_blobs
from lance_stream.file.versions import FileVersion
from lance_stream.read.blob_locations import blob_locations, read_blobs, sizes_of_blobs
from lance_stream.read.field_parts import FilePart, assemble, part_in_file, with_structure
from lance_stream.read.page_cache import CachedRows, PageCache, PagesOfFile
from lance_stream.read.selections import TAKE_BELOW, Selection, batch_bounds, cuts, selection_of
from lance_stream.read.skipping.row_ranges import RowRanges, bounded_leaves
from lance_stream.read.units import READABLE_SYSTEM_COLUMNS, WorkUnit, output_schema
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.blobs import described, is_description
from lance_stream.schema.fields import Field, as_in_file
from lance_stream.schema.projections import project
from lance_stream.schema.system_columns import (
    ROW_ADDRESS,
    ROW_CREATED_AT_VERSION,
    ROW_ID,
)
from lance_stream.schema.types.logical_types import STRUCT
from lance_stream.snapshot.files.hidden_columns import HiddenColumn
from lance_stream.snapshot.files.missing_files import explaining_missing_files
from lance_stream.table.fragments.fragment import (
    DataFile,
    LineageColumn,
    StoredSequence,
    columns_of_files,
    decode_fragment,
    has_overlays,
)
from lance_stream.table.lineage.row_addresses import pack_addresses
from lance_stream.table.lineage.row_ids import RowIdSequence
from lance_stream.table.lineage.row_versions import RowVersionSequence

BATCH_BYTES: Final = 32 << 20
"""The approximate size of a batch if its number of rows was not specified."""

MAX_BATCH_ROWS: Final = 1 << 20

MIN_SPAN_OF_MATCHES: Final = 0.9
"""Whole pages are fetched if the rows that match a filter span this fraction of a batch."""

MAX_EXPECTED_ROWS: Final = 1 << 10
"""Up to this many rows of a unit with row offsets are read before the filter is evaluated."""

_MIN_WIDTH: Final = 16
"""The assumed minimum size of a variable-width value, in bytes."""


def read_unit(unit: WorkUnit) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a work unit, in row order, in batches of `unit.arrow_schema`.

    Raises:
        BadDataError: A file is damaged, or uses an unsupported feature; a note names the file.
        NotFoundError: A file no longer exists: the version was cleaned up.
    """
    reader = FragmentReader(unit)
    for selection in reader.selections():
        batch = reader.read(selection)
        if batch.num_rows:
            yield batch


class FragmentReader:
    """Reads selections of one fragment's rows.

    Thread-safe for one selection per thread.

    Args:
        unit: The work unit.
        pages: The scan's cache of pages; None to read the bytes of each batch separately.
        is_first: Whether the scan starts with this unit.
    """

    def __init__(
        self, unit: WorkUnit, pages: PageCache | None = None, *, is_first: bool = False
    ) -> None:
        self._unit = unit
        self._page_cache = pages
        self._is_first = is_first
        self._rows_of_unit: CachedRows | None = None
        self._pages_of_files: dict[tuple[str, int | None], PagesOfFile | None] = {}
        self._lock = threading.Lock()
        self._fragment = decode_fragment(unit.fragment)
        if has_overlays(self._fragment):
            raise UnsupportedFeatureError(
                f"fragment {self._fragment.id} of version {unit.version} has data overlay files, "
                "which are not supported: without them its values would be stale"
            )
        projected = unit.projected
        self._output = projected.fields
        self._arrow = output_schema(projected, unit.system_columns)
        if len(set(self._arrow.names)) != len(self._arrow.names):
            raise CorruptDataError(
                f"version {unit.version} has two columns of the same name: "
                f"{', '.join(map(repr, self._arrow.names))}"
            )
        self._predicate: Expression | None = None
        self._filter_fields: tuple[Field, ...] = ()
        self._filter_system: tuple[str, ...] = ()
        if unit.filter is not None:
            self._predicate = parse_expression(unit.filter)
            named = [path for path in self._predicate.paths if path[0] in READABLE_SYSTEM_COLUMNS]
            self._filter_system = tuple(dict.fromkeys(path[0] for path in named))
            columns = [
                column
                for column, path in zip(self._predicate.columns, self._predicate.paths, strict=True)
                if path not in named
            ]
            self._filter_fields = project(unit.schema, columns).fields
        self._sequences: dict[str, RowIdSequence | RowVersionSequence | HiddenColumn] = {}

    def selections(self) -> Iterator[Selection]:
        """Yield the rows of each batch, without deleted rows; the filter is not evaluated yet."""
        has_blobs = any(map(_has_bytes, self._output)) and not all(
            map(_stores_plain_bytes, self._fragment.files)
        )
        with self._explaining_missing_files():
            for selection in self._selections():
                if has_blobs:
                    yield from self._split_by_blob_size(selection)
                else:
                    yield selection

    def _explaining_missing_files(self) -> AbstractContextManager[None]:
        unit = self._unit
        return explaining_missing_files(unit.files.store, unit.version, self._fragment)

    def _selections(self) -> Iterator[Selection]:
        unit, fragment = self._unit, self._fragment
        num_rows = self._physical_rows()
        if unit.offsets is not None:
            batch_size = unit.batch_size or self._default_batch_size(num_rows)
            offsets = unit.offsets.astype(np.int64)
            if len(offsets) and int(offsets[-1]) >= num_rows:
                raise CorruptDataError(
                    f"fragment {fragment.id} has {num_rows} rows, but row offset "
                    f"{int(offsets[-1])} was requested"
                )
            if self._predicate is not None:
                offsets = self._ranges_that_may_match(num_rows).choose(offsets)
            if len(offsets):
                self._share_pages(int(offsets[0]), int(offsets[-1]) + 1, len(offsets))
            # Reading scattered rows also reads much of what is between them, so a batch of them
            # is bounded by its span.
            max_span = int(self._default_batch_size(num_rows) / TAKE_BELOW)
            first = 0
            while first < len(offsets):
                stop_of_span = int(offsets.searchsorted(offsets[first] + max_span))
                stop = min(first + batch_size, stop_of_span)
                yield selection_of(offsets[first:stop])
                first = stop
            return
        stop = num_rows if unit.stop is None else min(unit.stop, num_rows)
        within = self._ranges_that_may_match(num_rows).within(unit.start, stop)
        if within:
            num_covered = sum(last - first for first, last in within)
            self._share_pages(within[0][0], within[-1][1], num_covered)
        deleted = self._deleted_offsets(num_rows) if within else np.empty(0, np.int64)
        batches = chain.from_iterable(self._batches(*selection, num_rows) for selection in within)
        for first, last in batches:
            selection = Selection(first, last)
            if len(deleted):
                low, high = np.searchsorted(deleted, [first, last])
                if high > low:
                    is_live = np.ones(last - first, np.bool_)
                    is_live[deleted[low:high] - first] = False
                    selection = selection.where(is_live)
            if selection.num_rows:
                yield selection

    def _share_pages(self, start: int, stop: int, num_rows: int) -> None:
        """Cache pages between batches, if most rows of the range are read in several batches."""
        in_batch = self._unit.batch_size or self._default_batch_size(self._physical_rows())
        if self._page_cache is not None and num_rows > in_batch and 2 * num_rows > stop - start:
            self._rows_of_unit = CachedRows(start, stop, in_batch)

    def _ranges_that_may_match(self, num_rows: int) -> RowRanges:
        """Return the rows that the filter may match according to lineage and page bounds."""
        candidates = RowRanges.all_of(num_rows)
        if self._predicate is None:
            return candidates
        from lance_stream.read.skipping.lineage_skipping import rows_that_may_match
        from lance_stream.read.skipping.page_skipping import ranges_that_may_match

        if self._filter_system:
            candidates = rows_that_may_match(
                self._predicate,
                self._fragment,
                num_rows,
                self._unit.files,
                has_stable_row_ids=self._unit.has_stable_row_ids,
            )
        leaves = bounded_leaves(self._predicate, self._filter_fields)
        if not leaves or not candidates.ranges:
            return candidates
        for file, column_of in zip(self._fragment.files, self._columns_of_files, strict=True):
            stored = [leaf for leaf in leaves.values() if leaf.id in column_of]
            if not stored:
                continue  # not opened: it has other columns, or lineage only
            bounds = self._unit.files.page_bounds(file, stored)
            if bounds is not None:
                matching = ranges_that_may_match(self._predicate, leaves, bounds)
                candidates = candidates.intersection(matching)
        return candidates

    def _batches(self, start: int, stop: int, num_rows: int) -> Iterator[tuple[int, int]]:
        """Yield the first row of each batch, and one past its last row.

        Unless a batch size was specified, batches end where pages end, so that the pages of a wide
        column become arrays without being concatenated.
        """
        if self._unit.batch_size is not None:
            bounds = cuts(start, stop, self._unit.batch_size)
        elif stop - start < (batch_size := self._default_batch_size(num_rows)) // 4:
            bounds = [start, stop]  # regardless of pages, so no file has to be opened
        else:
            bounds = batch_bounds(start, stop, self._page_starts(), batch_size)
        if self._rows_of_unit is not None:
            in_batch = max((last - first for first, last in pairwise(bounds)), default=0)
            self._rows_of_unit = self._rows_of_unit._replace(in_batch=in_batch)
        yield from pairwise(bounds)

    def _page_starts(self) -> npt.NDArray[np.int64]:
        """Return the page starts of the file that has the most requested columns."""
        fields = (*self._output, *self._filter_fields)
        field_ids = {part.id for field in fields for part in field.walk()}
        num_fields = [len(field_ids.intersection(file.field_ids)) for file in self._fragment.files]
        if not any(num_fields):
            return np.zeros(1, np.int64)
        file = self._fragment.files[num_fields.index(max(num_fields))]
        return self._unit.files.page_starts(file, fields)

    def read(self, selection: Selection) -> pa.RecordBatch:
        """Return the rows of a selection that match the filter."""
        with self._explaining_missing_files():
            return self._read(selection)

    def _read(self, selection: Selection) -> pa.RecordBatch:
        arrays_by_name: dict[str, tuple[Field, pa.Array]] = {}
        rows_apart = _rows_apart(selection)
        if self._predicate is not None:
            fields = self._fields_read_with_filter(selection)
            arrays = self._columns(fields, selection, rows_apart)
            arrays_by_name = {
                field.name: (field, array) for field, array in zip(fields, arrays, strict=True)
            }
            arrays = arrays[: len(self._filter_fields)]
            arrays += [self._system_column(name, selection) for name in self._filter_system]
            names = [filter_field.name for filter_field in self._filter_fields] + list(
                self._filter_system
            )
            mask = evaluate_predicate(self._predicate, _batch_of(arrays, names, selection.num_rows))
            chosen = pc.fill_null(mask, False)
            count = chosen.true_count
            if count < selection.num_rows:
                span = selection.stop - selection.start
                selection = selection.where(chosen.to_numpy(zero_copy_only=False))
                is_part = selection.stop - selection.start < MIN_SPAN_OF_MATCHES * span
                if self._page_cache is not None:
                    self._page_cache.record_filter_result(matches_everywhere=not is_part)
                rows_apart = math.inf if is_part else _rows_apart(selection)
                arrays_by_name = {
                    name: (field, array.filter(chosen))
                    for name, (field, array) in arrays_by_name.items()
                }
        missing = [
            field
            for field in self._output
            if arrays_by_name.get(field.name, (None, None))[0] != field
        ]
        read = dict(
            zip(
                (field.name for field in missing),
                self._columns(missing, selection, rows_apart),
                strict=True,
            )
        )
        columns = [
            read[field.name] if field.name in read else arrays_by_name[field.name][1]
            for field in self._output
        ]
        columns += [self._system_column(name, selection) for name in self._unit.system_columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _fields_read_with_filter(self, selection: Selection) -> Sequence[Field]:
        """Return the columns to read before the filter is evaluated, those of the filter first.

        A few rows with known offsets probably match, so all their columns are read at once.
        """
        if self._unit.offsets is None or selection.num_rows > MAX_EXPECTED_ROWS:
            return self._filter_fields
        names = {filter_field.name for filter_field in self._filter_fields}
        more = [
            field for field in self._output if field.name not in names and not _has_bytes(field)
        ]
        return [*self._filter_fields, *more]

    def num_bytes_of(self, selection: Selection) -> int:
        """Return the approximate size of a selection's batch in bytes."""
        rows_per_batch = self._default_batch_size(self._fragment.physical_rows)
        return BATCH_BYTES * selection.num_rows // rows_per_batch

    def _columns(
        self, fields: Sequence[Field], selection: Selection, rows_apart: float = 1
    ) -> list[pa.Array]:
        if not fields:
            return []
        if not selection.num_rows:
            return [pa.nulls(0, field_to_arrow(field).type) for field in fields]
        return self._rows(fields, selection, rows_apart)

    def _rows(
        self, fields: Sequence[Field], selection: Selection, rows_apart: float
    ) -> list[pa.Array]:
        """Read columns from all data files that contain fields of them.

        Rows are selected before columns are assembled, because the files may have different values
        in deleted rows.
        """
        parts: list[list[FilePart]] = [[] for _ in fields]
        columns_of = self._columns_of_files
        stored_ids = {field_id for column_of in columns_of for field_id in column_of}
        whole_fields = {field.id: field for field in self._unit.schema.fields}
        fields_of_files = [
            with_structure(field, whole_fields[field.id], stored_ids) for field in fields
        ]
        for data_file, column_of in zip(self._fragment.files, columns_of, strict=True):
            stored_parts = [
                (index, part)
                for index, field in enumerate(fields_of_files)
                if (
                    part := part_in_file(
                        as_in_file(field, whole_fields[field.id], column_of), column_of
                    )
                )
                is not None
            ]
            if not stored_parts:
                continue
            is_apart = not _stores_plain_bytes(data_file)
            targets = [described(part) if is_apart else part for _, part in stored_parts]
            try:
                pages = self._cached_pages(data_file)  # opens the file, once for all threads
                self._check_num_rows(data_file)
                read_ranges = (
                    None if pages is None else partial(pages.read_ranges, rows_apart=rows_apart)
                )
                arrays = self._read_file(data_file, targets, selection, read_ranges)
            except BadDataError as error:
                error.add_note(
                    f"data file {data_file.path!r} of fragment {self._fragment.id}, "
                    f"version {self._unit.version}"
                )
                raise
            for (index, part), array in zip(stored_parts, arrays, strict=True):
                if is_apart:
                    array = map_blobs(part, array, partial(self._bytes_of, data_file))
                parts[index].append(FilePart(part, array))
        return [
            self._checked(field, assemble(field, pieces, selection.num_rows))
            for field, pieces in zip(fields, parts, strict=True)
        ]

    def _read_file(
        self,
        file: DataFile,
        targets: Sequence[Field],
        selection: Selection,
        read_ranges: ReadRanges | None,
    ) -> Sequence[pa.Array]:
        """Read the rows of a selection from a data file."""
        files, offsets = self._unit.files, selection.offsets
        if offsets is not None and selection.is_sparse:
            return files.take(file, targets, offsets.astype(np.uint64), read_ranges)
        arrays = files.read(file, targets, selection.start, selection.stop, read_ranges)
        return arrays if offsets is None else _select(arrays, selection)

    def _cached_pages(self, file: DataFile) -> PagesOfFile | None:
        """Return the cached pages of a data file; None if the batches do not share pages."""
        if self._page_cache is None or self._rows_of_unit is None:
            return None
        with self._lock:
            key = (file.path, file.base_id)
            if key not in self._pages_of_files:
                self._pages_of_files[key] = self._open_pages(
                    file, self._page_cache, self._rows_of_unit
                )
            return self._pages_of_files[key]

    def _open_pages(
        self, file: DataFile, page_cache: PageCache, rows: CachedRows
    ) -> PagesOfFile | None:
        files = self._unit.files
        others = [field for field in self._output if field not in self._filter_fields]
        columns = [
            (pages, is_of_filter)
            for fields, is_of_filter in ((self._filter_fields, True), (others, False))
            for pages in files.stored_pages(file, fields)
        ]
        if not columns:
            return None
        pages = PagesOfFile(
            page_cache, columns, rows, files.ranges_of(file), is_first=self._is_first
        )
        weakref.finalize(self, page_cache.forget, pages.name).atexit = False
        return pages

    @cached_property
    def _columns_of_files(self) -> list[dict[int, int]]:
        """For each data file, its column by field id, for the fields that are read from it."""
        if not self._fragment.files and self._fragment.physical_rows:
            raise CorruptDataError(
                f"fragment {self._fragment.id} of version {self._unit.version} has "
                f"{self._fragment.physical_rows} rows, but no data file"
            )
        structs: set[int] = set()
        children: dict[int, set[int]] = {}
        for field in self._unit.schema.walk():
            if field.id < 0:
                raise CorruptDataError(
                    f"column {field.name!r} of version {self._unit.version} has a negative field "
                    "id, which no data file can contain"
                )
            if not field.children:
                continue
            if not field.is_blob:
                children[field.id] = {child.id for child in field.children}
            if field.logical_type == STRUCT and not field.is_packed:
                structs.add(field.id)
        columns_by_file = columns_of_files(self._fragment.files, structs)
        for file, column_of in zip(self._fragment.files, columns_by_file, strict=True):
            if file.file_version >= (2, 1) and any(
                children.get(field_id, set()) & column_of.keys() for field_id in column_of
            ):
                raise CorruptDataError(
                    f"the data file {file.path!r} lists a field in addition to its children, which "
                    "is not valid from file version 2.1 on"
                )
        return columns_by_file

    def _check_num_rows(self, file: DataFile) -> None:
        """Raise if an open data file and its fragment have different numbers of rows.

        Rows would be lost, or get the row ids of others.
        """
        num_rows, expected = self._unit.files.num_rows(file), self._physical_rows()
        if num_rows != expected:
            raise CorruptDataError(
                f"the data file {file.path!r} has {num_rows} rows, but fragment "
                f"{self._fragment.id} of version {self._unit.version} should have {expected}"
            )

    def _bytes_of(self, file: DataFile, field: Field, descriptions: pa.Array) -> pa.Array:
        if is_description(field):
            return descriptions
        try:
            return read_blobs(blob_locations(descriptions, file, self._unit.files))
        except BadDataError as error:
            error.add_note(
                f"column {field.name!r} of data file {file.path!r} of fragment "
                f"{self._fragment.id}, version {self._unit.version}"
            )
            raise

    def _split_by_blob_size(self, selection: Selection) -> Iterator[Selection]:
        """Split a selection into parts of about `BATCH_BYTES` of blobs."""
        sizes = np.zeros(selection.num_rows, np.uint64)
        for field in self._output:
            if _has_bytes(field):
                (descriptions,) = self._columns([described(field)], selection)
                sizes += sizes_of_blobs(described(field), descriptions, BATCH_BYTES)
        totals = np.cumsum(sizes)
        if not len(totals) or int(totals[-1]) <= BATCH_BYTES:
            yield selection
            return
        start = 0
        while start < len(totals):
            total_before = int(totals[start - 1]) if start else 0
            stop = int(np.searchsorted(totals, total_before + BATCH_BYTES, "right"))
            stop = max(stop, start + 1)
            rows = np.zeros(selection.num_rows, np.bool_)
            rows[start:stop] = True
            yield selection.where(rows)
            start = stop

    def _checked(self, field: Field, array: pa.Array) -> pa.Array:
        """Reject values whose type is not the column's; Arrow might cast them silently."""
        target = field_to_arrow(field).type
        if not array.type.equals(target):
            raise CorruptDataError(
                f"column {field.name!r} has type {target}, but fragment {self._fragment.id} of "
                f"version {self._unit.version} contains {array.type}"
            )
        return array

    def _physical_rows(self) -> int:
        """Return the number of physical rows; if old writers omitted it, from the data file."""
        if self._fragment.physical_rows or not self._fragment.files:
            return self._fragment.physical_rows
        return self._unit.files.num_rows(self._fragment.files[0])

    def _deleted_offsets(self, num_rows: int) -> Positions:
        if self._unit.include_deleted:
            return np.empty(0, np.int64)
        return self._unit.files.deleted_offsets(self._fragment, num_rows).astype(np.int64)

    def _default_batch_size(self, num_rows: int) -> int:
        width, num_unknown = self._width_of_row
        width += _MIN_WIDTH * num_unknown
        if num_unknown:
            # The size of a stored row includes its variable-width values. It is not added to
            # `width`: counted twice, they would split pages in two, at one request per half.
            stored = sum(file.size_bytes for file in self._fragment.files) / max(num_rows, 1)
            width = max(width, stored)
        width += 8 * len(self._unit.system_columns)
        return max(1, min(MAX_BATCH_ROWS, int(BATCH_BYTES / max(width, 1))))

    @cached_property
    def _width_of_row(self) -> "_Width":
        fields = {field.name: field for field in (*self._output, *self._filter_fields)}.values()
        return _total(_width(field_to_arrow(field).type) for field in fields)

    def _system_column(self, name: str, selection: Selection) -> pa.Array:
        fragment = self._fragment
        if name == ROW_ADDRESS or (name == ROW_ID and not self._unit.has_stable_row_ids):
            offsets = (
                np.arange(selection.start, selection.stop)
                if selection.offsets is None
                else selection.offsets
            )
            return _numbers(pack_addresses(fragment.id, offsets))
        if name == ROW_ID:
            if fragment.row_ids is None:
                raise CorruptDataError(
                    f"fragment {fragment.id} has no row ids, but the table has stable row ids"
                )
            return self._from_sequence(name, fragment.row_ids, selection)
        if name == ROW_CREATED_AT_VERSION:
            return self._from_sequence(name, fragment.created_at_versions, selection)
        return self._from_sequence(name, fragment.last_updated_at_versions, selection)

    def _from_sequence(
        self, name: str, stored: StoredSequence | None, selection: Selection
    ) -> pa.Array:
        if stored is None:
            return _numbers(np.ones(selection.num_rows, np.uint64))
        if name not in self._sequences:
            self._sequences[name] = self._sequence_of(name, stored)
        sequence = self._sequences[name]
        if selection.offsets is None:
            return _numbers(sequence.slice(selection.start, selection.stop))
        return _numbers(sequence.take(selection.offsets))

    def _sequence_of(
        self, name: str, stored: StoredSequence
    ) -> RowIdSequence | RowVersionSequence | HiddenColumn:
        files, num_rows = self._unit.files, self._physical_rows()
        if isinstance(stored, LineageColumn):
            return files.hidden_column(stored).check_num_rows(num_rows)
        if name == ROW_ID:
            return files.row_ids(stored, num_rows)
        return files.row_versions(stored, num_rows)


def _numbers(values: npt.NDArray[np.uint64]) -> pa.Array:
    """Return numbers as an array; the first call of `pyarrow.array` would import pandas."""
    return array_from_numpy(values, pa.uint64())


def _stores_plain_bytes(file: DataFile) -> bool:
    """Return whether a data file stores blobs as plain bytes, as file version 0.1 does."""
    return file.file_version <= FileVersion.V0_1.data_file_numbers


def _has_bytes(field: Field) -> bool:
    """Return whether a column contains, at any depth, blobs that are returned as bytes."""
    return any(part.is_blob and not is_description(part) for part in field.walk())


def _rows_apart(selection: Selection) -> float:
    """Return the average distance of the rows whose bytes are read; 1 if all are read."""
    if not selection.is_sparse:
        return 1
    return (selection.stop - selection.start) / max(selection.num_rows, 1)


def _select(arrays: Sequence[pa.Array], selection: Selection) -> list[pa.Array]:
    """Return the rows of a selection from arrays over its whole range."""
    assert selection.offsets is not None
    positions = selection.offsets - selection.start
    indices = array_from_numpy(positions.astype(np.int64, copy=False), pa.int64())
    if 2 * len(positions) < selection.stop - selection.start:
        return [array.take(indices) for array in arrays]
    # For most of the rows a mask is faster than indices, except for fixed-size lists.
    mask = np.zeros(selection.stop - selection.start, np.bool_)
    mask[positions] = True
    is_chosen = pa.array(mask)
    return [
        array.take(indices) if pa.types.is_fixed_size_list(array.type) else array.filter(is_chosen)
        for array in arrays
    ]


def _batch_of(arrays: Sequence[pa.Array], names: Sequence[str], num_rows: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, names=names)
    # A predicate without columns, such as TRUE: a batch without columns would have no rows.
    return pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=[""])


class _Width(NamedTuple):
    """The width of a value.

    Attributes:
        fixed: The total width of the fixed-width parts of its type, in bytes.
        num_unknown: The number of variable-width parts: strings, binary values, lists.
    """

    fixed: float
    num_unknown: float


def _width(arrow: pa.DataType) -> _Width:
    if pa.types.is_struct(arrow):
        return _total(_width(part.type) for part in arrow)
    if pa.types.is_fixed_size_list(arrow):
        item = _width(arrow.value_type)
        return _Width(arrow.list_size * item.fixed, arrow.list_size * item.num_unknown)
    try:
        return _Width(arrow.bit_width / 8, 0)
    except ValueError:
        return _Width(0, 1)


def _total(widths: Iterable[_Width]) -> _Width:
    parts = list(widths)
    return _Width(sum(part.fixed for part in parts), sum(part.num_unknown for part in parts))
