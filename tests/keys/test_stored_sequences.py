"""The sequences of stored rows are those of the file, whatever the cache has."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.keys.stored_sequences import cache_sequences, clear_sequences, read_sequences
from lance_stream.read.units import unit_of


@pytest.mark.parametrize(("num_cached", "is_used"), [(3, False), (6, True), (7, False)])
def test_cached_columns_fit_their_fragment(num_cached: int, is_used: bool, tmp_path: Path) -> None:
    """A column with another number of rows has the sequences of other ones."""
    rows = pa.table({"key": range(6), "sequence": range(10, 16)})
    table = lance_stream.create_dataset(tmp_path / "t", rows).table
    unit = unit_of(table, 0, columns=("key", "sequence"))
    fragment = table.manifest.fragments[0]
    (field,) = table.schema.fields_named(["sequence"])
    clear_sequences()
    cache_sequences(fragment, field, pa.array(range(20, 20 + num_cached)))
    offsets = np.array([0, 2], np.uint64)
    for use_cache in (False, True):
        sequences = read_sequences(unit, fragment, offsets, use_cache=use_cache)
        assert sequences.to_pylist() == ([20, 22] if use_cache and is_used else [10, 12])
    # What was read as a whole replaces a column that does not fit.
    again = read_sequences(unit, fragment, offsets, use_cache=True)
    assert again.to_pylist() == ([20, 22] if is_used else [10, 12])
    clear_sequences()
