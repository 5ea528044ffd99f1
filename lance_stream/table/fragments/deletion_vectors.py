"""Deletion vectors: the offsets of a fragment's deleted rows, as the bytes of a deletion file.

There are two formats. Up to 4,999 offsets are an Arrow IPC file with one record batch of one
column, `row_id: uint32 not null`; 5,000 and more are a 32-bit roaring bitmap in the portable
format, little-endian:

    u32 cookie                12346: no container is run-coded; u32 num_containers follows
                              12347 | (num_containers - 1) << 16: some are run-coded;
                              ceil(num_containers / 8) bytes follow, bit i set when container
                              i is run-coded
    (u16, u16) per container  the high 16 bits of its numbers, and their count minus 1
    u32 per container         its byte offset; absent with cookie 12347 and fewer than 4
    containers                up to 4,096 numbers: u16 each, ascending
                              more: 8,192 bytes, one bit for each low half
                              run-coded: u16 num_runs, then (u16 first, u16 length - 1) per run

A deletion file is complete: it includes rows that were deleted earlier.

Source:  table.proto, DeletionFile; the Roaring format specification.
Differs: The proto has Int32Array for the Arrow format; Lance writes uint32, in any order and
         with compressed buffers.
"""

import struct
from array import array
from collections.abc import Container, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_stream.arrays import RowOffsets
from lance_stream.arrow_streams import encode_batches
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.table.fragments.fragment import DeletionFileType
from lance_stream.table.lineage.ascending import are_among, distinct
from lance_stream.table.lineage.row_ids import MAX_MATERIALIZED
from lance_stream.table.messages.arrow_messages import read_only_batch

BITMAP_THRESHOLD = 5000
"""The number of deleted rows from which a deletion file is a bitmap."""

_SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_BYTES_PER_ROW = 5
"""The size of an offset and its validity bit, rounded up."""

_U32, _U16 = struct.Struct("<I"), struct.Struct("<H")
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_MIN_CONTAINERS_WITH_OFFSETS = 4
_MAX_CONTAINERS = 1 << 16
_MAX_IN_ARRAY = 4096
_BITSET_BYTES = 8192
_DAMAGE = (struct.error, IndexError, ValueError)
"""The errors of reading past the end of the bytes."""


def encode_deletion_vector(offsets: npt.ArrayLike) -> tuple[DeletionFileType, bytes]:
    """Return the format and the bytes of a deletion file.

    Args:
        offsets: The offsets of all deleted rows of the fragment, in any order; at least one.

    Raises:
        InvalidInputError: There are no offsets, or one does not fit in 32 bits.
    """
    numbers = np.asarray(offsets)
    if not len(numbers) or int(numbers.min()) < 0 or int(numbers.max()) >> 32:
        raise InvalidInputError(
            "a deletion file must have at least one row offset, and offsets of 32 bits"
        )
    deleted = distinct(numbers.astype(np.uint32))
    if len(deleted) >= BITMAP_THRESHOLD:
        # pyroaring reads the bytes of an `array`, but any other sequence number by number.
        return DeletionFileType.BITMAP, bytes(BitMap(array("I", deleted.tobytes())).serialize())
    batch = pa.record_batch([pa.array(deleted, pa.uint32())], schema=_SCHEMA)
    return DeletionFileType.ARROW_ARRAY, encode_batches(_SCHEMA, [batch], pa.ipc.new_file)


def decode_deletion_vector(
    data: bytes | memoryview,
    file_type: DeletionFileType,
    physical_rows: int,
    num_deleted_rows: int = 0,
) -> RowOffsets:
    """Return the offsets in a deletion file.

    Args:
        data: The whole file.
        file_type: Its format, from the manifest.
        physical_rows: The fragment's number of rows, including deleted ones.
        num_deleted_rows: The number of offsets according to the manifest; 0 if unknown.

    Returns:
        (num_deleted,) u32, ascending and unique.

    Raises:
        CorruptDataError: The file is damaged, an offset is not below `physical_rows`, or their
            number differs from the manifest's.
        UnsupportedFeatureError: There are more than 2^29.
    """
    decode = _decode_arrow if file_type is DeletionFileType.ARROW_ARRAY else _decode_roaring
    deleted = decode(bytes(data), physical_rows)
    if len(deleted) and int(deleted[-1]) >= physical_rows:
        raise CorruptDataError(
            f"a deletion file marks row {int(deleted[-1])} as deleted, but the fragment has "
            f"{physical_rows} rows"
        )
    if num_deleted_rows and len(deleted) != num_deleted_rows:
        raise CorruptDataError(
            f"a deletion file has {len(deleted)} offsets, but {num_deleted_rows} according to the "
            "manifest"
        )
    return deleted


