"""Others change a table's columns between the plan of a batch and its commit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from tests.contracts.watched_stores import WatchedStore
from tests.faults.drivers import check_sound, make_table, open_dataset

BATCH = PendingBatch.of("app", 0)
ROWS = pa.table({"id": [4, 9], "value": ["new", "new"], "seq": [7, 8]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return make_table(str(tmp_path / "table"))


def opened_with(uri: str, meanwhile: Callable[[Any], Any]) -> TableVersion:
    """Open a table to which pylance does something just before the first commit of ours."""
    table = open_newest(uri)

    def watch(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_transactions/"):
            store.before = lambda _call, _path: None
            meanwhile(lance.dataset(uri))

    store = WatchedStore(table.store, before=watch)
    return replace(table, store=store, log=ObjectStoreLog(store))


def rows_of(uri: str) -> list[dict[str, Any]]:
    ours = open_dataset(uri).to_table().sort_by("id").to_pylist()
    theirs = lance.dataset(uri).to_table().sort_by("id").to_pylist()
    assert ours == theirs
    return ours


def replace_seq(table: Any) -> None:
    """Replace a column by another of the same name and type."""
    table.drop_columns(["seq"])
    table.add_columns({"seq": "nullif(id * 100, -1)"})


@pytest.mark.parametrize("columns", [["id", "value", "seq"], ["id", "value"]])
def test_rows_keep_values_of_concurrent_columns(uri: str, columns: list[str]) -> None:
    """Changed rows keep the values of a column that was added while the upsert ran."""
    table = opened_with(uri, lambda table: table.add_columns({"twice": "nullif(id * 2, -1)"}))
    upsert(table, ROWS.select(columns), UpsertRules(("id",)), BATCH)
    rows = {row["id"]: row for row in rows_of(uri)}
    assert [rows[key]["value"] for key in (0, 4, 9)] == ["start", "new", "new"]
    assert [rows[key]["twice"] for key in (0, 4, 9)] == [0, 8, None]
    check_sound(uri)


def test_rows_keep_values_of_replaced_columns(uri: str) -> None:
    """Another writer replaced the column while the upsert ran."""
    upsert(opened_with(uri, replace_seq), ROWS.select(["id", "value"]), UpsertRules(("id",)), BATCH)
    rows = {row["id"]: row for row in rows_of(uri)}
    assert rows[4] == {"id": 4, "value": "new", "seq": 400}
    assert rows[9] == {"id": 9, "value": "new", "seq": None}
    check_sound(uri)


def test_values_go_into_a_replaced_column(uri: str) -> None:
    """The upsert has values for a column that was dropped and added again while it ran."""
    upsert(opened_with(uri, replace_seq), ROWS, UpsertRules(("id",)), BATCH)
    rows = {row["id"]: row for row in rows_of(uri)}
    assert [rows[key]["seq"] for key in (4, 9)] == [7, 8]
    check_sound(uri)


@pytest.mark.parametrize("by", ["nullif(id * 100, -1)", "nullif(value, '')"])
def test_appends_to_replaced_columns_are_refused(uri: str, by: str) -> None:
    """The values of the batch would otherwise be lost without an error."""

    def replace_column(table: Any) -> None:
        table.drop_columns(["seq"])
        table.add_columns({"seq": by})

    with pytest.raises(InvalidInputError, match="'seq' was replaced by another"):
        append(opened_with(uri, replace_column), ROWS, BATCH)
    assert len(rows_of(uri)) == 6
    check_sound(uri)


def test_appends_survive_changes_of_other_columns(uri: str) -> None:
    """Columns for which the append has no values are added and dropped meanwhile."""

    def come_and_go(table: Any) -> None:
        table.add_columns({"twice": "nullif(id * 2, -1)"})
        table.drop_columns(["seq"])

    append(opened_with(uri, come_and_go), ROWS.select(["id", "value"]), BATCH)
    assert {row["id"]: row["twice"] for row in rows_of(uri)}[9] is None
    check_sound(uri)
