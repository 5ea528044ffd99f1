"""Rows of one fragment, read by row offset."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.read import fragment
from lance_stream.read.fragment import FragmentReader, read_unit
from lance_stream.read.units import unit_of
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.fragments.fragment import decode_fragment


def test_distant_rows_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen rows may be spread over the whole fragment, and the memory of a batch must stay
    bounded.
    """
    rows = pa.table({"n": np.arange(20_000)})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), rows.schema).append(rows)
    unit = unit_of(open_newest(ds.uri), 0, columns=("n",))
    monkeypatch.setattr(fragment, "BATCH_BYTES", 8 * 500)  # 500 rows, among 4,000 at most
    far = replace(unit, offsets=np.array([0, 3999, 4000, 4001, 19_999], np.uint32))
    chosen = list(FragmentReader(far).selections())
    assert [(span.start, span.stop, span.num_rows) for span in chosen] == [
        (0, 4000, 2),
        (4000, 4002, 2),
        (19_999, 20_000, 1),
    ]
    assert pa.Table.from_batches(read_unit(far))["n"].to_pylist() == [0, 3999, 4000, 4001, 19_999]
    many = replace(unit, offsets=np.arange(0, 20_000, 2, dtype=np.uint32))
    assert [selection.num_rows for selection in FragmentReader(many).selections()] == [500] * 20


@pytest.mark.floors
def test_text_counts_at_its_stored_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a batch is estimated from the file, as a guess for text would give batches far
    too small.
    """
    dice = np.random.default_rng(0)
    texts = [dice.bytes(30).hex() for _ in range(20_000)]
    rows = pa.table({f"s{number}": texts for number in range(8)} | {"n": np.arange(20_000)})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), rows.schema).append(rows)
    unit = unit_of(open_newest(ds.uri), 0, columns=tuple(rows.column_names))
    stored = sum(file.size_bytes for file in decode_fragment(unit.fragment).files)
    monkeypatch.setattr(fragment, "BATCH_BYTES", 2 * stored)
    assert [selection.num_rows for selection in FragmentReader(unit).selections()] == [20_000]
    monkeypatch.setattr(fragment, "BATCH_BYTES", stored // 4)
    assert len(list(FragmentReader(unit).selections())) >= 4


def test_oversized_rows_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at once would take twice the memory of the largest row."""
    rows = pa.table({"s": ["a" * 100, "b" * 100, "c" * 100], "n": [1, 2, 3]})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), rows.schema).append(rows)
    unit = unit_of(open_newest(ds.uri), 0, columns=("s", "n"))
    monkeypatch.setattr(fragment, "BATCH_BYTES", 1)
    assert [selection.num_rows for selection in FragmentReader(unit).selections()] == [1, 1, 1]


def test_short_text_does_not_halve_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a batch is half of each page, and on an object store one more request."""
    dice = np.random.default_rng(0)
    numbers = {f"n{number}": dice.random(20_000) for number in range(18)}
    rows = pa.table(numbers | {"s": [dice.bytes(4).hex() for _ in range(20_000)]})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), rows.schema).append(rows)
    unit = unit_of(open_newest(ds.uri), 0, columns=tuple(rows.column_names))
    stored = sum(file.size_bytes for file in decode_fragment(unit.fragment).files)
    monkeypatch.setattr(fragment, "BATCH_BYTES", int(1.2 * stored))
    assert [selection.num_rows for selection in FragmentReader(unit).selections()] == [20_000]
