"""Going from one way of publishing versions to another: the directory, and manifest stores.

    from                     to                 what is to be done
    the directory            a manifest store   give the storage option; from the first commit on
                                                our writers without it refuse
    a manifest store         the directory      leave_manifest_store, given the store
    a manifest store         another one        leave the one, then give the other
    one that is gone; a      this one, or the   claim_versions, given the new one or none
    table moved or copied    directory
    a deleted table          nothing            forget_versions, given the store

Nothing of it needs writers to be stopped where the store can create a name once: the final name of
a version decides between those who publish in one way and those who publish in the other.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.snapshot.opening import checkout, open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.manifest_store_mark import CONFIG_KEY
from lance_stream.table.operations import MapUpdate, UpdateConfig
from lance_stream.write.planning import commit_planned, planning_again


def leave_manifest_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> int:
    """Publish the versions of a table in its own directory from now on.

    The last version that the manifest store publishes says so; after that the store forgets the
    table. Writers go on without the storage option. One who still has it takes the table back.
    Killed in the middle, it can be called again.

    Args:
        uri: Where the table lies: with its manifest store, as writers have given it so far.
        storage_options: The same.

    Returns:
        The newest version.

    Raises:
        InvalidInputError: No manifest store is given.
        NotFoundError: There is no table.
        CommitError: The version that says so could not be made.
    """
    table = open_table(uri, None, storage_options)
    log = _external(table.log)
    made = _marked_anew(table, replace(log, is_marking=False))
    log.forget(through=made.version)
    return made.version


def claim_versions(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> int:
    """Publish the versions of a table as is said here, whatever its newest version says.

    It is for a table that was moved or copied, and for one whose manifest store is gone. Who calls
    it knows that nobody publishes in the old way any more: a version that the old manifest store
    has given out, and whose manifest has not got its final name yet, is lost.

    Args:
        uri: Where the table lies.
        storage_options: With the manifest store that is to be, or with none.

    Returns:
        The newest version: one that says how versions are published from now on.

    Raises:
        NotFoundError: There is no table.
        CommitError: The version could not be made.
    """
    table = open_table(uri, None, storage_options)
    log = table.log
    assert isinstance(log, ExternalLog | ObjectStoreLog)
    is_empty = isinstance(log, ExternalLog) and log.manifests.latest(log.base_uri) is None
    return _marked_anew(table, replace(log, is_claiming=True), is_needed=is_empty).version


def forget_versions(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> None:
    """Let a manifest store forget a table that was deleted, so that one can be made there anew.

    Args:
        uri: Where the table lay: with its manifest store, as for writing.
        storage_options: The same.

    Raises:
        InvalidInputError: No manifest store is given, or the table is there.
    """
    log = _external(open_log(uri, storage_options))
    try:
        newest = ObjectStoreLog(log.store).latest()
    except NotFoundError:
        log.forget()
        return
    raise InvalidInputError(
        f"there is a dataset at {log.store.uri}, at version {newest}, whose manifest store is "
        "needed. Delete it first; or let it go on without, by leave_manifest_store()"
    )


def _external(log: VersionLog) -> ExternalLog:
    if isinstance(log, ExternalLog):
        return log
    raise InvalidInputError(
        f"no manifest store is given for {log.store.uri}: give the storage option manifest_store, "
        "or a URI that begins with s3+ddb://, as its writers do"
    )


def _marked_anew(table: TableVersion, log: VersionLog, *, is_needed: bool = False) -> TableVersion:
    """Return a version with a log's mark, or with none; committed by that log if it has to be.

    Args:
        table: Any version.
        log: Publishes it.
        is_needed: Whether one has to be published though the newest version says what it should.
    """

    def attempt() -> TableVersion:
        newest = checkout(replace(table, log=log), None)
        if newest.manifest.config.get(CONFIG_KEY) == log.mark.get(CONFIG_KEY) and not is_needed:
            return newest
        operation = UpdateConfig(config=MapUpdate(((CONFIG_KEY, None),)))
        return commit_planned(newest, operation).table

    return planning_again(attempt)
