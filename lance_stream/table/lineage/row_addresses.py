"""Row addresses, and the index from row ids to them.

    row address    u64    fragment id << 32 | row offset

The address of a row changes when an update or a compaction moves it; its row id does not. The index
maps the row ids of one version to addresses. It is built from the row id sequences of all
fragments, without deleted rows, when rows are first requested by id.

Source: the specification of row ids, "Row Address" and "Row ID Index".
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Mask, RowAddresses, RowIds
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.table.lineage.row_ids import MAX_MATERIALIZED, RowIdSequence

NO_ADDRESS = np.uint64((1 << 64) - 1)
"""No address: no row can have this one."""

_OFFSET_BITS = np.uint64(32)
_OFFSET_MASK = np.uint64((1 << 32) - 1)
# The maximum number of slots per row in an array with one slot for every id in the span.
_MAX_SLOTS_PER_ROW = 2


def pack_addresses(fragment_ids: int | RowIds, offsets: npt.ArrayLike) -> RowAddresses:
    """Return the addresses of the rows at some offsets, (n,) u64.

    Args:
        fragment_ids: The fragment id of all rows, or (n,) u64 one per row.
        offsets: (n,) the row offsets.
    """
    high = np.asarray(fragment_ids, np.uint64) << _OFFSET_BITS
    packed: RowAddresses = np.asarray(offsets).astype(np.uint64) | high
    return packed


def unpack_addresses(addresses: npt.ArrayLike) -> tuple[npt.NDArray[np.uint32], RowIds]:
    """Return the fragment ids, (n,) u32, and the row offsets, (n,) u64, of addresses."""
    packed = np.asarray(addresses, np.uint64)
    return (packed >> _OFFSET_BITS).astype(np.uint32), packed & _OFFSET_MASK


class FragmentRows(NamedTuple):
    """The rows of a fragment, for the index.

    Attributes:
        fragment_id: The fragment's id.
        row_ids: The row ids of the physical rows.
        deleted: (n,) ascending offsets of the deleted rows; None without any.
    """

    fragment_id: int
    row_ids: RowIdSequence
    deleted: npt.NDArray[np.uint32] | None = None


class RowIdIndex:
    """Maps the row ids of one version of a table to row addresses.

    Args:
        fragments: All fragments of the version.

    Raises:
        CorruptDataError: Two live rows have the same id.
        UnsupportedFeatureError: There are more than 2^29 rows.
    """

    def __init__(self, fragments: Iterable[FragmentRows]) -> None:
        parts = list(fragments)
        self.num_rows = 0
        self._first = 0
        self._ids: RowIds | None = None
        total = sum(len(part.row_ids) for part in parts)
        if total > MAX_MATERIALIZED:
            raise UnsupportedFeatureError(
                f"the index of {total} row ids would not fit in memory; the limit is "
                f"{MAX_MATERIALIZED}"
            )
        ids = np.empty(total, np.uint64)
        addresses = np.empty(total, np.uint64)
        for part in parts:
            row_ids = part.row_ids.to_array()
            offsets = np.arange(len(row_ids), dtype=np.uint64)
            if part.deleted is not None and len(part.deleted):
                is_live = np.ones(len(row_ids), np.bool_)
                is_live[part.deleted] = False
                row_ids, offsets = row_ids[is_live], offsets[is_live]
            stop = self.num_rows + len(row_ids)
            ids[self.num_rows : stop] = row_ids
            np.bitwise_or(
                offsets, np.uint64(part.fragment_id << 32), out=addresses[self.num_rows : stop]
            )
            self.num_rows = stop
        self._fill(ids[: self.num_rows], addresses[: self.num_rows])

    def _fill(self, ids: RowIds, addresses: RowAddresses) -> None:
        """Build an array with a slot for every id if the ids are dense, else a sorted list."""
        self._addresses = addresses
        if not len(ids):
            return
        first, last = int(ids.min()), int(ids.max())
        span = last - first + 1
        if span <= _MAX_SLOTS_PER_ROW * len(ids):
            self._first = first
            self._addresses = np.full(span, NO_ADDRESS, np.uint64)
            self._addresses[(ids - np.uint64(first)).astype(np.int64)] = addresses
            if int(np.count_nonzero(self._addresses != NO_ADDRESS)) != len(ids):
                self._raise_duplicates(np.sort(ids))
            return
        if bool((ids[1:] < ids[:-1]).any()):
            # The stable sort is faster here: the ids are ascending runs, one per fragment.
            order = np.argsort(ids, kind="stable")
            ids, self._addresses = ids[order], addresses[order]
        if bool((ids[1:] == ids[:-1]).any()):
            self._raise_duplicates(ids)
        self._ids = ids

    @staticmethod
    def _raise_duplicates(sorted_ids: RowIds) -> None:
        duplicates = sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]]
        raise CorruptDataError(
            f"{len(duplicates)} row ids belong to two live rows each, for example "
            f"{int(duplicates[0])}: an "
            "older writer may have used a next_row_id that was too low"
        )

    def find(self, row_ids: npt.ArrayLike) -> tuple[RowAddresses, Mask]:
        """Return the addresses of some rows.

        Args:
            row_ids: (n,) u64, in any order; an id may occur more than once.

        Returns:
            (n,) addresses in the order of the ids, `NO_ADDRESS` for an id without a live row; and
            (n,) whether there is a live row.
        """
        targets = np.asarray(row_ids, np.uint64)
        positions: npt.NDArray[np.int64]
        if self._ids is None:
            # Modulo 2^64: an id below the first one becomes a slot far beyond the last.
            shifted = targets - np.uint64(self._first)
            is_there = shifted < np.uint64(len(self._addresses))
            positions = np.where(is_there, shifted, np.uint64(0)).astype(np.int64)
        else:
            positions = np.searchsorted(self._ids, targets)
            positions[positions == len(self._ids)] = 0
            is_there = self._ids[positions] == targets
        if not len(self._addresses):
            return np.full(len(targets), NO_ADDRESS), np.zeros(len(targets), np.bool_)
        addresses = np.where(is_there, self._addresses[positions], NO_ADDRESS)
        return addresses, addresses != NO_ADDRESS

    def __len__(self) -> int:
        return self.num_rows
