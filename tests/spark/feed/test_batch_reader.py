"""A batch of the change feed between two timestamps, as Spark plans it; the SQL function."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampType
from pyspark.sql.udtf import AnalyzeArgument

import lance_stream
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.feed.batch_reader import ChangesReader
from lance_stream.spark.feed.table_function import changes_function
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.source.lance_source import LanceSource

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    where = str(tmp_path / "table")
    lance_stream.create_dataset(where, SCHEMA).append(pa.table({"id": [1]}))
    return where


def changes_in_sql(*arguments: Any) -> list[tuple[Any, ...]]:
    """Return the rows of `lance_changes`, called as Spark calls it."""
    function = changes_function(SessionOptions())
    constants = [
        AnalyzeArgument(TimestampType(), value, isTable=False, isConstantExpression=True)
        for value in arguments
    ]
    return list(function(function.analyze(*constants)).eval(*arguments))


def num_rows(uri: str, **options: datetime) -> int:
    """Return the number of changes in a batch between two timestamps."""
    texts = {name: moment.isoformat() for name, moment in options.items()}
    source = LanceSource({"path": uri, "readchangefeed": "true", **texts})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def test_a_window_without_commits_is_empty(uri: str) -> None:
    """A periodic job reads the changes since its last run, and a quiet hour is not an error."""
    now, second = datetime.now(UTC), timedelta(seconds=1)
    assert num_rows(uri, startingtimestamp=now - 60 * second) == 1
    assert num_rows(uri, startingtimestamp=now + second) == 0
    window = {"startingtimestamp": now + second, "endingtimestamp": now + 2 * second}
    assert num_rows(uri, **window) == 0
    lance_stream.open_dataset(uri).append(pa.table({"id": [2]}))
    later = datetime.now(UTC)
    between = now + (later - now) / 1000
    assert num_rows(uri, startingtimestamp=between, endingtimestamp=between) == 0
    assert num_rows(uri, startingtimestamp=between, endingtimestamp=later) == 1


def test_a_reversed_time_window_is_refused(uri: str) -> None:
    """An empty result would hide that the two options were swapped."""
    times = {"startingTimestamp": "2026-02-01", "endingTimestamp": "2026-01-01"}
    with pytest.raises(InvalidInputError, match="is before startingTimestamp"):
        parse_reader_options({"path": uri, **times})


def test_all_interfaces_refuse_reversed_intervals(uri: str) -> None:
    """Swapped ends must not look like an interval without changes."""
    ds = lance_stream.open_dataset(uri)
    first, second = (version.timestamp for version in ds.versions())
    assert first is not None
    assert second is not None
    for start, end in ((second, first), (second + timedelta(days=1), second), (2, 1)):
        with pytest.raises(InvalidInputError, match="is before starting"):
            changes_in_sql(uri, start, end)
    options = {"startingtimestamp": datetime.now(UTC).isoformat(), "endingversion": "1"}
    source = LanceSource({"path": uri, "readchangefeed": "true", **options})
    with pytest.raises(InvalidInputError, match=r"start at version 3, but the last .* is 1"):
        source.reader(source.schema()).partitions()
    with pytest.raises(InvalidInputError, match="start at version 3"):
        changes_in_sql(uri, second + timedelta(days=1), 1)


def test_missing_ends_share_the_feeds_remedy(uri: str) -> None:
    """The message must not be that of a load, which has no snapshot to start from."""
    ds = lance_stream.open_dataset(uri).append(pa.table({"id": [2]}))
    ds.cleanup(older_than="0 seconds", retain_versions=1)
    source = LanceSource(
        {"path": uri, "readchangefeed": "true", "startingversion": "1", "endingversion": "2"}
    )
    with pytest.raises(NotFoundError, match=r"need version 2, .* Read a snapshot"):
        source.schema()


def test_names_of_change_columns_ignore_case(uri: str) -> None:
    """For Spark, they are columns like those of the table."""
    texts = {"startingversion": "1", "columns": "ID,_Change_Type", "filter": "_COMMIT_VERSION = 2"}
    source = LanceSource({"path": uri, "readchangefeed": "true", **texts})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for b in reader.read(part) for row in b.to_pylist()]
    assert rows == [{"id": 1, "_change_type": "insert"}]


def test_change_columns_alone_read_no_data(uri: str) -> None:
    """Counting changes must not read wide rows."""
    options = {"startingversion": "1", "columns": "_change_type"}
    source = LanceSource({"path": uri, "readchangefeed": "true", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, ChangesReader)
    (task,) = reader.plan()
    assert [change.unit.fields for change in task.units] == [()]
    assert [batch.to_pydict() for batch in task.read()] == [{"_change_type": ["insert"]}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("URI", True), "start of the interval .* not True"),
        (("URI", -1), "start of the interval .* not -1"),
        (("URI", 1, False), "end of the interval .* not False"),
        (("URI", 0, 0), "end of the interval .* from 1, .* not 0"),
        ((7, 1), r"lance_changes\(uri, start, .*: uri must be the table's path as a string, not 7"),
    ],
)
def test_the_sql_function_checks_its_arguments(
    uri: str, arguments: tuple[Any, ...], message: str
) -> None:
    """SQL passes any type of value, and True would otherwise be read as version 1."""
    with pytest.raises(InvalidInputError, match=message):
        changes_in_sql(*(uri if argument == "URI" else argument for argument in arguments))
