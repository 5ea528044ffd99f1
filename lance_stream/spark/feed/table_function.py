"""The change feed as a SQL function: `SELECT * FROM lance_changes('data/events.lance', 4, 9)`.

It is convenient for inspecting a few changes. Spark runs such a function in one task and passes
its rows one at a time; loading the format, or a temporary view of it, is many times faster.

    lance_changes(uri, start)                             from a version to the newest
    lance_changes(uri, start, end)                        from a version to a version
    lance_changes(uri, start, end, 'netChanges')          one change per row
    lance_changes(uri => ..., start => TIMESTAMP '...')   from a timestamp to the newest version

The interval is fixed when the query is analyzed. Both ends are inclusive. A timestamp selects the
versions committed at or after it, or at or before it; a TIMESTAMP_NTZ, which has no zone, is in
UTC.

The program that registers the function does not run it, so planning and reading are imported only
where Spark runs it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import TimestampNTZType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_stream.errors import InvalidInputError
from lance_stream.spark.jobs.python_rows import Rows, rows_of
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.session.source_state import check_is_same_table
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.storage.locations import check_is_shared
from lance_stream.table.version_marks import mark_of

if TYPE_CHECKING:
    from lance_stream.spark.arguments.reader_options import ReaderOptions

_USAGE: Final = "lance_changes(uri, start, end, deduplication_mode)"


@dataclass
class _Analyzed(AnalyzeResult):
    """The result of `analyze`, which Spark passes to the handler.

    Attributes:
        in_utc: For both ends of the interval, whether it is a timestamp without a zone.
        last: The last version of the interval.
        mark: The mark of that version.
    """

    in_utc: tuple[bool, ...] = (False, False)
    last: int = 0
    mark: str = ""


def changes_function(session: SessionOptions) -> type[Any]:
    """Return the function's handler, which Spark calls for the columns, and then for the rows.

    Spark pickles it by value, so other processes get the session's options.

    Args:
        session: The session's settings of stores.
    """

    class ChangesFunction:
        def __init__(self, analyzed: _Analyzed) -> None:
            self._analyzed = analyzed

        @staticmethod
        @without_traceback
        def analyze(
            uri: AnalyzeArgument,
            start: AnalyzeArgument,
            end: AnalyzeArgument | None = None,
            deduplication_mode: AnalyzeArgument | None = None,
        ) -> AnalyzeResult:
            from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes

            arguments = (uri, start, end, deduplication_mode)
            if not all(value is None or value.isConstantExpression for value in arguments):
                raise InvalidInputError(
                    f"{_USAGE}: the arguments must be constants, which are known before a row is "
                    "read, not columns or subqueries"
                )
            in_utc = tuple(
                bound is not None and isinstance(bound.dataType, TimestampNTZType)
                for bound in (start, end)
            )
            options = _reader_options(
                session, in_utc, *(value and value.value for value in arguments)
            )
            table = open_for_changes(options)
            schema = spark_schema(carrier_schema(schema_of_changes(table, options)))
            mark = mark_of(table.manifest)
            return _Analyzed(schema, in_utc=in_utc, last=table.version, mark=mark)

        @without_traceback
        def eval(
            self, uri: str, start: Any, end: Any = None, deduplication_mode: str | None = None
        ) -> Rows:
            in_utc = self._analyzed.in_utc
            options = _reader_options(session, in_utc, uri, start, end, deduplication_mode)
            return _changes(options, self._analyzed)

    return ChangesFunction


def _to_utc(moment: datetime) -> datetime:
    """Convert a TIMESTAMP to UTC; Python workers get it in their machine's zone."""
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        # Out of the range of Python's times; no version has such a timestamp.
        return moment.replace(tzinfo=UTC)


def _changes(options: "ReaderOptions", analyzed: _Analyzed) -> Rows:
    from lance_stream.feed.change_units import read_changes
    from lance_stream.snapshot.resolving import open_version
    from lance_stream.spark.feed.batch_reader import plan_batch
    from lance_stream.spark.feed.planning import schema_of_changes

    table = open_version(options.uri, analyzed.last, options.storage_options)
    check_is_same_table(table, analyzed.mark)
    carried = carrier_schema(schema_of_changes(table, options))
    for batch in read_changes(plan_batch(table, options, carried)):
        yield from rows_of(batch, carried)


def _is_version(value: Any, first: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= first


def _reader_options(
    session: SessionOptions,
    in_utc: tuple[bool, ...],
    uri: Any,
    start: Any,
    end: Any,
    deduplication_mode: Any,
) -> "ReaderOptions":
    from lance_stream.spark.arguments.reader_options import ReaderOptions, parse_deduplication_mode

    if not isinstance(uri, str):
        raise InvalidInputError(f"{_USAGE}: uri must be the table's path as a string, not {uri!r}")
    check_is_shared(uri)
    interval: dict[str, Any] = {}
    ends = zip(("starting", "ending"), (start, end), (0, 1), in_utc, strict=True)
    for name, value, first, is_utc in ends:
        if isinstance(value, datetime):
            interval[f"{name}_timestamp"] = value if is_utc else _to_utc(value)
        elif _is_version(value, first) or (value is None and name == "ending"):
            interval[f"{name}_version"] = value
        else:
            raise InvalidInputError(
                f"{_USAGE}: the {name.removesuffix('ing')} of the interval must be a version "
                f"number, from {first}, or a timestamp, not {value!r}"
            )
    if deduplication_mode is not None:
        interval["deduplication_mode"] = parse_deduplication_mode(deduplication_mode)
    options = session.options_for(uri, {})
    return ReaderOptions(uri, options, read_change_feed=True, **interval)
