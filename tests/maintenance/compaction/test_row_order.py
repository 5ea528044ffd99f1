"""Compactions that write rows in another order: nothing changes but the order, and the manifest."""

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.arrays import U64s
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.compaction import rewrites, row_order
from lance_stream.maintenance.compaction.compact import commit_prepared, compact
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import RewriteTask, prepare, write_task
from lance_stream.maintenance.compaction.row_order import (
    Lineage,
    best_order,
    lineage_of,
    max_waiting,
    reordered,
)
from lance_stream.maintenance.verification.verify import verify
from lance_stream.read.units import unit_of
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.row_ids import RowIdSequence, decode_row_ids, encode_row_ids
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.upsert import row_writer

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())])


def rows(ids: Any, x: object) -> pa.Table:
    return pa.table({"id": list(ids), "x": [f"{x} {id_}" for id_ in ids]}, schema=SCHEMA)


def lived(batches: int = 6, num_rows: int = 2000, updates: int = 300) -> Dataset:
    """Return a table of scattered updates in the order of their old places, as others write them,
    and some inserts and deletes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_writer, "_order_of_ids", lambda _, ids: np.arange(len(ids)))
        return _lived(batches, num_rows, updates)


def _lived(batches: int, num_rows: int, updates: int) -> Dataset:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA, primary_key=["id"])
    ds = ds.append(rows(range(num_rows), "first"))
    dice = random.Random(1)
    for number in range(batches):
        ids = dice.sample(range(num_rows), updates)
        new = range(num_rows + 10 * number, num_rows + 10 * number + 10)
        ds = ds.upsert(rows([*ids, *new], number), on="id")
    return ds.delete("id % 97 = 5")


def test_no_rows_wait_for_nobody() -> None:
    """A group of fragments whose rows are all deleted has no order."""
    assert max_waiting(np.empty(0, np.int64)) == 0
    assert max_waiting(np.array([0, 1, 2])) == 1
    assert max_waiting(np.array([2, 0, 1])) == 3


def content(ds: Dataset) -> list[dict[str, Any]]:
    rows = ds.scan(with_row_id=True, with_row_versions=True).read_all().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def lineage_bytes(ds: Dataset) -> int:
    return sum(
        len(sequence)
        for fragment in ds.table.manifest.fragments
        for sequence in (
            fragment.row_ids,
            fragment.created_at_versions,
            fragment.last_updated_at_versions,
        )
        if isinstance(sequence, bytes)
    )


def some_lineage(updated: list[int], row_ids: list[int]) -> Lineage:
    created = np.ones(len(updated), np.uint64)
    return Lineage(np.array(row_ids, np.uint64), created, np.array(updated, np.uint64))


def test_compaction_makes_lineage_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many scattered updates, runs of row ids fill the manifest; sorting rows joins them
    again.
    """
    before = lived()
    after = before.compact()
    assert content(after) == content(before)
    assert verify(after.table) == []
    assert after.changes(before.version).read_all().num_rows == 0
    assert len(after.table.manifest.fragments) == 1
    again = lived()
    monkeypatch.setattr(row_order, "best_order", lambda *_: None)
    as_they_stood = again.compact()
    assert content(as_they_stood) == content(after)
    assert 1.5 * lineage_bytes(after) < lineage_bytes(as_they_stood)


