"""Reads a 0.1 file: rows of fields, and the bounds of their pages.

    opening         the end of the file; up to four rounds, none if its last 64 KiB are known
    first reading   the columns' parts of the page table, the dictionaries
    reading         see `read_fields`

The column of a field in the page table follows from field ids: the table begins with the smallest
one. `column_of` contains it, as in newer versions.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.file.metadata.stored_pages import StoredPage
from lance_stream.file.rows import Rows
from lance_stream.file.v0_1.file_tail import DictionaryLocation, FileTail, read_tail
from lance_stream.file.v0_1.page_table import FieldPages, decode_pages, range_of_column
from lance_stream.file.v0_1.read_fields import Columns, read_field, read_values
from lance_stream.file.v0_1.runs import Runs, runs_of_offsets, runs_of_range
from lance_stream.file.v0_1.statistics import (
    MAX_VALUE,
    MIN_VALUE,
    NULL_COUNT,
    Bounds,
    PageBounds,
    has_bounds,
    valid_bounds,
)
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.blobs import is_description
from lance_stream.schema.fields import Field


class V01File:
    """Reads rows of one 0.1 file; caches what it learns about pages and dictionaries."""

    def __init__(self, tail: FileTail) -> None:
        self.tail = tail
        self._pages: dict[int, FieldPages] = {}
        self._statistics_pages: dict[int, FieldPages] = {}
        self._dictionaries: dict[int, pa.Array] = {}

    def read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], rows: Rows
    ) -> ByteRequests[list[pa.Array]]:
        """Return rows of some fields; see `FileReader.read`."""
        batches = self.tail.batch_offsets
        if rows.offsets is None:
            return self._read(fields, column_of, runs_of_range(batches, rows.start, rows.stop))
        return self._read(fields, column_of, runs_of_offsets(batches, rows.offsets))

    def page_starts(
        self,
        fields: Sequence[Field],  # noqa: ARG002  # all columns have the same batches
        column_of: Mapping[int, int],  # noqa: ARG002  # all columns have the same batches
    ) -> ByteRequests[npt.NDArray[np.int64]]:
        """Return the starts of the file's batches."""
        yield from ()
        return self.tail.batch_offsets

    def stored_pages(
        self,
        fields: Sequence[Field],  # noqa: ARG002  # see below
        column_of: Mapping[int, int],  # noqa: ARG002  # see below
    ) -> ByteRequests[list[list[StoredPage]]]:
        """Return no pages: the page table does not state the size of a page of text.

        Pages are small, and those of a batch are neighbours.
        """
        yield from ()
        return []

    def page_bounds(self, fields: Sequence[Field]) -> ByteRequests[PageBounds | None]:
        """Return the bounds of the pages of leaves outside of lists; None if there are none.

        Raises:
            CorruptDataError: The statistics are outside of the file, or disagree with it.
        """
        location = self.tail.statistics
        if location is None:
            return None
        stored_fields = {field.name: field for field in location.fields}
        targets = {
            field.id: (field, stored_fields[str(field.id)])
            for field in fields
            if str(field.id) in stored_fields and has_bounds(field_to_arrow(field).type)
        }
        answers = yield from read_together(
            [self._bounds_of(field, stored) for field, stored in targets.values()]
        )
        return PageBounds(
            self.tail.batch_offsets,
            {
                field_id: bounds
                for field_id, bounds in zip(targets, answers, strict=True)
                if bounds is not None
            },
        )

    def _read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], runs: Runs
    ) -> ByteRequests[list[pa.Array]]:
        column_of_field: dict[int, int] = {}
        dictionaries: list[Field] = []
        for field in fields:
            if is_description(field):
                raise UnsupportedFeatureError(
                    f"the column {field.name!r} contains blobs, but files of version 0.1 "
                    "store their bytes as plain values: read it as bytes"
                )
            below = [descendant for descendant in field.walk() if descendant.id in column_of]
            if not below:
                raise NotFoundError(
                    f"the column {field.name!r} (field {field.id}) is not in this file"
                )
            column_of_field.update(
                {descendant.id: column_of[descendant.id] for descendant in below}
            )
            dictionaries += [
                descendant for descendant in below if descendant.logical_type.startswith("dict:")
            ]
        yield from self._load_pages(column_of_field)
        yield from read_together([self._load_dictionary(dictionary) for dictionary in dictionaries])
        columns = Columns(
            {field_id: self._pages[column] for field_id, column in column_of_field.items()},
            self._dictionaries,
            self.tail.data_stop,
        )
        return (yield from read_together([_read_column(field, columns, runs) for field in fields]))

    def _load_pages(self, column_of_field: Mapping[int, int]) -> ByteRequests[None]:
        missing = [
            column
            for column in dict.fromkeys(column_of_field.values())
            if column not in self._pages
        ]
        ranges = [
            range_of_column(
                self.tail.page_table_start, self.tail.num_batches, column, self.tail.data_stop
            )
            for column in missing
        ]
        if ranges:
            buffers = yield ranges
            for column, buffer in zip(missing, buffers, strict=True):
                self._pages[column] = decode_pages(buffer, self.tail.data_stop)

    def _load_dictionary(self, field: Field) -> ByteRequests[None]:
        if field.id in self._dictionaries:
            return
        location = self.tail.dictionaries.get(field.id)
        if location is None:
            raise CorruptDataError(f"the file has no dictionary of the column {field.name!r}")
        try:
            values = yield from self._read_dictionary(location, field)
        except BadDataError as error:
            error.add_note(f"dictionary of the column {field.name!r}")
            raise
        self._dictionaries[field.id] = values

    def _read_dictionary(
        self, location: DictionaryLocation, field: Field
    ) -> ByteRequests[pa.Array]:
        limit = self.tail.data_stop
        # each value takes at least a bit
        if not (0 <= location.start <= limit and 0 <= location.length <= 8 * limit):
            raise CorruptDataError(
                f"{location.length} values start at byte {location.start} of {limit}"
            )
        pages = FieldPages(np.array([location.start]), np.array([location.length]))
        arrow = field_to_arrow(field).type.value_type
        # an empty value of a dictionary is null, even if the column is not nullable
        return read_values(arrow, pages, _all_of(location.length), limit, empty_is_null=True)

    def _bounds_of(self, field: Field, stored: Field) -> ByteRequests[Bounds | None]:
        parts = {child.name: child for child in stored.children}
        if not {NULL_COUNT, MIN_VALUE, MAX_VALUE} <= parts.keys():
            return None
        if any(parts[name].logical_type != field.logical_type for name in (MIN_VALUE, MAX_VALUE)):
            return None
        arrays = yield from read_together(
            [self._statistic(parts[name]) for name in (NULL_COUNT, MIN_VALUE, MAX_VALUE)]
        )
        return valid_bounds(field, *arrays)

    def _statistic(self, field: Field) -> ByteRequests[pa.Array]:
        assert self.tail.statistics is not None
        limit = self.tail.data_stop
        if field.id not in self._statistics_pages:
            (entry,) = yield [
                range_of_column(self.tail.statistics.page_table_start, 1, field.id, limit)
            ]
            self._statistics_pages[field.id] = decode_pages(entry, limit)
        pages = {field.id: self._statistics_pages[field.id]}
        return (
            yield from read_field(field, Columns(pages, {}, limit), _all_of(self.tail.num_batches))
        )


def open_v01_file(footer: bytes | memoryview, size_bytes: int) -> ByteRequests[V01File]:
    """Return a reader of a 0.1 file.

    Args:
        footer: Its last 16 bytes.
        size_bytes: The size of the file.

    Raises:
        CorruptDataError: The file is damaged.
    """
    return V01File((yield from read_tail(footer, size_bytes)))


def _all_of(num_values: int) -> Runs:
    return runs_of_range(np.array([0, num_values]), 0, num_values)


def _read_column(field: Field, columns: Columns, runs: Runs) -> ByteRequests[pa.Array]:
    """Read a column, and add its name to errors."""
    try:
        return (yield from read_field(field, columns, runs))
    except (BadDataError, InvalidInputError) as error:
        error.add_note(f"column: {field.name!r}")
        raise
