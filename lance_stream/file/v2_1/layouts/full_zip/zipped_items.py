"""The items of a full-zip page: a value with its own levels.

    control word   u8, u16 or u32: repetition << bits_def | definition; none if both have 0 bits;
                   u8 up to 8 bits of both, u16 up to 16
    length         u32 or u64, only of values without a fixed width
    value          encoded by the value encoding

An entry without a slot among the values (a list without contents) is only its control word. A null
value of fixed width has arbitrary bytes; a null value without a fixed width is only its control
word.

Source:  encodings21.FullZipLayout in the proto.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Bytes, Positions
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.data_blocks import FixedWidthBlock, VariableWidthBlock
from lance_stream.file.blocks.scattered_bytes import gather
from lance_stream.file.v2_1.layouts.levels import Levels, alternating

_MANY_ROWS = 64


@dataclass(frozen=True, slots=True)
class ItemShape:
    """The format of the items of a page.

    Attributes:
        bits_def: Bits of a definition level.
        word_bytes: Bytes of a control word.
        width: Bytes of a value, or of its length.
        is_fixed: Whether values have a fixed width.
        max_visible: The largest definition level of an entry with a slot among the values.
    """

    bits_def: int
    word_bytes: int
    width: int
    is_fixed: bool
    max_visible: int

    def item_starts(self, data: Bytes, starts: Positions, stops: Positions) -> Positions:
        """Return the start of each item, given the starts and stops of rows.

        The end of an item is only known from its contents. So the first items of all rows are
        processed together, then the second items of the rows that have one, and so on; the few
        rows that are much longer than the others are processed item by item.
        """
        items = []
        positions, ends = starts, stops
        if (positions >= ends).any():
            raise CorruptDataError("a row of a full-zip page has no bytes")
        while len(positions) > _MANY_ROWS:
            items.append(positions)
            positions = positions + self._item_bytes(data, positions)
            if (positions > ends).any():
                raise CorruptDataError("an item of a full-zip page is longer than its row")
            has_more = positions < ends
            positions, ends = positions[has_more], ends[has_more]
        for first, stop in zip(positions.tolist(), ends.tolist(), strict=True):
            items.append(self._item_starts_of_row(data, first, stop))
        return np.sort(np.concatenate(items))

    def _item_starts_of_row(self, data: Bytes, start: int, stop: int) -> Positions:
        """Return the starts of the items of one row."""
        view = data.data
        word, width = self.word_bytes, self.width
        mask = (1 << self.bits_def) - 1
        limit = self.max_visible if self.bits_def else 0
        fixed = self.is_fixed
        positions = []
        while start < stop:
            positions.append(start)
            definition = int.from_bytes(view[start : start + word], "little") & mask
            start += word
            if fixed:
                start += width if definition <= limit else 0
            elif definition == 0:
                start += width + int.from_bytes(view[start : start + width], "little")
        if start != stop:
            raise CorruptDataError("an item of a full-zip page is longer than its row")
        return np.array(positions, np.int64)

    def _item_bytes(self, data: Bytes, positions: Positions) -> Positions:
        words = words_at(data, positions, self.word_bytes).astype(np.int64)
        definition = words & ((1 << self.bits_def) - 1)
        sizes = np.full(len(positions), self.word_bytes, np.int64)
        if self.is_fixed:
            sizes[definition <= self.max_visible] += self.width
            return sizes
        has_value = definition == 0
        sizes[has_value] += self.width + self.lengths_at(
            data, positions[has_value] + self.word_bytes
        )
        return sizes

    def lengths_at(self, data: Bytes, positions: Positions) -> Positions:
        """Return the lengths at some positions, after checking that such values fit."""
        lengths = words_at(data, positions, self.width)
        if len(lengths) and int(lengths.max()) > len(data):
            raise CorruptDataError(
                f"a value of {lengths.max()} bytes does not fit into {len(data)} bytes"
            )
        return lengths.astype(np.int64)


def control_words(levels: Levels, bits_rep: int, bits_def: int) -> Bytes:
    """Return (num_levels, bytes of a control word) bytes."""
    width = word_bytes_of(bits_rep + bits_def)
    words = np.zeros(levels.num_levels, f"<u{max(width, 1)}")
    if levels.definition is not None:
        words |= levels.definition.astype(words.dtype)
    if levels.repetition is not None:
        words |= levels.repetition.astype(words.dtype) << words.dtype.type(bits_def)
    return words.view(np.uint8).reshape(levels.num_levels, words.itemsize)[:, :width]


def zip_fixed(levels: Levels, words: Bytes, values: FixedWidthBlock) -> tuple[Bytes, Positions]:
    """Return the items, and the start of each."""
    width = values.bits_per_value // 8
    stride = words.shape[1] + width
    visible = levels.visible()
    if words.shape[1] == 0:
        return values.data, np.zeros(0, np.int64)
    if visible is None:
        zipped = np.concatenate([words, values.data.reshape(-1, width)], axis=1)
        return zipped.reshape(-1), np.arange(levels.num_levels, dtype=np.int64) * stride
    sizes = np.where(visible, stride, words.shape[1])
    stops = np.cumsum(sizes)
    is_value = alternating(np.full(levels.num_levels, words.shape[1]), np.where(visible, width, 0))
    items = np.empty(int(stops[-1]), np.uint8)
    items[~is_value] = words.reshape(-1)
    items[is_value] = values.data
    return items, stops - sizes


def zip_variable(
    levels: Levels, words: Bytes, values: VariableWidthBlock
) -> tuple[Bytes, Positions]:
    """Return the items, and the start of each."""
    has_value = np.ones(levels.num_levels, np.bool_)
    if levels.definition is not None:
        has_value = levels.definition == 0
    lengths, data = _lengths_and_bytes(levels, values)
    count, width = len(lengths), values.offsets.itemsize
    heads = np.empty(count * width + words.size, np.uint8)
    in_length = alternating(np.full(len(words), words.shape[1]), np.where(has_value, width, 0))
    heads[~in_length] = words.reshape(-1)
    heads[in_length] = lengths.astype(f"<u{width}").view(np.uint8)
    head_offsets = np.zeros(levels.num_levels + 1, np.int64)
    np.cumsum(words.shape[1] + np.where(has_value, width, 0), out=head_offsets[1:])
    offsets = np.zeros(levels.num_levels + 1, np.int64)
    offsets[1:][has_value] = lengths
    np.cumsum(offsets, out=offsets)
    items = pc.binary_join_element_wise(
        _binary(head_offsets, heads), _binary(offsets, data), pa.scalar(b"", pa.large_binary())
    )
    starts = np.frombuffer(items.buffers()[1], np.int64)
    stop = int(starts[levels.num_levels])
    return np.frombuffer(items.buffers()[2], np.uint8)[:stop], starts[: levels.num_levels]


def _lengths_and_bytes(levels: Levels, values: VariableWidthBlock) -> tuple[Positions, Bytes]:
    """Return the lengths of the non-null values, and their bytes."""
    lengths = np.diff(values.offsets).astype(np.int64)
    data = values.data[: int(values.offsets[-1])]
    visible = levels.visible()
    if levels.definition is None:
        return lengths, data
    definition = levels.definition if visible is None else levels.definition[visible]
    valid = definition == 0
    if lengths[~valid].any():
        starts = values.offsets[:-1][valid].astype(np.int64)
        data = gather(data, starts, starts + lengths[valid])[1]
    return lengths[valid], data


def _binary(offsets: Positions, data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
    )


def word_bytes_of(bits: int) -> int:
    """Return the bytes of a control word for this many bits."""
    if bits == 0:
        return 0
    return 1 if bits <= 8 else 2 if bits <= 16 else 4


def words_at(data: Bytes, positions: Positions, width: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the words at some positions in some bytes.

    Raises:
        CorruptDataError: A word extends past the end.
    """
    if len(positions) and int(positions.max()) + width > len(data):
        raise CorruptDataError("an item of a full-zip page is truncated")
    if width == 1:
        return data[positions]
    words = np.zeros(len(positions), f"<u{max(width, 1)}")
    for byte in range(width):
        words |= data[positions + byte].astype(words.dtype) << words.dtype.type(8 * byte)
    return words
