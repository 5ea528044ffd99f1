"""Rows of one fragment, read by row offset."""

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.read import fragment
from lance_stream.read.fragment import FragmentReader, read_unit
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.fragments.fragment import decode_fragment, encode_fragment


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


TEN = pa.table({"n": np.arange(10)})
PACKED = {"packed": "true"}


@pytest.fixture
def ten() -> WorkUnit:
    """The only fragment of a table of ten rows."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", TEN)
    return unit_of(ds.table, 0, columns=("n",))


def numbers_of(unit: WorkUnit) -> list[list[int]]:
    return [batch["n"].to_pylist() for batch in read_unit(unit)]


@pytest.mark.parametrize("batch_size", [None, 1, 3, 10, 11])
@pytest.mark.parametrize("stop", [None, 0, 1, 5, 9, 10, 11])
@pytest.mark.parametrize("start", [0, 1, 5, 9, 10])
def test_ranges_are_those_of_lists(
    ten: WorkUnit, start: int, stop: int | None, batch_size: int | None
) -> None:
    """An empty range has no batch, and no batch is empty or too large."""
    batches = numbers_of(replace(ten, start=start, stop=stop, batch_size=batch_size))
    assert [number for batch in batches for number in batch] == list(range(10))[start:stop]
    assert all(0 < len(batch) <= (batch_size or 10) for batch in batches)


@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize("offsets", [[], [0], [9], [0, 5, 9], list(range(10))])
@pytest.mark.parametrize("text", [None, "n >= 0", "n > 4"])
def test_offsets_choose_rows(
    ten: WorkUnit, offsets: list[int], batch_size: int | None, text: str | None
) -> None:
    """Rows beyond the end of a fragment are another table's, or another version's."""
    chosen = np.array(offsets, np.uint32)
    unit = replace(ten, offsets=chosen, batch_size=batch_size, filter=text)
    expected = [number for number in offsets if text != "n > 4" or number > 4]
    batches = numbers_of(unit)
    assert [number for batch in batches for number in batch] == expected
    assert all(0 < len(batch) <= (batch_size or 10) for batch in batches)
    for wrong in (10, 11):
        beyond = np.array([*offsets, wrong], np.uint32)
        with pytest.raises(CorruptDataError, match=f"has 10 rows, but row offset {wrong} was"):
            numbers_of(replace(unit, offsets=beyond))


def test_damaged_fragments_are_refused(ten: WorkUnit) -> None:
    """Neither ids nor values of rows may be made up."""
    stored = decode_fragment(ten.fragment)
    without_ids = replace(ten, fragment=encode_fragment(replace(stored, row_ids=None)))
    assert numbers_of(without_ids) == [list(range(10))]
    with pytest.raises(CorruptDataError, match="has no row ids, but the table has stable row ids"):
        numbers_of(replace(without_ids, system_columns=("_rowid",)))
    created = "_row_created_at_version"
    unstamped = encode_fragment(replace(stored, created_at_versions=None))
    (batch,) = read_unit(replace(ten, fragment=unstamped, system_columns=(created,)))
    assert batch[created].to_pylist() == [1] * 10
    without_files = replace(ten, fragment=encode_fragment(replace(stored, files=())))
    with pytest.raises(CorruptDataError, match="has 10 rows, but no data file"):
        numbers_of(without_files)
    empty = replace(ten, fragment=encode_fragment(replace(stored, files=(), physical_rows=0)))
    assert numbers_of(empty) == []
    unknown = replace(ten, fragment=encode_fragment(replace(stored, physical_rows=0)))
    assert numbers_of(unknown) == [list(range(10))]


@pytest.mark.parametrize("stated", [9, 10, 11])
def test_files_have_the_stated_rows(ten: WorkUnit, stated: int) -> None:
    """Otherwise rows would be lost, or get the row ids of others."""
    stored = replace(decode_fragment(ten.fragment), physical_rows=stated)
    unit = replace(ten, fragment=encode_fragment(stored))
    if stated == 10:
        assert numbers_of(unit) == [list(range(10))]
        return
    message = f"has 10 rows, but fragment 0 of version 1 should have {stated}"
    parts: list[dict[str, Any]] = [{}, {"offsets": np.array([0], np.uint32)}, {"filter": "n = 3"}]
    for part in parts:
        with pytest.raises(CorruptDataError, match=message):
            numbers_of(replace(unit, **part))


def test_overlaid_values_are_refused(ten: WorkUnit) -> None:
    """The data files still have the values that an overlay replaces."""
    message = table_pb2.DataFragment.FromString(ten.fragment)
    message.overlays.add(committed_version=1).data_file.path = "overlay.lance"
    unit = replace(ten, fragment=message.SerializeToString())
    with pytest.raises(UnsupportedFeatureError, match="fragment 0 of version 1 has data overlay"):
        FragmentReader(unit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", range(10)),
        ("false", ()),
        ("_rowid > 6", (7, 8, 9)),
        ("_rowaddr = 2 OR _rowid = 3", (2, 3)),
        ("n > 4 AND _rowid < 7", (5, 6)),
        ("_row_created_at_version > 1", ()),
    ],
)
@pytest.mark.parametrize("offsets", [None, list(range(10))])
def test_conditions_need_no_stored_column(
    ten: WorkUnit, text: str, expected: Sequence[int], offsets: list[int] | None
) -> None:
    """A condition may be constant, or about what the manifest states of a row."""
    chosen = None if offsets is None else np.array(offsets, np.uint32)
    batches = numbers_of(replace(ten, filter=text, offsets=chosen))
    assert [number for batch in batches for number in batch] == list(expected)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_packed_structs_are_one_column(version: str) -> None:
    """The columns after it are counted from it, so that none may be counted for its fields."""
    packed = pa.field("s", pa.struct({"a": pa.int64(), "b": pa.int64()}), metadata=PACKED)
    schema = pa.schema([packed, pa.field("n", pa.int64())])
    rows = pa.Table.from_pylist([{"s": {"a": 1, "b": 2}, "n": 3}], schema)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows, file_version=version)
    for columns, expected in (
        (("s", "n"), {"s": {"a": 1, "b": 2}, "n": 3}),
        (("n",), {"n": 3}),
        (("s.b",), {"s": {"b": 2}}),
    ):
        (batch,) = read_unit(unit_of(ds.table, 0, columns=columns))
        assert batch.to_pylist() == [expected]


@pytest.mark.parametrize(
    ("version", "metadata"),
    [("2.0", PACKED), ("2.1", None), ("2.1", PACKED), ("2.2", None), ("2.2", PACKED)],
)
def test_later_files_replace_columns(
    tmp_path: Path, version: str, metadata: dict[str, str] | None
) -> None:
    """Lance 0.10 left a replaced column in its old file, under the same field id."""
    struct = pa.field("s", pa.struct({"a": pa.int64()}), metadata=metadata)
    schema = pa.schema([struct, ("n", pa.int64()), ("l", pa.list_(pa.int64()))])
    rows = [{"s": {"a": number}, "n": number, "l": [number]} for number in (1, 2)]
    units = []
    for folder, row in zip(("old", "new"), rows, strict=True):
        table = pa.Table.from_pylist([row], schema)
        ds = lance_stream.create_dataset(tmp_path / folder, table, file_version=version)
        units.append(unit_of(ds.table, 0, columns=("s", "n", "l")))
    old, new = (decode_fragment(unit.fragment).files[0] for unit in units)
    shutil.copy(tmp_path / "new" / "data" / new.path, tmp_path / "old" / "data" / new.path)
    both = replace(decode_fragment(units[0].fragment), files=(old, new))
    (batch,) = read_unit(replace(units[0], fragment=encode_fragment(both)))
    assert batch.to_pylist() == rows[1:]


def test_columns_without_values_have_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has pages of a column that was added without values."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", TEN)
    ds = ds.add_columns(pa.field("later", pa.int64()))
    monkeypatch.setattr(fragment, "BATCH_BYTES", 8 * 4)
    batches = list(read_unit(unit_of(ds.table, 0, columns=("later",))))
    assert [batch["later"].null_count for batch in batches] == [4, 4, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([{"id": -1}], "column 'n' of version 1 has a negative field id"),
        ([{}, {"id": 1}], "version 1 has two columns of the same name: 'n', 'n'"),
    ],
)
def test_impossible_columns_are_refused(
    ten: WorkUnit, fields: list[dict[str, Any]], message: str
) -> None:
    """They would read as nulls, or be mixed up."""
    (column,) = ten.schema.fields
    schema = Schema(tuple(replace(column, **changes) for changes in fields))
    with pytest.raises(CorruptDataError, match=message):
        numbers_of(replace(ten, schema=schema, fields=schema.fields))


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_new_files_list_leaves_only(version: str) -> None:
    """From 2.1 on, a file that also lists the parent has one column too many, or other ones."""
    rows = pa.table({"s": [{"a": 1}, {"a": 2}]})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows, file_version=version)
    unit = unit_of(ds.table, 0, columns=("s",))
    stored = decode_fragment(unit.fragment)
    file = replace(stored.files[0], field_ids=(0, 1), column_indices=(0, 1))
    both = replace(unit, fragment=encode_fragment(replace(stored, files=(file,))))
    if version == "2.0":
        assert pa.Table.from_batches(read_unit(both)) == rows
        return
    with pytest.raises(CorruptDataError, match="lists a field in addition to its children"):
        list(read_unit(both))