def test_workers_of_other_releases_write_nothing() -> None:
    """Driver and worker must agree on the order, or row ids would be assigned to the wrong rows."""
    ds = lived()

    def write(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        yield from (write_task(replace(task, release="0.0.9")) for task in tasks)

    files = set(ds.table.store.list_names("data"))
    with pytest.raises(InvalidInputError, match=r"but the driver 0\.0\.9"):
        prepare(ds.table, CompactionRules(max_deleted_fraction=0.0), write)
    assert set(ds.table.store.list_names("data")) == files


def test_rows_move_within_their_version() -> None:
    """Readers that skip by version rely on rows of one version staying together."""
    after = lived().compact()
    versions = after.scan(with_row_id=True, with_row_versions=True).read_all()
    updated = versions["_row_last_updated_at_version"].to_numpy()
    assert np.all(np.diff(updated.astype(np.int64)) >= 0)
    ids = versions["_rowid"].to_numpy()
    same = updated[1:] == updated[:-1]
    assert np.all(ids[1:][same] > ids[:-1][same])


@pytest.mark.parametrize("target_rows", [400, 5000])
def test_concurrent_deletes_find_reordered_rows(target_rows: int) -> None:
    """A row that was deleted meanwhile has another offset in the new order."""
    ds = lived()
    prepared = prepare(ds.table, CompactionRules(target_rows, max_deleted_fraction=0.0))
    assert any(group.order is not None for group in prepared.groups)
    dice = random.Random(2)
    ds = ds.upsert(rows(dice.sample(range(2000), 200), "beside"), on="id")
    ds = ds.delete("id % 31 = 7")
    expected = content(ds)
    result = commit_prepared(prepared)
    after = Dataset(newest_version_of(ds.table))
    assert result.num_removed > 1
    assert after.version == ds.version + 1
    assert content(after) == expected
    assert verify(after.table) == []
    assert after.changes(ds.version).read_all().num_rows == 0


def test_transactions_omit_sequences_of_old_fragments() -> None:
    """Old sequences are in the previous manifest already, and repeating them would double the
    commit.
    """
    before = lived()
    after = before.compact()
    named = read_transaction(after.table.store, after.table.manifest)
    assert named is not None
    assert isinstance(named.operation, Rewrite)
    for group in named.operation.groups:
        assert {fragment.id for fragment in group.old_fragments} == set(
            before.table.manifest.fragments.ids
        )
        assert all(fragment.row_ids is None for fragment in group.old_fragments)
        assert all(fragment.last_updated_at_versions is None for fragment in group.old_fragments)


@pytest.mark.slow
def test_updated_rows_take_two_bytes() -> None:
    """The size must hold for many versions and for more rows than 16 bits can count."""
    n, batches = 400_000, 300
    dice = np.random.default_rng(0)
    updated = dice.integers(2, batches, n).astype(np.uint64)
    row_ids = np.arange(n, dtype=np.uint64)
    lineage = Lineage(row_ids, np.full(n, 1, np.uint64), updated)
    order = best_order(lineage, 1)
    assert order is not None
    fragment = rewrites._with_lineage([Fragment(0, (), physical_rows=n)], lineage.take(order))[0]
    assert isinstance(fragment.row_ids, bytes)
    assert decode_row_ids(fragment.row_ids, n).to_array().tolist() == row_ids[order].tolist()
    assert len(fragment.row_ids) < 2.2 * n


def test_appended_rows_keep_their_order() -> None:
    """Users cluster data by writing it in order, which compaction must not destroy."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    dice = random.Random(3)
    for number in range(40):
        ds = ds.append(rows(dice.sample(range(1000), 30), number))
    assert ds.compact().to_table().equals(ds.to_table())


def test_ids_of_appends_stay_one_range() -> None:
    """A range takes a few bytes, while 200,000 separate ids would fill the manifest."""
    n = 200_000
    plain = Lineage(np.arange(n, dtype=np.uint64), *[np.full(n, 2, np.uint64)] * 2)
    (fragment,) = rewrites._with_lineage([Fragment(0, (), physical_rows=n)], plain)
    assert fragment.row_ids == encode_row_ids(RowIdSequence.from_range(0, n))


def test_deletions_do_not_reorder_rows() -> None:
    """Gaps in row ids do not justify giving up the order in which the user wrote the rows."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    ids = random.Random(4).sample(range(5000), 5000)
    ds = ds.append(rows(ids, "sorted by another column")).delete("id % 3 = 0")
    assert ds.compact().to_table().equals(ds.to_table())


def test_reordering_keeps_few_rows_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many rows had to wait in memory, they keep their order."""
    n = 1000
    reversed_ids = some_lineage([1] * n, list(range(n))[::-1])
    assert best_order(reversed_ids, 1) is not None
    monkeypatch.setattr(row_order, "MAX_BYTES_WAITING", n)
    assert best_order(reversed_ids, 1) is not None
    assert best_order(reversed_ids, 2) is None
    in_pieces = some_lineage(
        [number // 100 for number in range(n)],
        [number ^ 1 if number % 100 else number for number in range(n)],
    )
    order = np.lexsort((in_pieces.row_ids, in_pieces.updated))
    assert max_waiting(order) < 100


def test_short_lineage_is_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing an order costs reading all row ids, which plain tables must not pay."""

    def refuse(*_: object) -> None:
        raise AssertionError("the order of plain rows was computed")

    monkeypatch.setattr(row_order, "best_order", refuse)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    for number in range(5):
        ds = ds.append(rows(range(200 * number, 200 * number + 200), number))
    assert compact(ds.table).num_removed == 5


@pytest.mark.parametrize("seed", range(20))
def test_reordered_batches_follow_the_order(seed: int) -> None:
    """Reordering streams batches with bounded memory, and must yield every row once for any
    order and batch size.
    """
    random_numbers = np.random.default_rng(seed)
    n = int(random_numbers.integers(1, 300))
    spread = float(random_numbers.choice([0.0, 3.0, 40.0, 1000.0]))
    order = np.argsort(np.arange(n) + random_numbers.uniform(0, spread + 1e-9, n))
    values: U64s = np.arange(n, dtype=np.uint64)
    cuts = np.sort(random_numbers.integers(0, n + 1, 5))
    table = pa.table({"a": values, "b": [str(value) for value in values]})
    bounds = [0, *cuts.tolist(), n]
    batches = [
        batch
        for start, stop in pairwise(bounds)
        for batch in table.slice(start, stop - start).to_batches()
    ]
    num_read = num_written = 0
    results = []

    def read() -> Iterator[pa.RecordBatch]:
        nonlocal num_read
        for batch in batches:
            assert num_read - num_written <= max_waiting(order)
            num_read += batch.num_rows
            yield batch

    for batch in reordered(read(), order):
        num_written += batch.num_rows
        results.append(batch)
    assert pa.Table.from_batches(results).equals(table.take(pa.array(order)))


@pytest.mark.parametrize("index", [pa.int8(), pa.int32()])
def test_narrow_dictionaries_are_not_mixed(index: pa.DataType) -> None:
    """Small dictionary indices cannot address the values of two fragments together."""

    def coded(first: int) -> pa.Table:
        values = [f"value {number}" for number in range(first, first + 100)]
        code = pa.DictionaryArray.from_arrays(pa.array(range(100), index), values)
        ids = pa.array(range(first, first + 100), pa.int64())
        return pa.table({"id": ids, "x": np.zeros(100, np.int64), "code": code})

    def codes(ds: Dataset) -> list[tuple[int, int, str]]:
        actual = ds.scan(batch_size=1).read_all().to_pylist()
        return sorted((row["id"], row["x"], row["code"]) for row in actual)

    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", coded(0))
    for first in (100, 200):
        ds = ds.append(coded(first))
    for number in range(4):  # in place, so that rows of all versions stand beside each other
        ds = ds.update({"x": str(number)}, f"id * 5 % 8 = {number}")
    before = codes(ds)
    ds = ds.compact()
    assert codes(ds) == before
    assert ds.compact().version == ds.version, "there is nothing left to do"


def test_only_reorderable_fragments_are_compacted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fragments with blobs keep their order, and would otherwise be compacted again and again."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA).append(rows([1, 2], "a"))
    table, fragment = ds.table, ds.table.manifest.fragments[0]
    monkeypatch.setattr(row_order, "best_order", lambda *_: np.array([1, 0]))
    monkeypatch.setattr(row_order, "inline_bytes", lambda _: 2)
    assert not row_order.has_disordered_lineage(table, fragment)
    monkeypatch.setattr(row_order, "inline_bytes", lambda _: 3)
    for limit in 2, 1:
        monkeypatch.setattr(row_order, "MAX_ROWS", limit)
        assert row_order.has_disordered_lineage(table, fragment) == (limit == 2)
    monkeypatch.setattr(row_order, "MAX_ROWS", 2)
    monkeypatch.setattr(row_order, "_can_be_mixed", lambda _: False)
    assert not row_order.has_disordered_lineage(table, fragment)
    monkeypatch.undo()
    monkeypatch.setattr(row_order, "inline_bytes", lambda _: 1000)
    monkeypatch.setattr(row_order, "best_order", lambda *_: None)
    assert not row_order.has_disordered_lineage(table, fragment)
    blobs = pa.field("x", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    codes = pa.field("x", pa.dictionary(pa.int8(), pa.string()))
    for field, can in ((SCHEMA.field("x"), True), (blobs, False), (codes, False)):
        assert row_order._can_be_mixed(from_arrow(pa.schema([SCHEMA.field("id"), field]))) is can


@pytest.mark.parametrize("limit", [2, 1])
def test_too_many_rows_keep_their_order(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Their order would take too much memory to compute."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA).append(rows([1, 2], "a"))
    units = [unit_of(ds.table, 0, columns=("id", "x"))]
    order = np.array([1, 0])
    monkeypatch.setattr(row_order, "_has_long_lineage", lambda _: True)
    monkeypatch.setattr(row_order, "best_order", lambda *_: order)
    monkeypatch.setattr(row_order, "MAX_ROWS", limit)
    lineage = lineage_of(ds.table, ds.table.manifest.fragments)
    assert row_order.order_of(units, lambda: lineage) is (order if limit == 2 else None)
