"""Calls a stream reader as Spark does, in Spark's order, without Spark.

A query's checkpoint is a list of offsets, written before a batch is planned, and the number of
finished batches. Each run creates a new reader, as a run of a query does. The order of calls is
that observed in PySpark 4.1 and 4.3.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.feed.planning import open_for_changes, schema_of_changes
from lance_stream.spark.feed.stream_reader import (
    HAS_READ_LIMITS,
    FeedStreamWithoutStart,
    make_stream_reader,
)
from lance_stream.spark.session.spark_types import carrier_schema

Row = dict[str, Any]


class KilledError(Exception):
    """The query was killed here."""


@dataclass
class Query:
    """A streaming query over a table, with its checkpoint.

    Attributes:
        uri: The location of the table.
        options: The user's options.
        without_start: Whether to call the reader as PySpark 4.1 does.
        offsets: The ends of batches, which Spark stores before it plans a batch.
        num_done: The number of batches that the checkpoint records as finished.
        batches: The rows of each batch that was read, in the order of reading.
        done: The rows of each finished batch, as read last.
        reader: The reader of the current or last run.
        reports: The lag that each run reported.
    """

    uri: str
    options: dict[str, str]
    without_start: bool = not HAS_READ_LIMITS
    offsets: list[str] = field(default_factory=list)
    num_done: int = 0
    batches: list[list[Row]] = field(default_factory=list)
    done: list[list[Row]] = field(default_factory=list)
    reader: Any = None
    reports: list[Any] = field(default_factory=list)
    _initial: str | None = None

    def start(self) -> None:
        """Begin a run: create a reader, and repeat an unfinished batch."""
        self.reader = self._make_reader()
        self._initial = None
        if self.without_start and self.offsets:
            latest = json.loads(self.offsets[-1])
            assert self.reader.partitions(latest, latest) == []
        if self.num_done < len(self.offsets):
            self._do_batch()

    @property
    def make(self) -> Callable[..., DataSourceStreamReader]:
        """Makes the reader of one PySpark or the other."""
        return FeedStreamWithoutStart if self.without_start else make_stream_reader

    def _make_reader(self) -> DataSourceStreamReader:
        options = parse_reader_options({"path": self.uri, "readChangeFeed": "true", **self.options})
        table = open_for_changes(options)
        carried = carrier_schema(schema_of_changes(table, options))
        return self.make(options, carried, table.version)

    def run(self) -> list[list[Row]]:
        """Read everything available, and return the batches of this run."""
        before = len(self.batches)
        self.start()
        if not self.without_start:
            self.reader.prepareForTriggerAvailableNow()
        while self.trigger() and not self.without_start:
            pass  # with PySpark 4.1 all of it is one batch
        return self.batches[before:]

    def trigger(self, kill: str = "") -> bool:
        """Run one batch if something is new; return whether it did.

        Args:
            kill: Where to kill the query: "before planning", "before commit", or nowhere.
        """
        end = self._latest()
        if self.num_done and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        if kill == "before planning":
            raise KilledError
        self._do_batch(kill)
        return True

    def _latest(self) -> str:
        if self.without_start:
            return json.dumps(self.reader.latestOffset())
        limit = self.reader.getDefaultReadLimit()
        start = json.loads(self.offsets[-1]) if self.num_done else self.reader.initialOffset()
        end = json.dumps(self.reader.latestOffset(start, limit))
        self.reports.append(self.reader.reportLatestOffset())
        return end

    def _do_batch(self, kill: str = "") -> None:
        if self.num_done > 0:
            self.reader.commit(json.loads(self.offsets[self.num_done - 1]))
            start = json.loads(self.offsets[self.num_done - 1])
        else:
            start = self.reader.initialOffset()
        end = json.loads(self.offsets[self.num_done])
        read: list[Row] = []
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                read += batch.to_pylist()
        self.batches.append(read)
        if kill == "before commit":
            raise KilledError
        self.done.append(read)
        self.num_done += 1

    @property
    def rows(self) -> list[Row]:
        """All rows of finished batches."""
        return [row for batch in self.batches for row in batch]
