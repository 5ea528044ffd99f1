"""The common part of all writing verbs: a transaction's uuid, the commit, re-planning.

A verb plans on the newest version, writes files that no version references yet, and commits
(`commit_planned`). On a conflict it does all of it again (`planning_again`). The files of a plan
that is known to have failed are deleted; those of a plan with an unknown outcome are left for a
later cleanup.
"""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from lance_stream.commit.committer import (
    POLICY,
    BeforeAttempt,
    CommittedTransaction,
    ConfigEntries,
    NothingToCommit,
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
from lance_stream.ledger.recording import record
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.retries import Retrying, RetryPolicy
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.apply import Creation
from lance_stream.table.config.ledger_entries import LedgerEntry
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.operation import Operation, operation_name
from lance_stream.table.operations.rows import Append, Overwrite, Update
from lance_stream.table.operations.transaction import Transaction
from lance_stream.write.after_commit import after_commit
from lance_stream.write.fragments import delete_files

T = TypeVar("T")

MAX_PLANS: Final = 20
"""How many times a verb plans its operation on the newest version before it gives up."""

_PLANS: Final = RetryPolicy(MAX_PLANS, first_delay_seconds=0.04, max_delay_seconds=1.0)
"""Without a time limit: a plan reads and writes rows, however many they are."""


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
    retries: RetryPolicy = POLICY,
    environment: Environment = MACHINE,
) -> CommittedTransaction | NothingToCommit:
    """Commit an operation that was planned on a version; see `commit.committer.commit`.

    Args:
        log: The table's history.
        planned_on: The version; None, or version 0, for a table that is yet to be created.
        operation: The operation to commit.
        transaction_uuid: Identifies a second attempt; None for a random one.
        properties: Stored in the transaction.
        creation: The properties of a new table.
        before_attempt: See `commit.committer.commit`.
        config_entries: See `commit.committer.commit`.
        retries: The limits of the commit, which tries again after losing to another writer.
        environment: The clock and randomness; sleeps between two attempts.
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
        retries=retries,
        environment=environment,
    )


@dataclass(frozen=True)
class StagedFiles:
    """The files of a plan, which no version references yet.

    Attributes:
        fragments: New fragments, with their data files.
        dying: Fragments of the table that get new deletion files.
        others: Paths of other files.
    """

    fragments: tuple[Fragment, ...] = ()
    dying: tuple[Fragment, ...] = ()
    others: tuple[str, ...] = ()

    def delete(self, store: Store) -> None:
        """Delete the files, which no version will ever reference. Best effort."""
        delete_files(store, self.fragments)
        delete_deletion_files(store, self.dying)
        for path in self.others:
            with suppress(OSError, LanceStreamError):
                store.delete(path)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a plan.

    Attributes:
        table: The committed version; the newest one if none was committed.
        is_new: Whether a version was committed. If not, the table already had the micro-batch.
        already_committed_in: The version that had already committed the micro-batch; None if none
            had, or if unknown.
        attempts: How many attempts the commit took; 1 without conflicts.
    """

    table: TableVersion
    is_new: bool
    already_committed_in: int | None = None
    attempts: int = 1


