"""The format "lance" as a writer: `df.write.format("lance")`, `writeStream.format("lance")`.

    planning worker    a writer is created       the table is read: `verbs.jobs`
    tasks              writer.write(batches)     data files, described by a `Part`
    commit worker      writer.commit(parts)      one version
                or     writer.abort(parts)       the files are deleted, if no commit was tried

Spark runs these in different processes, none of them the user's. A batch's writer is created once
and pickled between them. A stream's writer is created twice per micro-batch, for the tasks and for
the commit, so each part carries the plan back.

If a task is attempted several times, Spark passes on the part of one attempt only. The files of the
others belong to no version, and cleanup removes them.

Spark calls `abort` when a task fails, but also when `commit` fails, when it may be unknown whether
the version was published. A failed task has no part (None instead), and a commit is only tried with
all parts: so files are deleted here only if a part is missing. A commit that is known to have
failed deletes its files itself.
"""

import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.spark.column_names import names_in_table, settle_columns
from lance_stream.spark.options import WriteOptions
from lance_stream.spark.plain_errors import plainly
from lance_stream.spark.spark_types import stored_schema
from lance_stream.table.fragments import Fragment, decode_fragment, encode_fragment
from lance_stream.verbs.jobs import WriteJob, check_is_in, commit_job, discard, plan_job
from lance_stream.write.batch_proofs import MicroBatch, fingerprint
from lance_stream.write.fragments import write_fragments
from lance_stream.write.row_digests import (
    NO_ROWS,
    DigestingBatches,
    RowsDigest,
    add_up,
    digest_of,
)

_log = logging.getLogger("lance_stream.spark.writers")


@dataclass(frozen=True)
class Part(WriterCommitMessage):
    """The result of a task.

    Attributes:
        job: The job that it belongs to.
        fragments: The fragments that it wrote, encoded; no version names them yet.
        digest: Of the rows that it received.
        is_in: Whether it wrote nothing because the ledger has this batch id.
        query_id: The streaming query's own id; empty if Spark did not report it.
        error: One of our errors, pickled: retrying the task would not help, so Spark does not see
            a failure.
    """

    job: WriteJob
    fragments: tuple[bytes, ...] = ()
    digest: RowsDigest = NO_ROWS
    is_in: bool = False
    query_id: str = ""
    error: bytes | None = None


