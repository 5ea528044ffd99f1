"""Reads fields of a 0.1 file: one round for fixed widths, two for byte strings and lists.

    plain           values one after the other; booleans as bits, least significant first
    byte strings    i64 ends: where in the file each value begins and the last one ends. They are
                    stored after the bytes, and the page's position is theirs
    dictionary      plain indices; the values are stored once per file
    list            plain i32 (large: i64) ends, from 0; items in a separate page
    struct          nothing: the pages of its parts
    null            nothing: only the length

There is no bitmap of nulls: the bytes under a null are read as a value, a null list as an empty
one. Only byte strings have nulls: if the column is nullable, an empty value is one.

Source:  the document of file version 0.1; files that the reference wrote.
Differs: A dictionary's empty value is null in any case, as in the reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Positions
from lance_stream.byte_ranges import Buffer, ByteRange, ByteRequests, read_together
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.v0_1.page_table import FieldPages
from lance_stream.file.v0_1.runs import Runs, ranges_from
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The information about a file's columns that reading needs.

    Attributes:
        pages: The pages of each field that is read, by field id.
        dictionaries: The values of dictionary columns, by field id.
        limit: The end of the bytes that pages may refer to.
    """

    pages: Mapping[int, FieldPages]
    dictionaries: Mapping[int, pa.Array]
    limit: int


def read_field(field: Field, columns: Columns, runs: Runs) -> ByteRequests[pa.Array]:
    """Return some rows of a field, of exactly the field's Arrow type.

    Parts of structs that are not in the file are null.

    Raises:
        CorruptDataError: A page or an offset is outside of the file, or the pages disagree.
        UnsupportedFeatureError: Version 0.1 has no such type.
        InvalidInputError: The rows are too large for one Arrow array.
    """
    return _read(field, field_to_arrow(field).type, columns, runs)


def read_values(
    arrow: pa.DataType, pages: FieldPages, runs: Runs, limit: int, *, empty_is_null: bool
) -> ByteRequests[pa.Array]:
    """Return plain values or byte strings.

    Args:
        arrow: Their type.
        pages: Their pages.
        runs: The requested ones.
        limit: The end of the bytes that pages may refer to.
        empty_is_null: Whether empty byte strings are nulls.
    """
    if _is_binary(arrow):
        return _read_binary(arrow, pages, runs, limit, empty_is_null)
    return _read_plain(arrow, pages, runs, limit)


def bits_per_value(arrow: pa.DataType) -> int | None:
    """Return the bits of a plain value; None for a type that is not plain."""
    if isinstance(arrow, pa.BaseExtensionType):
        return bits_per_value(arrow.storage_type)
    if pa.types.is_fixed_size_list(arrow):
        items = bits_per_value(arrow.value_type)
        return None if items is None else items * arrow.list_size
    if pa.types.is_dictionary(arrow) or pa.types.is_nested(arrow) or pa.types.is_null(arrow):
        return None
    try:
        return int(arrow.bit_width)
    except ValueError:
        return None


def _read(field: Field, arrow: pa.DataType, columns: Columns, runs: Runs) -> ByteRequests[pa.Array]:
    if isinstance(arrow, pa.BaseExtensionType):
        storage = yield from _read(field, arrow.storage_type, columns, runs)
        return pa.ExtensionArray.from_storage(arrow, storage)
    if pa.types.is_struct(arrow):
        return (yield from _read_struct(field, arrow, columns, runs))
    if field.id not in columns.pages:
        return pa.nulls(len(runs), arrow)
    pages = columns.pages[field.id]
    if pa.types.is_null(arrow):
        _check_within(pages, runs, 0)
        return pa.nulls(len(runs))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return (yield from _read_list(field, arrow, columns, runs))
    if pa.types.is_dictionary(arrow):
        indices = yield from _read_plain(arrow.index_type, pages, runs, columns.limit)
        return _with_dictionary(arrow, indices, columns.dictionaries[field.id])
    if bits_per_value(arrow) is None and not _is_binary(arrow):
        raise UnsupportedFeatureError(f"files of version 0.1 do not support {arrow}")
    return (yield from read_values(arrow, pages, runs, columns.limit, empty_is_null=field.nullable))