def commit_planned(
    table: TableVersion,
    operation: Operation,
    staged: StagedFiles | None = None,
    micro_batch: PendingBatch | None = None,
    properties: Mapping[str, str] | None = None,
    config_entries: ConfigEntries | None = None,
    check: Callable[[Manifest], None] | None = None,
    creation: Creation | None = None,
    retries: RetryPolicy = POLICY,
    environment: Environment = MACHINE,
) -> Outcome:
    """Commit what was planned on a version; a micro-batch is committed only once.

    Args:
        table: The version; version 0 for a table that is created with the operation's rows.
        operation: The operation to commit.
        staged: The files that this plan has written for it. They are deleted if it is known that
            no version references them. None: the caller takes care of that.
        micro_batch: The micro-batch, if the rows come from a stream. If the table already has it,
            which is checked on every attempt, no version is committed.
        properties: Stored in the transaction.
        config_entries: Called on every attempt for config entries besides the ledger's.
        check: Checks the newest version before each attempt, and raises if the files do not
            fit it.
        creation: What `table.apply.apply` needs to know of the table as a whole.
        retries: The limits of the commit, which tries again after losing to another writer.
        environment: The clock and randomness; sleeps between two attempts.

    Raises:
        InvalidInputError: The batch id belongs to another query's batch.
        CommitConflictError: Another commit conflicts, or the table has been replaced; nothing was
            committed.
        CommitUncertainError: It is unknown whether it was committed.
    """
    committed: list[LedgerEntry] = []

    def look_up(newest: Manifest | None) -> str | None:
        if newest is None:
            return None
        if micro_batch is not None:
            entry = micro_batch.find_in(table.at(newest))
            if entry is not None:
                committed.append(entry)
                batch = micro_batch.batch
                return f"batch {batch.batch_id} of {batch.app_id!r} is already committed"
        if not table.version:
            raise RetryableConflictError(
                f"another writer has created the table {table.uri}. Plan the operation "
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
            transaction_uuid=None if micro_batch is None else micro_batch.batch.uuid,
            properties={
                **(properties or {}),
                **({} if micro_batch is None else micro_batch.batch.properties),
            },
            creation=creation,
            before_attempt=look_up,
            config_entries=joined(record(micro_batch), config_entries),
            retries=retries,
            environment=environment,
        )
    except CommitUncertainError:
        raise
    except LanceStreamError:  # known to have failed
        if staged is not None:
            staged.delete(table.store)
        raise
    if not isinstance(result, NothingToCommit):
        if staged is not None and result.manifest.version > table.version + 1:
            delete_deletion_files(table.store, _superseded(staged, result.manifest))
        committed_table = table.at(result.manifest)
        after_commit(committed_table, environment)
        return Outcome(committed_table, is_new=True, attempts=result.attempts)
    if staged is not None:
        staged.delete(table.store)
    now = table if result.manifest is None else table.at(result.manifest)
    return Outcome(
        now, is_new=False, already_committed_in=committed[-1].version if committed else None
    )


def _first(table: TableVersion, operation: Operation) -> tuple[Overwrite, Creation]:
    """Return the operation that creates a table with an operation's rows, and its properties.

    Args:
        table: Its version 0; see `create.plan_table`.
        operation: The operation planned on it. There are no rows that it could change.
    """
    if isinstance(operation, Append | Overwrite):
        fragments = operation.fragments
    elif isinstance(operation, Update):
        fragments = operation.new_fragments
    else:
        raise InvalidInputError(
            f"no table exists at {table.uri} for this {operation_name(operation)}"
        )
    manifest = table.manifest
    return (
        Overwrite(fragments, manifest.schema, config_upserts=manifest.config),
        Creation(manifest.data_format, stable_row_ids=table.has_stable_row_ids),
    )


def _superseded(staged: StagedFiles, manifest: Manifest) -> list[Fragment]:
    """Return the fragments whose staged deletion files a rebase has replaced.

    Args:
        staged: The files of a plan.
        manifest: The version that it became.
    """
    fragment_ids = {fragment.id for fragment in staged.dying}
    named = {
        fragment_id: manifest.fragments[index].deletion_file
        for index, fragment_id in enumerate(manifest.fragments.ids)
        if fragment_id in fragment_ids
    }
    return [
        fragment for fragment in staged.dying if named.get(fragment.id) != fragment.deletion_file
    ]


def joined(*callbacks: ConfigEntries | None) -> ConfigEntries | None:
    """Return a callback that gives the config entries of all."""
    present = [callback for callback in callbacks if callback is not None]
    if len(present) < 2:
        return present[0] if present else None
    return lambda newest, version: {
        key: value for callback in present for key, value in callback(newest, version).items()
    }


def planning_again(
    attempt: Callable[[], T],
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
) -> T:
    """Run an attempt, which plans on the newest version and commits, until it has no conflict.

    A micro-batch does not depend on what the table contained: if others overwrote or restored the
    table meanwhile, it is planned again on the result. Other verbs would then change their meaning.
    No verb is planned again on a table that has replaced the first: its rows may not belong there,
    so the caller must start over.

    A cleanup may remove the version that is planned on once there is a newer one: missing files
    are looked up once more. What is missing from the newest version is missing.

    Args:
        attempt: Plans and commits.
        micro_batch: The micro-batch that it commits, if its rows come from a stream.
        environment: Sleeps between two attempts; provides randomness.

    Raises:
        RetryableConflictError: There were conflicts `MAX_PLANS` times.
        IncompatibleConflictError: The operation no longer means the same.
        TableReplacedError: The table was replaced.
        NotFoundError: The same thing was missing twice in a row.
    """
    conflict = RetryableConflictError if micro_batch is None else CommitConflictError
    missing: str | None = None
    plans = Retrying(_PLANS, environment)
    for _ in range(1, MAX_PLANS):
        try:
            return attempt()
        except TableReplacedError:
            raise
        except conflict:
            plans.wait()
        except NotFoundError as error:
            if str(error) == missing:
                raise
            missing = str(error)
    return attempt()
