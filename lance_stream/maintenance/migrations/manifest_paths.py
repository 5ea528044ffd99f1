"""Renames the manifests of a table from naming scheme V1 to V2.

    1.manifest    becomes    18446744073709551614.manifest
    2.manifest               18446744073709551613.manifest

V2 names sort the newest version first, so that opening a table costs one short listing, however
long its history is. The newest version is renamed first. Each manifest is copied to its new name,
which is created once, and then deleted under the old one. So every version has a name at any time.

During the migration there are names of both schemes, and programs refuse to open the table. Those
that list only the first few names of a bucket open the newest version, correctly.

Source:  the table format's "Manifest Naming Schemes"; the reference's `migrate_manifest_paths_v2`.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.maintenance.links import check_no_links
from lance_stream.storage.store import Store, create_if_absent
from lance_stream.table.manifest import decode_manifest
from lance_stream.table.paths import (
    VERSIONS_DIRECTORY,
    NamingScheme,
    manifest_path,
    parse_manifest_name,
)

_ROUNDS: Final = 5


def migrate_manifest_paths(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> int:
    """Rename the manifests of a table so that one short listing finds its newest version.

    Only tables of old writers need this: the tables, branches and clones that this library creates
    have such names. No version is committed or changed.

    Stop all writers and cleanups first. Until the migration has finished, readers fail because the
    manifests have names of both schemes, and a writer that opened the table before could commit a
    version under an old name. Such a version is renamed, too, unless another writer has committed
    the same version under a new name: then both files are kept, and the error names them. If the
    migration is killed, call it again. Concurrent migrations are safe.

    Args:
        uri: The location of the table, or of a branch: a path or URI.
        storage_options: Settings of the store.

    Returns:
        The number of renamed versions; 0 if no name was of the old scheme.

    Raises:
        NotFoundError: The table does not exist.
        InvalidInputError: The versions are published in an external manifest store, whose items
            contain the names: call `leave_manifest_store` first.
        CorruptDataError: A version has two different manifests; neither was deleted.
        UnsupportedFeatureError: The manifests are reached through a link, and may belong to another
            table.
    """
    log = open_log(uri, storage_options)
    if log.external is not None:
        raise InvalidInputError(
            f"the versions of {log.store.uri} are published in a manifest store, which contains "
            "the names of the manifests: they cannot be renamed. To stop using it, call "
            "lance_stream.leave_manifest_store(), and then rename them"
        )
    check_no_links(log.store, (VERSIONS_DIRECTORY,))
    renamed: set[int] = set()
    for _ in range(_ROUNDS):
        versions = _versions_to_rename(log, is_first=not renamed)
        if not versions:
            break
        for version in versions:
            if _rename(log.store, version):
                renamed.add(version)
    return len(renamed)


def _versions_to_rename(log: VersionLog, *, is_first: bool) -> list[int]:
    """Return the versions with a V1 name, newest first.

    Raises:
        NotFoundError: The table does not exist.
        InvalidInputError: The versions are published in a manifest store.
    """
    names = log.store.list_names(VERSIONS_DIRECTORY)
    parsed = [name for name in map(parse_manifest_name, names) if name is not None]
    if not parsed:
        raise NotFoundError(f"there is no dataset at {log.store.uri}")
    if is_first:
        newest = max(parsed, key=lambda name: name.version)
        data = log.store.read(manifest_path(newest.version, newest.scheme))
        log.check_may_follow(decode_manifest(data))
    old = [name.version for name in parsed if name.scheme is NamingScheme.V1]
    return sorted(old, reverse=True)


def _rename(store: Store, version: int) -> bool:
    """Rename a manifest; return False if it no longer has its old name.

    Raises:
        CorruptDataError: A different manifest has the new name.
    """
    old, new = (manifest_path(version, scheme) for scheme in (NamingScheme.V1, NamingScheme.V2))
    try:
        data = store.read(old)
    except NotFoundError:
        return False
    if not create_if_absent(store, new, data) and store.read(new) != data:
        raise CorruptDataError(
            f"version {version} of {store.uri} exists twice, as {old} and as {new}, with different "
            "content: two writers committed it during the migration, one under each name. Neither "
            "was deleted. Readers will see the one that you keep: compare both, move the other "
            "file out of the table, and repeat lance_stream.migrate_manifest_paths(uri). Then "
            "write the rows of the other one again"
        )
    store.delete(old)
    return True
