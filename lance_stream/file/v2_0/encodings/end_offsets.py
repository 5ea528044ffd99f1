"""End offsets: the ends and nulls of byte strings and lists.

    stored      (num_values,) u64
                not null: the end of the value in the page's bytes or items
                null:     the same plus the null adjustment

A value begins where the previous one ends, the first at 0. The null adjustment is larger than
any end, so the size alone identifies a null:

    values      "ab"  null  ""  "c"         adjustment 4
    stored       2     6     2   3

Source: encodings_v2_0.proto, messages Binary and List.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRequests
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.rows import Rows

MAX_INT32_OFFSET = 2**31 - 1

MAX_SCATTERED_ITEMS = 2**27
"""More would be a gigabyte of positions."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The positions of some values in their page's bytes or items.

    Attributes:
        first: The start of the first value.
        stops: (num_values,) int64, the end of each, ascending.
        starts: (num_values,) int64, the start of each; None if that is the previous end.
        is_null: (num_values,) bool; None if no value is null.
    """

    first: int
    stops: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64] | None = None
    is_null: npt.NDArray[np.bool_] | None = None

    @property
    def stop(self) -> int:
        """The end of the last value."""
        return int(self.stops[-1]) if len(self.stops) else self.first

    def bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the start and the end of each value."""
        starts = self.starts
        if starts is None:
            starts = np.append(np.int64(self.first), self.stops)[:-1]
        return starts, self.stops

    def items(self) -> Rows:
        """Return the bytes or items of all values.

        Raises:
            InvalidInputError: They are scattered, and there are too many.
        """
        if self.starts is None:
            return Rows(self.first, self.stop)
        lengths = self.stops - self.starts
        num_items = int(lengths.sum())
        if self.stop - self.first == num_items:
            return Rows(self.first, self.stop)
        if num_items > MAX_SCATTERED_ITEMS:
            raise InvalidInputError(
                f"{len(self.stops)} rows have {num_items} scattered items, more than can be "
                f"taken at once ({MAX_SCATTERED_ITEMS}); take fewer rows at a time"
            )
        return Rows.of(np.arange(num_items) + np.repeat(self.stops - np.cumsum(lengths), lengths))

    def arrow_offsets(self, arrow: pa.DataType, what: str) -> pa.Buffer:
        """Return Arrow's offsets of these values, concatenated.

        Args:
            arrow: The type of the array: its offsets are 32 or 64 bits wide.
            what: The name of the counted things, for the message.

        Raises:
            InvalidInputError: They do not fit into 32 bits.
        """
        wide = has_wide_offsets(arrow)
        if self.starts is None:
            return arrow_offsets(self.stops, self.first, wide=wide, what=what)
        return arrow_offsets(np.cumsum(self.stops - self.starts), 0, wide=wide, what=what)

    def validity(self) -> pa.Buffer | None:
        """Return Arrow's bitmap: bit i is set if value i is not null."""
        if self.is_null is None:
            return None
        return pa.py_buffer(np.packbits(~self.is_null, bitorder="little"))


NO_SPANS = Spans(0, np.zeros(0, np.int64))


def read_spans(
    read_stored: Callable[[Rows], ByteRequests[pa.Array]],
    rows: Rows,
    null_adjustment: int,
    limit: int,
) -> ByteRequests[Spans]:
    """Read the starts and ends of the values at `rows`.

    Args:
        read_stored: Reads stored offsets, as an array of u64.
        rows: Rows of the page.
        null_adjustment: The page's null adjustment.
        limit: The number of existing bytes or items.

    Raises:
        CorruptDataError: The offsets descend, exceed `limit`, or are null themselves.
    """
    if len(rows) == 0:
        return NO_SPANS
    needed = rows.with_predecessors()
    array = yield from read_stored(needed)
    if array.null_count:
        raise CorruptDataError("an end offset is null")
    stored = np.frombuffer(array.buffers()[1], np.uint64, len(array))
    ends, is_null = _split_nulls(stored, null_adjustment)
    if int(ends[-1]) > limit or (is_null is not None and not _ascends(ends)):
        raise CorruptDataError(
            f"the end offsets of a page must ascend to at most {limit}, but they do not"
        )
    # The first row of a page has no predecessor and begins at 0.
    stops = ends.view(np.int64)
    if rows.offsets is None:
        first = 0
        if rows.start:
            first, stops = int(stops[0]), stops[1:]
            is_null = None if is_null is None else is_null[1:]
        starts = None
    else:
        positions = np.searchsorted(_offsets_of(needed), rows.offsets)
        starts = np.where(rows.offsets == 0, 0, stops[positions - 1])
        stops = stops[positions]
        first = int(starts[0])
        is_null = None if is_null is None else is_null[positions]
    if is_null is not None and not bool(is_null.any()):
        is_null = None
    return Spans(first, stops, starts, is_null)


