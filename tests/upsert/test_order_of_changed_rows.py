"""The order in which upserts write changed rows, and what a manifest then says about them."""

import random
import uuid
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.row_updates.in_place_costs import FragmentCosts
from lance_stream.table.apply.new_fragments import with_moved_rows
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.upsert import row_writer

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("x", pa.string()), ("y", pa.int32())]
)
NUM_ROWS = 4000


def rows(ids: Iterable[int], x: object) -> pa.Table:
    named = list(ids)
    return pa.table(
        {"id": named, "x": [f"{x} {key}" for key in named], "y": [key % 7 for key in named]},
        schema=SCHEMA,
    )


@pytest.fixture(autouse=True)
def _all_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row stays where it is, though some batches lack a column."""
    monkeypatch.setattr(FragmentCosts, "is_cheaper_in_place", property(lambda _: False))


def lived(batches: int, columns: list[str], on: str = "id") -> Dataset:
    """Return a table after batches of scattered updates, and a few inserts."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    shuffled = random.Random(1).sample(range(NUM_ROWS), NUM_ROWS)
    ds = ds.append(rows(shuffled[:2000], "first")).append(rows(shuffled[2000:], "second"))
    dice = random.Random(2)
    for number in range(batches):
        new = range(NUM_ROWS + 10 * number, NUM_ROWS + 10 * number + 10)
        batch = rows([*dice.sample(range(NUM_ROWS), 300), *new], number)
        ds = ds.upsert(batch.select(columns), on=on)
    return ds


@pytest.mark.floors
@pytest.mark.parametrize("columns", [["id", "x", "y"], ["id", "x"]])
def test_changed_rows_are_sorted_by_id(columns: list[str]) -> None:
    """Ascending row ids and versions compress to a few bytes in the manifest, which every commit
    writes again.
    """
    ds = lived(6, columns)
    for fragment in ds.table.manifest.fragments[2:]:
        ids = ds.table.row_ids(fragment).to_array().tolist()
        created = ds.table.row_versions(fragment, fragment.created_at_versions).to_array().tolist()
        assert ids == sorted(ids)
        assert created == sorted(created)
        assert len(ids) == 310
    stored = {row["id"]: row for row in ds.scan().read_all().to_pylist()}
    assert len(stored) == NUM_ROWS + 60
    for key, row in stored.items():
        assert row["x"].split()[1] == str(key)
        assert row["y"] == (key % 7 if key < NUM_ROWS or "y" in columns else None)


def test_unsorted_large_values_keep_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sorting needs all values in memory, so large ones keep their order, and values must not be
    swapped between rows.
    """
    expected = sorted(lived(3, ["id", "x"]).scan(with_row_id=True).read_all().to_pylist(), key=str)
    monkeypatch.setattr(row_writer, "_MAX_SORTED_BYTES", 200)
    ds = lived(3, ["id", "x"])
    records = ds.scan(with_row_id=True, with_row_versions=True).read_all()
    assert sorted(records.select([*SCHEMA.names, "_rowid"]).to_pylist(), key=str) == expected
    in_order = [
        ids == sorted(ids)
        for ids in (
            ds.table.row_ids(fragment).to_array().tolist()
            for fragment in ds.table.manifest.fragments
        )
    ]
    assert not all(in_order[2:])
    by_age = {row["_rowid"]: row["_row_created_at_version"] for row in records.to_pylist()}
    assert all(
        created == (2 if row_id < 2000 else 3)
        for row_id, created in by_age.items()
        if row_id < NUM_ROWS
    )


def test_transactions_omit_lineage_of_touched_fragments() -> None:
    """The lineage of unchanged rows is in the previous manifest already and would make each
    transaction as large as the table.
    """
    ds = lived(8, ["id", "x", "y"])
    ds = ds.delete("id % 50 = 3").update({"x": "'new'"}, where="id % 50 = 4")
    for table in (ds.table, ds.table.read_at(ds.version - 1), ds.table.read_at(ds.version - 2)):
        data = table.manifest.inline_transaction
        assert data is not None
        lineage = sum(len(fragment.row_ids or b"") for fragment in table.manifest.fragments[2:])
        assert len(data) < lineage
    assert all(fragment.row_ids for fragment in ds.table.manifest.fragments)


def test_rows_from_the_future_are_refused() -> None:
    """A plan with versions in which no row can have been created must not be applied."""
    manifest = lived(1, ["id", "x", "y"]).table.manifest
    moved = manifest.fragments[2]
    start = replace(manifest, version=manifest.version + 1)
    for version in (start.version, start.version + 5):
        stated = encode_row_versions(RowVersionSequence.uniform(moved.physical_rows, version))
        wrong = replace(moved, created_at_versions=stated)
        with pytest.raises(CorruptDataError, match="lance-stream verify"):
            with_moved_rows(start, manifest.fragments, [wrong], [])


@pytest.mark.floors
@pytest.mark.parametrize("file_version", ["2.0", "2.1"])
def test_deletes_need_no_other_column(file_version: str) -> None:
    """No row is written, so none can lack a value that the table requires."""
    struct = pa.struct([("a", pa.int64())])
    schema = pa.schema(
        [pa.field("id", pa.int64(), False), pa.field("y", pa.int32(), False), ("s", struct)]
    )
    uri = f"memory://{uuid.uuid4()}/t"
    ds = lance_stream.create_dataset(uri, schema, file_version=file_version)
    stored = [{"id": key, "y": key, "s": {"a": key}} for key in range(4)]
    ds = ds.append(pa.Table.from_pylist(stored, schema))
    deletes = pa.table({"id": [1, 9], "gone": [True, True]})
    ds = ds.upsert(deletes, on="id", delete_when="gone", except_columns="gone")
    assert ds.to_table().to_pylist() == [stored[0], *stored[2:]]
    both = pa.table({"id": [0, 2], "gone": [True, False], "s": pa.array([None, {"a": 7}], struct)})
    ds = ds.upsert(both, on="id", delete_when="gone", except_columns="gone")
    assert sorted(ds.to_table().to_pylist(), key=lambda row: row["id"]) == [
        {**stored[2], "s": {"a": 7}},
        stored[3],
    ]
    with pytest.raises(InvalidInputError, match="'y' must not be null"):
        ds.upsert(pa.table({"id": [30], "gone": [False]}), "id", None, "gone", "gone")


@pytest.mark.parametrize("file_version", ["2.0", "2.1"])
def test_null_structs_move_with_their_rows(file_version: str) -> None:
    """Files of version 2.0 have no null structs, so that such rows go to files without the
    column.
    """
    struct = pa.struct([("a", pa.int64())])
    schema = pa.schema([pa.field("id", pa.int64(), False), ("x", pa.int64()), ("s", struct)])
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", schema, file_version=file_version
    )
    stored = [{"id": key, "x": 0, "s": None if key % 2 else {"a": key}} for key in range(4)]
    for part in stored[::2], stored[1::2]:
        ds = ds.append(pa.Table.from_pylist(part, schema))
    ds = ds.upsert(pa.table({"id": range(4), "x": [7] * 4}), "id")
    rows = ds.to_table().sort_by("id").to_pylist()
    assert rows == [{**row, "x": 7} for row in stored]
    assert ds.verify() == []
