"""Row version sequences: the created-at or last-updated-at version of each row.

A sequence is a list of runs:

    span       U64Segment   its number of values is the number of rows
    version    u64          the version of these rows

Runs are in physical row order, including deleted rows. Without a sequence, all rows of a fragment
have version 1.

Source:  rowids.proto, messages RowDatasetVersionSequence and RowDatasetVersionRun.
Differs: The values of a span look like offsets or row ids, but only their number matters: after a
         compaction, spans restart and overlap.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_stream._proto import rowids_pb2
from lance_stream.arrays import Positions, RowVersions
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.lineage.ascending import distinct
from lance_stream.table.lineage.decoded_sequences import DecodedSequences
from lance_stream.table.lineage.row_ids import MAX_MATERIALIZED, MAX_PHYSICAL_ROWS, decode_segments
from lance_stream.table.messages import wire
from lance_stream.table.messages.wire_columns import encode_varints, short_frames, walk

FIRST_VERSION = 1
"""The created-at and last-updated-at version of the rows of a fragment without a sequence."""


class RowVersionSequence:
    """The versions of the physical rows of a fragment, as runs.

    Args:
        lengths: (num_runs,) the numbers of rows of the runs.
        versions: (num_runs,) the versions of the runs.
    """

    def __init__(self, lengths: npt.ArrayLike, versions: npt.ArrayLike) -> None:
        counts = np.asarray(lengths, np.int64).reshape(-1)
        stamps = np.asarray(versions, np.uint64).reshape(-1)
        if len(counts) != len(stamps) or bool((counts < 0).any()):
            raise InvalidInputError("every row version needs a length, which is not negative")
        counts, stamps = counts[counts > 0], stamps[counts > 0]
        # Merge adjacent runs of the same version.
        starts = np.flatnonzero(np.concatenate(([True], stamps[1:] != stamps[:-1])))[: len(stamps)]
        self.lengths: Positions = np.add.reduceat(counts, starts) if len(counts) else counts
        self.versions: RowVersions = stamps[starts]

    @classmethod
    def uniform(cls, num_rows: int, version: int) -> "RowVersionSequence":
        """Return the sequence of rows that all have one version."""
        return cls([num_rows], [version])

    @classmethod
    def from_array(cls, versions: npt.ArrayLike) -> "RowVersionSequence":
        """Return the sequence of some versions, one per row."""
        stamps = np.asarray(versions, np.uint64)
        starts = np.flatnonzero(np.concatenate(([True], stamps[1:] != stamps[:-1])))[: len(stamps)]
        return cls(np.diff(np.concatenate((starts, [len(stamps)]))), stamps[starts])

    @classmethod
    def concat(cls, sequences: Iterable["RowVersionSequence"]) -> "RowVersionSequence":
        """Return the concatenation of sequences."""
        parts = list(sequences)
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)]),
            np.concatenate([np.empty(0, np.uint64), *(part.versions for part in parts)]),
        )

    @cached_property
    def _ends(self) -> Positions:
        return np.cumsum(self.lengths)

    @property
    def num_rows(self) -> int:
        """The number of rows of all runs."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __len__(self) -> int:
        return self.num_rows

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RowVersionSequence)
            and np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.versions, other.versions)
        )

    __hash__ = None  # type: ignore[assignment]  # makes it unhashable

    def __repr__(self) -> str:
        return f"<{self.num_rows} row versions in {len(self.lengths)} runs>"

    def to_array(self) -> RowVersions:
        """Return all versions as (num_rows,) u64.

        Raises:
            UnsupportedFeatureError: There are more than 2^29.
        """
        if self.num_rows > MAX_MATERIALIZED:
            raise UnsupportedFeatureError(
                f"a sequence of {self.num_rows} row versions is too long for one array; the limit "
                f"is {MAX_MATERIALIZED}"
            )
        return np.repeat(self.versions, self.lengths)

    def take(self, offsets: npt.ArrayLike) -> RowVersions:
        """Return the versions of the rows at some offsets, in the order of the offsets.

        Raises:
            InvalidInputError: An offset is out of range.
        """
        targets = np.asarray(offsets).astype(np.int64, copy=False)
        if len(targets) and (int(targets.min()) < 0 or int(targets.max()) >= self.num_rows):
            raise InvalidInputError(f"a row offset is outside the {self.num_rows} rows")
        versions: RowVersions = self.versions[np.searchsorted(self._ends, targets, side="right")]
        return versions

    def slice(self, start: int, stop: int) -> RowVersions:
        """Return the versions of the rows from offset `start` up to but not including `stop`.

        Raises:
            InvalidInputError: The offsets are out of range.
        """
        if not 0 <= start <= stop <= self.num_rows:
            raise InvalidInputError(
                f"the rows {start} to {stop} are not within the {self.num_rows} rows"
            )
        return self.take(np.arange(start, stop, dtype=np.int64))

    def without(self, offsets: npt.ArrayLike) -> "RowVersionSequence":
        """Return the sequence without some rows, as when deleted rows are dropped."""
        removed = distinct(np.asarray(offsets, np.int64))
        which = np.searchsorted(self._ends, removed, side="right")
        return RowVersionSequence(
            self.lengths - np.bincount(which, minlength=len(self.lengths))[: len(self.lengths)],
            self.versions,
        )


def decode_row_versions(data: bytes | None, num_rows: int) -> RowVersionSequence:
    """Decode a RowDatasetVersionSequence message.

    Args:
        data: The message; None without one.
        num_rows: The fragment's number of physical rows, including deleted ones.

    Raises:
        CorruptDataError: The bytes are not such a message, or there is not one version per row.
    """
    if data is None:
        return RowVersionSequence.uniform(num_rows, FIRST_VERSION)
    sequence, total = _CACHE.get_or_decode(bytes(data), _decode)
    if sequence is None or total != num_rows:
        raise CorruptDataError(
            f"a fragment of {num_rows} rows has {total} row versions, but must have one per row"
        )
    return sequence


