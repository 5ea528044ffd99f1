"""Lets pylance build index files, and returns the operation that would commit them.

pylance builds and commits in one call. A pylance dataset may have a commit lock, which it acquires
before it publishes a version. By then the index files and the transaction file exist. We read the
transaction and refuse the lock: pylance deletes its transaction file and commits nothing, and our
committer publishes the operation.

    pylance    write _indices/{uuid}/*   write _transactions/{version}-{uuid}.txn   acquire the lock
    here                                                                            read it, refuse

All segments of an index are merged into one. If pylance adds a segment to a BITMAP, LABEL_LIST or
INVERTED index, it finds changed rows by their old values, even after a later merge (decision 048).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from lance_stream.errors import (
    BadDataError,
    IndexBuildError,
    InvalidInputError,
    NotFoundError,
    RetryableConflictError,
)
from lance_stream.storage.extras import is_installed, requires_extra
from lance_stream.storage.store import Store
from lance_stream.table.operations.transaction import Transaction, decode_transaction
from lance_stream.table.operations.versions import CreateIndex
from lance_stream.table.paths import (
    TRANSACTIONS_DIRECTORY,
    index_folder,
    parse_transaction_file_name,
    transaction_path,
)
from lance_stream.write.planning import StagedFiles

_ALL_SEGMENTS: Final = 1 << 20
UNCHANGED: Final = (
    "pylance left it unchanged: it cannot read its files (see its log on stderr), or there are too "
    "few rows to train it"
)
"""The problem of an index of which pylance says nothing."""

_CONFLICTS: Final = ("commit conflict", "Incompatible transaction")


@dataclass(frozen=True)
class BuildRequest:
    """What to build.

    Attributes:
        uri: The table's directory, in pylance's form.
        storage_options: pylance's settings.
        version: The version to build from.
        names: The indices.
        retrain: Whether to train vector indices again, from all rows.
    """

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    version: int
    names: tuple[str, ...]
    retrain: bool = False


def check_pylance() -> None:
    """Check that pylance is installed, without importing it.

    Raises:
        InvalidInputError: It is missing; the message says how to install it.
    """
    if not is_installed("lance"):
        raise InvalidInputError("updating indices needs pylance: pip install 'lance-stream[index]'")


@dataclass(frozen=True)
class Built:
    """Indices whose files were written, and indices that could not be built.

    Attributes:
        transaction: Commits the former; None if nothing was built.
        problems: By name, why an index could not be built.
    """

    transaction: Transaction | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The names of the indices that were built."""
        return frozenset(index.name for index in self.operation.new_indices)

    @property
    def operation(self) -> CreateIndex:
        """What the transaction does."""
        if self.transaction is None:
            return CreateIndex(())
        operation = self.transaction.operation
        assert isinstance(operation, CreateIndex)
        return operation

    def merged_with(self, other: "Built") -> "Built":
        """Return the indices of both, as one transaction."""
        if self.transaction is None or other.transaction is None:
            transaction = self.transaction or other.transaction
        else:
            ours, theirs = self.operation, other.operation
            operation = CreateIndex(
                ours.new_indices + theirs.new_indices,
                ours.removed_indices + theirs.removed_indices,
            )
            transaction = replace(self.transaction, operation=operation)
        return Built(transaction, {**self.problems, **other.problems})


