"""Clones a version as a separate table, whose rows stay in the files of the cloned table.

    1  check that the clone's readers may open the cloned table's files, and find them there
    2  begin the clone; this fails if the location cannot be written to
    3  tag the version in the cloned table, so that a cleanup there keeps its files; if that table
       is itself a clone, also tag the versions whose files it names, in their tables
    4  publish the clone's first version (see `commit.cloning`)

A clone that was killed after any step can be repeated. If a step fails, step 2 is undone. The tag
is `lance_stream.clone.{digest}`, and its metadata has the clone's location. Nothing deletes it: a
table is not told when a clone of it is deleted, or has rewritten all its rows.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from lance_stream.arguments import as_flag
from lance_stream.commit.cloning import CloneSource, publish_clone, start_clone
from lance_stream.commit.manifest_stores.choice import location_of_files
from lance_stream.commit.opening import open_log
from lance_stream.errors import (
    CommitUncertainError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
)
from lance_stream.snapshot.references import Refs, notes_on_missing_branch
from lance_stream.snapshot.resolving import VersionSpec, checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import CLONE_PREFIX, create_tag, find_tag, manifest_size
from lance_stream.storage.options.names import as_options
from lance_stream.storage.trust import open_named
from lance_stream.table.apply import check_may_write
from lance_stream.table.paths import CLONED_FROM
from lance_stream.upsert.tombstone_files import read_bytes
from lance_stream.verbs.clone_origins import origins_of


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
    try:
        existing = log.latest()
    except NotFoundError:
        pass
    else:
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
    origins = origins_of(start) if tag_source else []
    _, is_new = start_clone(log.store, source, None)
    try:
        if tag_source:
            _tag(start.refs, start.version, target)
            for origin in origins:
                _tag(origin.refs, origin.version, target)
        manifest = publish_clone(log, source, None)
    except CommitUncertainError:
        raise
    except (LanceStreamError, OSError):
        if is_new:  # so that the location can be used for another clone
            with suppress(LanceStreamError, OSError):
                log.store.delete(CLONED_FROM)
        raise
    if not tag_source and not start.log.has(start.version):
        log.store.delete(log.manifest_path(manifest.version))
        log.store.delete(CLONED_FROM)
        raise NotFoundError(
            f"version {start.version} of {start.uri} was cleaned up while it was being cloned, and "
            "the clone was removed. Clone another version, or protect this one with a tag "
            "(tag_source=True)"
        )
    return target.at(manifest)


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


def _tag(refs: Refs, version: int, target: TableVersion) -> None:
    """Tag a version for a clone, unless an earlier attempt has.

    Raises:
        NotFoundError: The version has been cleaned up.
        StoreRefusedError: The credentials do not allow writing to its table.
    """
    identity = "\n".join([target.location, refs.branch or "", str(version)])
    name = f"{CLONE_PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if find_tag(refs, name) is None:
        create_tag(refs, name, version, metadata={"clone": target.location})
