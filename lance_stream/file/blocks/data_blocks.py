"""The blocks that codecs exchange: values without nulls, without Arrow, without a file.

A layout (`v2_1.layouts`) splits a page into values and levels; a codec (`v2_1.codecs`) turns
the values' bytes into one of these blocks and back. The layout handles nulls: a null value
has a slot in the block, with arbitrary contents.

    FixedWidthBlock      num_values of bits_per_value, little-endian; 1 bit: an LSB-first bitmap
    VariableWidthBlock   num_values byte strings: offsets and bytes
    FixedSizeListBlock   num_values lists of items_per_value items, with a bitmap for null items
    DictionaryBlock      indices into items
    StructBlock          num_values structs: one block for each part
    ConstantBlock        one value, num_values times; without a value all are null
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Bytes
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError

Words: TypeAlias = npt.NDArray[np.unsignedinteger]
Offsets: TypeAlias = npt.NDArray[np.signedinteger]

INT32: np.dtype[np.signedinteger] = np.dtype(np.int32)
INT64: np.dtype[np.signedinteger] = np.dtype(np.int64)
INT32_MAX = 2**31 - 1

WORDS: dict[int, np.dtype[np.unsignedinteger]] = {
    8: np.dtype("<u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}
"""The unsigned word of each width in bits."""


@dataclass(frozen=True, slots=True, eq=False)
class FixedWidthBlock:
    """Values of one width.

    Args:
        bits_per_value: 1 (a bitmap, least significant bit first) or any other number of bits.
        num_values: Their number.
        data: (ceil(num_values * bits_per_value / 8),) bytes, without gaps. May be read-only.
    """

    bits_per_value: int
    num_values: int
    data: Bytes

    def words(self) -> Words:
        """Return (num_values,) unsigned words of 8, 16, 32 or 64 bits, without a copy.

        Raises:
            UnsupportedFeatureError: The values have another width.
        """
        return self.data.view(word_of(self.bits_per_value))


@dataclass(frozen=True, slots=True, eq=False)
class VariableWidthBlock:
    """Byte strings.

    Args:
        num_values: Their number.
        offsets: (num_values + 1,) int32 or int64 positions in `data`, ascending, the first 0;
            value i is `data[offsets[i]:offsets[i + 1]]`.
        data: (offsets[-1],) bytes or more. May be read-only.
    """

    num_values: int
    offsets: Offsets
    data: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class FixedSizeListBlock:
    """Lists of one length.

    Args:
        items_per_value: Items in each list, at least 1.
        items: num_values * items_per_value items, one list after the other; a ConstantBlock
            without a value if all items are null.
        validity: (ceil(num_values * items_per_value / 8),) bytes of bitmap, least significant bit
            first: bit i is set when *item* i is not null. None: no item is null.
        num_values: The number of lists.
    """

    items_per_value: int
    items: "DataBlock"
    validity: Bytes | None
    num_values: int


@dataclass(frozen=True, slots=True, eq=False)
class DictionaryBlock:
    """Indices into distinct values.

    Args:
        indices: num_values unsigned indices; those of null values are arbitrary, but less than the
            number of items.
        items: The distinct values.
        num_values: The number of indices.
    """

    indices: FixedWidthBlock
    items: "DataBlock"
    num_values: int


@dataclass(frozen=True, slots=True, eq=False)
class StructBlock:
    """Structs whose parts form one column.

    Args:
        parts: A block for each part, of `num_values` values.
        num_values: The number of structs.
    """

    parts: tuple["DataBlock", ...]
    num_values: int


@dataclass(frozen=True, slots=True)
class ConstantBlock:
    """One value, repeated.

    Args:
        value: Its bytes. None if every value is null.
        num_values: The number of repetitions.
    """

    value: bytes | None
    num_values: int


DataBlock: TypeAlias = (
    FixedWidthBlock
    | VariableWidthBlock
    | FixedSizeListBlock
    | DictionaryBlock
    | StructBlock
    | ConstantBlock
)


def size_in_bytes(num_values: int, bits_per_value: int) -> int:
    """Return the number of bytes of values of a width, without gaps."""
    return (num_values * bits_per_value + 7) // 8


def word_of(bits_per_value: int) -> np.dtype[np.unsignedinteger]:
    """Return the little-endian unsigned word of a width.

    Raises:
        UnsupportedFeatureError: There is no word of that width.
    """
    word = WORDS.get(bits_per_value)
    if word is None:
        raise UnsupportedFeatureError(
            f"a word of {bits_per_value} bits was requested; only 8, 16, 32 and 64 are supported"
        )
    return word


def offsets_of(lengths: npt.NDArray[np.integer], *, as_int32: bool) -> Offsets:
    """Return the (num_values + 1,) offsets of values of these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=INT32 if as_int32 else INT64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fixed_width_block(bits_per_value: int, num_values: int, data: Bytes) -> FixedWidthBlock:
    """Return a block of stored bytes, after checking their number.

    Raises:
        CorruptDataError: There are fewer or more bytes.
    """
    size_bytes = size_in_bytes(num_values, bits_per_value)
    if bits_per_value <= 0 or len(data) != size_bytes:
        raise CorruptDataError(
            f"{num_values} values of {bits_per_value} bits need {size_bytes} bytes, "
            f"but {len(data)} are stored"
        )
    return FixedWidthBlock(bits_per_value, num_values, data)
