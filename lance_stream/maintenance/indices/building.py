"""Has pylance make the files of indices, and returns the operation that would commit them.

pylance brings indices up to date and commits in one call. A dataset of it may be given a lock that
it takes before it publishes a version; when it asks for the lock, the files of the indices are
there, and so is the file of its transaction. We read that, and refuse the lock: pylance deletes the
transaction and commits nothing. The operation is ours then, for our own committer.

    pylance    write _indices/{uuid}/*   write _transactions/{version}-{uuid}.txn   ask for the lock
    here                                                                            read it, refuse

All parts of an index are merged into one. If the reference leaves a part of a BITMAP, LABEL_LIST or
INVERTED index as it is beside a new one, it finds changed rows by the values that they had before,
and merging later does not mend that: measured in docs/notes/048-fresh-indices.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from lance_stream.errors import (
    BadDataError,
    IndexBuildError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
)
from lance_stream.storage.extras import brought_by, is_installed
from lance_stream.storage.store import Store
from lance_stream.table.operations import CreateIndex
from lance_stream.table.paths import (
    TRANSACTIONS_DIRECTORY,
    parse_transaction_file_name,
    transaction_path,
)
from lance_stream.table.transaction import Transaction, decode_transaction

_ALL_PARTS: Final = 1 << 20
_CONFLICTS: Final = ("commit conflict", "Incompatible transaction")


@dataclass(frozen=True)
class BuildRequest:
    """What to build.

    Attributes:
        uri: The table's directory, as pylance has it.
        storage_options: pylance's settings.
        version: The version to build from.
        names: The indices.
        retrain: Whether vector indices are trained anew, from all rows.
    """

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    version: int
    names: tuple[str, ...]
    retrain: bool = False


def check_pylance() -> None:
    """Raise unless pylance is installed; does not import it.

    Raises:
        InvalidInputError: It is missing; the message says how to install it.
    """
    if not is_installed("lance"):
        raise InvalidInputError(
            "bringing indices up to date needs pylance: pip install 'lance-stream[index]'"
        )


def build(request: BuildRequest, store: Store) -> Transaction | None:
    """Write the files of indices that are up to date with a version; commit nothing.

    Args:
        request: What to build.
        store: The table's directory.

    Returns:
        pylance's transaction, a CreateIndex; None if there is nothing to do.

    Raises:
        RetryableConflictError: Others have moved rows since the version, or bring indices up to
            date at the same time.
        IndexBuildError: pylance failed.
        InvalidInputError: It is not installed.
    """
    with brought_by("index", "bringing indices up to date"):
        import lance
    known = _names(store, request.version)
    found: list[Transaction] = []
    problems: list[Exception] = []

    def lock(_version: int) -> NoReturn:
        try:
            found.append(_newest(store, request.version, known))
        except Exception as error:  # pylance would hide it behind one of its own
            problems.append(error)
        raise _RefusedError

    try:
        dataset: Any = lance.dataset(
            request.uri,
            version=request.version,
            storage_options=dict(request.storage_options),
            commit_lock=lock,
        )
        how = {"retrain": True} if request.retrain else {"num_indices_to_merge": _ALL_PARTS}
        dataset.optimize.optimize_indices(index_names=list(request.names), **how)
    except Exception as error:
        if problems:
            raise problems[0] from error
        if not found:
            raise _explained(error, request) from error
    return found[0] if found else None


class _RefusedError(Exception):
    """The lock is refused."""


def _explained(error: Exception, request: BuildRequest) -> LanceStreamError:
    if any(each in str(error) for each in _CONFLICTS):
        return RetryableConflictError(
            f"rows of version {request.version}, from which indices were brought up to date, were "
            "moved or replaced by others meanwhile. Start again from the newest version",
            request.version,
        )
    return IndexBuildError(
        f"pylance could not bring the indices {', '.join(request.names)} of version "
        f"{request.version} up to date: {error}. The table is unchanged. If an index is damaged, "
        "create it again with pylance"
    )


def _names(store: Store, version: int) -> set[str]:
    """Return the names of the transactions that were planned on a version."""
    found = set()
    for name in store.list_names(TRANSACTIONS_DIRECTORY):
        parsed = parse_transaction_file_name(name)
        if parsed is not None and parsed[0] == version:
            found.add(name)
    return found


def _newest(store: Store, version: int, known: set[str]) -> Transaction:
    """Return pylance's transaction, whose file it has written since some names were known."""
    found = []
    for name in sorted(_names(store, version) - known):
        try:
            transaction = decode_transaction(store.read(transaction_path(name)))
        except (NotFoundError, BadDataError):
            continue  # another writer's: half written, or deleted again
        if isinstance(transaction.operation, CreateIndex):
            found.append(transaction)
    if len(found) == 1:
        return found[0]
    raise RetryableConflictError(
        f"{len(found)} programs bring indices up to date from version {version} at the same time. "
        "Let one of them do it",
        version,
    )
