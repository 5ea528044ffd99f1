"""The rows of a stream's small batch reach Spark along with the plan, without a Python task."""

import io
import json
import pickle
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.serializers import UTF8Deserializer
from pyspark.sql.streaming import python_streaming_source_runner as runner

import lance_stream
from lance_stream.spark import register
from lance_stream.spark.feed import sent_rows
from lance_stream.spark.jobs.task_input import TaskInput, TaskReader
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.session.session_settings import is_cluster
from lance_stream.spark.source.lance_source import LanceSource

NOT_FOUND, ROWS = runner.PREFETCHED_RECORDS_NOT_FOUND, runner.NON_EMPTY_PYARROW_RECORD_BATCHES


def make_table(folder: Path, num_rows: int) -> str:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    ds = lance_stream.create_dataset(folder / "t", schema, primary_key=["id"])
    ds.append(pa.table({"id": np.arange(num_rows)}))
    return str(folder / "t")


class DriverStream:
    """A stream as Spark calls it, in the process that runs for the whole query."""

    def __init__(self, uri: str, **options: str) -> None:
        self.source = LanceSource({"path": uri, "readchangefeed": "true", **options})
        self.schema = self.source.schema()
        self.reader: Any = self.source.streamReader(self.schema)
        self.kind = type(self.reader)

    def plan(self, start: Any, end: Any) -> tuple[list[Any], int, list[pa.RecordBatch]]:
        """Return the inputs of a batch, Spark's information about its rows, and the rows."""
        sent, answer = io.BytesIO(), io.BytesIO()
        for offset in (start, end):
            text = json.dumps(offset).encode()
            sent.write(struct.pack(">i", len(text)) + text)
        sent.seek(0)
        assert isinstance(runner.utf8_deserializer, UTF8Deserializer)
        runner.partitions_func(self.reader, self.source, self.schema, 10_000, sent, answer)
        answer.seek(0)
        (num_task_inputs,) = struct.unpack(">i", answer.read(4))
        inputs = []
        for _ in range(num_task_inputs):
            (size,) = struct.unpack(">i", answer.read(4))
            inputs.append(pickle.loads(answer.read(size)))
        (flag,) = struct.unpack(">i", answer.read(4))
        batches = []
        if flag == ROWS:
            answer.read(4)  # the start of an Arrow stream
            batches = list(pa.ipc.open_stream(answer))
        return inputs, flag, batches


def positions(stream: DriverStream) -> tuple[Any, Any]:
    start = stream.reader.initialOffset()
    limit = getattr(runner, "READ_LIMIT_REGISTRY", None)
    if limit is None:
        return start, stream.reader.latestOffset()
    return start, stream.reader.latestOffset(start, stream.reader.getDefaultReadLimit())


def test_small_batches_are_sent_with_plans(tmp_path: Path) -> None:
    """Sent rows save a Python task per batch, and the task must still be able to read the same
    rows if Spark has lost them.
    """
    stream = DriverStream(make_table(tmp_path, 1000))
    inputs, flag, batches = stream.plan(*positions(stream))
    assert (len(inputs), flag) == (1, ROWS)
    rows = pa.Table.from_batches(batches)
    assert rows["id"].to_pylist() == list(range(1000))
    read = pa.Table.from_batches(TaskReader().read(inputs[0]))
    assert read.equals(rows)  # if Spark has lost them


def test_readers_return_prefetched_rows_once(tmp_path: Path) -> None:
    """A stream runs for months, and rows that Spark never fetched must not stay in its memory."""
    stream = DriverStream(make_table(tmp_path, 1000))
    start, end = positions(stream)
    stream.plan(start, end)
    assert type(stream.reader) is stream.kind
    stream.reader.partitions(start, end)  # and nobody asks for the rows
    assert type(stream.reader) is not stream.kind
    assert stream.reader.partitions(end, end) == []
    assert type(stream.reader) is stream.kind


def test_replanned_batches_send_equal_rows(tmp_path: Path) -> None:
    """A restarted query repeats a batch, which must be identical for exactly-once sinks."""
    uri = make_table(tmp_path, 1000)
    stream = DriverStream(uri)
    start, end = positions(stream)
    before = stream.plan(start, end)[2]
    again = DriverStream(uri).plan(start, end)[2]
    assert pa.Table.from_batches(before).equals(pa.Table.from_batches(again))


