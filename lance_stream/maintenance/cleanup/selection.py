"""Selects the versions to remove, by age and number, and collects the files they reference.

The newest versions are kept, as many as requested; so are recent versions and all after a recent
one, protected ones, and those after the start of a commit in progress.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from lance_stream.commit.version_log import VersionLog
from lance_stream.environment import Environment
from lance_stream.errors import NotFoundError
from lance_stream.maintenance.cleanup.commits_in_progress import CommitsInProgress
from lance_stream.maintenance.cleanup.manifests import read_ahead
from lance_stream.maintenance.cleanup.protections import Protections
from lance_stream.maintenance.cleanup.report import COMMIT_IN_PROGRESS
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.maintenance.cleanup.unreferenced_files import NamesByBase, referenced_names
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.feature_flags import check_writable
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import VERSIONS_DIRECTORY


@dataclass(frozen=True, slots=True)
class Selection:
    """The versions to remove.

    Attributes:
        removable: The versions, ascending.
        referenced: The names of all files that they reference.
        protected: The number of versions that each tag or branch protects.
    """

    removable: list[int]
    referenced: set[str]
    protected: dict[str, int]


def select_versions(
    table: TableVersion,
    versions: Sequence[int],
    rules: CleanupRules,
    protections: Protections,
    commits: CommitsInProgress,
    environment: Environment,
) -> Selection:
    """Select the versions to remove, with the files that they reference.

    Args:
        table: Any version.
        versions: All versions, ascending.
        rules: What to remove.
        protections: The references that protect versions.
        commits: The commits in progress.
        environment: The clock.
    """
    age = rules.older_than
    latest = (
        None if age is None else environment.now_nanos() - age // timedelta(microseconds=1) * 1000
    )
    selection = Selection([], set(), defaultdict(int))
    seen: NamesByBase = defaultdict(set)
    read = partial(_read_if_exists, table.log)
    candidates = versions[: -rules.retain_versions]
    for version, manifest in zip(
        candidates, read_ahead(table.store, read, candidates), strict=False
    ):
        if manifest is None:
            continue  # removed by another cleanup
        if latest is not None and _committed_at(table, manifest) > latest:
            break
        protectors = protections.of(version)
        for protector in protectors:
            selection.protected[protector] += 1
        if not protectors:
            check_writable(manifest)
            selection.removable.append(version)
            selection.referenced.update(referenced_names(manifest, seen, with_bases=False))
    last = commits.last_removable(selection.removable, ())
    removable = [version for version in selection.removable if version <= last]
    if len(removable) < len(selection.removable):
        selection.protected[COMMIT_IN_PROGRESS] = len(selection.removable) - len(removable)
    return replace(selection, removable=removable)


def _read_if_exists(log: VersionLog, version: int) -> Manifest | None:
    with suppress(NotFoundError):
        return log.read(version)
    return None


def _committed_at(table: TableVersion, manifest: Manifest) -> int:
    """Return the time of a version's commit, in nanoseconds since 1970-01-01 UTC."""
    if manifest.timestamp_nanos is not None:
        return manifest.timestamp_nanos
    path = table.log.manifest_path(manifest.version)
    files = table.store.list(VERSIONS_DIRECTORY)
    return max((int(file.modified * 1e9) for file in files if file.path == path), default=0)
