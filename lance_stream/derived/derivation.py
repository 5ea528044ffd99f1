"""Derived columns: declared once, and updated in rounds of one commit each.

    1  read the newest version, and the progress, which the table stores with the values
    2  select the next rows that may have changed, the newest changes first (`candidates`)
    3  workers read their inputs, and compute the rows that are not current (`computing`)
    4  add missing columns, once the function has computed its first values
    5  quarantine the rows for which the function failed
    6  commit values and progress as one version (`same_table`, `separate_table`)

If a process is killed, its files are not referenced by any version, and the next process repeats
the round. If two processes run concurrently, the later commit detects that the progress has
changed, is not published, and its round starts again.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from lance_stream.arguments import as_number
from lance_stream.arrays import RowIds
from lance_stream.commit.committer import ConfigEntries
from lance_stream.derived import progress, same_table, separate_table
from lance_stream.derived.candidates import (
    PendingRows,
    VersionDiff,
    changed_since,
    count,
    count_changed,
    next_rows,
    restores_rows,
)
from lance_stream.derived.computing import ComputedValues, Local, Runner, compute, compute_jobs
from lance_stream.derived.declaration import Declaration, Outputs, declare
from lance_stream.derived.ownership import check_columns, missing_columns
from lance_stream.derived.progress import Progress
from lance_stream.derived.reports import DerivedCommit, DerivedStatus
from lance_stream.derived.running import DerivedQuery
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CommitConflictError,
    DerivedFunctionError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    TableReplacedError,
)
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.quarantine.table import open_quarantine, quarantine_uri
from lance_stream.read.scan import count_rows
from lance_stream.retries import Retrying, RetryPolicy
from lance_stream.row_updates.staged_files import discard_files
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.opening import newest_version_of, open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.locations import text_of
from lance_stream.storage.namespaces.locating import TableId, locate
from lance_stream.storage.options.names import as_options
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.version_marks import mark_of
from lance_stream.verbs.columns.add_columns import add_columns
from lance_stream.verbs.columns.drop_columns import drop_columns
from lance_stream.verbs.configure import update_config
from lance_stream.verbs.delete import delete
from lance_stream.write.planning import commit_planned
from lance_stream.write.row_checks import BadRows

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("lance_stream.derived")

_MAX_ATTEMPTS: Final = 20
"""The maximum number of attempts to commit the values of a round."""

_MAX_VERSIONS_BEHIND: Final = 100
"""A round that finds no row to check commits its progress after so many versions, so that the next
rounds do not compare them again, and a cleanup may remove them."""

_RETRIES: Final = RetryPolicy(_MAX_ATTEMPTS, first_delay_seconds=0.02, max_delay_seconds=1.0)


class OvertakenError(InvalidInputError):
    """Another process has committed progress of the same derivation.

    Repeating the commit cannot resolve this, because the values may be obsolete.
    """


@dataclass(frozen=True)
class _Work:
    """A planned round.

    Attributes:
        source: The version that is read.
        table: The table with the values: the source, or a separate table.
        entry: The config entry of the progress; None if it does not exist.
        planned: The progress after the round, if no other version is committed meanwhile.
        rows: The rows to check.
        is_new_function: Whether no value of this version of the function may be stored yet.
        before: The source version of the separate table's values; None if it no longer exists.
        num_versions: The number of versions since the last round.
        ends_backfill: Whether this round completes the last pending range.
        lacks_columns: Whether columns have to be added before values are committed.
    """

    source: TableVersion
    table: TableVersion
    entry: str | None
    planned: Progress
    rows: PendingRows
    is_new_function: bool
    before: TableVersion | None
    num_versions: int
    ends_backfill: bool
    lacks_columns: bool


class Derivation:
    """Columns that a function computes from others; created by `derive`.

    Args:
        uri: The location of the source.
        declaration: The derived columns.
        target: The location of a separate table for the values; None for columns of the source.
        storage_options: Settings of the store.
        quarantine: The location of the quarantine; None for the default, next to the table.
        runner: Runs the jobs.
        environment: Provides the clock and randomness.
    """

    def __init__(
        self,
        uri: str,
        declaration: Declaration,
        target: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        quarantine: str | None = None,
        runner: Runner | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.uri = uri
        self.target = target
        self.declaration = declaration
        self._options = as_options(storage_options)
        self._quarantine = quarantine
        self._runner: Runner = Local() if runner is None else runner
        self._environment = environment
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        declaration = self.declaration
        where = "" if self.target is None else f" in {self.target!r}"
        return (
            f"<Derivation {declaration.name!r}{where} of {', '.join(declaration.inputs)} in "
            f"{self.uri!r}, function version {declaration.function_version!r}>"
        )

    # --- public methods

    def run(self, max_commits: int | None = None) -> DerivedCommit:
        """Compute all rows that are out of date, in rounds of one commit each.

        Later rounds include rows that other writers change during the run. The next run handles
        changes that were made after the last round started.

        Args:
            max_commits: The maximum number of rounds; None for no limit.

        Returns:
            The counts of this run, and the number of rows that are still pending.

        Raises:
            NotFoundError: The table or an input does not exist.
            InvalidInputError: The table has no stable row ids, or has a column with the name of an
                output that this derivation did not create or that has another type.
            DerivedFunctionError: The function failed for too many rows, or for all rows before it
                succeeded for any, or returned a wrong number or type of values.
            CommitError: Concurrent changes prevented every attempt to commit.
        """
        if max_commits is not None and (as_number(max_commits) or 0) < 1:
            raise InvalidInputError(
                f"max_commits must be an integer of at least 1, or None, not {max_commits!r:.100}"
            )
        total = DerivedCommit()
        num_rounds = 0
        with self._lock:
            while max_commits is None or num_rounds < max_commits:
                report = self._run_round()
                total = report if not num_rounds else total + report
                num_rounds += 1
                if not report.num_pending:
                    break
        return total

    def start(self, interval_seconds: float = 1.0) -> DerivedQuery:
        """Keep the values up to date in a thread until the query is stopped.

        There is no checkpoint: the table stores the progress, so the query can be restarted on any
        machine.

        Args:
            interval_seconds: The interval at which to look for a new version.

        Raises:
            InvalidInputError: The interval is not a number of seconds, at least 0.
        """
        if (
            isinstance(interval_seconds, bool)
            or not isinstance(interval_seconds, int | float)
            or not 0 <= interval_seconds <= threading.TIMEOUT_MAX
        ):
            raise InvalidInputError(
                "interval_seconds must be a number of seconds, such as 0.5, not "
                f"{interval_seconds!r:.100}"
            )
        return DerivedQuery(self._follow, repr(self), interval_seconds)

    def status(self) -> DerivedStatus:
        """Return how many rows are up to date; reads manifests and the state column."""
        source = open_newest(self.uri, storage_options=self._options)
        table = self._existing_target(source)
        declaration = self.declaration
        stored = (
            None
            if table is None
            else progress.read_progress(table.manifest.config, declaration.name)
        )
        num_rows = count_rows(source)
        if table is None or stored is None:
            return DerivedStatus(source.version, None, None, False, num_rows, num_rows, 0)
        is_same = stored.function == declaration.fingerprint
        pending = num_rows
        if is_same and self._is_valid(source, table, stored):
            changed = self._changed_since(source, table, stored)
            pending = count_changed(source, changed)
            pending += sum(
                count(source, pending_range)
                for pending_range in changed.still_pending(stored.pending)
            )
        failed = 0
        if declaration.state_column in table.schema.names:
            failed = count_rows(table, f"{quote_path((declaration.state_column,))} < 0")
        return DerivedStatus(
            source.version,
            stored.through,
            stored.function_version,
            is_same,
            num_rows,
            min(pending, num_rows),
            failed,
        )

    # --- one round

    def _follow(self, last_version: int | None) -> tuple[DerivedCommit | None, int]:
        """Run a round if the source has a new version; see `running.DerivedQuery`."""
        newest = open_newest(self.uri, storage_options=self._options).version
        if newest == last_version:
            return None, newest
        with self._lock:
            report = self._run_round()
        if report.num_pending:
            return report, -1
        # If no other writer's version is in between, the commit itself has been processed.
        is_next = self.target is None and report.version == report.source_version + 1
        return report, report.version or newest if is_next else report.source_version

    def _run_round(self) -> DerivedCommit:
        for _ in Retrying(_RETRIES, self._environment):
            try:
                return self._attempt()
            except OvertakenError as error:
                _log.info("restarting a round of %r: %s", self.declaration.name, error)
        raise CommitConflictError(
            f"other processes keep committing progress of the derived column "
            f"{self.declaration.name!r}: run it in only one process"
        )

    def _attempt(self) -> DerivedCommit:
        work = self._plan()
        outcome = DerivedCommit(
            source_version=work.source.version,
            num_checked=work.rows.num_rows,
            num_pending=sum(
                count(work.source, pending_range) for pending_range in work.rows.remaining
            ),
        )
        deleted: RowIds = np.empty(0, np.uint64)
        if self.target is not None:
            deleted = separate_table.deleted_rows(work.table, work.source, work.before)
        if not work.rows.num_rows and not len(deleted) and not self._has_new_progress(work):
            return outcome
        computed = self._compute(work)
        try:
            if work.lacks_columns:
                work = self._with_columns(work)
                pending = sum(
                    count(work.table, pending_range) for pending_range in work.rows.remaining
                )
                outcome = replace(outcome, source_version=work.source.version, num_pending=pending)
            return self._commit(work, computed, deleted, outcome)
        finally:
            discard_files(work.table.store, [result.values for result in computed])

    def _has_new_progress(self, work: _Work) -> bool:
        """Return whether to commit the progress even if there are no rows to check."""
        return work.ends_backfill or work.num_versions >= _MAX_VERSIONS_BEHIND

    def _plan(self) -> _Work:
        declaration = self.declaration
        source = open_newest(self.uri, storage_options=self._options)
        self._check_inputs(source)
        table = source
        if self.target is not None:
            table = separate_table.open_target(self.target, source, declaration, self._options)
        check_columns(table, declaration)
        lacks_columns = bool(missing_columns(table, declaration))
        key = progress.config_key(declaration.name)
        entry = table.manifest.config.get(key)
        stored = progress.read_progress(table.manifest.config, declaration.name)
        expected = Progress(
            declaration.fingerprint,
            declaration.function_version,
            source.version,
            fields=self._fields(source.schema, table.schema),
            mark="" if self.target is None else mark_of(source.manifest),
            outputs=same_table.output_ids(table.schema, declaration),
            source="" if self.target is None else source.store.uri,
        )
        is_new_function = lacks_columns
        if stored is not None:
            self._check_source(source, stored)
            self._check_output_names(table, stored)
            is_new_function |= stored.function != expected.function
        if stored is None or is_new_function or not self._is_valid(source, table, stored):
            planned = progress.all_pending(expected)
            pending, before = planned.pending, None
            rows = next_rows(source, pending, declaration.rows_per_commit)
        else:
            changed = self._changed_since(source, table, stored)
            pending = changed.still_pending(stored.pending)
            rows = next_rows(
                source,
                pending,
                declaration.rows_per_commit,
                changed if count_changed(source, changed) else None,
            )
            planned = replace(
                expected,
                derived_versions=tuple(
                    version for version in stored.derived_versions if version > source.version
                ),
            )
            before = self._before(source, stored)
        return _Work(
            source,
            table,
            entry,
            replace(planned, pending=rows.remaining),
            rows,
            is_new_function,
            before,
            0 if stored is None else source.version - stored.through,
            bool(pending) and not rows.remaining,
            lacks_columns,
        )

    def _changed_since(
        self, source: TableVersion, table: TableVersion, stored: Progress
    ) -> VersionDiff:
        inputs = same_table.input_ids(source.schema, self.declaration)
        outputs = (
            () if self.target is not None else same_table.output_ids(table.schema, self.declaration)
        )
        return changed_since(source, stored.through, inputs, outputs, stored.derived_versions)

    def _before(self, source: TableVersion, stored: Progress) -> TableVersion | None:
        """Return the source version of the separate table's values; None if it no longer exists."""
        try:
            return source if stored.through == source.version else source.read_at(stored.through)
        except NotFoundError:
            return None

    def _fields(self, source: Schema, table: Schema) -> tuple[int, ...]:
        """Return the ids of the relevant columns, by name; if they change, all rows are checked."""
        inputs = same_table.input_ids(source, self.declaration)
        if self.target is not None:
            return inputs
        return (*inputs, *same_table.output_ids(table, self.declaration))

    def _is_valid(self, source: TableVersion, table: TableVersion, stored: Progress) -> bool:
        """Return whether the progress belongs to these columns of this table."""
        if stored.through > source.version or stored.fields != self._fields(
            source.schema, table.schema
        ):
            return False
        if self.target is None:
            return True
        if stored.outputs and stored.outputs != same_table.output_ids(
            table.schema, self.declaration
        ):
            return False
        before = self._before(source, stored)
        return before is None or mark_of(before.manifest) == stored.mark

    def _check_inputs(self, source: TableVersion) -> None:
        declaration = self.declaration
        if not source.has_stable_row_ids:
            raise InvalidInputError(
                f"the table {self.uri} has no stable row ids, which are needed to identify changed "
                "rows. Assign them with lance_stream.migrate_to_stable_row_ids(uri)"
            )
        names = source.schema.names
        for column in declaration.read_columns:
            if column not in names:
                raise NotFoundError(
                    f"the table {self.uri} has no column {column!r}; it has: {', '.join(names)}"
                )

    def _check_source(self, source: TableVersion, stored: Progress) -> None:
        """Raise if the separate table has values of another source, which would be deleted."""
        if self.target is None or stored.source in ("", source.store.uri):
            return
        before = self._before(source, stored) if stored.through <= source.version else None
        if before is not None and mark_of(before.manifest) == stored.mark:
            return  # the same table, moved or copied
        key = progress.config_key(self.declaration.name)
        raise InvalidInputError(
            f"the table {self.target} has the derived column {self.declaration.name!r} of "
            f"{stored.source}, whose rows would be replaced by those of {source.store.uri}. "
            "Nothing was written. Use a separate target for each source; or, if this source "
            "replaces the other one, remove the other's progress: "
            f"open_dataset(target).update_config({{{key!r}: None}})"
        )

    def _check_output_names(self, table: TableVersion, stored: Progress) -> None:
        """Raise if outputs have swapped their names, so that each has the values of another.

        If the declaration has changed, possibly in the order of outputs, all rows are computed
        again.
        """
        if stored.function != self.declaration.fingerprint:
            return
        now = same_table.output_ids(table.schema, self.declaration)
        if now != stored.outputs and sorted(now) == sorted(stored.outputs):
            raise InvalidInputError(
                f"outputs of the derived column {self.declaration.name!r} have swapped their names "
                f"in {table.uri}, so each has the values of another. Rename them back, or drop "
                "them to compute them again: "
                f"ds.drop_columns({self.declaration.written.names!r})"
            )

    def _with_columns(self, work: _Work) -> _Work:
        """Add the missing columns, and reset the progress of existing columns.

        Every commit that adds or drops a column also records the columns of the derivation in its
        progress, so that after a kill, the next process recognizes them.
        """
        declaration = self.declaration
        key = progress.config_key(declaration.name)
        newest = newest_version_of(work.table)
        self._check_progress(work)(newest.manifest)
        check_columns(newest, declaration)
        recorded = ""

        def progress_entry(schema: Schema, *, renews: bool = False) -> dict[str, str]:
            nonlocal recorded
            new_columns = replace(
                work.planned,
                fields=self._fields(schema, schema),
                outputs=same_table.output_ids(schema, declaration),
                renews=renews,
            )
            recorded = progress.encode(progress.all_pending(new_columns))
            return {key: recorded}

        if declaration.state_column in newest.schema.names and missing_columns(newest, declaration):
            # The existing states would be wrong for the new columns.
            newest = update_config(newest, progress_entry(newest.schema, renews=True))
            newest = drop_columns(newest, [declaration.state_column])
        version = add_columns(newest, declaration.written, progress_entry)
        if version.manifest.config.get(key) != recorded:
            raise OvertakenError("another process has added the columns")
        new_progress = progress.all_pending(
            replace(
                work.planned,
                through=version.version,
                fields=self._fields(version.schema, version.schema),
                outputs=same_table.output_ids(version.schema, declaration),
            )
        )
        work = replace(work, table=version, entry=recorded, lacks_columns=False)
        if version.version == work.source.version + 1:  # no row has changed
            planned = replace(new_progress, pending=work.planned.pending)
            return replace(work, source=version, planned=planned)
        # Without earlier progress, a concurrent restore would go unnoticed: check all rows again.
        return replace(
            work,
            planned=new_progress,
            rows=PendingRows(remaining=new_progress.pending),
            ends_backfill=False,
        )

    def _existing_target(self, source: TableVersion) -> TableVersion | None:
        if self.target is None:
            return source
        try:
            return open_newest(self.target, storage_options=self._options)
        except NotFoundError:
            return None

    def _compute(self, work: _Work) -> list[ComputedValues]:
        """Run the jobs, and delete all staged files if one of them fails."""
        declaration = self.declaration
        states = None
        if self.target is not None:
            states = separate_table.stored_states(work.table, declaration, work.rows.rows)
        elif work.lacks_columns:
            states = np.empty(0, np.uint64), np.empty(0, np.int64)
        jobs = compute_jobs(
            work.source,
            declaration,
            work.rows.rows,
            self._runner.num_workers,
            work.table.store,
            states,
        )
        results = self._runner(_ComputeTask(declaration), jobs)
        computed = [result for result in results if isinstance(result, ComputedValues)]
        errors = [result for result in results if not isinstance(result, ComputedValues)]
        if errors:
            discard_files(work.table.store, [result.values for result in computed])
            raise errors[0]
        try:
            self._check_failures(work, computed)
        except DerivedFunctionError:
            discard_files(work.table.store, [result.values for result in computed])
            raise
        return computed

    def _check_failures(self, work: _Work, computed: Sequence[ComputedValues]) -> None:
        """Raise if the function failed for all rows and has never succeeded."""
        declaration = self.declaration
        num_computed = sum(len(result.row_ids) for result in computed)
        num_failed = sum(result.num_failed for result in computed)
        if not num_failed:
            return
        messages = next(result.bad["message"] for result in computed if result.num_failed)
        message = messages[0].as_py()
        if 1 < num_failed == num_computed and (
            work.is_new_function
            or not count_rows(work.table, f"{quote_path((declaration.state_column,))} > 0")
        ):
            raise DerivedFunctionError(
                f"the function of the derived column {declaration.name!r}, version "
                f"{declaration.function_version!r}, failed for all {num_failed} rows and has never "
                f"succeeded. This round was not committed. Correct the function: {message}"
            )
        _log.warning(
            "the function of the derived column %r failed for %d of %d rows, which are "
            "quarantined; first error: %s",
            declaration.name,
            num_failed,
            num_computed,
            message,
        )

    def _commit(
        self,
        work: _Work,
        computed: Sequence[ComputedValues],
        deleted: RowIds,
        outcome: DerivedCommit,
    ) -> DerivedCommit:
        """Commit values and progress together, and quarantine the rows that failed."""
        declaration = self.declaration
        outcome = replace(
            outcome,
            num_computed=sum(len(result.row_ids) for result in computed),
            num_failed=sum(result.num_failed for result in computed),
        )
        # The version serves as batch id, because it is unique even after a restore by another
        # program, unlike a counter.
        at = work.table.version
        micro_batch = PendingBatch.of(declaration.app_id, at, absent_through=at)
        quarantine: QuarantineBatch | None = None
        if outcome.num_failed:
            quarantine = self._stage_failed_rows(work, computed, micro_batch)
            micro_batch = replace(micro_batch, quarantined=quarantine.file)
        if self.target is None:
            report = self._commit_to_same_table(work, computed, micro_batch, outcome)
        else:
            report = self._commit_to_separate_table(work, computed, deleted, micro_batch, outcome)
        if quarantine is not None:
            quarantine.publish(work.table)
        if work.ends_backfill:
            self._delete_other_versions(work)
        return report

    def _commit_to_same_table(
        self,
        work: _Work,
        computed: Sequence[ComputedValues],
        micro_batch: PendingBatch,
        outcome: DerivedCommit,
    ) -> DerivedCommit:
        check = self._check_progress(work)
        for attempt in Retrying(_RETRIES, self._environment):
            newest = newest_version_of(work.table)
            check(newest.manifest)
            written = None
            if outcome.num_computed:
                written = same_table.write_computed(
                    newest,
                    work.source,
                    self.declaration,
                    computed,
                    self._runner,
                    self._environment,
                )
            try:
                commit = commit_planned(
                    newest,
                    UpdateConfig(config=MapUpdate()) if written is None else written.operation,
                    None if written is None else written.staged,
                    micro_batch,
                    config_entries=self._entries(work),
                    check=check,
                    environment=self._environment,
                )
            except TableReplacedError:
                raise
            except CommitConflictError as error:
                if attempt == _MAX_ATTEMPTS:
                    raise
                _log.info("writing the values for a newer version: %s", error)
                continue
            if not commit.is_new:
                raise OvertakenError("another process has committed this round")
            return replace(
                outcome,
                version=commit.table.version,
                num_commits=1,
                num_written=0 if written is None else written.num_rows,
                num_in_place=0 if written is None else written.num_in_place,
            )
        raise AssertionError("the last attempt raises")

    def _commit_to_separate_table(
        self,
        work: _Work,
        computed: Sequence[ComputedValues],
        deleted: RowIds,
        micro_batch: PendingBatch,
        outcome: DerivedCommit,
    ) -> DerivedCommit:
        num_written, num_deleted = outcome.num_computed, len(deleted)
        if num_written or num_deleted:
            result = separate_table.write(
                work.table,
                self.declaration,
                work.table.store,
                computed,
                deleted,
                micro_batch,
                self._entries(work),
                self._check_progress(work),
                self._environment,
            )
            if result.was_already_committed:
                raise OvertakenError("another process has committed this round")
            if result.is_new:
                return replace(
                    outcome,
                    version=result.table.version,
                    num_commits=1,
                    num_written=num_written,
                    num_deleted=result.num_deleted,
                )
        commit = commit_planned(
            newest_version_of(work.table),
            UpdateConfig(config=MapUpdate()),
            None,
            micro_batch,
            config_entries=self._entries(work),
            check=self._check_progress(work),
            environment=self._environment,
        )
        if not commit.is_new:
            raise OvertakenError("another process has committed this round")
        return replace(outcome, version=commit.table.version, num_commits=1)

    def _entries(self, work: _Work) -> ConfigEntries:
        """Return a function that returns the progress entry for the version of a commit."""
        declaration = self.declaration

        def entries(_newest: Manifest | None, version: int) -> dict[str, str]:
            new_progress = work.planned
            if self.target is None:
                is_next = version == work.source.version + 1
                new_progress = progress.committed(new_progress, version, is_next=is_next)
            return {progress.config_key(declaration.name): progress.encode(new_progress)}

        return entries

    def _check_progress(self, work: _Work) -> Callable[[Manifest], None]:
        key = progress.config_key(self.declaration.name)
        checked_through = work.source.version

        def check(newest: Manifest) -> None:
            nonlocal checked_through
            if newest.config.get(key) != work.entry:
                raise OvertakenError("another process has committed or restored progress")
            if self.target is not None:
                return
            if work.planned.fields != self._fields(newest.schema, newest.schema):
                raise OvertakenError("columns were added, dropped or restored")
            if restores_rows(work.source.at(newest), checked_through):
                # Restored rows have old row versions, so that the next round would not check them.
                raise OvertakenError("an older version was restored")
            checked_through = newest.version

        return check

    # --- failed rows

    def _stage_failed_rows(
        self, work: _Work, computed: Sequence[ComputedValues], micro_batch: PendingBatch
    ) -> QuarantineBatch:
        bad = BadRows()
        for result in computed:
            for batch in result.bad.to_batches():
                bad.add(batch)
        uri = self._quarantine or quarantine_uri(work.table.uri)
        quarantine = QuarantineBatch(uri, self._options, micro_batch.batch)
        quarantine.begin(newest_version_of(work.table))
        quarantine.stage(bad, self._rules(), work.table, self._environment)
        return quarantine

    def _rules(self) -> dict[str, Any]:
        declaration = self.declaration
        return {
            "mode": "derive",
            "on": [],
            "except_columns": [],
            "sequence_by": None,
            "expect": {},
            "function_version": declaration.function_version,
        }

    def _delete_other_versions(self, work: _Work) -> None:
        """Delete quarantined rows of other versions of the function."""
        table = work.table
        uri = self._quarantine or quarantine_uri(table.uri)
        quarantine = open_quarantine(uri, self._options)
        if quarantine is None:
            return
        rules = json.dumps(self._rules(), sort_keys=True).replace("'", "''")
        app_id = self.declaration.app_id.replace("'", "''")
        where = f"app_id = '{app_id}' AND rules <> '{rules}'"
        if count_rows(quarantine, where):
            delete(quarantine, where)


