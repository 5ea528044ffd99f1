"""Row id sequences: the stable row id of each physical row of a fragment, in row order.

A sequence is a list of segments; the ids of all segments, concatenated, are the fragment's. There
are five kinds of segments:

    range               start, end                ids start to end - 1
    range_with_holes    start, end, holes         the same, without the holes
    range_with_bitmap   start, end, bitmap        those whose bit is set; bit i, for start + i, is
                                                  bit i % 8 of byte i // 8, least significant first
    sorted_array        array                     strictly ascending
    array               array                     in any order

Holes and arrays are stored as a base and u16 or u32 offsets to it, or as u64 values, all
little-endian. An id occurs once in a sequence.

A few stored bytes can claim any number of ids: a range of 20 bytes can claim 2^63. The number of
ids is known without materializing them, and must first be compared with the fragment's number of
rows.

Source:  rowids.proto, messages RowIdSequence, U64Segment, EncodedU64Array.
Differs: The proto counts the bits of a bitmap from the most significant. Lance writes them from
         the least, and files in the wild follow Lance.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream._proto import rowids_pb2
from lance_stream.arrays import Positions, RowIds, count_bits
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.lineage.ascending import are_among, distinct, union
from lance_stream.table.lineage.decoded_sequences import DecodedSequences
from lance_stream.table.messages import wire

MAX_PHYSICAL_ROWS = 1 << 32
MAX_MATERIALIZED = 1 << 29
"""The maximum number of ids in one array; `slice` and `take` return parts of longer sequences."""

_MAX_U64 = (1 << 64) - 1
_SEGMENT = 1
_EMPTY: RowIds = np.empty(0, np.uint64)
# The maximum number of segments into which encoding splits a sequence.
_MAX_PIECES = 1024
# The minimum number of consecutive ids for a separate segment.
_LONG_RUN = 32
# The maximum number of ids of several segments that are expanded for one search: 32 MB.
_MAX_LISTED = 1 << 22


@dataclass(frozen=True, eq=False)
class Ranges:
    """One or more consecutive range segments.

    Attributes:
        starts: (num_ranges,) u64, the first id of each range.
        stops: (num_ranges,) u64, one past the last id of each range; not below its start.
    """

    starts: RowIds
    stops: RowIds

    @cached_property
    def ends(self) -> Positions:
        """(num_ranges,) i64, the number of ids up to the end of each range."""
        return np.cumsum((self.stops - self.starts).astype(np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def take(self, offsets: Positions) -> RowIds:
        """Return the ids at some offsets of the segment."""
        if len(self.starts) == 1:
            ids: RowIds = offsets.astype(np.uint64) + self.starts[0]
            return ids
        # The range of each offset, and how many ids of it come at or after the offset.
        which = np.searchsorted(self.ends, offsets, side="right")
        num_after = (self.ends[which] - offsets).astype(np.uint64)
        row_ids: RowIds = self.stops[which] - num_after
        return row_ids

    def to_array(self) -> RowIds:
        """Return all ids."""
        if len(self.starts) == 1:
            return self.take(np.arange(len(self), dtype=np.int64))
        lengths = (self.stops - self.starts).astype(np.int64)
        first = self.ends - lengths
        # Modulo 2^64, because the offset of a range may be larger than its start.
        ids: RowIds = np.repeat(self.starts - first.astype(np.uint64), lengths)
        ids += np.arange(len(self), dtype=np.uint64)
        return ids

    def find(self, ids: RowIds) -> Positions:
        """Return the offset of each id in the segment, or -1."""
        if len(self.starts) == 1:
            order, starts = None, self.starts
        else:
            order = np.argsort(self.starts, kind="stable")
            starts = self.starts[order]
        # The last range that starts at or before each id.
        candidates = np.searchsorted(starts, ids, side="right") - 1
        which = np.maximum(candidates, 0) if order is None else order[np.maximum(candidates, 0)]
        is_there = (candidates >= 0) & (ids < self.stops[which])
        num_after = (self.stops[which] - np.where(is_there, ids, self.stops[which])).astype(
            np.int64
        )
        offsets: Positions = np.where(is_there, self.ends[which] - num_after, -1)
        return offsets


@dataclass(frozen=True, eq=False)
class RangeWithHoles:
    """The ids of a range that has few holes.

    Attributes:
        start: The first id of the range, unless it is a hole.
        stop: One past the last.
        holes: (num_holes,) u64, strictly ascending, within the range.
    """

    start: int
    stop: int
    holes: RowIds

    def __len__(self) -> int:
        return self.stop - self.start - len(self.holes)

    def take(self, offsets: Positions) -> RowIds:
        """Return the ids at some offsets of the segment."""
        # The number of ids before each hole, ascending. Skip the holes at or before each offset.
        before = self.holes - np.uint64(self.start) - np.arange(len(self.holes), dtype=np.uint64)
        positions = offsets.astype(np.uint64)
        passed = np.searchsorted(before, positions, side="right").astype(np.uint64)
        return np.uint64(self.start) + positions + passed

    def to_array(self) -> RowIds:
        """Return all ids."""
        return self.take(np.arange(len(self), dtype=np.int64))

    def find(self, ids: RowIds) -> Positions:
        """Return the offset of each id in the segment, or -1."""
        before = np.searchsorted(self.holes, ids)
        is_hole = np.zeros(len(ids), np.bool_)
        if len(self.holes):
            is_hole = self.holes[np.minimum(before, len(self.holes) - 1)] == ids
        is_there = (ids >= np.uint64(self.start)) & (ids < np.uint64(self.stop)) & ~is_hole
        positions = np.where(is_there, ids, np.uint64(self.start)) - np.uint64(self.start)
        offsets: Positions = np.where(is_there, positions.astype(np.int64) - before, -1)
        return offsets


@dataclass(frozen=True, eq=False)
class RangeWithBitmap:
    """The ids of a range that has many holes.

    Attributes:
        start: The first id of the range, unless it is a hole.
        stop: One past the last.
        bitmap: ceil((stop - start) / 8) bytes, least significant bit first.
    """

    start: int
    stop: int
    bitmap: bytes

    @cached_property
    def num_ids(self) -> int:
        """The number of bits that are set."""
        return int(count_bits(np.frombuffer(self.bitmap, np.uint8)).sum(dtype=np.int64))

    def __len__(self) -> int:
        return self.num_ids

    def take(self, offsets: Positions) -> RowIds:
        """Return the ids at some offsets of the segment."""
        row_ids: RowIds = self.to_array()[offsets]
        return row_ids

    def to_array(self) -> RowIds:
        """Return all ids."""
        bits = np.unpackbits(np.frombuffer(self.bitmap, np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.uint64) + np.uint64(self.start)

    def find(self, ids: RowIds) -> Positions:
        """Return the offset of each id in the segment, or -1."""
        return _find_among(self.to_array(), ids, None)


@dataclass(frozen=True, eq=False)
class Values:
    """Individually listed ids: sorted_array and array segments.

    Attributes:
        values: (num_ids,) u64.
    """

    values: RowIds

    def __len__(self) -> int:
        return len(self.values)

    def take(self, offsets: Positions) -> RowIds:
        """Return the ids at some offsets of the segment."""
        row_ids: RowIds = self.values[offsets]
        return row_ids

    def to_array(self) -> RowIds:
        """Return all ids."""
        return self.values

    def find(self, ids: RowIds) -> Positions:
        """Return the offset of each id in the segment, or -1."""
        return _find_among(self.values, ids, self._order)

    @cached_property
    def _order(self) -> Positions | None:
        """The permutation that sorts the ids; None if they ascend."""
        return None if _ascend(self.values) else np.argsort(self.values, kind="stable")


Segment: TypeAlias = Ranges | RangeWithHoles | RangeWithBitmap | Values


class RowIdSequence:
    """The stable row ids of a fragment's rows, in row order, including deleted rows.

    Args:
        segments: Parts of the sequence, in order.
    """

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = tuple(segment for segment in segments if len(segment))

    @classmethod
    def from_range(cls, start: int, stop: int) -> "RowIdSequence":
        """Return the sequence of the ids from `start` up to but not including `stop`.

        Raises:
            InvalidInputError: They are not two u64 values in this order.
        """
        if not 0 <= start <= stop <= _MAX_U64:
            raise InvalidInputError(
                f"{start} to {stop} is not a range of row ids: expected 0 <= start <= stop <= "
                f"{_MAX_U64}"
            )
        return cls((Ranges(np.array([start], np.uint64), np.array([stop], np.uint64)),))

    @classmethod
    def from_array(cls, ids: npt.ArrayLike) -> "RowIdSequence":
        """Return the sequence of some ids, u64."""
        return cls((Values(np.asarray(ids, np.uint64)),))

    @classmethod
    def concat(cls, sequences: Iterable["RowIdSequence"]) -> "RowIdSequence":
        """Return the concatenation of sequences."""
        return cls(segment for sequence in sequences for segment in sequence.segments)

    @cached_property
    def _ends(self) -> Positions:
        """(num_segments,) i64, the number of ids up to the end of each segment."""
        return np.cumsum(np.array([len(segment) for segment in self.segments], np.int64))

    @cached_property
    def num_ids(self) -> int:
        """The number of ids, without materializing them."""
        return sum(map(len, self.segments))

    @cached_property
    def largest(self) -> int:
        """The largest id; -1 if there is none."""
        return max(map(_largest_in, self.segments), default=-1)

    def __len__(self) -> int:
        return self.num_ids

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RowIdSequence)
            and self.num_ids == other.num_ids
            and np.array_equal(self.to_array(), other.to_array())
        )

    __hash__ = None  # type: ignore[assignment]  # makes it unhashable

    def __repr__(self) -> str:
        return f"<{self.num_ids} row ids in {len(self.segments)} segments>"

    def to_array(self) -> RowIds:
        """Return all ids as (num_rows,) u64: neither row addresses nor offsets.

        Raises:
            UnsupportedFeatureError: There are more than 2^29.
        """
        if self.num_ids > MAX_MATERIALIZED:
            raise UnsupportedFeatureError(
                f"a sequence of {self.num_ids} row ids is too long for one array; the limit is "
                f"{MAX_MATERIALIZED}"
            )
        if len(self.segments) == 1:
            return self.segments[0].to_array()
        return np.concatenate([_EMPTY, *(segment.to_array() for segment in self.segments)])

    def take(self, offsets: npt.ArrayLike) -> RowIds:
        """Return the ids at some row offsets, in the order of the offsets.

        Args:
            offsets: (n,) integers, each less than the number of ids; in any order.

        Raises:
            InvalidInputError: An offset is out of range.
        """
        targets = np.asarray(offsets).astype(np.int64, copy=False)
        if not len(targets):
            return _EMPTY
        if int(targets.min()) < 0 or int(targets.max()) >= self.num_ids:
            raise InvalidInputError(f"a row offset is outside the {self.num_ids} rows")
        if len(self.segments) == 1:
            return self.segments[0].take(targets)
        which = np.searchsorted(self._ends, targets, side="right")
        order = np.argsort(which, kind="stable")
        hit, firsts = np.unique(which[order], return_index=True)
        row_ids = np.empty(len(targets), np.uint64)
        for index, group in zip(hit.tolist(), np.split(order, firsts[1:]), strict=True):
            begin = int(self._ends[index]) - len(self.segments[index])
            row_ids[group] = self.segments[index].take(targets[group] - begin)
        return row_ids

    def slice(self, start: int, stop: int) -> RowIds:
        """Return the ids of the rows from offset `start` up to but not including `stop`.

        Raises:
            InvalidInputError: The offsets are out of range.
        """
        if not 0 <= start <= stop <= self.num_ids:
            raise InvalidInputError(
                f"the rows {start} to {stop} are not within the {self.num_ids} rows"
            )
        return self.take(np.arange(start, stop, dtype=np.int64))

    def find(self, ids: npt.ArrayLike) -> Positions:
        """Return the row offsets of some ids.

        Ranges are not materialized, however long they are.

        Args:
            ids: (n,) u64, in any order.

        Returns:
            (n,) i64 row offsets in the order of the ids; -1 if no row has the id.
        """
        targets = np.asarray(ids, np.uint64)
        offsets: Positions = np.full(len(targets), -1, np.int64)
        for end, segment in zip(self._ends.tolist(), self.segments, strict=True):
            inside = segment.find(targets)
            hit = inside >= 0
            offsets[hit] = inside[hit] + (end - len(segment))
        return offsets

    def without(self, offsets: npt.ArrayLike) -> "RowIdSequence":
        """Return the sequence without some rows, as when deleted rows are dropped."""
        return RowIdSequence.from_array(np.delete(self.to_array(), np.asarray(offsets, np.int64)))


def decode_row_ids(data: bytes, num_rows: int | None = None) -> RowIdSequence:
    """Decode a RowIdSequence message.

    Long sequences are cached, because every batch of a stream needs those of all fragments.

    Args:
        data: The message.
        num_rows: The fragment's number of physical rows, including deleted ones; None in a
            transaction, in which only some rows may have an id.

    Raises:
        CorruptDataError: The bytes are not such a message, a segment breaks a rule of its kind,
            or there is not one id per row.
    """
    sequence = _CACHE.get_or_decode(bytes(data), _decode)
    if num_rows is not None and sequence.num_ids != num_rows:
        raise CorruptDataError(
            f"a fragment of {num_rows} rows has {sequence.num_ids} row ids, but must have one per "
            "row"
        )
    return sequence


def _decode(data: bytes) -> RowIdSequence:
    message = wire.parse_message(rowids_pb2.RowIdSequence, data)
    sequence = RowIdSequence(decode_segments(message.segments))
    if sequence.num_ids > MAX_PHYSICAL_ROWS:
        raise CorruptDataError(
            f"a sequence has {sequence.num_ids} row ids, more than a fragment can have rows"
        )
    if len(sequence.segments) > 1 and sequence.num_ids <= _MAX_LISTED:
        sequence = RowIdSequence.from_array(sequence.to_array())
    for segment in sequence.segments:
        if isinstance(segment, Values):
            segment.values.setflags(write=False)  # equal bytes share one decoded array
    return sequence


_CACHE: Final = DecodedSequences[RowIdSequence](
    lambda sequence: sum(map(_size_of, sequence.segments)), max_bytes=256 << 20
)


def clear_row_id_cache() -> None:
    """Remove all cached sequences, so that a measurement starts like a new process."""
    _CACHE.clear()


def _largest_in(segment: Segment) -> int:
    if isinstance(segment, Ranges):
        return int(segment.stops[segment.stops > segment.starts].max()) - 1
    return int(segment.to_array().max())


def _size_of(segment: Segment) -> int:
    if isinstance(segment, Values):
        return segment.values.nbytes * (1 if _ascend(segment.values) else 2)  # with their order
    if isinstance(segment, Ranges):
        return 3 * segment.starts.nbytes
    return len(segment.bitmap) if isinstance(segment, RangeWithBitmap) else segment.holes.nbytes


def decode_segments(messages: Iterable[rowids_pb2.U64Segment]) -> list[Segment]:
    """Decode segments; consecutive ones of the same kind are combined.

    Raises:
        CorruptDataError: A segment breaks a rule of its kind.
    """
    segments: list[Segment] = []
    for kind, group in groupby(messages, lambda message: message.WhichOneof("segment")):
        if kind == "range":
            bounds = [
                bound for segment in group for bound in (segment.range.start, segment.range.end)
            ]
            pairs = np.array(bounds, np.uint64).reshape(-1, 2)
            segments.append(_ranges(pairs[:, 0], pairs[:, 1]))
        elif kind == "sorted_array":
            segments += _decode_arrays([segment.sorted_array for segment in group], ascend=True)
        elif kind == "array":
            segments += _decode_arrays([segment.array for segment in group], ascend=False)
        else:
            segments += map(_decode_segment, group)
    return segments


def encode_row_ids(ids: RowIdSequence | npt.ArrayLike) -> bytes:
    """Encode ids as a RowIdSequence message, the smallest of several candidates.

    Args:
        ids: A sequence, or (num_rows,) u64 ids in row order. The caller guarantees that they are
            unique.
    """
    if isinstance(ids, RowIdSequence):
        if len(ids.segments) == 1 and isinstance(ids.segments[0], Ranges):
            # The range of a new fragment is not materialized, however long it is.
            only = ids.segments[0]
            if len(only.starts) == 1:
                return _encode_ranges(only.starts, only.stops)
        values = ids.to_array()
    else:
        values = np.ascontiguousarray(ids, dtype=np.uint64)
    if not len(values):
        return b""
    if int(values.max()) == _MAX_U64:
        # The stop of a range with this id would not fit in 64 bits.
        return _frame(rowids_pb2.U64Segment(array=_encode_array(values)))
    # Start a new range wherever ids are not consecutive; modulo 2^64 where they descend.
    breaks = np.flatnonzero(values[1:] - values[:-1] != 1) + 1
    firsts = np.concatenate(([0], breaks))
    stops = np.concatenate((breaks, [len(values)]))
    starts, ends = values[firsts], values[stops - 1] + np.uint64(1)
    if len(firsts) == 1:
        return _encode_ranges(starts, ends)
    # Try to split the ids where they descend, around long ranges, and at multiples of 2^16.
    candidates: list[bytes] = []
    descents = np.flatnonzero(values[1:] <= values[:-1]) + 1
    is_long = stops - firsts >= _LONG_RUN
    around_runs = union(descents, distinct(np.concatenate((firsts[is_long], stops[is_long]))))
    for cuts in (descents, around_runs, union(around_runs, _ends_of_spans(values))):
        if len(cuts) <= _MAX_PIECES:
            inner = cuts[(cuts > 0) & (cuts < len(values))]
            pieces = np.split(values, inner)
            candidates.append(b"".join(_frame(_encode_ascending(piece)) for piece in pieces))
    candidates.append(_frame(rowids_pb2.U64Segment(array=_encode_array(values))))
    smallest = min(candidates, key=len)
    if _size_of_ranges(starts, ends) <= len(smallest):
        return _encode_ranges(starts, ends)
    return smallest


def _ends_of_spans(values: RowIds) -> Positions:
    """Return the positions where ids pass a multiple of 2^16; ids in between fit in 16 bits."""
    spans = values >> np.uint64(16)
    return np.flatnonzero(spans[1:] != spans[:-1]) + 1


def _encode_ascending(values: RowIds) -> rowids_pb2.U64Segment:
    """Return the smallest segment for strictly ascending ids."""
    start, stop = int(values[0]), int(values[-1]) + 1
    span = stop - start
    if span == len(values):
        return rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=start, end=stop))
    num_holes = span - len(values)
    size_of_array = len(values) * _width(span - 1)
    size_of_bitmap = -(-span // 8)
    # A hole is between two ids, so its offset from the first hole is less than the span.
    size_of_holes = num_holes * _width(span - 1)
    smallest = min(size_of_array, size_of_bitmap, size_of_holes)
    if smallest == size_of_array:
        return rowids_pb2.U64Segment(sorted_array=_encode_array(values))
    is_there = np.zeros(span, np.bool_)
    is_there[(values - values[0]).astype(np.int64)] = True
    if smallest == size_of_bitmap:
        return rowids_pb2.U64Segment(
            range_with_bitmap=rowids_pb2.U64Segment.RangeWithBitmap(
                start=start, end=stop, bitmap=np.packbits(is_there, bitorder="little").tobytes()
            )
        )
    holes = np.flatnonzero(~is_there).astype(np.uint64) + values[0]
    return rowids_pb2.U64Segment(
        range_with_holes=rowids_pb2.U64Segment.RangeWithHoles(
            start=start, end=stop, holes=_encode_array(holes)
        )
    )


def _width(largest_offset: int) -> int:
    return 2 if largest_offset < 1 << 16 else 4 if largest_offset < 1 << 32 else 8


def _encode_array(values: RowIds) -> rowids_pb2.EncodedU64Array:
    base = values.min()
    width = _width(int(values.max() - base))
    if width == 8:
        return rowids_pb2.EncodedU64Array(
            u64_array=rowids_pb2.EncodedU64Array.U64Array(values=values.astype("<u8").tobytes())
        )
    offsets = (values - base).astype(f"<u{width}").tobytes()
    if width == 2:
        return rowids_pb2.EncodedU64Array(
            u16_array=rowids_pb2.EncodedU64Array.U16Array(base=int(base), offsets=offsets)
        )
    return rowids_pb2.EncodedU64Array(
        u32_array=rowids_pb2.EncodedU64Array.U32Array(base=int(base), offsets=offsets)
    )


def _encode_ranges(starts: RowIds, stops: RowIds) -> bytes:
    message = rowids_pb2.RowIdSequence()
    add = message.segments.add
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        ranges = add().range
        ranges.start = start
        ranges.end = stop
    return wire.serialize(message)


def _size_of_ranges(starts: RowIds, stops: RowIds) -> int:
    # Tag and length of the segment and of the range; tag and value of bounds other than 0.
    bounds = np.concatenate((starts, stops))
    return 4 * len(starts) + int((_varint_sizes(bounds) + 1)[bounds > 0].sum())


def _varint_sizes(values: RowIds) -> npt.NDArray[np.int64]:
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        sizes += values >= np.uint64(1 << bits)
    return sizes


def _frame(segment: rowids_pb2.U64Segment) -> bytes:
    return wire.frame(_SEGMENT, wire.serialize(segment))


def _find_among(values: RowIds, targets: RowIds, order: Positions | None) -> Positions:
    positions = np.searchsorted(values, targets, sorter=order)
    candidates = np.minimum(positions, len(values) - 1)
    offsets: Positions = candidates if order is None else order[candidates]
    return np.where(values[offsets] == targets, offsets, -1)


def _ascend(values: RowIds) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _ranges(starts: RowIds, stops: RowIds) -> Ranges:
    if bool((starts > stops).any()):
        raise CorruptDataError("a range of row ids ends before it starts")
    # Sum as floats: an integer sum of lengths near 2^64 would wrap around.
    if float((stops - starts).astype(np.float64).sum()) > 2.0**62:
        raise CorruptDataError("ranges of row ids have more ids than a table can have rows")
    holds_ids = stops > starts  # `find` might select an empty range
    return Ranges(starts[holds_ids], stops[holds_ids])


def _decode_segment(message: rowids_pb2.U64Segment) -> Segment:
    kind = message.WhichOneof("segment")
    if kind == "range_with_holes":
        holed = message.range_with_holes
        _check_span(holed.start, holed.end)
        (holes,) = [array.values for array in _decode_arrays([holed.holes], ascend=False)]
        _check_ascending(holes, "the holes of a range of row ids")
        if len(holes) and not (holed.start <= holes[0] and holes[-1] < holed.end):
            raise CorruptDataError("a hole is outside of its range of row ids")
        return RangeWithHoles(holed.start, holed.end, holes)
    if kind == "range_with_bitmap":
        mapped = message.range_with_bitmap
        _check_span(mapped.start, mapped.end)
        span, bitmap = mapped.end - mapped.start, mapped.bitmap
        if len(bitmap) != -(-span // 8):
            raise CorruptDataError(
                f"a bitmap of {len(bitmap)} bytes cannot describe {span} row ids"
            )
        if span % 8 and bitmap[-1] >> span % 8:
            raise CorruptDataError("a bitmap of row ids has bits set past its end")
        return RangeWithBitmap(mapped.start, mapped.end, bitmap)
    raise CorruptDataError("a segment of row ids has an unknown kind")


def _decode_arrays(
    messages: Sequence[rowids_pb2.EncodedU64Array], *, ascend: bool
) -> Iterator[Values]:
    """Decode consecutive arrays; yield those of the same width together.

    Args:
        messages: The arrays.
        ascend: Whether the ids of every array must ascend.
    """
    for kind, group in groupby(messages, lambda message: message.WhichOneof("array")):
        parts = [_ARRAYS[kind](segment) for segment in group] if kind in _ARRAYS else None
        if parts is None:
            raise CorruptDataError("an array of row ids has an unknown kind")
        width = _WIDTHS[kind]
        for _, data in parts:
            if len(data) % width:
                raise CorruptDataError(
                    f"an array of row ids has {len(data)} bytes, which are not whole values"
                )
        offsets = np.frombuffer(b"".join(data for _, data in parts), f"<u{width}")
        lengths = np.array([len(data) // width for _, data in parts], np.int64)
        bases = np.repeat(np.array([base for base, _ in parts], np.uint64), lengths)
        ids = offsets.astype(np.uint64) + bases
        if bool((ids < bases).any()):
            raise CorruptDataError("an array of row ids has values beyond 64 bits")
        if ascend:
            # Ids may descend only where another array starts.
            descents = np.flatnonzero(ids[1:] <= ids[:-1]) + 1
            if not are_among(descents, np.cumsum(lengths)).all():
                raise CorruptDataError("the ids of a sorted array do not ascend")
        yield Values(ids)


_WIDTHS: Final = {"u16_array": 2, "u32_array": 4, "u64_array": 8}
_ARRAYS: Final[Mapping[str | None, Callable[[rowids_pb2.EncodedU64Array], tuple[int, bytes]]]] = {
    "u16_array": lambda array: (array.u16_array.base, array.u16_array.offsets),
    "u32_array": lambda array: (array.u32_array.base, array.u32_array.offsets),
    "u64_array": lambda array: (0, array.u64_array.values),
}


def _check_span(start: int, stop: int) -> None:
    if start > stop:
        raise CorruptDataError("a range of row ids ends before it starts")
    if stop - start > 1 << 62:
        raise CorruptDataError("a range of row ids has more ids than a table can have rows")


def _check_ascending(values: Sequence[int] | RowIds, what: str) -> None:
    ids = np.asarray(values, np.uint64)
    if bool((ids[1:] <= ids[:-1]).any()):
        raise CorruptDataError(f"{what} do not ascend")
