"""The pages of one leaf column: their layouts, and their cached metadata.

    PageLayout
        mini_block_layout   mini_block.MiniBlockPage
        full_zip_layout     full_zip.FullZipPage
        constant_layout     constant.ConstantPage
        blob_layout         blob.BlobPage, around another layout
        sparse_layout       refused; only 2.3 has it

Source: encodings21.PageLayout in the proto.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Positions
from lance_stream.byte_ranges import ByteRequests, read_together
from lance_stream.errors import BadDataError, CorruptDataError, UnsupportedFeatureError
from lance_stream.file.metadata.columns import Page, unpack_encoding
from lance_stream.file.v2_1.layouts.blob import (
    BlobPage,
    check_is_description,
    check_is_not_in_list,
)
from lance_stream.file.v2_1.layouts.constant import ConstantPage
from lance_stream.file.v2_1.layouts.full_zip.full_zip import FullZipPage
from lance_stream.file.v2_1.layouts.leaf_rows import (
    LeafColumn,
    LeafRows,
    RowSelection,
    first_of,
    join_leaf_rows,
    last_of,
    within,
)
from lance_stream.file.v2_1.layouts.levels import NULLABLE_ITEM
from lance_stream.file.v2_1.layouts.mini_block.mini_block import MiniBlockPage, ReadChunks
from lance_stream.file.v2_1.layouts.mini_block.neighbouring_pages import decode_pages, fit_together

MAX_ROWS = 2**62
"""Sums of counts up to here stay in 64 bits."""


class OpenPage(Protocol):
    """A page with a known layout; caches what it has read of its tables."""

    def read(self, rows: RowSelection) -> ByteRequests[LeafRows | ReadChunks]:
        """Read some of its rows, counted in the page; at least one."""
        ...


def _open_blob_page(message: pb.BlobLayout, page: Page, leaf: LeafColumn) -> BlobPage:
    check_is_description(leaf)
    check_is_not_in_list(leaf)
    inner = replace(leaf, is_list=(False,))
    return BlobPage(message, _open_layout(message.inner_layout, page, inner), leaf)


LAYOUTS: dict[str, Callable[[Any, Page, LeafColumn], OpenPage]] = {
    "mini_block_layout": MiniBlockPage,
    "full_zip_layout": FullZipPage,
    "constant_layout": ConstantPage,
    "blob_layout": _open_blob_page,
}
"""The class that reads each layout, by its name in the proto."""

REFUSED_LAYOUTS = {
    "sparse_layout": "the sparse layout belongs to the unstable file version 2.3",
}
"""Known layouts that are not read, with the reason."""


def open_page(page: Page, leaf: LeafColumn) -> OpenPage:
    """Return the page of a layout.

    Raises:
        CorruptDataError: The layout contradicts itself or the column's type.
        UnsupportedFeatureError: The layout or a codec is not supported; the message names it.
    """
    return _open_layout(unpack_encoding(page.encoding, pb.PageLayout), page, leaf)


def _open_layout(message: pb.PageLayout, page: Page, leaf: LeafColumn) -> OpenPage:
    name = message.WhichOneof("layout")
    if name is None:
        raise UnsupportedFeatureError("a page has an unknown layout")
    if name in REFUSED_LAYOUTS:
        raise UnsupportedFeatureError(f"{name}: {REFUSED_LAYOUTS[name]}")
    return LAYOUTS[name](getattr(message, name), page, leaf)


class PagesOfColumn:
    """The pages of one leaf column of a file, and what earlier reads parsed of them.

    Keep one for each column as long as the file is read: chunk tables, dictionaries and repetition
    indexes are requested once.

    Args:
        pages: In row order, as the column's metadata has them.

    Attributes:
        row_starts: (num_pages + 1,) i64, the first row of each page, and the number of rows.

    Raises:
        CorruptDataError: The pages claim more rows than a file can have.
    """

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages = tuple(pages)
        lengths = [page.length for page in self.pages]
        if sum(lengths) > MAX_ROWS:
            raise CorruptDataError(f"the pages of a column claim to have {sum(lengths)} rows")
        self.row_starts: Positions = np.fromiter(accumulate(lengths, initial=0), np.int64)
        self._open: dict[LeafColumn, dict[int, OpenPage]] = {}

    def read(self, leaf: LeafColumn, rows: RowSelection) -> ByteRequests[LeafRows]:
        """Read some rows, counted in the file; at least one.

        Raises:
            CorruptDataError: The column has fewer rows, or the bytes contradict themselves.
            UnsupportedFeatureError: A layout or codec is unknown; the message names it.
        """
        num_rows = int(self.row_starts[-1])
        if last_of(rows) >= num_rows:
            raise CorruptDataError(
                f"row {last_of(rows)} was requested, but the pages of the column have {num_rows}"
            )
        # Another field may name the same column, in a manifest that is forged or damaged.
        opened = self._open.setdefault(leaf, {})
        first, last = self.row_starts.searchsorted((first_of(rows), last_of(rows)), side="right")
        positions, readers = [], []
        for index in range(int(first) - 1, int(last)):
            start = int(self.row_starts[index])
            inside = within(rows, start, int(self.row_starts[index + 1]))
            if len(inside):
                positions.append(index)
                readers.append(self._read_page(index, leaf, opened, inside))
        parts = yield from read_together(readers)
        return join_leaf_rows(self._decoded(positions, parts))

    def _decoded(
        self, positions: Sequence[int], parts: Sequence[LeafRows | ReadChunks]
    ) -> list[LeafRows]:
        """Decode pages that were only read, as many adjacent ones together as possible."""
        rows: list[LeafRows] = []
        run: list[ReadChunks] = []
        for end, part in enumerate(parts):
            if run and not (isinstance(part, ReadChunks) and fit_together(run[-1], part)):
                rows.append(self._decoded_run(positions[end - len(run) : end], run))
                run = []
            if isinstance(part, ReadChunks):
                run.append(part)
            else:
                rows.append(part)
        if run:
            rows.append(self._decoded_run(positions[-len(run) :], run))
        return rows

    def _decoded_run(self, positions: Sequence[int], run: Sequence[ReadChunks]) -> LeafRows:
        try:
            return decode_pages(run)
        except BadDataError as error:
            # One of them is damaged; decoding them separately shows which.
            for index, page in zip(positions, run, strict=True):
                with self._name_page_in_errors(index):
                    decode_pages([page])
            raise error from None

    def check_without_fields(self) -> None:
        """Raise unless the pages are those of structs without fields, none of them null.

        Such pages contain nothing, not even about their parents.

        Raises:
            CorruptDataError: A page's layout is malformed.
            UnsupportedFeatureError: A page contains more than that.
        """
        for page in self.pages:
            message = unpack_encoding(page.encoding, pb.PageLayout)
            layout = message.constant_layout
            if (
                message.WhichOneof("layout") != "constant_layout"
                or layout.HasField("inline_value")
                or page.buffers
                or tuple(layout.layers) != (NULLABLE_ITEM,)
            ):
                raise UnsupportedFeatureError(
                    "structs without fields that are null or in lists are not supported"
                )

    def _read_page(
        self, index: int, leaf: LeafColumn, opened: dict[int, OpenPage], rows: RowSelection
    ) -> ByteRequests[LeafRows | ReadChunks]:
        with self._name_page_in_errors(index):
            if index not in opened:
                opened[index] = open_page(self.pages[index], leaf)
            return (yield from opened[index].read(rows))

    @contextmanager
    def _name_page_in_errors(self, index: int) -> Iterator[None]:
        """Add the page's position to its errors."""
        try:
            yield
        except BadDataError as error:
            error.add_note(f"page {index} of {len(self.pages)} of the column")
            raise
