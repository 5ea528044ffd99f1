"""Rewrites the fragments of a compaction in Spark's tasks.

A task gets whole groups of fragments, and returns the new ones as the table's manifest will list
them: a few hundred bytes each, whatever their rows. Row ids and row versions, which can be large,
come from the manifest and stay on the driver.

An attempt that Spark does not count (it was killed, or another one was faster) has written files
under names of its own. No version ever names them, and a cleanup removes them when they are old.
"""

from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession

from lance_stream.distributed.dividing import SMALL_TASK_BYTES
from lance_stream.errors import LanceStreamError
from lance_stream.maintenance.compaction.rewrites import RewriteTask, write_task
from lance_stream.read.units import size_of
from lance_stream.spark.jobs.arrow_jobs import run_in_tasks
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.write.fragments import delete_files


def rewrite_by_jobs(
    spark: SparkSession, tasks: Sequence[RewriteTask], num_at_once: int
) -> Iterator[list[Fragment]]:
    """Execute tasks in Spark jobs, one after another; see `rewrites.WriteTasks`.

    Args:
        spark: The session.
        tasks: What to rewrite. One of Spark's tasks does several if they are small.
        num_at_once: The maximum number of Spark's tasks in a job.

    Raises:
        LanceStreamError: A task failed. The files of the other tasks of its job are deleted.
    """
    groups = _grouped(tasks)
    for first in range(0, len(groups), num_at_once):
        yield from _job(spark, groups[first : first + num_at_once])


def _grouped(tasks: Sequence[RewriteTask]) -> list[list[RewriteTask]]:
    """Return the tasks in order, small ones together."""
    groups: list[list[RewriteTask]] = []
    num_bytes = SMALL_TASK_BYTES
    for task in tasks:
        task_bytes = sum(size_of(unit)[1] for unit in task.units)
        if num_bytes + task_bytes > SMALL_TASK_BYTES:
            groups.append([])
            num_bytes = 0
        groups[-1].append(task)
        num_bytes += task_bytes
    return groups


def _job(spark: SparkSession, groups: Sequence[Sequence[RewriteTask]]) -> list[list[Fragment]]:
    results = [
        result for of_group in run_in_tasks(spark, groups, _try_to_write) for result in of_group
    ]
    errors = [result for result in results if isinstance(result, LanceStreamError)]
    written = [result for result in results if not isinstance(result, LanceStreamError)]
    if errors:
        store = groups[0][0].target.store
        delete_files(store, [fragment for fragments in written for fragment in fragments])
        raise errors[0]
    return written


def _try_to_write(tasks: Sequence[RewriteTask]) -> list[list[Fragment] | LanceStreamError]:
    """Return errors instead of raising them, so that the driver learns the other tasks' files."""
    results: list[list[Fragment] | LanceStreamError] = []
    for task in tasks:
        try:
            results.append(write_task(task))
        except LanceStreamError as error:
            error.add_note("while a Spark task merged fragments; they are unchanged")
            return [*results, error]
    return results
