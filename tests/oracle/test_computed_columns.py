"""Columns that LanceDB declares as computed: no verb stores values in them or breaks their inputs.

The declarations are as LanceDB writes them; `tests/neighbours` asks LanceDB itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, open_dataset
from lance_stream.snapshot.opening import open_newest
from lance_stream.verbs.columns.fit_columns import fit_columns
from lance_stream.verbs.jobs import plan_job

pytestmark = pytest.mark.oracle

DECLARATION = {
    "computed_column": "true",
    "computed_column.kind": "sql",
    "computed_column.expression": "price * 2 + size.w",
    "computed_column.inputs": '["price", "size.w"]',
    "computed_refresh.source_signature": "{}",
}
SIZE = pa.struct([("w", pa.int64()), ("h", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.int32()),
        pa.field("size", SIZE),
        pa.field("note", pa.string()),
        pa.field("total", pa.int64(), metadata=DECLARATION),
    ]
)


def rows(*ids: int) -> pa.Table:
    values = [{"id": row_id, "price": 1, "size": {"w": 1, "h": 1}} for row_id in ids]
    return pa.Table.from_pylist([{**value, "note": "", "total": 3} for value in values], SCHEMA)


ROWS = rows(1, 2)
ALLOWED = ROWS.drop_columns(["total"])


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri, enable_stable_row_ids=True)
    return open_dataset(uri)


WRITES: dict[str, Callable[[Dataset], Any]] = {
    "append": lambda ds: ds.append(ROWS),
    "append of plain columns": lambda ds: ds.append(pa.table({"id": [3], "total": [1]})),
    "append of nulls": lambda ds: ds.append(
        pa.table({"id": [3], "total": pa.nulls(1, pa.int64())})
    ),
    "overwrite": lambda ds: ds.overwrite(ROWS),
    "overwrite with one column": lambda ds: ds.overwrite(pa.table({"total": [1]})),
    "upsert": lambda ds: ds.upsert(ROWS, on="id"),
    "upsert of some columns": lambda ds: ds.upsert(ROWS.select(["id", "total"]), on="id"),
    "update": lambda ds: ds.update({"total": "1"}),
    "apply_scd1": lambda ds: ds.apply_scd1(
        ROWS.append_column("at", pa.array([1, 1])), keys="id", sequence_by="at"
    ),
    "sink": lambda ds: fit_columns(ds.table, SCHEMA, (), case_sensitive=False),
    "sink's upsert": lambda ds: fit_columns(ds.table, SCHEMA, (), case_sensitive=False, key=["id"]),
    "Spark's append": lambda ds: plan_job(ds.uri, SCHEMA),
    "Spark's append with new columns": lambda ds: plan_job(
        ds.uri, SCHEMA.append(pa.field("new", pa.int64())), add_columns=True
    ),
    "Spark's overwrite": lambda ds: plan_job(ds.uri, SCHEMA, overwrite=True),
}
BREAKS: dict[str, Callable[[Dataset], Any]] = {
    "drop": lambda ds: ds.drop_columns("price"),
    "drop of a part": lambda ds: ds.drop_columns("size.h"),
    "rename": lambda ds: ds.rename_columns({"price": "cost"}),
    "swapped names": lambda ds: ds.rename_columns({"price": "note", "note": "price"}),
    "cast": lambda ds: ds.alter_columns({"path": "price", "data_type": pa.int64()}),
    "cast by a batch": lambda ds: plan_job(
        ds.uri, pa.schema([("id", pa.int64()), ("price", pa.int64())]), widen_types=True
    ),
}
CHANGES_OF_DECLARATIONS: dict[str, Callable[[Dataset], Any]] = {
    "cast": lambda ds: ds.alter_columns({"path": "total", "data_type": pa.decimal128(30)}),
    "entry": lambda ds: ds.update_metadata(fields={"total": {"computed_column.kind": "x"}}),
    "refresh": lambda ds: ds.update_metadata(
        fields={"total": {"computed_refresh.source_signature": None}}
    ),
    "all entries": lambda ds: ds.update_metadata(fields={"total": {"unit": "EUR"}}, replace=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_no_verb_stores_computed_values(ds: Dataset, write: Callable[[Dataset], Any]) -> None:
    """LanceDB's refresh would take them for its own."""
    with pytest.raises(InvalidInputError, match="the column 'total' is computed by LanceDB"):
        write(ds)
    assert open_dataset(ds.uri).version == ds.version
    assert len(list((Path(ds.uri) / "data").iterdir())) == 1


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS.keys())
def test_inputs_of_computed_columns_stay(ds: Dataset, change: Callable[[Dataset], Any]) -> None:
    """LanceDB could no longer compute the column without its inputs."""
    with pytest.raises(InvalidInputError, match="LanceDB computes the column 'total' from it"):
        change(ds)
    assert open_dataset(ds.uri).version == ds.version
    assert len(list((Path(ds.uri) / "data").iterdir())) == 1


