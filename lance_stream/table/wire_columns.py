"""Numbers of many messages of one kind, read from their bytes at once.

The messages lie one behind the other in a buffer, and are walked together: each step takes those
whose next field has the lowest tag, one field further. Writers put fields in the order of their
numbers, so there are about as many steps as there are fields in the definition: for 20,000
fragments eight steps of numpy, where one Python object for each takes ten times as long.

Only what is plain is read here. A message is *odd*, and left to be parsed on its own, if

    a field has a number above 15, or 0, or is a group
    a varint is longer than 10 bytes, or a field ends behind the message
    an embedded message that is asked for comes twice (its parts are to be united)
    its fields come in an order that takes more than 64 steps

Source: the protobuf encoding guide; see `wire`.
"""

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.table.wire import (
    FIXED32,
    FIXED64,
    LENGTH_DELIMITED,
    MAX_VARINT_BYTES,
    VARINT,
)

Offsets: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_MAX_STEPS = 64
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
# Stands for the tag of a message that is read, or odd; larger than any first byte.
_NONE = np.uint16(0x100)


class Spans(NamedTuple):
    """Where bytes lie in a buffer, for each of n messages.

    Attributes:
        starts: (n,) i64.
        stops: (n,) i64, one past the last byte.
    """

    starts: Offsets
    stops: Offsets


class Walked(NamedTuple):
    """What was read of n messages.

    Attributes:
        numbers: For each varint field that was asked for (n,) u64; 0 where a message has none.
        spans: For each embedded message that was asked for where it lies; start -1 for none.
        is_odd: (n,) which messages were not read; what is said of them means nothing.
    """

    numbers: dict[int, Numbers]
    spans: dict[int, Spans]
    is_odd: Mask


def walk(
    data: npt.NDArray[np.uint8],
    messages: Spans,
    varints: Collection[int] = (),
    embedded: Collection[int] = (),
) -> Walked:
    """Read some fields of many messages.

    Args:
        data: The buffer.
        messages: Where each message lies in it.
        varints: The numbers of the varint fields to read; of those that come again the last one.
        embedded: The numbers of the length-delimited fields to find.
    """
    count = len(messages.starts)
    numbers = {each: np.zeros(count, np.uint64) for each in varints}
    spans = {
        each: Spans(np.full(count, -1, np.int64), np.full(count, -1, np.int64)) for each in embedded
    }
    is_odd = np.zeros(count, np.bool_)
    # Whoever reads on behind the end meets a varint that does not end.
    data = np.concatenate([data, np.full(MAX_VARINT_BYTES + 1, 0xFF, np.uint8)])
    places, stops = messages.starts.copy(), messages.stops
    for _ in range(_MAX_STEPS):
        tags = np.where(places < stops, data[places], _NONE)
        tag = int(tags.min(initial=_NONE))
        if tag == _NONE:
            return Walked(numbers, spans, is_odd)
        which = np.flatnonzero(tags == tag)
        number, wire_type = tag >> 3, tag & 7
        begins, good = places[which] + 1, np.ones(len(which), np.bool_)
        behind = begins
        if wire_type in (VARINT, LENGTH_DELIMITED):
            values, begins, good = _read_varints(data, begins)
            behind = begins
            if wire_type == LENGTH_DELIMITED:
                good &= values <= np.uint64(len(data))
                behind = begins + np.where(good, values, 0).astype(np.int64)
            elif number in numbers:
                numbers[number][which] = values
        elif wire_type in _FIXED_SIZES:
            behind = begins + _FIXED_SIZES[wire_type]
        else:
            good[:] = False
        good &= behind <= stops[which]
        if wire_type == LENGTH_DELIMITED and number in spans:
            good &= spans[number].starts[which] < 0
            spans[number].starts[which], spans[number].stops[which] = begins, behind
        if tag >= 0x80 or not number:
            good[:] = False
        is_odd[which] = ~good
        places[which] = np.where(good, behind, stops[which])
    is_odd |= places < stops
    return Walked(numbers, spans, is_odd)


def _read_varints(data: npt.NDArray[np.uint8], places: Offsets) -> tuple[Numbers, Offsets, Mask]:
    """Return the varints at some places, the places behind them, and which are such."""
    first = data[places]
    values = (first & 0x7F).astype(np.uint64)
    behind = places + 1
    good = first < 0x80
    which = np.flatnonzero(~good)
    for step in range(1, MAX_VARINT_BYTES):
        if not len(which):
            break
        here = data[places[which] + step]
        values[which] |= (here & 0x7F).astype(np.uint64) << np.uint64(7 * step)
        behind[which] = places[which] + step + 1
        # The last byte has room for one bit.
        good[which] = here < (0x80 if step < MAX_VARINT_BYTES - 1 else 2)
        which = which[here >= 0x80]
    return values, behind, good
