"""Reading a data file: metadata once, then rows of the columns asked for.

Everything here is pure: it asks for byte ranges and is sent buffers (see `byte_ranges`). The last
64 KiB of a file come with the first request and are kept, so that a small file is read by one
request in all.

    opening     1 request: the last 64 KiB
                up to 2 more, if the tables or the schema do not lie in them
    reading     what the columns' version needs; plus 1 request if the metadata of the columns
                were not among what opening has read

Source: file format document, "Reading a file".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import Asking, ByteRange, together
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.file.blobs import check_descriptions, with_nulls
from lance_stream.file.columns import (
    ColumnMetadata,
    decode_column_metadata,
    fields_with_column,
    holds_blobs,
)
from lance_stream.file.footer import (
    FOOTER_BYTES,
    Footer,
    decode_file_descriptor,
    decode_footer,
    decode_footer_version,
    decode_position_table,
)
from lance_stream.file.known_ranges import KnownRanges
from lance_stream.file.packed_parts import with_whole_structs, without_parts
from lance_stream.file.type_support import foreign_type
from lance_stream.file.v0_1.file_tail import FOOTER_BYTES as FIRST_FOOTER_BYTES
from lance_stream.file.v0_1.reader import V01File, open_v01_file
from lance_stream.file.v0_1.statistics import PageBounds
from lance_stream.file.v2_0 import read_fields as v2_0
from lance_stream.file.v2_0.paged_columns import PagedColumn
from lance_stream.file.v2_0.rows import Rows
from lance_stream.file.v2_1.layouts import read_fields as structural
from lance_stream.file.v2_1.layouts.pages import PagesOfColumn
from lance_stream.file.versions import FileVersion
from lance_stream.schema.blobs import is_description
from lance_stream.schema.fields import Field, Schema

TAIL_BYTES: Final = 64 << 10
"""How much of a file's end the first request asks for."""

EAGER_METADATA_BYTES: Final = 1 << 20
"""Column metadata up to this size are read at once when a file is opened."""


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """What a file says of itself.

    Attributes:
        version: The file's version.
        num_rows: Rows in each top-level column.
        schema: The schema that the file's writer had; tables go by their own, and by field ids.
        column_ranges: Where the metadata of each column stand.
        buffer_ranges: Where the buffers stand that belong to the file as a whole.
        size_bytes: The size of the file.
    """

    version: FileVersion
    num_rows: int
    schema: Schema
    column_ranges: tuple[ByteRange, ...]
    buffer_ranges: tuple[ByteRange, ...]
    size_bytes: int