@dataclass(frozen=True)
class _ComputeTask:
    """Computes a job on a worker. Spark pickles it with the user's function, by value."""

    declaration: Declaration

    def __call__(self, job: Any) -> ComputedValues | LanceStreamError:
        return compute(self.declaration, job)


def _without_session(function: Callable[P, R]) -> Callable[P, R]:
    """Raise an error that names the function for Spark if the first argument is a session."""

    @wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        if args and type(args[0]).__module__.startswith("pyspark."):
            raise InvalidInputError(
                "lance_stream.derive(uri, ...) computes in this process and does not accept a "
                "session. To compute on Spark's workers, call "
                "lance_stream.spark.derive(spark, uri, ...)"
            )
        return function(*args, **named)

    return called


@_without_session
def derive(
    uri: str | os.PathLike[str] | None,
    outputs: Outputs,
    function: Callable[..., Any],
    inputs: Sequence[str] | str,
    *,
    function_version: str,
    target: str | os.PathLike[str] | None = None,
    name: str | None = None,
    setup: Callable[[], Any] | None = None,
    copy_columns: Sequence[str] = (),
    batch_rows: int = 1024,
    rows_per_commit: int = 100_000,
    max_failures: int = 1000,
    on_error: str = "quarantine",
    quarantine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Derivation:
    """Declare columns that a function computes from other columns.

    Nothing is computed before `run` or `start`, which call the function for the rows whose inputs
    have changed, and for all rows if `function_version` has changed.

    Args:
        uri: The location of the table with the inputs, which must have stable row ids.
        outputs: The columns that are computed: a mapping from names to types, a `pyarrow.Field`, a
            list of fields, or a schema. They become new, nullable columns of the table.
        function: Takes a `pyarrow.RecordBatch` with n rows of the inputs, and returns n values: an
            Arrow array, a numpy array with one row per value, or a list; for several outputs, a
            mapping or a RecordBatch. A value must not depend on the other rows of the call.
        inputs: The columns that the function receives. No others are read.
        function_version: A string. If it changes, all rows are computed again, in rounds.
        target: The location of a separate table for the values; None for the same table.
        name: Identifies the derivation in its table; by default the name of the first output.
        setup: Called once in each computing process, for example to load a model. Its result is the
            function's second argument.
        copy_columns: Columns of the source to copy to a separate table, such as its key.
        batch_rows: The maximum number of rows in one call of the function.
        rows_per_commit: The maximum number of rows that one commit checks.
        max_failures: The maximum number of rows in a commit for which the function may fail.
        on_error: "quarantine" stores null for rows for which the function raises, and quarantines
            them; "raise" ends the run at the first such row.
        quarantine: The location of the quarantine for failed rows; by default next to the table.
        storage_options: Settings of the store.
        table_id: The table's name in a Lance namespace, with `uri` None; see `open_dataset`.
        namespace: The namespace.

    Raises:
        InvalidInputError: An argument is invalid.
    """
    uri, storage_options = locate(uri, storage_options, table_id, namespace)
    declaration = declare(
        outputs,
        function,
        inputs,
        function_version=function_version,
        name=name,
        setup=setup,
        copy_columns=copy_columns,
        batch_rows=batch_rows,
        rows_per_commit=rows_per_commit,
        max_failures=max_failures,
        on_error=on_error,
    )
    check_copied_columns(declaration, target)
    target_uri = None if target is None else text_of(target)
    return Derivation(text_of(uri), declaration, target_uri, storage_options, quarantine)


def check_copied_columns(declaration: Declaration, target: object | None) -> None:
    """Raise if columns are to be copied without a separate table.

    Raises:
        InvalidInputError: `copy_columns` is set without a target.
    """
    if declaration.copy_columns and target is None:
        raise InvalidInputError("copy_columns requires a separate table: set target=..., too")
