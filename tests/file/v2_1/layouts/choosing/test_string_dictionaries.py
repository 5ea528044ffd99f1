"""When byte strings are written as indices into a dictionary."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.file.encoding_options import PREFIX
from lance_stream.file.versions import FileVersion

BOTH = [FileVersion.V2_1, FileVersion.V2_2]
TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
RANDOM = np.random.default_rng(11)


def picked(num_distinct: int, count: int, arrow_type: pa.DataType | None = None) -> pa.Array:
    """Values drawn from a set of the given size, in any order; each occurs."""
    values = [f"the value numbered {n * 7919}" for n in range(num_distinct)]
    items = pa.array(values, arrow_type or pa.string())
    indices = np.append(np.arange(num_distinct), RANDOM.integers(0, num_distinct, count))[:count]
    return items.take(pa.array(RANDOM.permutation(indices)))


def layout_of(column: Any) -> pb.MiniBlockLayout:
    assert column.layouts() == ["mini_block_layout"]
    layout: pb.MiniBlockLayout = column.layout().mini_block_layout
    return layout


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
@pytest.mark.parametrize("num_distinct", [2, 200, 300])
def test_few_distinct_values_have_a_dictionary(
    columns: Any, version: FileVersion, arrow_type: pa.DataType, num_distinct: int
) -> None:
    """Repeated strings are common, and a dictionary makes them a tenth as large."""
    values = picked(num_distinct, 5000, arrow_type)
    column = columns.write(values, version=version)
    layout = layout_of(column)
    assert layout.num_dictionary_items == num_distinct
    assert layout.dictionary.WhichOneof("compression") == (
        "general" if num_distinct > 2 else "variable"
    )
    assert layout.value_compression.WhichOneof("compression") == (
        "flat" if num_distinct == 200 else "inline_bitpacking"
    )
    assert column.read(0, 5000).equals(values)
    assert column.take([0, 17, 4999]).equals(values.take([0, 17, 4999]))


@pytest.mark.parametrize("version", BOTH)
def test_dictionaries_contain_no_nulls(columns: Any, version: FileVersion) -> None:
    """Levels state which values are null, also inside lists."""
    values = picked(3, 1000).to_pylist()
    for index in range(0, 1000, 3):
        values[index] = None
    for rows in (pa.array(values), pa.array([values[n : n + 5] for n in range(0, 1000, 5)])):
        column = columns.write(rows, version=version)
        assert layout_of(column).num_dictionary_items == 3
        assert column.read(0, len(rows)).equals(rows)


def test_sorted_values_become_runs(columns: Any) -> None:
    """Sorted tables have long runs of equal strings."""
    values = pa.array(sorted(picked(50, 5000).to_pylist()))
    column = columns.write(values)
    assert layout_of(column).value_compression.WhichOneof("compression") == "rle"
    assert len(column.data) < 1500
    assert column.read(0, 5000).equals(values)


def test_thousands_of_values_get_a_dictionary(columns: Any) -> None:
    """A limit of a few hundred would miss many columns that gain."""
    column = columns.write(picked(5000, 60_000))
    assert layout_of(column).num_dictionary_items == 5000


@pytest.mark.parametrize(
    "values",
    [picked(3, 99), picked(4000, 5000), pa.array(["", "a"] * 500)],
    ids=["few values", "many distinct", "short"],
)
def test_dictionaries_are_written_where_they_pay(columns: Any, values: pa.Array) -> None:
    """Short columns and nearly unique values would grow."""
    column = columns.write(values)
    has_dictionary = layout_of(column).HasField("dictionary")
    assert has_dictionary == (len(values) == 1000)
    assert column.read(0, len(values)).equals(values)


@pytest.mark.parametrize(
    ("key", "value", "has_dictionary"),
    [
        ("dict-divisor", "10", True),
        ("dict-divisor", "11", False),
        ("dict-size-ratio", "0.9", True),
        ("dict-size-ratio", "0.01", False),
        ("dict-max-size", "20000", True),
        ("dict-max-size", "2000", False),
        ("compression", "zstd", True),
        ("compression", "none", False),
        ("compression", "fsst", False),
    ],
)
def test_metadata_sets_the_dictionary_threshold(
    columns: Any, key: str, value: str, has_dictionary: bool
) -> None:
    """Lance defines these keys for columns that its defaults do not suit."""
    values = picked(400, 4000)
    column = columns.write(values, metadata={PREFIX + key: value})
    assert layout_of(column).HasField("dictionary") == has_dictionary
    assert column.read(0, 4000).equals(values)


@pytest.mark.parametrize("scheme", ["none", "lz4", "zstd"])
def test_metadata_sets_the_compression_of_items(columns: Any, scheme: str) -> None:
    """Lance defines this key, also for columns that are dictionaries in the schema."""
    metadata = {PREFIX + "dict-values-compression": scheme}
    for values in (picked(300, 3000), picked(300, 3000).dictionary_encode()):
        column = columns.write(values, metadata=metadata)
        dictionary = layout_of(column).dictionary
        if scheme == "none":
            assert dictionary.WhichOneof("compression") == "variable"
        else:
            assert dictionary.general.compression.scheme == {"lz4": 1, "zstd": 2}[scheme]
        assert column.read(0, 3000).equals(values)
