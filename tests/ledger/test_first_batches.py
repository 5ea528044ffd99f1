"""A table is created with its first rows, in one commit, or not at all."""

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError, TableReplacedError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import newest_version_of, open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import read_tombstones
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.create import check_column_types, plan_table
from lance_stream.verbs.jobs import plan_job
from lance_stream.verbs.overwrite import overwrite_fragments
from lance_stream.write.fragments import write_fragments, write_target
from lance_stream.write.planning import Outcome

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("gone", pa.bool_())])


def rows(*ids: int, is_delete: bool = False) -> pa.Table:
    num = len(ids)
    return pa.table({"id": list(ids), "at": [5] * num, "gone": [is_delete] * num}, schema=SCHEMA)


def batch(number: int = 0) -> PendingBatch:
    return PendingBatch.of("app", number, "query")


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4()}/table"


Take = Callable[[TableVersion, pa.Table, PendingBatch], object]


def by_append(table: TableVersion, data: pa.Table, number: PendingBatch) -> Outcome:
    return append_fragments(table, write_fragments(data.to_batches(), write_target(table)), number)


def by_overwrite(table: TableVersion, data: pa.Table, number: PendingBatch) -> Outcome:
    written = write_fragments(data.to_batches(), write_target(table))
    return overwrite_fragments(table, written, table.schema, number)


def by_upsert(table: TableVersion, data: pa.Table, number: PendingBatch) -> object:
    return upsert(table, data, UpsertRules(("id",), sequence_by="at"), number)


WAYS: dict[str, Take] = {"append": by_append, "overwrite": by_overwrite, "upsert": by_upsert}


@pytest.mark.parametrize("way", WAYS)
def test_first_versions_have_rows_and_ledger(uri: str, way: str) -> None:
    """An empty first version would let a crash leave a table whose first batch is missing."""
    planned = plan_table(uri, SCHEMA, config={"a": "b"}, primary_key=["id"], file_version="2.1")
    assert planned.store.list() == []
    WAYS[way](planned, rows(1, 2), batch())
    ds = lance_stream.open_dataset(uri)
    assert (ds.version, ds.file_version, ds.table.manifest.config["a"]) == (1, "2.1", "b")
    assert ds.to_table(with_row_id=True)["_rowid"].to_pylist() == [0, 1]
    assert ds.schema.field("id").metadata[b"lance-schema:unenforced-primary-key"] == b"true"
    entry = batch().find_in(ds.table)
    assert entry is not None
    assert entry.version == 1
    assert ds.verify() == []
    WAYS[way](planned, rows(1, 2), batch())
    assert lance_stream.open_dataset(uri).version == 1, "a replay"
    changes = ds.changes(0).read_all()
    assert changes["_change_type"].to_pylist() == ["insert", "insert"]


@pytest.mark.parametrize("stable_row_ids", [True, False])
def test_table_options_apply_to_first_commits(uri: str, stable_row_ids: bool) -> None:
    """The options are given when the table is planned, but the table is created
    by a later commit.
    """
    planned = plan_table(uri, SCHEMA, stable_row_ids=stable_row_ids)
    by_append(planned, rows(1), batch())
    assert lance_stream.open_dataset(uri).has_stable_row_ids == stable_row_ids


@pytest.mark.parametrize("way", WAYS)
def test_failed_first_batches_create_no_table(tmp_path: Path, way: str) -> None:
    """The corrected batch may have other types, which a leftover table would refuse."""
    uri = str(tmp_path / "t")
    too_large = pa.table({"id": [1], "at": [1], "gone": ["no bool"]})
    with pytest.raises(InvalidInputError):
        WAYS[way](plan_table(uri, SCHEMA), too_large, batch())
    with pytest.raises(lance_stream.NotFoundError):
        lance_stream.open_dataset(uri)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    other = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("gone", pa.string())])
    WAYS[way](plan_table(uri, other), too_large, batch())
    assert lance_stream.open_dataset(uri).count_rows() == 1


def test_first_deletes_create_no_plain_table(uri: str) -> None:
    """Without remembered deletes there is nothing to store, and so no table to create."""
    forgetful = UpsertRules(("id",), sequence_by="at", delete_when="gone")
    assert not upsert(plan_table(uri, SCHEMA), rows(1, is_delete=True), forgetful, batch()).is_new
    with pytest.raises(lance_stream.NotFoundError):
        open_newest(uri)
    rules = UpsertRules(("id",), sequence_by="at", delete_when="gone", tombstones=timedelta(days=7))
    result = upsert(plan_table(uri, SCHEMA), rows(1, is_delete=True), rules, batch(1))
    assert (result.is_new, result.table.version) == (True, 1)
    remembered = read_tombstones(result.table.manifest.config)
    assert remembered is not None
    assert remembered.files
    late = upsert(newest_version_of(result.table), rows(1), rules, batch(2))
    assert (late.num_late, lance_stream.open_dataset(uri).count_rows()) == (1, 0)


@pytest.mark.parametrize("way", WAYS)
def test_concurrent_drivers_share_one_table(uri: str, way: str) -> None:
    """Both have planned a new table, and the later one has to follow the other's version."""
    ours, theirs = plan_table(uri, SCHEMA), plan_table(uri, SCHEMA)
    WAYS[way](theirs, rows(1), PendingBatch.of("theirs", 0, "other"))
    WAYS[way](ours, rows(2), batch())
    ds = lance_stream.open_dataset(uri)
    assert ds.version == 2
    assert ds.to_table()["id"].to_pylist() == ([2] if way == "overwrite" else [1, 2])
    assert ds.verify() == []


@pytest.mark.parametrize("way", WAYS)
def test_many_drivers_create_one_table(uri: str, way: str) -> None:
    """With real threads every driver races to publish version 1."""
    tables = [plan_table(uri, SCHEMA) for _ in range(6)]
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            WAYS[way](tables[number], rows(number), PendingBatch.of(f"app {number}", 0, "q"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    ds = lance_stream.open_dataset(uri)
    assert ds.version == 6
    assert ds.verify() == []
    if way != "overwrite":
        assert sorted(ds.to_table()["id"].to_pylist()) == list(range(6))


@pytest.mark.parametrize("way", ["append", "overwrite"])
def test_files_for_other_columns_are_refused(tmp_path: Path, way: str) -> None:
    """Another writer may create the table with other columns while the files are written."""
    uri = str(tmp_path / "t")
    planned = plan_table(uri, SCHEMA)
    lance_stream.create_dataset(uri, pa.schema([("x", pa.int64()), ("y", pa.int64())]))
    with pytest.raises(TableReplacedError, match="with other columns"):
        WAYS[way](planned, rows(1), batch())
    assert list((tmp_path / "t" / "data").glob("*")) == []
    assert lance_stream.open_dataset(uri).version == 1


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.list_(pa.null()), pa.struct([("a", pa.int8()), ("b", pa.null())])]
)
def test_untyped_null_columns_create_no_table(uri: str, kind: pa.DataType) -> None:
    """A column whose type is unknown could never be given values later."""
    schema = pa.schema([("id", pa.int64()), ("x", kind)])
    with pytest.raises(InvalidInputError, match="'x' has or contains the type null"):
        check_column_types(schema)
    with pytest.raises(InvalidInputError, match="cast it to the type"):
        plan_job(uri, schema)
