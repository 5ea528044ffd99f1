"""Rows that an upsert leaves untouched, while another writer changes or deletes them."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations.rows import Update
from lance_stream.upsert.rules import IGNORE, HistoryRules, UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.upsert.large.running_parts import upsert_staged_rows
from tests.upsert.test_remembered_deletes import on_publication

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("lsn", pa.int64()), ("a", pa.int64())])

Upsert = Callable[[TableVersion, pa.Table, UpsertRules], object]

RULES: dict[str, UpsertRules] = {
    "unchanged": UpsertRules(("id",), skip_unchanged=True),
    "late": UpsertRules(("id",), sequence_by="lsn"),
    "ignored": UpsertRules(("id",), when_matched=IGNORE),
    "condition": UpsertRules(("id",), when_matched="source.a > target.a"),
}
"""Why row 2 stays untouched; each of these rules also inserts row 40."""

OURS = {"unchanged": (5, 2), "late": (4, 99), "ignored": (9, 99), "condition": (9, 1)}
"""The sequence and the value of the incoming row 2. The table has 5 and 2."""


def rows(*values: tuple[int, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in values], SCHEMA
    )


@pytest.fixture
def table() -> TableVersion:
    """Rows 0 to 5 with the sequence 5, in two fragments."""
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", rows(*((key, 5, key) for key in range(3)))
    )
    return ds.append(rows(*((key, 5, key) for key in range(3, 6)))).table


def in_parts(table: TableVersion, data: pa.Table, rules: UpsertRules) -> object:
    return upsert_staged_rows(table, data, rules, num_parts=2)


def content(table: TableVersion) -> dict[int, tuple[int, int]]:
    stored = Dataset(table).checkout(None).to_table()
    return {row["id"]: (row["lsn"], row["a"]) for row in stored.to_pylist()}


@pytest.mark.parametrize("apply", [upsert, in_parts], ids=["whole", "parts"])
@pytest.mark.parametrize("reason", RULES)
def test_concurrently_deleted_untouched_rows_are_inserted(
    table: TableVersion, reason: str, apply: Upsert
) -> None:
    """The upsert is the later version, so its row no longer meets a stored row."""
    data = rows((2, *OURS[reason]), (40, 9, 40))
    apply(on_publication(table, lambda: Dataset(table).delete("id = 2")), data, RULES[reason])
    assert content(table)[2] == OURS[reason]
    assert content(table)[40] == (9, 40)


@pytest.mark.parametrize("apply", [upsert, in_parts], ids=["whole", "parts"])
@pytest.mark.parametrize("reason", RULES)
@pytest.mark.parametrize("moves", [True, False], ids=["moved", "in place"])
def test_concurrently_changed_untouched_rows_are_rejudged(
    table: TableVersion, reason: str, apply: Upsert, *, moves: bool
) -> None:
    """The upsert is the later version, so its row meets the other writer's values."""
    data = rows((2, *OURS[reason]), (40, 9, 40))
    theirs = rows((2, 3, 0))

    def change() -> None:
        if moves:
            upsert(table, theirs, UpsertRules(("id",)))
        else:
            Dataset(table).update({"lsn": "3", "a": "0"}, "id = 2")

    apply(on_publication(table, change), data, RULES[reason])
    assert content(table)[2] == ((3, 0) if reason == "ignored" else OURS[reason])
    assert content(table)[40] == (9, 40)


@pytest.mark.parametrize("apply", [upsert, in_parts], ids=["whole", "parts"])
def test_other_rows_of_fragments_are_irrelevant(
    table: TableVersion, apply: Upsert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams with separate keys must not make each other plan again."""
    data = rows((2, 5, 2), (40, 9, 40))
    stale = on_publication(table, lambda: Dataset(table).delete("id = 1"))
    result: Any = apply(stale, data, RULES["unchanged"])
    assert result.attempts == 2  # of the commit; a second plan would be the third
    assert content(table).keys() == {0, 2, 3, 4, 5, 40}


def test_compactions_do_not_change_outcomes(table: TableVersion) -> None:
    """Rows that moved are looked up again and still have their values."""
    data = rows((2, 5, 2), (40, 9, 40))
    upsert(on_publication(table, lambda: Dataset(table).compact()), data, RULES["unchanged"])
    now = Dataset(table).checkout(None)
    assert content(table) == {**{key: (5, key) for key in range(6)}, 40: (9, 40)}
    assert now.to_table(["id"], with_row_versions=True, filter="id = 2")[
        "_row_last_updated_at_version"
    ].to_pylist() == [1]


def test_deleted_history_rows_come_back() -> None:
    """An event that the history already has is applied again if its row is deleted meanwhile."""
    columns = pa.schema([pa.field("id", pa.int64(), False), pa.field("a", pa.int64())])
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", lance_stream.history_schema(columns, pa.int64())
    )
    rules = UpsertRules(("id",), sequence_by="lsn", except_columns=("lsn",), history=HistoryRules())
    table = upsert(ds.table, rows((1, 5, 1), (2, 5, 2)), rules).table
    stale = on_publication(table, lambda: Dataset(table).delete("id = 2"))
    upsert(stale, rows((2, 5, 2), (40, 9, 40)), rules)
    records = Dataset(table).checkout(None).to_table(["id", "a"]).to_pylist()
    assert sorted(row["id"] for row in records) == [1, 2, 40]


def test_upserts_without_effect_commit_nothing(table: TableVersion) -> None:
    """Without a version there is no order in which it could be the later one."""
    result = upsert(table, rows((2, 5, 2)), replace(RULES["unchanged"], sequence_by="lsn"))
    assert not result.is_new


@pytest.mark.parametrize("names", [("id", "a"), ("id", "lsn", "a"), ("a", "id")])
def test_upserts_state_changed_columns_only(table: TableVersion, names: tuple[str, ...]) -> None:
    """Indices on the other columns, such as the key, still cover the rows that moved."""
    data = rows((1, 6, 60), (50, 6, 60)).select(list(names))
    newest = Dataset(upsert(table, data, UpsertRules(("id",))).table).table
    transaction = read_transaction(newest.store, newest.manifest)
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    stated = transaction.operation.fields_for_preserving_frag_bitmap
    changed = {field.id for field in table.schema.fields if field.name in {*names} - {"id"}}
    assert set(stated) == changed
