"""The change feed through Spark: as a batch, as a stream, and over restarts."""

import json
import shutil
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

import lance_stream
from lance_stream.maintenance.consumers import read_progress
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark import read_changes, register
from lance_stream.table.version_marks import mark_of

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("x", pa.uint8()),
        pa.field("v", pa.list_(pa.float32(), 2)),
    ]
)
CHANGE_COLUMNS = {
    "_change_type": "string",
    "_commit_version": "bigint",
    "_commit_timestamp": "timestamp",
    "_rowid": "bigint",
    "_row_created_at_version": "bigint",
    "_row_last_updated_at_version": "bigint",
}

Change = tuple[str, int, int]  # its type, the version, the row's id


def rows(*ids: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": i, "x": i % 256, "v": [i, 0.5]} for i in ids], schema=SCHEMA
    )


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Version 2 inserts 0 to 4, 3 inserts 5 and 6, 4 deletes 1 and 5, 5 updates 2."""
    uri = str(tmp_path / "table")
    table = lance_stream.create_dataset(uri, SCHEMA)
    table.append(rows(0, 1, 2, 3, 4)).append(rows(5, 6)).delete("id IN (1, 5)")
    lance.dataset(uri).update({"x": "99"}, where="id = 2")
    return uri


INSERTS: list[Change] = [("insert", 2, i) for i in range(5)] + [("insert", 3, i) for i in (5, 6)]
DELETES: list[Change] = [("delete", 4, 1), ("delete", 4, 5)]
UPDATES: list[Change] = [("update_preimage", 5, 2), ("update_postimage", 5, 2)]


def feed(session: Any, uri: str, start: Any, end: Any = None, **options: Any) -> Any:
    reader = session.read.format("lance").option("readChangeFeed", "true").options(**options)
    reader = reader.option("startingVersion", start)
    if end is not None:
        reader = reader.option("endingVersion", end)
    return reader.load(uri)


def changes_in(collected: list[Any]) -> Counter[Change]:
    return Counter((row._change_type, row._commit_version, row.id) for row in collected)


class Tail:
    """A stream of a table, and all rows that it has delivered so far."""

    def __init__(self, session: Any, uri: str, folder: Path, **options: Any) -> None:
        self.session, self.uri, self.folder, self.options = session, uri, folder, options
        self.batches: list[list[Any]] = []

    def start(self, available_now: bool = True) -> Any:
        reader = self.session.readStream.format("lance").options(**self.options)
        writer = reader.load(self.uri).writeStream.foreachBatch(self._take)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.folder / "tail")).start()

    def run(self) -> list[Any]:
        """Read everything available, and return the batches of this run."""
        before = len(self.batches)
        self.start().awaitTermination()
        return self.batches[before:]

    def _take(self, df: Any, _batch_id: int) -> None:
        self.batches.append(df.collect())

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]


@pytest.fixture
def tail(session: Any, uri: str, tmp_path: Path) -> Any:
    def make(**options: Any) -> Tail:
        return Tail(session, uri, tmp_path, **options)

    return make


# --- as a batch


@pytest.mark.floors
def test_a_batch_includes_both_ends(session: Any, uri: str) -> None:
    """`startingVersion` and `endingVersion` are inclusive, as in Delta."""
    df = feed(session, uri, 0)
    assert dict(df.dtypes) == {
        "id": "bigint", "x": "smallint", "v": "array<float>", **CHANGE_COLUMNS
    }  # fmt: skip
    changes = changes_in(df.collect())
    assert changes - Counter(UPDATES) == Counter(INSERTS + DELETES)
    assert changes[("update_postimage", 5, 2)] == 1
    assert changes_in(feed(session, uri, 3, 4).collect()) == Counter(INSERTS[5:] + DELETES)
    assert changes_in(feed(session, uri, 4, 4).collect()) == Counter(DELETES)


def test_changes_equal_those_of_the_dataset(session: Any, uri: str) -> None:
    """The same changes must arrive through Spark as through the Python API."""
    expected = lance_stream.open_dataset(uri).changes(0).read_all()
    changes = feed(session, uri, 0).toArrow()
    names = [name for name in expected.column_names if name != "_commit_timestamp"]

    def key(row: Any) -> str:
        return json.dumps(row, sort_keys=True)

    assert sorted(map(key, changes.select(names).to_pylist())) == sorted(
        map(key, expected.select(names).to_pylist())
    )
    assert set(changes["_commit_timestamp"].to_pylist()) == set(
        expected["_commit_timestamp"].to_pylist()
    )


def test_options_filter_and_project_changes(session: Any, uri: str) -> None:
    """Filters apply to changes, not to tables, so a delete of a matching row has to be included."""
    df = feed(session, uri, 2, 4, columns="id", filter="id > 3")
    assert df.columns == ["id", *CHANGE_COLUMNS]
    assert changes_in(df.collect()) == Counter(
        [("insert", 2, 4), ("insert", 3, 5), ("insert", 3, 6), ("delete", 4, 5)]
    )


def test_batch_options_shape_the_changes(session: Any, uri: str) -> None:
    """Net changes, updates as deletes and inserts, and feeds without pre-images each need their
    own code path.
    """
    net = feed(session, uri, 2, 5, deduplicationMode="netChanges").collect()
    assert changes_in(net) == Counter(("insert", 5, i) for i in (0, 2, 3, 4, 6))
    pairs = feed(session, uri, 5, computeUpdates="false").collect()
    assert changes_in(pairs) == Counter([("delete", 5, 2), ("insert", 5, 2)])
    assert sorted((row._change_type, row.x) for row in pairs) == [("delete", 2), ("insert", 99)]
    plain = feed(session, uri, 5, preImages="false").collect()
    assert changes_in(plain) == Counter(UPDATES[1:])


def test_batches_can_end_at_timestamps(session: Any, uri: str) -> None:
    """A time includes the version committed exactly then, in any zone; a future end is not an
    error.
    """
    moments = {
        version.version: version.timestamp for version in lance_stream.open_dataset(uri).versions()
    }

    def between(**ends: datetime) -> Counter[Change]:
        reader = session.read.format("lance").option("readChangeFeed", "true")
        for name, moment in ends.items():
            reader = reader.option(name, moment.isoformat())
        return changes_in(reader.load(uri).collect())

    in_india = timezone(timedelta(hours=5, minutes=30))
    changes = between(startingTimestamp=moments[3].astimezone(in_india), endingTimestamp=moments[4])
    assert changes == Counter(INSERTS[5:] + DELETES)
    just_after = moments[3] + timedelta(microseconds=1)
    assert between(startingTimestamp=just_after, endingTimestamp=moments[4]) == Counter(DELETES)
    assert between(startingTimestamp=moments[5] + timedelta(days=1)) == Counter()


def test_temporary_views_show_changes_in_sql(session: Any, uri: str) -> None:
    """SQL users reach the change feed through a view with options."""
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW changes_of_table USING lance "
        f"OPTIONS (path '{uri}', readChangeFeed 'true', startingVersion '4', endingVersion '4')"
    )
    changes = session.sql("SELECT * FROM changes_of_table WHERE _change_type = 'delete'").collect()
    assert changes_in(changes) == Counter(DELETES)


def test_batches_are_pinned_when_loaded(session: Any, uri: str) -> None:
    """Two actions on a DataFrame of changes must return the same interval."""
    df = feed(session, uri, 4)
    before = df.count()
    lance_stream.open_dataset(uri).append(rows(7))
    assert df.count() == before


@pytest.mark.parametrize(
    ("start", "end"), [(7, None), (2, 99), (99, 99)], ids=["start", "end", "both"]
)
def test_future_versions_are_refused(session: Any, uri: str, start: int, end: int | None) -> None:
    """An interval that ends in the future would return other changes at each execution."""
    with pytest.raises(Exception, match=r"InvalidInputError"):
        feed(session, uri, start, end).collect()


def test_the_feed_needs_stable_row_ids(session: Any, tmp_path: Path) -> None:
    """Without stable row ids, an update cannot be distinguished from a delete and an insert."""
    uri = str(tmp_path / "unstable")
    lance.write_dataset(rows(1), uri)
    with pytest.raises(Exception, match=r"(?s)UnsupportedFeatureError.*stable row ids"):
        feed(session, uri, 1).collect()


# --- as a stream


@pytest.mark.floors
def test_streams_start_at_their_version(tail: Any) -> None:
    """The start is inclusive, so the changes of that version must be delivered."""
    stream = tail(readChangeFeed="true", startingVersion=3)
    stream.run()
    changes = changes_in(stream.rows)
    assert changes - Counter(UPDATES) == Counter(INSERTS[5:] + DELETES)
    assert changes[("update_postimage", 5, 2)] == 1


@pytest.mark.floors
def test_without_start_a_snapshot_comes_first(tail: Any, uri: str) -> None:
    """A new replica needs all existing rows first, with their current values and without earlier
    changes.
    """
    stream = tail(readChangeFeed="true")
    stream.run()
    assert changes_in(stream.rows) == Counter(("insert", 5, i) for i in (0, 2, 3, 4, 6))
    assert {row.x for row in stream.rows if row.id == 2} == {99}
    lance_stream.open_dataset(uri).delete("id = 6")
    (batch,) = stream.run()
    assert changes_in(batch) == Counter([("delete", 6, 6)])


ITEMS: dict[str, tuple[pa.DataType, Any]] = {
    "boolean": (pa.bool_(), True),
    "byte": (pa.int8(), 1),
    "short": (pa.int16(), 1),
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "unsigned": (pa.uint64(), 1),
    "half": (pa.float16(), np.float16(1.0)),
    "float": (pa.float32(), 1.0),
    "double": (pa.float64(), 1.0),
    "decimal": (pa.decimal128(10, 2), Decimal("1.00")),
    "date": (pa.date32(), date(2026, 1, 1)),
    "timestamp": (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)),
    "local": (pa.timestamp("us"), datetime(2026, 1, 1)),
    "duration": (pa.duration("us"), timedelta(days=1)),
    "text": (pa.string(), "a"),
    "bytes": (pa.binary(), b"a"),
}


def nested(kind: pa.DataType, value: Any) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Return types that contain a type, each with three values: with a null, without, and null."""
    part = pa.struct([("p", kind)])
    return {
        "list": (pa.list_(kind), [[value, None], [value], None]),
        "fixed": (pa.list_(kind, 2), [[value, None], [value, value], None]),
        "map": (pa.map_(pa.string(), kind), [[("k", None)], [("k", value)], None]),
        "struct": (part, [{"p": None}, {"p": value}, None]),
        "structs": (pa.list_(part), [[{"p": None}, None], [{"p": value}], None]),
        "part": (pa.struct([("p", pa.list_(kind))]), [{"p": [None]}, {"p": [value]}, None]),
        "lists": (pa.list_(pa.list_(kind)), [[[None], None], [[value]], None]),
    }


