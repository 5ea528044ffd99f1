"""What all verbs that write have in common: a transaction's uuid, the commit, planning again."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from lance_stream.commit.committer import (
    BeforeAttempt,
    Committed,
    ConfigEntries,
    Skipped,
    commit,
)
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import RetryableConflictError
from lance_stream.table.apply import Creation
from lance_stream.table.operations import Operation
from lance_stream.table.transaction import Transaction

T = TypeVar("T")

MAX_PLANS: Final = 10
"""How often a verb plans its operation on the newest version before it gives up."""


def commit_operation(
    log: VersionLog,
    read_version: int,
    operation: Operation,
    *,
    transaction_uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
    creation: Creation | None = None,
    before_attempt: BeforeAttempt | None = None,
    config_entries: ConfigEntries | None = None,
) -> Committed | Skipped:
    """Commit an operation that was planned on a version; see `commit.committer.commit`."""
    return commit(
        log,
        Transaction(
            read_version=read_version,
            uuid=transaction_uuid or str(uuid.uuid4()),
            operation=operation,
            properties=dict(properties or {}),
        ),
        creation=creation,
        before_attempt=before_attempt,
        config_entries=config_entries,
    )


def planning_again(attempt: Callable[[], T]) -> T:
    """Run an attempt, which plans on the newest version and commits, until nobody is in the way.

    Raises:
        RetryableConflictError: Others were in the way `MAX_PLANS` times.
    """
    for plan in range(1, MAX_PLANS):
        try:
            return attempt()
        except RetryableConflictError:
            time.sleep(min(0.02 * 2**plan, 1.0))
    return attempt()
