"""Rows that tasks have staged are applied to whatever the table is by the time of the commit."""

import uuid
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.keys.key_matcher import KeyMatcher
from lance_stream.row_updates.staged_files import WordRange
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert import row_writer
from lance_stream.upsert.large import staged_rows
from lance_stream.upsert.large.staged_rows import (
    RangeThreads,
    StagedRows,
    stage_rows,
    upsert_staged,
)
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.upsert.large.running_parts import upsert_staged_rows


@pytest.mark.parametrize("knows_it", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int32(), pa.int64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 4)),
        (pa.timestamp("s"), pa.timestamp("us")),
    ],
)
def test_keys_widened_before_commit_stay_one(
    tmp_path: Path, before: pa.DataType, after: pa.DataType, knows_it: bool
) -> None:
    """One task has written its rows to a file by parts and the other returns them in its message,
    possibly planned after the column was widened.
    """
    uri = str(tmp_path / "t.lance")
    numbers = pa.array(range(200), pa.int64())
    whole = pa.decimal128(21, 2) if pa.types.is_decimal(before) else pa.int64()
    ids = numbers.cast(whole).cast(before)
    rows = pa.record_batch({"id": ids, "v": numbers})
    table = lance_stream.create_dataset(uri, rows.schema).table
    rules = UpsertRules(on=("id",), sequence_by="v")
    later = pa.record_batch({"id": ids.slice(150), "v": pa.array(range(1000, 1050), pa.int64())})
    with (
        patch.object(staged_rows, "MAX_ROWS", 50),
        patch.object(staged_rows, "_MANY_TASKS", 1),
        patch.object(staged_rows, "_MAX_INLINE_BYTES", 0),
    ):
        first = stage_rows([rows], table.store, table.arrow_schema, rules, task=0)
        ds = lance_stream.open_dataset(uri).alter_columns({"path": "id", "data_type": after})
        schema = ds.schema if knows_it else table.arrow_schema
        second = stage_rows([later], table.store, schema, rules, task=1)
        assert [bool(staged.sorted_rows.path) for staged in (first, second)] == [True, False]
        upsert_staged(ds.table, [first, second], rules, rows.schema.names, pa.int64())
    stored = lance.dataset(uri).to_table()
    assert sorted(stored["v"].to_pylist()) == [*range(150), *range(1000, 1050)]
    assert stored.num_rows == len(set(stored["id"].to_pylist())) == 200


