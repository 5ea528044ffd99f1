"""The change feed as a SQL function: `SELECT * FROM lance_changes('data/events.lance', 4, 9)`.

A convenience for a look at some changes. Spark runs such a function in one task, and hands its rows
over one by one: a load of the format, or a temporary view over it, is many times as fast.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_stream.dataset.feed.change_units import read_changes
from lance_stream.dataset.feed.changes import plan_changes
from lance_stream.errors import InvalidInputError
from lance_stream.spark.feed.planning import open_for_changes
from lance_stream.spark.options import SourceOptions
from lance_stream.spark.spark_types import carrier_schema, spark_schema, to_spark


class ChangesFunction:
    """The function's handler: Spark asks it for the columns, then for the rows.

    Its arguments in SQL: the table's path, the first version, and the last one (by default the
    newest), both inclusive.
    """

    @staticmethod
    def analyze(
        uri: AnalyzeArgument, start: AnalyzeArgument, end: AnalyzeArgument | None = None
    ) -> AnalyzeResult:
        """Return the columns, which are those of the interval's last version."""
        values = [each.value for each in (uri, start, end) if each is not None]
        asked = _asked(*values)
        table = open_for_changes(asked)
        schema = plan_changes(table, table.version, table.version).arrow_schema
        return AnalyzeResult(spark_schema(carrier_schema(schema)))

    def eval(self, uri: str, start: int, end: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the changes."""
        asked = _asked(uri, start, end)
        table = open_for_changes(asked)
        plan = plan_changes(table, max(start - 1, 0), table.version)
        carried = carrier_schema(plan.arrow_schema)
        for batch in read_changes(plan.units):
            columns = [column.to_pylist() for column in to_spark(batch, carried).columns]
            yield from zip(*columns, strict=True)


def _asked(uri: Any, start: Any, end: Any = None) -> SourceOptions:
    for name, value in (("start", start), ("end", end)):
        if not isinstance(value, int) and not (name == "end" and value is None):
            raise InvalidInputError(
                f"lance_changes takes the table's path, the first version and the last one; {name} "
                f"is a number, not {value!r}"
            )
    if not isinstance(uri, str):
        raise InvalidInputError(f"lance_changes takes the table's path as a text, not {uri!r}")
    return SourceOptions(uri, read_change_feed=True, starting_version=start, ending_version=end)
