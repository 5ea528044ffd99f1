"""Levels in chunks: they round-trip, whatever the number of levels in a chunk."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, consecutive, starts_of
from lance_stream.file.blocks.data_blocks import FixedWidthBlock
from lance_stream.file.v2_1.codecs import decode_block
from lance_stream.file.v2_1.layouts.level_chunks import (
    actual_counts,
    decode_level_chunks,
    encode_level_block,
    encode_level_chunks,
)

FLAT = pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=16))


def packed(width: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(
        out_of_line_bitpacking=pb.OutOfLineBitpacking(
            uncompressed_bits_per_value=16,
            values=pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=width)),
        )
    )


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(
        st.sampled_from([0, 1, 63, 64, 65, 128, 129, 1023, 1024, 1025, 1088, 2048, 4096, 5000]),
        min_size=1,
        max_size=6,
    ),
    max_level=st.sampled_from([1, 2, 3, 4, 7, 8, 300, 65535]),
    run=st.sampled_from([1, 7, 254, 255, 256, 3000]),
    as_runs=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_levels_round_trip_in_any_chunks(
    counts: list[int], max_level: int, run: int, as_runs: bool, seed: int
) -> None:
    """Chunks of any number of levels occur, as lists decide how many belong together."""
    num_levels = np.array(counts, np.int64)
    drawn = np.random.default_rng(seed).integers(0, max_level, sum(counts), np.uint16, True)
    levels = np.repeat(drawn, run)[: sum(counts)]
    encoding, buffer = encode_level_chunks(levels, starts_of(num_levels), as_runs=as_runs)
    assert as_runs or buffer.sizes.max() <= 2 * num_levels.max()
    assert as_runs or not encoding.HasField("rle")
    assert np.array_equal(decode_level_chunks(encoding, buffer, num_levels), levels)


def test_level_blocks_use_their_minimal_width() -> None:
    """Most levels need one bit, and 16 would be stored for each otherwise."""
    levels = np.tile(np.array([0, 1], np.uint16), 2048)
    encoding, buffer = encode_level_chunks(levels, np.array([0]), as_runs=True)
    assert encoding == packed(1)
    assert buffer.sizes.tolist() == [4096 // 8]


@pytest.mark.parametrize("run", [1, 40, 300])
@pytest.mark.parametrize("max_level", [0, 1, 5])
@pytest.mark.parametrize("count", [1, 1000, 5000])
def test_levels_of_a_page_round_trip(run: int, max_level: int, count: int) -> None:
    """Constant and full-zip pages store their levels as one block."""
    drawn = np.random.default_rng(1).integers(0, max_level, count, np.uint16, True)
    levels = np.repeat(drawn, run)[:count]
    block = encode_level_block(levels)
    assert len(block.data) <= 2 * count
    decoded = decode_block(block.encoding, block.data, block.num_values)
    assert isinstance(decoded, FixedWidthBlock)
    assert np.array_equal(decoded.words(), levels)


def test_long_runs_of_levels_become_runs() -> None:
    """Nulls often come in stretches, which cost almost nothing as runs."""
    levels = np.repeat(np.array([0, 1, 0], np.uint16), 2000)
    encoding, buffer = encode_level_chunks(levels, np.array([0, 4096]), as_runs=True)
    assert encoding.HasField("rle")
    assert buffer.sizes.sum() < 200
    assert encode_level_block(levels).encoding.HasField("rle")


def test_few_levels_stay_flat() -> None:
    """Packed blocks have 1,024 values and would be larger than three levels."""
    encoding, buffer = encode_level_chunks(
        np.array([1, 0, 2], np.uint16), np.array([0, 1]), as_runs=True
    )
    assert encoding == FLAT
    assert buffer.data.tobytes() == struct.pack("<HHH", 1, 0, 2)
    assert buffer.sizes.tolist() == [2, 4]


def test_levels_of_width_zero_are_zeros() -> None:
    """The tail may be packed or stored as it is."""
    num_levels = np.array([1024, 1030, 3, 5])
    data = np.zeros(10, np.uint8)  # only the last chunk has its tail as it is
    buffer = consecutive(data, np.array([0, 0, 0, 10]))
    assert not decode_level_chunks(packed(0), buffer, num_levels).any()


def test_run_lengths_decode_across_chunks() -> None:
    """Each chunk has its own runs, which must add up on their own."""
    runs = pb.CompressiveEncoding(
        rle=pb.Rle(
            values=pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=16)),
            run_lengths=pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=8)),
        )
    )
    first = struct.pack("<QHHBB", 4, 1, 0, 3, 2)
    second = struct.pack("<QHB", 2, 2, 4)
    buffer = consecutive(
        np.frombuffer(first + second, np.uint8), np.array([len(first), len(second)])
    )
    levels = decode_level_chunks(runs, buffer, np.array([5, 4]))
    assert levels.tolist() == [1, 1, 1, 0, 0, 2, 2, 2, 2]
    broken = np.frombuffer(struct.pack("<QHB", 5, 2, 4), np.uint8)
    with pytest.raises(CorruptDataError):
        decode_level_chunks(runs, consecutive(broken, np.array([11])), np.array([4]))


@pytest.mark.parametrize(
    ("encoding", "size", "count"),
    [
        (FLAT, 5, 3),
        (packed(1), 100, 1024),
        (packed(1), 2 * 64 + 2, 1026),
        (packed(17), 128, 1024),
        (pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=8)), 4, 4),
        (pb.CompressiveEncoding(), 8, 4),
    ],
    ids=str,
)
def test_too_few_level_bytes_are_corrupt(
    encoding: pb.CompressiveEncoding, size: int, count: int
) -> None:
    """Missing levels must not read as zeros, which mean valid values."""
    buffer = consecutive(np.zeros(size, np.uint8), np.array([size]))
    with pytest.raises(BadDataError):
        decode_level_chunks(encoding, buffer, np.array([count]))


def test_chunks_outside_their_bytes_are_corrupt() -> None:
    """Numpy would silently return a shorter slice."""
    buffer = ChunkedBuffer(np.zeros(8, np.uint8), np.array([4]), np.array([6]))
    with pytest.raises(CorruptDataError):
        decode_level_chunks(FLAT, buffer, np.array([3]))


def test_truncated_level_counts_are_recovered() -> None:
    """A count of more than 65,535 levels was cut to 16 bits."""
    levels = np.repeat(np.array([1, 0], np.uint16), 40_000)
    encoding, buffer = encode_level_chunks(levels, np.array([0]), as_runs=True)
    cut = np.array([80_000 % 65_536])
    counts = actual_counts(encoding, buffer, cut)
    assert counts.tolist() == [80_000]
    assert np.array_equal(decode_level_chunks(encoding, buffer, counts), levels)


@pytest.mark.parametrize("count", [79_999, 14_465, 80_001, 80_000 + 65_536])
def test_runs_of_another_total_are_refused(count: int) -> None:
    """The header and the runs both state the number of levels."""
    levels = np.repeat(np.array([1, 0], np.uint16), 40_000)
    encoding, buffer = encode_level_chunks(levels, np.array([0]), as_runs=True)
    with pytest.raises(CorruptDataError, match="80000 levels"):
        actual_counts(encoding, buffer, np.array([count]))


def test_counts_of_flat_levels_are_trusted() -> None:
    """Only runs store how many levels there are."""
    levels = np.tile(np.array([0, 1], np.uint16), 2048)
    encoding, buffer = encode_level_chunks(levels, np.array([0]), as_runs=True)
    assert actual_counts(encoding, buffer, np.array([7])).tolist() == [7]