@pytest.mark.parametrize("run", [upsert, upsert_staged_rows])
def test_rows_with_null_keys_stay(tmp_path: Path, run: Any) -> None:
    """pylance appends such rows, and no row of a batch has their key."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table(
        {"a": ["x", None, "x"], "b": pa.array([1, 1, None], pa.int64()), "v": [0, 1, 2]}
    )
    lance.write_dataset(rows, uri, enable_stable_row_ids=True)
    batch = pa.table({"a": ["x", "y", ""], "b": [1, 1, 0], "v": [7, 8, 9]})
    run(lance_stream.open_dataset(uri).table, batch, UpsertRules(("a", "b")))
    stored = lance.dataset(uri).to_table().to_pydict()
    assert sorted(zip(stored["v"], stored["a"], strict=True)) == sorted(
        [(1, None), (2, "x"), (7, "x"), (8, "y"), (9, "")], key=lambda row: row[0]
    )


@pytest.mark.parametrize("run", [upsert, upsert_staged_rows])
@pytest.mark.parametrize("file_version", ["2.0", "2.1"])
def test_upserts_of_other_columns_keep_blobs(tmp_path: Path, file_version: str, run: Any) -> None:
    """Rows that move to another fragment take their blobs along, and new ones replace them."""
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), blob])
    contents = [b"a" * 3000, b"", None, b"d"]
    rows = pa.table([range(4), [0] * 4, contents], schema=schema)
    ds = lance_stream.create_dataset(str(tmp_path / "t.lance"), rows, file_version)
    rules = UpsertRules(("id",))
    run(ds.table, pa.table({"id": [0, 1, 2], "v": [5, 6, 7]}), rules)
    new = pa.table([[3, 4], [8, 9], [b"new", None]], schema=schema)
    run(lance_stream.open_dataset(ds.uri).table, new, rules)
    stored = lance_stream.open_dataset(ds.uri).to_table().sort_by("id")
    assert stored["blob"].to_pylist() == [*contents[:3], b"new", None]
    assert stored["v"].to_pylist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(("ranges_at_once", "max_copies"), [(1, 1.5), (2, 2)])
def test_concurrent_ranges_have_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges_at_once: int, max_copies: float
) -> None:
    """The driver of a local master processes two ranges at once, and must not hold several copies
    of their rows: a large first batch took ten times the limit.
    """
    limit = 8 << 20
    monkeypatch.setattr(staged_rows, "MAX_BYTES", limit)
    monkeypatch.setattr(RangeThreads, "ranges_at_once", ranges_at_once)
    rows = pa.table({"id": range(40_000), "text": ["x" * 1000] * 40_000})  # 40 MB
    table = lance_stream.create_dataset(str(tmp_path / "t"), rows.schema, primary_key=["id"]).table
    rules = UpsertRules(("id",))
    staged = stage_rows(rows.to_batches(1000), table.store, table.arrow_schema, rules)
    look_up, allocated = KeyMatcher.look_up, []
    allocated_before = pa.total_allocated_bytes()

    def look_up_and_measure(*arguments: Any) -> Any:
        allocated.append(pa.total_allocated_bytes() - allocated_before)
        return look_up(*arguments)

    monkeypatch.setattr(KeyMatcher, "look_up", look_up_and_measure)
    written = upsert_staged(table, [staged], rules, rows.schema.names, None).table
    assert lance_stream.open_dataset(written.uri).count_rows() == 40_000
    assert len(allocated) >= 5 * ranges_at_once
    assert max(allocated) < max_copies * limit


def test_rows_are_copied_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of all rows of a range would be as large as the range."""
    monkeypatch.setattr(row_writer, "_TAKEN_BYTES", 800)
    rows = pa.record_batch({"id": range(1000)})
    positions = np.random.default_rng(0).permutation(1000)[:900]
    portions = list(row_writer._taken(rows, positions))
    assert max(portion.num_rows for portion in portions) <= 113
    assert pa.Table.from_batches(portions)["id"].to_pylist() == positions.tolist()
    assert next(row_writer._taken(rows, positions[:0])).num_rows == 0


def test_ranges_have_limited_rows() -> None:
    """A process holds all rows of its ranges in memory."""
    limit = staged_rows.MAX_ROWS
    assert [staged_rows.RANGE_THREADS.max_rows(limit + more) for more in (-1, 0, 1)] == [
        limit - 1,
        limit,
        limit,
    ]


EMPTY = pa.record_batch({"id": pa.array([], pa.int64())})
ROWS = pa.record_batch({"id": pa.array(range(8), pa.int64())})
BY_ID = UpsertRules(("id",))


def table_of_ids() -> TableVersion:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema).table


def test_tasks_without_rows_stage_nothing() -> None:
    """Spark has tasks without rows, and a batch may have no other ones."""
    table = table_of_ids()
    for batches in [], [EMPTY] * 2:
        staged_task = stage_rows(batches, table.store, EMPTY.schema, BY_ID)
        assert (staged_task.num_rows, staged_task.encoded, staged_task.keys.names) == (0, b"", [])
    assert list(staged_rows._joined([EMPTY] * 2)) == []
    for staged in [], [StagedRows()] * 2:
        result = upsert_staged(table, staged, BY_ID, ["id"], None)
        assert (result.table, result.is_new) == (table, False)
    one = stage_rows([EMPTY, ROWS, EMPTY], table.store, EMPTY.schema, BY_ID)
    assert upsert_staged(table, [StagedRows(), one], BY_ID, ["id"], None).num_inserted == 8


def test_tasks_report_missing_key_columns() -> None:
    """The error lists the table's columns, wherever it occurs."""
    with pytest.raises(InvalidInputError, match=r"'key', is not in the table, which has: id"):
        stage_rows([ROWS], table_of_ids().store, EMPTY.schema, UpsertRules(("key",)))


