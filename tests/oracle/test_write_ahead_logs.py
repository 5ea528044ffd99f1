"""Changes of columns while a write-ahead log has rows: what pylance refuses, and what it keeps."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError
from lance_stream.verbs.columns.widen_columns import widen_columns

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:the table at .* is written through a write-ahead log"),
]

KEY = {"lance-schema:unenforced-primary-key": "true"}
LONGS = pa.list_(pa.int64())
POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        ("n", pa.int32()),
        ("place", POINT),
        ("tags", pa.list_(pa.int32())),
    ]
)
ROWS = [
    {"id": number, "n": number, "place": {"x": number, "y": -number}, "tags": [number]}
    for number in range(1, 5)
]


class LoggedTable:
    """A table with two rows in versions and two in its log."""

    def __init__(self, path: Path, *, base_rows: int = 2) -> None:
        self.uri = str(path)
        base = pa.Table.from_pylist(ROWS[:base_rows], schema=SCHEMA)
        ds = lance.write_dataset(base, self.uri, enable_stable_row_ids=True)
        ds.update_config({"note": "before the log"})
        ds.initialize_mem_wal()
        self.shard = str(uuid.uuid4())
        with ds.mem_wal_writer(self.shard) as writer:
            writer.put(pa.Table.from_pylist(ROWS[2:], schema=SCHEMA))

    @property
    def ours(self) -> Dataset:
        return lance_stream.open_dataset(self.uri)

    @property
    def pylance(self) -> Any:
        return lance.dataset(self.uri)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as a reader of the log sees them."""
        with self.pylance.mem_wal_writer(self.shard) as writer:
            rows = writer.lsm_scanner().to_table().to_pylist()
        return sorted(rows, key=lambda row: int(next(iter(row.values()))))


Change = Callable[[LoggedTable], Any]

