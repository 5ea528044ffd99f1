"""What the attempts at one upsert share: how each begins, and how it ends in a commit.

    begin     the newest version of the same table; nothing to do if it has the micro-batch
    commit    one Update, if the plan changes anything

`upsert` plans in between with all rows in one process, `in_parts` by many workers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lance_stream.commit.committer import ConfigEntries
from lance_stream.environment import MACHINE, Environment
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import newest_of_same
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.fragments import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.matching import check_untouched
from lance_stream.upsert.planned_update import PlannedUpdate
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


class Attempts:
    """The attempts at one upsert, each on the newest version of the table.

    Args:
        table: Any version.
        micro_batch: Which micro-batch it is, if it comes from a stream.
        phases: Receives the durations of the steps, of "commit" among them.
        environment: The clock and randomness; sleeps between two attempts.

    Attributes:
        number: How many attempts there have been, with the one under way.
        newest: The version that the attempt under way is planned on.
        micro_batch: The micro-batch.
    """

    def __init__(
        self,
        table: TableVersion,
        micro_batch: PendingBatch | None,
        phases: Phases,
        environment: Environment = MACHINE,
    ) -> None:
        self.number = 0
        self.newest = table
        self.micro_batch = micro_batch
        self.phases = phases
        self._environment = environment

    def until_committed(self, attempt: Callable[[], Upserted]) -> Upserted:
        """Return what an attempt gives that has no conflict; see `planning_again`.

        Args:
            attempt: Calls `begin`, plans, and calls `commit`.
        """
        return planning_again(attempt, self.micro_batch, self._environment)

    def begin(self) -> Upserted | None:
        """Begin another attempt; return the outcome if the table already has the micro-batch.

        Raises:
            TableReplacedError: The table has been replaced since the first attempt.
            UnsupportedFeatureError: This library must not write the table.
        """
        self.newest = newest_of_same(self.newest)
        self.number += 1
        entry = None
        if self.micro_batch is not None:
            entry = self.micro_batch.find_in(self.newest)
        if entry is not None:
            return Upserted(
                self.newest, already_committed_in=entry.version, was_already_committed=True
            )
        check_may_write(self.newest.manifest)
        return None

    def commit(
        self,
        plan: PlannedUpdate,
        result: Upserted,
        fragments: tuple[Fragment, ...] = (),
        config_entries: ConfigEntries | None = None,
        check: Callable[[Manifest], None] | None = None,
    ) -> Upserted:
        """Commit a plan, if it changes anything; see `commit_planned`.

        Args:
            plan: The operation, planned on the newest version.
            result: The upsert's outcome so far.
            fragments: New fragments whose files are deleted, too, if it is known that no version
                references them.
            config_entries: Config entries of the caller; see `commit_planned`.
            check: Checks the newest version before each attempt; likewise.
        """
        result = replace(result, attempts=self.number)
        if not plan.changes_anything:
            return result
        remembering = plan.tombstones
        are_untouched = check_untouched(self.newest, plan.untouched)

        def check_all(newest: Manifest) -> None:
            are_untouched(newest)
            if check is not None:
                check(newest)

        with self.phases("commit"):
            done = commit_planned(
                self.newest,
                plan.operation,
                replace(plan.staged, fragments=fragments),
                self.micro_batch,
                properties=remembering.properties if remembering else None,
                config_entries=joined(remembering.entries if remembering else None, config_entries),
                check=check_all,
                environment=self._environment,
            )
        if not done.is_new:
            return Upserted(
                done.table,
                already_committed_in=done.already_committed_in,
                was_already_committed=True,
            )
        attempts = self.number + done.attempts - 1
        return replace(result, table=done.table, is_new=True, attempts=attempts)
