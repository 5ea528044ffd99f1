"""Pages made by hand: encodings with their buffers, and decoding them without a file."""

import struct

import pyarrow as pa

from lance_stream._proto import encodings_v2_0_pb2 as pb
from lance_stream.byte_ranges import ByteRange, answer, read_from
from lance_stream.file.rows import Rows
from lance_stream.file.v2_0.array_encodings import decode_array
from lance_stream.file.v2_0.pages import PageBuffers


def decode(
    encoding: pb.ArrayEncoding, arrow: pa.DataType, buffers: list[bytes], rows: Rows
) -> pa.Array:
    """Return the values at `rows` of a page, validated."""
    ranges, position = [], 3
    for buffer in buffers:
        ranges.append(ByteRange(position, position + len(buffer)))
        position += len(buffer)
    data = b"..." + b"".join(buffers)
    array = answer(decode_array(encoding, arrow, PageBuffers(tuple(ranges)), rows), read_from(data))
    array.validate(full=True)
    return array


def flat(bits: int, buffer: int = 0, scheme: str | None = None) -> pb.ArrayEncoding:
    """Return the encoding of plain values, or of compressed ones."""
    values = pb.Flat(bits_per_value=bits, buffer=pb.Buffer(buffer_index=buffer))
    if scheme is not None:
        values.compression.scheme = scheme
    return pb.ArrayEncoding(flat=values)


def no_nulls(values: pb.ArrayEncoding) -> pb.ArrayEncoding:
    """Return the encoding of values of which none is null."""
    return pb.ArrayEncoding(nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values)))


def some_nulls(validity: pb.ArrayEncoding, values: pb.ArrayEncoding) -> pb.ArrayEncoding:
    """Return the encoding of values with a bitmap of their validity."""
    nulls = pb.Nullable.SomeNull(validity=validity, values=values)
    return pb.ArrayEncoding(nullable=pb.Nullable(some_nulls=nulls))


def all_nulls() -> pb.ArrayEncoding:
    """Return the encoding of nulls."""
    return pb.ArrayEncoding(nullable=pb.Nullable(all_nulls=pb.Nullable.AllNull()))


def binary(
    null_adjustment: int,
    offsets: pb.ArrayEncoding | int = 0,
    data: pb.ArrayEncoding | int = 1,
) -> pb.ArrayEncoding:
    """Return the encoding of byte strings; offsets and bytes are plain ones if given by buffer."""
    return pb.ArrayEncoding(
        binary=pb.Binary(
            indices=no_nulls(flat(64, offsets)) if isinstance(offsets, int) else offsets,
            bytes=flat(8, data) if isinstance(data, int) else data,
            null_adjustment=null_adjustment,
        )
    )


def u64(*values: int) -> bytes:
    """Return little-endian words."""
    return struct.pack(f"<{len(values)}Q", *values)