class FileReader:
    """Reads rows of one file; what it learns about columns and pages it keeps.

    Made by `open_file`.
    """

    def __init__(self, metadata: FileMetadata, footer: Footer, known: KnownRanges) -> None:
        self.metadata = metadata
        self._footer = footer
        self._known = known
        self._columns: dict[int, ColumnMetadata] = {}
        self._paged_columns: dict[int, PagedColumn] = {}
        self._stored_fields = {each.id: each for each in metadata.schema.walk()}
        self._pages_of_column: dict[int, PagesOfColumn] = {}

    def read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], start: int, stop: int
    ) -> Asking[list[pa.Array]]:
        """Return the rows from `start` up to but not including `stop`.

        Args:
            fields: Top-level fields of the table, with children projected away at will.
            column_of: Which column of the file holds each field, by field id.
            start: First row offset.
            stop: One past the last; at most the file's number of rows.

        Returns:
            For each field an array of `stop - start` rows, of exactly the field's Arrow type.

        Raises:
            InvalidInputError: The rows are not there, or too large for one array.
            NotFoundError: A field has no column in this file.
            BadDataError: The file is damaged, or has what is not supported.
        """
        if not 0 <= start <= stop <= self.metadata.num_rows:
            raise InvalidInputError(
                f"rows {start} to {stop} were asked for, but the file has the rows 0 to "
                f"{self.metadata.num_rows}"
            )
        return self._known.answering(self._read(fields, column_of, Rows(start, stop)))

    def take(
        self,
        fields: Sequence[Field],
        column_of: Mapping[int, int],
        offsets: npt.NDArray[np.uint64],
    ) -> Asking[list[pa.Array]]:
        """Return the rows at some offsets, reading little more than their bytes.

        Args:
            fields: As in `read`.
            column_of: As in `read`.
            offsets: (num_rows,) row offsets, ascending, each once.

        Returns:
            For each field an array of as many rows, in the same order.

        Raises:
            InvalidInputError: The offsets are not ascending, or past the file's rows.
            NotFoundError: A field has no column in this file.
            BadDataError: The file is damaged, or has what is not supported.
        """
        if len(offsets) and int(offsets[-1]) >= self.metadata.num_rows:
            raise InvalidInputError(
                f"row offset {int(offsets[-1])} was asked for, but the file has "
                f"{self.metadata.num_rows} rows"
            )
        places = offsets.astype(np.int64)
        if len(places) and (int(places[0]) < 0 or not bool((places[1:] > places[:-1]).all())):
            raise InvalidInputError("row offsets must be ascending, each once")
        return self._known.answering(self._read(fields, column_of, Rows.of(places)))

    def page_starts(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> Asking[npt.NDArray[np.int64]]:
        """Return where the most finely paged column begins its pages.

        Reads that end there need not join the pages of that column.

        Args:
            fields: As in `read`; those without a column in this file are passed over.
            column_of: As in `read`.

        Returns:
            (num_pages + 1,) row offsets, ascending from 0 to the file's number of rows.

        Raises:
            BadDataError: The file is damaged.
        """
        return self._known.answering(self._page_starts(fields, column_of))

    def page_bounds(self, fields: Sequence[Field]) -> Asking[PageBounds | None]:
        """Return between which bounds the values of each page lie; None where nothing says it.

        Args:
            fields: Leaves that stand in no list.

        Raises:
            BadDataError: The file is damaged.
        """
        return self._known.answering(self._page_bounds(fields))

    def _page_bounds(self, fields: Sequence[Field]) -> Asking[PageBounds | None]:  # noqa: ARG002  # files from 2.0 on have none
        yield from ()
        return None

    def _page_starts(
        self, fields: Sequence[Field], column_of: Mapping[int, int]
    ) -> Asking[npt.NDArray[np.int64]]:
        held = [each for field in fields for each in field.walk() if each.id in column_of]
        columns = yield from self._load_columns([column_of[each.id] for each in held])
        lengths = [[page.length for page in each.pages] for each in columns]
        # The items of a 2.0 list are a column of their own, which counts items.
        of_rows = [each for each in lengths if sum(each) == self.metadata.num_rows]
        return np.cumsum([0, *max(of_rows, key=len, default=[self.metadata.num_rows])])

    def columns(self, indices: Sequence[int]) -> Asking[list[ColumnMetadata]]:
        """Return the metadata of some columns: one request, none if they are known.

        Raises:
            BadDataError: They are damaged, or a column is not there.
        """
        return self._known.answering(self._load_columns(indices))

    def _read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], rows: Rows
    ) -> Asking[list[pa.Array]]:
        columns = [self._columns_below(each, column_of) for each in fields]
        yield from self._load_columns([index for each in columns for index in each.values()])
        if self.metadata.version is FileVersion.V2_0:
            yield from self._load_bytes_of_strings(fields, columns)
        return (
            yield from together(
                [
                    _noting(field, self._read_field(field, below, rows))
                    for field, below in zip(fields, columns, strict=True)
                ]
            )
        )

    def _read_field(self, field: Field, columns: Mapping[int, int], rows: Rows) -> Asking[pa.Array]:
        foreign = foreign_type(field, self.metadata.version)
        if foreign is not None:
            raise UnsupportedFeatureError(
                f"files of version {self.metadata.version} hold no {foreign}"
            )
        if field.is_blob and not is_description(field):
            raise InvalidInputError(
                f"the bytes of {field.name!r} are stored apart: read where, by the field that "
                "`schema.blobs.description_of` makes of it"
            )
        whole = with_whole_structs(field, self.metadata.schema)
        array = yield from self._read_whole(whole, columns, rows)
        if field.is_blob and self.metadata.version is FileVersion.V2_0:
            array = with_nulls(array)
        return without_parts(array, whole, field)

    def _read_whole(self, field: Field, columns: Mapping[int, int], rows: Rows) -> Asking[pa.Array]:
        num_rows = self.metadata.num_rows
        if self.metadata.version is FileVersion.V2_0:
            for each in field.walk():
                if each.id in columns:
                    check_descriptions(each, self._columns[columns[each.id]])
            paged_columns = {
                field_id: self._paged_column(index, field_id) for field_id, index in columns.items()
            }
            return (yield from v2_0.read_field(field, paged_columns, num_rows, rows))
        pages_of_leaf = {
            field_id: self._pages_of_column.setdefault(
                index, PagesOfColumn(self._columns[index].pages)
            )
            for field_id, index in columns.items()
        }
        if rows.offsets is None:
            return (yield from structural.read_field(field, pages_of_leaf, rows.start, rows.stop))
        return (
            yield from structural.take_field(field, pages_of_leaf, rows.offsets.astype(np.uint64))
        )

    def _paged_column(self, index: int, field_id: int) -> PagedColumn:
        if index not in self._paged_columns:
            self._paged_columns[index] = PagedColumn(
                self._columns[index], self.metadata.buffer_ranges, self._stored_field(field_id)
            )
        return self._paged_columns[index]

    def _stored_field(self, field_id: int) -> Field | None:
        stored = self._stored_fields.get(field_id)
        # The file's own schema says what the blobs are, not what describes them.
        return None if stored is None or stored.is_blob else stored

    def _load_bytes_of_strings(
        self, fields: Sequence[Field], columns: Sequence[Mapping[int, int]]
    ) -> Asking[None]:
        """Load the columns behind those whose strings an early writer stored as lists of bytes."""
        leaves = {
            below[leaf.id]: self._paged_column(below[leaf.id], leaf.id)
            for field, below in zip(fields, columns, strict=True)
            for leaf in field.leaves()
            if leaf.id in below
        }
        as_lists = {
            index: leaf
            for index, leaf in leaves.items()
            if leaf.bytes_of_strings is None and leaf.kind == "list"
        }
        loaded = yield from self._load_columns([index + 1 for index in as_lists])
        for leaf, behind in zip(as_lists.values(), loaded, strict=True):
            leaf.bytes_of_strings = PagedColumn(behind, self.metadata.buffer_ranges)

    def _columns_below(self, field: Field, column_of: Mapping[int, int]) -> dict[int, int]:
        """Return the columns of a field and of those below it, by field id.

        Parts of a nested column that was widened later are not there: they read as nulls.
        """
        columns = {
            each.id: column_of[each.id]
            for each in self._fields_that_may_have_columns(field)
            if each.id in column_of
        }
        if not columns:
            raise NotFoundError(f"the column {field.name!r} (field {field.id}) is not in this file")
        return columns

    def _fields_that_may_have_columns(self, field: Field) -> Iterable[Field]:
        if self.metadata.version is FileVersion.V2_0:
            # Whether a struct is packed, and its parts have none, the file says.
            return field.walk()
        return fields_with_column(field, self.metadata.version)

    def _load_columns(self, indices: Sequence[int]) -> Asking[list[ColumnMetadata]]:
        wanted = [each for each in dict.fromkeys(indices) if each not in self._columns]
        for index in wanted:
            if not 0 <= index < len(self.metadata.column_ranges):
                raise CorruptDataError(
                    f"column {index} is referred to, but the file has "
                    f"{len(self.metadata.column_ranges)} columns"
                )
        if wanted:
            buffers = yield [self.metadata.column_ranges[index] for index in wanted]
            for index, buffer in zip(wanted, buffers, strict=True):
                column = decode_column_metadata(buffer, self._footer.metadata_start)
                holds_blobs(column)  # refuses what holds neither values nor descriptions
                self._columns[index] = column
        return [self._columns[index] for index in indices]


