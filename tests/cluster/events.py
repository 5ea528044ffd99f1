"""The rows that streams on the cluster read, and the tables that come of them by a dictionary."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import lance_stream

NUM_BATCHES = 4
ROWS_A_BATCH = 80
NUM_KEYS = 200

COLUMNS = ("id", "key", "seq", "value")

Rows = list[dict[str, Any]]
ByRowId = dict[int, dict[str, Any]]


def make_batches(seed: int, num_batches: int = NUM_BATCHES, num_bytes: int = 0) -> list[Rows]:
    """Return the batches of a stream: inserts, updates and deletes of some keys.

    Args:
        seed: Of the dice.
        num_batches: How many batches.
        num_bytes: How many bytes a row has at least.
    """
    chance = random.Random(seed)
    batches = []
    for number in range(num_batches):
        keys = chance.sample(range(NUM_KEYS), ROWS_A_BATCH)
        batches.append(
            [
                {
                    "id": number * ROWS_A_BATCH + index,
                    "key": key,
                    "seq": number,
                    "value": f"{number}-{chance.random():.6f}" + "x" * num_bytes,
                    "op": "d" if chance.random() < 0.2 else "u",
                }
                for index, key in enumerate(keys)
            ]
        )
    return batches


def store(uri: str, options: Mapping[str, str], batches: Sequence[Rows]) -> None:
    """Write batches to a table, a version each."""
    tables = [pa.Table.from_pylist(batch) for batch in batches]
    ds = lance_stream.create_dataset(uri, tables[0], storage_options=dict(options))
    for table in tables[1:]:
        ds = ds.append(table)


def store_upserted(uri: str, options: Mapping[str, str], batches: Sequence[Rows]) -> None:
    """Upsert batches into a table, a version each."""
    first = pa.Table.from_pylist(upserted(batches[:1]))
    ds = lance_stream.create_dataset(uri, first, storage_options=dict(options))
    for batch in batches[1:]:
        rows = pa.Table.from_pylist(batch)
        ds = ds.upsert(rows, on=["key"], delete_when="op = 'd'", except_columns=["op"])


def appended(batches: Sequence[Rows]) -> Rows:
    """Return what is in a table to which all rows were appended."""
    return [row for batch in batches for row in batch]


def overwritten(batches: Sequence[Rows]) -> Rows:
    """Return what is in a table whose rows each batch replaces."""
    return list(batches[-1])


def upserted(batches: Sequence[Rows]) -> Rows:
    """Return what is in a table that has the newest row of each key, unless it deletes."""
    rows: dict[int, dict[str, Any]] = {}
    for row in appended(batches):
        rows.pop(row["key"], None)
        if row["op"] != "d":
            rows[row["key"]] = {name: row[name] for name in COLUMNS}
    return list(rows.values())


def history(batches: Sequence[Rows]) -> Rows:
    """Return what is in a table that has the history of each key; no value repeats."""
    rows: Rows = []
    current: dict[int, dict[str, Any]] = {}
    for row in appended(batches):
        before = current.pop(row["key"], None)
        if before is not None:
            before["__END_AT"] = row["seq"]
        if row["op"] != "d":
            row_of_event = {name: row[name] for name in COLUMNS if name != "seq"}
            current[row["key"]] = {**row_of_event, "__START_AT": row["seq"], "__END_AT": None}
            rows.append(current[row["key"]])
    return rows


def in_order(rows: Rows) -> Rows:
    """Return rows by their ids."""
    return sorted(rows, key=lambda row: row["id"])


def by_row_id(rows: Rows) -> ByRowId:
    """Return rows by the row ids that they have as a column."""
    return {row["_rowid"]: {name: row[name] for name in COLUMNS} for row in rows}


def after(before: ByRowId, changes: Rows) -> ByRowId:
    """Return rows after the changes of a feed, which must fit them."""
    rows = dict(before)
    for change in sorted(changes, key=lambda entry: entry["_commit_version"]):
        row_id, kind = change["_rowid"], change["_change_type"]
        row = {name: change[name] for name in COLUMNS}
        if kind in ("delete", "update_preimage"):
            assert rows.pop(row_id) == row
        else:
            assert row_id not in rows
            rows[row_id] = row
    return rows