def encode_end_offsets(
    ends: npt.NDArray[np.uint64], chunks: Sequence[pa.Array]
) -> tuple[npt.NDArray[np.uint64], int]:
    """Mark the nulls among end offsets.

    Args:
        ends: (num_values,) ends of the values of all chunks, ascending. Changed in place.
        chunks: The arrays that the values came from, for their nulls.

    Returns:
        The offsets to store, and the null adjustment.
    """
    null_adjustment = int(ends[-1]) + 1 if len(ends) else 1
    position = 0
    for chunk in chunks:
        if chunk.null_count:
            part = ends[position : position + len(chunk)]
            part[nulls_of(chunk)] += np.uint64(null_adjustment)
        position += len(chunk)
    return ends, null_adjustment


def has_wide_offsets(arrow: pa.DataType) -> bool:
    """Whether Arrow's offsets of a type of strings or lists are 64 bits wide."""
    return bool(
        pa.types.is_large_binary(arrow)
        or pa.types.is_large_string(arrow)
        or pa.types.is_large_list(arrow)
    )


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64] | npt.NDArray[np.int32]:
    """Return the (num_values + 1,) offsets of an Arrow array of strings or lists, unchanged."""
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(1, np.int64)
    offsets: npt.NDArray[Any] = np.frombuffer(
        buffer, np.int64 if has_wide_offsets(array.type) else np.int32
    )
    return offsets[array.offset : array.offset + len(array) + 1]


def nulls_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return (num_values,) whether each value is null."""
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def arrow_offsets(stops: npt.NDArray[np.int64], first: int, *, wide: bool, what: str) -> pa.Buffer:
    """Return Arrow's offsets of values that begin at `first` and end at `stops`.

    Raises:
        InvalidInputError: They do not fit into 32 bits.
    """
    total = int(stops[-1]) - first if len(stops) else 0
    if not wide and total > MAX_INT32_OFFSET:
        raise InvalidInputError(
            f"{len(stops)} rows have {total} {what}, more than one array of the column's type can "
            f"contain ({MAX_INT32_OFFSET}); read fewer rows at a time"
        )
    offsets = np.empty(len(stops) + 1, np.int64 if wide else np.int32)
    offsets[0] = 0
    if first:
        np.subtract(stops, first, out=offsets[1:], casting="same_kind" if wide else "unsafe")
    else:
        offsets[1:] = stops
    return pa.py_buffer(offsets)


def _split_nulls(
    stored: npt.NDArray[np.uint64], null_adjustment: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_] | None]:
    """Return the ends, and which values are null; None if none is and the ends ascend."""
    if null_adjustment == 0:
        raise CorruptDataError("a page of values has the null adjustment 0")
    if int(stored[-1]) < null_adjustment and _ascends(stored):
        return stored, None
    is_null = stored >= null_adjustment
    return np.where(is_null, stored - np.uint64(null_adjustment), stored), is_null


def _ascends(ends: npt.NDArray[np.uint64]) -> bool:
    return bool((ends[1:] >= ends[:-1]).all())


def _offsets_of(rows: Rows) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop) if rows.offsets is None else rows.offsets
