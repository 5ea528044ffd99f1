"""Migrates between ways of publishing versions: the table's directory, and manifest stores.

    from                      to                 steps
    the directory             a manifest store   set the storage option; from the first commit on,
                                                 our writers without it are rejected
    a manifest store          the directory      leave_manifest_store, with the storage option
    a manifest store          another one        leave the first one, then set the option to the
                                                 other one
    a store that no longer    a new store, or    claim_versions, with the new storage option or
    exists; a table that      the directory      without any
    was moved or copied
    a deleted table           nothing            forget_versions, with the storage option

No writers need to be stopped if the store can create a name once: the final name of a version
decides between writers that publish in different ways.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import ExternalVersions, VersionLog
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.snapshot.opening import newest_version_of, open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.manifest_store_mark import CONFIG_KEY
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.write.planning import commit_planned, replan_on_conflict


def leave_manifest_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> int:
    """Publish the versions of a table in its own directory from now on.

    The manifest store publishes one last version, which records this, and then forgets the table.
    Writers continue without the storage option; a writer that still has it moves the table back. If
    the call is interrupted, repeat it.

    Args:
        uri: The table's location, as its writers have specified it so far.
        storage_options: Settings of the store, with the manifest store, as its writers have
            specified them so far.

    Returns:
        The newest version: the last one that the manifest store has published.

    Raises:
        InvalidInputError: Neither the URI nor the options name a manifest store.
        NotFoundError: The table does not exist.
        CommitError: The last version could not be committed.
    """
    table = open_newest(uri, storage_options)
    log = _external(table.log)
    version = _publish_with_mark(table, log.unmarked())
    log.forget(through=version.version)
    return version.version


def claim_versions(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> int:
    """Publish the versions of a table where these arguments say, whatever its newest version says.

    Use this for a table that was moved or copied, or whose manifest store no longer exists. Make
    sure that no writer still publishes in the old way: a version that the old manifest store has
    published, but whose manifest does not have its final name yet, is lost.

    Args:
        uri: The table's location.
        storage_options: Settings of the store; with the new manifest store, or without one to
            publish in the table's directory.

    Returns:
        The newest version, which records where versions are published from now on.

    Raises:
        NotFoundError: The table does not exist.
        CommitError: The version could not be committed.
    """
    table = open_newest(uri, storage_options)
    log = table.log
    external = log.external
    is_empty = external is not None and external.manifests.latest(external.base_uri) is None
    return _publish_with_mark(table, log.claiming(), is_needed=is_empty).version


def forget_versions(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> None:
    """Remove a deleted table from its manifest store, so that it can be re-created.

    Args:
        uri: The table's former location, as its writers specified it.
        storage_options: Settings of the store, with the manifest store, as its writers specified
            them.

    Raises:
        InvalidInputError: Neither the URI nor the options name a manifest store; or the table still
            exists.
    """
    log = _external(open_log(uri, storage_options))
    try:
        newest = ObjectStoreLog(log.store).latest()
    except NotFoundError:
        log.forget()
        return
    raise InvalidInputError(
        f"the table at {log.store.uri} exists, at version {newest}, and needs its manifest "
        "store. Delete the table first, or move its versions with leave_manifest_store()"
    )


def _external(log: VersionLog) -> ExternalVersions:
    if log.external is not None:
        return log.external
    raise InvalidInputError(
        f"{log.store.uri} has no manifest store: set the storage option manifest_store, or use a "
        "URI that begins with s3+ddb://, like its writers"
    )


def _publish_with_mark(
    table: TableVersion, log: VersionLog, *, is_needed: bool = False
) -> TableVersion:
    """Return the newest version, after committing one with the log's mark unless it has the mark.

    Args:
        table: Any version.
        log: Publishes the version; its mark may be empty.
        is_needed: Whether to commit a version even if the newest one has the mark.
    """

    def attempt() -> TableVersion:
        newest = newest_version_of(replace(table, log=log))
        if newest.manifest.config.get(CONFIG_KEY) == log.mark.get(CONFIG_KEY) and not is_needed:
            return newest
        operation = UpdateConfig(config=MapUpdate(((CONFIG_KEY, None),)))
        return commit_planned(newest, operation).table

    return replan_on_conflict(attempt)
