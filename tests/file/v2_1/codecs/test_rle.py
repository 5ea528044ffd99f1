import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, consecutive
from lance_stream.file.blocks.data_blocks import FixedWidthBlock
from lance_stream.file.v2_1.codecs import decode_block, decode_mini_block


def flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def rle(values: pb.CompressiveEncoding, lengths: pb.CompressiveEncoding) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(rle=pb.Rle(values=values, run_lengths=lengths))


def chunked(parts: list[bytes]) -> ChunkedBuffer:
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    return consecutive(np.frombuffer(b"".join(parts), np.uint8), sizes)


def decode_chunks(
    runs: list[list[tuple[int, int]]], counts: list[int], lengths_type: str = "<u1"
) -> list[int]:
    values = chunked([np.array([run[0] for run in value], "<u4").tobytes() for value in runs])
    lengths = chunked(
        [np.array([run[1] for run in value], lengths_type).tobytes() for value in runs]
    )
    encoding = rle(flat(32), flat(np.dtype(lengths_type).itemsize * 8))
    block = decode_mini_block(encoding, [values, lengths], np.array(counts, dtype=np.int64))
    assert isinstance(block, FixedWidthBlock)
    return list(block.words().tolist())


def expanded(runs: list[tuple[int, int]]) -> list[int]:
    return [value for value, length in runs for _ in range(length)]


chunks_of_runs = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=6), max_size=5
)


@settings(max_examples=40, deadline=None)
@given(runs=chunks_of_runs, data=st.data())
def test_surplus_runs_of_chunks_are_dropped(
    runs: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Lance may write lengths that add up to more than the chunk's values."""
    sums = [len(expanded(run)) for run in runs]
    counts = [data.draw(st.integers(0, total)) for total in sums]
    values = [run[:count] for run, count in zip(map(expanded, runs), counts, strict=True)]
    assert decode_chunks(runs, counts) == [value for item in values for value in item]


@pytest.mark.parametrize("lengths_type", ["<u1", "<u2", "<u4"])
def test_run_lengths_of_all_widths_decode(lengths_type: str) -> None:
    """Lance chooses the width of lengths by the page."""
    assert decode_chunks([[(7, 3), (8, 1)]], [4], lengths_type) == [7, 7, 7, 8]


def test_huge_runs_end_with_their_chunk() -> None:
    """A run of 2^32 must not be expanded before it is cut."""
    assert decode_chunks([[(7, 2**32 - 1)]] * 3, [2, 2, 2], "<u4") == [7] * 6


@pytest.mark.floors
@pytest.mark.parametrize(
    ("runs", "count"), [([(7, 3), (8, 1)], 5), ([(7, 0), (8, 4)], 4), ([], 1), ([(7, 255)], 256)]
)
def test_runs_must_fill_their_chunk(runs: list[tuple[int, int]], count: int) -> None:
    """Values of the next chunk must not complete a short one."""
    with pytest.raises(CorruptDataError):
        decode_chunks([[(1, 2)], runs], [2, count])


@pytest.mark.parametrize("count", [3, 5, 2**40])
def test_a_block_must_add_up_exactly(count: int) -> None:
    """Only chunks may have a surplus."""
    stored = (8).to_bytes(8, "little") + bytes([1, 0, 0, 0, 2, 0, 0, 0]) + bytes([3, 1])
    block = decode_block(rle(flat(32), flat(8)), stored, 4)
    assert isinstance(block, FixedWidthBlock)
    assert block.words().tolist() == [1, 1, 1, 2]
    with pytest.raises(CorruptDataError):
        decode_block(rle(flat(32), flat(8)), stored, count)


@pytest.mark.parametrize("size", [0, 7, 9, 10, 11, 2**63, 2**64 - 1])
def test_blocks_of_wrong_size_are_corrupt(size: int) -> None:
    """The size of the values, which stands before them, is wrong."""
    stored = size.to_bytes(8, "little") + bytes([1, 0, 0, 0, 2, 0, 0, 0]) + bytes([3, 1])
    with pytest.raises(CorruptDataError):
        decode_block(rle(flat(32), flat(8)), stored, 4)


@pytest.mark.floors
def test_lengths_and_values_may_be_encoded() -> None:
    """Lance compresses the two buffers on their own."""
    packed = pb.CompressiveEncoding(
        out_of_line_bitpacking=pb.OutOfLineBitpacking(uncompressed_bits_per_value=8, values=flat(4))
    )
    zstd = pb.CompressiveEncoding(
        general=pb.General(
            compression=pb.BufferCompression(scheme=pb.COMPRESSION_ALGORITHM_ZSTD), values=flat(32)
        )
    )
    raw = np.array([5, 6, 7], "<u4").tobytes()
    frame = len(raw).to_bytes(8, "little") + pa.compress(raw, "zstd", asbytes=True)
    values, lengths = chunked([frame, frame]), chunked([bytes([1, 2, 3]), bytes([3, 2, 1])])
    for run_lengths in (packed, flat(8)):
        block = decode_mini_block(rle(zstd, run_lengths), [values, lengths], np.array([6, 6]))
        assert isinstance(block, FixedWidthBlock)
        assert block.words().tolist() == [5, 6, 6, 7, 7, 7, 5, 5, 5, 6, 6, 7]
