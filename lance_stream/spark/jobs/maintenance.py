"""Compaction and cleanup of a table as Spark jobs, for tables too large for one process.

    compact_table    the driver plans from the manifest, tasks rewrite, the driver commits
    cleanup_table    the driver decides, tasks list and delete

Both do what `Dataset.compact` and `Dataset.cleanup` do, by the same code: only where files are
read, written, listed and deleted differs (`rewrite_jobs`, `file_jobs`).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from lance_stream.arguments import as_number
from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.cleanup import cleanup
from lance_stream.maintenance.cleanup.report import CleanupReport
from lance_stream.maintenance.cleanup.rules import as_rules
from lance_stream.maintenance.compaction.compact import compact
from lance_stream.maintenance.compaction.plan import TARGET_ROWS
from lance_stream.maintenance.compaction.rewrites import RewriteTask
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.references import branch_uri
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.jobs.arrow_jobs import described, slots_of
from lance_stream.spark.jobs.file_jobs import by_tasks
from lance_stream.spark.jobs.rewrite_jobs import rewrite_by_jobs
from lance_stream.spark.session.python_check import check_workers_python, explain_worker_errors
from lance_stream.spark.session.session_settings import (
    check_session,
    locate_in_session,
    options_in_session,
)
from lance_stream.spark.session.user_errors import without_our_frames
from lance_stream.storage.locations import check_is_shared, text_of
from lance_stream.storage.namespaces.locating import TableId
from lance_stream.storage.options.names import as_options
from lance_stream.storage.trust import with_trusted
from lance_stream.table.fragments.fragment import Fragment

BYTES_PER_COMMIT: Final = 64 << 30
"""About how many bytes `compact_table` rewrites before it commits them."""

_MIN_TASKS_AT_ONCE: Final = 64
_TASKS_PER_SLOT: Final = 2


@without_our_frames
def compact_table(
    spark: SparkSession,
    uri: str | os.PathLike[str] | None = None,
    target_rows: int = TARGET_ROWS,
    *,
    bytes_per_commit: int = BYTES_PER_COMMIT,
    storage_options: Mapping[str, Any] | None = None,
    branch: str | None = None,
    trusted_locations: Sequence[str] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Dataset:
    """Rewrite small fragments, and those with many deleted rows, in Spark tasks.

    Has the effect of `Dataset.compact`. The driver plans from the manifest and reads no data file;
    each task rewrites adjacent fragments, up to about 4 GB. Row ids and row versions stay the same,
    and the change feed has no changes. Other writers may append, delete and update rows
    concurrently: their changes are merged, and the rewritten files are still used.

    A large table is compacted in several commits, fragments with the largest gain first, so that
    only the work since the last commit is lost if the driver dies. Call it again to continue.
    Fragments that other writers add in the meantime are left for the next call. Files of tasks and
    drivers that died belong to no version; a cleanup removes them after 7 days.

    Args:
        spark: The session. Its tasks use the storage options below.
        uri: The table's location, for the driver and for all workers.
        target_rows: The target number of rows per fragment.
        bytes_per_commit: The approximate size in bytes of the data files that one commit rewrites,
            at least one new fragment. This limits the work that is lost if the driver dies, and the
            space for files that no version references yet.
        storage_options: Settings of the store. If none of them give credentials or an endpoint,
            Spark's own settings apply, as for `lance_sink`.
        branch: The branch to compact; None or "main" for the main one.
        trusted_locations: As for `open_dataset`.
        table_id: The table's name in a Lance namespace, instead of `uri`; see `lance_sink`.
        namespace: The namespace.

    Returns:
        The dataset at the last version that was committed; at the newest version if there was
        nothing to do.

    Raises:
        InvalidInputError: An argument is invalid, or the workers cannot run this package.
        NotFoundError: There is no table, or a worker does not see its files.
        BadDataError: A data file is damaged, or uses an unsupported feature.
        CommitError: Every attempt conflicted with other commits. As for all errors, earlier
            commits of this call remain.
    """
    check_session(spark, "compact_table(spark, uri)")
    number = as_number(bytes_per_commit)
    if number is None or number < 1:
        raise InvalidInputError(
            f"bytes_per_commit must be a whole number from 1, not {bytes_per_commit!r:.200}"
        )
    uri, storage_options = locate_in_session(spark, uri, storage_options, table_id, namespace)
    table = _open(spark, uri, storage_options, branch, trusted_locations)
    with explain_worker_errors(), described(spark, f"lance-stream: compact {table.uri}"):
        write = partial(_rewrite, spark)
        return Dataset(compact(table, target_rows, write, bytes_per_commit=number).table)


@without_our_frames
def cleanup_table(
    spark: SparkSession,
    uri: str | os.PathLike[str] | None = None,
    older_than: str | timedelta | None = None,
    retain_versions: int | None = None,
    *,
    dry_run: bool = False,
    delete_unverified: bool = False,
    expire_consumers: str | timedelta | None = None,
    storage_options: Mapping[str, Any] | None = None,
    branch: str | None = None,
    trusted_locations: Sequence[str] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> CleanupReport:
    """Remove old versions, and files that no remaining version references, in Spark tasks.

    Keeps and removes what `Dataset.cleanup` does. The driver reads the versions and decides; tasks
    list the table's folders and delete files. Versions are deleted first, then the files that only
    they referenced. So the table stays valid if the driver dies, and tasks can safely run twice.

    Args:
        spark: The session. Its tasks use the storage options below.
        uri: The table's location, for the driver and for all workers.
        older_than: Minimum age of the versions to remove ("7 days").
            None: 14 days, or any age if `retain_versions` is given.
        retain_versions: Number of newest versions to keep, whatever their age.
        dry_run: Only report; remove nothing.
        delete_unverified: Remove files that no version ever referenced, whatever their age. Use it
            only if nobody is writing to the table: it would delete their files.
        expire_consumers: Drop consumers that have not read an available version for this long;
            by default, none are dropped.
        storage_options: Settings of the store. If none of them give credentials or an endpoint,
            Spark's own settings apply, as for `lance_sink`.
        branch: The branch to clean up; None or "main" for the main one.
        trusted_locations: As for `open_dataset`.
        table_id: The table's name in a Lance namespace, instead of `uri`; see `lance_sink`.
        namespace: The namespace.

    Raises:
        InvalidInputError: An age or number is invalid; or the workers cannot run this package, or
            do not see the table.
        NotFoundError: There is no table.
        UnsupportedFeatureError: The table or a branch has an unknown feature. Nothing was
            removed.
        BadDataError: A version, a tag or a branch is damaged. Nothing was removed.
        OSError: A file could not be read, or a folder not listed. No needed file was removed.
    """
    check_session(spark, "cleanup_table(spark, uri)")
    rules = as_rules(
        older_than,
        retain_versions,
        delete_unverified=delete_unverified,
        expire_consumers=expire_consumers,
    )
    uri, storage_options = locate_in_session(spark, uri, storage_options, table_id, namespace)
    table = _open(spark, uri, storage_options, branch, trusted_locations)
    with explain_worker_errors(), described(spark, f"lance-stream: clean up {table.uri}"):
        return cleanup.cleanup(table, rules, is_dry_run=dry_run, work=by_tasks(spark))


def _open(
    spark: SparkSession,
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    branch: str | None,
    trusted_locations: Sequence[str] | None,
) -> TableVersion:
    """Return the newest version of a table that a session's tasks can reach."""
    check_workers_python(spark, only_tasks=True)
    check_is_shared(uri)
    location = branch_uri(text_of(uri), branch)
    options = as_options(with_trusted(as_options(storage_options), trusted_locations))
    return open_newest(location, options_in_session(spark, location, options))


def _rewrite(spark: SparkSession, tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
    at_once = max(_MIN_TASKS_AT_ONCE, _TASKS_PER_SLOT * (slots_of(spark) or 1))
    yield from rewrite_by_jobs(spark, tasks, at_once)
