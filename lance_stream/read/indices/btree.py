"""A BTREE: all values of a column in order, in pages, each with the row that has it.

    page_lookup.lance    one row per page
        min              the smallest value; null if the page has nulls
        max              the largest; null if it has nothing else
        null_count       u32
        page_idx         u32, the page's number, p
    page_data.lance      rows p * batch_size up to (p + 1) * batch_size are page p
        values           nulls first, then ascending
        ids              u64: row ids, or row addresses if the index's version is 1 or more

`batch_size` is in the metadata of the lookup's schema. Floats are in total order: a NaN with a sign
before all other values, -0.0 before 0.0, other NaNs last.

Pages are found by their bounds, by the rules of `page_skipping`; the condition is then evaluated on
their values, by the same rules as on rows.

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
from lance_stream.read.indices.index_file import IndexFile, PartOfIndex
from lance_stream.read.skipping.page_skipping import ValueBounds, pages_that_may_match

Pages: TypeAlias = npt.NDArray[np.int64]

LOOKUP: Final = "page_lookup.lance"
DATA: Final = "page_data.lance"

MOST_LOOKUP_BYTES: Final = 16 << 20
"""A larger list of pages is not read: that of an index on a billion rows is smaller."""

MOST_PAGES: Final = 1 << 20
"""More are not read: an index on a billion rows has a quarter of them."""

MOST_BOUND_BYTES: Final = 64 << 20
"""A list of pages that takes more memory is not kept."""

MAX_CACHED_PAGE_BYTES: Final = 64 << 20
"""How much memory pages of indices take at most, of all tables."""

_MOST_ROWS_IN_A_PAGE: Final = 1 << 20


class _PageKey(NamedTuple):
    name: str
    number: int


class _Page(NamedTuple):
    """The entries of a page: (n,) values of the column, (n,) u64 ids."""

    values: pa.Array
    ids: RowIds


_PAGES: Final = Cache[_PageKey, _Page](
    MAX_CACHED_PAGE_BYTES, lambda page: int(page.values.nbytes) + page.ids.nbytes + 256
)


def forget_pages() -> None:
    """Forget all pages."""
    _PAGES.clear()


class BTree:
    """An open BTREE; holds no store, so that the process can keep it.

    Args:
        name: Distinguishes it from all others.
        lookup: The rows of its list of pages: min, max, null_count and page_idx.
        page_rows: How many entries a page has; the last may have fewer.
        data: The file of its pages.

    Raises:
        CorruptDataError: The list and the file contradict each other.
    """

    def __init__(self, name: str, lookup: list[pa.Array], page_rows: int, data: IndexFile) -> None:
        least, most, null_counts, numbers = lookup
        if null_counts.null_count or numbers.null_count:
            raise CorruptDataError("a page of an index has no number, or no count of its nulls")
        self._name = name
        self._data = data
        self._page_rows = page_rows
        self._numbers: Pages = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
        self._null_counts: Pages = null_counts.to_numpy(zero_copy_only=False).astype(np.int64)
        _check_list(least, most, self._null_counts, self._numbers, page_rows, data.num_rows)
        if pa.types.is_floating(least.type):  # a NaN with a sign would be before it
            is_doubtful = pc.or_kleene(pc.is_null(least), pc.is_nan(least))
            nothing = pa.scalar(None, least.type)
            least = pc.if_else(is_doubtful, nothing, least)
            most = pc.if_else(pc.and_(is_doubtful, pc.is_valid(most)), nothing, most)
        self._only_nulls = np.asarray(pc.is_null(lookup[1]))
        self._bounds = ValueBounds(least, most, False, self._null_counts > 0)

    @property
    def num_entries(self) -> int:
        """How many rows it has."""
        return self._data.num_rows

    @property
    def logical_type(self) -> str:
        """The logical type of its values."""
        return self._data.fields["values"].logical_type

    @property
    def cached_bytes(self) -> int:
        """About how much memory it takes."""
        arrays = (self._bounds.least, self._bounds.most, self._numbers, self._null_counts)
        return sum(int(array.nbytes) for array in arrays) + self._data.cached_bytes + 1024

    def plan(self, condition: ColumnCondition) -> tuple[Pages, int]:
        """Return the pages in which a condition may be true, and how many entries they have."""
        bounds = {condition.path: self._bounds}
        answers = [
            pages_that_may_match(node, bounds, len(self._numbers)) for node in condition.nodes
        ]
        may = reduce(np.logical_and if condition.is_and else np.logical_or, answers)
        if self._only_nulls.any() and not is_true_for_null(condition, self._bounds.most.type):
            may = may & ~self._only_nulls
        pages = np.flatnonzero(may)
        return pages, min(len(pages) * self._page_rows, self.num_entries)

    def search(self, condition: ColumnCondition, pages: Pages, part: PartOfIndex) -> RowIds:
        """Return the ids of the entries of some pages for which a condition is true.

        Args:
            condition: The condition.
            pages: From `plan`.
            part: Opens the index's files.

        Raises:
            BadDataError: A page is damaged.
        """
        matches = [page.ids[where_true(condition, page.values)] for page in self._read(pages, part)]
        return np.concatenate([np.empty(0, np.uint64), *matches])

    def _read(self, pages: Pages, part: PartOfIndex) -> Iterator[_Page]:
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
            if len(missing) > 1:  # a slice would keep all of the others
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
        """Check that a page is the one that is listed.

        Raises:
            CorruptDataError: It has other nulls, or values that are outside of its bounds or do
                not ascend.
        """
        num_nulls = page.values.null_count
        least, most = self._bounds.least[index], self._bounds.most[index]
        values = page.values.slice(num_nulls)
        is_right = num_nulls == self._null_counts[index] and not values.null_count
        if is_right and len(values):
            is_right = not (most.is_valid and most != values[-1] and most.as_py() == most.as_py())
            first = page.values[0]
            is_right &= not (least.is_valid and least != first)
            is_right &= not _any_greater(values[:-1], values[1:])
        if not is_right:
            raise CorruptDataError(f"page {self._numbers[index]} of an index is not as listed")


def _check_list(
    least: pa.Array,
    most: pa.Array,
    null_counts: Pages,
    numbers: Pages,
    page_rows: int,
    num_entries: int,
) -> None:
    """Check that a list of pages can be one of values in order, nulls first.

    Args:
        least: (n,) the smallest value of each page, in any order of the pages.
        most: (n,) the largest.
        null_counts: (n,) how many nulls there are.
        numbers: (n,) the pages' numbers.
        page_rows: How many entries a page has.
        num_entries: How many all of them have.

    Raises:
        CorruptDataError: It cannot.
    """
    _check_count(len(numbers), page_rows, num_entries)
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(len(numbers))):
        raise CorruptDataError("a page of an index is listed twice")
    least, most, null_counts = least.take(order), most.take(order), null_counts[order]
    sizes = np.minimum(num_entries - np.arange(len(numbers)) * page_rows, page_rows)
    is_full = null_counts == sizes
    is_right = (
        bool((null_counts <= sizes).all())
        and np.array_equal(np.asarray(pc.is_null(least)), null_counts > 0)
        and np.array_equal(np.asarray(pc.is_null(most)), is_full)
        and not bool((~is_full[:-1] & (null_counts[1:] > 0)).any())
        and not _any_greater(least, most)
        and not _any_greater(most[:-1], least[1:])
    )
    if not is_right:
        raise CorruptDataError("the bounds of the pages of an index contradict one another")


def _check_count(num_pages: int, page_rows: int, num_entries: int) -> None:
    expected = -(-num_entries // page_rows)
    if num_pages != expected:
        raise CorruptDataError(
            f"{num_pages} pages of an index are listed, but its {num_entries} entries make "
            f"{expected}"
        )


def _any_greater(some: pa.Array, others: pa.Array) -> bool:
    """Return whether a value is greater than the other in its place; nulls and NaN are not."""
    return pc.any(pc.greater(some, others)).as_py() is True


def open_btree(name: str, part: PartOfIndex) -> BTree:
    """Open a BTREE.

    Args:
        name: Distinguishes it from all others.
        part: Opens its files.

    Raises:
        BadDataError: It is damaged, or of a form that is not known.
        NotFoundError: A file is missing.
    """
    lookup = part.open(
        LOOKUP,
        {"min": None, "max": None, "null_count": "uint32", "page_idx": "uint32"},
        MOST_LOOKUP_BYTES,
    )
    data = part.open(DATA, {"values": None, "ids": "uint64"})
    if lookup.metadata.get("range_partitioned", b"false") != b"false":
        raise UnsupportedFeatureError("the index is partitioned")
    types = {lookup.fields[column].logical_type for column in ("min", "max")}
    if types != {data.fields["values"].logical_type}:
        raise CorruptDataError(f"an index of {data.fields['values'].logical_type} has {types}")
    try:
        page_rows = int(lookup.metadata["batch_size"])
    except (KeyError, ValueError):
        raise UnsupportedFeatureError("the index does not state the size of its pages") from None
    if not 0 < page_rows <= _MOST_ROWS_IN_A_PAGE:
        raise CorruptDataError(f"an index has pages of {page_rows} rows")
    if lookup.num_rows > MOST_PAGES:
        raise UnsupportedFeatureError(
            f"the index has {lookup.num_rows} pages, more than {MOST_PAGES}"
        )
    _check_count(lookup.num_rows, page_rows, data.num_rows)
    rows = lookup.whole(
        part.ranges_of(LOOKUP), MOST_BOUND_BYTES, "min", "max", "null_count", "page_idx"
    )
    return BTree(name, rows, page_rows, data)
