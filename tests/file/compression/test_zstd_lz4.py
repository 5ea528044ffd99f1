from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer, consecutive
from lance_stream.file.blocks.data_blocks import VariableWidthBlock
from lance_stream.file.compression import zstd_lz4

RAW = [b"hello" * 100, b"", b"x", bytes(100_000), b"hello world" * 7]


def zstd(raw: bytes, prefix: int | None = None) -> bytes:
    size = len(raw) if prefix is None else prefix
    return size.to_bytes(8, "little") + pa.compress(raw, "zstd", asbytes=True)


def lz4(raw: bytes, prefix: int | None = None) -> bytes:
    size = len(raw) if prefix is None else prefix
    return size.to_bytes(4, "little") + pa.compress(raw, "lz4_raw", asbytes=True)


SCHEMES = [("zstd", zstd), ("lz4", lz4)]


def block_of(pieces: list[bytes]) -> VariableWidthBlock:
    offsets = np.cumsum([0, *map(len, pieces)]).astype(np.int32)
    return VariableWidthBlock(len(pieces), offsets, np.frombuffer(b"".join(pieces), np.uint8))


def values_of(block: VariableWidthBlock) -> list[bytes]:
    data, bounds = block.data.tobytes(), block.offsets.tolist()
    return [data[start:stop] for start, stop in pairwise(bounds)]


@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_pieces_decompress_independently(scheme: str, compress: object) -> None:
    """Each value is compressed on its own, so that a single one can be read."""
    assert callable(compress)
    pieces = [compress(raw) for raw in RAW]
    assert values_of(zstd_lz4.decode_per_value(block_of(pieces), scheme)) == RAW
    for piece, raw in zip(pieces, RAW, strict=True):
        assert zstd_lz4.decode(np.frombuffer(piece, np.uint8), scheme, 10**6).tobytes() == raw


@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_empty_pieces_are_empty_values(scheme: str, compress: object) -> None:
    """Lance stores no frame for an empty value."""
    assert callable(compress)
    pieces = [b"", compress(b"one"), b"", b"", compress(b"two"), b""]
    decoded = zstd_lz4.decode_per_value(block_of(pieces), scheme)
    assert values_of(decoded) == [b"", b"one", b"", b"", b"two", b""]
    assert zstd_lz4.decode_per_value(block_of([b"", b""]), scheme).data.tobytes() == b""


def test_bare_frames_with_sizes_decompress() -> None:
    """Some versions of Lance write zstd frames without the size in front."""
    pieces = [zstd(raw)[8:] if number % 2 == 0 else zstd(raw) for number, raw in enumerate(RAW)]
    assert values_of(zstd_lz4.decode_per_value(block_of(pieces), "zstd")) == RAW


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_791, 65_792, 200_000])
def test_frame_sizes_of_all_widths_decode(size: int) -> None:
    """The frame header states the size in one to eight bytes, one of them with an offset of 256."""
    raw = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert values_of(zstd_lz4.decode_per_value(block_of([zstd(raw)[8:]]), "zstd")) == [raw]
    with pytest.raises(CorruptDataError):
        zstd_lz4.decode_per_value(block_of([zstd(raw, prefix=size + 1)]), "zstd")


@pytest.mark.parametrize("prefix", [0, 499, 501, 2**31, 2**32 - 1])
@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_a_wrong_size_is_bad_data(scheme: str, compress: object, prefix: int) -> None:
    """The claimed size decides how much is allocated, and values after a wrong one would shift."""
    assert callable(compress)
    if prefix == 0 and scheme == "lz4":
        prefix = 1  # of none, nothing is asked of the block
    piece = compress(RAW[0], prefix=prefix)
    for pieces in ([piece], [compress(RAW[2]), piece, compress(RAW[3])]):
        with pytest.raises(CorruptDataError):
            zstd_lz4.decode_per_value(block_of(pieces), scheme)


