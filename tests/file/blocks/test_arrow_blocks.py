"""Data blocks and Arrow arrays: bytes are shared, shapes are checked."""

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.blocks import arrow_blocks
from lance_stream.file.blocks.arrow_blocks import (
    array_from_block,
    block_from_array,
    look_up,
    repeated,
    scalar_from_bytes,
    with_validity,
)
from lance_stream.file.blocks.data_blocks import (
    ConstantBlock,
    DictionaryBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    VariableWidthBlock,
)

VECTORS = pa.array([[1.0, None], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2))
ARRAYS = [
    pa.array([1, 2, 3], pa.int16()),
    pa.array([True, False, True] * 7),
    pa.array([1.5, -2.5]),
    pa.array([b"ab", b"cd"], pa.binary(2)),
    pa.array(["a", "", "ü"]),
    pa.array(["a", "", "ü"], pa.large_string()),
    pa.array([b"\xff", b""], pa.binary()),
    pa.array([1, 2], pa.decimal128(5, 2)),
    pa.array([], pa.string()),
    VECTORS,
    pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int8(), 2), 2)),
]


@pytest.mark.floors
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_arrays_round_trip_through_blocks(array: pa.Array) -> None:
    """Slices have offsets in their buffers, which are easily lost on the way."""
    for part in (array, array.slice(1), array.slice(len(array) // 2, 1)):
        back = array_from_block(block_from_array(part), array.type)
        back.validate(full=True)
        assert back.equals(part)


def test_words_are_not_copied() -> None:
    """Copies would double the memory and time of each read."""
    array = pa.array(np.arange(1000))
    back = array_from_block(block_from_array(array), pa.timestamp("us"))
    assert back.buffers()[1].address == array.buffers()[1].address


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_validity_applies_to_sliced_arrays(array: pa.Array) -> None:
    """A bitmap counts from the start of the slice, not from that of its buffer."""
    for part in (array, array.slice(1)):
        valid = np.arange(len(part)) % 2 == 1
        marked = with_validity(part, valid)
        marked.validate(full=True)
        expected = [
            value if ok else None for value, ok in zip(part.to_pylist(), valid, strict=True)
        ]
        assert marked.to_pylist() == expected


def test_blocks_unlike_their_type_are_corrupt() -> None:
    """Arrow would read past the end of buffers that are too small for the type."""
    words = FixedWidthBlock(32, 2, np.zeros(8, np.uint8))
    strings = VariableWidthBlock(1, np.array([0, 1]), np.zeros(1, np.uint8))
    lists = FixedSizeListBlock(3, words, None, 1)
    for block, arrow_type in [
        (words, pa.int64()),
        (words, pa.string()),
        (words, pa.dictionary(pa.int32(), pa.string())),
        (strings, pa.int8()),
        (lists, pa.list_(pa.int32(), 2)),
        (lists, pa.list_(pa.int32(), 3)),
        (lists, pa.int32()),
        (FixedWidthBlock(32, 3, np.zeros(8, np.uint8)), pa.int32()),
    ]:
        with pytest.raises(CorruptDataError):
            array_from_block(block, arrow_type)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        (b"ab\xffcd", [0, 5]),  # no UTF-8 at all
        ("aü".encode(), [0, 2, 3]),  # cut in the midst of a character
        (b"abcdefghij\xc3", [0, 11]),  # cut short, behind the last whole word of eight
    ],
)
def test_invalid_utf_8_is_corrupt(text: bytes, offsets: list[int]) -> None:
    """Arrow does not check strings, and consumers crash on them; offsets may also cut
    a character.
    """
    block = VariableWidthBlock(
        len(offsets) - 1, np.array(offsets, np.int32), np.frombuffer(text, np.uint8)
    )
    with pytest.raises(CorruptDataError, match="UTF-8"):
        array_from_block(block, pa.string())
    assert len(array_from_block(block, pa.binary())) == len(offsets) - 1


def test_indices_of_nulls_are_ignored() -> None:
    """Every other index has to lie inside the dictionary."""
    items = pa.array(["a", "b"])
    indices = pa.array([1, 9, 0], pa.uint8())
    valid = np.array([True, False, True])
    assert look_up(indices, items, pa.string(), valid)[0].as_py() == "b"
    as_dictionary = look_up(indices, items, pa.dictionary(pa.int8(), pa.string()), valid)
    assert as_dictionary.indices.to_pylist() == [1, 0, 0]
    with pytest.raises(CorruptDataError, match="index 9 points outside"):
        look_up(indices, items, pa.string())


def test_indices_beyond_their_type_are_corrupt() -> None:
    """The index is valid among the items, but the column's index type cannot hold it."""
    items = pa.array(range(200))
    with pytest.raises(CorruptDataError, match="does not fit into int8"):
        look_up(pa.array([150], pa.uint8()), items, pa.dictionary(pa.int8(), pa.int64()))


@pytest.mark.floors
def test_dictionary_blocks_read_as_their_items() -> None:
    """Pages may store dictionaries for columns that are none in the schema."""
    block = DictionaryBlock(
        FixedWidthBlock(8, 3, np.array([1, 0, 1], np.uint8)),
        FixedWidthBlock(16, 2, np.array([7, 8], np.uint16).view(np.uint8)),
        3,
    )
    assert array_from_block(block, pa.int16()).to_pylist() == [8, 7, 8]


def test_a_scalar_is_repeated() -> None:
    """A constant page stores its value once."""
    assert array_from_block(ConstantBlock(b"\x07\0", 3), pa.int16()).to_pylist() == [7, 7, 7]
    assert array_from_block(ConstantBlock(None, 2), pa.int16()).null_count == 2
    assert repeated(scalar_from_bytes(b"ab", pa.string()), 2).to_pylist() == ["ab", "ab"]
    with pytest.raises(CorruptDataError, match="3 bytes"):
        scalar_from_bytes(b"abc", pa.int16())


@pytest.mark.floors
def test_oversized_strings_are_refused_before_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few stored bytes can stand for more text than 32-bit offsets can address."""
    long = scalar_from_bytes(b"x" * 1000, pa.string())
    with pytest.raises(InvalidInputError, match="read fewer rows"):
        repeated(long, 10**9)
    items = pa.array(["x" * 1000])
    monkeypatch.setattr(arrow_blocks, "MAX_OFFSET", 2000)
    with pytest.raises(InvalidInputError, match="read fewer rows"):
        look_up(pa.array([0, 0, 0], pa.uint8()), items, pa.string())
