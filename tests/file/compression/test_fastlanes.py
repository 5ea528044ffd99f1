import numpy as np
import pytest

from lance_stream.errors import CorruptDataError
from lance_stream.file.blocks.chunked_buffers import consecutive
from lance_stream.file.compression import fastlanes
from lance_stream.file.v2_1.codecs.bitpacking import InlineBitpacking, OutOfLineBitpacking

WIDTHS = [(bits, width) for bits in (8, 16, 32, 64) for width in range(bits + 1)]


def packed_slowly(values: np.ndarray, bits: int, width: int) -> list[int]:
    """Pack 1,024 values bit by bit, as the definition says."""
    lanes = 1024 // bits
    words = [0] * (width * lanes)
    for row in range(bits):
        for lane in range(lanes):
            value = int(values[fastlanes.ORDER[row // 8] * 16 + row % 8 * 128 + lane])
            for bit in range(width):
                word, shift = divmod(row * width + bit, bits)
                words[word * lanes + lane] |= (value >> bit & 1) << shift
    return words


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_the_order_visits_every_value_once(bits: int) -> None:
    """The order of FastLanes is a permutation, and a repeated place would lose a value."""
    lanes = 1024 // bits
    first = [fastlanes.ORDER[row // 8] * 16 + row % 8 * 128 for row in range(bits)]
    assert sorted(start + lane for start in first for lane in range(lanes)) == list(range(1024))


@pytest.mark.parametrize(("bits", "width"), [(8, 3), (16, 11), (32, 7), (64, 37)])
def test_packing_matches_the_definition(bits: int, width: int) -> None:
    """A slow transcription of the paper's definition is the judge."""
    values = np.random.default_rng(1).integers(0, 2**width, 1024).astype(f"<u{bits // 8}")
    assert fastlanes.pack(values[None], width)[0].tolist() == packed_slowly(values, bits, width)


@pytest.mark.parametrize(("bits", "width"), WIDTHS)
def test_unpacking_undoes_packing_at_every_width(bits: int, width: int) -> None:
    """Values cross word boundaries differently at each width."""
    rng = np.random.default_rng(width)
    values = rng.integers(0, 2**64, (3, 1024), dtype=np.uint64)
    values = (values >> np.uint64(64 - width) if width else values * 0).astype(f"<u{bits // 8}")
    packed = fastlanes.pack(values, width)
    assert packed.shape == (3, 1024 * width // bits)
    assert (fastlanes.unpack(packed, width) == values).all()


@pytest.mark.parametrize("num_rest", [0, 1, 63, 64, 65, 500, 1023])
@pytest.mark.parametrize("num_full", [0, 2])
def test_packed_and_raw_tails_decode(num_full: int, num_rest: int) -> None:
    """The rest after the last full block of 1,024 values may be packed or stored as it is."""
    count = num_full * 1024 + num_rest
    values = np.random.default_rng(2).integers(0, 2, count).astype("<u2")
    padded = np.zeros((num_full + 1, 1024), "<u2")
    padded.reshape(-1)[:count] = values
    blocks = fastlanes.pack(padded, 1).view(np.uint8)
    raw_tail = np.concatenate(
        [blocks[:num_full].reshape(-1), values[num_full * 1024 :].view(np.uint8)]
    )
    packed_tail = blocks[: num_full + (num_rest > 0)].reshape(-1)
    for stored in [raw_tail] if num_rest == 64 else [raw_tail, packed_tail]:
        block = OutOfLineBitpacking(16, 1).decode_block(stored, count)
        assert (block.words() == values).all()
    for num_surplus in (1, 6):
        wrong = np.append(raw_tail, np.zeros(num_surplus, np.uint8))
        with pytest.raises(CorruptDataError):
            OutOfLineBitpacking(16, 1).decode_block(wrong, count)


def test_a_wrong_bit_width_is_corrupt() -> None:
    """The width is stored in front of the chunk and is not trusted."""
    chunk = np.zeros(4 + 128 * 3, np.uint8)
    chunk[0] = 3
    sizes, counts = np.array([len(chunk)]), np.array([1024])
    InlineBitpacking(32).decode_mini_block([consecutive(chunk, sizes)], counts)
    for wrong in (2, 4, 33, 255):
        chunk[0] = wrong
        with pytest.raises(CorruptDataError, match=f"packed in {wrong} of 32 bits"):
            InlineBitpacking(32).decode_mini_block([consecutive(chunk, sizes)], counts)


def test_partial_chunks_may_be_anywhere() -> None:
    """Pages are joined for decoding, so a short last chunk can have successors."""
    values = np.arange(3 * 1024, dtype="<u4").reshape(3, 1024)
    packed = fastlanes.pack(values, 12).view(np.uint8)
    head = np.frombuffer((12).to_bytes(4, "little"), np.uint8)
    data = np.concatenate([part for row in packed for part in (head, row)])
    chunks = consecutive(data, np.full(3, 4 + 128 * 12))
    block = InlineBitpacking(32).decode_mini_block([chunks], np.array([10, 1024, 3]))
    assert block.words().tolist() == [*range(10), *range(1024, 2048), *range(2048, 2051)]
