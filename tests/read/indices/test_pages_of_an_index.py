"""The page list of a BTREE index: pylance's is accepted, a contradictory one is not."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter
from lance.indices import IndexConfig

import lance_stream
from lance_stream.errors import BadDataError, CorruptDataError, UnsupportedFeatureError
from lance_stream.read.indices import btree, index_file, segments
from lance_stream.read.indices.btree import DATA, LOOKUP, BTree, clear_page_cache, open_btree
from lance_stream.read.indices.index_file import IndexFolder
from lance_stream.read.indices.segments import clear_index_cache
from lance_stream.storage.locations import open_store
from tests.eager_indices import eager_indices, no_indices

pytestmark = pytest.mark.oracle

NAN = float("nan")
SIGNED_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))[0]
FLOATS = [SIGNED_NAN, NAN, 0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf")]

VALUES: dict[str, tuple[Sequence[Any], pa.DataType]] = {
    "i8": ([-128, 0, 127], pa.int8()),
    "u64": ([0, 2**63, 2**64 - 1], pa.uint64()),
    "f32": (FLOATS, pa.float32()),
    "f64": (FLOATS, pa.float64()),
    "bool": ([False, True], pa.bool_()),
    "string": (["", "a", "é", "z" * 100, "😀"], pa.string()),
    "large_string": (["", "a", "é"], pa.large_string()),
    "binary": ([b"", b"\0", b"z", b"\xff\0"], pa.binary()),
    "large_binary": ([b"", b"\xff"], pa.large_binary()),
    "decimal": ([Decimal("-3.20"), Decimal("1.10"), Decimal("99.99")], pa.decimal128(10, 2)),
    "date": ([date(1900, 1, 1), date(2020, 1, 1)], pa.date32()),
    "timestamp": ([datetime(1900, 1, 1), datetime(2020, 1, 1)], pa.timestamp("us", "UTC")),
}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    clear_index_cache()
    clear_page_cache()
    yield
    clear_index_cache()
    clear_page_cache()


@pytest.fixture(autouse=True)
def without_recorded_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the sizes in the manifest: any file that a test replaces would not be used."""
    monkeypatch.setattr(
        segments, "IndexFolder", lambda store, name, _: IndexFolder(store, name, {})
    )


def indexed(uri: Path, column: pa.Array, page_rows: int) -> Path:
    """Write a table of one column with a BTREE index; return the index's folder."""
    ds = lance.write_dataset(pa.table({"a": column}), uri)
    ds.create_scalar_index("a", IndexConfig("btree", {"zone_size": page_rows}))
    (folder,) = (uri / "_indices").iterdir()
    return folder


def opened(folder: Path) -> BTree:
    store = open_store(str(folder.parent))
    return open_btree("any", IndexFolder(store, folder.name, {}))


@pytest.mark.parametrize("num_nulls", [0, 3, 4, 9, 40])
@pytest.mark.parametrize("name", list(VALUES))
def test_lists_that_pylance_writes_are_accepted(name: str, num_nulls: int, tmp_path: Path) -> None:
    """A check that is too strict would silently turn each lookup into a scan."""
    values, arrow = VALUES[name]
    dice = np.random.default_rng(num_nulls)
    chosen = [values[at] for at in dice.integers(0, len(values), 40 - num_nulls)]
    column = pa.array([None] * num_nulls + chosen, arrow)
    opened(indexed(tmp_path / "t", column, 4))
    ds = lance_stream.open_dataset(str(tmp_path / "t"))
    for condition in ("a IS NULL", "a IS NOT NULL"):
        with eager_indices() as counts:
            num_rows = ds.count_rows(condition)
        assert counts == {"served": 1}
        with no_indices():
            assert num_rows == ds.count_rows(condition)


def test_an_index_without_rows_is_accepted(tmp_path: Path) -> None:
    """pylance writes an index of an empty table without pages."""
    assert opened(indexed(tmp_path / "t", pa.array([], pa.int64()), 4)).num_entries == 0


ROWS = pa.array([None] * 6 + list(range(14)), pa.int64())
LISTED: dict[str, list[int | None]] = {
    "min": [None, None, 2, 6, 10],
    "max": [None, 1, 5, 9, 13],
    "null_count": [4, 2, 0, 0, 0],
    "page_idx": [0, 1, 2, 3, 4],
}


