"""The change feed with Spark: as a batch, and as a stream.

A stream's offset is a version (`feed_offsets`). Planning a batch walks from version to version,
compares manifests, and gives work units; the workers read the rows. Nothing is kept between two
batches, so a batch that a checkpoint names can be made again, whatever happened.

Without `readChangeFeed` a stream gives the rows appended, without change columns, and stops at a
version that updates or deletes: whoever reads such a stream cannot be told of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.dataset.changes import (
    INSERT,
    ChangeUnit,
    feed_schema,
    plan_changes,
    read_changes,
)
from lance_stream.dataset.opening import checkout, open_table
from lance_stream.dataset.predicates import evaluate_predicate, parse_expression, parse_predicate
from lance_stream.dataset.read_fragment import WorkUnit, output_schema
from lance_stream.dataset.scan import names_of, plan_scan
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.schema.projections import project, split_path
from lance_stream.schema.system_columns import (
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.spark.feed_offsets import FeedOffset, parse_offset
from lance_stream.spark.options import LATEST, SourceOptions
from lance_stream.spark.spark_types import to_spark
from lance_stream.spark.work_units import Portion, divide
from lance_stream.storage.locations import open_store

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.1 asks for the latest offset without a start and a limit
    HAS_READ_LIMITS = False
else:
    HAS_READ_LIMITS = True

_STAMPS = (ROW_ID, ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)


# --- what is read


def open_for_changes(asked: SourceOptions) -> TableVersion:
    """Return the last version of what a user asked for, whose columns the feed has.

    Raises:
        InvalidInputError: The interval begins or ends after the newest version.
    """
    newest = open_table(asked.uri, None, asked.storage_options)
    for name, version in (
        ("startingVersion", asked.starting_version),
        ("endingVersion", asked.ending_version),
    ):
        # a stream may wait for the version that comes next
        may_wait = name == "startingVersion" and asked.ending_version is None
        if isinstance(version, int) and version > newest.version + may_wait:
            raise InvalidInputError(
                f"{name} is {version}, but the newest version of {asked.uri} is {newest.version}"
            )
    return newest if asked.ending_version is None else checkout(newest, asked.ending_version)


def schema_of_changes(table: TableVersion, asked: SourceOptions) -> pa.Schema:
    """Return the columns of the change feed, or of a stream of appended rows.

    Raises:
        NotFoundError: The table has no such column.
        InvalidInputError: The filter is not understood.
    """
    own = output_schema(project(table.schema, names_of(table, asked.columns)), ())
    if asked.filter is not None:
        parse_predicate(asked.filter, feed_schema(output_schema(table.schema, ())))
    return feed_schema(own) if asked.read_change_feed else own


def plan_feed(
    asked: SourceOptions, start: FeedOffset, end: FeedOffset, carried: pa.Schema
) -> list[Portion[ChangeUnit]]:
    """Return the tasks that read what lies between two offsets.

    Args:
        asked: What the user set.
        start: Everything up to here has been read.
        end: Everything up to here is to be read.
        carried: The columns that Spark was told of. Those that the table no longer has are null.

    Raises:
        NotFoundError: A version is gone.
        UnsupportedFeatureError: The table has no stable row ids.
        InvalidInputError: A stream of appended rows meets a version that updates or deletes.
    """
    if start == end:
        return []
    table = open_table(asked.uri, end.version, asked.storage_options)
    columns = _columns_to_read(table, asked, carried)
    if start.snapshot:
        units = _plan_snapshot(table, columns)
    else:
        units = list(plan_changes(table, start.version, end.version, columns).units)
        if not asked.read_change_feed:
            units = _only_appended(units, asked)
    return divide(units, lambda each: each.unit, _with_unit)


def read_portion(
    partition: InputPartition, asked: SourceOptions, carried: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what one task reads."""
    predicate = None if asked.filter is None else parse_expression(asked.filter)
    for batch in read_changes(getattr(partition, "units", ())):
        chosen = batch
        if predicate is not None:
            chosen = batch.filter(evaluate_predicate(predicate, batch))
        if chosen.num_rows:
            yield to_spark(chosen, carried)


