"""Chooses who reads a table's data files for the sink: threads of the driver, or Spark's tasks.

With a local master the driver is the only worker, and a detour through Python processes would only
cost time. On a cluster the driver never reads data files.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_stream.distributed.dividing import number_of_tasks, pack
from lance_stream.errors import LanceStreamError
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.fragment_matches import KeyedRows, Matches, find_matches
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import WorkUnit, sizes_of
from lance_stream.row_updates.in_place import ColumnsJob, write_all_columns
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import driver_is_alone, run_in_tasks
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.write.fragments import delete_files


def workers_of(spark: SparkSession) -> Workers:
    """Return the readers of data files in a session."""
    return THREADS if driver_is_alone(spark) else SparkTasks(spark)


class SparkTasks:
    """Reads data files in Spark's tasks.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def find_matches(
        self,
        table: TableVersion,  # noqa: ARG002  # only workers that keep keys need it
        incoming: KeyedRows,
        units: Sequence[WorkUnit],
        *,
        was_looked_up: bool,  # noqa: ARG002  # the same
    ) -> Sequence[Matches]:
        """Return the matches of each unit; see `find_matches`."""
        find = partial(_find_all, lookup=incoming.lookup, num_keys=len(incoming.on))
        results = run_in_tasks(self._spark, _task_inputs(units), find)
        return [match for group in results for match in group]

    def remember(
        self,
        table: TableVersion,
        on: Sequence[str],
        fragments: Sequence[Fragment],
        rows: pa.RecordBatch,
    ) -> None:
        """Do nothing: the driver of a cluster has no index, because it never reads data files."""

    def read(self, units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units, in order."""
        for batches in run_in_tasks(self._spark, _task_inputs(units), _read_all):
            yield from batches

    def write_columns(self, jobs: Sequence[ColumnsJob]) -> list[Fragment]:
        """Write columns of fragments; see `in_place.write_columns`."""
        sizes = sizes_of([job.unit for job in jobs])
        sized = [(job, size) for job, (_, size) in zip(jobs, sizes, strict=True)]
        num_tasks = number_of_tasks(sum(size for _, size in sized))
        outcomes = run_in_tasks(self._spark, pack(sized, num_tasks), _write_all)
        written = [
            fragment for outcome in outcomes if isinstance(outcome, list) for fragment in outcome
        ]
        for outcome in outcomes:
            if not isinstance(outcome, list):
                delete_files(jobs[0].target.store, written)
                raise outcome
        return written


def _task_inputs(units: Sequence[WorkUnit]) -> list[tuple[WorkUnit, ...]]:
    sized = [(unit, size) for unit, (_, size) in zip(units, sizes_of(units), strict=True)]
    num_tasks = number_of_tasks(sum(size for _, size in sized))
    return pack(sized, num_tasks)


def _find_all(units: Sequence[WorkUnit], lookup: KeyLookup, num_keys: int) -> list[Matches]:
    return [find_matches(unit, lookup, num_keys) for unit in units]


def _read_all(units: Sequence[WorkUnit]) -> list[pa.RecordBatch]:
    return [batch for unit in units for batch in read_unit(unit)]


def _write_all(jobs: Sequence[ColumnsJob]) -> list[Fragment] | LanceStreamError:
    """Return the fragments with their new files; or the error, after which no file is left."""
    try:
        return write_all_columns(jobs)
    except LanceStreamError as error:
        return error
