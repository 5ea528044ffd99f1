"""BTREE index: all values of a column in order, divided into pages, with the rows that have them.

    page_lookup.lance    one row per page
        min              the smallest value; null if the page has nulls
        max              the largest value; null if the page has only nulls
        null_count       u32
        page_idx         u32, the page's number, p
    page_data.lance      page p is rows p * batch_size to (p + 1) * batch_size
        values           nulls first, then ascending
        ids              u64, row ids; row addresses if the index's version is at least 1

`batch_size` is in the metadata of the lookup file's schema. Floats are in total order: NaN with a
sign first, -0.0 before 0.0, other NaNs last.

Pages are selected by their bounds, by the rules of `page_skipping`; then the condition is evaluated
on their values, by the same rules as on rows.

Source: what pylance 14 writes; btree.rs of the crate lance-index.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import RowIds
from lance_stream.caches import Cache
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.read.indices.column_conditions import ColumnCondition
from lance_stream.read.indices.evaluation import is_true_for_null, where_true
from lance_stream.read.indices.index_file import IndexFile, IndexFolder
from lance_stream.read.skipping.page_skipping import ValueBounds, pages_that_may_match

Pages: TypeAlias = npt.NDArray[np.int64]

LOOKUP: Final = "page_lookup.lance"
DATA: Final = "page_data.lance"

MAX_LOOKUP_BYTES: Final = 16 << 20
"""The maximum size of the lookup file; that of an index on a billion rows is smaller."""

MAX_PAGES: Final = 1 << 20
"""The maximum number of pages; an index on a billion rows has a quarter of them."""

MAX_BOUND_BYTES: Final = 64 << 20
"""The maximum size of the pages' bounds in memory."""

MAX_CACHED_PAGE_BYTES: Final = 64 << 20
"""The maximum size of the cached pages of all indices of all tables."""

_MAX_PAGE_ROWS: Final = 1 << 20


class _PageKey(NamedTuple):
    name: str
    number: int


class _Page(NamedTuple):
    """The entries of a page: (num_entries,) values of the column, and (num_entries,) u64 ids."""

    values: pa.Array
    ids: RowIds


_PAGES: Final = Cache[_PageKey, _Page](
    MAX_CACHED_PAGE_BYTES, lambda page: int(page.values.nbytes) + page.ids.nbytes + 256
)


def clear_page_cache() -> None:
    """Empty the cache of pages."""
    _PAGES.clear()


