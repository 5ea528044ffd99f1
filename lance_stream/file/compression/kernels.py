"""Loops over bytes and words that numba compiles; `compiled` decides when they are loaded.

Each loop returns the same result as a numpy function of `fsst`, `bitpacking` or `level_chunks`.
They are also plain Python: tests run them uncompiled, where an index out of bounds is an error.

numba does not check bounds. So each loop documents what its caller has checked, and checks the rest
itself before it reads or writes. Indices are unsigned, because indices that may be negative cost
several times as much. All loops are compiled for the types below when the module is imported, so no
call waits for the compiler, and arrays of other types are refused.
"""

from typing import Any

import numba
import numpy as np
from numba import types

from lance_stream.file.compression.fastlanes import VALUES
from lance_stream.file.compression.fsst_matching import ESCAPE, SLOT_BITS, SPREAD

CODE_WITHOUT_SYMBOL = -1
ENDS_AFTER_ESCAPE = -2
OFFSETS_LEAVE_CODES = -3

_CODES_PER_BLOCK = 1024

_ZERO, _ONE, _ESCAPE = np.uint64(0), np.uint64(1), np.uint64(ESCAPE)
_ALL_BITS = np.uint64(2**64 - 1)
_SLOT_SHIFT = np.uint64(32 - SLOT_BITS)
_SPREAD = np.uint64(SPREAD)


