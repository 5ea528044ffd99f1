"""Round trips through each fixed-width codec that we write, at every width."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, joined
from lance_stream.file.blocks.data_blocks import FixedWidthBlock
from lance_stream.file.compression.compiled import loops
from lance_stream.file.v2_1.codecs import (
    EncodedMiniBlock,
    bitpacking,
    byte_stream_split,
    decode_block,
    decode_mini_block,
    pick_mini_block,
    rle,
)

WIDTHS = [(bits, width) for bits in (8, 16, 32, 64) for width in range(bits + 1)]
COUNTS = [1, 2, 63, 64, 65, 1000, 1023, 1024, 1025, 3000, 4096, 4097, 5000]


def below(width: int, bits: int, count: int, seed: int = 0) -> npt.NDArray[np.unsignedinteger]:
    """Words of so many bits, all less than 2 to the width, including the largest."""
    words = np.random.default_rng(seed).integers(0, 2**64, count, np.uint64, endpoint=False)
    words = words >> np.uint64(64 - width) if width else words * np.uint64(0)
    words[count // 2] = 2**width - 1
    return words.astype(f"<u{bits // 8}")


def block_of(words: npt.NDArray[np.unsignedinteger]) -> FixedWidthBlock:
    return FixedWidthBlock(words.itemsize * 8, len(words), words.view(np.uint8))


def decoded(encoded: EncodedMiniBlock) -> npt.NDArray[np.unsignedinteger]:
    block = decode_mini_block(encoded.encoding, encoded.buffers, encoded.num_values)
    assert isinstance(block, FixedWidthBlock)
    return block.words()


def check_chunks(encoded: EncodedMiniBlock, count: int) -> None:
    """Every chunk but the last has a power of two of values, from 2 on."""
    assert encoded.num_values.sum() == count
    full = encoded.num_values[:-1]
    assert ((full >= 2) & (full & (full - 1) == 0)).all()
    assert 0 < encoded.num_values[-1] <= 4096


@pytest.mark.floors
@pytest.mark.parametrize(("bits", "width"), WIDTHS)
def test_bitpacked_widths_round_trip(bits: int, width: int) -> None:
    """Values cross word boundaries differently at each width, also when single ones are picked."""
    words = below(width, bits, 2500)
    encoded = bitpacking.encode_mini_block(block_of(words))
    check_chunks(encoded, 2500)
    assert np.array_equal(decoded(encoded), words)
    assert (
        encoded.buffers[0].sizes[1] == (bits + int(max(words[1024:2048])).bit_length() * 1024) / 8
    )
    for indices in (np.array([0, 1, 1023, 1024, 2047, 2048, 2499]), np.arange(0, 2500, 7)):
        picked = pick_mini_block(encoded.encoding, encoded.buffers, encoded.num_values, indices)
        assert isinstance(picked, FixedWidthBlock)
        assert np.array_equal(picked.words(), words[indices])
    if 0 < width < bits:
        packed = bitpacking.encode_block(block_of(words), width)
        whole = decode_block(packed.encoding, packed.data, packed.num_values)
        assert isinstance(whole, FixedWidthBlock)
        assert np.array_equal(whole.words(), words)
        assert len(packed.data) == bitpacking.out_of_line_size(2500, width, bits // 8)


@settings(max_examples=40, deadline=None)
@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    stretches=st.lists(
        st.tuples(st.integers(0, 64), st.sampled_from([1, 100, 1024, 2000])),
        min_size=1,
        max_size=100,
    ),
    seed=st.integers(0, 99),
)
def test_chunks_of_many_widths_round_trip(
    bits: int, stretches: list[tuple[int, int]], seed: int
) -> None:
    """Each chunk has its own width, so the size of one must not be used for another."""
    words = np.concatenate(
        [below(min(width, bits), bits, count, seed) for width, count in stretches]
    )
    encoded = bitpacking.encode_mini_block(block_of(words))
    check_chunks(encoded, len(words))
    assert np.array_equal(decoded(encoded), words)
    indices = np.random.default_rng(seed).integers(0, len(words), 50)
    picked = pick_mini_block(encoded.encoding, encoded.buffers, encoded.num_values, indices)
    assert isinstance(picked, FixedWidthBlock)
    assert np.array_equal(picked.words(), words[indices])


def test_chunks_are_unpacked_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group must fill the rows of its own chunks, whether they are adjacent or not."""
    monkeypatch.setattr(bitpacking, "_GROUP_BYTES", 40_000)
    widths = [20] * 50 + [50, 20] * 40
    words = np.concatenate([below(width, 64, 1024, seed) for seed, width in enumerate(widths)])
    encoded = bitpacking.encode_mini_block(block_of(words))
    groups = []
    monkeypatch.setattr(
        bitpacking, "joined", lambda chunks: groups.append(len(chunks.starts)) or joined(chunks)
    )
    with loops.replaced(None):
        assert np.array_equal(decoded(encoded), words)
    assert sum(groups) == len(widths)
    assert 2 < max(groups) < 25


