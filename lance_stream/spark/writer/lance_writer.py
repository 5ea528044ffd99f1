"""The format "lance" as a writer: `df.write.format("lance")`, `writeStream.format("lance")`.

    planning worker    a writer is created        the table is read: `verbs.jobs`, `upsert_writer`
    tasks              writer.write(batches)      data files, or staged rows, in a `TaskResult`
    commit worker      writer.commit(results)     one version
                or     writer.abort(results)      the files are deleted, if no commit was tried

Spark runs these in different processes, none of them the user's. A batch's writer is created once
and pickled between them. A stream's writer is created twice per micro-batch, for the tasks and for
the commit, so each result of an append or an overwrite carries the plan back.

If a task is attempted several times, Spark passes on the result of one attempt only. The files of
the others belong to no version, and cleanup removes them.

Spark calls `abort` when a task fails, but also when `commit` fails, when it may be unknown whether
the version was published. A failed task has no result (None instead), and a commit is only tried
with all results: so files are deleted here only if a result is missing. A commit that is known to
have failed deletes its files itself.

An upsert's tasks write no data files: they stage their rows, and the commit applies them by their
keys. No version ever names staged rows, so their files are deleted whatever the outcome.
"""

import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lance_stream.errors import InvalidInputError, LanceStreamError, NotFoundError
from lance_stream.ledger.messages import unknown_stream
from lance_stream.ledger.micro_batch import fingerprint
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import (
    NO_ROWS,
    RowsDigest,
    add_up,
    digest_of,
)
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.column_names import (
    check_are_distinct,
    column_finder,
    names_in_table,
)
from lance_stream.spark.session.spark_types import to_nullable
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.spark.versions import STREAM_WRITER
from lance_stream.spark.writer.checked_rows import Job, RowChecks, target_of
from lance_stream.spark.writer.new_tables import new_table_schema
from lance_stream.spark.writer.upsert_writer import UpsertJob, commit_upsert, plan_upsert, stage
from lance_stream.spark.writer.upsert_writer import discard as discard_staged
from lance_stream.table.fragments.fragment import Fragment, decode_fragment, encode_fragment
from lance_stream.upsert.large.staged_rows import StagedRows
from lance_stream.verbs.jobs import WriteJob, commit_job, discard, plan_job, require_ledger_entry
from lance_stream.write.fragments import write_fragments
from lance_stream.write.row_checks import BadRows

_log = logging.getLogger("lance_stream.spark.writer")


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """The result of a task.

    Attributes:
        job: The job that it belongs to; None for an upsert, whose commit plans by itself.
        fragments: The fragments that it wrote, encoded; no version names them yet.
        digest: Of the rows that it received.
        is_replay: Whether it wrote nothing because the ledger has this batch id.
        query_id: The streaming query's own id; empty if Spark did not report it.
        error: One of our errors, pickled: retrying the task would not help, so Spark does not see
            a failure.
        staged: The rows of an upsert.
        bad: Rows that it left out; see `BadRows.encode`.
    """

    job: WriteJob | None
    fragments: tuple[bytes, ...] = ()
    digest: RowsDigest = NO_ROWS
    is_replay: bool = False
    query_id: str = ""
    error: bytes | None = None
    staged: StagedRows | None = None
    bad: bytes = b""


def plan(
    arguments: WriterArguments,
    incoming: StructType,
    overwrite: bool,
    *,
    case_sensitive: bool = False,
) -> Job:
    """Plan the write of rows to the table that a user requested, and check that they fit.

    Spark calls a column non-null if this particular plan cannot produce nulls. The next plan may,
    so all columns of a new table are nullable.

    Args:
        arguments: The user's options.
        incoming: The rows' columns.
        overwrite: Whether they replace all rows of the table.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        InvalidInputError: They do not fit, or an option is invalid for this table.
    """
    if not incoming.fields:
        raise InvalidInputError("the rows have no columns, so nothing would be stored")
    if arguments.is_by_key:
        return plan_upsert(arguments, incoming, case_sensitive=case_sensitive)
    check_are_distinct(incoming.names, "the batch", case_sensitive=case_sensitive)
    names = incoming.names
    column = column_finder(names, names, "the rows have", case_sensitive=case_sensitive)
    excluded = arguments.renamed(column).except_columns
    incoming = StructType([field for field in incoming if field.name not in excluded])
    if not incoming.fields:
        raise InvalidInputError("all columns of the rows are excluded, so nothing would be stored")
    job = plan_job(
        arguments.uri,
        new_table_schema(to_nullable(incoming), arguments.vectors, case_sensitive=case_sensitive),
        overwrite=overwrite,
        add_columns="add_columns" in arguments.schema_evolution,
        widen_types="widen_types" in arguments.schema_evolution,
        file_version=arguments.file_version,
        primary_key=arguments.primary_key,
        storage_options=arguments.storage_options,
        name_rule=partial(names_in_table, case_sensitive=case_sensitive),
        case_sensitive=case_sensitive,
        may_create=arguments.branch is None,
    )
    mode = "overwrite" if overwrite else "append"
    return replace(job, excluded=excluded, rules=replace(arguments, mode=mode).fingerprint)


