"""The optimistic commit loop: check, rebase, apply, publish; repeat if another writer was faster.

    write the transaction file
         │
         ▼
    newest version ──► does it belong to the table that was planned on?
         ▲                 │
         │                 ▼
         │             is there anything to do? ──► any conflict with newer versions? ──► rebase
         │                                                                                  │
         └── taken ◄── publish version + 1 ◄── apply ◄── write the rebased transaction ◄────┘

The transaction file is written before the newest version is read, because of cleanup. If another
writer published the version that we are about to publish, and a cleanup then deleted its manifest,
the name would be free again, and we would publish an old version number. A transaction file that no
version references yet tells cleanups that a commit is in progress; see `maintenance.cleanup`.

`apply` assigns ids, row versions and config entries in each attempt. Deletion files that a rebase
has written are deleted if certainly no version references them. Transaction files are left for
cleanup, and so are all files of a commit with an unknown outcome.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lance_stream.commit.publishing import publish_and_confirm
from lance_stream.commit.rebasing import delete_deletion_files, rebase_transaction
from lance_stream.commit.repairs import with_counts, with_sequences
from lance_stream.commit.same_table import (
    check_files_exist,
    check_is_same_table,
    table_replaced_error,
)
from lance_stream.commit.version_log import LogState, VersionLog
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    BadDataError,
    CommitUncertainError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
    StoreUnavailableError,
)
from lance_stream.retries import Retrying, RetryPolicy
from lance_stream.storage.store import check_is_in_table
from lance_stream.table.apply import Commit, Creation, apply
from lance_stream.table.conflicts.rules import ConflictVerdict, check
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import WRITER_LIBRARY, Manifest, WriterVersion, encode_manifest
from lance_stream.table.operations.operation import operation_name
from lance_stream.table.operations.transaction import (
    Transaction,
    decode_transaction,
    encode_transaction,
)
from lance_stream.table.operations.versions import Restore
from lance_stream.table.paths import VERSIONS_DIRECTORY, transaction_file_name, transaction_path
from lance_stream.version import VERSION

MAX_INLINE_TRANSACTION_BYTES = 20 << 20
"""A larger transaction has no copy in the manifest, as in the reference."""

_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """The transaction was committed.

    Attributes:
        manifest: The version.
        attempts: The number of attempts; 1 without conflicts.
    """

    manifest: Manifest
    attempts: int


@dataclass(frozen=True, slots=True)
class NothingToCommit:
    """There was nothing to do.

    Attributes:
        manifest: The version that was checked; None if there is no table.
        reason: The reason, as text.
    """

    manifest: Manifest | None
    reason: str


POLICY: Final = RetryPolicy(
    max_attempts=30, first_delay_seconds=0.02, max_delay_seconds=2.0, total_seconds=600.0
)
"""The default limits of a commit, including all of its requests. An attempt loses only to a commit
that succeeded, so concurrent writers always make progress; random waits keep them from colliding
again immediately.
"""

BeforeAttempt = Callable[[Manifest | None], str | None]
"""Checks the newest version (None: no table yet) before each attempt. If it returns a reason, there
is nothing to commit; if it raises an error, the commit fails.
"""

ConfigEntries = Callable[[Manifest | None, int], Mapping[str, str]]
"""Returns the config entries of the commit, given the newest version (None: no table yet) and the
number of the new one. Called in each attempt, so that an entry that several writers change can be
derived from the newest version.
"""


def commit(
    log: VersionLog,
    transaction: Transaction,
    *,
    planned_on: Manifest | None = None,
    creation: Creation | None = None,
    before_attempt: BeforeAttempt | None = None,
    config_entries: ConfigEntries | None = None,
    retries: RetryPolicy = POLICY,
    environment: Environment = MACHINE,
) -> CommittedTransaction | NothingToCommit:
    """Make a transaction the next version of a table.

    Args:
        log: The table's version log.
        transaction: The transaction. If the same one (by uuid) is committed twice, it is applied
            once, unless the versions since it was planned have been cleaned up.
        planned_on: The version on which it was planned, as it was read then; version 0 for a table
            that does not exist yet. None if only the number of the version is known.
        creation: Properties of a new table; for a transaction with read version 0.
        before_attempt: Called in every attempt with the newest version; see `BeforeAttempt`.
        config_entries: Called in every attempt; see `ConfigEntries`.
        retries: The limits of the whole commit, which is retried when another writer was faster.
        environment: The clock and randomness.

    Returns:
        The new version, or the reason why there was nothing to do.

    Raises:
        RetryableConflictError: The operation must be planned again on the newest version; or other
            writers were faster in every attempt.
        IncompatibleConflictError: The operation no longer means the same.
        TableReplacedError: The table is not the one on which the operation was planned.
        CommitUncertainError: It is unknown whether the version was published.
        StoreRefusedError: The store refused; nothing was committed.
        StoreUnavailableError: The store did not answer; nothing was committed.
        NotFoundError: The table does not exist, or no longer exists.
        BadDataError: The newest manifest is damaged, or has a feature that this library cannot
            write; or a directory of the table is a link.
        InvalidInputError: The table's versions are not published in this log.
    """
    check_is_in_table(log.store, VERSIONS_DIRECTORY, "a version")
    rebased: list[Fragment] = []
    try:
        with Retrying(retries, environment) as attempts:
            outcome = _attempt(
                log,
                transaction,
                planned_on,
                creation,
                before_attempt,
                config_entries,
                attempts,
                environment,
                rebased,
            )
    except CommitUncertainError:
        raise
    except LanceStreamError:  # certainly not committed
        delete_deletion_files(log.store, rebased)
        raise
    unused = [fragment for fragment in rebased if not _is_in(fragment, outcome.manifest)]
    delete_deletion_files(log.store, unused)
    return outcome


def _is_in(rebased: Fragment, manifest: Manifest | None) -> bool:
    """Return whether a version has the deletion file that a rebase has written."""
    fragment = manifest.fragments.by_id(rebased.id) if manifest else None
    return fragment is not None and fragment.deletion_file == rebased.deletion_file


def _attempt(
    log: VersionLog,
    transaction: Transaction,
    planned_on: Manifest | None,
    creation: Creation | None,
    before_attempt: BeforeAttempt | None,
    config_entries: ConfigEntries | None,
    attempts: Retrying,
    environment: Environment,
    rebased: list[Fragment],
) -> CommittedTransaction | NothingToCommit:
    """Attempt the commit until it succeeds or fails; see `commit`.

    Args:
        log: The table's version log.
        transaction: The transaction.
        planned_on: See `commit`.
        creation: See `commit`.
        before_attempt: See `commit`.
        config_entries: See `commit`.
        attempts: The remaining attempts, with a delay before each but the first.
        environment: The clock and randomness.
        rebased: Receives a fragment for every deletion file that a rebase writes.
    """
    checked = transaction.read_version
    last_read = planned_on if planned_on is not None and planned_on.version else None
    file = _write_transaction(log, transaction, environment)
    for attempt in attempts:
        state = _read_state(log, transaction)
        newest = state.newest if state else None
        if state is not None and last_read is not None:
            check_is_same_table(log, state, last_read)
        if before_attempt is not None and (reason := before_attempt(newest)) is not None:
            return NothingToCommit(newest, reason)
        log.check_may_follow(newest)
        if state is not None and state.newest.version > checked:
            verdict = _check_since(log, transaction, checked, state)
            if isinstance(verdict, NothingToCommit):
                return verdict
            if verdict is ConflictVerdict.REBASE:
                transaction = rebase_transaction(
                    log, transaction, state.newest, environment.random_id, rebased
                )
            checked = state.newest.version
        last_read = newest
        if file.transaction is not transaction:
            file = _write_transaction(log, transaction, environment)
        if planned_on is not None:
            check_files_exist(log.store, transaction.operation)
        manifest = _next_version(log, newest, file, creation, config_entries, environment)
        data = encode_manifest(manifest)
        if publish_and_confirm(log, manifest.version, data, file.name, environment):
            log.remember(manifest, data)
            return CommittedTransaction(manifest, attempt)
    name = operation_name(transaction.operation)
    raise RetryableConflictError(
        f"other writers were faster in every attempt to commit this {name}: {attempts}. Try again, "
        "or let fewer writers commit at the same time",
        checked + 1,
    )


def read_transaction(log: VersionLog, manifest: Manifest) -> Transaction | None:
    """Return the transaction that created a version; None if it is missing or cannot be read."""
    try:
        data = manifest.inline_transaction
        if data is None and manifest.transaction_file:
            data = log.store.read(transaction_path(manifest.transaction_file))
        return None if data is None else decode_transaction(data)
    except (NotFoundError, BadDataError):
        return None


@dataclass(frozen=True, slots=True)
class _TransactionFile:
    transaction: Transaction
    name: str
    data: bytes


def _read_state(log: VersionLog, transaction: Transaction) -> LogState | None:
    try:
        state = log.read_state()
    except NotFoundError:
        if transaction.read_version == 0:
            return None
        raise
    if state.newest.version < transaction.read_version:
        raise table_replaced_error(log.store.uri, transaction.read_version, state.newest.version)
    return state


def _check_since(
    log: VersionLog, transaction: Transaction, checked: int, state: LogState
) -> ConflictVerdict | NothingToCommit:
    """Check our transaction against those of all versions after `checked`."""
    verdict = ConflictVerdict.YES
    for version in range(checked + 1, state.newest.version + 1):
        theirs = _transaction_of(log, version, state)
        if theirs is not None and theirs.uuid == transaction.uuid:
            return NothingToCommit(
                state.newest, f"this transaction was already committed as version {version}"
            )
        if check(transaction, theirs, version) is ConflictVerdict.REBASE:
            verdict = ConflictVerdict.REBASE
    return verdict


def _transaction_of(log: VersionLog, version: int, state: LogState) -> Transaction | None:
    try:
        is_newest = version == state.newest.version
        manifest = state.newest if is_newest else log.read(version, state.etags.get(version, ""))
    except (NotFoundError, BadDataError):
        return None
    return read_transaction(log, manifest)


def _write_transaction(
    log: VersionLog, transaction: Transaction, environment: Environment
) -> _TransactionFile:
    """Write the transaction's file under a name that no other transaction has.

    The uuid of a sink's transaction is derived from the app id and batch id, so two drivers that
    write the same batch would use the same name; the second one chooses another. If the store
    cannot create a name only once, every writer chooses a random one.

    The file need not survive a power failure if the manifest has a copy, since the manifest is
    flushed: see docs/decisions/036-flushing.md.
    """
    store = log.store
    data = encode_transaction(transaction)
    if not log.creates_names_once:
        name = _random_name(transaction, environment)
        store.write(transaction_path(name), data)
        return _TransactionFile(transaction, name, data)
    name = transaction_file_name(transaction.read_version, transaction.uuid)
    for _ in range(_MAX_NAMES):
        if store.create_once(transaction_path(name), data, flush=not _is_inline(data)):
            return _TransactionFile(transaction, name, data)
        with suppress(NotFoundError):
            # This call created the file, but the answer was lost.
            if store.read(transaction_path(name)) == data:
                return _TransactionFile(transaction, name, data)
        name = _random_name(transaction, environment)
    raise StoreUnavailableError(
        f"the file of this {operation_name(transaction.operation)}'s transaction cannot be created "
        f"at {store.uri}: the store reported that {_MAX_NAMES} names exist that no other writer "
        f"uses, the last one {transaction_path(name)!r}. Nothing was committed"
    )


def _is_inline(data: bytes) -> bool:
    """Return whether the manifest has a copy of a transaction."""
    return len(data) <= MAX_INLINE_TRANSACTION_BYTES


def _random_name(transaction: Transaction, environment: Environment) -> str:
    return transaction_file_name(
        transaction.read_version, f"{transaction.uuid}-{environment.random_id():016x}"
    )


def _next_version(
    log: VersionLog,
    newest: Manifest | None,
    file: _TransactionFile,
    creation: Creation | None,
    config_entries: ConfigEntries | None,
    environment: Environment,
) -> Manifest:
    version = newest.version + 1 if newest else 1
    operation = file.transaction.operation
    restored = log.read(operation.version) if isinstance(operation, Restore) else None
    return apply(
        with_sequences(log.store, with_counts(log.store, newest), operation) if newest else None,
        operation,
        Commit(
            timestamp_nanos=environment.now_nanos(),
            transaction_file=file.name,
            inline_transaction=(file.data if _is_inline(file.data) else None),
            writer_version=WriterVersion(WRITER_LIBRARY, VERSION),
            config_entries={
                **(config_entries(newest, version) if config_entries else {}),
                **log.mark,
            },
        ),
        creation,
        with_counts(log.store, restored) if restored else None,
    )
