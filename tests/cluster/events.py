"""The rows that streams on the cluster read, and the expected rows of the tables they write."""

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
        seed: The seed of the random values.
        num_batches: The number of batches.
        num_bytes: The minimum size of a row.
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
    """Write batches to a table, one version per batch."""
    tables = [pa.Table.from_pylist(batch) for batch in batches]
    ds = lance_stream.create_dataset(uri, tables[0], storage_options=dict(options))
    for table in tables[1:]:
        ds = ds.append(table)


def store_upserted(uri: str, options: Mapping[str, str], batches: Sequence[Rows]) -> None:
    """Upsert batches into a table, one version per batch."""
    first = pa.Table.from_pylist(upserted(batches[:1]))
    ds = lance_stream.create_dataset(uri, first, storage_options=dict(options))
    for batch in batches[1:]:
        rows = pa.Table.from_pylist(batch)
        ds = ds.upsert(rows, on=["key"], delete_when="op = 'd'", except_columns=["op"])


def appended(batches: Sequence[Rows]) -> Rows:
    """Return the rows of a table to which all batches are appended."""
    return [row for batch in batches for row in batch]


def overwritten(batches: Sequence[Rows]) -> Rows:
    """Return the rows of a table that each batch overwrites."""
    return list(batches[-1])


def upserted(batches: Sequence[Rows]) -> Rows:
    """Return the rows of a table of the newest row of each key, unless that row deletes."""
    rows: dict[int, dict[str, Any]] = {}
    for row in appended(batches):
        rows.pop(row["key"], None)
        if row["op"] != "d":
            rows[row["key"]] = {name: row[name] for name in COLUMNS}
    return list(rows.values())


def history(batches: Sequence[Rows]) -> Rows:
    """Return the rows of a table of the history of each key; no value repeats."""
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
    """Return rows in the order of their ids."""
    return sorted(rows, key=lambda row: row["id"])


def by_row_id(rows: Rows) -> ByRowId:
    """Return rows by their row ids, from a column."""
    return {row["_rowid"]: {name: row[name] for name in COLUMNS} for row in rows}


def after(before: ByRowId, changes: Rows) -> ByRowId:
    """Apply the changes of a feed to rows; fails if they do not fit."""
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
