"""Spark's micro-batch loop over a source, without Spark: the same calls, in the same order.

    a new query          initialOffset, latestOffset, [offset log], initialOffset again, partitions,
                         read, [commit log]
    a later batch        latestOffset, [offset log], commit of the batch before, partitions, read,
                         [commit log]
    an unfinished batch  partitions and read of the offsets in the log, before everything else

As in Spark, objects that are passed between processes are pickled, offsets are texts in a log, and
each worker has another reader. A checkpoint outlives its engine: one engine can be stopped at any
step, and another continues.

PySpark 4.1 passes no arguments to latestOffset, calls it before initialOffset, and starts a run
after a finished batch with the partitions of an empty range at the end of that batch.

Source: calls observed on PySpark 4.1 and 4.3.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from lance_stream.spark.session.spark_types import carrier_schema, stored_schema
from lance_stream.spark.source.lance_source import LanceSource
from lance_stream.spark.versions import HAS_READ_LIMITS
from tests.faults.locations import options_of

Sink: TypeAlias = Callable[[pa.Table, int], None]
"""Gets the rows of a batch, and its number."""


class Crashed(Exception):  # noqa: N818  # it is no error: it ends a process
    """The process of a query dies."""


@dataclass
class Checkpoint:
    """What a query remembers when its process has died.

    Attributes:
        offsets: The end of each batch that was begun, as a text.
        num_committed: How many of them are done.
    """

    offsets: list[str] = field(default_factory=list)
    num_committed: int = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether the last batch was begun, but is not done."""
        return len(self.offsets) > self.num_committed


class Engine:
    """A query: a source, a sink and a checkpoint.

    Args:
        uri: The table that is read.
        sink: Where batches go.
        checkpoint: Of an earlier engine; None for a new query.
        at_step: Called before each step with its name; may raise `Crashed`, or change the table.
        options: Of the source, which is the change feed unless `readChangeFeed` is False.
    """

    def __init__(
        self,
        uri: str,
        sink: Sink,
        checkpoint: Checkpoint | None = None,
        at_step: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        self.checkpoint = checkpoint or Checkpoint()
        self.sink = sink
        self.at_step = at_step
        texts = {"path": uri, "readChangeFeed": True} | options
        if options_of(uri):
            texts["secretStorageOptions"] = json.dumps(options_of(uri))
        self.options = {key: str(value) for key, value in texts.items()}
        self.reported: Mapping[str, Any] | None = None

    def run(self, polls: int | None = None) -> None:
        """Do what a run of the query does.

        Args:
            polls: How often it asks for news; None for the trigger AvailableNow, which ends when
                there are none.
        """
        run = _Run(self, is_available_now=polls is None)
        run.finish_last_batch()
        while polls is None or polls > 0:
            has_news = run.batch()
            if polls is not None:
                polls -= 1
            elif not has_news or not HAS_READ_LIMITS:
                return


class _Run:
    """A run of a query: what its process holds.

    Args:
        engine: The query.
        is_available_now: Whether it ends when all is read that is there.
    """

    def __init__(self, engine: Engine, *, is_available_now: bool) -> None:
        self.engine = engine
        self.checkpoint = engine.checkpoint
        engine.at_step("load")
        source = LanceSource({key.lower(): option for key, option in engine.options.items()})
        schema = source.schema()
        self.schema = carrier_schema(stored_schema(schema))
        stored = pickle.dumps(source)
        self.reader: Any = pickle.loads(stored).streamReader(schema)
        self.worker: Any = pickle.loads(stored).streamReader(schema)
        self.limit = None
        if HAS_READ_LIMITS:
            if is_available_now:
                engine.at_step("prepareForTriggerAvailableNow")
                self.reader.prepareForTriggerAvailableNow()
            self.limit = self.reader.getDefaultReadLimit()

    def finish_last_batch(self) -> None:
        """Do the batch that the log says was begun; without one, PySpark 4.1 tells where it is."""
        if self.checkpoint.is_unfinished:
            self.execute()
        elif self.checkpoint.offsets and not HAS_READ_LIMITS:
            offset = json.loads(self.checkpoint.offsets[-1])
            self.engine.at_step("partitions")
            self.reader.partitions(offset, offset)

    def batch(self) -> bool:
        """Ask for news, and return whether there are any; if so, do a batch."""
        logged = self.checkpoint.offsets
        end = self.latest_offset()
        if logged and end == logged[-1]:
            return False
        self.engine.at_step("log the offset")
        logged.append(end)
        if len(logged) > 1:
            self.engine.at_step("commit")
            self.reader.commit(json.loads(logged[-2]))
        self.execute()
        return True

    def latest_offset(self) -> str:
        if not HAS_READ_LIMITS:
            self.engine.at_step("latestOffset")
            return json.dumps(self.reader.latestOffset())
        logged = self.checkpoint.offsets
        start = json.loads(logged[-1]) if logged else self.initial_offset()
        self.engine.at_step("latestOffset")
        end = json.dumps(self.reader.latestOffset(start, self.limit))
        self.engine.reported = self.reader.reportLatestOffset()
        return end

    def initial_offset(self) -> Any:
        self.engine.at_step("initialOffset")
        return json.loads(json.dumps(self.reader.initialOffset()))

    def plan(self) -> list[bytes]:
        """Return the tasks of the last batch of the log."""
        logged = self.checkpoint.offsets
        start = json.loads(logged[-2]) if len(logged) > 1 else self.initial_offset()
        self.engine.at_step("partitions")
        tasks = self.reader.partitions(start, json.loads(logged[-1]))
        return [pickle.dumps(task) for task in tasks]

    def execute(self) -> None:
        """Do the last batch of the log."""
        tasks = self.plan()
        batches = []
        for task in tasks:
            self.engine.at_step("read")
            for batch in self.worker.read(pickle.loads(task)):
                assert batch.schema == self.schema, "Spark takes no other columns"
                batches.append(batch)
        self.engine.at_step("sink")
        rows = pa.Table.from_batches(batches, schema=self.schema)
        self.engine.sink(rows, len(self.checkpoint.offsets) - 1)
        self.engine.at_step("log the commit")
        self.checkpoint.num_committed = len(self.checkpoint.offsets)
