"""Which layout and codec a page is written in."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.file.encoding_options import PREFIX
from lance_stream.file.versions import FileVersion

BOTH = [FileVersion.V2_1, FileVersion.V2_2]


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("layout", ["miniblock", "fullzip"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, 7, None, 6], pa.int64()),
        pa.array(["a", "long" * 100, None]),
        pa.array([[1, 2], [], None, [3]], pa.list_(pa.int16())),
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    ],
    ids=["numbers", "strings", "lists", "vectors"],
)
def test_the_requested_layout_is_written(
    columns: Any, values: pa.Array, layout: str, version: FileVersion
) -> None:
    """Metadata of a column overrules the choice by size."""
    metadata = {PREFIX + "structural-encoding": layout}
    column = columns.write(values, version=version, metadata=metadata)
    names = {"miniblock": "mini_block_layout", "fullzip": "full_zip_layout"}
    assert column.layouts() == [names[layout]]
    assert column.read(0, len(values)).equals(values)


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    "values",
    [
        pa.array([bytes(range(200)) * 200, b"x" * 9], pa.binary()),
        pa.array([[1.0] * 5000, [2.0] * 5000], pa.list_(pa.float64(), 5000)),
    ],
    ids=["bytes", "vectors"],
)
def test_values_larger_than_chunks_round_trip(
    columns: Any, values: pa.Array, version: FileVersion
) -> None:
    """No chunk can hold such values, even if the column requests mini-blocks."""
    metadata = {PREFIX + "structural-encoding": "miniblock"}
    column = columns.write(values, version=version, metadata=metadata)
    assert column.read(0, 2).equals(values)


def numbers(count: int = 6000) -> pa.Array:
    return pa.array(np.round(np.random.default_rng(1).random(count), 2))


def value_codec(column: Any) -> pb.CompressiveEncoding:
    return column.layout().mini_block_layout.value_compression


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("scheme", ["zstd", "lz4"])
@pytest.mark.parametrize("split", ["on", "off", "auto"])
def test_chunks_are_compressed_on_request(
    columns: Any, scheme: str, split: str, version: FileVersion
) -> None:
    """The requested scheme wraps the codec, and splitting bytes is a request of its own."""
    metadata = {PREFIX + "compression": scheme, PREFIX + "bss": split}
    values = pa.array(np.random.default_rng(1).integers(0, 2**40, 6000) * 2.0**-20)
    column = columns.write(values, version=version, metadata=metadata)
    general = value_codec(column).general
    inner = {"on": "byte_stream_split", "off": "flat", "auto": "flat"}[split]
    assert general.values.WhichOneof("compression") == inner
    numbers_of = {"zstd": pb.COMPRESSION_ALGORITHM_ZSTD, "lz4": pb.COMPRESSION_ALGORITHM_LZ4}
    assert general.compression.scheme == numbers_of[scheme]
    assert column.read(0, 6000).equals(values)
    assert column.take([5, 600, 5999]).equals(values.take([5, 600, 5999]))


@pytest.mark.floors
def test_floats_of_few_bytes_are_split(columns: Any) -> None:
    """Byte stream split is chosen without being requested."""
    values = pa.array(np.arange(6000, dtype=np.float32) / 16)
    column = columns.write(values, metadata={PREFIX + "compression": "lz4"})
    assert value_codec(column).general.values.HasField("byte_stream_split")
    assert column.read(0, 6000).equals(values)


def test_incompressible_values_stay_uncompressed(columns: Any) -> None:
    """Random bytes would grow and cost time on each read."""
    values = pa.array(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 6000))
    column = columns.write(values, metadata={PREFIX + "compression": "lz4", PREFIX + "bss": "off"})
    assert value_codec(column).HasField("flat")
    assert column.read(0, 6000).equals(values)


def test_no_compression_unless_requested(columns: Any) -> None:
    """As in Lance, `none` also forbids chunks and bit packing."""
    values = pa.array(np.arange(6000))
    assert columns.write(values).layouts() == ["mini_block_layout"]
    column = columns.write(values, metadata={PREFIX + "compression": "none"})
    assert column.layouts() == ["full_zip_layout"]


@pytest.mark.parametrize(
    ("metadata", "codec"),
    [({}, "rle"), ({"rle-threshold": "0.5"}, "rle"), ({"rle-threshold": "0.05"}, "flat")],
    ids=str,
)
def test_runs_are_used_below_their_threshold(
    columns: Any, metadata: dict[str, str], codec: str
) -> None:
    """The threshold is Lance's, and users tune it by metadata."""
    ten = np.random.default_rng(1).integers(-(2**31), 2**31 - 1, 600, np.int32)
    values = pa.array([None, *np.repeat(ten, 10)], pa.int32())
    keys = {PREFIX + key: value for key, value in metadata.items()}
    column = columns.write(values, metadata=keys)
    assert value_codec(column).WhichOneof("compression") == codec
    assert column.read(0, 6001).equals(values)


@pytest.mark.parametrize(
    ("metadata", "has_dictionary"),
    [
        ({}, True),
        ({"dict-divisor": "10"}, True),
        ({"dict-divisor": "1000"}, False),
        ({"dict-size-ratio": "0.01"}, False),
    ],
    ids=str,
)
def test_dictionaries_are_written_within_limits(
    columns: Any, metadata: dict[str, str], has_dictionary: bool
) -> None:
    """A dictionary of nearly all values costs more than it saves."""
    values = numbers()
    keys = {PREFIX + key: value for key, value in metadata.items()}
    column = columns.write(values, metadata=keys)
    layout = column.layout()
    assert layout.mini_block_layout.HasField("dictionary") == has_dictionary
    assert column.read(0, 6000).equals(values)


@pytest.mark.floors
def test_values_under_nulls_are_not_stored(columns: Any) -> None:
    """Invisible values would spoil compression and could reveal what was masked."""
    secret = np.full(6000, 12345678, np.int64)
    secret[::2] = np.arange(3000)
    values = pa.array(secret, mask=np.arange(6000) % 2 == 1)
    column = columns.write(values)
    assert value_codec(column).HasField("inline_bitpacking")
    assert len(column.data) < 6000 * 12 / 8 + 6000 / 8 + 200
    assert column.read(0, 6000).equals(values)


@pytest.mark.parametrize("layout", ["miniblock", "fullzip", None])
@pytest.mark.parametrize("size", [100, 300, 9000])
def test_layouts_depend_on_value_width(columns: Any, size: int, layout: str | None) -> None:
    """Values that do not fit a chunk must fall back to full-zip."""
    values = pa.array([bytes([number % 7]) * size for number in range(40)], pa.binary(size))
    metadata = {PREFIX + "compression": "zstd"}
    if layout:
        metadata[PREFIX + "structural-encoding"] = layout
    column = columns.write(values, metadata=metadata)
    in_chunks = layout != "fullzip" and (size == 100 or (size == 300 and layout == "miniblock"))
    assert column.layouts() == ["mini_block_layout" if in_chunks else "full_zip_layout"]
    assert not in_chunks or value_codec(column).HasField("general")
    assert column.read(0, 40).equals(values)
    assert column.take([3, 39]).equals(values.take([3, 39]))
