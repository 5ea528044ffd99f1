"""What all verbs that write have in common: a transaction's uuid, the commit, planning again.

A verb plans on the newest version, writes files that no version names yet, and commits
(`commit_planned`). If others were in the way it does all of it again (`planning_again`). The files
of a plan that is known to have come to nothing are deleted; those of one of which nobody knows
stay, for a later cleanup.
"""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from lance_stream.backoff import Backoff
from lance_stream.commit.committer import (
    BeforeAttempt,
    Committed,
    ConfigEntries,
    Skipped,
    commit,
)
from lance_stream.commit.rebasing import delete_deletion_files
from lance_stream.commit.version_log import VersionLog
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CommitConflictError,
    CommitUncertainError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table import ledger
from lance_stream.table.apply import Creation
from lance_stream.table.fragments import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import Append, Operation, Overwrite, Update, operation_name
from lance_stream.table.transaction import Transaction
from lance_stream.write.fragments import delete_files
from lance_stream.write.micro_batches import (
    MicroBatch,
    entries_of,
    find_taken_in,
    properties_of,
)

T = TypeVar("T")

MAX_PLANS: Final = 20
"""How often a verb plans its operation on the newest version before it gives up."""

_BACKOFF: Final = Backoff(MAX_PLANS, first_delay_seconds=0.04, max_delay_seconds=1.0)


def commit_operation(
    log: VersionLog,
    planned_on: Manifest | None,
    operation: Operation,
    *,
    transaction_uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    creation: Creation | None = None,
    before_attempt: BeforeAttempt | None = None,
    config_entries: ConfigEntries | None = None,
) -> Committed | Skipped:
    """Commit an operation that was planned on a version; see `commit.committer.commit`.

    Args:
        log: The table's history.
        planned_on: The version; None, or version 0, for a table that is yet to be made.
        operation: What is to be done.
        transaction_uuid: What a second try is known by; None for a random one.
        properties: Noted in the transaction.
        creation: What a new table is.
        before_attempt: See `commit.committer.commit`.
        config_entries: See `commit.committer.commit`.
    """
    return commit(
        log,
        Transaction(
            read_version=0 if planned_on is None else planned_on.version,
            uuid=transaction_uuid or str(uuid.uuid4()),
            operation=operation,
            properties=dict(properties or {}),
        ),
        planned_on=planned_on,
        creation=creation,
        before_attempt=before_attempt,
        config_entries=config_entries,
    )


@dataclass(frozen=True)
class Staged:
    """The files of a plan, which no version names yet.

    Attributes:
        fragments: New fragments, with their data files.
        dying: Fragments of the table that get new deletion files.
        others: Paths of other files.
    """

    fragments: tuple[Fragment, ...] = ()
    dying: tuple[Fragment, ...] = ()
    others: tuple[str, ...] = ()

    def delete(self, store: Store) -> None:
        """Delete the files; it is known that no version will ever name them. Best effort."""
        delete_files(store, self.fragments)
        delete_deletion_files(store, self.dying)
        for path in self.others:
            with suppress(OSError, LanceStreamError):
                store.delete(path)


@dataclass(frozen=True)
class Outcome:
    """What became of a plan.

    Attributes:
        table: The version that was made; where none was, the newest one.
        is_new: Whether a version was made. If not, the table had the micro-batch already.
        taken_in_before: The version that had taken in the micro-batch before; None where none
            had, or where it does not say.
        attempts: How many attempts the commit took; 1 when nobody was in the way.
    """

    table: TableVersion
    is_new: bool
    taken_in_before: int | None = None
    attempts: int = 1


