"""Publishes a version, and resolves ambiguous responses: was our version published?

A store client repeats a request whose answer was lost, and may then find the file that it has
created itself. And a store may return an error after it created the file. In both cases the
published manifest is read: it names our transaction file or another one. Transactions do not share
that name, because it is created once.

    published           yes
    taken, or error     yes, if it is ours; no, if it is another writer's
                        nothing exists: the same bytes are published again, which is harmless if the
                        first request arrives late
                        cannot be read: unknown
    refused             yes, if it is ours after all; no, if it is another writer's
                        nothing exists, or reading it is refused, too: the refusal is raised
    aborted             unknown if an earlier answer was unclear; otherwise not published (see
                        `commit_groups`)
"""

from typing import Final

from lance_stream.commit.version_log import VersionLog
from lance_stream.environment import Environment
from lance_stream.errors import (
    CommitAbortedError,
    CommitUncertainError,
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    UnsupportedFeatureError,
)
from lance_stream.retries import Retrying, RetryPolicy

_POLICY: Final = RetryPolicy(4, first_delay_seconds=0.04, max_delay_seconds=2.0)
"""The attempts to publish a version without a clear answer; their time is limited by the commit."""


def publish_and_confirm(
    log: VersionLog,
    version: int,
    manifest: bytes,
    transaction_file: str,
    environment: Environment,
) -> bool:
    """Publish a version, and return whether it is ours.

    Args:
        log: The table's version log.
        version: The version.
        manifest: The bytes of its manifest.
        transaction_file: The name of our transaction's file in the manifest.
        environment: The clock and randomness.

    Returns:
        True if the version is ours; False if it is another writer's.

    Raises:
        CommitUncertainError: The outcome is unknown. Nothing was deleted.
        StoreRefusedError: The store refused, and the version does not exist.
        UnsupportedFeatureError: The store cannot publish; nothing was written.
    """
    failure: Exception | None = None
    is_unclear = False
    attempts = Retrying(_POLICY, environment)
    for _ in attempts:
        try:
            if log.publish(version, manifest):
                return True
            failure = None
        except (UnsupportedFeatureError, InvalidInputError):
            raise
        except CommitAbortedError as error:
            if not is_unclear:
                raise
            raise CommitUncertainError(
                f"version {version} of {log.store.uri} may or may not have been published: the "
                f"store gave no clear answer ({failure!r}), and then {error}. Nothing was deleted; "
                "committing the same transaction again is safe"
            ) from error
        except Exception as error:  # a store may raise any error
            failure = error
        refusal = failure if isinstance(failure, StoreRefusedError) and not is_unclear else None
        is_unclear = refusal is None
        owner = _transaction_file_of(log, version, refusal)
        if owner is not None:
            return owner == transaction_file
        if refusal is not None:
            raise refusal
    raise CommitUncertainError(
        f"version {version} of {log.store.uri} may or may not have been published: the store "
        f"answered {failure or 'that it is taken'!r}, but the version does not exist. Nothing was "
        f"deleted. Check again later: if version {version} names the transaction "
        f"{transaction_file!r}, it was committed; committing the same transaction again is safe"
    ) from failure


def _transaction_file_of(
    log: VersionLog, version: int, refusal: StoreRefusedError | None
) -> str | None:
    """Return the name of a version's transaction file; None if the version does not exist.

    Args:
        log: The table's version log.
        version: The version.
        refusal: The store's refusal to publish it; None if the answer was unclear.

    Raises:
        CommitUncertainError: The version cannot be read.
        StoreRefusedError: The store refused both to publish and to read it.
    """
    try:
        return log.read(version).transaction_file
    except NotFoundError:
        return None
    except Exception as error:
        if refusal is not None and isinstance(error, StoreRefusedError):
            raise refusal from error
        raise CommitUncertainError(
            f"version {version} of {log.store.uri} may or may not be ours: the store reported it "
            f"as taken, or gave no clear answer, and its manifest cannot be read ({error!r}). "
            "Nothing was deleted. Check again later; committing the same transaction again is safe"
        ) from error
