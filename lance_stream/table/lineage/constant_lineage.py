"""Reads uniform row ids and row versions from the messages of many fragments at once.

Most fragments were appended and never changed. The row ids of such a fragment are one range, and
its row versions are one run:

    fragment        id, physical_rows, row ids, last updated at, created at
    row versions    one run: a range of rows with one version; or none: version 1 for all rows
    row ids         one segment, a range

So the values that a filter on these columns needs are read from the bytes of 10,000 fragments in a
few numpy steps (`wire_columns`), without an object per fragment. Other sequences, and those in
files, are unknown here and must be decoded.

Source: table.proto, message DataFragment; rowids.proto.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Bytes, Mask, Positions, U64s
from lance_stream.table.lineage.row_versions import FIRST_VERSION
from lance_stream.table.messages.wire_columns import Spans, walk

_ID, _PHYSICAL_ROWS = 1, 4
_ROW_IDS, _LAST_UPDATED, _CREATED = 5, 7, 9
# The fields of sequences that are stored in a file, or in a hidden column.
_EXTERNAL_FIELDS = {_ROW_IDS: (6, 12), _LAST_UPDATED: (8, 13), _CREATED: (10, 14)}
_FIRST = 1  # runs of a sequence; its segments; the span of a run; the range of a segment
_VERSION = 2
_START, _END = 1, 2


@dataclass(frozen=True, slots=True)
class ConstantValues:
    """A value per fragment that is the same for all of its rows, or increases by one per row.

    Attributes:
        values: (n,) u64, the version of all rows, or the row id of the first one.
        is_constant: (n,) whether the fragment has such a value.
    """

    values: U64s
    is_constant: Mask

    def replaced(
        self, count: int, positions: npt.NDArray[np.intp], others: "ConstantValues"
    ) -> "ConstantValues":
        """Return the values with others at some indices; see `ConstantLineage.replaced`."""
        return ConstantValues(
            _replaced(self.values, count, positions, others.values),
            _replaced(self.is_constant, count, positions, others.is_constant),
        )


@dataclass(frozen=True, slots=True)
class ConstantLineage:
    """The uniform values of n fragments, in order.

    Attributes:
        ids: (n,) u64, the fragment ids.
        physical_rows: (n,) u64, the numbers of rows.
        is_plain: (n,) whether the message could be read here.
        first_row_ids: The stable row id of the first row, if they are consecutive.
        last_updated: The last-updated-at version of all rows.
        created: The created-at version of all rows.
    """

    ids: U64s
    physical_rows: U64s
    is_plain: Mask
    first_row_ids: ConstantValues
    last_updated: ConstantValues
    created: ConstantValues

    def replaced(
        self, count: int, positions: npt.NDArray[np.intp], others: "ConstantLineage"
    ) -> "ConstantLineage":
        """Return the values of a list of fragments that was derived from this one.

        Args:
            count: The number of its fragments.
            positions: (n,) the indices of those that this list does not have at the same index.
            others: The values of these.
        """
        return ConstantLineage(
            _replaced(self.ids, count, positions, others.ids),
            _replaced(self.physical_rows, count, positions, others.physical_rows),
            _replaced(self.is_plain, count, positions, others.is_plain),
            self.first_row_ids.replaced(count, positions, others.first_row_ids),
            self.last_updated.replaced(count, positions, others.last_updated),
            self.created.replaced(count, positions, others.created),
        )

    def ids_within(self, row_ids: U64s) -> tuple[Positions, Positions]:
        """Find the rows that are in each fragment, where its row ids are one range.

        Args:
            row_ids: (n,) u64, ascending: the rows to find.

        Returns:
            (num_fragments,) the start and the stop of the fragment's rows among `row_ids`; equal if
            it has none of them, or if `first_row_ids` is unknown.
        """
        first, is_constant = self.first_row_ids.values, self.first_row_ids.is_constant
        starts = np.searchsorted(row_ids, first)
        stops = np.searchsorted(row_ids, first + self.physical_rows)
        return starts, np.where(is_constant, stops, starts)

    def share_no_row_id(self, others: U64s) -> Mask:
        """Return which fragments have ids that occur neither in `others` nor in another range.

        Args:
            others: (n,) u64, ascending: the ids of the fragments whose ids are not a range.
        """
        positions = np.flatnonzero(self.first_row_ids.is_constant)
        positions = positions[np.argsort(self.first_row_ids.values[positions], kind="stable")]
        first = self.first_row_ids.values[positions]
        stop = first + self.physical_rows[positions]
        # None of `others` is within the range, no earlier range reaches into it, nor it into the
        # next one.
        is_alone = np.searchsorted(others, first) == np.searchsorted(others, stop)
        is_alone[1:] &= np.maximum.accumulate(stop)[:-1] <= first[1:]
        is_alone[:-1] &= stop[:-1] <= first[1:]
        is_distinct = np.zeros(len(self.ids), np.bool_)
        is_distinct[positions] = is_alone
        return is_distinct


def constant_lineage(raws: Sequence[bytes]) -> ConstantLineage:
    """Read the uniform values of fragments without decoding them.

    Args:
        raws: The bytes of the DataFragment messages.
    """
    data = np.frombuffer(b"".join(raws), np.uint8)
    stops = np.fromiter(accumulate(map(len, raws)), np.int64, len(raws))
    starts = np.concatenate([np.zeros(1, np.int64), stops])[: len(raws)]
    sequences = [
        sequence for field, others in _EXTERNAL_FIELDS.items() for sequence in (field, *others)
    ]
    walked = walk(data, Spans(starts, stops), (_ID, _PHYSICAL_ROWS), sequences)
    num_rows = walked.numbers[_PHYSICAL_ROWS]
    is_plain = ~walked.is_odd & (num_rows > 0)
    inline = {}
    for field, others in _EXTERNAL_FIELDS.items():
        is_present = is_plain.copy()
        for other in others:
            is_present &= walked.spans[other].starts < 0
        inline[field] = is_present
    return ConstantLineage(
        walked.numbers[_ID],
        num_rows,
        is_plain,
        _row_ids(data, walked.spans[_ROW_IDS], inline[_ROW_IDS], num_rows),
        _versions(data, walked.spans[_LAST_UPDATED], inline[_LAST_UPDATED], num_rows),
        _versions(data, walked.spans[_CREATED], inline[_CREATED], num_rows),
    )


def _versions(data: Bytes, sequences: Spans, is_present: Mask, num_rows: U64s) -> ConstantValues:
    versions = np.full(len(num_rows), FIRST_VERSION, np.uint64)
    is_constant = is_present & (sequences.starts < 0)
    some, runs = _only_part(data, sequences, np.flatnonzero(is_present & ~is_constant))
    walked = walk(data, runs, (_VERSION,), (_FIRST,))
    good = ~walked.is_odd & (walked.spans[_FIRST].starts >= 0)
    some, spans = some[good], _select(walked.spans[_FIRST], good)
    owners, _, lengths = _ranges(data, some, spans)
    fits = lengths == num_rows[owners]
    is_constant[owners[fits]] = True
    of_run = np.zeros(len(num_rows), np.uint64)
    of_run[some] = walked.numbers[_VERSION][good]
    versions[owners] = of_run[owners]
    return ConstantValues(versions, is_constant)


def _row_ids(data: Bytes, sequences: Spans, is_present: Mask, num_rows: U64s) -> ConstantValues:
    first = np.zeros(len(num_rows), np.uint64)
    is_constant = np.zeros(len(num_rows), np.bool_)
    some, segments = _only_part(
        data, sequences, np.flatnonzero(is_present & (sequences.starts >= 0))
    )
    owners, starts, lengths = _ranges(data, some, segments)
    first[owners] = starts
    is_constant[owners[lengths == num_rows[owners]]] = True
    return ConstantValues(first, is_constant)


def _only_part(
    data: Bytes, messages: Spans, some: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], Spans]:
    """Return the messages that have exactly one embedded message as field 1, and its span."""
    walked = walk(data, _select(messages, some), (), (_FIRST,))  # a repeated one is odd
    good = ~walked.is_odd & (walked.spans[_FIRST].starts >= 0)
    return some[good], _select(walked.spans[_FIRST], good)


def _ranges(
    data: Bytes, some: npt.NDArray[np.intp], segments: Spans
) -> tuple[npt.NDArray[np.intp], U64s, U64s]:
    """Return the segments that are ranges, with their first numbers and lengths."""
    inside, ranges = _only_part(data, segments, np.arange(len(some)))
    some = some[inside]
    walked = walk(data, ranges, (_START, _END))
    start, end = walked.numbers[_START], walked.numbers[_END]
    good = ~walked.is_odd & (end > start)
    return some[good], start[good], (end - start)[good]


_Value = TypeVar("_Value", np.uint64, np.bool_)


def _replaced(
    values: npt.NDArray[_Value],
    count: int,
    positions: npt.NDArray[np.intp],
    others: npt.NDArray[_Value],
) -> npt.NDArray[_Value]:
    result = np.empty(count, values.dtype)
    num_common = min(count, len(values))
    result[:num_common] = values[:num_common]
    result[positions] = others
    return result


def _select(spans: Spans, which: npt.NDArray[np.intp] | Mask) -> Spans:
    return Spans(spans.starts[which], spans.stops[which])