class BTree:
    """An open BTREE index; has no reference to a store, so that the process can cache it.

    Args:
        name: A unique name.
        lookup: The columns of the lookup file: min, max, null_count and page_idx.
        page_rows: The number of entries in a page; the last page may have fewer.
        data: The file with the pages.

    Raises:
        CorruptDataError: The lookup file and the data file contradict each other.
    """

    def __init__(self, name: str, lookup: list[pa.Array], page_rows: int, data: IndexFile) -> None:
        minima, maxima, null_counts, numbers = lookup
        if null_counts.null_count or numbers.null_count:
            raise CorruptDataError("a page of an index has no number or no null count")
        self._name = name
        self._data = data
        self._page_rows = page_rows
        self._numbers: Pages = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
        self._null_counts: Pages = null_counts.to_numpy(zero_copy_only=False).astype(np.int64)
        _check_lookup(minima, maxima, self._null_counts, self._numbers, page_rows, data.num_rows)
        if pa.types.is_floating(minima.type):
            # NaN with a sign is first. If the minimum is NaN, or unknown because of nulls, such
            # values may be on the page, and neither bound is used.
            may_have_nan = pc.or_kleene(pc.is_null(minima), pc.is_nan(minima))
            null = pa.scalar(None, minima.type)
            minima = pc.if_else(may_have_nan, null, minima)
            maxima = pc.if_else(pc.and_(may_have_nan, pc.is_valid(maxima)), null, maxima)
        self._only_nulls = np.asarray(pc.is_null(lookup[1]))
        self._bounds = ValueBounds(minima, maxima, False, self._null_counts > 0)

    @property
    def num_entries(self) -> int:
        """The number of entries, one per row."""
        return self._data.num_rows

    @property
    def logical_type(self) -> str:
        """The logical type of its values."""
        return self._data.fields["values"].logical_type

    @property
    def cached_bytes(self) -> int:
        """The approximate size in memory."""
        arrays = (self._bounds.minima, self._bounds.maxima, self._numbers, self._null_counts)
        return sum(int(array.nbytes) for array in arrays) + self._data.cached_bytes + 1024

    def plan(self, condition: ColumnCondition) -> tuple[Pages, int]:
        """Return the pages in which a condition may be true, and their number of entries."""
        bounds = {condition.path: self._bounds}
        answers = [
            pages_that_may_match(node, bounds, len(self._numbers)) for node in condition.nodes
        ]
        may_be_true = reduce(np.logical_and if condition.is_and else np.logical_or, answers)
        if self._only_nulls.any() and not is_true_for_null(condition, self._bounds.maxima.type):
            may_be_true = may_be_true & ~self._only_nulls
        pages = np.flatnonzero(may_be_true)
        return pages, min(len(pages) * self._page_rows, self.num_entries)

    def search(self, condition: ColumnCondition, pages: Pages, part: IndexFolder) -> RowIds:
        """Return the ids of the entries for which a condition is true.

        Args:
            condition: The condition.
            pages: The pages to search, from `plan`.
            part: The files of the index.

        Raises:
            BadDataError: A page is damaged.
        """
        matches = [page.ids[where_true(condition, page.values)] for page in self._read(pages, part)]
        return np.concatenate([np.empty(0, np.uint64), *matches])

    def _read(self, pages: Pages, part: IndexFolder) -> Iterator[_Page]:
        keys = {int(index): _PageKey(self._name, int(self._numbers[index])) for index in pages}
        cached = {index: _PAGES.get(key) for index, key in keys.items()}
        missing = sorted(
            (keys[index].number, index) for index, page in cached.items() if page is None
        )
        yield from (page for page in cached.values() if page is not None)
        if not missing:
            return
        spans = [self._span(number) for number, _ in missing]
        rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
        values, ids = self._data.rows(part.ranges_of(DATA), rows, "values", "ids")
        first = 0
        for (start, stop), (number, index) in zip(spans, missing, strict=True):
            num_rows = stop - start
            page_entries = _Page(
                values.slice(first, num_rows),
                ids.slice(first, num_rows).to_numpy(zero_copy_only=False),
            )
            self._check(index, page_entries)
            if len(missing) > 1:  # a slice would keep the memory of all pages
                page_entries = _Page(
                    pa.concat_arrays([page_entries.values]), page_entries.ids.copy()
                )
            _PAGES.put(_PageKey(self._name, number), page_entries)
            yield page_entries
            first += num_rows

    def _span(self, number: int) -> tuple[int, int]:
        start = number * self._page_rows
        return start, min(start + self._page_rows, self._data.num_rows)

    def _check(self, index: int, page: _Page) -> None:
        """Check that a page agrees with the lookup file.

        Raises:
            CorruptDataError: Its null count or bounds differ, or its values do not ascend.
        """
        num_nulls = page.values.null_count
        minimum, maximum = self._bounds.minima[index], self._bounds.maxima[index]
        values = page.values.slice(num_nulls)
        is_valid = num_nulls == self._null_counts[index] and not values.null_count
        if is_valid and len(values):
            is_valid = not (
                maximum.is_valid
                and maximum != values[-1]
                and maximum.as_py() == maximum.as_py()  # not NaN
            )
            is_valid &= not (minimum.is_valid and minimum != page.values[0])
            is_valid &= not _any_greater(values[:-1], values[1:])
        if not is_valid:
            raise CorruptDataError(
                f"page {self._numbers[index]} of an index contradicts the index's list of pages"
            )