def test_large_batches_are_left_to_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows would travel through a single process, so large batches have to be read in
    parallel.
    """
    monkeypatch.setattr(sent_rows, "MAX_SENT_BYTES", 10_000)
    stream = DriverStream(make_table(tmp_path, 1000))
    inputs, flag, _ = stream.plan(*positions(stream))
    assert flag == NOT_FOUND
    rows = [value for task_input in inputs for value in TaskReader().read(task_input)]
    assert sum(row.num_rows for row in rows) == 1000


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.list_(pa.int32()), [[1, None]], True),
        (pa.list_(pa.bool_()), [None, [], [None]], True),
        (pa.list_(pa.list_(pa.float64())), [[[1.0]], [[2.0], [None]]], True),
        (pa.map_(pa.string(), pa.date32()), [[("a", None)]], True),
        (pa.map_(pa.string(), pa.list_(pa.int8())), [[("a", [None])]], True),
        (pa.struct([("p", pa.list_(pa.timestamp("us")))]), [{"p": [None]}], True),
        (pa.list_(pa.struct([("p", pa.list_(pa.int64()))])), [[{"p": [1, None]}]], True),
        (pa.list_(pa.int32()), [None, [], [1]], False),
        (pa.list_(pa.list_(pa.int32())), [[None, [1]]], False),
        (pa.list_(pa.string()), [["a", None]], False),
        (pa.list_(pa.struct([("p", pa.int32())])), [[None, {"p": None}]], False),
        (pa.struct([("p", pa.int32())]), [None, {"p": None}], False),
        (pa.int64(), [None], False),
    ],
    ids=str,
)
def test_uncopyable_null_items_are_detected(
    kind: pa.DataType, values: list[Any], expected: bool
) -> None:
    """Null numbers in lists and maps at any depth, also outside of a slice, are detected."""
    array = pa.array([*values, *values], kind)
    assert sent_rows.has_null_items(array) is expected
    assert sent_rows.has_null_items(array.slice(len(values))) is expected


def test_uncopyable_rows_are_left_to_tasks(tmp_path: Path) -> None:
    """Spark's own copy of Arrow rows fails for nulls among numbers in lists, which the other path
    handles.
    """
    table = pa.table({"id": [1], "v": pa.array([[1.0, None]], pa.list_(pa.float32()))})
    stream = DriverStream(lance_stream.create_dataset(tmp_path / "t", table).uri)
    inputs, flag, _ = stream.plan(*positions(stream))
    assert flag == NOT_FOUND
    (batch,) = TaskReader().read(inputs[0])
    assert batch["v"].to_pylist() == [[1.0, None]]


def test_read_errors_are_left_to_tasks(tmp_path: Path) -> None:
    """Spark retries a failed task, while an error of the planner ends the query."""
    uri = make_table(tmp_path, 1000)
    stream = DriverStream(uri)
    offsets = positions(stream)
    for path in (tmp_path / "t" / "data").iterdir():
        path.unlink()
    inputs, flag, _ = stream.plan(*offsets)
    assert (len(inputs), flag) == (1, NOT_FOUND)
    with pytest.raises(lance_stream.NotFoundError):
        list(TaskReader().read(inputs[0]))


@pytest.mark.parametrize(
    "options", [{"readchangefeed": "true", "startingversion": "1"}, {}], ids=["changes", "rows"]
)
def test_clusters_leave_all_rows_to_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """On a cluster the planner runs on one machine, which should not read for all."""
    monkeypatch.setattr(LanceSource, "session_options", SessionOptions(is_cluster=True))
    uri = make_table(tmp_path, 1000)
    stream = DriverStream(uri)
    assert stream.plan(*positions(stream))[1] == NOT_FOUND
    source = LanceSource({"path": uri, **options})
    (task_input,) = source.reader(source.schema()).partitions()
    assert isinstance(task_input, TaskInput)


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", False), ("local[4]", False), ("local-cluster[2,1,512]", True), ("yarn", True)],
)
def test_clusters_are_recognized_by_their_master(master: str, expected: bool) -> None:
    """Only the master's URL tells whether tasks run on the driver's machine; `local-cluster` is a
    cluster as well.
    """

    class Session:
        conf = {"spark.master": master}  # noqa: RUF012  # only read

    assert is_cluster(Session()) is expected  # type: ignore[arg-type]  # as much of a session as is looked at


def test_tasks_read_without_sparks_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper is private to PySpark and may be missing in another release."""
    monkeypatch.setattr(sent_rows, "_WRAPPER", None)
    stream = DriverStream(make_table(tmp_path, 1000))
    assert stream.plan(*positions(stream))[1] == NOT_FOUND


ROWS_OF_MANY_TYPES = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["a", None, "ü"],
        "bytes": pa.array([b"\x00", b"", None]),
        "number": pa.array([1.5, -0.25, None]),
        "unsigned": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "money": pa.array([Decimal("1.25"), None, Decimal("-3.00")], pa.decimal128(20, 2)),
        "day": pa.array([date(2024, 2, 29), None, date(1582, 10, 4)]),
        "moment": pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2024, 1, 1), None, None], pa.timestamp("us")),
        "flag": [True, None, False],
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
        "tags": [["x", None], [], None],
        "nested": [{"a": 1, "b": ["p"]}, {"a": None, "b": None}, None],
    }
)


@pytest.mark.spark
def test_sent_rows_equal_read_rows(spark: Any, tmp_path: Path) -> None:
    """Spark converts sent rows by other code than the rows of tasks, and every type must arrive
    unchanged.
    """
    uri = str(tmp_path / "t")
    schema = ROWS_OF_MANY_TYPES.schema.set(0, pa.field("id", pa.int64(), nullable=False))
    ds = lance_stream.create_dataset(uri, schema, primary_key=["id"])
    ds = ds.append(ROWS_OF_MANY_TYPES.cast(schema))
    ds = ds.append(ROWS_OF_MANY_TYPES.slice(0, 0).cast(schema))
    register(spark)
    seen: list[pa.Table] = []

    def see_twice(df: Any, _id: int) -> None:  # two jobs read the rows that were sent
        seen.append(df.toArrow())
        assert df.count() == seen[-1].num_rows

    options = {"readChangeFeed": "true", "startingVersion": "1"}
    stream = spark.readStream.format("lance").options(**options).load(uri)
    query = (
        stream.writeStream.foreachBatch(see_twice)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (progress, *_) = [row for row in query.recentProgress if row["numInputRows"]]
    expected = spark.read.format("lance").options(**options).load(uri).toArrow()
    assert pa.concat_tables(seen).to_pylist() == expected.to_pylist()
    if runner.__dict__.get("READ_LIMIT_REGISTRY") is not None:  # not in PySpark 4.1
        assert json.loads(progress["sources"][0]["latestOffset"])["versionsBehind"] == 0
