"""Filters that pylance's indices serve: what is read, and when rows are scanned instead."""

import logging
import pickle
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter
from pyroaring import BitMap

import lance_stream
from lance_stream import Dataset
from lance_stream.byte_ranges import Buffer, ByteRange
from lance_stream.expressions.predicates import parse_expression
from lance_stream.read.indices import bitmap, index_file
from lance_stream.read.indices.btree import clear_page_cache
from lance_stream.read.indices.candidates import candidate_rows
from lance_stream.read.indices.index_file import IndexFile
from lance_stream.read.indices.segments import clear_index_cache
from lance_stream.read.scan import plan_scan
from lance_stream.table.indices import (
    IndexMetadata,
    decode_index_section,
    encode_index_section,
)
from tests.eager_indices import eager_indices, no_indices

pytestmark = pytest.mark.oracle

NUM_ROWS = 60_000
ROWS = pa.table(
    {
        "id": np.random.default_rng(3).permutation(NUM_ROWS),
        "g": pa.array([None if n % 9 == 0 else n % 200 for n in range(NUM_ROWS)]),
        "x": np.arange(NUM_ROWS) / 2,
    }
)


@pytest.fixture(scope="module", params=[True, False], ids=["stable ids", "addresses"])
def indexed_table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed") / "t"
    ds = lance.write_dataset(
        ROWS, folder, max_rows_per_file=20_000, enable_stable_row_ids=request.param
    )
    ds.create_scalar_index("id", "BTREE")
    ds.create_scalar_index("g", "BITMAP")
    return folder


@pytest.fixture
def uri(indexed_table: Path, tmp_path: Path) -> Iterator[str]:
    """Return a copy of the table, whose files a test may damage."""
    shutil.copytree(indexed_table, tmp_path / "t")
    clear_index_cache()
    clear_page_cache()
    yield str(tmp_path / "t")
    clear_index_cache()
    clear_page_cache()