def check_spark_mode(arguments: WriterArguments, *, streaming: bool, overwrite: bool) -> None:
    """Refuse a mode that does not fit the mode of `df.write`, or the query's output mode.

    Args:
        arguments: The user's options.
        streaming: Whether a stream is written.
        overwrite: Whether Spark says that the rows replace all rows: its mode is "overwrite", or
            the output mode "complete".

    Raises:
        InvalidInputError: It does not fit.
    """
    mode = arguments.mode
    if mode is None or overwrite == (mode == "overwrite") or arguments.any_output_mode:
        return
    if not streaming:
        fitting = "overwrite" if mode == "overwrite" else "append"
        raise InvalidInputError(
            f"the option mode={mode} does not fit the mode of the writer, "
            f"{'overwrite' if overwrite else 'append'} (in SQL, INSERT "
            f"{'OVERWRITE' if overwrite else 'INTO'}): use .mode({fitting!r})"
        )
    raise InvalidInputError(
        f"mode={mode} does not fit the query's output mode: {_MISFITS[mode]}. Nothing was written. "
        "If this is what you want, set anyOutputMode=true"
    )


_MISFITS: Final[Mapping[str, str]] = {
    "append": "every group would be stored again by each trigger. Use mode=overwrite",
    "upsert": (
        "each trigger returns all groups again, and a group that a filter, a limit or a join later "
        "removes would stay in the table. Use mode=overwrite; or, in foreachBatch, lance_sink with "
        "outputMode('update')"
    ),
    "apply_changes": (
        "an aggregate is not a change feed. Apply the feed itself, in outputMode('append')"
    ),
    "overwrite": (
        "each trigger returns only new rows, so only those of the last one would stay. Use "
        "outputMode('complete'), or mode=append"
    ),
}
"""Why an overwrite does not fit the output mode "append", and other modes do not fit "complete"."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame and commits it as one version.

    Args:
        job: The planned write.
        checks: The user's options, and what the rows are checked for.
    """

    def __init__(self, job: Job, checks: RowChecks) -> None:
        self.job = job
        self.checks = checks
        self.numbered = _numbered(checks.arguments)
        self.skip = self.numbered is not None and job.has_committed(self.numbered.batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of one task."""
        if self.skip:
            return _digest(self.job, iterator)
        return _write(self.job, iterator, self.checks)

    @without_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows that the tasks wrote, unless the ledger has them."""
        _commit(self.job, _results_of(messages, self.job), self.numbered, self.checks)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the files that the tasks wrote, if no commit was tried."""
        _abort(messages, self.job)


class StreamWriter(STREAM_WRITER):  # type: ignore[misc]  # a class of PySpark's, by version
    """Writes a micro-batch and commits it as one version, exactly once.

    Args:
        job: The planned write; only used if this writer is sent to the tasks.
        checks: The user's options, and what the rows are checked for.
    """

    def __init__(self, job: Job, checks: RowChecks) -> None:
        self.job = job
        self.checks = checks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows of one task; only compute their digest if the ledger has the batch id."""
        query_id, batch_id = (
            _task_property("sql.streaming.queryId"),
            _task_property("streaming.sql.batchId"),
        )
        try:
            batch = self._identify(int(batch_id or 0), query_id)
            if batch_id and self.job.has_committed(batch.batch):
                return _digest(self.job, iterator, query_id)
        except LanceStreamError as error:
            return _result(self.job, query_id=query_id, error=pickle.dumps(error))
        return _write(self.job, iterator, self.checks, query_id)

    @without_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the rows that the tasks wrote, unless the ledger has the batch."""
        results = _results_of(messages, self.job)
        if results:
            batch = self._identify(batchId, results[0].query_id)
            job = results[0].job or self.job
            if job.is_new:
                self._check_may_create(job, results, batch)
            _commit(job, results, batch, self.checks)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002  # the signature is Spark's
        """Delete the files that the tasks wrote, if no commit was tried."""
        _abort(messages, self.job)

    def _check_may_create(
        self, job: Job, results: Sequence[TaskResult], batch: PendingBatch
    ) -> None:
        try:
            batch.check_may_create(job.uri, late_start=self.checks.arguments.late_start)
        except NotFoundError:
            _discard(results, job)
            raise

    def _identify(self, batch_id: int, query_id: str) -> PendingBatch:
        arguments = self.checks.arguments
        app_id = arguments.app_id or query_id
        if not app_id:
            raise unknown_stream("the option appId")
        may_differ = arguments.replays_may_differ
        return PendingBatch.of(app_id, batch_id, query_id, may_differ=may_differ)


def _numbered(arguments: WriterArguments) -> PendingBatch | None:
    """Return the identity of a batch write; None if the ledger keeps no entry for it."""
    if arguments.txn_app_id is None or arguments.txn_version is None:
        return None
    may_differ = arguments.replays_may_differ
    return PendingBatch.of(arguments.txn_app_id, arguments.txn_version, may_differ=may_differ)


def _result(job: Job, **values: Any) -> TaskResult:
    return TaskResult(job if isinstance(job, WriteJob) else None, **values)


def _write(
    job: Job, batches: Iterable[pa.RecordBatch], checks: RowChecks, query_id: str = ""
) -> TaskResult:
    read = checks.sort(_named(job, batches, checks.helpers))
    try:
        if isinstance(job, UpsertJob):
            staged = stage(job, read)
            bad = read.bad.encode()
            return TaskResult(None, (), read.digest, query_id=query_id, staged=staged, bad=bad)
        fragments = write_fragments(read, job.target)
    except LanceStreamError as error:
        error.add_note("while a Spark task wrote its part of the rows; nothing was committed")
        return _result(job, query_id=query_id, error=pickle.dumps(error))
    encoded = tuple(map(encode_fragment, fragments))
    return TaskResult(job, encoded, read.digest, query_id=query_id, bad=read.bad.encode())


def _named(
    job: Job, batches: Iterable[pa.RecordBatch], helpers: Sequence[str] = ()
) -> Iterable[pa.RecordBatch]:
    """Return the batches with the columns to read, with names in the table's spelling.

    Args:
        job: The job.
        batches: The rows.
        helpers: Columns that are read although they are not stored.
    """
    if isinstance(job, UpsertJob):
        return (batch.rename_columns(list(job.names)) for batch in batches)
    excluded = [column for column in job.excluded if column not in helpers]
    if excluded:
        batches = (batch.drop_columns(excluded) for batch in batches)
    if job.names is None:
        return batches
    return (_renamed(batch, job.names, helpers) for batch in batches)


def _renamed(batch: pa.RecordBatch, names: Sequence[str], helpers: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with other names for its columns, except for those that are kept."""
    rest = iter(names)
    return batch.rename_columns([e if e in helpers else next(rest) for e in batch.schema.names])


def _digest(job: Job, batches: Iterable[pa.RecordBatch], query_id: str = "") -> TaskResult:
    digest = add_up(map(digest_of, _named(job, batches)))
    return _result(job, digest=digest, is_replay=True, query_id=query_id)


def _commit(
    job: Job, results: Sequence[TaskResult], batch: PendingBatch | None, checks: RowChecks
) -> None:
    if batch is not None:
        identity = replace(batch.batch, rules=_rules_of(job))
        batch = replace(batch, batch=identity, digest=add_up(result.digest for result in results))
        if any(result.is_replay for result in results):
            entry = require_ledger_entry(job, batch)
            _log.info(
                "%s: %s is already committed, as version %s", job.uri, batch.batch, entry.version
            )
            checks.publish(job, batch.batch)
            return
    quarantine = _refuse_or_stage(checks, job, results, batch)
    file = "" if quarantine is None else quarantine.file
    if batch is not None and file:
        batch = replace(batch, quarantined=file)
    is_new, is_committed = _commit_rows(job, results, batch, even_without_rows=bool(file))
    if batch is not None and is_committed:  # by another driver
        checks.publish(job, batch.batch)
    elif quarantine is not None and is_new:
        quarantine.publish(target_of(job))
        if quarantine.counts:
            _log.info("%s: quarantined %s in %s", job.uri, dict(quarantine.counts), quarantine.uri)


def _refuse_or_stage(
    checks: RowChecks, job: Job, results: Sequence[TaskResult], batch: PendingBatch | None
) -> QuarantineBatch | None:
    """Refuse the batch because of its rows, and delete their files; or stage bad ones."""
    bad = BadRows()
    try:
        for result in results:
            bad.add_encoded(result.bad)
        num_rows = sum(result.digest.num_rows for result in results)
        return checks.refuse_or_stage(job, bad, num_rows, None if batch is None else batch.batch)
    except LanceStreamError:
        _discard(results, job)
        raise


def _commit_rows(
    job: Job, results: Sequence[TaskResult], batch: PendingBatch | None, *, even_without_rows: bool
) -> tuple[bool, bool]:
    """Commit good rows; return whether a version is new, and whether the table had the batch."""
    if isinstance(job, UpsertJob):
        staged = [result.staged for result in results if result.staged]
        even_without_rows |= job.is_new  # as an append without rows creates the table, too
        upserted = commit_upsert(job, staged, batch, even_without_rows=even_without_rows)
        counts = (
            f"{upserted.num_rows} rows: {upserted.num_inserted} inserted, {upserted.num_updated} "
            f"updated, {upserted.num_deleted} deleted, {upserted.num_unchanged} unchanged, "
            f"{upserted.num_late} late"
        )
        _log_commit(job, batch, counts, upserted.table.version if upserted.is_new else None)
        return upserted.is_new, upserted.was_already_committed
    fragments = _fragments_of(results)
    outcome = commit_job(job, fragments, batch, even_without_rows=even_without_rows)
    rows = f"{sum(fragment.physical_rows for fragment in fragments)} rows"
    _log_commit(job, batch, rows, outcome.table.version if outcome.is_new else None)
    return outcome.is_new, outcome.already_committed_in is not None


def _rules_of(job: Job) -> str:
    if isinstance(job, UpsertJob):
        return job.fingerprint
    return job.rules or fingerprint({"mode": "overwrite" if job.overwrite else "append"})


def _log_commit(job: Job, batch: PendingBatch | None, rows: str, version: int | None) -> None:
    what = (
        rows
        if batch is None
        else f"batch {batch.batch.batch_id} of {batch.batch.app_id!r} ({rows})"
    )
    became = "nothing: committed before, or no change" if version is None else f"version {version}"
    _log.info("%s: committed %s as %s", job.uri, what, became)


def _abort(messages: Sequence[WriterCommitMessage | None], job: Job) -> None:
    results = [message for message in messages if isinstance(message, TaskResult)]
    if any(message is None for message in messages) or isinstance(job, UpsertJob):
        _discard(results, job)  # data files only if no commit was tried


def _discard(results: Iterable[TaskResult], job: Job) -> None:
    """Delete the files of results that were never committed."""
    for result in results:
        if result.job is not None:
            discard(result.job, _fragments_of([result]))
        elif result.staged is not None and isinstance(job, UpsertJob):
            discard_staged(job, [result.staged])


def _results_of(messages: Sequence[WriterCommitMessage | None], job: Job) -> list[TaskResult]:
    """Return the results of a job if every task succeeded.

    Raises:
        LanceStreamError: A task's error; the files of the others are deleted.
    """
    results = [message for message in messages if isinstance(message, TaskResult)]
    for result in results:
        if result.error is not None:
            _discard(results, job)
            raise pickle.loads(result.error)
    return results


def _fragments_of(results: Sequence[TaskResult]) -> list[Fragment]:
    return [decode_fragment(fragment) for result in results for fragment in result.fragments]


def _task_property(name: str) -> str:
    """Return a property that Spark sets for the tasks of a job; empty if it is not set."""
    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty(name) or ""
