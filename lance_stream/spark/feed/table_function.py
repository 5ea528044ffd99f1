"""The change feed as a SQL function: `SELECT * FROM lance_changes('data/events.lance', 4, 9)`.

A convenience for a look at some changes. Spark runs such a function in one task, and hands its rows
over one by one: a load of the format, or a temporary view over it, is many times as fast.

    lance_changes(uri, start)                             from a version on, to the newest
    lance_changes(uri, start, end)                        from a version to a version
    lance_changes(uri, start, end, 'netChanges')          one change a row
    lance_changes(uri => ..., start => TIMESTAMP '...')   from a moment on

Ends are inclusive. An end that is a timestamp means the versions committed since, or until, then.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_stream.dataset.feed.change_units import read_changes
from lance_stream.errors import InvalidInputError
from lance_stream.spark.feed.batch_reader import plan_batch
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.options import SourceOptions, parse_deduplication_mode
from lance_stream.spark.session_settings import SessionOptions
from lance_stream.spark.spark_types import carrier_schema, spark_schema, to_spark

_USAGE: Final = "lance_changes(path, start, end, deduplication_mode)"


def changes_function(session: SessionOptions) -> type[Any]:
    """Return the function's handler: Spark asks it for the columns, then for the rows.

    Spark pickles it by value: what it knows of the session goes along to other processes.

    Args:
        session: What the session says of storage.
    """

    class ChangesFunction:
        @staticmethod
        def analyze(
            uri: AnalyzeArgument,
            start: AnalyzeArgument,
            end: AnalyzeArgument | None = None,
            deduplication_mode: AnalyzeArgument | None = None,
        ) -> AnalyzeResult:
            given = (uri, start, end, deduplication_mode)
            asked = _asked(session, *(each and each.value for each in given))
            schema = schema_of_changes(open_for_changes(asked), asked)
            return AnalyzeResult(spark_schema(carrier_schema(schema)))

        def eval(
            self, uri: str, start: Any, end: Any = None, deduplication_mode: str | None = None
        ) -> Iterator[tuple[Any, ...]]:
            return _changes(_asked(session, uri, start, end, deduplication_mode))

    return ChangesFunction


def _changes(asked: SourceOptions) -> Iterator[tuple[Any, ...]]:
    table = open_for_changes(asked)
    carried = carrier_schema(schema_of_changes(table, asked))
    for batch in read_changes(plan_batch(table, asked, carried)):
        columns = [column.to_pylist() for column in to_spark(batch, carried).columns]
        yield from zip(*columns, strict=True)


def _asked(
    session: SessionOptions, uri: Any, start: Any, end: Any, deduplication_mode: Any
) -> SourceOptions:
    if not isinstance(uri, str):
        raise InvalidInputError(f"{_USAGE} takes the table's path as a text, not {uri!r}")
    named: dict[str, Any] = {}
    for name, value in (("starting", start), ("ending", end)):
        if isinstance(value, datetime):  # in the zone of the machine, as Python workers have it
            named[f"{name}_timestamp"] = value.astimezone(UTC)
        elif isinstance(value, int) or (value is None and name == "ending"):
            named[f"{name}_version"] = value
        else:
            raise InvalidInputError(
                f"{_USAGE}: the {name.removesuffix('ing')} of the interval is the number of a "
                f"version or a timestamp, not {value!r}"
            )
    if deduplication_mode is not None:
        named["deduplication_mode"] = parse_deduplication_mode(deduplication_mode)
    options = session.options_for(uri, {})
    return SourceOptions(uri, options, read_change_feed=True, **named)