def open_file(size_bytes: int, whole_below: int = 0) -> Asking[FileReader]:
    """Return a reader of a file: one request for its end, at most two more if that is large.

    Args:
        size_bytes: The size of the file.
        whole_below: Up to this size all of it is read by the first request, and kept.

    Raises:
        CorruptDataError: It is not a Lance data file, or damaged.
        UnsupportedFeatureError: Its version is not supported; the message names it.
    """
    tail_start = 0 if size_bytes <= whole_below else max(0, size_bytes - TAIL_BYTES)
    (tail,) = yield [ByteRange(tail_start, size_bytes)]
    known = KnownRanges([ByteRange(tail_start, size_bytes)], [tail])
    if decode_footer_version(tail[-FOOTER_BYTES:], size_bytes) is FileVersion.V0_1:
        first = yield from known.answering(open_v01_file(tail[-FIRST_FOOTER_BYTES:], size_bytes))
        return _FirstFileReader(first, size_bytes, known)
    footer = decode_footer(tail[-FOOTER_BYTES:], size_bytes)
    return (yield from known.answering(_open(size_bytes, footer, known)))


def _open(size_bytes: int, footer: Footer, known: KnownRanges) -> Asking[FileReader]:
    column_table, global_table = yield [footer.column_table, footer.global_table]
    column_ranges = decode_position_table(column_table, size_bytes)
    buffer_ranges = decode_position_table(global_table, size_bytes)
    eager = sum(each.size_bytes for each in column_ranges) <= EAGER_METADATA_BYTES
    descriptor, *columns = yield [buffer_ranges[0], *(column_ranges if eager else ())]
    schema, num_rows = decode_file_descriptor(descriptor)
    return FileReader(
        FileMetadata(footer.version, num_rows, schema, column_ranges, buffer_ranges, size_bytes),
        footer,
        known.and_also(column_ranges, columns) if eager else known,
    )