def _read_struct(
    field: Field, arrow: pa.DataType, columns: Columns, runs: Runs
) -> ByteRequests[pa.Array]:
    parts = yield from read_together(
        [
            _read(child, arrow.field(index).type, columns, runs)
            for index, child in enumerate(field.children)
        ]
    )
    return pa.Array.from_buffers(arrow, len(runs), [None], children=parts)


def _read_list(
    field: Field, arrow: pa.DataType, columns: Columns, runs: Runs
) -> ByteRequests[pa.Array]:
    offset_type = "<i4" if pa.types.is_list(arrow) else "<i8"
    pages = columns.pages[field.id]
    # a page of lists counts its ends, a page of byte strings its values
    _check_within(pages, runs, 1)
    ends = yield from _read_ends(pages, runs, columns.limit, offset_type)
    items = Runs(runs.batch, ends.firsts, ends.lasts)
    is_filled = items.lengths > 0
    items = Runs(items.batch[is_filled], items.start[is_filled], items.stop[is_filled])
    values = yield from _read(field.children[0], arrow.value_type, columns, items)
    offsets = _offsets(ends.lengths, np.int32 if offset_type == "<i4" else np.int64, arrow)
    return pa.Array.from_buffers(arrow, len(runs), [None, pa.py_buffer(offsets)], children=[values])