def relisted(folder: Path, changes: dict[str, list[int | None]], **metadata: str) -> None:
    """Replace the list of pages, with other values in some columns."""
    path = folder / LOOKUP
    table = LanceFileReader(str(path)).read_all().to_table()
    assert table.to_pydict() == LISTED
    for name, values in changes.items():
        position = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(position, field.with_nullable(True), pa.array(values, field.type))
    described = {**(table.schema.metadata or {}), **metadata}
    replace_file(path, table.replace_schema_metadata(described))


def replace_file(path: Path, table: pa.Table) -> None:
    path.unlink()
    with LanceFileWriter(str(path), table.schema, version="2.2") as writer:
        writer.write_batch(table)


def test_lists_in_other_orders_are_accepted(tmp_path: Path) -> None:
    """The list names the page of each entry, and no rule of the format orders the entries."""
    folder = indexed(tmp_path / "t", ROWS, 4)
    relisted(folder, {name: values[::-1] for name, values in LISTED.items()})
    ds = lance_stream.open_dataset(str(tmp_path / "t"))
    for condition in ("a = 7", "a < 5", "a IS NULL"):
        with eager_indices() as counts:
            table = ds.to_table(filter=condition)
        assert counts == {"served": 1}
        with no_indices():
            assert table == ds.to_table(filter=condition)


@pytest.mark.parametrize(
    "changes",
    [
        {"null_count": [4, None, 0, 0, 0]},
        {"page_idx": [0, 1, 2, None, 4]},
        {"page_idx": [0, 1, 2, 3, 3]},
        {"page_idx": [0, 1, 2, 3, 5]},
        {"null_count": [5, 2, 0, 0, 0]},
        {"null_count": [4, 4, 0, 0, 0]},
        {"null_count": [4, 5, 0, 0, 0]},
        {"null_count": [4, 0, 0, 0, 0]},
        {"null_count": [3, 2, 0, 0, 0]},
        {"null_count": [4, 2, 1, 0, 0]},
        {"min": [None, None, 2, None, 10]},
        {"min": [None, 0, 2, 6, 10]},
        {"max": [None, 1, None, 9, 13]},
        {"max": [0, 1, 5, 9, 13]},
        {"min": [None, None, 2, 10, 10]},
        {"max": [None, 1, 5, 5, 13]},
        {"max": [None, 3, 5, 9, 13]},
        {"min": [None, None, 0, 6, 10]},
        {"min": [None, None, 6, 2, 10], "max": [None, 1, 9, 5, 13]},
        {"min": [None, None, 2, None, 10], "null_count": [4, 2, 0, 1, 0]},
    ],
)
def test_contradicting_page_lists_are_not_used(
    changes: dict[str, list[int | None]], tmp_path: Path
) -> None:
    """A wrong bound would exclude a page with matches, so filters must fall back to a scan."""
    folder = indexed(tmp_path / "t", ROWS, 4)
    relisted(folder, changes)
    with pytest.raises(CorruptDataError):
        opened(folder)
    ds = lance_stream.open_dataset(str(tmp_path / "t"))
    for condition in ("a = 7", "a < 5", "a IS NULL"):
        with eager_indices(may_fail=True):
            table = ds.to_table(filter=condition)
        with no_indices():
            assert table == ds.to_table(filter=condition)


