import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_stream.spark.jobs.arrow_jobs import (
    Size,
    collect_arrow,
    create_frame,
    map_in_arrow,
    measure,
    settings,
    slots_of,
)

COLUMNS = StructType([StructField("pid", LongType()), StructField("archives", StringType())])


def seen_in_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the worker's process id, and the archives that it has readers of at the start."""
    import contextlib
    import importlib
    import os
    import sys
    import zipimport

    archives = [
        path
        for path, reader in sys.path_importer_cache.items()
        if isinstance(reader, zipimport.zipimporter)
    ]
    for _ in batches:
        pass
    # An import that is not there asks each reader: all archives on the path have one again.
    with contextlib.suppress(ImportError):
        importlib.import_module("no_such_module_anywhere")
    yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "archives": ["\n".join(archives)]})


@pytest.mark.spark
def test_workers_drop_archive_readers_between_tasks(spark: Any) -> None:
    """Python keeps a reader with the directory of each archive on `sys.path`, so a worker that
    lives for days would collect stale ones.
    """

    def task() -> Any:
        return map_in_arrow(spark.range(3).coalesce(1), seen_in_worker, COLUMNS).collect()[0]

    seen: dict[int, list[str]] = {}
    for _ in range(8):  # until a worker comes a second time
        row = task()
        seen.setdefault(row.pid, []).append(row.archives)
        if len(seen[row.pid]) == 3:
            break
    again = [archives for runs in seen.values() for archives in runs[1:]]
    assert again
    # what Spark itself imports between two tasks may bring a reader of its own archive back
    assert max(len(archives.splitlines()) for archives in again) <= 2, again


@pytest.mark.spark
def test_archives_can_be_imported_afterwards(spark: Any, tmp_path: Path) -> None:
    """Dropping the reader of an archive must not make its modules unimportable for the worker's
    next task.
    """
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("first_of_archive.py", "VALUE = 1")
        file.writestr("second_of_archive.py", "VALUE = 2")
    path = str(archive)

    def imports(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import sys

        for _ in batches:
            pass
        if path not in sys.path:
            sys.path.append(path)
        values = [
            importlib.import_module(name).VALUE
            for name in ("first_of_archive", "second_of_archive")
        ]
        for name in ("first_of_archive", "second_of_archive"):
            del sys.modules[name]
        yield pa.RecordBatch.from_pydict({"pid": [sum(values)], "archives": [""]})

    for _ in range(2):
        rows = map_in_arrow(spark.range(3).coalesce(1), imports, COLUMNS).collect()
        assert [row.pid for row in rows] == [3]


@pytest.mark.floors
@pytest.mark.spark
def test_rows_are_collected_within_limits(spark: Any) -> None:
    """The driver must not collect more rows or bytes than it has memory for, and errors of the
    query must not look like a batch that is too large.
    """
    df = spark.range(0, 1000, 1, 5)
    whole = Size(1000, 8000)
    assert measure(df) == whole
    rows = collect_arrow(df, whole)
    assert rows is not None
    assert rows["id"].to_pylist() == list(range(1000))
    assert collect_arrow(df, Size(999, 8000)) is None
    assert collect_arrow(df, Size(1000, 7999)) is None
    empty = collect_arrow(df.filter("id < 0"), whole)
    assert empty is not None
    assert empty.schema.names == ["id"]
    with pytest.raises((PySparkException, Py4JJavaError), match="no such row"):
        collect_arrow(df.selectExpr("if(id = 500, raise_error('no such row'), id)"), whole)


@pytest.mark.spark
def test_errors_before_rows_are_reported(spark: Any) -> None:
    """An expression that fails while Spark compiles it ends Spark's stream before its schema,
    which pyarrow can only call null.
    """
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        collect_arrow(spark.range(2).selectExpr("1 / 0 AS v"), Size(10, 1 << 20))


@pytest.mark.since_spark("4.0")  # older ones have no public call
@pytest.mark.spark
def test_batches_are_measured_without_private_calls(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release of Spark may lack the private calls, and an unmeasured batch could exhaust the
    driver's memory when it is collected.
    """
    monkeypatch.delattr("pyspark.errors.exceptions.captured.unwrap_spark_exception")
    df = spark.range(10)
    rows = collect_arrow(df, Size(10, 80))
    assert rows is not None
    assert rows.num_rows == 10
    assert collect_arrow(df, Size(9, 80)) is None


TWO_COLUMNS = StructType([StructField("id", LongType()), StructField("text", StringType())])


def numbered(num_rows: int) -> pa.Table:
    return pa.table({"id": np.arange(num_rows), "text": ["x" * 200] * num_rows})


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.spark
@pytest.mark.since_spark("4.0")
def test_large_frames_stay_arrow_data(spark: Any) -> None:
    """Spark would encode rows of its plan again for every job; a partition per slot uses all cores,
    and more partitions only cost time.
    """
    rows = numbered(30_000)  # 6.4 MB: neither few rows nor a whole partition per 10,000 rows
    frame = create_frame(spark, rows, TWO_COLUMNS)
    assert "RDD" in plan_of(frame)
    assert frame.rdd.getNumPartitions() == slots_of(spark)
    assert frame.toArrow() == rows


@pytest.mark.spark
@pytest.mark.since_spark("4.0")
def test_small_frames_are_part_of_plans(spark: Any) -> None:
    """Spark must know that a few rows are few, so that a join broadcasts them."""
    assert "LocalRelation" in plan_of(create_frame(spark, numbered(10), TWO_COLUMNS))


@pytest.mark.spark
@pytest.mark.since_spark("4.0")
def test_arrow_frames_leave_settings_alone(spark: Any) -> None:
    """A user's own frames must be created as the user has set it."""
    name = "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(name)
    create_frame(spark, numbered(30_000), TWO_COLUMNS)
    assert spark.conf.get(name) == before
    with settings(spark, {name: "7b"}):
        create_frame(spark, numbered(30_000), TWO_COLUMNS)
        assert spark.conf.get(name) == "7b"
