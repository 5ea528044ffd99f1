"""Upserts that are too large to be collected: staged by tasks, computed once."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.row_updates import staged_files
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark import lance_sink
from lance_stream.spark.sink import batch_writing, modes, staged_upserts
from lance_stream.upsert import attempts
from lance_stream.upsert.large import staged_rows
from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks

pytestmark = pytest.mark.spark


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(modes, "MAX_ROWS_ON_DRIVER", 20)
    monkeypatch.setattr(batch_writing, "SMALL_FIRST_BYTES", -1)
    monkeypatch.setattr(staged_rows, "MAX_ROWS", 100)  # several ranges
    monkeypatch.setattr(staged_files, "MIN_ROWS", 1)
    return str(tmp_path / "table")


def counted(spark: Any, rows: DataFrame) -> tuple[DataFrame, Any]:
    """Return the same rows, and a counter of those that were computed."""
    counter = spark.sparkContext.accumulator(0)

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    return rows.mapInArrow(count, rows.schema), counter


def rows_in(uri: str) -> dict[int, int]:
    columns = lance_stream.open_dataset(uri).to_table().to_pydict()
    assert len(set(columns["id"])) == len(columns["id"])
    return dict(zip(columns["id"], columns["x"], strict=True))


def staged_files_of(uri: str) -> list[str]:
    return [str(path) for path in (Path(uri) / "_lance_stream" / "staged_rows").glob("*")]


@pytest.mark.parametrize("is_cluster", [False, True], ids=["local master", "cluster"])
def test_a_large_batch_is_computed_once(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, is_cluster: bool
) -> None:
    """The query of a batch may be expensive or nondeterministic, however often the upsert is
    planned, also in the first batch of a run.
    """
    monkeypatch.setattr(staged_upserts, "driver_is_alone", lambda _: not is_cluster)
    sink = lance_sink(uri, mode="upsert", on="id", delete_when="x = 7", app_id="a")
    first, counter = counted(spark, spark.range(300).selectExpr("id", "id % 5 AS x"))
    sink(first, 0)
    assert counter.value == 300
    committed: list[int] = []
    commit = attempts.commit_planned

    def beaten_once(table: TableVersion, *arguments: Any, **named: Any) -> Any:
        if not committed:
            lance_stream.open_dataset(uri).update({"x": "x + 100"}, "id = 250")
        committed.append(table.version)
        return commit(table, *arguments, **named)

    monkeypatch.setattr(attempts, "commit_planned", beaten_once)
    for _ in range(2):
        again, counter = counted(spark, spark.range(100, 400, 1, 3).selectExpr("id", "id % 8 AS x"))
        sink(again, 1)
        assert counter.value == 300
    assert committed == [1, 2]
    model = {number: number % 5 for number in range(100)}
    assert rows_in(uri) == model | {
        number: number % 8 for number in range(100, 400) if number % 8 != 7
    }
    assert sink.last_commit is not None
    assert sink.last_commit.skipped  # the second one is a replay, computed for its digest
    assert not staged_files_of(uri)


def test_small_batches_are_staged_in_memory(spark: Any, uri: str) -> None:
    """The sink expects another large batch, and an empty or tiny one must still be counted and
    applied.
    """
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    sink(spark.range(300).selectExpr("id", "0L AS x"), 0)
    for batch_id, count in enumerate((1, 0, 30), 1):
        sink(spark.range(count).selectExpr("id", f"{batch_id}L AS x"), batch_id)
        assert sink.last_commit is not None
        assert sink.last_commit.rows_in == count
    assert sum(rows_in(uri).values()) == 90


def test_tasks_keep_wide_rows_in_place(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a batch has one of many columns, each fragment is updated in one task, with the rows
    of all staged files.
    """
    upsert_by_tasks(monkeypatch)
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    wide = "id", "id AS x", "repeat(cast(id AS string), 1000) AS text"
    sink(spark.range(0, 300, 1, 3).selectExpr(*wide), 0)
    before = lance_stream.open_dataset(uri)
    sink(spark.range(100, 310, 1, 3).selectExpr("id", "-id AS x"), 1)
    model = {number: number if number < 100 else -number for number in range(310)}
    assert rows_in(uri) == model
    after = lance_stream.open_dataset(uri)
    assert lance.dataset(uri).to_table(columns=["id"]).num_rows == 310
    old_files = {file for fragment in before.table.manifest.fragments for file in fragment.files}
    updated = [fragment for fragment in after.table.manifest.fragments if len(fragment.files) > 1]
    assert {entry.id for entry in updated} == set(before.table.manifest.fragments.ids)
    assert {value.files[0].path for value in updated} == {file.path for file in old_files}
    assert all(fragment.deletion_file is None for fragment in updated)
    feed = after.changes(before.version).read_all().to_pylist()
    changed = [row["id"] for row in feed if row["_change_type"] == "update_postimage"]
    assert sorted(changed) == list(range(100, 300))
    assert not staged_files_of(uri)


@pytest.mark.parametrize("fails", ["a task", "the driver"])
def test_refused_batches_leave_no_staged_files(
    spark: Any, uri: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A null key is noticed by a task and a duplicate by the driver, and both have staged rows by
    then.
    """
    monkeypatch.setattr(staged_rows, "_MAX_INLINE_BYTES", 0)
    sink = lance_sink(uri, mode="upsert", on="id", app_id="a")
    key = "nullif(id, 250)" if fails == "a task" else "id % 290"
    with pytest.raises(
        InvalidInputError, match="no key" if fails == "a task" else "more than once"
    ):
        sink(spark.range(0, 300, 1, 2).selectExpr(f"{key} AS id", "0L AS x"), 0)
    assert not staged_files_of(uri)
    assert not list((Path(uri) / "data").glob("*.lance"))


def test_staged_results_can_be_read_back() -> None:
    """Tasks return small results in memory and describe the rows that they left out."""
    assert staged_upserts._OUTCOME.names == list(staged_upserts._OUTCOME_SCHEMA.names)
