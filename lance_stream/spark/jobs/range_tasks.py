"""Processes the ranges of a large upsert in Spark's tasks, on a cluster.

    tasks    first, the keys of files that the table's index lacks are read, and written as runs
    tasks    each a range of keys: its staged rows, and its chunks of the index's runs

The driver sends ranges, and receives decisions and written files. It reads footers of the index's
runs, but no key.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from lance_stream.errors import LanceStreamError
from lance_stream.keys.index.key_index import MAX_SAVED_ROWS, MIN_SHARED_ROWS
from lance_stream.keys.index.run_merging import in_groups
from lance_stream.keys.index.shared_index import index_keys, merge_runs, shared_index
from lance_stream.row_updates.staged_files import WordRange
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import run_in_tasks, slots_of
from lance_stream.spark.jobs.spark_workers import SparkTasks
from lance_stream.upsert.large.in_parts import Outcome, PartedUpsert
from lance_stream.upsert.large.staged_rows import MAX_ROWS

MIN_ROWS: Final = 100_000
"""The minimum number of rows for a separate task."""


class RangeTasks:
    """Processes ranges in Spark's tasks; see `RangeWorkers`.

    Args:
        spark: The session.
    """

    ranges_at_once: int = 1

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.reading = SparkTasks(spark)

    def prepare(self, planned: PartedUpsert) -> PartedUpsert:
        """Have tasks index the keys that no run has, if they are many, and merge runs."""
        table = planned.table
        index = shared_index(table, planned.rules.on)
        lacking = index.lacking(table)
        if sum(num_rows for _, num_rows in lacking) >= MIN_SHARED_ROWS:
            function = partial(index_keys, table, index.on, index.seeds)
            run_in_tasks(self._spark, in_groups(lacking, MAX_SAVED_ROWS), function)
        function = partial(merge_runs, table, index.on, index.seeds)
        run_in_tasks(self._spark, index.to_merge(), function)
        return replace(planned, keeps_keys=False)

    def max_rows(self, num_rows: int) -> int:
        """Return the limit of memory, or less if that occupies all slots."""
        slots = slots_of(self._spark) or 1
        return min(MAX_ROWS, max(MIN_ROWS, -(-num_rows // slots)))

    def run(
        self, function: Callable[[WordRange], Outcome], ranges: Sequence[WordRange]
    ) -> Iterator[Outcome]:
        """Yield what a picklable function returns for the ranges."""
        for result in run_in_tasks(self._spark, ranges, function):
            if isinstance(result, LanceStreamError):
                result.add_note(
                    "while a Spark task applied its part of an upsert; nothing was committed"
                )
            yield result


def seed_of_index(table: TableVersion, on: Sequence[str]) -> int:
    """Return the seed of the words by which the runs of a table's index are sorted.

    Args:
        table: Any version.
        on: Names of the key columns. Tasks refuse rows if the table lacks one.
    """
    return shared_index(table, on).seeds[0] if set(on) <= set(table.arrow_schema.names) else 0