@pytest.mark.parametrize(
    ("page", "values", "condition"),
    [
        (2, [2, 4, 3, 5], "a = 4"),  # a binary search misses it
        (2, [1, 3, 4, 5], "a = 2"),
        (2, [2, 3, 4, 6], "a = 5"),
        (1, [None, 0, 0, 1], "a = 0"),
        (1, [None, None, None, 1], "a = 0"),
        (1, [None, 0, None, 1], "a = 0"),
        (0, [None, None, None, 0], "a IS NULL"),
    ],
)
def test_contradicting_pages_are_not_used(
    page: int, values: list[int | None], condition: str, tmp_path: Path
) -> None:
    """Their matches would be missing, so filters must fall back to a scan."""
    folder = indexed(tmp_path / "t", ROWS, 4)
    table = LanceFileReader(str(folder / DATA)).read_all().to_table()
    changed = table["values"].to_pylist()
    changed[4 * page : 4 * page + 4] = values
    replace_file(folder / DATA, table.set_column(0, "values", pa.array(changed, pa.int64())))
    ds = lance_stream.open_dataset(str(tmp_path / "t"))
    with eager_indices(may_fail=True) as counts:
        num_rows = ds.count_rows(condition)
    assert num_rows == ROWS.to_pylist().count(None if "NULL" in condition else int(condition[4:]))
    assert counts["failed"]


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"range_partitioned": "false"}, ""),
        ({"range_partitioned": "true"}, "the index is partitioned"),
        ({"batch_size": "x"}, "does not state the size of its pages"),
        ({"batch_size": "0"}, "an index has pages of 0 rows"),
        ({"batch_size": "-4"}, "an index has pages of -4 rows"),
        ({"batch_size": str((1 << 20) + 1)}, "an index has pages of 1048577 rows"),
        ({"batch_size": str(1 << 20)}, "an index lists 5 pages"),
    ],
)
def test_unknown_index_forms_are_refused(
    metadata: dict[str, str], error: str, tmp_path: Path
) -> None:
    """The numbers of pages and rows would mean something else."""
    folder = indexed(tmp_path / "t", ROWS, 4)
    relisted(folder, {}, **metadata)
    with pytest.raises(BadDataError, match=error) if error else nullcontext():
        opened(folder)


def test_unexpected_index_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of another type would be compared with the values of a page."""
    folder = indexed(tmp_path / "t", ROWS, 4)
    table = LanceFileReader(str(folder / LOOKUP)).read_all().to_table()
    size = (folder / LOOKUP).stat().st_size
    monkeypatch.setattr(btree, "MAX_LOOKUP_BYTES", size - 1)
    with pytest.raises(UnsupportedFeatureError, match=f"{size} bytes, more than {size - 1}"):
        opened(folder)
    monkeypatch.setattr(btree, "MAX_LOOKUP_BYTES", size)
    opened(folder)
    monkeypatch.setattr(btree, "MAX_LOOKUP_BYTES", 1 << 20)
    texts = table.set_column(0, "min", table["min"].cast(pa.string()))
    counts = table.set_column(2, "null_count", table["null_count"].cast(pa.int64()))
    for other, error in (
        (texts, "values of type int64, but bounds of type int64 and string"),
        (counts, "column 'null_count' of an index has type int64 instead of uint32"),
        (table.drop_columns(["page_idx"]), "of an index has columns"),
        (table.select(["max", "min", "null_count", "page_idx"]), "of an index has columns"),
    ):
        replace_file(folder / LOOKUP, other)
        with pytest.raises(CorruptDataError, match=error):
            opened(folder)


def test_damaged_counts_read_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged counts must not make the reader allocate memory for rows that do not exist."""
    folder = indexed(tmp_path / "t", ROWS, 4)
    relisted(folder, {}, batch_size="1")
    monkeypatch.setattr(index_file.IndexFile, "read", never_read)
    with pytest.raises(CorruptDataError, match="an index lists 5 pages, but its 20"):
        opened(folder)
    monkeypatch.setattr(btree, "MAX_PAGES", 4)
    with pytest.raises(UnsupportedFeatureError, match="5 pages, more than 4"):
        opened(folder)


def never_read(*_: Any) -> Any:
    raise AssertionError("rows are read")


def test_large_bounds_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may state a long string for each of many pages."""
    folder = indexed(tmp_path / "t", pa.array(["x" * 1000] * 500), 1)
    opened(folder)
    calls: list[int] = []
    rows = index_file.IndexFile.rows

    def noting(self: Any, read_ranges: Any, spans: Any, *names: str) -> list[pa.Array]:
        calls.append(len(spans))
        return rows(self, read_ranges, spans, *names)

    monkeypatch.setattr(index_file.IndexFile, "rows", noting)
    monkeypatch.setattr(btree, "MAX_BOUND_BYTES", 200_000)
    with pytest.raises(BadDataError, match="more than 200000 bytes"):
        opened(folder)
    assert sum(calls) < 200
