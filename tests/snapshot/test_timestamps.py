"""A time without a zone is in UTC everywhere, and Python's first and last years work."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, TimestampNTZType, TimestampType
from pyspark.sql.udtf import AnalyzeArgument

import lance_stream
from lance_stream.cli.main import main
from lance_stream.cli.output import moment, to_json
from lance_stream.cli.read.values import rows_of
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.snapshot.timestamps import in_utc, moment_at, nanos_of, parse_moment
from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.feed.table_function import changes_function
from lance_stream.spark.session.session_options import SessionOptions

ENDS = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00")


@pytest.fixture(autouse=True)
def machine_in_new_york() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    uri = tmp_path_factory.mktemp("times") / "table"
    ds = lance_stream.create_dataset(uri, pa.schema([("id", pa.int64())]))
    time.sleep(0.002)
    return ds.append(pa.table({"id": [1]}))


@pytest.mark.floors
def test_naive_times_are_utc_everywhere(table: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The same text must mean the same moment in Python, on the command line, in Spark's options
    and in SQL, on any machine.
    """
    first = table.versions()[0].timestamp
    assert first.tzinfo is UTC
    without_zone = first.replace(tzinfo=None)
    text = without_zone.isoformat()

    assert lance_stream.open_dataset(table.uri, version=without_zone).version == 1
    assert table.checkout(without_zone).version == 1
    assert main(["show", table.uri, "--version", text, "--json"]) == 0
    assert '"version": 1' in capsys.readouterr().out
    assert main(["changes", table.uri, "--after", text, "--format", "json"]) == 0
    assert '"id": 1' in capsys.readouterr().out
    for name in ("timestampAsOf", "startingTimestamp", "endingTimestamp"):
        options = {"path": table.uri, name: text}
        options |= {} if name == "timestampAsOf" else {"readChangeFeed": "true"}
        parsed = parse_reader_options(options)
        actual = parsed.version or parsed.starting_timestamp or parsed.ending_timestamp
        assert actual == first
    moments = pa.table({"at": pa.array([first], pa.timestamp("us", "UTC"))})
    ds = lance_stream.create_dataset("memory://zones", moments.schema).append(moments)
    for literal in (f"'{text}'", f"TIMESTAMP '{text}'", f"'{first.isoformat()}'"):
        assert ds.count_rows(f"at = {literal}") == 1


@pytest.mark.floors
def test_timestamp_ntz_arguments_are_utc(table: Any) -> None:
    """Spark passes both of its timestamp types as naive values, one in UTC and one in the
    machine's zone.
    """
    times = [version.timestamp for version in table.versions()]
    without_zone = times[1].replace(tzinfo=None)
    of_machine = times[1].astimezone().replace(tzinfo=None)
    for kind, value in ((TimestampNTZType(), without_zone), (TimestampType(), of_machine)):
        uri, start = (
            AnalyzeArgument(dataType=item, value=argument, isTable=False, isConstantExpression=True)
            for item, argument in ((StringType(), table.uri), (kind, value))
        )
        function = changes_function(SessionOptions())
        rows = function(function.analyze(uri, start)).eval(table.uri, value)
        assert [row[0] for row in rows] == [1]


@pytest.mark.parametrize("text", ENDS)
def test_first_and_last_years_work_everywhere(table: Any, text: str) -> None:
    """A zone moves these moments out of Python's range, which must not raise an OverflowError."""
    instant = datetime.fromisoformat(text)
    options = parse_reader_options({"path": table.uri, "timestampAsOf": text})
    assert nanos_of(options.version) == nanos_of(instant)
    if instant.year == 1:
        with pytest.raises(NotFoundError, match=r"0001-01-01T00:00:00\+14:00"):
            table.checkout(instant)
        assert moment(instant) == "0001-01-01 00:00:00Z"
        assert main(["show", table.uri, "--version", text]) == 3
    else:
        assert table.checkout(instant).version == table.version
        assert moment(instant) == "9999-12-31 23:59:59Z"
        assert main(["show", table.uri, "--version", text]) == 0
    micros = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    data = pa.table({"at": pa.array([micros, 0], pa.timestamp("us", "UTC"))})
    ds = lance_stream.create_dataset(f"memory://end{instant.year}", data.schema).append(data)
    assert ds.count_rows(f"at = '{text}'") == 1
    assert ds.count_rows(f"at < '{text}'") == (instant.year == 9999)


def test_moments_out_of_range_are_clamped() -> None:
    """Stored nanoseconds may lie outside of Python's years, and comparisons only need the order."""
    assert in_utc(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))) == datetime.min.replace(
        tzinfo=UTC
    )
    assert moment_at(10**30) == datetime.max.replace(tzinfo=UTC)
    assert moment_at(-(10**30)) == datetime.min.replace(tzinfo=UTC)
    assert parse_moment(" 2026-11-05T14:00 ") == datetime(2026, 11, 5, 14, tzinfo=UTC)
    with pytest.raises(InvalidInputError, match="UTC if no zone is given"):
        parse_reader_options({"path": "x", "timestampAsOf": "yesterday"})


@pytest.mark.floors
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_of_all_units_compare(unit: str, zone: str | None) -> None:
    """Literals far outside of a unit's range must compare without an overflow."""
    values = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp(unit, zone))
    data = pa.table({"at": values, "day": pa.array([0, 2**31 - 1], pa.date32())})
    ds = lance_stream.create_dataset(f"memory://units-{unit}-{zone}", data.schema)
    ds = ds.append(data)
    is_near = unit == "ns"  # 2**62 ns are in the year 2116
    assert ds.count_rows("at < '9999-12-31'") == 1 + is_near
    assert ds.count_rows("at > '0001-01-01'") == 2
    assert ds.count_rows("at BETWEEN '1900-01-01' AND '9999-12-31 23:59:59.999999'") == 1 + is_near
    assert ds.count_rows("at = day") == 1
    # a literal has microseconds, as in Spark, except beside nanoseconds
    assert ds.count_rows("at >= '1970-01-01 00:00:00.0000001'") == 2 - is_near
    assert ds.count_rows("day > '2024-01-01 00:00:00.0000001'") == 1


@pytest.mark.floors
def test_times_beyond_python_print_as_text() -> None:
    """Arrow can hold times for which Python has no object, and showing a row must not fail on
    them.
    """
    far = pa.array([2**59, None], pa.timestamp("us", "UTC"))
    nested = pa.StructArray.from_arrays([far], names=["at"])
    days = pa.array([2**30, 0], pa.date32())
    listed = pa.array([[2**62, 0], []], pa.list_(pa.timestamp("us")))
    batch = pa.RecordBatch.from_arrays([far, nested, days, listed], names=["at", "s", "day", "l"])
    first, second = rows_of(batch)
    assert first["at"] == first["s"]["at"]
    assert str(first["at"]).startswith("20237-")
    assert first["day"] == f"{2**30} days since 1970-01-01"
    assert first["l"] == [f"{2**62} us since 1970-01-01", datetime(1970, 1, 1)]
    assert second == {"at": None, "s": {"at": None}, "day": date(1970, 1, 1), "l": []}
    assert to_json(first).count("20237-") == 2
