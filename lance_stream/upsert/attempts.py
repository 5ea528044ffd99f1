"""The attempts at one upsert: each plans it on a version, and commits one Update.

    choose    a version: the newest one; there is nothing to do if it has the micro-batch
    write     what the upsert does to each row, in new files: a `Strategy`
    plan      deletion files and one Update
    commit    if that changes anything; after a conflict, the next attempt

How rows are applied is the strategy's: as rows by one process (`upsert`), as events of histories
(`histories`), or in parts by many workers (`large`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from lance_stream.commit.committer import ConfigEntries
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import CommitUncertainError, LanceStreamError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import newest_of_same
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.decisions import check_untouched
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.parts import Part
from lance_stream.upsert.tombstones import RememberedDeletes
from lance_stream.upsert.update_planner import PlannedUpdate, plan_update
from lance_stream.write.phases import Phases
from lance_stream.write.planning import commit_planned, joined, planning_again


@dataclass(frozen=True)
class Upserted:
    """The outcome of an upsert.

    Attributes:
        table: The committed version; the newest one if none was committed.
        is_new: Whether a version was committed.
        already_committed_in: The version that had already applied the micro-batch; None if none
            had, or if unknown.
        attempts: The number of commit attempts of all plans.
        num_rows: How many rows came in.
        num_inserted: How many rows are new.
        num_updated: How many rows of the table have new values.
        num_deleted: How many rows of the table were deleted.
        num_unchanged: How many rows would not have changed and were left untouched.
        num_late: How many incoming rows are older than others, of the batch or the table, or
            than a delete that the table remembers.
        num_ignored: How many updates and inserts the rules left out.
        num_remembered: How many deletes of this batch the table remembers.
        fragments: The new fragments as they were written.
        was_already_committed: Whether the table already had the micro-batch; nothing was done.
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


class Work(NamedTuple):
    """What a strategy has written for a version.

    Attributes:
        parts: The outcomes of all parts; at most one of them touches each row of the table.
        stored: The incoming columns that are stored.
        remembered: The deletes, or shadowed events, that the version remembers; None if the upsert
            remembers none.
    """

    parts: Sequence[Part]
    stored: Sequence[str]
    remembered: RememberedDeletes | None


class Strategy(Protocol):
    """How the rows of one upsert are applied to a version."""

    @property
    def rules(self) -> UpsertRules:
        """The user's rules for the rows."""
        ...

    def write(self, table: TableVersion, phases: Phases) -> Work:
        """Apply the rows to a version, and write the new rows to files.

        Called for each attempt. Files of the attempt before may be used again, or are deleted.

        Raises:
            InvalidInputError: The rows do not fit the rules or the table.
        """
        ...

    def discard(self) -> None:
        """Delete the files of the last attempt, which no version names; best effort."""
        ...


def upsert_by(
    strategy: Strategy,
    table: TableVersion,
    micro_batch: PendingBatch | None = None,
    *,
    is_current: bool = False,
    phases: Phases | None = None,
    environment: Environment = MACHINE,
    config_entries: ConfigEntries | None = None,
    check: Callable[[Manifest], None] | None = None,
) -> Upserted:
    """Apply the rows of a strategy to a table, and commit one version if they change it.

    Args:
        strategy: How the rows are applied.
        table: Any version; the newest one is changed.
        micro_batch: Which micro-batch they are, if they come from a stream. If the table already
            has it, nothing is done.
        is_current: Whether the version was opened for this upsert. Then the first attempt plans on
            it, without a request for a newer one.
        phases: Receives the durations of the steps, of "write" and "commit" among them.
        environment: The clock and randomness; sleeps between two attempts.
        config_entries: See `write.planning.commit_planned`.
        check: Likewise.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table, or the batch id belongs to
            another query's batch; nothing is changed.
        CommitError: It was not committed, or the outcome is unknown.
    """
    phases = phases or Phases()
    planned_on = table
    num_attempts = 0

    def attempt() -> Upserted:
        nonlocal planned_on, num_attempts
        if num_attempts or not is_current:
            planned_on = newest_of_same(planned_on)
        num_attempts += 1
        entry = None if micro_batch is None else micro_batch.find_in(planned_on)
        if entry is not None:
            return _already_committed(planned_on, entry.version)
        check_may_write(planned_on.manifest)
        work = strategy.write(planned_on, phases)
        with phases("write"):
            plan = plan_update(
                planned_on,
                [part.written for part in work.parts],
                strategy.rules,
                work.stored,
                work.remembered,
                environment,
            )
        result = replace(_outcome_of(planned_on, work.parts), attempts=num_attempts)
        if not plan.changes_anything:
            return result
        with phases("commit"):
            return _commit(
                planned_on, plan, result, micro_batch, environment, config_entries, check
            )

    try:
        result = planning_again(attempt, micro_batch, environment)
    except CommitUncertainError:
        raise
    except LanceStreamError:  # known to have failed
        strategy.discard()
        raise
    if result.was_already_committed:
        strategy.discard()
    return result


def _commit(
    table: TableVersion,
    plan: PlannedUpdate,
    result: Upserted,
    micro_batch: PendingBatch | None,
    environment: Environment,
    config_entries: ConfigEntries | None,
    check: Callable[[Manifest], None] | None,
) -> Upserted:
    """Commit a plan; return its outcome.

    Args:
        table: The version that was planned on.
        plan: The operation.
        result: The outcome as far as it is known before the commit.
        micro_batch: The micro-batch.
        environment: The clock and randomness.
        config_entries: Config entries of the caller.
        check: A check of the newest version before each attempt, by the caller.
    """
    tombstones = plan.tombstones
    are_untouched = check_untouched(table, plan.untouched)

    def check_all(newest: Manifest) -> None:
        are_untouched(newest)
        if check is not None:
            check(newest)

    done = commit_planned(
        table,
        plan.operation,
        plan.staged,
        micro_batch,
        properties=tombstones.properties if tombstones else None,
        config_entries=joined(tombstones.entries if tombstones else None, config_entries),
        check=check_all,
        environment=environment,
    )
    if not done.is_new:
        return _already_committed(done.table, done.already_committed_in)
    attempts = result.attempts + done.attempts - 1
    return replace(result, table=done.table, is_new=True, attempts=attempts)


def _already_committed(table: TableVersion, version: int | None) -> Upserted:
    return Upserted(table, already_committed_in=version, was_already_committed=True)


def _outcome_of(table: TableVersion, parts: Sequence[Part]) -> Upserted:
    """Return the sum of the parts' outcomes, before the commit."""
    decisions = [part.written.decision for part in parts]
    deletes = [part.written.deletes for part in parts if part.written.deletes is not None]
    return Upserted(
        table,
        num_rows=sum(part.num_rows for part in parts),
        num_inserted=sum(len(decision.inserted_rows) for decision in decisions),
        num_updated=sum(len(decision.changed) for decision in decisions),
        num_deleted=sum(len(decision.deleted) for decision in decisions),
        num_unchanged=sum(part.written.num_unchanged for part in parts),
        num_late=sum(part.num_late for part in parts),
        num_ignored=sum(decision.num_ignored for decision in decisions),
        num_remembered=sum(delete.rows.num_rows for delete in deletes),
        fragments=tuple(file for part in parts for file in part.written.files),
    )