@pytest.mark.parametrize("task", [0, staged_rows._MANY_TASKS - 1, staged_rows._MANY_TASKS])
@pytest.mark.parametrize("more", [0, 1])
def test_tasks_keep_few_bytes(task: int, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver holds what tasks keep in memory, and they do not know how many they are."""
    of_many = task >= staged_rows._MANY_TASKS
    name = "_MAX_INLINE_BYTES_OF_MANY" if of_many else "_MAX_INLINE_BYTES"
    assert staged_rows._MAX_INLINE_BYTES > staged_rows._MAX_INLINE_BYTES_OF_MANY
    monkeypatch.setattr(staged_rows, name, 2 * ROWS.nbytes - more)
    store = table_of_ids().store
    staged = stage_rows([ROWS, EMPTY, ROWS], store, EMPTY.schema, BY_ID, task=task)
    assert (staged.num_rows, bool(staged.encoded), bool(staged.sorted_rows.path)) == (
        16,
        not more,
        bool(more),
    )


def test_sorted_portions_have_about_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task sorts a portion in memory."""
    monkeypatch.setattr(staged_rows, "SORTED_BATCH_BYTES", 2 * ROWS.nbytes)
    portions = staged_rows._joined([EMPTY, ROWS, ROWS, ROWS.slice(4), ROWS, ROWS.slice(2), EMPTY])
    assert [portion.num_rows for portion in portions] == [16, 18]


@pytest.mark.parametrize(
    ("limit", "more"), [("MAX_ROWS", 0), ("MAX_ROWS", 1), ("MAX_BYTES", 0), ("MAX_BYTES", 1)]
)
def test_larger_batches_have_ranges(limit: str, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the limits, one upsert of all rows takes the least requests."""
    table = table_of_ids()
    staged = stage_rows([ROWS], table.store, EMPTY.schema, BY_ID)
    size = {"MAX_ROWS": staged.num_rows, "MAX_BYTES": staged.num_bytes}[limit]
    monkeypatch.setattr(staged_rows, limit, size - more)
    num_ranges: list[int] = []

    class Workers(RangeThreads):
        def run(self, function: Any, ranges: Any) -> Any:
            num_ranges.append(len(ranges))
            return super().run(function, ranges)

    result = upsert_staged(table, [staged], BY_ID, ["id"], None, workers=Workers())
    assert result.num_inserted == 8
    assert bool(num_ranges) == bool(more)


SPANS = [WordRange(number, number) for number in range(6)]


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("is_returned", [False, True])
def test_no_range_starts_after_a_failure(
    at: int, is_returned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the other ranges have to be known, so that they can be deleted."""
    monkeypatch.setattr(RangeThreads, "ranges_at_once", 1)
    started: list[int] = []
    error = InvalidInputError("no more")

    def function(span: WordRange) -> Any:
        started.append(span.first)
        if span.first < at:
            return span
        if is_returned:
            return error
        raise error

    outcomes: list[Any] = []
    if is_returned:
        outcomes.extend(RangeThreads().run(function, SPANS))
        assert outcomes.pop() is error
    else:
        with pytest.raises(InvalidInputError, match="no more"):
            outcomes.extend(RangeThreads().run(function, SPANS))
    assert outcomes == SPANS[:at]
    assert started == [*range(at + 1)]


def test_broken_runs_leave_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range may have failed before the workers do, and only the others have files."""
    table = table_of_ids()
    monkeypatch.setattr(staged_rows, "MAX_ROWS", 4)

    class Workers(RangeThreads):
        def run(self, function: Any, ranges: Any) -> Any:
            yield function(ranges[0])
            yield InvalidInputError("this range")
            raise KeyboardInterrupt

    staged = stage_rows([ROWS], table.store, EMPTY.schema, BY_ID)
    with pytest.raises(KeyboardInterrupt):
        upsert_staged(table, [staged], BY_ID, ["id"], None, workers=Workers())
    assert table.store.list("data") == []
    assert table.log.latest() == table.version