def _decode_arrow(data: bytes, physical_rows: int) -> RowOffsets:
    try:
        batch = read_only_batch(data, _SCHEMA, physical_rows, _BYTES_PER_ROW)
    except CorruptDataError as error:
        raise CorruptDataError(f"a deletion file is damaged: {error}") from error
    if batch.num_rows > MAX_MATERIALIZED:
        raise UnsupportedFeatureError(
            f"a fragment has {batch.num_rows} deleted rows, more than are supported"
        )
    column = batch.column(0)
    if column.null_count:
        raise CorruptDataError("a deletion file has nulls")
    return distinct(column.to_numpy(zero_copy_only=False))


def _decode_roaring(data: bytes, physical_rows: int) -> RowOffsets:
    deleted = decode_bitmap_up_to(data, physical_rows)
    if deleted is None:
        raise CorruptDataError(
            f"a deletion file has {bitmap_size(data)} offsets, but the fragment has "
            f"{physical_rows} rows"
        )
    return deleted


def decode_bitmap(data: bytes, max_numbers: int) -> RowOffsets:
    """Return the numbers of a roaring bitmap.

    pyroaring is not used for this because it trusts the sizes in the bytes.

    Args:
        data: The bitmap.
        max_numbers: The maximum number of numbers.

    Returns:
        (n,) u32, ascending and unique.

    Raises:
        CorruptDataError: It is not a roaring bitmap, or has more numbers.
        UnsupportedFeatureError: There are more than 2^29.
    """
    numbers = decode_bitmap_up_to(data, max_numbers)
    if numbers is None:
        raise CorruptDataError(
            f"a roaring bitmap has {bitmap_size(data)} numbers, but at most {max_numbers} are "
            "possible here"
        )
    return numbers


def decode_bitmap_up_to(data: bytes, max_numbers: int) -> RowOffsets | None:
    """Return the numbers of a roaring bitmap like `decode_bitmap`; None if there are too many.

    Raises:
        CorruptDataError: It is not a roaring bitmap.
        UnsupportedFeatureError: There are more than 2^29.
    """
    try:
        headers = _read_headers(data)
        # Check the count before decoding: six bytes of a run can be 65,536 numbers.
        count = int(headers.counts.sum())
        if count > max_numbers:
            return None
        if count > MAX_MATERIALIZED:
            raise UnsupportedFeatureError(
                f"a roaring bitmap has {count} numbers, more than are supported"
            )
        parts = [
            lows.astype(np.uint32) + np.uint32(key << 16)
            for key, lows in _containers(data, headers)
        ]
    except _DAMAGE as error:
        raise _not_a_bitmap(error) from error
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint32), *parts])


def bitmap_size(data: bytes) -> int:
    """Return the number of numbers in a roaring bitmap according to its headers; decodes none.

    Raises:
        CorruptDataError: It is not a roaring bitmap.
    """
    try:
        return int(_read_headers(data).counts.sum())
    except _DAMAGE as error:
        raise _not_a_bitmap(error) from error


