"""The sizes that a small Arrow file claims are not trusted."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import CorruptDataError
from lance_stream.table.messages.arrow_messages import parse_batch_header, read_only_batch

SCHEMA = pa.schema([pa.field("n", pa.uint32(), nullable=False)])


def arrow_file(values: object, compression: str | None = None, batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch([pa.array(values, pa.uint32())], schema=SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_sound_file_is_read(compression: str | None, count: int) -> None:
    """The checks must accept every compression and the empty batch."""
    batch = read_only_batch(arrow_file(range(count), compression), SCHEMA, count, 5)
    assert batch.column(0).to_pylist() == list(range(count))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_many_zeros_are_not_decompressed(compression: str) -> None:
    """The file has 40 kB, and claims 400 MB."""
    data = arrow_file(np.zeros(100_000_000, np.uint32), compression)
    assert len(data) < 2_000_000
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptDataError, match="100000000 rows, but may have at most 5"):
        read_only_batch(data, SCHEMA, 5, 5)
    with pytest.raises(CorruptDataError, match="decompress to more bytes"):
        read_only_batch(data, SCHEMA, 1 << 30)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_overstated_buffers_are_refused() -> None:
    """Arrow allocates the claimed size before it decompresses."""
    data = bytearray(arrow_file(range(1000), "zstd"))
    position = data.index(struct.pack("<q", 4000))
    while bytes(data[position + 8 : position + 12]) != b"\x28\xb5\x2f\xfd":  # where a frame begins
        position = data.index(struct.pack("<q", 4000), position + 1)
    for claim in (1 << 40, 5200, -2, -(1 << 62), 3999, 0):
        data[position : position + 8] = struct.pack("<q", claim)
        with pytest.raises(CorruptDataError):
            read_only_batch(bytes(data), SCHEMA, 1000, 5)


@pytest.mark.parametrize("batches", [0, 2, 3, 50])
def test_exactly_one_batch_is_read(batches: int) -> None:
    """Rows of a second batch would be ignored silently."""
    with pytest.raises(CorruptDataError, match="batches of"):
        read_only_batch(arrow_file([1], batches=batches), SCHEMA, 5)


def test_damaged_messages_are_refused_or_read() -> None:
    """No damage may crash the process or raise an error of Arrow."""
    dice = np.random.default_rng(5)
    refused = read = 0
    for compression in (None, "zstd", "lz4"):
        data = arrow_file(range(300), compression)
        for _ in range(400):
            damaged = bytearray(data)
            for index in dice.integers(0, len(data), 3):
                damaged[index] = dice.integers(256)
            try:
                read += read_only_batch(bytes(damaged), SCHEMA, 300, 5).num_rows <= 300
            except CorruptDataError:
                refused += 1
    assert refused > 200
    assert read > 100


def test_random_headers_are_refused_or_parsed() -> None:
    """Offsets in a flatbuffer lead anywhere, and must not lead outside of the message."""
    dice = np.random.default_rng(6)
    refused = 0
    for size in range(1, 400):
        try:
            parse_batch_header(dice.integers(0, 256, size, np.uint8).tobytes())
        except CorruptDataError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("kind", [pa.uint32(), pa.string_view()])
def test_compression_is_read_beside_later_fields(
    kind: pa.DataType, compression: str | None
) -> None:
    """A field may be absent before one that is present, as the counts of views are."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([pa.array([None, None, None], kind)], names=["n"])
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    header = parse_batch_header(messages.read_next_message().metadata.to_pybytes())
    assert (header.num_rows, header.is_compressed) == (3, compression is not None)


def plain_buffers(num_rows: int) -> bytes:
    """Return a compressed file in whose buffer the values are not compressed."""
    values = np.random.default_rng(5).integers(0, 1 << 32, num_rows, np.uint32)
    data = bytearray(arrow_file(values, "zstd"))
    position = data.index(b"\x28\xb5\x2f\xfd") - 8  # where a frame begins, after its size
    data[position : position + 8 + 4 * num_rows] = struct.pack("<q", -1) + values.tobytes()
    return bytes(data)


