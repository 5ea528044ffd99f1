"""Encodes key values as words or short byte strings that sort in the same order.

    integer, date, timestamp, boolean     u64: sign bit flipped, so that -1 comes before 0
    decimal of more than 64 bits          its bytes, most significant first, sign bit flipped
    string, bytes                         its first 64 bytes

Longer values are truncated, so different values may become equal, but the order is preserved:
a <= b implies encode(a) <= encode(b). Bounds need no more than that.

Bounds are cached and saved as bytes, most significant first; `as_words` turns them into searchable
arrays.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.keys.key_words import bytes_of

OrderedWords: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.bytes_]
"""(n,) u64, or (n,) byte strings of one width, which numpy compares byte by byte."""

MAX_BYTES: Final = 64
"""The number of bytes of a string that are compared."""

_WORD_BYTES: Final = 8
_SIGN: Final = np.uint64(1 << 63)


def width_of(arrow_type: pa.DataType) -> int | None:
    """Return the width of an encoded value in bytes; None if the type has no bounds.

    Floating-point types have no bounds, because NaN is outside of all bounds. Dictionaries
    have no bounds either.
    """
    if any(accepts(arrow_type) for accepts in _OF_ANY_LENGTH):
        return MAX_BYTES
    if pa.types.is_fixed_size_binary(arrow_type):
        return min(arrow_type.byte_width, MAX_BYTES) or None
    if any(accepts(arrow_type) for accepts in _OF_FIXED_WIDTH):
        return max(int(arrow_type.bit_width) // 8, _WORD_BYTES)
    return None


_OF_ANY_LENGTH = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
_OF_FIXED_WIDTH = (
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_boolean,
)


def ordered_words(values: pa.Array) -> OrderedWords:
    """Return the encoding of each value.

    Args:
        values: (n,) of a type that has a width, without nulls.
    """
    kind = values.type
    width = width_of(kind)
    assert width is not None
    if not len(values):
        return as_words([], kind)
    if pa.types.is_decimal(kind):
        return _decimals(values, width)
    if any(accepts(kind) for accepts in (*_OF_ANY_LENGTH, pa.types.is_fixed_size_binary)):
        if not pa.types.is_fixed_size_binary(kind):
            longest = pc.max(pc.binary_length(values)).as_py() or 1
            width = min(width, longest)
        return _prefixes(values, width)
    if pa.types.is_boolean(kind):
        values, kind = values.cast(pa.uint8()), pa.uint8()
    word_type = f"{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}"
    raw = np.frombuffer(values.buffers()[1], word_type)[values.offset : values.offset + len(values)]
    if word_type[0] == "u":
        return raw.astype(np.uint64)
    return raw.astype(np.int64).view(np.uint64) ^ _SIGN


def in_order(values: pa.Array) -> tuple[npt.NDArray[np.int64], OrderedWords]:
    """Return the indices that sort some values, and their encodings in that order.

    Args:
        values: (n,) of a type that has a width, none of them null.
    """
    words = ordered_words(values)
    if words.dtype.kind == "u":
        order = np.argsort(words)
    else:
        order = pc.sort_indices(values).to_numpy().astype(np.int64)
    return order, words[order]


def extremes_of(values: pa.Array) -> pa.Array:
    """Return the smallest and the largest value; two nulls if all are null."""
    extremes = pc.min_max(values)
    return pa.array([extremes["min"], extremes["max"]], values.type)


def bounds_of(values: pa.Array) -> tuple[bytes, bytes] | None:
    """Return the encoded smallest and largest value; None if all are null.

    Args:
        values: (n,) of a type that has a width.
    """
    extremes = extremes_of(values)
    if extremes.null_count:
        return None
    low, high = ordered_words(extremes).tolist()
    if isinstance(low, int):
        return low.to_bytes(_WORD_BYTES, "big"), high.to_bytes(_WORD_BYTES, "big")
    return low, high


def as_words(bounds: Sequence[bytes], arrow_type: pa.DataType) -> OrderedWords:
    """Return bounds in the form that `ordered_words` returns for values of the type."""
    width = width_of(arrow_type)
    assert width is not None
    strings = np.array(bounds, f"S{width}")
    if _is_word(arrow_type):
        return strings.view(">u8").astype(np.uint64)
    return strings


def _is_word(arrow_type: pa.DataType) -> bool:
    is_number = any(accepts(arrow_type) for accepts in _OF_FIXED_WIDTH)
    return is_number and width_of(arrow_type) == _WORD_BYTES


def _decimals(values: pa.Array, width: int) -> npt.NDArray[np.bytes_]:
    raw, starts, _ = bytes_of(values)
    first = int(starts[0])
    turned = raw[first : first + width * len(values)].reshape(-1, width)[:, ::-1].copy()
    turned[:, 0] ^= 0x80
    return turned.view(f"S{width}")[:, 0]


def _prefixes(values: pa.Array, width: int) -> npt.NDArray[np.bytes_]:
    raw, starts, sizes = bytes_of(values)
    prefixes = np.zeros((len(values), width), np.uint8)
    within = np.arange(width)
    some = np.concatenate([raw, np.zeros(width, np.uint8)])
    # Process parts of the batch, so that the byte indices take little memory.
    for start in range(0, len(values), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        prefix_bytes = some[starts[part, None] + within]
        prefix_bytes[within >= sizes[part, None]] = 0
        prefixes[part] = prefix_bytes
    return prefixes.view(f"S{width}")[:, 0]


_ROWS_AT_ONCE: Final = 1 << 14