def _src(item: Any, dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a loop reads."""
    return types.Array(item, dimensions, "C", readonly=True)


def _dst(item: Any, dimensions: int = 1) -> Any:
    """Return the type of a contiguous array that a loop fills."""
    return types.Array(item, dimensions, "C")


def _compiled(*signatures: Any) -> Any:
    return numba.njit(list(signatures), cache=True, nogil=True)


_U8, _U16, _U32, _U64 = types.uint8, types.uint16, types.uint32, types.uint64
_I32, _I64 = types.int32, types.int64


@_compiled(_I64(_src(_U8), _src(_U8)))  # type: ignore[untyped-decorator]  # of numba
def max_bytes(codes: Any, lengths: Any) -> Any:
    """Return the maximum number of bytes of decoded FSST codes.

    The byte after an escape is counted as a code, too.

    Args:
        codes: u8.
        lengths: (256,) u8; bytes of each code's symbol, 0 if there is none, 1 for an escape.
    """
    total: Any = 0
    for position in range(len(codes)):
        total += np.int64(lengths[codes[position]])  # uncompiled, u8 would overflow
    return total


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    *(
        _I64(_src(_U8), _src(stored), _src(_U8, 2), _src(_U8), _dst(_U8), _dst(decoded))
        for stored, decoded in ((_I32, _I32), (_I32, _I64), (_I64, _I64))
    )
)
def decode(
    codes: Any, offsets: Any, symbols: Any, lengths: Any, data: Any, decoded_offsets: Any
) -> Any:
    """Decode FSST values.

    Args:
        codes: u8; the encoded values.
        offsets: (num_values + 1,) the end of each value after a 0.
        symbols: (256, 8) u8, padded.
        lengths: As in `max_bytes`.
        data: u8, to fill; `max_bytes` and 8 more.
        decoded_offsets: (num_values + 1,) to fill.

    Returns:
        The number of decoded bytes, or one of the negative numbers above.
    """
    # Short strings have different numbers of codes, so a branch at each end would be mispredicted.
    # Therefore codes are decoded block by block, and the ends are looked up after each block.
    ends = np.zeros(_CODES_PER_BLOCK + 2, np.int64)
    at: Any = _ZERO
    position: Any = np.int64(0)
    num_codes, num_offsets = len(codes), len(offsets)
    offset, value = np.int64(0), 1
    decoded_offsets[0] = 0
    failure = 0
    while True:
        first = position
        stop = min(first + _CODES_PER_BLOCK, num_codes)
        while position < stop:
            ends[np.uint64(position - first)] = at
            code = np.uint64(codes[np.uint64(position)])
            if code == _ESCAPE:
                ends[np.uint64(position + 1 - first)] = ENDS_AFTER_ESCAPE
                if position + 1 == num_codes:
                    failure = ENDS_AFTER_ESCAPE
                    break
                data[at] = codes[np.uint64(position + 1)]
                at += _ONE
                position += 2
                continue
            # All are loaded before any is stored, so that each is one instruction.
            byte_0, byte_1 = symbols[code, 0], symbols[code, 1]
            byte_2, byte_3 = symbols[code, 2], symbols[code, 3]
            byte_4, byte_5 = symbols[code, 4], symbols[code, 5]
            byte_6, byte_7 = symbols[code, 6], symbols[code, 7]
            data[at], data[at + _ONE] = byte_0, byte_1
            data[at + np.uint64(2)], data[at + np.uint64(3)] = byte_2, byte_3
            data[at + np.uint64(4)], data[at + np.uint64(5)] = byte_4, byte_5
            data[at + np.uint64(6)], data[at + np.uint64(7)] = byte_6, byte_7
            length = lengths[code]
            if length == 0:
                failure = CODE_WITHOUT_SYMBOL
                break
            at += np.uint64(length)
            position += 1
        if failure == 0:
            ends[np.uint64(position - first)] = at
        while value < num_offsets:
            if offsets[value] < offset:
                return OFFSETS_LEAVE_CODES
            if offsets[value] > position:
                break
            offset = np.int64(offsets[value])
            end = ends[np.uint64(offset - first)]
            if end < 0:
                return ENDS_AFTER_ESCAPE
            decoded_offsets[value] = end
            value += 1
        if failure != 0:
            return failure
        if position >= num_codes:
            break
    if value < num_offsets:
        return OFFSETS_LEAVE_CODES
    return np.int64(decoded_offsets[num_offsets - 1])


_TABLES = (_src(_U16), _src(_U8), _src(_U64), _src(_U64), _src(_U16))


@_compiled(_U16(_src(_U8), _I64, _I64, _I64, *_TABLES))  # type: ignore[untyped-decorator]  # of numba
def _entry_at(
    data: Any,
    position: int,
    stop: int,
    terminator: int,
    short: Any,
    long: Any,
    values: Any,
    masks: Any,
    entries: Any,
) -> Any:
    """Return `code | bytes << 8` of the symbol at a position of a string that stops after it.

    The tables are those of `fsst_matching.Matcher.tables`; the string counts as followed by
    `terminator`, which no symbol of several bytes has.
    """
    word = np.uint64(0)
    num_remaining = stop - position
    if position + 8 <= len(data):
        # The compiler makes this one instruction.
        at = np.uint64(position)
        word = np.uint64(data[at])
        word |= np.uint64(data[at + _ONE]) << np.uint64(8)
        word |= np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        word |= np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        word |= np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        word |= np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        word |= np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        word |= np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
        if num_remaining < 8:
            word &= (_ONE << np.uint64(8 * num_remaining)) - _ONE
            word |= np.uint64(terminator) << np.uint64(8 * num_remaining)
    else:
        for byte in range(num_remaining):
            word |= np.uint64(data[np.uint64(position + byte)]) << np.uint64(8 * byte)
        word |= np.uint64(terminator) << np.uint64(8 * num_remaining)
    first_3 = word & np.uint64(0xFFFFFF)
    number = long[(first_3 * _SPREAD & np.uint64(0xFFFFFFFF)) >> _SLOT_SHIFT]
    # Both are loaded, so that no branch is mispredicted.
    entry, short_entry = entries[number], short[word & np.uint64(0xFFFF)]
    return entry if word & masks[number] == values[number] else short_entry


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    types.void(_src(_U8), _src(_I64), _src(_I64), _I64, *_TABLES, _dst(_U16))
)
def match(
    data: Any,
    starts: Any,
    stops: Any,
    terminator: int,
    short: Any,
    long: Any,
    values: Any,
    masks: Any,
    entries: Any,
    codes_at: Any,
) -> None:
    """Find the symbols of byte strings.

    Args:
        data: u8; the strings.
        starts: (num_strings,) where each starts in `data`.
        stops: (num_strings,) where each stops in it.
        terminator: As in `_entry_at`.
        short: As in `_entry_at`.
        long: As in `_entry_at`.
        values: As in `_entry_at`.
        masks: As in `_entry_at`.
        entries: As in `_entry_at`.
        codes_at: (len(data),) zeros, to fill: the entry of each symbol at its first byte.
    """
    for string in range(len(starts)):
        position, stop = starts[string], stops[string]
        while position < stop:
            entry = _entry_at(data, position, stop, terminator, short, long, values, masks, entries)
            codes_at[np.uint64(position)] = entry
            position += np.int64(entry >> 8)


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    _U64(
        _src(_U8),
        _src(_I64),
        _I64,
        _I64,
        _I64,
        _U64,
        _I64,
        *_TABLES,
        _dst(_U8),
        _dst(_I64),
    )
)
def _encode_strings(
    data: Any,
    bounds: Any,
    string: int,
    last: int,
    position: int,
    at: Any,
    terminator: int,
    short: Any,
    long: Any,
    values: Any,
    masks: Any,
    entries: Any,
    codes: Any,
    ends: Any,
) -> Any:
    """Encode the strings from `string` up to but not including `last`; see `encode`.

    Args:
        data: As in `encode`.
        bounds: As in `encode`.
        string: The first string, whose bytes before `position` are already encoded.
        last: One past the last string.
        position: The next byte.
        at: The position of its code.
        terminator: As in `encode`.
        short: As in `encode`.
        long: As in `encode`.
        values: As in `encode`.
        masks: As in `encode`.
        entries: As in `encode`.
        codes: As in `encode`.
        ends: As in `encode`.

    Returns:
        The end of the last code.
    """
    while string < last:
        stop = bounds[string + 1]
        while position < stop:
            entry = _entry_at(data, position, stop, terminator, short, long, values, masks, entries)
            code = np.uint64(entry) & _ESCAPE
            # The byte after an escape is stored in any case, which saves a branch.
            codes[at], codes[at + _ONE] = code, data[np.uint64(position)]
            at += np.uint64(1 + (code == _ESCAPE))
            position += int(entry >> 8)
        ends[string] = at
        string += 1
    return at


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    _I64(_src(_U8), _src(_I64), _I64, *_TABLES, _dst(_U8), _dst(_I64))
)
def encode(
    data: Any,
    bounds: Any,
    terminator: int,
    short: Any,
    long: Any,
    values: Any,
    masks: Any,
    entries: Any,
    codes: Any,
    ends: Any,
) -> Any:
    """Encode byte strings by FSST.

    Args:
        data: u8; the strings.
        bounds: (num_strings + 1,) ascending, from 0 to at most `len(data)`.
        terminator: As in `_entry_at`.
        short: As in `_entry_at`.
        long: As in `_entry_at`.
        values: As in `_entry_at`.
        masks: As in `_entry_at`.
        entries: As in `_entry_at`.
        codes: u8, to fill; twice as many as the bytes of the strings.
        ends: (num_strings,) to fill: the end of each string in `codes`.

    Returns:
        The number of bytes in `codes`.
    """
    # Two strings at a time, from both halves: the processor looks up the symbols of one while it
    # waits for those of the other.
    middle = len(ends) // 2
    one, other = 0, middle
    at, position = _ZERO, bounds[0]
    at_2, start_2 = np.uint64(2 * bounds[middle]), bounds[middle]
    while one < middle:
        if position == bounds[one + 1]:
            ends[one] = at
            one += 1
            continue
        if start_2 == bounds[other + 1]:
            ends[other] = at_2
            other += 1
            if other == len(ends):
                break
            continue
        stop, stop_2 = bounds[one + 1], bounds[other + 1]
        entry = _entry_at(data, position, stop, terminator, short, long, values, masks, entries)
        entry_2 = _entry_at(data, start_2, stop_2, terminator, short, long, values, masks, entries)
        code, code_2 = np.uint64(entry) & _ESCAPE, np.uint64(entry_2) & _ESCAPE
        codes[at], codes[at + _ONE] = code, data[np.uint64(position)]
        codes[at_2], codes[at_2 + _ONE] = code_2, data[np.uint64(start_2)]
        at += np.uint64(1 + (code == _ESCAPE))
        at_2 += np.uint64(1 + (code_2 == _ESCAPE))
        position += np.int64(entry >> 8)
        start_2 += np.int64(entry_2 >> 8)
    at = _encode_strings(
        data,
        bounds,
        one,
        middle,
        position,
        at,
        terminator,
        short,
        long,
        values,
        masks,
        entries,
        codes,
        ends,
    )
    at_2 = _encode_strings(
        data,
        bounds,
        other,
        len(ends),
        start_2,
        at_2,
        terminator,
        short,
        long,
        values,
        masks,
        entries,
        codes,
        ends,
    )
    num_codes, begin = np.int64(at), 2 * bounds[middle]
    num_more = np.int64(at_2) - begin
    codes[num_codes : num_codes + num_more] = codes[begin : begin + num_more]
    for string in range(middle, len(ends)):
        ends[string] -= begin - num_codes
    return num_codes + num_more


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    *(types.void(_src(word), _src(_I64), _src(_I64), _dst(word, 2)) for word in (_U32, _U64))
)
def unpack(words: Any, starts: Any, widths: Any, values: Any) -> None:
    """Unpack blocks of 1,024 words in FastLanes order, each with its own width.

    Args:
        words: Words of T bits, aligned.
        starts: (num_blocks,) the first word of each; its `width * 1024 / T` words are in `words`.
        widths: (num_blocks,) from 0 to T.
        values: (num_blocks, 1024) words of T bits, to fill.
    """
    bits = words.itemsize * 8
    lanes = VALUES // bits
    for block in range(len(starts)):
        width = widths[block]
        if width == 0:
            values[block, :] = 0
            continue
        mask = values.dtype.type(_ALL_BITS >> np.uint64(64 - width))
        for row in range(bits):
            plane = row * width // bits
            shift = row * width - plane * bits
            group = row // 8
            # The groups of 8 rows come in the order 0, 4, 2, 6, 1, 5, 3, 7.
            group = (group & 1) << 2 | (group & 2) | (group & 4) >> 2
            to = group * 16 + (row % 8) * 128
            source = starts[block] + plane * lanes
            right = words.dtype.type(shift)
            if shift + width > bits:
                high_shift = words.dtype.type(bits - shift)
                for lane in range(lanes):
                    low = words[np.uint64(source + lane)] >> right
                    high = words[np.uint64(source + lanes + lane)] << high_shift
                    values[block, np.uint64(to + lane)] = (low | high) & mask
            else:
                for lane in range(lanes):
                    low = words[np.uint64(source + lane)] >> right
                    values[block, np.uint64(to + lane)] = low & mask


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    types.void(_src(_U16), _src(_I64), _src(_I64), _src(types.boolean), _I64, _dst(_U16))
)
def unpack_levels(
    words: Any, starts: Any, counts: Any, packs_tail: Any, width: int, levels: Any
) -> None:
    """Unpack chunks of levels that were packed out of line, all in one width.

    Args:
        words: u16.
        starts: (num_chunks,) the first word of each: the blocks of 1,024 levels come first, then
            the remaining levels, in a block of their own or plain; all words are in `words`.
        counts: (num_chunks,) the levels of each.
        packs_tail: (num_chunks,) whether the remaining levels are packed.
        width: Bits of a packed level, from 0 to 16.
        levels: u16, to fill: as many as all `counts` together.
    """
    lanes = VALUES // 16
    mask = np.uint16((1 << width) - 1)
    block = np.zeros(VALUES, np.uint16)
    at = 0
    for chunk in range(len(starts)):
        source, num_remaining = starts[chunk], counts[chunk]
        while num_remaining > 0:
            if num_remaining < VALUES and not packs_tail[chunk]:
                for index in range(num_remaining):
                    levels[np.uint64(at + index)] = words[np.uint64(source + index)]
                at += num_remaining
                break
            for row in range(16):
                plane = row * width // 16
                shift = row * width - plane * 16
                # The groups of 8 rows come in the order 0, 4.
                to = (row // 8) * 64 + (row % 8) * 128
                first = source + plane * lanes
                right = np.uint16(shift)
                if width == 0:
                    pass
                elif shift + width > 16:
                    rest = np.uint16(16 - shift)
                    for lane in range(lanes):
                        low = words[np.uint64(first + lane)] >> right
                        high = words[np.uint64(first + lanes + lane)] << rest
                        block[np.uint64(to + lane)] = np.uint16(low | high) & mask
                else:
                    for lane in range(lanes):
                        low = words[np.uint64(first + lane)] >> right
                        block[np.uint64(to + lane)] = np.uint16(low) & mask
            size = min(num_remaining, VALUES)
            for index in range(size):
                levels[np.uint64(at + index)] = block[np.uint64(index)]
            source += width * lanes
            at += size
            num_remaining -= size


@_compiled(  # type: ignore[untyped-decorator]  # of numba
    *(types.void(_src(word, 2), _src(_I64), _src(_I64), _dst(word)) for word in (_U32, _U64))
)
def pack(values: Any, starts: Any, widths: Any, words: Any) -> None:
    """Pack blocks of 1,024 words in FastLanes order, each in its own width.

    Args:
        values: (num_blocks, 1024) words of T bits, each less than 2 to the width of its block.
        starts: (num_blocks,) the first word of each; its `width * 1024 / T` words are in `words`.
        widths: (num_blocks,) from 0 to T.
        words: Words of T bits, to fill.
    """
    bits = words.itemsize * 8
    lanes = VALUES // bits
    for block in range(len(starts)):
        width = widths[block]
        if width == 0:
            continue
        for row in range(bits):
            plane = row * width // bits
            shift = row * width - plane * bits
            group = row // 8
            # The groups of 8 rows come in the order 0, 4, 2, 6, 1, 5, 3, 7.
            group = (group & 1) << 2 | (group & 2) | (group & 4) >> 2
            source = group * 16 + (row % 8) * 128
            to = starts[block] + plane * lanes
            if shift == 0:
                for lane in range(lanes):
                    words[np.uint64(to + lane)] = values[block, np.uint64(source + lane)]
            else:
                high_shift = words.dtype.type(shift)
                for lane in range(lanes):
                    low = values[block, np.uint64(source + lane)] << high_shift
                    words[np.uint64(to + lane)] |= low
            if shift + width > bits:
                right = words.dtype.type(bits - shift)
                for lane in range(lanes):
                    high = values[block, np.uint64(source + lane)] >> right
                    words[np.uint64(to + lanes + lane)] = high
