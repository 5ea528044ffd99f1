"""The function for foreachBatch, and the path of a batch."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from lance_stream.arguments import as_number
from lance_stream.commit.commit_groups import Member
from lance_stream.errors import (
    ColumnsChangedError,
    InvalidInputError,
    LanceStreamError,
    OtherBatchError,
    TableReplacedError,
)
from lance_stream.file.compression.compiled import loops
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.verdicts import has_other_rules
from lance_stream.schema.vectors import undeclared_vectors
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import SINK, WriterArguments
from lance_stream.spark.arguments.writer_calls import arguments_of, suggest_names
from lance_stream.spark.jobs.arrow_jobs import driver_is_alone
from lance_stream.spark.session.connect import check_can_be_sent, check_has_app_id
from lance_stream.spark.session.python_check import check_workers_python, explain_worker_errors
from lance_stream.spark.session.running_queries import run_of, running_query
from lance_stream.spark.session.session_settings import locate_written, options_in_session
from lance_stream.spark.session.user_errors import message_first
from lance_stream.spark.sink.batch import Batch
from lance_stream.spark.sink.batch_calls import BATCH_CALLS
from lance_stream.spark.sink.batch_writing import TaskCount
from lance_stream.spark.sink.modes import MODES, create_without_rows
from lance_stream.spark.sink.output_modes import check_output_mode
from lance_stream.spark.sink.replays import identify, rows_may_differ, skip_if_committed
from lance_stream.spark.sink.reports import SinkCommit, hint_at_vectors, log_commit, notify
from lance_stream.spark.writer.new_tables import find_table
from lance_stream.storage.namespaces.locating import TableId
from lance_stream.table.apply import check_may_write
from lance_stream.write.phases import Phases

if TYPE_CHECKING:
    from lance_stream.maintenance.compaction.background import Round
    from lance_stream.maintenance.indices.background import IndexRound
    from lance_stream.maintenance.upkeep import Upkeep

_log = logging.getLogger("lance_stream.sink")

_MAX_PLANS: Final = 10
"""How often the sink writes a batch, if other writers change the columns each time."""


@suggest_names
def lance_sink(
    uri: str | os.PathLike[str] | None = None,
    mode: str = "append",
    on: str | Sequence[str] | None = None,
    sequence_by: str | None = None,
    delete_when: str | None = None,
    except_columns: Sequence[str] | None = None,
    schema_evolution: str | Sequence[str] = "none",
    app_id: str | None = None,
    compact: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    create_options: Mapping[str, Any] | None = None,
    *,
    skip_unchanged: bool = False,
    tombstones: str | timedelta | None = None,
    when_matched: str | None = None,
    when_not_matched: str | None = None,
    any_output_mode: bool = False,
    replays_may_differ: bool = False,
    branch: str | None = None,
    on_commit: Callable[[SinkCommit], object] | None = None,
    expect: str | Iterable[str] | Mapping[str, str] | None = None,
    bad_rows: str | Mapping[str, str | os.PathLike[str]] = "refuse",
    keep_indices_fresh: bool | Mapping[str, Any] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> "LanceSink":
    """Return a function for `writeStream.foreachBatch` that writes a stream to a Lance table.

    Each micro-batch becomes one version, exactly once: a batch that Spark repeats is skipped.
    A batch that changes nothing creates no version. The first batch of a query creates the table,
    with stable row ids, even if it is empty.

    Columns are matched by name. A missing nullable column becomes null. An unknown column, a
    narrowing cast, or a null in a required column is refused, and nothing is written. The sink
    restores types that Spark lacks (fixed-size lists, unsigned integers, float16, units, zones).

    Args:
        uri: The table's location, for the driver and for all workers.
        mode: "append": the rows are new. "upsert": rows whose key exists are updated and keep
            their row id, others are inserted. "apply_changes": the rows are the change feed of
            another table, from `readChangeFeed` here or in Delta, and its changes are applied; see
            `Dataset.apply_changes`. "overwrite": the rows replace all existing rows, for the output
            mode "complete". Changes in any order are applied by `auto_cdc_sink`.
        on: For upserts and changes: the key columns; integers, strings, bytes, dates, timestamps,
            decimals or booleans, and never null. They become the primary key of a new table.
        sequence_by: For upserts: the column that orders the rows of one key. The newest row of a
            batch wins; a row older than the stored one is ignored, if the column is stored. Values
            are ordered as in Spark: NaN after all numbers, structs by their first different field.
            Two different rows of a key with equal values are an error within one batch. In a later
            batch a row with the stored row's value replaces it; it is ignored only after a
            remembered delete (`tombstones`). If that can occur, order by a column, or a struct of
            several, that distinguishes all changes of a key. Without `sequence_by` a key may occur
            once in a batch, and the later batch wins.
        delete_when: For upserts: a condition in Spark's SQL on an incoming row, for example
            "op = 'd'": if true, the row of that key is deleted.
        except_columns: Columns of the batch that are not stored.
        schema_evolution: "add_columns": columns that the table lacks, also parts of structs, are
            added to it, and are null in existing rows. "widen_types": columns whose type does not
            hold the batch's values get a wider one, if no value changes (an int becomes a bigint, a
            float a double; see `Dataset.alter_columns`). This rewrites these columns of all rows
            once, and the feed shows the rows as updated. Give several as a list. "none": such
            batches are refused. Rows of narrower types can always be written.
        app_id: The stream's id in the table's ledger. The default is the streaming query's own id,
            which its checkpoint keeps. An app id of your own survives a lost checkpoint, and is
            required through Spark Connect, where Spark does not report the query's id.
        compact: Merge small fragments, and rewrite those with many deleted rows, in the background;
            no batch waits for it, and the change feed has no changes. "auto": when it is
            worthwhile; the sink compares the cost of small fragments, deleted rows, the manifest
            and key lookups with that of a compaction, and `last_compaction.reason` names the
            decisive one. A number: after that many batches. By default never.
        storage_options: Settings of the store. If none of them give credentials or an endpoint,
            Spark's own settings apply (`spark.hadoop.fs.s3a.access.key` and so on), or else those
            that the store's library finds: environment, profile, instance. `trusted_locations` is
            one of them: URIs or absolute paths below which the table may name files on other
            services, in other accounts, or, as values of its rows, on this machine; see
            `open_dataset`.
        create_options: Options for a new table: `vectors` (the number of items of each array
            column that is stored as a vector, {"embedding": 768}; only such columns can be indexed
            and searched), `schema` (a `pyarrow.Schema` to use instead of the DataFrame's),
            `primary_key`, `config`, `stable_row_ids`, `file_version` (of its data files, by
            default "2.2"), and `late_start`: True lets a later batch of a query create the table,
            which then lacks the rows of earlier batches; by default that is an error, because the
            table was probably deleted or moved.
        skip_unchanged: For upserts and changes: do not rewrite rows whose values stay the same.
        tombstones: For upserts with `sequence_by` and `delete_when`: how long deletes are
            remembered, for example "7 days". A late row that is not newer than the delete of its
            key then does not bring it back, even if the delete came before the insert.
        when_matched: For upserts: what a row does if the table has its key: "update", the default;
            "ignore"; or a condition over the row and the stored one, as in `Dataset.upsert`:
            "source.price > target.price". Rows that delete do so in any case.
        when_not_matched: What a row does if the table lacks its key: "insert", the default;
            "ignore"; or a condition over `source.<column>`.
        any_output_mode: Accept a query whose output mode does not fit `mode`, for example to keep
            the result of each trigger as a history. By default it is refused if Spark reports the
            output mode: an append accepts new rows only, an overwrite the output mode "complete"
            only.
        replays_may_differ: Skip a committed batch id even if the batch arrives with different rows.
            By default that is an error, unless Spark's plan of the query is nondeterministic.
        branch: The branch to write, which must exist: `ds.branches.create("dev")`. None or "main"
            for the main branch.
        on_commit: Called with the report of each batch, which is also `last_commit`, after it is
            committed, or skipped because it already was. For metrics: `lance_stream.monitoring`.
            The next batch waits for it. An exception in it is logged (in "lance_stream.sink") and
            neither fails nor repeats the batch. If the program dies after the commit, it is not
            called for that commit, and the repeated batch is reported as skipped. Through Spark
            Connect it is called in a process of the server.
        expect: Conditions that each row has to meet: one, several, or a mapping from a name to
            each, for example {"price": "price >= 0"}. They are SQL in the dialect of `scan`'s
            filters, over the columns of the batch, in the types of the table. A condition that is
            null for a row fails, as in Delta's constraints; write "price IS NULL OR price >= 0" to
            accept nulls. Rows that delete are not checked. Not for "apply_changes".
        bad_rows: What happens to rows that do not meet a condition, that have a null in a required
            column or in a key, or a value that the table's type does not hold. "refuse": the
            batch fails, and nothing is written. "quarantine": they are written to another table,
            with the reason, and the others are committed, both exactly once; see
            `lance_stream.replay_quarantine`. That table is `orders_quarantine.lance` next
            to `orders.lance`; {"quarantine": location} names another. Each table has its own, which
            all of its sinks may share. A problem of the batch as a whole (an unknown column,
            a missing one, a narrowing type) is always refused. Not for "apply_changes".
        keep_indices_fresh: Bring the table's indices up to date in the background, so that searches
            do not scan what the stream has written; no batch waits for it. True: as soon as an
            index lacks 1,000 rows, and 1 % of all rows. For other limits, give a mapping of some
            of "fraction" (0.05), "rows" (100_000) and "age" ("10 minutes", if it lacks any row).
            Needs the extra `index` where the sink runs. By default never.
        table_id: The table's name in a Lance namespace, ["db", "events"] or "db.events", instead of
            `uri`. The namespace states its location and vends credentials, which are renewed
            before they expire; a table that does not exist is declared there by this call. Needs
            the extra `namespace`.
        namespace: The namespace: {"impl": "dir", "root": ...}, {"impl": "rest", "uri": ...}, or
            another implementation and its properties. By default that of the session's settings,
            `spark.lance_stream.namespace.impl` and so on.

    In an upsert, columns that the batch lacks keep their values, and so do struct fields at any
    depth; structs in lists and maps need all their fields. In an append they are null. For
    "apply_changes", see `Dataset.apply_changes`: a limit of rows may separate an update's images.

    Raises:
        InvalidInputError: An argument is invalid.
    """
    return LanceSink(arguments_of(SINK, locate_written(locals())), on_commit)


class LanceSink:
    """A function of a micro-batch and its batch id; created by `lance_sink`.

    Holds plain values only: Spark Connect pickles it and calls it in another process.

    Args:
        arguments: The user's arguments.
        on_commit: Called with the outcome of each batch.

    Attributes:
        last_commit: The outcome of the last batch.
    """

    def __init__(
        self,
        arguments: WriterArguments,
        on_commit: Callable[[SinkCommit], object] | None,
    ) -> None:
        if on_commit is not None and not callable(on_commit):
            raise InvalidInputError(
                "on_commit must be a function that takes a batch's report, for example print, not "
                f"{on_commit!r:.200}"
            )
        check_has_app_id(arguments.app_id)
        check_can_be_sent(on_commit)
        self.arguments = arguments
        self._on_commit = on_commit
        self._upkeep = _upkeep(arguments)
        self.last_commit: SinkCommit | None = None
        self._tasks = TaskCount()
        self._searched: tuple[str, int, int] | None = None
        if not is_remote() and driver_is_alone(SparkSession.getActiveSession()):
            loops.load_in_background()  # while Spark starts the query

    def __getstate__(self) -> dict[str, Any]:
        """Return what Spark Connect sends, if it would work there.

        Raises:
            InvalidInputError: It would not work.
        """
        check_has_app_id(self.app_id)
        return self.__dict__

    @property
    def uri(self) -> str:
        """The table's location."""
        return self.arguments.uri

    @property
    def app_id(self) -> str | None:
        """The stream's app id; None for the query's own id."""
        return self.arguments.app_id

    def __repr__(self) -> str:
        app = "" if self.app_id is None else f", app_id={self.app_id!r}"
        changes = self.arguments.changes
        if changes is not None:
            scd_type = 2 if changes.is_history else 1
            return f"auto_cdc_sink({self.uri!r}, stored_as_scd_type={scd_type}{app})"
        mode = "" if self.arguments.mode == "append" else f", mode={self.arguments.mode!r}"
        return f"lance_sink({self.uri!r}{mode}{app})"

    @property
    def last_compaction(self) -> "Round | None":
        """The outcome of the last compaction; None before the first one has ended."""
        compaction = None if self._upkeep is None else self._upkeep.compaction
        return None if compaction is None else compaction.last_round

    @property
    def last_index_round(self) -> "IndexRound | None":
        """The last time that indices were brought up to date; None before the first has ended."""
        indexing = None if self._upkeep is None else self._upkeep.indexing
        return None if indexing is None else indexing.last_round

    def wait_for_compaction(self, timeout_seconds: float | None = None) -> bool:
        """Wait until no compaction is running.

        For a program that ends with its stream: if it ends earlier, the compaction is aborted,
        which does no harm.

        Args:
            timeout_seconds: Maximum time to wait; None for no limit.

        Returns:
            Whether no compaction is running.
        """
        compaction = None if self._upkeep is None else self._upkeep.compaction
        return compaction is None or compaction.wait(timeout_seconds)

    def wait_for_indices(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the indices are within the limits of `keep_indices_fresh`.

        For a program that ends with its stream: if it ends earlier, the work is aborted, which does
        no harm. Call it after the stream has ended; batches that go on may make new work.

        Args:
            timeout_seconds: Maximum time to wait; None for no limit.

        Returns:
            Whether nothing is left to do, or it failed (`last_index_round.error`).
        """
        indexing = None if self._upkeep is None else self._upkeep.indexing
        return indexing is None or indexing.wait(timeout_seconds)

    @message_first
    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a micro-batch to the table, unless it is already committed.

        Args:
            df: Its rows.
            batch_id: Its number in the stream; later batches have larger numbers.

        Raises:
            InvalidInputError: The rows do not fit the table, the stream has no app id, the
                batch id belongs to another query's batch, or an argument is neither a DataFrame
                nor a batch id. Nothing was committed.
            OtherBatchError: The batch id was committed with other rows or rules. Nothing was
                committed.
            CommitError: The rows were written, but did not become a version.
        """
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int, member: Member | None = None) -> None:
        """Write a micro-batch, alone or together with the sinks of other tables; see `__call__`.

        Args:
            df: The rows of a micro-batch.
            batch_id: Its number in the stream.
            member: Publishes the version together with those of other tables; None for it alone.

        Raises:
            LanceStreamError: See `__call__`.
        """
        batch_id = _check_batch(df, batch_id)
        check_workers_python(df.sparkSession, only_tasks=True)
        options, upkeep = self.storage_options_in(df.sparkSession), self._upkeep
        arguments = replace(self.arguments, storage_options=options)
        with nullcontext() if upkeep is None else upkeep.batch():
            commit = self._write(df, batch_id, arguments, member)
        notify(self._on_commit, commit)
        if upkeep is not None and commit.version is not None and not commit.skipped:
            from lance_stream.spark.jobs.compaction import writer_of

            upkeep.after_batch(
                batch_id,
                partial(open_newest, self.uri, storage_options=options),
                writer_of(df.sparkSession),
                commit.seconds.get("scan"),
            )

    def storage_options_in(self, spark: SparkSession) -> Mapping[str, Any]:
        """Return the user's storage options, with a session's settings of the store."""
        arguments = self.arguments
        return options_in_session(spark, arguments.uri, arguments.storage_options)

    def _write(
        self, df: DataFrame, batch_id: int, arguments: WriterArguments, member: Member | None
    ) -> SinkCommit:
        micro_batch = identify(df, batch_id, self.app_id, arguments.fingerprint)
        query = running_query(df, micro_batch.query_id)
        if not arguments.any_output_mode:
            check_output_mode(df, query, str(arguments.mode), arguments.on)
        run = run_of(query)
        phases = Phases()
        with BATCH_CALLS.call(run, self.uri, batch_id, micro_batch.app_id) as call:
            pending = PendingBatch(
                micro_batch,
                claimed=call.claimed,
                absent_through=self._searched_through(micro_batch),
            )
            batch = Batch(
                df,
                query,
                pending,
                arguments,
                phases,
                last=self.last_commit,
                tasks=self._tasks,
                call=call,
                outcome=SinkCommit(batch_id, micro_batch.app_id),
                member=member,
            )
            with explain_worker_errors():
                result = _write_once(batch)
            call.version = result.version
        self._searched = micro_batch.app_id, batch_id, pending.searched_through
        indices = {} if self._upkeep is None else self._upkeep.take_outcomes()
        self.last_commit = replace(result, seconds=phases.seconds, table=self.uri, indices=indices)
        log_commit(self.last_commit)
        return self.last_commit

    def _searched_through(self, batch: MicroBatch) -> int:
        """Return the version through which earlier batches were searched for; 0 if unknown.

        A later batch cannot have been committed earlier.
        """
        app_id, batch_id, version = self._searched or ("", 0, 0)
        return version if (app_id, True) == (batch.app_id, batch_id <= batch.batch_id) else 0


def _upkeep(arguments: WriterArguments) -> "Upkeep | None":
    """Return the upkeep between batches; None for none, which imports nothing of it."""
    if arguments.compact is None and arguments.keep_indices_fresh is None:
        return None
    from lance_stream.maintenance.upkeep import Upkeep

    return Upkeep(arguments.compact, arguments.keep_indices_fresh)


def _check_batch(df: object, batch_id: object) -> int:
    """Return the batch id, given the two arguments that foreachBatch passes.

    Raises:
        InvalidInputError: They are not a DataFrame and a batch id.
    """
    if not hasattr(df, "sparkSession"):
        raise InvalidInputError(
            "a sink is called with a micro-batch, a DataFrame of Spark, and its batch id, as "
            f"foreachBatch does, not with a {type(df).__name__} of {type(df).__module__}. Write "
            "other rows with open_dataset(uri).append(rows), or upsert"
        )
    number = as_number(batch_id)
    if number is None:
        raise InvalidInputError(f"a batch id is a whole number from 0, not {batch_id!r:.200}")
    return number


def _write_once(batch: Batch) -> SinkCommit:
    """Write a batch to the table, unless it is already committed."""
    with batch.phases("plan"):
        table = find_table(batch.arguments)
    if table is not None:
        _warn_of_other_rules(table, batch)
    replay = None if table is None else skip_if_committed(batch, table)
    if replay is not None:
        return replay
    try:
        return _write_new(batch, table)
    except OtherBatchError:  # another driver was faster
        if not (batch.arguments.replays_may_differ or rows_may_differ(batch.df, batch.query)):
            raise
        table = find_table(batch.arguments)
        replay = None if table is None else skip_if_committed(batch, table)
        if replay is None:
            raise
        return replay


def _warn_of_other_rules(table: TableVersion, batch: Batch) -> None:
    """Log at the first batch that the sink has other rules than the stream's previous one."""
    micro_batch = batch.pending.batch
    if batch.last is not None:
        return
    entry = batch.pending.lookup_in(table).newest
    if (
        entry is not None
        and entry.batch_id < micro_batch.batch_id
        and has_other_rules(entry, micro_batch)
    ):
        _log.warning(
            "%s: batch %d of the stream %s was written by a sink with another mode, other keys, "
            "sequence_by, delete_when or columns than the sink of batch %d and later. Rows in the "
            "table stay as they are: after a change of keys, a key may have two rows",
            table.uri,
            entry.batch_id,
            micro_batch.app_id,
            micro_batch.batch_id,
        )


def _write_new(batch: Batch, table: TableVersion | None) -> SinkCommit:
    """Write a batch that is not committed yet; again, if other writers change the columns."""
    if table is not None:
        check_may_write(table.manifest)
    with batch.phases("plan"):
        batch = batch.with_names_of(table)
    num_plans = 0
    while True:
        num_plans += 1
        with batch.phases("plan"):
            table = batch.prepare_table(table)
        if table is None:  # neither rows nor a table
            return batch.outcome
        try:
            return _write_to(table, batch)
        except TableReplacedError:  # another writer has created the table
            if table.version or num_plans == _MAX_PLANS:
                raise
        except ColumnsChangedError as error:
            if num_plans == _MAX_PLANS:
                raise
            _log.info("writing batch %d again: %s", batch.outcome.batch_id, error)
        with batch.phases("plan"):
            table = find_table(batch.arguments)


def _write_to(table: TableVersion, batch: Batch) -> SinkCommit:
    """Write the rows to a version of the table; version 0 is created, even without rows."""
    if batch.member is not None:
        table = replace(table, log=batch.member.join(table.log))
    commit = MODES[str(batch.arguments.mode)](batch, table)
    if table.version:
        return commit
    if commit.version is None:
        return create_without_rows(batch, table, commit)
    list_columns = undeclared_vectors(table.arrow_schema)
    if list_columns and batch.member is None:
        with suppress(LanceStreamError):  # only a hint, and the batch is committed
            uri, options = batch.arguments.uri, batch.arguments.storage_options
            hint_at_vectors(open_newest(uri, options), list_columns)
    return commit