@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 2]], ids=["with nulls", "without"])
def test_nested_nulls_arrive_on_every_path(session: Any, tmp_path: Path, rows: list[int]) -> None:
    """Spark's own copy of a small batch fails for nulls among numbers, dates and times."""
    columns = {
        f"{name}_{nesting}": pa.array([values[row] for row in rows], nested_type)
        for name, (kind, value) in ITEMS.items()
        for nesting, (nested_type, values) in nested(kind, value).items()
        if nesting != "fixed" or name not in ("text", "bytes")
    }
    table = pa.table({"id": pa.array(rows), **columns})
    uri = str(tmp_path / "nulls")
    lance_stream.create_dataset(uri, table, file_version="2.2")
    stream = Tail(session, uri, tmp_path, readChangeFeed="true", startingVersion=1)
    stream.run()
    ways = {
        "stream": stream.rows,
        "batch": feed(session, uri, 1).collect(),
        "read_changes": read_changes(session, uri, startingVersion=1).collect(),
    }
    first, *others = ({str(row) for row in rows_of_way} for rows_of_way in ways.values())
    assert [other ^ first for other in others] == [set(), set()]
    assert len(first) == len(rows)
    for row in stream.rows:
        for name, (_, value) in ITEMS.items():
            if name != "timestamp":  # which Spark shows in the machine's zone
                value_at_row = None if row.id == 2 else [value, None] if row.id == 0 else [value]
                assert row[f"{name}_list"] == value_at_row, name


