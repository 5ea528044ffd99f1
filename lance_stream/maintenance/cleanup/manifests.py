"""Reads the manifests of versions that remain, each of which protects the files it references.

Besides the versions of the branch that is cleaned up, these are detached versions, and the versions
of all other branches, including those whose creation or deletion is not finished. An error is
raised if one is listed but cannot be read, or a file may be a manifest under an unknown name,
because the files that it needs are unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import CorruptDataError, NotFoundError
from lance_stream.snapshot.references import Refs, other_branches
from lance_stream.storage.store import NUM_READERS, Store
from lance_stream.table.manifest import Manifest, decode_manifest
from lance_stream.table.paths import (
    BRANCHES_DIRECTORY,
    VERSIONS_DIRECTORY,
    parse_detached_manifest_name,
    parse_manifest_name,
)
from lance_stream.threads import map_ahead

_READ_AHEAD: Final = 16
"""The maximum number of manifests that are read ahead."""

T = TypeVar("T")
U = TypeVar("U")


def read_ahead(store: Store, read: Callable[[T], U], items: Sequence[T]) -> Iterable[U]:
    """Yield the results of a function that reads, in order; reads ahead if that is faster."""
    if store.num_readers <= NUM_READERS:
        return map(read, items)
    return map_ahead(read, items, min(store.num_readers, _READ_AHEAD))


def read_newest_first(log: VersionLog, versions: Sequence[int]) -> Iterator[Manifest]:
    """Yield the manifests of versions, except those that were removed since they were listed.

    Args:
        log: The versions of the table or of a branch.
        versions: Some of them, ascending.

    Raises:
        CorruptDataError: A version is damaged, or listed but missing.
    """
    for version in reversed(versions):
        is_newest = version == versions[-1]
        try:
            manifest = log.read(version)
        except NotFoundError:
            if not is_newest:
                _check_is_removed(log, version)
                continue
            manifest = log.read_latest()
        if is_newest:
            log.check_may_follow(manifest)
        yield manifest


def _check_is_removed(log: VersionLog, version: int) -> None:
    """Check that a missing version was removed after it was listed.

    Raises:
        CorruptDataError: It is still listed, so the files that it needs are unknown.
    """
    if version in log.versions():
        raise CorruptDataError(
            f"version {version} of {log.store.uri} is listed, but its manifest is missing, so "
            "the files that it needs are unknown"
        )


def read_detached(store: Store) -> Iterator[Manifest]:
    """Yield the manifests that are not part of the history.

    Raises:
        CorruptDataError: The name of a possible manifest is unknown.
    """
    paths = [f"{VERSIONS_DIRECTORY}/{name}" for name in store.list_names(VERSIONS_DIRECTORY)]
    check_are_manifests(store, paths)
    for path in paths:
        if parse_detached_manifest_name(path.rpartition("/")[2]) is None:
            continue
        try:
            data = store.read(path)
        except NotFoundError:
            if store.exists(path):
                raise
        else:
            yield decode_manifest(data)


def check_are_manifests(store: Store, paths: Iterable[str]) -> None:
    """Check that all files that look like manifests have known names.

    Raises:
        CorruptDataError: A name is unknown, so the file may be the manifest of a version.
    """
    for path in paths:
        name = path.removeprefix(f"{VERSIONS_DIRECTORY}/")
        if (
            name.endswith(".manifest")
            and "/" not in name
            and parse_detached_manifest_name(name) is None
            and parse_manifest_name(name) is None
            and not name.startswith(".")
        ):
            raise CorruptDataError(
                f"{store.uri}/{path} looks like a manifest of an unknown version, so the files "
                "that it needs are unknown. Nothing was removed. Delete it if it is not a manifest"
            )


def read_other_branches(refs: Refs) -> Iterator[Manifest]:
    """Yield the versions of all other branches, the newest of each branch first.

    Raises:
        CorruptDataError: A branch, or a version of one, is damaged or missing.
    """
    for branch, has_versions in other_branches(refs):
        log = refs.log_of(branch)
        try:
            versions = log.versions()
        except NotFoundError as error:
            if not has_versions:
                continue  # it has no files that readers would treat as a version
            raise CorruptDataError(
                f"{log.store.uri} should have the versions of a branch, but has none, so the files "
                "that they need are unknown. If the branch no longer exists, delete its file in "
                f"{refs.root.uri}/{BRANCHES_DIRECTORY}"
            ) from error
        yield from read_newest_first(log, versions)
        yield from read_detached(log.store)
