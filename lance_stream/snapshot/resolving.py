"""Opens a version of a table by number, tag, branch or time."""

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from lance_stream.arguments import as_number
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.snapshot.opening import newest_version_of, open_manifest, open_newest
from lance_stream.snapshot.references import (
    Refs,
    as_branch,
    list_branches,
    notes_on_missing_branch,
    refs_of,
)
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.tag_files import FORM_OF_TIMES, get_tag
from lance_stream.snapshot.timestamps import nanos_of, timestamp_of, with_zone
from lance_stream.table.feature_flags import check_readable
from lance_stream.table.manifest import Manifest
from lance_stream.table.paths import branch_directory

VersionSpec: TypeAlias = int | str | datetime | tuple[str | None, int | datetime | None] | None
"""A version's number, a tag's name, a time (UTC if it has no zone), or None for the newest version;
or a branch and one of its versions, by number or time, or None for its newest."""


def open_version(
    uri: str | os.PathLike[str],
    version: VersionSpec,
    storage_options: Mapping[str, Any] | None = None,
) -> TableVersion:
    """Return a version of the table at a location.

    Raises:
        NotFoundError: The table, version, tag or branch does not exist.
        InvalidInputError: The location or the version is invalid.
        UnsupportedFeatureError: The table requires a feature that is not supported.
    """
    if version is None:
        return open_newest(uri, storage_options)
    log = open_log(uri, storage_options)
    try:
        refs = refs_of(log) if isinstance(version, str | tuple) else Refs(log)
        branch, manifest = _resolve(refs, version)
    except NotFoundError as error:
        for note in notes_on_missing_branch(log):
            error.add_note(note)
        raise
    location = os.fspath(uri)
    if branch is not refs:
        location = _uri_of_branch(location, refs, branch)
    return open_manifest(location, branch.log, manifest, storage_options)


def checkout(table: TableVersion, version: VersionSpec) -> TableVersion:
    """Return another version of a table; see `open_version`.

    None is the newest version at the table's location, even if there is another table now.
    """
    if version is None and not table.version:
        return newest_version_of(table)  # not created yet, unless by another writer
    refs = table.refs
    branch, manifest = _resolve(refs, version, table.manifest)
    check_readable(manifest)
    if branch is refs:
        return table.at(manifest)
    return TableVersion(
        uri=_uri_of_branch(table.uri, refs, branch),
        storage_options=table.storage_options,
        store=branch.store,
        log=branch.log,
        manifest=manifest,
    )


def version_on_branch(table: TableVersion, version: VersionSpec) -> int:
    """Return the number of a version, which must be on the table's branch.

    Raises:
        NotFoundError: There is no such tag or version.
        InvalidInputError: The version is on another branch.
    """
    target = checkout(table, version)
    if target.branch != table.branch:
        raise InvalidInputError(
            f"{version!r} is version {target.version} of {_branch_name(target.branch)}, and this "
            f"is {_branch_name(table.branch)}. Open that branch for its versions and "
            "changes. To copy its rows, read them, then overwrite or upsert with them"
        )
    return target.version


def _branch_name(branch: str | None) -> str:
    return "the main branch" if branch is None else f"the branch {branch!r}"


def _resolve(
    refs: Refs, version: VersionSpec, newest: Manifest | None = None
) -> tuple[Refs, Manifest]:
    """Return the references of a version's branch, and the version's manifest."""
    if isinstance(version, str):
        try:
            tag = get_tag(refs, version)
        except NotFoundError:
            refs.log.latest()  # raises if the table does not exist, either
            raise
        except InvalidInputError as error:
            error.add_note(FORM_OF_TIMES)
            raise
        refs, version = _branch(refs, tag.branch), tag.version
    elif isinstance(version, tuple) and len(version) == 2:
        refs, version = _branch(refs, as_branch(version[0])), version[1]
    log = refs.log
    if version is None:
        return refs, log.read_latest()
    if isinstance(version, datetime):
        return refs, _newest_at(log, version)
    number = as_number(version)
    if number is None or number < 1:
        raise InvalidInputError(
            f"a version must be a whole number from 1, a tag or a datetime, not {version!r}"
        )
    if newest is not None and (newest.version, newest.branch) == (number, refs.branch):
        return refs, newest
    return refs, log.read(number)


def _branch(refs: Refs, branch: str | None) -> Refs:
    """Return the references of an existing branch.

    Raises:
        NotFoundError: The branch does not exist; the message lists the existing ones.
    """
    branch_refs = refs.of(branch)
    if branch_refs is not refs:
        try:
            branch_refs.log.latest()
        except NotFoundError:
            names = ", ".join(list_branches(refs))
            existing = f"existing branches: {names}" if names else "it has no branches"
            raise NotFoundError(
                f"the table at {refs.root.uri} has no branch {branch!r}; {existing}"
            ) from None
    return branch_refs


def _uri_of_branch(uri: str, refs: Refs, other: Refs) -> str:
    """Return the location of another branch, in the form of this branch's location."""
    path, separator, query = uri.partition("?") if uri.startswith("s3+ddb:") else (uri, "", "")
    path = path.rstrip("/")
    suffix = "" if refs.branch is None else f"/{branch_directory(refs.branch)}"
    if not path.endswith(suffix):
        return other.store.uri
    other_suffix = "" if other.branch is None else f"/{branch_directory(other.branch)}"
    return path.removesuffix(suffix) + other_suffix + separator + query


def _newest_at(log: VersionLog, moment: datetime) -> Manifest:
    """Return the manifest of the newest version that was committed at or before a moment.

    Raises:
        NotFoundError: All versions are newer.
    """
    nanos = nanos_of(moment)
    oldest = None
    for version in reversed(log.versions()):
        try:
            manifest = log.read(version)
        except NotFoundError:
            continue  # cleaned up since it was listed
        if (manifest.timestamp_nanos or 0) // 1000 * 1000 <= nanos:
            return manifest
        oldest = manifest
    committed_at = oldest and timestamp_of(oldest)
    raise NotFoundError(
        f"no version existed at {with_zone(moment).isoformat()}; the oldest one is version "
        f"{oldest.version if oldest else '?'}, committed at "
        f"{committed_at.isoformat() if committed_at else 'an unknown time'}"
    )