@pytest.mark.parametrize("prefix", [2**33, 2**62, 2**63, 2**64 - 1])
def test_a_huge_size_allocates_nothing(prefix: int) -> None:
    """The size that a piece declares is checked before memory is allocated for it."""
    with pytest.raises(CorruptDataError, match="claim to decompress to"):
        zstd_lz4.decode_per_value(block_of([zstd(RAW[0], prefix=prefix)]), "zstd")


@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_a_decompression_bomb_is_refused(scheme: str, compress: object) -> None:
    """Where the reader knows how many bytes it needs, no piece may decompress to more."""
    assert callable(compress)
    bomb = np.frombuffer(compress(bytes(3_000_000)), np.uint8)
    chunks = consecutive(bomb, np.array([len(bomb)]))
    assert len(zstd_lz4.decode_chunks(chunks, scheme, 3_000_000).data) == 3_000_000
    with pytest.raises(CorruptDataError, match="claim to decompress to 3000000"):
        zstd_lz4.decode_chunks(chunks, scheme, 2_999_999)


@pytest.mark.parametrize(("scheme", "compress"), SCHEMES)
def test_a_truncated_piece_is_bad_data(scheme: str, compress: object) -> None:
    """No prefix of a compressed value may read as a shorter value."""
    assert callable(compress)
    piece = compress(RAW[4])
    for size in range(1, len(piece)):
        with pytest.raises(CorruptDataError):
            zstd_lz4.decode(np.frombuffer(piece[:size], np.uint8), scheme, 10**6)


def test_unknown_schemes_are_named() -> None:
    """The user learns which compression another writer chose."""
    with pytest.raises(UnsupportedFeatureError, match="brotli"):
        zstd_lz4.decode(np.zeros(9, np.uint8), "brotli", 100)


@pytest.mark.parametrize("level", [None, -3, 0, 9])
@pytest.mark.parametrize("scheme", ["zstd", "lz4"])
@pytest.mark.parametrize("offsets", [np.int32, np.int64])
def test_decoding_undoes_encoding(scheme: str, level: int | None, offsets: type) -> None:
    """Values and whole buffers are framed differently, and both must come back and be smaller."""
    raw = block_of(RAW)
    raw = VariableWidthBlock(raw.num_values, raw.offsets.astype(offsets), raw.data)
    encoded = zstd_lz4.encode_per_value(raw, scheme, level)
    assert encoded.offsets.dtype == offsets
    assert int(encoded.offsets[-1]) < len(raw.data) / 50
    assert values_of(zstd_lz4.decode_per_value(encoded, scheme)) == RAW
    whole = zstd_lz4.encode(raw.data, scheme, level)
    assert zstd_lz4.decode(whole, scheme, len(raw.data)).tobytes() == raw.data.tobytes()


def test_pieces_start_with_their_size() -> None:
    """Lance reads eight bytes for zstd, and four for LZ4."""
    for scheme, width in (("zstd", 8), ("lz4", 4)):
        encoded = values_of(zstd_lz4.encode_per_value(block_of([b"abc" * 100]), scheme, None))
        assert int.from_bytes(encoded[0][:width], "little") == 300


def test_lz4_refuses_pieces_above_its_limit() -> None:
    """LZ4 fails above two gigabytes, and the user should learn about zstd."""
    sizes = np.array([zstd_lz4.MAX_LZ4_BYTES + 1])
    with pytest.raises(InvalidInputError, match="zstd"):
        zstd_lz4.encode_chunks(ChunkedBuffer(np.zeros(0, np.uint8), sizes * 0, sizes), "lz4", None)


def test_small_pieces_declaring_gigabytes_are_corrupt() -> None:
    """Each piece declares a plausible size; only their sum is over the limit."""
    piece = zstd(bytes(1 << 20), prefix=1 << 20)
    assert len(piece) < 200
    whole = block_of([piece] * 513)
    with pytest.raises(CorruptDataError, match="over 536870912"):
        zstd_lz4.decode_per_value(whole, "zstd")