def _read_binary(
    arrow: pa.DataType, pages: FieldPages, runs: Runs, limit: int, empty_is_null: bool
) -> ByteRequests[pa.Array]:
    _check_within(pages, runs, 0)
    ends = yield from _read_ends(pages, runs, limit, "<i8")
    if len(ends.lasts) and int(ends.lasts.max()) > limit:
        raise CorruptDataError(
            f"a byte string ends at byte {int(ends.lasts.max())}, after the file's "
            f"values, which end at {limit}"
        )
    data = yield from _read_bytes(ends.firsts, ends.lasts, limit)
    is_large = pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow)
    offsets = _offsets(ends.lengths, np.int64 if is_large else np.int32, arrow)
    validity = None
    if empty_is_null:
        is_valid = ends.lengths > 0
        if not bool(is_valid.all()):
            validity = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    array = pa.Array.from_buffers(
        arrow, len(runs), [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    if not pa.types.is_string(arrow) and not pa.types.is_large_string(arrow):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptDataError(f"a text is not UTF-8: {error}") from None
    return array


def _read_plain(
    arrow: pa.DataType, pages: FieldPages, runs: Runs, limit: int
) -> ByteRequests[pa.Array]:
    bits = bits_per_value(arrow)
    if bits is None:
        raise UnsupportedFeatureError(f"files of version 0.1 do not support plain {arrow}")
    _check_within(pages, runs, 0)
    start, stop = runs.start * bits, runs.stop * bits
    base = pages.position[runs.batch]
    data = yield from _read_bytes(base + start // 8, base + -(-stop // 8), limit)
    if bits % 8:
        data = _joined_bits(data, start, stop)
    return _plain_array(arrow, len(runs), data)


def _joined_bits(data: Buffer, start: Positions, stop: Positions) -> Buffer:
    """Join runs of bits that do not begin or end at whole bytes."""
    sizes = -(-stop // 8) - start // 8
    firsts = (np.cumsum(sizes) - sizes) * 8 + start % 8
    if len(start) == 1 and firsts[0] == 0:
        return data
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    chosen = bits[ranges_from(firsts, stop - start)]
    return memoryview(np.packbits(chosen, bitorder="little").data)


def _plain_array(arrow: pa.DataType, num_values: int, data: Buffer) -> pa.Array:
    if isinstance(arrow, pa.BaseExtensionType):
        storage = _plain_array(arrow.storage_type, num_values, data)
        return pa.ExtensionArray.from_storage(arrow, storage)
    if pa.types.is_fixed_size_list(arrow):
        items = _plain_array(arrow.value_type, num_values * arrow.list_size, data)
        return pa.Array.from_buffers(arrow, num_values, [None], children=[items])
    return pa.Array.from_buffers(arrow, num_values, [None, pa.py_buffer(data)])


def _with_dictionary(arrow: pa.DataType, indices: pa.Array, values: pa.Array) -> pa.Array:
    if not values.type.equals(arrow.value_type):
        raise CorruptDataError(f"a dictionary of {arrow} contains {values.type}")
    try:
        array = pa.DictionaryArray.from_arrays(indices, values)
    except (pa.ArrowInvalid, IndexError) as error:
        raise CorruptDataError(
            f"an index is outside the dictionary of {len(values)} values: {error}"
        ) from None
    return array if array.type.equals(arrow) else array.cast(arrow)


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """The positions of variable-width values: each run's start and end, each value's length."""

    firsts: Positions
    lasts: Positions
    lengths: Positions


def _read_ends(pages: FieldPages, runs: Runs, limit: int, offset_type: str) -> ByteRequests[_Ends]:
    width = int(offset_type[-1])
    base = pages.position[runs.batch]
    data = yield from _read_bytes(base + runs.start * width, base + (runs.stop + 1) * width, limit)
    ends = np.frombuffer(data, offset_type).astype(np.int64, copy=False)
    counts = runs.lengths + 1
    stops = np.cumsum(counts)
    lengths = ends[1:] - ends[:-1]
    between = np.ones(len(lengths), np.bool_)
    between[stops[:-1] - 1] = False
    lengths = lengths[between]
    firsts, lasts = ends[stops - counts], ends[stops - 1]
    if len(ends) and (int(lengths.min(initial=0)) < 0 or int(firsts.min(initial=0)) < 0):
        raise CorruptDataError("the ends of values of variable width do not ascend")
    return _Ends(firsts, lasts, lengths)


def _read_bytes(starts: Positions, stops: Positions, limit: int) -> ByteRequests[Buffer]:
    """Return some ranges of the file, one after the other."""
    total = int((stops - starts).sum())
    if len(stops) and (int(stops.max()) > limit or total > limit):
        raise CorruptDataError(
            f"pages of {total} bytes up to byte {int(stops.max())} are too large for the "
            f"{limit} bytes of a file"
        )
    ranges = [
        ByteRange(start, stop)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        if stop > start
    ]
    if not ranges:
        return memoryview(b"")
    buffers = yield ranges
    return buffers[0] if len(buffers) == 1 and _is_aligned(buffers[0]) else _joined(buffers)


def _joined(buffers: Sequence[Buffer]) -> Buffer:
    return memoryview(b"".join(buffers))


def _is_aligned(buffer: Buffer) -> bool:
    return bool(np.frombuffer(buffer, np.uint8).ctypes.data % 16 == 0)


def _offsets(lengths: Positions, offset_type: type[Any], arrow: pa.DataType) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offset_type is np.int32 and int(offsets[-1]) > MAX_INT32:
        raise InvalidInputError(
            f"{len(lengths)} rows of {arrow} are too large for one array; read fewer rows at once"
        )
    return offsets.astype(offset_type)


def _check_within(pages: FieldPages, runs: Runs, extra: int) -> None:
    lengths = pages.length[runs.batch]
    past = runs.stop + extra > lengths
    if bool(past.any()):
        index = int(np.flatnonzero(past)[0])
        raise CorruptDataError(
            f"{int(runs.stop[index]) + extra} values are requested from the page of batch "
            f"{int(runs.batch[index])}, which has {int(lengths[index])}"
        )


def _is_binary(arrow: pa.DataType) -> bool:
    return arrow in {pa.string(), pa.binary(), pa.large_string(), pa.large_binary()}
