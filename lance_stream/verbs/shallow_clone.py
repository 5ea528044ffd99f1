"""Clones a version as a separate table, whose rows stay in the files of the cloned table.

    1  check that the clone's readers may open the cloned table's files, and find them there
    2  begin the clone; this fails if the location cannot be written to
    3  tag the version in the cloned table, so that a cleanup there keeps its files; if that table
       is itself a clone, also tag the versions whose files it names, in their tables
    4  publish the clone's first version (see `commit.cloning`)

A clone that was killed after any step can be repeated. If a step fails, steps 2 and 3 are undone,
unless another process has joined the clone and published it. A process that joined checks its tags
again after step 4, since the first one may have deleted them before that.

The tag is `lance_stream.clone.{digest}`, and its metadata has the clone's location. Nothing deletes
it later: a table is not told when a clone of it is deleted, or has rewritten all its rows.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lance_stream.arguments import as_flag
from lance_stream.commit.cloning import CloneSource, publish_clone, start_clone
from lance_stream.commit.manifest_stores.choice import location_of_files
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import (
    CommitUncertainError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)
from lance_stream.snapshot.references import notes_on_missing_branch
from lance_stream.snapshot.resolving import VersionSpec, checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import (
    CLONE_PREFIX,
    create_tag,
    delete_tag,
    find_tag,
    manifest_size,
)
from lance_stream.storage.options.names import as_options
from lance_stream.storage.trust import open_named
from lance_stream.table.apply import check_may_write
from lance_stream.table.paths import CLONED_FROM
from lance_stream.upsert.tombstone_files import read_bytes
from lance_stream.verbs.clone_origins import CloneOrigin, origins_of


def shallow_clone(
    table: TableVersion,
    target_uri: str | os.PathLike[str],
    version: VersionSpec = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    tag_source: bool = True,
) -> TableVersion:
    """Clone a version; see `Dataset.shallow_clone`."""
    as_flag("tag_source", tag_source)
    start = table if version is None else checkout(table, version)
    if not start.version:
        raise NotFoundError(f"there is no table at {table.uri} to clone")
    options = as_options(table.storage_options if storage_options is None else storage_options)
    log = open_log(target_uri, options)
    target = TableVersion(os.fspath(target_uri), options, log.store, log, start.manifest)
    source = CloneSource(
        start.store,
        start.manifest,
        start.files.base_paths,
        start.location,
        partial(read_bytes, start.files),
    )
    _check_can_be_read(source, target)
    existing = _latest(log)
    if existing is not None:
        raise InvalidInputError(
            f"a dataset already exists at {log.store.uri}, at version {existing}. Clone to another "
            "location"
        )
    if any(notes_on_missing_branch(log)):
        raise InvalidInputError(
            f"{log.store.uri} is within the branches of another table, whose cleanup would treat a "
            "clone there as one of its branches. Clone to another location; or create a branch: "
            "ds.branches.create(name, version)"
        )
    check_may_write(source.manifest)
    cloned = CloneOrigin(start.refs, start.version)
    origins = [cloned, *origins_of(start)] if tag_source else []
    _, is_new = start_clone(log.store, source, None)
    tags: list[CloneOrigin] = []
    try:
        for origin in origins:
            if _tag(origin, target):
                tags.append(origin)
        manifest = publish_clone(log, source, None)
    except CommitUncertainError:
        raise
    except (LanceStreamError, OSError):
        if is_new:
            with suppress(LanceStreamError, OSError):
                _undo(target, tags)
        raise
    try:
        for origin in () if is_new else origins:
            _tag(origin, target)
        is_protected = tag_source or start.log.has(start.version)
    except NotFoundError:
        is_protected = False
    if not is_protected:
        log.store.delete(log.manifest_path(manifest.version))
        log.store.delete(CLONED_FROM)
        raise NotFoundError(
            f"version {start.version} of {start.uri} was cleaned up while it was being cloned, and "
            "the clone was removed. Clone another version, or protect this one with a tag "
            "(tag_source=True)"
        )
    return target.at(manifest)


def _undo(target: TableVersion, tags: Sequence[CloneOrigin]) -> None:
    """Undo the first steps of a clone, so that the location can be used for another clone.

    Args:
        target: The clone.
        tags: The versions that this process has tagged.
    """
    if _latest(target.log) is not None:
        return
    for origin in tags:
        delete_tag(origin.refs, _tag_name(origin, target))
    if _latest(target.log) is None:
        target.store.delete(CLONED_FROM)
    else:
        for origin in tags:
            _tag(origin, target)


def _latest(log: VersionLog) -> int | None:
    try:
        return log.latest()
    except NotFoundError:
        return None


def _check_can_be_read(source: CloneSource, target: TableVersion) -> None:
    """Raise unless the readers of a clone can open the files that it will name.

    Raises:
        UntrustedLocationError: The files are outside of `trusted_locations`.
        InvalidInputError: Their storage options lead to another location.
    """
    for base in source.base_paths:
        open_named(target.store, location_of_files(base.path), target.storage_options)
    location = location_of_files(source.location)
    named = open_named(target.store, location, target.storage_options)
    try:
        manifest_size(named, source.manifest.version)
    except NotFoundError as error:
        raise InvalidInputError(
            f"readers of a clone at {target.uri} would open the files of {source.location} with "
            "the clone's storage options, and with these there is no version "
            f"{source.manifest.version} at {named.uri}. Pass storage options that are valid for "
            "both, such as the endpoint of the source"
        ) from error


def _tag(origin: CloneOrigin, target: TableVersion) -> bool:
    """Tag a version for a clone, unless an earlier attempt has; return whether this call did.

    Raises:
        NotFoundError: The version has been cleaned up.
        StoreRefusedError: The credentials do not allow writing to its table.
    """
    name = _tag_name(origin, target)
    if find_tag(origin.refs, name) is not None:
        return False
    create_tag(origin.refs, name, origin.version, metadata={"clone": target.location})
    return True


def _tag_name(origin: CloneOrigin, target: TableVersion) -> str:
    identity = "\n".join([target.location, origin.refs.branch or "", str(origin.version)])
    return f"{CLONE_PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
