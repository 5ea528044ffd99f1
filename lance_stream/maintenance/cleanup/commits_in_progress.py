"""Commits in progress, which protect recent versions from a cleanup.

A writer publishes the version after the one that it has read. If another writer has published this
version meanwhile, there is a conflict. But if this version was then removed, its name is free
again, and the writer would publish an old version number. So recent versions are kept while a
commit that may have started before them is in progress: while there is a recent transaction file
that no version references. The committer writes this file before it reads the newest version.

A transaction file with an unknown name counts as a commit in progress.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from lance_stream.environment import Environment
from lance_stream.errors import NotFoundError
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import (
    TRANSACTIONS_DIRECTORY,
    VERSIONS_DIRECTORY,
    parse_transaction_file_name,
    transaction_path,
)

COMMIT_GRACE: Final = timedelta(minutes=10)
"""The maximum duration of a commit, from writing the transaction file."""


class CommitsInProgress:
    """The commits that may be in progress.

    Args:
        table: Any version.
        rules: Whether there may be writers.
        environment: The clock.
    """

    def __init__(self, table: TableVersion, rules: CleanupRules, environment: Environment) -> None:
        self._table = table
        self._recent_after = environment.now_nanos() / 1e9 - COMMIT_GRACE.total_seconds()
        files = [] if rules.delete_unverified else table.store.list(VERSIONS_DIRECTORY)
        self._recent_manifests = {file.path for file in files if file.modified > self._recent_after}

    def last_removable(self, versions: Sequence[int], removed: Collection[str]) -> float:
        """Return the version after which all versions must be kept; infinity if there is none.

        Only recent versions can be published again: a writer that read the newest version longer
        ago has finished or failed.

        Args:
            versions: The versions that were selected for removal.
            removed: The names of transaction files of removed versions.
        """
        path = self._table.log.manifest_path
        if not any(path(version) in self._recent_manifests for version in versions):
            return math.inf
        started = {
            file.path: read_version
            for file in self._table.store.list(TRANSACTIONS_DIRECTORY)
            if file.modified > self._recent_after
            and file.path not in removed
            and file.path.endswith(".txn")
            and (read_version := _read_version(file.path)) < versions[-1]
        }
        # The newest first: most transactions of the last minutes belong to the last versions.
        for version in reversed(self._table.log.versions() if started else []):
            if version <= min(started.values(), default=math.inf):
                break
            with suppress(NotFoundError):
                started.pop(_transaction_of(self._table.log.read(version)), None)
        return min(started.values(), default=math.inf)


def _read_version(path: str) -> int:
    """Return the version that a transaction was planned on; 0 if unknown."""
    parsed = parse_transaction_file_name(path.rpartition("/")[2])
    return 0 if parsed is None else parsed[0]


def _transaction_of(manifest: Manifest) -> str:
    return transaction_path(manifest.transaction_file) if manifest.transaction_file else ""
