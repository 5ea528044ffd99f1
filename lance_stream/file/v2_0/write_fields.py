"""Writes a field of a 2.0 file: its own column and those of the fields below it.

Rows are collected until they form a page; the page then refers to the buffers of the collected
arrays, without copying values. Each column forms pages at its own pace.

    leaf        collects arrays; pages of values. A packed struct is one
    struct      passes its parts on; one empty page at the end
    list        collects bounds and passes the items on; pages of end offsets, small enough for
                what is below them to be read ahead (see `indices_ahead`)

Source:  encodings_v2_0.proto; files that the reference wrote.
Differs: Version 2.0 does not support null structs; as in the reference, they are refused.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.errors import InvalidInputError
from lance_stream.file.encoding_options import EncodingOptions, parse_encoding_options
from lance_stream.file.metadata.columns import EncodedPage, fields_with_column, pack_encoding
from lance_stream.file.v2_0.choose import encode_page
from lance_stream.file.v2_0.encodings.lists import ListChunk, encode_lists, split_lists
from lance_stream.file.v2_0.indices_ahead import MAX_INDICES_OF_PAGE, has_indices, indices_below
from lance_stream.file.v2_0.pages import NewPage
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT

END_OFFSET_BYTES: Final = 8


class FieldWriter:
    """Turns arrays of one top-level field into pages of its columns.

    Args:
        field: The field, with everything below it.
        max_page_bytes: About how many bytes of values form a page.
    """

    def __init__(self, field: Field, max_page_bytes: int) -> None:
        self._writer = _writer_of(field, 0, max_page_bytes)

    def append(self, array: pa.Array) -> list[EncodedPage]:
        """Add rows, and return the pages that are full.

        Raises:
            InvalidInputError: Files of version 2.0 do not support the values.
        """
        return self._writer.append(array)

    def finish(self) -> list[EncodedPage]:
        """Return the pages of the remaining rows; every column has at least one page."""
        return self._writer.finish()


class _Writer(Protocol):
    def append(self, array: pa.Array) -> list[EncodedPage]: ...

    def end_page(self) -> list[EncodedPage]:
        """End the pages of lists, so that none contains the items of two pages further up."""

    def finish(self) -> list[EncodedPage]: ...


class _LeafWriter:
    def __init__(
        self, arrow: pa.DataType, column: int, max_page_bytes: int, options: EncodingOptions
    ) -> None:
        self._arrow = arrow
        self._options = options
        self._column = column
        self._max_page_bytes = max_page_bytes
        self._chunks: list[pa.Array] = []
        self._gathered_bytes = 0
        self._wrote_a_page = False

    def append(self, array: pa.Array) -> list[EncodedPage]:
        if array.type != self._arrow:
            # pyarrow produces such arrays: if dictionaries in lists of lists outgrow their index
            # type, it widens their indices, but not the type that the outer list states.
            raise InvalidInputError(
                f"values of type {array.type} are in a column of type {self._arrow}"
            )
        pages: list[EncodedPage] = []
        for piece in _pieces(array, self._max_page_bytes):
            self._chunks.append(piece)
            self._gathered_bytes += piece.nbytes
            if self._gathered_bytes >= self._max_page_bytes:
                pages += self._flush()
        return pages

    def finish(self) -> list[EncodedPage]:
        return self._flush() if self._chunks or not self._wrote_a_page else []

    def end_page(self) -> list[EncodedPage]:
        return []

    def _flush(self) -> list[EncodedPage]:
        chunks = self._chunks or [pa.nulls(0, self._arrow)]
        self._chunks, self._gathered_bytes, self._wrote_a_page = [], 0, True
        return [self._page(group) for group in _groups_of_one_dictionary(chunks, self._arrow)]

    def _page(self, chunks: Sequence[pa.Array]) -> EncodedPage:
        page = NewPage()
        encoding = encode_page(chunks, self._arrow, page, self._options)
        return _encoded_page(self._column, page, sum(len(chunk) for chunk in chunks), encoding)


class _StructWriter:
    def __init__(self, field: Field, column: int, max_page_bytes: int) -> None:
        self._name = field.name
        self._column = column
        self._num_rows = 0
        self._children: list[_Writer] = []
        next_column = column + 1
        for child in field.children:
            self._children.append(_writer_of(child, next_column, max_page_bytes))
            next_column += sum(1 for _ in fields_with_column(child, FileVersion.V2_0))

    def append(self, array: pa.Array) -> list[EncodedPage]:
        if array.null_count:
            raise InvalidInputError(
                f"the struct {self._name!r} is null in {array.null_count} rows, but files of "
                "version 2.0 do not support null structs; 2.1 and newer do"
            )
        self._num_rows += len(array)
        pages: list[EncodedPage] = []
        for index, child in enumerate(self._children):
            pages += child.append(array.field(index))
        return pages

    def end_page(self) -> list[EncodedPage]:
        return [page for child in self._children for page in child.end_page()]

    def finish(self) -> list[EncodedPage]:
        header = pb.ArrayEncoding(struct=pb.SimpleStruct())
        pages = [_encoded_page(self._column, NewPage(), self._num_rows, header)]
        for child in self._children:
            pages += child.finish()
        return pages


class _ListWriter:
    def __init__(self, field: Field, column: int, max_page_bytes: int) -> None:
        self._field = field
        self._column = column
        self._max_page_lists = max(max_page_bytes // END_OFFSET_BYTES, 1)
        self._items = _writer_of(field.children[0], column + 1, max_page_bytes)
        self._has_indices_below = has_indices(field.children[0])
        self._chunks: list[ListChunk] = []
        self._num_gathered = 0
        self._indices_below = 0
        self._wrote_a_page = False

    def append(self, array: pa.Array) -> list[EncodedPage]:
        chunk, items = split_lists(array)
        before = indices_below(array, self._field) if self._has_indices_below else None
        if before is None:
            self._gather(chunk)
            pages = [self._page()] if self._num_gathered >= self._max_page_lists else []
            return pages + self._items.append(items)
        return self._append_with_indices(chunk, items, before)

    def _append_with_indices(
        self, chunk: ListChunk, items: pa.Array, before: npt.NDArray[np.int64]
    ) -> list[EncodedPage]:
        """Add lists, and end pages where there are enough end offsets below them.

        Args:
            chunk: The lists.
            items: Their items.
            before: (num_lists + 1,) the number of end offsets below the lists before each position.
        """
        pages: list[EncodedPage] = []
        start = 0
        while start < len(before) - 1:
            room = min(MAX_INDICES_OF_PAGE, self._max_page_lists) - self._indices_below
            stop = int(np.searchsorted(before, before[start] + room, "right")) - 1
            if stop <= start and self._num_gathered:
                pages += self.end_page()
                continue
            stop = max(stop, start + 1)
            self._gather(chunk.slice(start, stop))
            self._indices_below += int(before[stop] - before[start])
            first, first_item, last_item = chunk.bounds[[0, start, stop]].tolist()
            pages += self._items.append(items.slice(first_item - first, last_item - first_item))
            start = stop
            if self._num_gathered >= self._max_page_lists:
                pages += self.end_page()
        return pages

    def end_page(self) -> list[EncodedPage]:
        pages = [self._page()] if self._chunks else []
        return pages + self._items.end_page()

    def _gather(self, chunk: ListChunk) -> None:
        self._chunks.append(chunk)
        self._num_gathered += len(chunk.lists)

    def finish(self) -> list[EncodedPage]:
        pages = [self._page()] if self._chunks or not self._wrote_a_page else []
        return pages + self._items.finish()

    def _page(self) -> EncodedPage:
        page, num_lists = NewPage(), self._num_gathered
        encoding = encode_lists(self._chunks, page)
        self._chunks, self._num_gathered, self._indices_below = [], 0, 0
        self._wrote_a_page = True
        return _encoded_page(self._column, page, num_lists, encoding)


def _writer_of(field: Field, column: int, max_page_bytes: int) -> _Writer:
    options = parse_encoding_options(field)
    if field.logical_type == STRUCT and not field.is_packed:
        return _StructWriter(field, column, max_page_bytes)
    if not field.is_leaf:
        return _ListWriter(field, column, max_page_bytes)
    return _LeafWriter(field_to_arrow(field).type, column, max_page_bytes, options)


def _encoded_page(
    column: int, page: NewPage, length: int, encoding: pb.ArrayEncoding
) -> EncodedPage:
    return EncodedPage(column, tuple(page.buffers), length, pack_encoding(encoding))


def _pieces(array: pa.Array, max_bytes: int) -> list[pa.Array]:
    """Cut an array into slices of about this many bytes, without a copy."""
    if array.nbytes <= max_bytes or pa.types.is_dictionary(array.type):
        return [array]
    rows_of_piece = max(1, len(array) * max_bytes // array.nbytes)
    return [array.slice(start, rows_of_piece) for start in range(0, len(array), rows_of_piece)]


def _groups_of_one_dictionary(
    chunks: Sequence[pa.Array], arrow: pa.DataType
) -> list[Sequence[pa.Array]]:
    """Split chunks into groups that can share a page: all of them, unless dictionaries differ."""
    if not pa.types.is_dictionary(arrow) or len(chunks) == 1:
        return [chunks]
    try:
        unified: list[pa.Array] = pa.chunked_array(chunks).unify_dictionaries().chunks
    except pa.ArrowInvalid:
        # The index type is too narrow for all items together.
        return [[chunk] for chunk in chunks]
    return [unified]