def test_buffers_may_be_left_uncompressed() -> None:
    """Other writers do so where compression does not help; their bytes count as they are."""
    data = plain_buffers(1000)
    batch = read_only_batch(data, SCHEMA, 1000, 5)
    expected = np.random.default_rng(5).integers(0, 1 << 32, 1000, np.uint32)
    assert batch.column(0).to_numpy().tolist() == expected.tolist()
    with pytest.raises(CorruptDataError, match="decompress to more bytes"):
        read_only_batch(data, SCHEMA, 1000, 1)


@pytest.mark.parametrize(("num_rows", "is_read"), [(127, True), (128, True), (129, False)])
def test_claims_are_compared_exactly(num_rows: int, is_read: bool) -> None:
    """Two buffers with 64 bytes of padding each, and 3 bytes a row instead of 4."""
    data = arrow_file(range(num_rows), "zstd")
    if is_read:
        assert read_only_batch(data, SCHEMA, num_rows, 3).num_rows == num_rows
        return
    with pytest.raises(CorruptDataError, match="decompress to more bytes"):
        read_only_batch(data, SCHEMA, num_rows, 3)


def test_any_schema_can_be_accepted() -> None:
    """Some callers learn the columns from the file."""
    assert read_only_batch(arrow_file([1, 2]), None, 5, 5).schema == SCHEMA


@pytest.mark.parametrize("num_zeros", [0, 8, 56, 240])
def test_the_magic_word_may_be_padded(num_zeros: int) -> None:
    """The reference pads it to 64 bytes, where Arrow pads to 8."""
    data = arrow_file([1, 2])
    padded = data[:8] + bytes(num_zeros) + data[8:]
    assert read_only_batch(padded, SCHEMA, 5, 5).column(0).to_pylist() == [1, 2]
    with pytest.raises(CorruptDataError):
        read_only_batch(data[:8] + bytes(256) + data[8:], SCHEMA, 5, 5)


def flat_table(slots: list[int], body: bytes) -> bytes:
    """Return a flatbuffer's vtable and the table, whose fields are at positions in its body."""
    offsets = [0 if slot < 0 else 4 + slot for slot in slots]
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), 4 + len(body), *offsets)
    return vtable + struct.pack("<i", len(vtable)) + body


def batch_message(
    *, header: bool = True, buffers: bool = True, num_buffers: int = 2, distance: int | None = None
) -> bytes:
    """Return the message of a batch of 7 rows with two buffers."""
    pairs = struct.pack("<qqqq", 0, 8, 8, 16)
    body = struct.pack("<qI", 7, 4) + struct.pack("<I", num_buffers) + pairs
    batch = flat_table([0, -1, 8 if buffers else -1, -1], body)
    root = flat_table([-1, -1, 0 if header else -1], struct.pack("<I", 4 + 12))
    position = 4 + 10
    data = struct.pack("<I", position) + root + batch
    if distance is not None:
        data = data[:position] + struct.pack("<i", distance) + data[position + 4 :]
    return data


def test_headers_are_parsed() -> None:
    """The positions in a flatbuffer are relative to where they stand."""
    header = parse_batch_header(batch_message())
    assert header == (7, [(0, 8), (8, 16)], False)
    assert parse_batch_header(batch_message(num_buffers=1)).buffers == [(0, 8)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"header": False}, "has no header"),
        ({"buffers": False}, "claims 0 buffers"),
        ({"num_buffers": 3}, "claims 3 buffers"),
        ({"distance": 15}, "points before its beginning"),
        ({"distance": -(1 << 20)}, "truncated"),
    ],
)
def test_incomplete_headers_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Python reads from the end of bytes at negative positions, and less than asked for."""
    with pytest.raises(CorruptDataError, match=message):
        parse_batch_header(batch_message(**arguments))
