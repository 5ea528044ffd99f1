"""The retry loop of an upsert: every attempt plans on one version and commits one Update.

    choose    the newest version; done if it already contains the micro-batch
    write     the new and changed rows to new files: a `Strategy`
    plan      deletion files and one Update
    commit    if anything changes; a conflict starts the next attempt

The strategy determines how rows are applied: as rows in one process (`upsert`), as events of
histories (`histories`), or in parts by many workers (`large`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lance_stream.commit.committer import ConfigEntries
from lance_stream.environment import Environment
from lance_stream.errors import (
    ColumnsChangedError,
    CommitUncertainError,
    InvalidInputError,
    LanceStreamError,
)
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.decisions import check_untouched
from lance_stream.upsert.row_writer import UpsertPart
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.update_planner import Work, plan_update
from lance_stream.write.phases import Phases
from lance_stream.write.planning import combined, commit_planned, replan_on_conflict


@dataclass(frozen=True)
class UpsertResult:
    """The outcome of an upsert.

    Attributes:
        table: The committed version; the newest one if nothing was committed.
        is_new: Whether a version was committed.
        already_committed_in: The version that had already applied the micro-batch; None if there is
            no such version, or if it is unknown.
        attempts: The number of commit attempts over all plans.
        num_rows: The number of incoming rows.
        num_inserted: The number of new rows.
        num_updated: The number of rows of the table that have new values.
        num_deleted: The number of rows of the table that were deleted.
        num_unchanged: The number of rows left untouched because their values would not change.
        num_late: The number of incoming rows that are older than another row of the batch, than
            the stored row, or than a remembered delete.
        num_ignored: The number of updates and inserts that the rules excluded.
        num_remembered: The number of deletes of this batch that the table remembers.
        fragments: The new fragments as they were written.
        was_already_committed: Whether the table already contained the micro-batch, so that nothing
            was done.
    """

    table: TableVersion
    is_new: bool = False
    already_committed_in: int | None = None
    attempts: int = 0
    num_rows: int = 0
    num_inserted: int = 0
    num_updated: int = 0
    num_deleted: int = 0
    num_unchanged: int = 0
    num_late: int = 0
    num_ignored: int = 0
    num_remembered: int = 0
    fragments: tuple[Fragment, ...] = ()
    was_already_committed: bool = False


class Strategy(Protocol):
    """How the rows of one upsert are applied to a version."""

    @property
    def rules(self) -> UpsertRules:
        """The user's rules for the rows."""
        ...

    def write(self, table: TableVersion, phases: Phases) -> Work:
        """Apply the rows to a version, and write the new rows to files.

        Called once per attempt, which reuses or deletes the files of the previous attempt.

        Raises:
            InvalidInputError: The rows do not fit the rules or the table.
        """
        ...

    def discard(self) -> None:
        """Delete the files of the last attempt, which no version references; best effort."""
        ...


def upsert_by(
    strategy: Strategy,
    table: TableVersion,
    micro_batch: PendingBatch | None,
    *,
    is_current: bool,
    phases: Phases | None,
    environment: Environment,
    config_entries: ConfigEntries | None = None,
    check: Callable[[Manifest], None] | None = None,
) -> UpsertResult:
    """Apply the rows of a strategy to a table, and commit one version if they change it.

    Args:
        strategy: How the rows are applied.
        table: Any version; the newest one is changed.
        micro_batch: The micro-batch, if the rows come from a stream. If the table already contains
            it, nothing is done.
        is_current: Whether the version was opened for this upsert. Then the first attempt plans on
            it, without a request for a newer one.
        phases: Receives the durations of the steps, including "write" and "commit".
        environment: The clock and randomness; sleeps between two attempts.
        config_entries: See `write.planning.commit_planned`.
        check: See `write.planning.commit_planned`.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table, or the batch id belongs to
            another query's batch; nothing is changed.
        ColumnsChangedError: They do not fit because another writer has changed the columns.
        CommitError: The commit failed, or its outcome is unknown.
    """
    phases = phases or Phases()
    planned_on = table
    num_attempts = 0

    def attempt() -> UpsertResult:
        nonlocal planned_on, num_attempts
        if num_attempts or not is_current:
            planned_on = newest_version_of(planned_on)
        num_attempts += 1
        entry = None if micro_batch is None else micro_batch.find_in(planned_on)
        if entry is not None:
            return _already_committed(planned_on, entry.version)
        check_may_write(planned_on.manifest)
        try:
            work = strategy.write(planned_on, phases)
        except InvalidInputError as error:
            if planned_on.arrow_schema.equals(table.arrow_schema):
                raise
            raise ColumnsChangedError(str(error)) from error  # the caller may add or widen columns
        with phases("write"):
            plan = plan_update(planned_on, work, strategy.rules, environment)
        result = replace(_outcome_of(planned_on, work.parts), attempts=num_attempts)
        if not plan.changes_anything:
            return result

        def check_newest(newest: Manifest) -> None:
            check_untouched(planned_on, plan.untouched, newest)
            if check is not None:
                check(newest)

        tombstones = plan.tombstones
        with phases("commit"):
            outcome = commit_planned(
                planned_on,
                plan.operation,
                plan.staged,
                micro_batch,
                properties=tombstones.properties if tombstones else None,
                config_entries=combined(tombstones.entries if tombstones else None, config_entries),
                check=check_newest,
                environment=environment,
            )
        if not outcome.is_new:
            return _already_committed(outcome.table, outcome.already_committed_in)
        attempts = num_attempts + outcome.attempts - 1
        return replace(result, table=outcome.table, is_new=True, attempts=attempts)

    try:
        result = replan_on_conflict(attempt, micro_batch, environment)
    except CommitUncertainError:
        raise
    except LanceStreamError:  # the commit certainly failed
        strategy.discard()
        raise
    if result.was_already_committed:
        strategy.discard()
    return result


def _already_committed(table: TableVersion, version: int | None) -> UpsertResult:
    return UpsertResult(table, already_committed_in=version, was_already_committed=True)


def _outcome_of(table: TableVersion, parts: Sequence[UpsertPart]) -> UpsertResult:
    """Return the sum of the parts' outcomes, before the commit."""
    decisions = [part.written.decision for part in parts]
    deletes = [part.written.deletes for part in parts if part.written.deletes is not None]
    return UpsertResult(
        table,
        num_rows=sum(part.num_rows for part in parts),
        num_inserted=sum(len(decision.inserted_rows) for decision in decisions),
        num_updated=sum(len(decision.changed) for decision in decisions),
        num_deleted=sum(len(decision.deleted) for decision in decisions),
        num_unchanged=sum(decision.num_unchanged for decision in decisions),
        num_late=sum(part.num_late for part in parts),
        num_ignored=sum(decision.num_ignored for decision in decisions),
        num_remembered=sum(delete.rows.num_rows for delete in deletes),
        fragments=tuple(file for part in parts for file in part.written.files),
    )
