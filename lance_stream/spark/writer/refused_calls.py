"""Refuses calls of PySpark's writers that the format "lance" cannot serve.

    call                                without the check
    partitionBy, clusterBy, a batch     Spark fails, with the partitioning of "the existing table"
    partitionBy, clusterBy, a stream    Spark ignores it
    toTable without a path              the query starts, and its first batch fails

Spark passes none of these calls on to a Python source, so `register` lets PySpark's own writers
check them before Spark starts. Through Spark Connect they remain as in the table, and so they do
where a vendor's Spark does not show what its writers were told.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.user_errors import without_our_frames

_formats: Final[set[str]] = set()
"""The names of the format in this process."""


def check_writers_of(format_name: str) -> None:
    """Let PySpark's writers refuse calls that a format of this name cannot serve."""
    _formats.add(format_name)
    _wrap_writers()


@cache
def _wrap_writers() -> None:
    for writer, names in ((DataFrameWriter, ["save"]), (DataStreamWriter, ["start", "toTable"])):
        for name in names:
            setattr(writer, name, _checked(getattr(writer, name)))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @wraps(method)
    def called(*positional: Any, **named: Any) -> Any:
        with suppress(AttributeError, Py4JError):  # a check that fails must not stop a write
            arguments = signature.bind(*positional, **named).arguments
            writer = arguments.pop("self")._jwrite
            if (arguments.get("format") or writer.source()) in _formats:
                _check(writer, arguments)
        return method(*positional, **named)

    return without_our_frames(called)


def _check(writer: Any, arguments: Mapping[str, Any]) -> None:
    """Raise if the format cannot serve a call of a writer of the JVM, with these arguments."""
    if arguments.get("partitionBy") or any(
        columns().isDefined() for columns in (writer.partitioningColumns, writer.clusteringColumns)
    ):
        raise InvalidInputError(
            "Lance tables have no partitions or clusters: leave partitionBy and clusterBy out. "
            "A BTREE or BITMAP index on the column lets filters skip other rows"
        )
    has_path = "path" in arguments.get("options", {}) or writer.extraOptions().contains("path")
    if "tableName" in arguments and not has_path:
        raise InvalidInputError(
            "a Lance table is no table of Spark's catalog, which passes no path on to Python "
            "sources: use start(path) instead of toTable(name)"
        )