REFUSED: dict[str, tuple[Change, Change, str]] = {
    # what: ours, pylance's, the reason
    "cast": (
        lambda table: table.ours.alter_columns({"path": "n", "data_type": pa.int64()}),
        lambda table: table.pylance.alter_columns({"path": "n", "data_type": pa.int64()}),
        "type of the column 'n'",
    ),
    "cast of a part": (
        lambda table: table.ours.alter_columns({"path": "place.x", "data_type": pa.int64()}),
        lambda table: table.pylance.alter_columns({"path": "place.x", "data_type": pa.int64()}),
        r"type of the column 'place\.x'",
    ),
    "cast of items": (
        lambda table: table.ours.alter_columns({"path": "tags", "data_type": LONGS}),
        lambda table: table.pylance.alter_columns({"path": "tags", "data_type": LONGS}),
        "type of the column 'tags",
    ),
    "computed column": (
        lambda table: table.ours.add_columns({"twice": "n * 2"}),
        lambda table: table.pylance.add_columns({"twice": "n * 2"}),
        "'twice' can only be added as a nullable column",
    ),
    "no nulls": (
        lambda table: table.ours.alter_columns({"path": "n", "nullable": False}),
        lambda table: table.pylance.alter_columns({"path": "n", "nullable": False}),
        "'n' cannot become non-nullable",
    ),
    "renamed key": (
        lambda table: table.ours.rename_columns({"id": "number"}),
        lambda table: table.pylance.alter_columns({"path": "id", "name": "number"}),
        r"primary key \(id\)",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_changes_breaking_logged_rows_are_refused(tmp_path: Path, change: str) -> None:
    """Readers would see NULL in rows that only the log has; pylance refuses such changes, too."""
    table = LoggedTable(tmp_path / "t")
    ours, pylance, reason = REFUSED[change]
    with pytest.raises(OSError, match="a table with a MemWAL"):
        pylance(table)
    files = set((tmp_path / "t" / "data").iterdir())
    version = table.ours.version
    with pytest.raises(InvalidInputError, match=f"{reason}.*write-ahead log.*Merge its rows"):
        ours(table)
    assert table.ours.version == version
    assert set((tmp_path / "t" / "data").iterdir()) == files
    assert table.rows() == ROWS


def test_batches_cannot_widen_logged_columns(tmp_path: Path) -> None:
    """A sink with `widen_types` casts columns by itself, so it meets the same check."""
    table = LoggedTable(tmp_path / "t")
    wider = SCHEMA.set(1, pa.field("n", pa.int64()))
    with pytest.raises(InvalidInputError, match="type of the column 'n'"):
        widen_columns(table.ours.table, wider)


def test_empty_logged_tables_get_no_values(tmp_path: Path) -> None:
    """All rows may be in the log: then no data file shows that the column has values."""
    table = LoggedTable(tmp_path / "t", base_rows=0)
    with pytest.raises(InvalidInputError, match="'twice' can only be added as a nullable column"):
        table.ours.add_columns({"twice": "n * 2"})


SAFE_CHANGES: dict[str, tuple[Change, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "renamed": (
        lambda table: table.ours.rename_columns({"n": "m"}),
        lambda row: {("m" if name == "n" else name): row[name] for name in row},
    ),
    "dropped": (
        lambda table: table.ours.drop_columns(["n"]),
        lambda row: {name: row[name] for name in row if name != "n"},
    ),
    "added": (
        lambda table: table.ours.add_columns(pa.field("m", pa.int32())),
        lambda row: row | {"m": None},
    ),
    "null": (
        lambda table: table.ours.add_columns({"m": "CAST(NULL AS int)"}),
        lambda row: row | {"m": None},
    ),
    "same nullability": (
        lambda table: table.ours.alter_columns({"path": "id", "nullable": False}),
        lambda row: row,
    ),
    "dropped and renamed": (
        lambda table: table.ours.drop_columns(["n"]).rename_columns({"tags": "n"}),
        lambda row: {"id": row["id"], "place": row["place"], "n": row["tags"]},
    ),
}


@pytest.mark.parametrize("change", SAFE_CHANGES)
def test_other_changes_keep_logged_rows_visible(tmp_path: Path, change: str) -> None:
    """Rows in the log are matched by field id, so these changes are safe, as in pylance."""
    table = LoggedTable(tmp_path / "t")
    make, expected = SAFE_CHANGES[change]
    make(table)
    assert table.rows() == [expected(row) for row in ROWS]


@pytest.mark.parametrize("operation", ["overwrite", "restore"])
def test_replacing_all_rows_removes_the_log(tmp_path: Path, operation: str) -> None:
    """The replaced rows include those in the log, as in pylance."""
    table = LoggedTable(tmp_path / "t")
    wider = pa.table({"id": [9], "n": pa.array([9], pa.int64())})
    if operation == "overwrite":
        table.ours.overwrite(wider)
    else:
        table.ours.restore(1)
    assert [index.name for index in table.pylance.describe_indices()] == []
    with pytest.raises(OSError, match="MemWAL is not initialized"):
        table.rows()


def test_restoring_stricter_columns_is_refused(tmp_path: Path) -> None:
    """A restore brings back columns, and keeps the log if the older version has it, too."""
    table = LoggedTable(tmp_path / "t")
    logged = table.ours.version
    with pytest.raises(InvalidInputError, match="'n' cannot become non-nullable"):
        _tightened_without_check(table).alter_columns({"path": "n", "nullable": True}).restore(
            logged + 1
        )
    assert table.rows() == ROWS


def _tightened_without_check(table: LoggedTable) -> Dataset:
    """Return the table after a program that ignores logs made a column non-nullable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lance_stream.table.write_ahead_logs.WRITE_AHEAD_LOG", "another")
        return table.ours.alter_columns({"path": "n", "nullable": False})


def test_derived_columns_reach_merged_log_rows(tmp_path: Path) -> None:
    """Derived columns start as nulls and later rows are computed, so a log is no obstacle."""
    table = LoggedTable(tmp_path / "t")
    doubled = lance_stream.derive(
        table.uri,
        {"twice": pa.int32()},
        lambda batch: [2 * number for number in batch["n"].to_pylist()],
        inputs=["n"],
        function_version="1",
    )
    assert doubled.run().num_computed == 2
    assert [row["twice"] for row in table.rows()] == [2, 4, None, None]
    merge = table.pylance.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    state = {"twice": None, "twice_state": None}
    rows = [row | state for row in ROWS[2:]]
    merge.execute(pa.Table.from_pylist(rows, schema=table.pylance.schema))
    assert doubled.run().num_computed == 2
    assert table.ours.to_table().sort_by("id").column("twice").to_pylist() == [2, 4, 6, 8]