def _check_lookup(
    minima: pa.Array,
    maxima: pa.Array,
    null_counts: Pages,
    numbers: Pages,
    page_rows: int,
    num_entries: int,
) -> None:
    """Check that a lookup file describes pages of ascending values, nulls first.

    Args:
        minima: (num_pages,) smallest value of each page; the pages may be in any order.
        maxima: (num_pages,) largest value of each page.
        null_counts: (num_pages,) number of nulls in each page.
        numbers: (num_pages,) number of each page.
        page_rows: The number of entries in a page.
        num_entries: The number of entries in all pages.

    Raises:
        CorruptDataError: The lookup file contradicts itself or the number of entries.
    """
    _check_count(len(numbers), page_rows, num_entries)
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(len(numbers))):
        raise CorruptDataError("a page of an index is listed twice")
    minima, maxima, null_counts = minima.take(order), maxima.take(order), null_counts[order]
    sizes = np.minimum(num_entries - np.arange(len(numbers)) * page_rows, page_rows)
    has_only_nulls = null_counts == sizes
    is_consistent = (
        bool((null_counts <= sizes).all())
        and np.array_equal(np.asarray(pc.is_null(minima)), null_counts > 0)
        and np.array_equal(np.asarray(pc.is_null(maxima)), has_only_nulls)
        # No nulls after a page with values.
        and not bool((~has_only_nulls[:-1] & (null_counts[1:] > 0)).any())
        and not _any_greater(minima, maxima)
        and not _any_greater(maxima[:-1], minima[1:])
    )
    if not is_consistent:
        raise CorruptDataError("the bounds of the pages of an index contradict each other")


def _check_count(num_pages: int, page_rows: int, num_entries: int) -> None:
    expected = -(-num_entries // page_rows)
    if num_pages != expected:
        raise CorruptDataError(
            f"an index lists {num_pages} pages, but its {num_entries} entries fill {expected}"
        )


def _any_greater(values: pa.Array, others: pa.Array) -> bool:
    """Return whether any value is greater than the other at its index; nulls and NaN are not."""
    return pc.any(pc.greater(values, others)).as_py() is True


def open_btree(name: str, part: IndexFolder) -> BTree:
    """Open a BTREE index.

    Args:
        name: A unique name.
        part: The files of the index.

    Raises:
        BadDataError: The index is damaged, or of an unknown form.
        NotFoundError: A file is missing.
    """
    lookup = part.open(
        LOOKUP,
        {"min": None, "max": None, "null_count": "uint32", "page_idx": "uint32"},
        MAX_LOOKUP_BYTES,
    )
    data = part.open(DATA, {"values": None, "ids": "uint64"})
    if lookup.metadata.get("range_partitioned", b"false") != b"false":
        raise UnsupportedFeatureError("the index is partitioned")
    types = {lookup.fields[column].logical_type for column in ("min", "max")}
    if types != {data.fields["values"].logical_type}:
        raise CorruptDataError(
            f"an index has values of type {data.fields['values'].logical_type}, but bounds of type "
            f"{' and '.join(sorted(types))}"
        )
    try:
        page_rows = int(lookup.metadata["batch_size"])
    except (KeyError, ValueError):
        raise UnsupportedFeatureError("the index does not state the size of its pages") from None
    if not 0 < page_rows <= _MAX_PAGE_ROWS:
        raise CorruptDataError(f"an index has pages of {page_rows} rows")
    if lookup.num_rows > MAX_PAGES:
        raise UnsupportedFeatureError(
            f"the index has {lookup.num_rows} pages, more than {MAX_PAGES}"
        )
    _check_count(lookup.num_rows, page_rows, data.num_rows)
    rows = lookup.whole(
        part.ranges_of(LOOKUP), MAX_BOUND_BYTES, "min", "max", "null_count", "page_idx"
    )
    return BTree(name, rows, page_rows, data)