@pytest.mark.parametrize(
    "change", CHANGES_OF_DECLARATIONS.values(), ids=CHANGES_OF_DECLARATIONS.keys()
)
def test_computed_declarations_cannot_be_changed(
    ds: Dataset, change: Callable[[Dataset], Any]
) -> None:
    """Stored values would contradict the declaration that LanceDB computes them."""
    with pytest.raises(InvalidInputError, match="the column 'total' is computed by LanceDB"):
        change(ds)
    assert open_dataset(ds.uri).version == ds.version


def test_only_lancedb_declares_computed_columns(ds: Dataset, tmp_path: Path) -> None:
    """A declaration by us would promise values that nobody computes."""
    match = "'total' is declared as computed"
    for rows_or_schema in (SCHEMA, ROWS):
        with pytest.raises(InvalidInputError, match=match):
            lance_stream.create_dataset(tmp_path / "new", rows_or_schema)
    plain = ds.drop_columns("total")
    with pytest.raises(InvalidInputError, match=match):
        plain.add_columns(SCHEMA.field("total"))
    with pytest.raises(InvalidInputError, match=match):
        plain.overwrite(ROWS)
    with pytest.raises(InvalidInputError, match="'note' is declared as computed"):
        plain.update_metadata(fields={"note": DECLARATION})


def test_everything_else_is_allowed(ds: Dataset) -> None:
    """The computed column is null in new rows, and keeps its values in changed ones."""
    ds = ds.append(ALLOWED.set_column(0, SCHEMA.field(0), pa.array([3, 4])))
    ds = ds.upsert(
        ALLOWED.slice(0, 1).set_column(1, SCHEMA.field(1), pa.array([7], pa.int32())), on="id"
    )
    ds = ds.update({"price": "price + 1"}, where="id = 2").delete("id = 4").compact()
    ds = ds.drop_columns("note").rename_columns({"total": "sum"})
    ds = ds.add_columns(pa.field("size.d", pa.int64()))
    ds = ds.alter_columns({"path": "price", "nullable": True}, {"path": "id", "name": "key"})
    ds = ds.update_metadata(fields={"sum": {"unit": "EUR"}})
    rows = {row["key"]: (row["price"], row["sum"]) for row in ds.to_table().to_pylist()}
    assert rows == {1: (7, 3), 2: (2, 3), 3: (1, None)}
    assert open_newest(ds.uri).schema.fields[-1].metadata["computed_column"] == b"true"
    assert ds.drop_columns(["price", "sum"]).schema.names == ["key", "size"]
    assert ds.overwrite(ALLOWED).schema.names == ALLOWED.column_names


def test_unreadable_inputs_keep_all_columns(tmp_path: Path) -> None:
    """When the inputs are unknown, every column may be one."""
    metadata = {**DECLARATION, "computed_column.inputs": "price"}
    schema = SCHEMA.set(4, pa.field("total", pa.int64(), metadata=metadata))
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS.cast(schema), uri)
    with pytest.raises(InvalidInputError, match="the column 'note' cannot be dropped"):
        open_dataset(uri).drop_columns("note")
    assert "total" not in open_dataset(uri).drop_columns(["note", "total"]).schema.names
