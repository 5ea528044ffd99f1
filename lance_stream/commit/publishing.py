"""Did our version land? What to believe when the store's answer is unclear, or says "taken".

A store client sends a request again when the answer is lost, and then meets its own file: "taken"
may mean that we ourselves took it. An error may come after the file was created. In both cases
the manifest that stands there is read: the name of its transaction file is ours, or it is not.
No two transactions share that name, because it is created once.

    published           yes
    taken, or error     yes, if it is ours; no, if it is another's
                        nothing there: the same bytes are published again, which does no harm if
                        the first request arrives late
                        cannot be read: unknown
    refused             yes, if it is ours after all; no, if it is another's
                        nothing there, or reading it is refused, too: the refusal is the answer
"""

from collections.abc import Callable

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import (
    CommitUncertainError,
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    UnsupportedFeatureError,
)

_TRIES = 4


def publish_and_confirm(
    log: VersionLog,
    version: int,
    manifest: bytes,
    transaction_file: str,
    wait: Callable[[int], None],
) -> bool:
    """Publish a version, and return whether it is ours.

    Args:
        log: The table's history.
        version: The version.
        manifest: The bytes of its manifest.
        transaction_file: The name of our transaction's file, as the manifest states it.
        wait: Waits a while before the given number of the next try.

    Returns:
        True when the version is ours; False when it is another writer's.

    Raises:
        CommitUncertainError: It cannot be known. Nothing was deleted.
        StoreRefusedError: The store said no, and the version is not there.
        UnsupportedFeatureError: The store cannot publish; nothing was written.
    """
    failure: Exception | None = None
    is_unclear = False
    for attempt in range(1, _TRIES + 1):
        if attempt > 1:
            wait(attempt)
        try:
            if log.publish(version, manifest):
                return True
            failure = None
        except (UnsupportedFeatureError, InvalidInputError):
            raise
        except Exception as error:  # any store's own
            failure = error
        refusal = failure if isinstance(failure, StoreRefusedError) and not is_unclear else None
        is_unclear = is_unclear or refusal is None
        owner = _transaction_file_of(log, version, refusal)
        if owner is not None:
            return owner == transaction_file
        if refusal is not None:
            raise refusal
    raise CommitUncertainError(
        f"version {version} of {log.store.uri} may or may not have been published: the store "
        f"answered {failure or 'that it is taken'!r}, but the version is not there. Nothing was "
        f"deleted. Look again later: if version {version} names the transaction "
        f"{transaction_file!r}, it landed; committing the same transaction again is safe"
    ) from failure


def _transaction_file_of(
    log: VersionLog, version: int, refusal: StoreRefusedError | None
) -> str | None:
    """Return which transaction made a version, by the name of its file; None if there is none.

    Args:
        log: The table's history.
        version: The version.
        refusal: What the store said to its publication, if that was a clear no.

    Raises:
        CommitUncertainError: It cannot be read.
        StoreRefusedError: It may not be read, as it may not be published.
    """
    try:
        return log.read(version).transaction_file
    except NotFoundError:
        return None
    except Exception as error:
        if refusal is not None and isinstance(error, StoreRefusedError):
            raise refusal from error
        raise CommitUncertainError(
            f"version {version} of {log.store.uri} may or may not be ours: the store said that it "
            f"is taken, or gave no clear answer, and its manifest cannot be read ({error!r}). "
            "Nothing was deleted. Look again later; committing the same transaction again is safe"
        ) from error
