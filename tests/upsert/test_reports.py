"""The figures of an upsert's report, on one known sequence of batches."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import add_up, digest_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.change_rules import ChangeRules, history_schema
from lance_stream.upsert.upsert import upsert

EVENTS = pa.schema({"id": "int64", "x": "string", "seq": "int64", "op": "string"})
FIGURES = ("rows", "inserted", "updated", "deleted", "unchanged", "late", "ignored", "remembered")

BATCHES: list[list[tuple[int, str | None, int, str]]] = [
    [(1, "a", 10, "u"), (2, "a", 10, "u"), (3, "a", 10, "u")],
    [(1, "b", 20, "u"), (2, None, 20, "d"), (4, "a", 20, "u")],
    [(1, "b", 20, "u"), (3, "z", 5, "u"), (2, "late", 15, "u")],
    [(1, "b", 30, "u"), (1, "c", 40, "u"), (9, None, 40, "d")],
]
"""A key, a value, the event's sequence, and whether it updates or deletes."""

CURRENT_ROWS = [
    (3, 3, 0, 0, 0, 0, 0, 0),
    (3, 1, 1, 1, 0, 0, 0, 1),  # the delete of 2 is remembered
    (3, 0, 1, 0, 0, 2, 0, 0),  # 3 is older than its row, 2 than its delete
    (3, 0, 1, 0, 0, 1, 0, 1),  # of two changes of 1 only the second one counts
]
HISTORIES = [
    (3, 3, 0, 0, 0, 0, 0, 0),
    (3, 2, 2, 0, 0, 0, 0, 0),  # rows of 1 and 2 end
    (3, 2, 1, 0, 3, 0, 0, 0),  # rows before those of 2 and 3; both rows of 1, and that of 3, stay
    (3, 1, 1, 0, 0, 0, 0, 2),  # b at 30 continues b, and no row shows the delete of 9
]


def new_table(is_history: bool) -> tuple[TableVersion, ChangeRules]:
    rules = ChangeRules.of(
        is_history=is_history,
        keys="id",
        sequence_by="seq",
        apply_as_deletes="op = 'd'",
        except_column_list=["seq", "op"] if is_history else ["op"],
    )
    schema = pa.schema({"id": "int64", "x": "string"})
    if is_history:
        schema = history_schema(schema, pa.int64())
    else:
        schema = schema.append(pa.field("seq", pa.int64()))
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema).table, rules


def rows_of(batch: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(EVENTS.names, event, strict=True)) for event in batch], schema=EVENTS
    )


def figures(done: UpsertResult) -> tuple[int, ...]:
    return tuple(getattr(done, f"num_{name}") for name in FIGURES)


@pytest.mark.parametrize(
    ("is_history", "expected"), [(False, CURRENT_ROWS), (True, HISTORIES)], ids=["scd1", "scd2"]
)
def test_reports_count_each_row_once(is_history: bool, expected: list[tuple[int, ...]]) -> None:
    """Users alert on these figures, and nothing else shows a wrong one."""
    table, rules = new_table(is_history)
    for number, (batch, counts) in enumerate(zip(BATCHES, expected, strict=True)):
        rows = rows_of(batch)
        pending = PendingBatch.of("app", number, digest=add_up(map(digest_of, rows.to_batches())))
        before = table
        done = upsert(before, rows, rules.upsert_rules(), pending)
        assert figures(done) == counts, batch
        assert (done.attempts, done.was_already_committed) == (1, False)
        assert done.already_committed_in is None
        table = done.table
        assert done.is_new
        assert table.version == before.version + 1
        again = upsert(table, rows, rules.upsert_rules(), pending)
        assert (again.is_new, again.was_already_committed) == (False, True)
        assert again.already_committed_in == table.version
        assert again.table.version == table.version


@pytest.mark.parametrize("is_history", [False, True])
def test_batches_without_rows_commit_nothing(is_history: bool) -> None:
    """An empty version would only cost all readers a request."""
    table, rules = new_table(is_history)
    done = upsert(table, rows_of([]), rules.upsert_rules())
    assert (done.is_new, done.table.version, figures(done)) == (False, table.version, (0,) * 8)