@pytest.mark.since_spark("4.2")  # 4.1 streams TIME without the setting
def test_streams_of_time_need_a_setting(session: Any, tmp_path: Path) -> None:
    """Spark itself refuses TIME when a query starts, while batches accept it."""
    setting, uri = "spark.sql.timeType.enabled", str(tmp_path / "times")
    lance_stream.create_dataset(uri, pa.table({"t": pa.array([time(1, 2)], pa.time64("us"))}))
    before = session.conf.get(setting)
    try:
        session.conf.set(setting, "true")
        stream = Tail(session, uri, tmp_path, readChangeFeed="true")
        stream.run()
        assert [row.t for row in stream.rows] == [time(1, 2)]
        session.conf.set(setting, "false")
        assert [row.t for row in feed(session, uri, 1).collect()] == [time(1, 2)]
        with pytest.raises(AnalysisException, match="UNSUPPORTED_TIME_TYPE"):
            Tail(session, uri, tmp_path / "refused", readChangeFeed="true").start()
    finally:
        session.conf.set(setting, before)


def test_streams_select_change_columns(tail: Any) -> None:
    """A stream that needs the kind of a change need not read row ids and times."""
    stream = tail(readChangeFeed="true", startingVersion=4, columns="_change_type,id")
    stream.run()
    assert [tuple(row.asDict()) for row in stream.rows] == [("id", "_change_type")] * 4
    changes = Counter((row._change_type, row.id) for row in stream.rows)
    assert changes == Counter((kind, id_) for kind, _, id_ in DELETES + UPDATES)
    stream.run()
    assert len(stream.rows) == 4