class _FirstFileReader(FileReader):
    """Reads rows of a file of version 0.1, which has a page table instead of column metadata."""

    def __init__(self, first: V01File, size_bytes: int, known: KnownRanges) -> None:
        tail, version = first.tail, FileVersion.V0_1
        nothing = ByteRange(0, 0)
        super().__init__(
            FileMetadata(version, tail.num_rows, tail.schema, (), (), size_bytes),
            Footer(tail.data_stop, nothing, nothing, version),
            known,
        )
        self._first = first

    def _read(
        self, fields: Sequence[Field], column_of: Mapping[int, int], rows: Rows
    ) -> Asking[list[pa.Array]]:
        if rows.offsets is None:
            return self._first.read(fields, column_of, rows.start, rows.stop)
        return self._first.take(fields, column_of, rows.offsets)

    def page_starts(
        self,
        fields: Sequence[Field],  # noqa: ARG002  # all columns have the same batches
        column_of: Mapping[int, int],  # noqa: ARG002  # all columns have the same batches
    ) -> Asking[npt.NDArray[np.int64]]:
        yield from ()
        return self._first.tail.batch_offsets

    def _page_bounds(self, fields: Sequence[Field]) -> Asking[PageBounds | None]:
        return self._first.bounds(fields)


def _noting(field: Field, asking: Asking[Any]) -> Asking[Any]:
    """Add the column's name to whatever is wrong with it."""
    try:
        return (yield from asking)
    except (BadDataError, InvalidInputError) as error:
        error.add_note(f"column: {field.name!r}")
        raise