def commit_planned(
    table: TableVersion,
    operation: Operation,
    staged: Staged | None = None,
    micro_batch: MicroBatch | None = None,
    properties: Mapping[str, str] | None = None,
    config_entries: ConfigEntries | None = None,
    check: Callable[[Manifest], None] | None = None,
    creation: Creation | None = None,
) -> Outcome:
    """Commit what was planned on a version, once if it is a micro-batch.

    Args:
        table: The version; 0 of a table that is made with the operation's rows.
        operation: What is to be done.
        staged: The files that were written for it by this very plan. They are deleted where it is
            known that no version names them. None: the caller sees to that.
        micro_batch: Which micro-batch it is, if it comes from a stream. If the table has it
            already, which is looked up on every attempt, no version is made.
        properties: Noted in the transaction.
        config_entries: Asked on every attempt for config entries that go in, besides the ledger's.
        check: Looks at the newest version before each attempt, and raises if the files do not
            fit it.
        creation: What `table.apply.apply` is told of the table as a whole.

    Raises:
        InvalidInputError: The batch's number belongs to another query's batch.
        CommitConflictError: Others were in the way, or the table is another one by now; nothing
            was done.
        CommitUncertainError: Nobody knows whether it was done.
    """
    taken_in: list[ledger.LedgerEntry] = []

    def look_up(newest: Manifest | None) -> str | None:
        if newest is None:
            return None
        if micro_batch is not None:
            entry = find_taken_in(table.at(newest), micro_batch)
            if entry is not None:
                taken_in.append(entry)
                return f"batch {micro_batch.batch_id} of {micro_batch.app_id!r} has been taken in"
        if not table.version:
            raise RetryableConflictError(
                f"another writer has made the table {table.uri} meanwhile. Plan the operation "
                "again on its newest version",
                newest.version,
            )
        if check is not None:
            check(newest)
        return None

    if not table.version:
        operation, creation = _first(table, operation)
    try:
        result = commit_operation(
            table.log,
            table.manifest,
            operation,
            transaction_uuid=(
                ledger.derive_uuid(micro_batch.app_id, micro_batch.batch_id)
                if micro_batch
                else None
            ),
            properties={**(properties or {}), **properties_of(micro_batch)},
            creation=creation,
            before_attempt=look_up,
            config_entries=_joined(entries_of(micro_batch), config_entries),
        )
    except CommitUncertainError:
        raise
    except LanceStreamError:  # known to have failed
        if staged is not None:
            staged.delete(table.store)
        raise
    if not isinstance(result, Skipped):
        if staged is not None and result.manifest.version > table.version + 1:
            delete_deletion_files(table.store, _superseded(staged, result.manifest))
        return Outcome(table.at(result.manifest), is_new=True, attempts=result.attempts)
    if staged is not None:
        staged.delete(table.store)
    now = table if result.manifest is None else table.at(result.manifest)
    return Outcome(now, is_new=False, taken_in_before=taken_in[-1].version if taken_in else None)


def _first(table: TableVersion, operation: Operation) -> tuple[Overwrite, Creation]:
    """Return what makes a table with the rows that an operation brings, and as what.

    Args:
        table: Its version 0; see `create.plan_table`.
        operation: What was planned on it. No row is there that it could change.
    """
    if isinstance(operation, Append | Overwrite):
        fragments = operation.fragments
    elif isinstance(operation, Update):
        fragments = operation.new_fragments
    else:
        raise InvalidInputError(
            f"there is no table at {table.uri} for this {operation_name(operation)}"
        )
    own = table.manifest
    return (
        Overwrite(fragments, own.schema, config_upserts=own.config),
        Creation(own.data_format, stable_row_ids=table.has_stable_row_ids),
    )


def _superseded(staged: Staged, made: Manifest) -> list[Fragment]:
    """Return the fragments whose staged deletion files a rebase has put others in the place of.

    Args:
        staged: The files of a plan.
        made: The version that it became.
    """
    wanted = {each.id for each in staged.dying}
    named = {
        each: made.fragments[place].deletion_file
        for place, each in enumerate(made.fragments.ids)
        if each in wanted
    }
    return [each for each in staged.dying if named.get(each.id) != each.deletion_file]


def _joined(*callbacks: ConfigEntries | None) -> ConfigEntries | None:
    """Return what gives the config entries of all."""
    given = [each for each in callbacks if each is not None]
    if len(given) < 2:
        return given[0] if given else None
    return lambda newest, version: {
        key: value for each in given for key, value in each(newest, version).items()
    }


def planning_again(
    attempt: Callable[[], T],
    micro_batch: MicroBatch | None = None,
    environment: Environment = MACHINE,
) -> T:
    """Run an attempt, which plans on the newest version and commits, until nobody is in the way.

    A micro-batch has no opinion on what the table held before it: if others overwrote or restored
    the table meanwhile, it is planned again as if they had come first. Other verbs no longer mean
    the same then. No verb is planned again on another table that has taken the place of the first:
    whoever made it has to say that the rows belong there, by beginning anew.

    A cleanup may remove the version that is planned on, if another one has come: files that are
    missing are looked for once more. What is missing from the newest version is missing.

    Args:
        attempt: Plans and commits.
        micro_batch: Which micro-batch it takes in, if its rows come from a stream.
        environment: What sleeps between two attempts, and the randomness.

    Raises:
        RetryableConflictError: Others were in the way `MAX_PLANS` times.
        IncompatibleConflictError: It no longer means the same.
        TableReplacedError: The table is another one by now.
        NotFoundError: Twice in a row the same thing was not there.
    """
    in_the_way = RetryableConflictError if micro_batch is None else CommitConflictError
    missing: str | None = None
    for plan in range(1, MAX_PLANS):
        try:
            return attempt()
        except TableReplacedError:
            raise
        except in_the_way:
            _BACKOFF.wait(plan, environment)
        except NotFoundError as error:
            if str(error) == missing:
                raise
            missing = str(error)
    return attempt()
