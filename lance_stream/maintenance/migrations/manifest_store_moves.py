"""Migrates between ways of publishing versions: the table's directory, and manifest stores.

    from                     to                 steps
    the directory            a manifest store   set the storage option; from the first commit on
                                                our writers without it are rejected
    a manifest store         the directory      leave_manifest_store, given the store
    a manifest store         another one        leave the first, then set the other
    one that is gone; a      this one, or the   claim_versions, given the new one or none
    table moved or copied    directory
    a deleted table          nothing            forget_versions, given the store

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

    The last version that the manifest store publishes records this; then the store forgets the
    table. Writers continue without the storage option. A writer that still has it moves the table
    back. If killed in the middle, call it again.

    Args:
        uri: The table's location, with its manifest store, as writers have used it so far.
        storage_options: The same.

    Returns:
        The newest version.

    Raises:
        InvalidInputError: No manifest store is given.
        NotFoundError: The table does not exist.
        CommitError: That version could not be committed.
    """
    table = open_newest(uri, storage_options)
    log = _external(table.log)
    version = _publish_with_mark(table, log.unmarked())
    log.forget(through=version.version)
    return version.version


def claim_versions(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> int:
    """Publish the versions of a table as given here, whatever its newest version records.

    Use it for a table that was moved or copied, or whose manifest store is gone. The caller must
    know that there are no writers that publish in the old way: a version that the old manifest
    store has assigned, and whose manifest has no final name yet, is lost.

    Args:
        uri: The table's location.
        storage_options: With the new manifest store, or without any.

    Returns:
        The newest version: one that records how versions are published from now on.

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
    """Make a manifest store forget a deleted table, so that it can be re-created there.

    Args:
        uri: The table's former location, with its manifest store, as for writing.
        storage_options: The same.

    Raises:
        InvalidInputError: No manifest store is given, or the table exists.
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
    """Return a version with a log's mark, or without one; committed by that log if needed.

    Args:
        table: Any version.
        log: Publishes it.
        is_needed: Whether to publish one even if the newest version already records it.
    """

    def attempt() -> TableVersion:
        newest = newest_version_of(replace(table, log=log))
        if newest.manifest.config.get(CONFIG_KEY) == log.mark.get(CONFIG_KEY) and not is_needed:
            return newest
        operation = UpdateConfig(config=MapUpdate(((CONFIG_KEY, None),)))
        return commit_planned(newest, operation).table

    return replan_on_conflict(attempt)