def _with_unit(change: ChangeUnit, unit: WorkUnit) -> ChangeUnit:
    return replace(change, unit=unit)


def _columns_to_read(
    table: TableVersion, asked: SourceOptions, carried: pa.Schema
) -> list[str] | None:
    """Return the table's own columns that Spark or the filter needs."""
    wanted = list(asked.columns or carried.names)
    if asked.filter is not None:
        wanted += parse_expression(asked.filter).columns
    by_path: dict[tuple[str, ...], str] = {}
    for column in wanted:
        path = (column,) if column in table.schema.names else split_path(column)
        if path[0] in table.schema.names:
            by_path.setdefault(path, column)
    return list(by_path.values()) or None


def _plan_snapshot(table: TableVersion, columns: Sequence[str] | None) -> list[ChangeUnit]:
    """Return the work units that give a version's rows as inserts."""
    plan_changes(table, table.version, table.version)  # refuses a table that has no change feed
    own = output_schema(project(table.schema, names_of(table, columns)), ())
    return [
        ChangeUnit(
            unit=unit,
            change_type=INSERT,
            commit_version=table.version,
            commit_timestamp=table.timestamp or datetime.fromtimestamp(0, UTC),
            sources=tuple(own.names),
            arrow_schema=own,
        )
        for unit in plan_scan(table, columns, system_columns=_STAMPS)
    ]


def _only_appended(units: Sequence[ChangeUnit], asked: SourceOptions) -> list[ChangeUnit]:
    changing = {each.commit_version: each for each in units if each.change_type != INSERT}
    if changing and not asked.skip_change_commits:
        version = min(changing)
        raise InvalidInputError(
            f"version {version} of {asked.uri} changes rows that were there before (it has a row "
            f"to {changing[version].change_type.split('_')[0]}), but this stream gives appended "
            "rows only. Read all changes with the option readChangeFeed; or pass over such "
            "versions with skipChangeCommits, which leaves out the rows that they insert, too"
        )
    return [each for each in units if each.commit_version not in changing]


# --- as a batch