@pytest.mark.nightly
def test_limits_hold_in_a_running_stream(
    tail: Any, uri: str, pyspark_has_read_limits: bool
) -> None:
    """A continuously running query asks for offsets in another way than one that ends by itself."""
    stream = tail(readChangeFeed="true", startingVersion=1, maxVersionsPerTrigger=1)
    query = stream.start(available_now=False)
    try:
        query.processAllAvailable()
        lance_stream.open_dataset(uri).append(rows(7)).append(rows(8))
        query.processAllAvailable()
    finally:
        query.stop()
    versions = [sorted({row._commit_version for row in batch}) for batch in stream.batches]
    if pyspark_has_read_limits:
        assert [version for version in versions if version] == [[2], [3], [4], [5], [6], [7]]
    else:  # the first batch of a run takes all that there is
        assert versions == [[2, 3, 4, 5], [6], [7]]


@pytest.mark.essential
def test_uncommitted_batches_are_repeated_unchanged(tail: Any, uri: str, tmp_path: Path) -> None:
    """Exactly-once sinks rely on a repeated batch having the same rows, although the table has new
    ones.
    """
    stream = tail(readChangeFeed="true", startingVersion=2)
    (first,) = stream.run()
    commits = tmp_path / "tail" / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda p: p.name)
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    lance_stream.open_dataset(uri).append(rows(9))
    again, new = stream.run() + stream.run()  # PySpark 4.1 only makes up for the one at first
    assert sorted(map(str, again)) == sorted(map(str, first))
    assert changes_in(new) == Counter([("insert", 6, 9)])


@pytest.mark.nightly
def test_checkpoint_offsets_have_a_fixed_format(tail: Any, uri: str, tmp_path: Path) -> None:
    """Spark stores the offset as it is, and later releases have to read it."""
    tail(readChangeFeed="true").run()
    offsets = (tmp_path / "tail" / "offsets" / "0").read_text().splitlines()[-1]
    mark = mark_of(open_newest(uri).manifest)
    assert offsets == (
        f'{{"columns": {{}}, "format": 4, "mark": "{mark}", "position": 0, "snapshot": false, '
        '"version": 5}'
    )


@pytest.mark.essential
def test_limits_and_progress_through_spark(
    tail: Any, uri: str, pyspark_has_read_limits: bool
) -> None:
    """Backlog and consumer progress are reported to Spark, whose releases call the reader
    differently.
    """
    options = {"maxRowsPerTrigger": 3, "consumer": "me", "preImages": "false"}
    stream = tail(readChangeFeed="true", startingVersion=2, **options)
    query = stream.start()
    query.awaitTermination()
    assert changes_in(stream.rows) == Counter([*INSERTS, *DELETES, ("update_postimage", 5, 2)])
    progress = read_progress(open_newest(uri).refs, "me")
    if not pyspark_has_read_limits:  # all at once, and the end of a run is not reported
        assert (len(stream.batches), progress) == (1, 1)
        return
    assert [len(batch) for batch in stream.batches] == [3, 3, 3, 1]
    assert progress == 5
    reports = [json.loads(row["sources"][0]["latestOffset"]) for row in query.recentProgress]
    assert [report["rowsBehind"] for report in reports[:4]] == [7, 4, 1, 0]
    assert reports[0] == {"version": 5, "versionsBehind": 4, "rowsBehind": 7}


def test_idle_streams_run_no_batches(tail: Any) -> None:
    """An offset that changes without new rows would start a Spark job at every poll."""
    stream = tail(readChangeFeed="true", startingVersion="latest")
    query = stream.start(available_now=False)
    try:
        query.processAllAvailable()
        assert stream.rows == []
        assert query.lastProgress is None or query.lastProgress["batchId"] <= 1
    finally:
        query.stop()