def plan(
    asked: WriteOptions, incoming: StructType, overwrite: bool, *, case_sensitive: bool = False
) -> WriteJob:
    """Plan the write of rows to the table that a user requested, and check that they fit.

    Spark calls a column non-null if this particular plan cannot produce nulls. The next plan may,
    so all columns of a new table are nullable.

    Args:
        asked: The user's options.
        incoming: The rows' columns.
        overwrite: Whether they replace all rows of the table.
        case_sensitive: Whether Spark distinguishes the columns `v` and `V`.

    Raises:
        InvalidInputError: They do not fit, or an option is invalid for this table.
    """
    if not incoming.fields:
        raise InvalidInputError("the rows have no columns, so they would be lost")
    own_names = names_in_table(incoming.names, incoming.names, case_sensitive=case_sensitive)
    key = settle_columns(
        asked.primary_key,
        pa.schema([(each, pa.null()) for each in own_names]),
        case_sensitive=case_sensitive,
    )
    return plan_job(
        asked.uri,
        stored_schema(incoming.toNullable()),
        overwrite=overwrite,
        add_columns=asked.add_columns,
        file_version=asked.file_version,
        primary_key=key,
        storage_options=asked.storage_options,
        name_rule=partial(names_in_table, case_sensitive=case_sensitive),
        case_sensitive=case_sensitive,
        may_create=asked.branch is None,
    )


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame and commits it as one version.

    Args:
        job: The planned write.
        write: The app id and number for the ledger; None for no entry.
    """

    def __init__(self, job: WriteJob, write: MicroBatch | None) -> None:
        self.job = job
        self.numbered = write
        self.skip = write is not None and job.has_committed(write)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Write the rows of one task."""
        return _digest(self.job, iterator) if self.skip else _write(self.job, iterator)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows that the tasks wrote, unless the ledger has them."""
        _commit(self.job, _parts_of(messages), self.numbered)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the files that the tasks wrote, if no commit was tried."""
        _abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch and commits it as one version, exactly once.

    Args:
        job: The planned write; only used if this writer is sent to the tasks.
        app_id: The app id under which the ledger keeps the stream's batches; None for the
            streaming query's own id.
        may_differ: Whether a repeated batch may have different rows.
    """

    def __init__(self, job: WriteJob, app_id: str | None, *, may_differ: bool = False) -> None:
        self.job = job
        self.app_id = app_id
        self.may_differ = may_differ

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Write the rows of one task; only compute their digest if the ledger has the batch id."""
        query_id, batch_id = (
            _task_property("sql.streaming.queryId"),
            _task_property("streaming.sql.batchId"),
        )
        try:
            batch = self._identify(int(batch_id or 0), query_id)
            if batch_id and self.job.has_committed(batch):
                return _digest(self.job, iterator, query_id)
        except LanceStreamError as error:
            return Part(self.job, query_id=query_id, error=pickle.dumps(error))
        return _write(self.job, iterator, query_id)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the rows that the tasks wrote, unless the ledger has the batch."""
        parts = _parts_of(messages)
        if parts:
            _commit(parts[0].job, parts, self._identify(batchId, parts[0].query_id))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002  # the signature is Spark's
        """Delete the files that the tasks wrote, if no commit was tried."""
        _abort(messages)

    def _identify(self, batch_id: int, query_id: str) -> MicroBatch:
        app_id = self.app_id or query_id
        if not app_id:
            raise InvalidInputError(
                "the writer does not know which stream this batch belongs to: Spark did not report "
                "the id of the streaming query. Set an app id with the option 'appId'"
            )
        return MicroBatch(app_id, batch_id, query_id, may_differ=self.may_differ)


def _write(job: WriteJob, batches: Iterable[pa.RecordBatch], query_id: str = "") -> Part:
    read = DigestingBatches(_named(job, batches))
    try:
        fragments = write_fragments(read, job.target)
    except LanceStreamError as error:
        error.add_note("while a Spark task wrote its part of the rows; nothing was committed")
        return Part(job, query_id=query_id, error=pickle.dumps(error))
    encoded = tuple(map(encode_fragment, fragments))
    return Part(job, encoded, read.digest, query_id=query_id)


def _named(job: WriteJob, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Return the batches, with column names in the table's spelling."""
    if job.names is None:
        return batches
    return (each.rename_columns(list(job.names)) for each in batches)


def _digest(job: WriteJob, batches: Iterable[pa.RecordBatch], query_id: str = "") -> Part:
    digest = add_up(map(digest_of, _named(job, batches)))
    return Part(job, digest=digest, is_in=True, query_id=query_id)


def _commit(job: WriteJob, parts: Sequence[Part], batch: MicroBatch | None) -> None:
    fragments = _fragments_of(parts)
    if batch is not None:
        batch = replace(
            batch,
            rules=fingerprint({"mode": "overwrite" if job.overwrite else "append"}),
            digest=add_up(part.digest for part in parts),
        )
        if any(part.is_in for part in parts):
            entry = check_is_in(job, batch)
            _log.info("%s: %s is already committed, as version %s", job.uri, batch, entry.version)
            return
    done = commit_job(job, fragments, batch)
    rows = sum(each.physical_rows for each in fragments)
    what = f"{rows} rows" if batch is None else f"batch {batch.batch_id} of {batch.app_id!r}"
    became = (
        f"version {done.table.version}" if done.is_new else "nothing: committed before, or empty"
    )
    _log.info("%s: committed %s as %s", job.uri, what, became)


def _abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    if any(each is None for each in messages):  # otherwise a commit was tried
        for part in messages:
            if isinstance(part, Part):
                discard(part.job, _fragments_of([part]))


def _parts_of(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    """Return the parts of a job if every task succeeded.

    Raises:
        LanceStreamError: A task's error; the files of the others are deleted.
    """
    parts = [each for each in messages if isinstance(each, Part)]
    for part in parts:
        if part.error is not None:
            discard(part.job, _fragments_of(parts))
            raise pickle.loads(part.error)
    return parts


def _fragments_of(parts: Sequence[Part]) -> list[Fragment]:
    return [decode_fragment(each) for part in parts for each in part.fragments]


def _task_property(name: str) -> str:
    """Return a property that Spark sets for the tasks of a job; empty if it is not set."""
    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty(name) or ""
