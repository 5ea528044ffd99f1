from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.file.encoding_options import (
    DEFAULT_OPTIONS,
    PREFIX,
    EncodingOptions,
    check_encoding_options,
    parse_encoding_options,
)
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import field_from_arrow
from lance_stream.schema.fields import Field, Schema, assign_ids


def column(**metadata: str) -> Field:
    stored = {PREFIX + key.replace("_", "-"): value.encode() for key, value in metadata.items()}
    return Field("x", "int64", metadata=stored)


def test_options_are_unset_without_metadata() -> None:
    """The defaults decide how most columns are stored."""
    assert parse_encoding_options(Field("x", "int64")) == DEFAULT_OPTIONS == EncodingOptions()


@pytest.mark.parametrize(
    ("key", "value", "attribute", "expected"),
    [
        ("compression", "zstd", "compression", "zstd"),
        ("compression", "LZ4", "compression", "lz4"),
        ("compression", "none", "compression", "none"),
        ("compression", "fsst", "compression", "fsst"),
        ("compression-level", "7", "compression_level", 7),
        ("structural-encoding", "MiniBlock", "structural_encoding", "miniblock"),
        ("structural-encoding", "fullzip", "structural_encoding", "fullzip"),
        ("rle-threshold", "0.25", "rle_threshold", 0.25),
        ("bss", "on", "byte_stream_split", "on"),
        ("minichunk-size", "4096", "minichunk_bytes", 4096),
        ("dict-divisor", "10", "dict_divisor", 10),
        ("dict-size-ratio", "1.0", "dict_size_ratio", 1.0),
        ("dict-max-size", "1000", "dict_max_bytes", 1000),
        ("dict-values-compression", "zstd", "dict_values_compression", "zstd"),
        ("dict-values-compression-level", "3", "dict_values_compression_level", 3),
        ("packed", "true", "packed", True),
        ("packed", "0", "packed", False),
        ("blob", "true", "blob", True),
    ],
)
def test_each_key_sets_its_option(key: str, value: str, attribute: str, expected: Any) -> None:
    """Lance defines these keys, and a misread one would set another option."""
    options = parse_encoding_options(Field("x", "int64", metadata={PREFIX + key: value.encode()}))
    assert getattr(options, attribute) == expected
    others = {value for value in EncodingOptions.__slots__ if value != attribute}
    assert all(getattr(options, other) == getattr(DEFAULT_OPTIONS, other) for other in others)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compression", "gzip"),
        ("compression-level", "high"),
        ("structural-encoding", "sparse"),
        ("rle-threshold", "1.5"),
        ("rle-threshold", "nan"),
        ("bss", "perhaps"),
        ("minichunk-size", "0"),
        ("minichunk-size", "8k"),
        ("dict-divisor", "0"),
        ("dict-size-ratio", "0"),
        ("dict-size-ratio", "2"),
        ("dict-max-size", "-1"),
        ("dict-values-compression", "fsst"),
        ("dict-values-compression-level", "x"),
        ("packed", "maybe"),
        ("blob", "false"),
    ],
)
def test_wrong_values_are_refused_by_name(key: str, value: str) -> None:
    """An ignored value would leave a user with a table that is stored otherwise than requested."""
    field = Field("price", "int64", metadata={PREFIX + key: value.encode()})
    with pytest.raises(InvalidInputError, match=f"'price'.*'{PREFIX}{key}' is '{value}'"):
        parse_encoding_options(field)


def test_unsupported_zstd_levels_are_refused() -> None:
    """zstd has 22 levels, while LZ4 has none and ignores the key, as in Lance."""
    with pytest.raises(InvalidInputError, match="levels up to 22"):
        parse_encoding_options(column(compression="zstd", compression_level="23"))
    assert parse_encoding_options(column(compression="lz4", compression_level="23"))


def test_packed_needs_no_prefix() -> None:
    """Old writers used the bare key."""
    assert parse_encoding_options(Field("x", "struct", metadata={"packed": b"true"})).packed


def test_items_inherit_only_the_structural_encoding() -> None:
    """The compression of an item is its own; the structural encoding is the top-level column's."""
    item = Field("item", "int64", metadata={PREFIX + "compression": b"lz4"})
    metadata = {PREFIX + "compression": b"zstd", PREFIX + "structural-encoding": b"fullzip"}
    root = Field("x", "list", children=(item,), metadata=metadata)
    options = parse_encoding_options(item, root)
    assert (options.compression, options.structural_encoding) == ("lz4", "fullzip")


def test_wrong_nested_options_are_refused() -> None:
    """Options apply to leaves, which may lie at any depth."""
    item = Field("item", "int64", metadata={PREFIX + "compression": b"gzip"})
    with pytest.raises(InvalidInputError, match="'item'"):
        check_encoding_options(Field("x", "list", children=(item,)))


@pytest.mark.parametrize("version", [FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2])
def test_a_writer_checks_options_before_writing(version: FileVersion) -> None:
    """A late failure would leave a partial file."""
    metadata = {PREFIX + "compression": "gzip"}
    arrow = pa.field("x", pa.struct([pa.field("y", pa.int32(), metadata=metadata)]))
    schema = assign_ids(Schema((field_from_arrow(arrow),)))
    with pytest.raises(InvalidInputError, match="'gzip'"):
        FileWriter(schema, version)