class ChangesReader(DataSourceReader):
    """Reads the changes of an interval of versions.

    Args:
        asked: What the user set.
        version: The interval's last version, as it was when the schema was made.
        carried: The schema of the batches that Spark expects.
    """

    def __init__(self, asked: SourceOptions, version: int | None, carried: pa.Schema) -> None:
        self.asked = asked
        self.version = version
        self.carried = carried

    def partitions(self) -> list[Portion[ChangeUnit]]:
        """Plan the interval; called once for each DataFrame that is loaded."""
        first = self.asked.starting_version
        last = self.version or open_for_changes(self.asked).version
        if not isinstance(first, int) or first > last:
            raise InvalidInputError(
                f"startingVersion is {first}, but the newest version of {self.asked.uri} is {last}"
            )
        start, end = FeedOffset(max(first - 1, 0)), FeedOffset(last)
        return plan_feed(self.asked, start, end, self.carried) or [Portion(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task."""
        return read_portion(partition, self.asked, self.carried)


# --- as a stream


class _FeedStream(DataSourceStreamReader):
    """What the readers of all versions of PySpark have in common.

    Spark makes it twice for each run of a query: on the driver, where it lives as long as the run,
    and for the workers, who only call `read`.

    Args:
        asked: What the user set.
        carried: The schema of the batches that Spark expects.
    """

    def __init__(self, asked: SourceOptions, carried: pa.Schema) -> None:
        self.asked = asked
        self.carried = carried

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        first = self.asked.starting_version
        if first is None:
            return FeedOffset(0, snapshot=True).to_json()
        newest = self.newest_version()
        if first == LATEST:
            return FeedOffset(newest).to_json()
        assert isinstance(first, int)
        if first > newest + 1:
            raise InvalidInputError(
                f"startingVersion is {first}, but the newest version of {self.asked.uri} is "
                f"{newest}; a stream can begin at version {newest + 1} at the latest"
            )
        return FeedOffset(max(first - 1, 0)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch, from its two offsets alone."""
        return plan_feed(self.asked, parse_offset(start), parse_offset(end), self.carried)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task."""
        return read_portion(partition, self.asked, self.carried)

    def newest_version(self) -> int:
        """Return the newest version; one listing, for this is asked many times a second."""
        return ObjectStoreLog(open_store(self.asked.uri, self.asked.storage_options)).latest()

    def advance(self, start: FeedOffset, newest: int, max_versions: int | None) -> FeedOffset:
        """Return how far the next batch goes.

        Raises:
            NotFoundError: The stream has read more than the table has.
        """
        if newest < start.version:
            raise NotFoundError(
                f"the stream has read up to version {start.version} of {self.asked.uri}, but the "
                f"newest version there is {newest}: the table was deleted and made anew. Start a "
                "new query, with a new checkpoint"
            )
        if start.snapshot:
            return FeedOffset(newest)
        if max_versions is not None:
            newest = min(newest, start.version + max_versions)
        return FeedOffset(newest)


if HAS_READ_LIMITS:

    class FeedStream(_FeedStream, SupportsTriggerAvailableNow):
        """The change feed for PySpark 4.2 and later, which says where a batch starts."""

        def __init__(self, asked: SourceOptions, carried: pa.Schema) -> None:
            super().__init__(asked, carried)
            self._newest: int | None = None
            self._last_available: int | None = None

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return the limit of a batch: Spark knows no versions, so files stand for them."""
            limit = self.asked.max_versions_per_trigger
            return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the version at which the run ends."""
            self._last_available = self.newest_version()

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Return how far the next batch goes."""
            offset = parse_offset(start)
            newest = self._newest = self.newest_version()
            if self._last_available is not None and newest >= offset.version:
                newest = max(min(newest, self._last_available), offset.version)
            max_versions = limit.max_files if isinstance(limit, ReadMaxFiles) else None
            return self.advance(offset, newest, max_versions).to_json()

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return how far the table was at the last look, for the query's progress report."""
            return None if self._newest is None else FeedOffset(self._newest).to_json()


class FeedStreamWithoutStart(_FeedStream):
    """The change feed for PySpark 4.1, which does not say where a batch starts.

    The position is taken from the other calls: a run that goes on is first asked to plan the last
    batch again, so that only a new query has none, and that one begins at its initial offset.

    Nor does PySpark say what the trigger is, and AvailableNow is one batch in 4.1. So the first
    batch of a run takes all versions there are, whatever limit is set; the later ones keep to it.
    """

    def __init__(self, asked: SourceOptions, carried: pa.Schema) -> None:
        super().__init__(asked, carried)
        self._initial: dict[str, Any] | None = None
        self._position: FeedOffset | None = None
        self._is_first = True

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins; the same each time in a run."""
        if self._initial is None:
            self._initial = super().initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # 4.1 passes nothing
        """Return how far the next batch goes."""
        start = self._position or parse_offset(self.initialOffset())
        limit = None if self._is_first else self.asked.max_versions_per_trigger
        self._is_first = False
        return self.advance(start, self.newest_version(), limit).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch, and remember where it ends."""
        self._position = parse_offset(end)
        return super().partitions(start, end)


def make_stream_reader(asked: SourceOptions, carried: pa.Schema) -> DataSourceStreamReader:
    """Return the reader for the PySpark that runs."""
    if HAS_READ_LIMITS:
        return FeedStream(asked, carried)
    return FeedStreamWithoutStart(asked, carried)
