"""LanceDB's computed columns in tables that we write: its refresh gives the right values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_stream import Dataset, InvalidInputError, open_dataset
from tests.recipes import need

pytestmark = pytest.mark.recipes


def rows(ids: list[int], price: int = 1) -> pa.Table:
    return pa.table(
        {"id": ids, "price": [price + row_id for row_id in ids], "note": ["x"] * len(ids)}
    )


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Return a LanceDB table whose column `double` is computed and filled."""
    lancedb: Any = need("lancedb")
    db = lancedb.connect(tmp_path, storage_options={"new_table_enable_stable_row_ids": "true"})
    table = db.create_table("t", rows([1, 2, 3]))
    table.add(rows([11, 12, 13]))
    table.add_columns(computed={"double": "price * 2"})
    table.refresh_column("double")
    return table


ALLOWED: dict[str, Callable[[Dataset], Any]] = {
    "append": lambda ds: ds.append(rows([20, 21])),
    "upsert": lambda ds: ds.upsert(rows([1, 11, 30], 50), on="id"),
    "upsert of an input": lambda ds: ds.upsert(rows([1, 2], 50).select(["id", "price"]), on="id"),
    "update": lambda ds: ds.update({"price": "price + 100"}, where="id < 3"),
    "compacted update": lambda ds: ds.update({"price": "price + 100"}, where="id < 3").compact(),
    "compacted upsert": lambda ds: ds.upsert(rows([1, 11, 30], 50), on="id").compact(),
    "delete": lambda ds: ds.delete("id IN (1, 11)"),
    "restore": lambda ds: ds.upsert(rows([1], 50), on="id").restore(ds.version),
    "other columns": lambda ds: ds.drop_columns("note").add_columns({"z": "price + 1"}),
    "cleanup": lambda ds: ds.append(rows([20])).cleanup(retain_versions=1, delete_unverified=True),
}


@pytest.mark.parametrize("act", ALLOWED.values(), ids=ALLOWED.keys())
def test_refreshes_fill_our_rows(table: Any, act: Callable[[Dataset], Any]) -> None:
    """LanceDB finds rows to compute by the versions and fragments that a writer leaves."""
    act(open_dataset(table.uri))
    table.checkout_latest()
    table.refresh_column("double")
    values = table.to_arrow().to_pylist()
    assert [row for row in values if row["double"] != 2 * row["price"]] == []
    assert open_dataset(table.uri).verify() == []


def test_both_libraries_refuse_the_same(table: Any) -> None:
    """Values written into a computed column, or a rename of its input, would make it wrong without
    notice.
    """
    ds = open_dataset(table.uri)
    whole = rows([4]).append_column("double", pa.array([99]))
    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: table.add(whole), lambda: ds.append(whole)),
        (lambda: table.add(whole, mode="overwrite"), lambda: ds.overwrite(whole)),
        (
            lambda: table.merge_insert("id").when_matched_update_all().execute(whole),
            lambda: ds.upsert(whole, on="id"),
        ),
        (lambda: table.update(values={"double": 1}), lambda: ds.update({"double": "1"})),
        (lambda: table.drop_columns(["price"]), lambda: ds.drop_columns("price")),
        (
            lambda: table.alter_columns({"path": "price", "rename": "cost"}),
            lambda: ds.rename_columns({"price": "cost"}),
        ),
        (
            lambda: table.add_columns(table.schema.field("double").with_name("other")),
            lambda: ds.add_columns(table.schema.field("double").with_name("other")),
        ),
    ]
    for theirs, ours in pairs:
        with pytest.raises(ValueError, match="comput"):
            theirs()
        with pytest.raises(InvalidInputError, match="comput"):
            ours()
    table.checkout_latest()
    assert table.version == ds.version