@pytest.mark.nightly
def test_recreated_tables_stop_the_stream(tail: Any, uri: str) -> None:
    """Version numbers of a new table say nothing about the old one, so continuing would mix two
    tables.
    """
    stream = tail(readChangeFeed="true", startingVersion=2)
    stream.run()
    shutil.rmtree(uri)
    lance_stream.create_dataset(uri, SCHEMA).append(rows(1))
    with pytest.raises(Exception, match=r"(?s)lance_stream.errors.*version 5"):
        stream.run()


# --- a stream of appended rows


@pytest.mark.essential
def test_a_plain_stream_returns_appended_rows(session: Any, tmp_path: Path) -> None:
    """Without `readChangeFeed` the rows have no change columns."""
    uri = str(tmp_path / "appended")
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 1))
    stream = Tail(session, uri, tmp_path)
    stream.run()
    table.append(rows(2)).append(rows(3))
    stream.run()
    assert sorted(row.id for row in stream.rows) == [0, 1, 2, 3]
    assert set(stream.rows[0].asDict()) == {"id", "x", "v"}


def test_plain_streams_stop_at_deletes(tail: Any) -> None:
    """A stream of appends cannot express a delete, and ignoring it silently would leave the target
    wrong.
    """
    with pytest.raises(Exception, match=r"(?s)version 4.*(delete|update).*skipChangeCommits"):
        tail(startingVersion=2).run()


@pytest.mark.nightly
def test_plain_streams_may_skip_changes(tail: Any) -> None:
    """`skipChangeCommits` has the meaning that it has in Delta."""
    stream = tail(startingVersion=2, skipChangeCommits="true")
    stream.run()
    assert sorted(row.id for row in stream.rows) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readChangeFeed": "true", "endingVersion": "3"}, "InvalidInputError.*endingVersion"),
        (
            {"readChangeFeed": "true", "maxRowsPerTrigger": "none"},
            "InvalidInput.*maxRowsPerTrigger",
        ),
        ({"readChangeFeed": "true", "startingVersion": "99"}, "InvalidInputError.*99"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_stream_options_raise_our_errors(
    tail: Any, options: dict[str, str], message: str
) -> None:
    """The error must not have frames of this package or hide behind an UnboundLocalError of
    PySpark.
    """
    with pytest.raises(Exception, match=f"(?s){message}") as caught:
        tail(**options).run()
    assert "lance_stream/" not in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)


# --- the SQL function


@pytest.mark.floors
def test_the_sql_function_returns_the_feed(session: Any, uri: str) -> None:
    """`lance_changes` mirrors `table_changes` of Delta and must have the schema of the format."""
    changes = session.sql(f"SELECT * FROM lance_changes('{uri}', 3, 4)")
    loaded = feed(session, uri, 3, 4)
    assert changes.schema == loaded.schema
    assert sorted(map(str, changes.collect())) == sorted(map(str, loaded.collect()))
    counted = session.sql(f"SELECT count(*) AS n FROM lance_changes('{uri}', 4) WHERE id = 1")
    assert counted.head().n == 1


def test_the_sql_function_takes_timestamps(session: Any, uri: str) -> None:
    """Named arguments and times are how SQL users address an interval."""
    moments = {
        version.version: version.timestamp for version in lance_stream.open_dataset(uri).versions()
    }
    start, end = (f"TIMESTAMP '{moments[number].isoformat()}'" for number in (3, 4))
    changes = session.sql(f"SELECT * FROM lance_changes('{uri}', start => {start}, end => {end})")
    assert changes_in(changes.collect()) == Counter(INSERTS[5:] + DELETES)
    net = session.sql(
        f"SELECT * FROM lance_changes('{uri}', 3, deduplication_mode => 'netchanges')"
    )
    kinds = Counter((row._change_type, row.id) for row in net.collect())
    assert kinds == Counter(
        [("insert", 6), ("delete", 1), ("update_preimage", 2), ("update_postimage", 2)]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'{uri}', 9, 12", "InvalidInputError"),
        ("'{uri}', 'x'", "start of the interval"),
        ("'{uri}', 3, 4, 'some'", "deduplicationMode"),
        ("'{uri}', (SELECT 3)", "constants"),
    ],
)
def test_the_sql_function_refuses_invalid_arguments(
    session: Any, uri: str, arguments: str, message: str
) -> None:
    """The errors have to name the argument, since SQL shows no Python frames."""
    with pytest.raises(Exception, match=message) as raised:
        session.sql(f"SELECT * FROM lance_changes({arguments.format(uri=uri)})").collect()
    assert "Traceback" not in str(raised.value)