def test_rare_widths_are_widened_cheaply() -> None:
    """Ids from 0 on need all widths up to theirs; few of these are written."""
    words = np.arange(300_000, dtype=np.uint64)
    assert len(np.unique(bitpacking.chunk_widths(words))) == 10
    encoded = bitpacking.encode_mini_block(block_of(words))
    heads = encoded.buffers[0].starts // 8
    widths = encoded.buffers[0].data.view(np.uint64)[heads]
    assert len(np.unique(widths)) <= 5
    assert (widths >= bitpacking.chunk_widths(words)).all()
    exact = bitpacking.inline_sizes(bitpacking.chunk_widths(words), 8).sum()
    assert encoded.buffers[0].sizes.sum() <= 1.01 * exact
    assert np.array_equal(decoded(encoded), words)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    lengths=st.lists(st.sampled_from([1, 2, 3, 254, 255, 256, 511, 5000]), min_size=1, max_size=40),
    max_bytes=st.sampled_from([18, 64, 16 * 1024]),
    seed=st.integers(0, 99),
)
def test_runs_of_any_length_round_trip(
    bits: int, lengths: list[int], max_bytes: int, seed: int
) -> None:
    """Runs above 255 values are split, and chunks cut runs."""
    words = np.repeat(below(min(bits, 3), bits, len(lengths), seed), lengths)
    encoded = rle.encode_mini_block(block_of(words), max_bytes)
    check_chunks(encoded, len(words))
    assert sum(int(buffer.sizes.max()) for buffer in encoded.buffers) <= max(max_bytes, 18)
    assert np.array_equal(decoded(encoded), words)
    indices = np.random.default_rng(seed).integers(0, len(words), 50)
    picked = pick_mini_block(encoded.encoding, encoded.buffers, encoded.num_values, indices)
    assert isinstance(picked, FixedWidthBlock)
    assert np.array_equal(picked.words(), words[indices])
    whole = rle.encode_block(block_of(words))
    block = decode_block(whole.encoding, whole.data, whole.num_values)
    assert isinstance(block, FixedWidthBlock)
    assert np.array_equal(block.words(), words)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("count", COUNTS)
def test_split_values_round_trip(bits: int, count: int) -> None:
    """The first stream holds the lowest byte of each value, as Lance expects."""
    words = below(bits, bits, count)
    encoded = byte_stream_split.encode_mini_block(block_of(words))
    check_chunks(encoded, count)
    assert np.array_equal(decoded(encoded), words)
    first = int(encoded.num_values[0])
    lowest = encoded.buffers[0].data[:first]
    assert np.array_equal(lowest, words[:first].astype(np.uint8))


@pytest.mark.parametrize("width", [65, 255, 2**63])
def test_widths_beyond_the_word_are_refused(width: int) -> None:
    """The stored width is not trusted, neither for whole chunks nor for single values."""
    encoded = bitpacking.encode_mini_block(block_of(below(20, 64, 1024)))
    data = encoded.buffers[0].data.copy()
    data[:8] = np.array([width], "<u8").view(np.uint8)
    buffer = encoded.buffers[0]._replace(data=data)
    with pytest.raises(CorruptDataError, match="64 bits"):
        decode_mini_block(encoded.encoding, [buffer], encoded.num_values)
    with pytest.raises(CorruptDataError, match="64 bits"):
        pick_mini_block(encoded.encoding, [buffer], encoded.num_values, np.array([5]))


def test_damaged_chunks_keep_their_value_count() -> None:
    """Readers rely on the count, so damage must change values or be refused."""
    decoded: list[str] = []

    @settings(max_examples=150, deadline=None)
    @given(
        kind=st.sampled_from(["packed", "runs", "split"]),
        bits=st.sampled_from([32, 64]),
        position=st.integers(0, 10**6),
        value=st.integers(0, 255),
        cut=st.sampled_from([0, 0, 1, 8, 1000]),
    )
    def read_damaged(kind: str, bits: int, position: int, value: int, cut: int) -> None:
        words = np.repeat(below(9, bits, 800), 4)
        encode = {
            "packed": bitpacking.encode_mini_block,
            "runs": lambda block: rle.encode_mini_block(block, 16 * 1024),
            "split": byte_stream_split.encode_mini_block,
        }[kind]
        encoded = encode(block_of(words))
        buffers = []
        for buffer in encoded.buffers:
            data = buffer.data.copy()
            data[position % len(data)] = value
            sizes = buffer.sizes.copy()
            sizes[-1] = max(0, sizes[-1] - cut)
            buffers.append(ChunkedBuffer(data, buffer.starts, sizes))
        try:
            block = decode_mini_block(encoded.encoding, buffers, encoded.num_values)
        except BadDataError:
            return
        decoded.append(kind)
        assert block.num_values == len(words)

    read_damaged()
    assert len(decoded) > 10