class NotingStore:
    """Records what is read from another store."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.read: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read_ranges(self, path: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self.read.append((path, sum(span.size_bytes for span in ranges)))
        buffers: list[Buffer] = self._inner.read_ranges(path, ranges)
        return buffers

    def folders(self) -> set[str]:
        return {path.partition("/")[0] for path, _ in self.read}


def noting(uri: str) -> tuple[Dataset, NotingStore]:
    table = lance_stream.open_dataset(uri).table
    store = NotingStore(table.store)
    return Dataset(replace(table, store=store)), store  # type: ignore[arg-type]  # as much of a store as is used


def keys(ds: Dataset, condition: str) -> list[int]:
    return ds.to_table(["id"], filter=condition)["id"].to_pylist()


def is_served(ds: Dataset, condition: str) -> bool:
    return candidate_rows(ds.table, parse_expression(condition)) is not None


# --- what is read


def test_one_key_reads_one_fragment(uri: str) -> None:
    """The purpose of an index is that a lookup does not read the whole column."""
    ds, store = noting(uri)
    assert keys(ds, "id = 777") == [777]
    assert store.folders() == {"_indices", "data"}
    assert len({path for path, _ in store.read if path.startswith("data/")}) == 1
    store.read.clear()
    assert keys(ds, "id = 777") == [777]
    assert store.folders() == {"data"}, "the index stays open, and its page is kept"
    assert ds.to_table(["x"], filter="id = 777").num_rows == 1


@pytest.mark.parametrize("condition", ["x = 5", "id + 1 = 5", "id = x", "id = 5 OR x = 5"])
def test_useless_indices_are_not_opened(uri: str, condition: str) -> None:
    """Opening an index costs requests, which are useless if it cannot serve the condition."""
    ds, store = noting(uri)
    ds.to_table(["id"], filter=condition)
    assert store.folders() == {"data"}


@pytest.mark.parametrize(
    "condition", ["id > 5", "id != 5", "g IS NOT NULL", "id = 5 OR id > 100", "NOT (id = 5)"]
)
def test_broad_filters_are_scanned(uri: str, condition: str) -> None:
    """Reading most rows one by one is slower than a scan."""
    assert not is_served(lance_stream.open_dataset(uri), condition)


def test_small_tables_are_scanned(tmp_path: Path) -> None:
    """Opening the index would cost more requests than reading the table."""
    ds = lance.write_dataset(ROWS.slice(0, 20_000), tmp_path / "t")
    ds.create_scalar_index("id", "BTREE")
    assert not is_served(lance_stream.open_dataset(str(tmp_path / "t")), "id = 5")


@pytest.mark.parametrize(
    "condition",
    [
        "id = 5",
        "5 = id",
        "id IN (5, 59999, -1, 100000)",
        "id BETWEEN 100 AND 120",
        "id >= 100 AND id < 120",
        "g = 7",
        "g = 7 AND id < 3000",
        "g = 7 AND x < 1000",
        "id = 5 OR id = 77",
        "id = 5 OR g = 7 OR id = 50000",
        "id = 5 OR g = 7",
        "(id = 5 AND x >= 0) OR (g = 7 AND x + 1 < 50)",
        "id = 5 AND id = 6",
        f"id IN ({', '.join(str(number) for number in range(0, 2000, 2))})",
        "id = -1",
    ],
)
def test_served_filters_equal_a_scan(uri: str, condition: str) -> None:
    """An index may only save time: rows, their order, counts and work units stay the same."""
    ds = lance_stream.open_dataset(uri)
    assert is_served(ds, condition)
    with no_indices():
        expected = ds.to_table(filter=condition, with_row_id=True)
    assert ds.to_table(filter=condition, with_row_id=True) == expected
    assert ds.count_rows(condition) == expected.num_rows
    units = pickle.loads(pickle.dumps(plan_scan(ds.table, ["id"], condition)))
    assert all(unit.offsets is not None for unit in units)


def test_indices_find_nulls(uri: str) -> None:
    """A BITMAP index stores nulls under a separate key, which is easily left out."""
    with eager_indices() as counts:
        ds = lance_stream.open_dataset(uri)
        assert ds.count_rows("g IS NULL") == ROWS["g"].null_count
        ones = sum(value == 1 for value in ROWS["g"].to_pylist())
        assert ds.count_rows("g IS NULL OR g = 1") == ROWS["g"].null_count + ones
    assert counts == {"served": 2}


def test_system_columns_narrow_served_rows(uri: str) -> None:
    """Both exclude rows, and the result is the intersection."""
    ds = lance_stream.open_dataset(uri)
    position = ROWS["id"].to_pylist().index(777)
    address = (position // 20_000 << 32) + position % 20_000
    assert keys(ds, f"id = 777 AND _rowaddr = {address}") == [777]
    assert keys(ds, f"id = 777 AND _rowaddr > {address}") == []


# --- rows that changed since


def test_served_filters_follow_later_changes(uri: str) -> None:
    """An index covers the rows of its time: deleted rows must not return, and new ones must be
    scanned.
    """
    ds = lance_stream.open_dataset(uri)
    first = ds.version
    ds = ds.delete("id = 5")
    ds = ds.update({"id": "id + 1000000"}, where="id = 6")
    ds = ds.append(ROWS.slice(0, 1).set_column(0, "id", pa.array([5])))
    ds = ds.upsert(pa.table({"id": [7], "g": [150], "x": [0.5]}), on="id")
    assert is_served(ds, "id = 5")
    assert sorted(keys(ds, "id IN (5, 6, 7, 1000006)")) == [5, 7, 1000006]
    assert ds.to_table(["x"], filter="id = 7")["x"].to_pylist() == [0.5]
    assert 7 in keys(ds, "g = 150")
    before = ds.checkout(first)
    assert is_served(before, "id = 5")
    assert sorted(keys(before, "id IN (5, 6, 7, 1000006)")) == [5, 6, 7]


def test_updates_and_deletes_use_the_index(uri: str) -> None:
    """A delete by key must not scan a large table."""
    ds = lance_stream.open_dataset(uri)
    with eager_indices() as counts:
        ds = ds.update({"x": "-1.0"}, where="id = 9")
        ds = ds.delete("id = 10")
    assert counts == {"served": 2}
    assert ds.to_table(["id"], filter="x < 0")["id"].to_pylist() == [9]
    assert ds.count_rows("id IN (9, 10)") == 1


def test_clones_use_indices_of_their_source(uri: str, tmp_path: Path) -> None:
    """A shallow clone has no index files of its own, and its manifest refers to those of the
    source.
    """
    lance.dataset(uri).shallow_clone(str(tmp_path / "clone"), lance.dataset(uri).version)
    ds = lance_stream.open_dataset(str(tmp_path / "clone"))
    assert is_served(ds, "id = 777")
    assert keys(ds, "id = 777") == [777]


# --- what is unknown or damaged


def with_indices(ds: Dataset, change: Any) -> Dataset:
    section = ds.table.manifest.index_section
    assert section is not None
    changed = encode_index_section(change(value) for value in decode_index_section(section))
    return Dataset(replace(ds.table, manifest=replace(ds.table.manifest, index_section=changed)))


def newer(index: IndexMetadata) -> IndexMetadata:
    return replace(index, index_version=2)


def of_no_version(index: IndexMetadata) -> IndexMetadata:
    return replace(index, index_version=-5)


def with_the_files_of_all(index: IndexMetadata) -> IndexMetadata:
    return replace(index, uuid=b"\7" * 16)


def without_coverage(index: IndexMetadata) -> IndexMetadata:
    return replace(index, fragment_bitmap=b"")


def with_damaged_coverage(index: IndexMetadata) -> IndexMetadata:
    return replace(index, fragment_bitmap=b"\x07")


def on_two_columns(index: IndexMetadata) -> IndexMetadata:
    return replace(index, field_ids=(*index.field_ids, 2))


def on_another_column(index: IndexMetadata) -> IndexMetadata:
    return replace(index, field_ids=(2,))


def of_no_kind(index: IndexMetadata) -> IndexMetadata:
    return replace(index, details=None)


def elsewhere(index: IndexMetadata) -> IndexMetadata:
    return replace(index, base_id=3)


def in_reuse(index: IndexMetadata) -> IndexMetadata:
    return replace(index, name="__lance_frag_reuse") if index.name == "g_idx" else index


@pytest.mark.parametrize(
    "change",
    [
        newer,
        of_no_version,
        with_the_files_of_all,
        without_coverage,
        with_damaged_coverage,
        on_two_columns,
        on_another_column,
        of_no_kind,
        elsewhere,
        in_reuse,
    ],
)
def test_unknown_index_details_lead_to_scans(uri: str, change: Any) -> None:
    """An index of an unknown kind or version may not contain all matches."""
    ds = with_indices(lance_stream.open_dataset(uri), change)
    for condition in ("id = 777", "x = 5.0"):
        assert not is_served(ds, condition)
        assert len(keys(ds, condition)) == 1


def test_columns_of_other_types_are_scanned(uri: str) -> None:
    """Comparisons with an index of another type than the column would be wrong."""
    ds = lance_stream.open_dataset(uri)
    ds = with_indices(ds, lambda index: replace(index, field_ids=(2,)))
    assert not is_served(ds, "x < 5")


def test_huge_coverage_is_not_expanded(uri: str) -> None:
    """A run of 2^32 fragments is a few bytes, but would not fit into memory as numbers."""
    everything = BitMap()
    everything.add_range(0, 1 << 32)
    everything.run_optimize()
    ds = lance_stream.open_dataset(uri)
    ds = with_indices(ds, lambda index: replace(index, fragment_bitmap=everything.serialize()))
    assert is_served(ds, "id = 777")
    assert keys(ds, "id = 777") == [777]


def test_damaged_coverage_names_its_index(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """Coverage is stored like deletions, but the log line must not name a deletion file."""
    ds = with_indices(lance_stream.open_dataset(uri), with_damaged_coverage)
    with caplog.at_level(logging.INFO):
        assert keys(ds, "id = 777") == [777]
    assert "the coverage of the index 'id_idx' cannot be read" in caplog.text
    assert "deletion" not in caplog.text


def test_indices_sharing_files_are_ignored(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """Both could be read, but one of them must be wrong."""
    folder = path_of(uri, "bitmap_page_lookup.lance").parent
    for name in ("page_lookup.lance", "page_data.lance"):
        shutil.copy(path_of(uri, name), folder)
    ds = lance_stream.open_dataset(uri)
    section = ds.table.manifest.index_section
    assert section is not None
    (uuid,) = (entry.uuid for entry in decode_index_section(section) if entry.name == "g_idx")
    with caplog.at_level(logging.INFO):
        for condition in ("id = 777", "g = 7"):
            assert not is_served(
                with_indices(ds, lambda index: replace(index, uuid=uuid)), condition
            )
    assert "are listed twice" in caplog.text


def test_open_indices_are_cached_by_kind(uri: str) -> None:
    """A version may name the files of a BTREE index as those of a BITMAP index."""
    ds = lance_stream.open_dataset(uri)
    with no_indices():
        expected = keys(ds, "id IN (5, 777)")
    section = ds.table.manifest.index_section
    assert section is not None
    (other,) = (entry for entry in decode_index_section(section) if entry.name == "g_idx")

    def as_bitmap(index: IndexMetadata) -> IndexMetadata:
        return index if index == other else replace(index, details=other.details, index_version=0)

    assert is_served(ds, "id IN (5, 777)")
    assert not is_served(with_indices(ds, as_bitmap), "id IN (5, 777)")
    assert keys(with_indices(ds, as_bitmap), "id IN (5, 777)") == expected
    assert is_served(ds, "id IN (5, 777)")


def test_index_memory_errors_lead_to_scans(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A scan needs less memory, so the query can still succeed."""

    def fail(*_: Any) -> Any:
        raise MemoryError("too much")

    monkeypatch.setattr(IndexFile, "rows", fail)
    ds = lance_stream.open_dataset(uri)
    with caplog.at_level(logging.INFO):
        assert keys(ds, "id = 777") == [777]
    assert "too much" in caplog.text


