"""The change feed as a stream.

A stream's offset is a version (`offsets`). Without `readChangeFeed` a stream gives the rows
appended, without change columns, and stops at a version that updates or deletes: whoever reads such
a stream cannot be told of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.spark.feed.offsets import FeedOffset, parse_offset
from lance_stream.spark.feed.planning import plan_feed, read_portion
from lance_stream.spark.options import LATEST, SourceOptions
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