def build(request: BuildRequest, store: Store) -> Built:
    """Write the files of indices that are up to date with a version; commit nothing.

    Indices are built separately, so that a damaged one does not block the others.

    Args:
        request: What to build.
        store: The table's directory.

    Raises:
        RetryableConflictError: Other writers moved rows since the version, or update indices at
            the same time. No files remain.
        IndexBuildError: pylance cannot open the table.
        InvalidInputError: It is not installed.
    """
    with requires_extra("index", "bringing indices up to date"):
        import lance
    commit_lock = _CommitLock(request.version, store)
    try:
        dataset: Any = lance.dataset(
            request.uri,
            version=request.version,
            storage_options=dict(request.storage_options),
            commit_lock=commit_lock.lock,
        )
    except Exception as error:
        raise IndexBuildError(
            f"pylance could not open version {request.version} of {request.uri}: {error}. Its "
            "indices are unchanged"
        ) from error
    options = {"retrain": True} if request.retrain else {"num_indices_to_merge": _ALL_SEGMENTS}
    built = Built()
    try:
        for name in request.names:
            with commit_lock.capture(name) as results:
                dataset.optimize.optimize_indices(index_names=[name], **options)
            built = built.merged_with(*results)
    except BaseException:
        delete_files(built, store)
        raise
    return built


def delete_files(built: Built, store: Store) -> None:
    """Delete the files of indices that are not committed. Best effort."""
    StagedFiles(others=file_paths(built)).delete(store)


def file_paths(built: Built) -> tuple[str, ...]:
    """Return the paths of the files of indices that were built."""
    return tuple(
        f"{index_folder(index.uuid)}/{file.path}"
        for index in built.operation.new_indices
        for file in index.files
    )


class _CommitLock:
    """Captures pylance's transactions in its commit lock.

    Args:
        version: The version that indices are built from.
        store: The table's directory.
    """

    def __init__(self, version: int, store: Store) -> None:
        self._version, self._store = version, store
        self._old_names: set[str] = set()
        self._transaction: Transaction | None = None
        self._problem: BaseException | None = None

    def lock(self, _version: int) -> NoReturn:
        try:
            self._transaction = _read_transaction(self._store, self._version, self._old_names)
        except BaseException as error:  # pylance would hide it, even a KeyboardInterrupt
            self._problem = error
        raise _RefusedError

    @contextmanager
    def capture(self, name: str) -> Iterator[list[Built]]:
        """Append to the list what pylance builds, or why it fails, in the block.

        Args:
            name: The index that pylance updates in the block.
        """
        results: list[Built] = []
        self._old_names = _transaction_names(self._store, self._version)
        self._transaction = self._problem = None
        cause = UNCHANGED
        try:
            yield results
        except BaseException as error:
            if self._problem is not None:
                raise self._problem from error
            if self._transaction is None:
                cause = _cause_of(error, self._version)
        problems = {name: cause} if self._transaction is None else {}
        results.append(Built(self._transaction, problems))


class _RefusedError(Exception):
    """The lock is refused."""


def _cause_of(error: BaseException, version: int) -> str:
    """Return why an index cannot be built.

    Raises:
        RetryableConflictError: Other writers moved its rows.
        BaseException: The error is not pylance's.
    """
    # A panic in Rust is not an Exception.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    if any(conflict in str(error) for conflict in _CONFLICTS):
        raise RetryableConflictError(
            f"other writers moved or replaced rows of version {version} while indices were built "
            "from it. Start again from the newest version",
            version,
        ) from error
    return f"{error}"


def _transaction_names(store: Store, version: int) -> set[str]:
    """Return the names of the transactions that were planned on a version."""
    names = set()
    for name in store.list_names(TRANSACTIONS_DIRECTORY):
        parsed = parse_transaction_file_name(name)
        if parsed is not None and parsed[0] == version:
            names.add(name)
    return names


def _read_transaction(store: Store, version: int, old_names: set[str]) -> Transaction:
    """Return pylance's transaction: the only one of an index whose file name is new."""
    transactions = []
    for name in sorted(_transaction_names(store, version) - old_names):
        try:
            transaction = decode_transaction(store.read(transaction_path(name)))
        except (NotFoundError, BadDataError):
            continue  # of another writer: half written, or already deleted
        if isinstance(transaction.operation, CreateIndex):
            transactions.append(transaction)
    if len(transactions) == 1:
        return transactions[0]
    raise RetryableConflictError(
        f"{len(transactions)} programs update indices from version {version} at the same "
        "time. Let one of them do it",
        version,
    )
