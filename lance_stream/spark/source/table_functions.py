"""SQL functions that inspect a table: its rows, versions, fragments and consumers.

    lance_table(uri [, version])        the rows of a version: a number, a tag, or a timestamp
    lance_history(uri)                  the versions, one row each
    lance_fragments(uri [, version])    the fragments of a version
    lance_consumers(uri)                the consumers of the change feed, and their lag

The prefix is the name of the format: "lance", unless `register` was called with another name. Like
`lance_changes`, each function runs in one task, imports what it needs there, and yields one row at
a time: to read many rows, load the format.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.resolving import open_version
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.python_rows import Rows, check_columns, rows_of
from lance_stream.spark.session.session_options import SessionOptions
from lance_stream.spark.session.source_state import check_is_same_table
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.storage.locations import check_is_shared
from lance_stream.table.version_marks import mark_of

if TYPE_CHECKING:
    from lance_stream.spark.arguments.reader_options import VersionChoice

_HISTORY: Final = (
    StructType()
    .add("version", LongType())
    .add("committed_at", TimestampType())
    .add("operation", StringType())
    .add("num_rows", LongType())
    .add("properties", MapType(StringType(), StringType()))
    .add("rows_inserted", LongType())
    .add("rows_updated", LongType())
    .add("rows_deleted", LongType())
)
_FRAGMENTS: Final = (
    StructType()
    .add("fragment_id", LongType())
    .add("num_rows", LongType())
    .add("num_deleted_rows", LongType())
    .add("num_data_files", LongType())
    .add("data_bytes", LongType())
)
_CONSUMERS: Final = (
    StructType()
    .add("name", StringType())
    .add("version", LongType())
    .add("has_started", BooleanType())
    .add("versions_behind", LongType())
    .add("updated_at", TimestampType())
)


@dataclass
class _Analyzed(AnalyzeResult):
    """The result of `analyze`, which Spark passes to the handler.

    Attributes:
        is_utc: Whether the version is a timestamp without a zone, which is in UTC.
        pinned: The URI and the version that were analyzed; None if the version is not a constant.
        mark: The mark of that version; empty if it is not a constant.
    """

    is_utc: bool = False
    pinned: tuple[str, int] | None = None
    mark: str = ""


def table_functions(session: SessionOptions) -> Mapping[str, type[Any]]:
    """Return the handlers of the functions, by their names without the prefix.

    Spark pickles them by value, so other processes get the session's options.

    Args:
        session: The session's settings of stores.
    """
    return {
        "table": _function(session, "lance_table", _columns_of_table, _rows_of_table, True),
        "history": _function(session, "lance_history", _constant(_HISTORY), _history, False),
        "fragments": _function(
            session, "lance_fragments", _constant(_FRAGMENTS), rows_of_fragments, True
        ),
        "consumers": _function(
            session, "lance_consumers", _constant(_CONSUMERS), _consumers, False
        ),
    }


def _function(
    session: SessionOptions,
    name: str,
    columns: Callable[[TableVersion], StructType],
    rows: Callable[[TableVersion], Rows],
    has_version: bool,
) -> type[Any]:
    def open_at(uri: Any, version: Any, is_utc: bool) -> TableVersion:
        if not isinstance(uri, str):
            raise InvalidInputError(
                f"{name}: the first argument must be the table's path as a string, not {uri!r:.200}"
            )
        check_is_shared(uri)
        return open_version(
            uri, _parse_version(name, version, is_utc), session.options_for(uri, {})
        )

    class VersionFunction:
        def __init__(self, analyzed: _Analyzed | None = None) -> None:
            self._analyzed = analyzed

        @staticmethod
        @without_traceback
        def analyze(uri: AnalyzeArgument, version: AnalyzeArgument | None = None) -> AnalyzeResult:
            is_utc = version is not None and isinstance(version.dataType, TimestampNTZType)
            table = open_at(uri.value, None if version is None else version.value, is_utc)
            is_fixed = version is None or version.isConstantExpression
            pinned = (table.uri, table.version) if is_fixed else None
            mark = mark_of(table.manifest) if is_fixed else ""
            return _Analyzed(columns(table), is_utc=is_utc, pinned=pinned, mark=mark)

        @without_traceback
        def eval(self, uri: str, version: Any = None) -> Rows:
            analyzed = self._analyzed
            is_utc = analyzed is not None and analyzed.is_utc
            if analyzed is not None and analyzed.pinned is not None:
                (uri, version), is_utc = analyzed.pinned, False  # the same version as analyzed
            table = open_at(uri, version, is_utc)
            check_is_same_table(table, "" if analyzed is None else analyzed.mark)
            if columns is _columns_of_table:
                check_columns(_carrier(table), analyzed.schema if analyzed else None, name)
            return rows(table)

    class NewestVersionFunction:
        @staticmethod
        @without_traceback
        def analyze(uri: AnalyzeArgument) -> AnalyzeResult:
            return AnalyzeResult(columns(open_at(uri.value, None, False)))

        @without_traceback
        def eval(self, uri: str) -> Rows:
            return rows(open_at(uri, None, False))

    return VersionFunction if has_version else NewestVersionFunction


def _parse_version(name: str, version: Any, is_utc: bool) -> "VersionChoice":
    """Return the version that an argument selects."""
    if isinstance(version, datetime):
        return version.replace(tzinfo=UTC) if is_utc else version.astimezone(UTC)
    is_number = isinstance(version, int) and not isinstance(version, bool) and version > 0
    if version is None or is_number or (isinstance(version, str) and version):
        choice: VersionChoice = version
        return choice
    raise InvalidInputError(
        f"{name}: the version must be a number from 1, the name of a tag, or a timestamp, not "
        f"{version!r:.200}"
    )


def _constant(columns: StructType) -> Callable[[TableVersion], StructType]:
    return lambda _table: columns


def _carrier(table: TableVersion) -> pa.Schema:
    return carrier_schema(table.arrow_schema)


def _columns_of_table(table: TableVersion) -> StructType:
    return spark_schema(_carrier(table))


def _rows_of_table(table: TableVersion) -> Rows:
    from lance_stream.read.scan import names_of, plan_scan
    from lance_stream.read.unit_rows import read_units

    carried = _carrier(table)
    for batch in read_units(plan_scan(table, names_of(table, None))):
        yield from rows_of(batch, carried)


def _history(table: TableVersion) -> Rows:
    from lance_stream.snapshot.history import list_versions

    for version in list_versions(table):
        yield (
            version.version,
            version.timestamp,
            version.operation,
            version.num_rows,
            dict(version.properties),
            version.rows_inserted,
            version.rows_updated,
            version.rows_deleted,
        )


def rows_of_fragments(table: TableVersion) -> Rows:
    """Yield a row for each fragment, without decoding fragments."""
    fragments, rows = table.manifest.fragments, table.row_counts
    sizes = fragments.file_sizes
    num_bytes = zip(sizes.num_bytes.tolist(), sizes.are_complete.tolist(), strict=True)
    yield from zip(
        fragments.ids,
        rows.live.tolist(),
        (rows.physical - rows.live).tolist(),
        sizes.num_files.tolist(),
        [size if is_stated else None for size, is_stated in num_bytes],
        strict=True,
    )


def _consumers(table: TableVersion) -> Rows:
    from lance_stream.maintenance.consumers import list_consumers

    versions = table.log.versions()
    for consumer in list_consumers(table.refs):
        behind = sum(version > consumer.version for version in versions)
        yield (
            consumer.name,
            consumer.version,
            not consumer.is_beginning,
            behind,
            consumer.updated_at,
        )
