"""What all writing verbs have in common: the transaction, the commit, planning again.

A verb plans on the newest version, writes files that no version references yet, and commits
(`commit_planned`). After a conflict, it repeats all of this (`replan_on_conflict`). The files of a
plan are deleted if it certainly failed; if the outcome is unknown, a later cleanup deletes them.
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
"""The maximum number of times that a verb plans its operation."""

_PLANS: Final = RetryPolicy(MAX_PLANS, first_delay_seconds=0.04, max_delay_seconds=1.0)
"""Without a time limit: a plan may read and write any number of rows."""


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
        log: The table's version log.
        planned_on: The version; None, or version 0, for a table that does not exist yet.
        operation: The operation to commit.
        transaction_uuid: The uuid, by which a repeated commit is recognized; None for a random one.
        properties: Properties of the transaction.
        creation: The properties of a new table.
        before_attempt: See `commit.committer.commit`.
        config_entries: See `commit.committer.commit`.
        retries: The limits of the commit, which is retried when another writer was faster.
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
        with_deletion_files: Fragments of the table, with their new deletion files.
        others: The paths of other files.
    """

    fragments: tuple[Fragment, ...] = ()
    with_deletion_files: tuple[Fragment, ...] = ()
    others: tuple[str, ...] = ()

    def delete(self, store: Store) -> None:
        """Delete the files, which no version will ever reference. Best effort."""
        delete_files(store, self.fragments)
        delete_deletion_files(store, self.with_deletion_files)
        for path in self.others:
            with suppress(OSError, LanceStreamError):
                store.delete(path)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a plan.

    Attributes:
        table: The committed version; the newest one if none was committed.
        is_new: Whether a version was committed. If not, the table already had the micro-batch.
        already_committed_in: The earlier version that committed the micro-batch; None without one,
            or if unknown.
        attempts: The number of attempts of the commit; 1 without conflicts.
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
    """Commit an operation that was planned on a version; a micro-batch is committed only once.

    Args:
        table: The version; version 0 for a table that is created with the operation's rows.
        operation: The operation to commit.
        staged: The files that this plan has written. They are deleted if certainly no version
            references them. None if the caller deletes them.
        micro_batch: The micro-batch, if the rows come from a stream. If the table already has it,
            which is checked in every attempt, no version is committed.
        properties: Properties of the transaction.
        config_entries: Called in every attempt for config entries in addition to the ledger's.
        check: Called with the newest version before each attempt; raises if the files do not fit
            it.
        creation: See `table.apply.apply`.
        retries: The limits of the commit, which is retried when another writer was faster.
        environment: The clock and randomness; sleeps between two attempts.

    Raises:
        InvalidInputError: The batch id belongs to another query's batch.
        CommitConflictError: Another commit conflicts, or the table has been replaced; nothing was
            committed.
        CommitUncertainError: It is unknown whether the operation was committed.
    """
    committed: list[LedgerEntry] = []

    def find_batch(newest: Manifest | None) -> str | None:
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
                f"another writer created the table {table.uri}. Plan the operation again on its "
                "newest version",
                newest.version,
            )
        if check is not None:
            check(newest)
        return None

    if not table.version:
        operation, creation = _first(table, operation)
    transaction_uuid = None
    try:
        if micro_batch is not None:
            transaction_uuid = micro_batch.batch.uuid
            properties = {**(properties or {}), **micro_batch.batch.properties}
            config_entries = combined(micro_batch.ledger_entries, config_entries)
        result = commit_operation(
            table.log,
            table.manifest,
            operation,
            transaction_uuid=transaction_uuid,
            properties=properties,
            creation=creation,
            before_attempt=find_batch,
            config_entries=config_entries,
            retries=retries,
            environment=environment,
        )
    except CommitUncertainError:
        raise
    except LanceStreamError:  # certainly not committed
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
    newest = table if result.manifest is None else table.at(result.manifest)
    return Outcome(
        newest, is_new=False, already_committed_in=committed[-1].version if committed else None
    )


def _first(table: TableVersion, operation: Operation) -> tuple[Overwrite, Creation]:
    """Return the operation that creates a table with an operation's rows, and the new properties.

    Args:
        table: Version 0 of the table; see `create.plan_table`.
        operation: The operation that was planned on it; there are no rows that it could change.
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
        staged: The files of the plan.
        manifest: The version that the plan became.
    """
    fragment_ids = {fragment.id for fragment in staged.with_deletion_files}
    current_files = {
        fragment_id: manifest.fragments[index].deletion_file
        for index, fragment_id in enumerate(manifest.fragments.ids)
        if fragment_id in fragment_ids
    }
    return [
        fragment
        for fragment in staged.with_deletion_files
        if current_files.get(fragment.id) != fragment.deletion_file
    ]


def combined(*callbacks: ConfigEntries | None) -> ConfigEntries | None:
    """Return a callback that returns the config entries of all callbacks."""
    present = [callback for callback in callbacks if callback is not None]
    if len(present) < 2:
        return present[0] if present else None
    return lambda newest, version: {
        key: value for callback in present for key, value in callback(newest, version).items()
    }


def replan_on_conflict(
    attempt: Callable[[], T],
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
) -> T:
    """Run an attempt, which plans on the newest version and commits, until there is no conflict.

    A micro-batch does not depend on the contents of the table: if another writer overwrites or
    restores the table, the batch is planned again on the result. The meaning of other verbs would
    change. No verb is planned again on a table that has replaced the first one: the rows may not
    belong there, so the caller must start over.

    Once there is a newer version, a cleanup may remove the one on which an attempt is planned. So
    an attempt that misses a file is repeated, unless the same file is missing again.

    Args:
        attempt: Plans and commits.
        micro_batch: The micro-batch, if the rows come from a stream.
        environment: The randomness, and the sleep between two attempts.

    Raises:
        RetryableConflictError: All `MAX_PLANS` attempts had conflicts.
        IncompatibleConflictError: The operation no longer means the same.
        TableReplacedError: The table was replaced.
        NotFoundError: The same file was missing in two consecutive attempts.
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
