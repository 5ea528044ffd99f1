"""Damaged pages of compressed byte strings: they read as something, or raise BadDataError."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.file.encoding_options import PREFIX
from tests.file.v2_1.layouts.test_damage import assert_reads_or_is_bad

WORDS = ["stream", "table", "", "version", "große", "fragment of a column"]
VALUES = pa.array([f"{WORDS[n % 6]} {n * 7919 % 997}" if n % 11 else None for n in range(900)])
FEW = pa.array([WORDS[n * 5 % 7 % 6] * 20 for n in range(900)])
LONG = pa.array([None, *("some words of a long text " * (200 + n) for n in range(20))])

PAGES: dict[str, tuple[pa.Array, dict[str, str]]] = {
    "zstd": (VALUES, {"compression": "zstd"}),
    "lz4": (VALUES, {"compression": "lz4"}),
    "fsst": (VALUES, {"compression": "fsst"}),
    "dictionary": (FEW, {}),
    "zstd one by one": (LONG, {"compression": "zstd", "structural-encoding": "fullzip"}),
    "fsst one by one": (LONG, {"compression": "fsst", "structural-encoding": "fullzip"}),
}


def written(columns: Any, name: str) -> tuple[Any, pa.Array]:
    values, metadata = PAGES[name]
    column = columns.write(
        values, metadata={PREFIX + key: value for key, value in metadata.items()}
    )
    assert column.read(0, len(values)).equals(values)
    return column, values


@pytest.mark.parametrize("name", PAGES)
def test_flipped_bits_do_no_harm(columns: Any, name: str) -> None:
    """Stored bytes are not trusted: damage may change values, but never raise a foreign error."""
    column, values = written(columns, name)
    random = np.random.default_rng(2)
    buffers = [column.buffer(index) for index in range(len(column.pages[0][0].buffers))]
    num_read = 0
    for number, buffer in enumerate(buffers):
        for at in random.integers(0, len(buffer), 25).tolist():
            damaged = bytearray(buffer)
            damaged[at] ^= 1 << int(random.integers(8))
            changed = [*buffers[:number], bytes(damaged), *buffers[number + 1 :]]
            num_read += assert_reads_or_is_bad(column.with_buffers(*changed), len(values))
    assert num_read > 10


@pytest.mark.parametrize("name", ["fsst", "fsst one by one"])
def test_damaged_symbol_tables_do_no_harm(columns: Any, name: str) -> None:
    """The table decides the length of every decoded value."""
    column, values = written(columns, name)
    random = np.random.default_rng(3)
    for at in [0, 1, 2, 3, 4, 7, *random.integers(8, 2312, 20).tolist()]:
        layout = column.layout()
        kind = layout.WhichOneof("layout")
        fsst = getattr(layout, kind).value_compression.fsst
        table = bytearray(fsst.symbol_table)
        table[at] ^= 1 << int(random.integers(8))
        fsst.symbol_table = bytes(table)
        assert_reads_or_is_bad(column.with_layout(layout), len(values))