def _decode(data: bytes) -> tuple[RowVersionSequence | None, int]:
    """Return the sequence, or None if it has too many rows for a fragment, and its row count."""
    runs = _decode_runs(data) if len(data) >= _LONG_BYTES else None
    if runs is not None:
        return runs, runs.num_rows
    message = wire.parse_message(rowids_pb2.RowDatasetVersionSequence, data)
    lengths = [_length_of(run.span) for run in message.runs]
    total = sum(lengths)  # Python integers, which do not overflow
    if total > MAX_PHYSICAL_ROWS:
        return None, total
    return RowVersionSequence(lengths, [run.version for run in message.runs]), total


def _decode_runs(data: bytes) -> RowVersionSequence | None:
    """Decode a message without creating an object per run; see `_encode_runs`.

    Returns None if a span is not a short range, if there are more rows than a fragment can have, or
    if the bytes are damaged. Then the message must be parsed.
    """
    runs = short_frames(data, _RUNS)
    if runs is None:
        return None
    buffer = np.frombuffer(data, np.uint8)
    of_runs = walk(buffer, runs, (_RUN_VERSION,), (_RUN_SPAN,))
    spans = of_runs.spans[_RUN_SPAN]
    if of_runs.is_odd.any() or (spans.starts < 0).any():
        return None
    ranges = walk(buffer, spans, (), (_SPAN_RANGE,)).spans[_SPAN_RANGE]
    # The range must be the only field of the span, of which the last one would count.
    if (ranges.starts != spans.starts + 2).any() or (ranges.stops != spans.stops).any():
        return None
    bounds = walk(buffer, ranges, (_RANGE_START, _RANGE_END))
    starts, ends = bounds.numbers[_RANGE_START], bounds.numbers[_RANGE_END]
    if bounds.is_odd.any() or (ends < starts).any() or (ends - starts > MAX_PHYSICAL_ROWS).any():
        return None
    sequence = RowVersionSequence(ends - starts, of_runs.numbers[_RUN_VERSION])
    return sequence if sequence.num_rows <= MAX_PHYSICAL_ROWS else None


_LONG_BYTES: Final = 2048
_RUNS, _RUN_SPAN, _RUN_VERSION, _SPAN_RANGE, _RANGE_START, _RANGE_END = 1, 1, 2, 1, 1, 2
"""Field numbers of a sequence, a run, its span, and the range of the span."""

_CACHE: Final = DecodedSequences[tuple[RowVersionSequence | None, int]](
    lambda decoded: 0 if decoded[0] is None else 3 * decoded[0].lengths.nbytes,
    max_bytes=64 << 20,
)


def encode_row_versions(sequence: RowVersionSequence) -> bytes:
    """Encode a sequence as a RowDatasetVersionSequence message.

    Every span starts at 0, as in the reference after a compaction: offsets would take 50 % more
    bytes.
    """
    if len(sequence.lengths) >= _MANY_RUNS and bool(sequence.versions.all()):
        data = _encode_runs(sequence.lengths.astype(np.uint64), sequence.versions)
        # Cache it for the reader of this version, or the writer of the next one.
        _CACHE.get_or_decode(data, lambda _: (sequence, sequence.num_rows))
        return data
    message = rowids_pb2.RowDatasetVersionSequence()
    add = message.runs.add
    for length, version in zip(sequence.lengths.tolist(), sequence.versions.tolist(), strict=True):
        add(version=version).span.range.end = length
    return wire.serialize(message)


_MANY_RUNS: Final = 64

_IN_FRAME: Final = 0x0A
_END: Final = 0x10
_VERSION: Final = 0x10
"""Tags of a run, its span and the range of the span; of the range's end; of the run's version."""


def _encode_runs(lengths: RowVersions, versions: RowVersions) -> bytes:
    """Serialize a message without creating an object per run.

    Args:
        lengths: (n,) the numbers of rows of the runs; none is 0.
        versions: (n,) the versions of the runs; none is 0, which a message would omit.
    """
    ends, end_sizes = encode_varints(lengths)
    stamps, stamp_sizes = encode_varints(versions)
    pieces = [
        _column(_IN_FRAME, lengths),
        _column(4 + 1 + end_sizes + 1 + stamp_sizes, lengths),
        _column(_IN_FRAME, lengths),
        _column(2 + 1 + end_sizes, lengths),
        _column(_IN_FRAME, lengths),
        _column(1 + end_sizes, lengths),
        _column(_END, lengths),
        ends,
        _column(_VERSION, lengths),
        stamps,
    ]
    # One row of bytes per run, in which varints are padded to the longest: drop the padding.
    table = np.concatenate(pieces, axis=1)
    is_used = np.ones(table.shape, np.bool_)
    for sizes, width, first in (
        (end_sizes, ends.shape[1], 7),
        (stamp_sizes, stamps.shape[1], 8 + ends.shape[1]),
    ):
        is_used[:, first : first + width] = np.arange(width) < sizes[:, None]
    return table[is_used].tobytes()


def _column(value: int | npt.NDArray[np.int64], like: RowVersions) -> npt.NDArray[np.uint8]:
    return np.broadcast_to(np.asarray(value, np.uint8), like.shape)[:, None]


def _length_of(span: rowids_pb2.U64Segment) -> int:
    if span.WhichOneof("segment") == "range":
        length = span.range.end - span.range.start
        if length < 0:
            raise CorruptDataError("a run of row versions ends before it starts")
        return length
    return sum(len(segment) for segment in decode_segments((span,)))