def replace_bitmap(uri: str, keys: pa.Array, bitmaps: list[bytes]) -> Dataset:
    """Replace the file of the BITMAP index, with other keys and bitmaps."""
    path = path_of(uri, BITMAP)
    path.unlink()
    table = pa.table({"keys": keys, "bitmaps": pa.array(bitmaps, pa.binary())})
    with LanceFileWriter(str(path), table.schema, version="2.2") as writer:
        writer.write_batch(table)
    return with_indices(lance_stream.open_dataset(uri), lambda index: replace(index, files=()))


def stored_bitmaps(uri: str) -> tuple[pa.Array, list[bytes]]:
    table = LanceFileReader(str(path_of(uri, BITMAP))).read_all().to_table()
    return table["keys"].combine_chunks(), table["bitmaps"].to_pylist()


def all_rows() -> bytes:
    rows = BitMap()
    rows.add_range(0, 1 << 29)
    rows.run_optimize()
    low = rows.serialize()
    return struct.pack("<III", 1, 0, len(low)) + low


@pytest.mark.parametrize(
    "change",
    [
        lambda head: struct.pack("<I", 0) + head[4:],
        lambda head: head + b"trailing",
        lambda head: head[:-1],
        lambda _: all_rows(),
        lambda _: b"",
    ],
    ids=["no parts", "longer", "cut", "too many rows", "empty"],
)
def test_damaged_bitmaps_lead_to_scans(uri: str, change: Any) -> None:
    """An index is optional: its damage may cost time, but neither rows nor the query."""
    values, bitmaps = stored_bitmaps(uri)
    with no_indices():
        expected = keys(lance_stream.open_dataset(uri), "g = 7")
    ds = replace_bitmap(uri, values, [change(value) for value in bitmaps])
    assert not is_served(ds, "g = 7")
    assert keys(ds, "g = 7") == expected