def which_in_bitmap(data: bytes, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which of some numbers are in a roaring bitmap.

    Decodes only the containers that can have one of them.

    Args:
        data: The bitmap.
        numbers: (n,) u64, in any order.

    Returns:
        (n,) booleans.

    Raises:
        CorruptDataError: It is not a roaring bitmap.
    """
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    highs = ascending >> np.uint64(16)
    is_member = np.zeros(len(numbers), np.bool_)
    try:
        headers = _read_headers(data)
        for key, lows in _containers(data, headers, frozenset(distinct(highs).tolist())):
            first, stop = np.searchsorted(highs, np.array([key, key + 1], np.uint64))
            hits = slice(int(first), int(stop))
            is_member[order[hits]] = are_among(ascending[hits] & np.uint64(0xFFFF), lows)
    except _DAMAGE as error:
        raise _not_a_bitmap(error) from error
    return is_member


def _not_a_bitmap(error: Exception) -> CorruptDataError:
    return CorruptDataError(f"these bytes are not a roaring bitmap: {error}")


class _Headers(NamedTuple):
    """The headers of the n containers of a roaring bitmap.

    Attributes:
        keys: (n,) u16, the high halves of their numbers, ascending.
        counts: (n,) i64, the number of their numbers.
        is_run: (n,) whether they are run-coded.
        start: The byte position of the first container.
    """

    keys: npt.NDArray[np.unsignedinteger]
    counts: npt.NDArray[np.int64]
    is_run: npt.NDArray[np.bool_]
    start: int


def _read_headers(data: bytes) -> _Headers:
    (cookie,) = _U32.unpack_from(data, 0)
    position = _U32.size
    is_run = np.zeros(0, np.bool_)
    if cookie == _COOKIE:
        (num_containers,) = _U32.unpack_from(data, position)
        position += _U32.size
    elif cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        num_containers = (cookie >> 16) + 1
        flags = _take(data, position, -(-num_containers // 8), "u1")
        is_run = np.unpackbits(flags, bitorder="little")[:num_containers].astype(np.bool_)
        position += len(flags)
    else:
        raise CorruptDataError(f"a roaring bitmap has the cookie {cookie}")
    if num_containers > _MAX_CONTAINERS:
        raise CorruptDataError(f"a roaring bitmap claims {num_containers} containers")
    header = _take(data, position, 2 * num_containers, "<u2").reshape(-1, 2)
    position += header.nbytes
    keys, counts = header[:, 0], header[:, 1].astype(np.int64) + 1
    if bool((keys[1:] <= keys[:-1]).any()):
        raise CorruptDataError("the containers of a roaring bitmap do not ascend")
    if not len(is_run):
        is_run = np.zeros(num_containers, np.bool_)
        position += 4 * num_containers
    elif num_containers >= _MIN_CONTAINERS_WITH_OFFSETS:
        position += 4 * num_containers
    # The byte offsets are not needed: containers follow each other without gaps.
    return _Headers(keys, counts, is_run, position)


def _containers(
    data: bytes, headers: _Headers, high_halves: Container[int] | None = None
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the high half of the numbers of each container, and their low halves, ascending.

    Args:
        data: The bitmap.
        headers: Its headers.
        high_halves: The high halves of the containers to decode; None for all.

    Raises:
        CorruptDataError: A decoded container is damaged, or the last one does not end with the
            bytes.
    """
    position = headers.start
    parts = (headers.keys.tolist(), headers.counts.tolist(), headers.is_run.tolist())
    for key, count, run_coded in zip(*parts, strict=True):
        if high_halves is not None and key not in high_halves:
            position += _container_bytes(data, position, count, is_run=run_coded)
            continue
        lows, position = _read_container(data, position, count, is_run=run_coded)
        if len(lows) != count:
            raise CorruptDataError(
                f"a container of a roaring bitmap has {len(lows)} numbers instead of {count}"
            )
        yield key, lows
    if position != len(data):
        raise CorruptDataError(f"a roaring bitmap ends at byte {position} of {len(data)}")


def _container_bytes(data: bytes, position: int, count: int, *, is_run: bool) -> int:
    if is_run:
        return int(_U16.size + 4 * _U16.unpack_from(data, position)[0])
    return 2 * count if count <= _MAX_IN_ARRAY else _BITSET_BYTES


def _read_container(
    data: bytes, position: int, count: int, *, is_run: bool
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the low halves in a container, ascending, and the position after it."""
    if is_run:
        (num_runs,) = _U16.unpack_from(data, position)
        runs = (
            _take(data, position + _U16.size, 2 * num_runs, "<u2").reshape(-1, 2).astype(np.int64)
        )
        firsts, lengths = runs[:, 0], runs[:, 1] + 1
        stops = firsts + lengths
        if bool((firsts[1:] < stops[:-1]).any()) or (num_runs and int(stops[-1]) > 1 << 16):
            raise CorruptDataError("the runs of a roaring bitmap overlap or do not ascend")
        # Number i of a run is its first one plus i: expand all runs at once.
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if num_runs else 0
        lows = np.repeat(firsts - (ends - lengths), lengths) + np.arange(total)
        return lows, position + _U16.size + 4 * num_runs
    if count <= _MAX_IN_ARRAY:
        lows = _take(data, position, count, "<u2").astype(np.int64)
        if bool((lows[1:] <= lows[:-1]).any()):
            raise CorruptDataError("the numbers of a roaring bitmap do not ascend")
        return lows, position + 2 * count
    bits = np.unpackbits(_take(data, position, _BITSET_BYTES, "u1"), bitorder="little")
    return np.flatnonzero(bits), position + _BITSET_BYTES


def _take(data: bytes, position: int, count: int, dtype: str) -> npt.NDArray[np.unsignedinteger]:
    if position + count * np.dtype(dtype).itemsize > len(data):
        raise CorruptDataError("a roaring bitmap is truncated")
    return np.frombuffer(data, dtype, count, position)