def test_bitmaps_without_keys_lead_to_scans(uri: str) -> None:
    """An index that covers rows but has no keys is damaged, and must not answer that nothing
    matches.
    """
    expected = ROWS["g"].to_pylist().count(7)
    ds = replace_bitmap(uri, pa.array([], pa.int64()), [])
    assert not is_served(ds, "g = 7")
    assert ds.count_rows("g = 7") == expected


def test_bitmaps_are_read_in_bounded_groups(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key has more than one byte of bitmaps, so all but the first are read one by one."""
    calls: list[int] = []
    rows = IndexFile.rows

    def noting(self: Any, read_ranges: Any, spans: Any, *names: str) -> list[pa.Array]:
        if names == ("bitmaps",):
            calls.append(len(spans))
        return rows(self, read_ranges, spans, *names)

    monkeypatch.setattr(IndexFile, "rows", noting)
    monkeypatch.setattr(index_file, "_FIRST_GROUP", 2)
    monkeypatch.setattr(bitmap, "BITMAP_READ_BYTES", 1)
    ds = lance_stream.open_dataset(uri)
    assert is_served(ds, "g IN (1, 2, 3, 4, 5)")
    assert calls == [2, 1, 1, 1]
    calls.clear()
    assert not is_served(ds, "g BETWEEN 1 AND 30")
    assert 2 < sum(calls) < 12, "a thirty-second of all rows is enough"


def test_changed_bitmap_heads_lead_to_scans(uri: str) -> None:
    """Changes the number of parts, the size of the first part, and the kind of its bitmap."""
    path = path_of(uri, BITMAP)
    data = path.read_bytes()
    values, bitmaps = stored_bitmaps(uri)
    whole = bitmaps[values.to_pylist().index(7)]
    start = data.find(whole)
    assert start > 0
    ds = lance_stream.open_dataset(uri)
    with no_indices():
        expected = keys(ds, "g = 7")
    for offset in (*range(4), *range(8, 16)):
        for flipped in (0x01, 0x10, 0x80, 0xFF):
            changed = bytearray(data)
            changed[start + offset] ^= flipped
            path.write_bytes(changed)
            clear_index_cache()
            assert not is_served(ds, "g = 7"), (offset, flipped)
            assert keys(ds, "g = 7") == expected


BITMAP = "bitmap_page_lookup.lance"
FILES = ["page_lookup.lance", "page_data.lance", BITMAP]
CONDITION = "id = 777 OR g = 7"


def path_of(uri: str, name: str) -> Path:
    (path,) = Path(uri, "_indices").glob(f"*/{name}")
    return path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "longer", "another"])
def test_damaged_indices_lead_to_scans(
    uri: str, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing, truncated and exchanged files must give the rows of a scan, with a log line."""
    path = path_of(uri, name)
    data = path.read_bytes()
    ds = lance_stream.open_dataset(uri)
    with no_indices():
        expected = keys(ds, CONDITION)
    if damage == "missing":
        path.unlink()
    elif damage == "another":
        path.write_bytes(path_of(uri, FILES[FILES.index(name) - 1]).read_bytes())
    else:
        path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "longer": data * 2}[damage])
    with caplog.at_level(logging.INFO):
        assert keys(ds, CONDITION) == expected
    if damage != "longer":
        assert "cannot be used" in caplog.text
    assert ds.count_rows("id = 777") == 1


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("name", FILES)
def test_changed_index_bytes_invent_no_rows(uri: str, name: str) -> None:
    """Not every changed byte can be noticed, but filters are evaluated again on the candidates."""
    path, dice = path_of(uri, name), random.Random(5)
    data = path.read_bytes()
    ds = lance_stream.open_dataset(uri)
    expected = keys(ds, CONDITION)
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(dice.choice([1, 3])):
            near_end = dice.random() < 0.6
            position = dice.randrange(max(len(data) - 2000, 0), len(data)) if near_end else None
            position = dice.randrange(len(data)) if position is None else position
            changed[position] = dice.randrange(256)
        path.write_bytes(changed)
        clear_index_cache()
        clear_page_cache()
        keys_read = keys(ds, CONDITION)
        assert len(set(keys_read)) == len(keys_read)
        assert set(keys_read) <= set(expected)


def test_indices_with_few_entries_are_unused(uri: str) -> None:
    """Coverage that names more rows than the index holds would lose the rows of the other
    fragments.
    """
    lance.dataset(uri).drop_index("g_idx")
    whole = BitMap([0, 1, 2, 3]).serialize()
    ds = lance_stream.open_dataset(uri).append(ROWS.set_column(0, "id", pa.array(range(NUM_ROWS))))
    ds = with_indices(ds, lambda index: replace(index, fragment_bitmap=whole))
    assert not is_served(ds, "id = 5")
    assert len(keys(ds, "id = 5")) == 2
