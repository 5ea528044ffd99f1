"""Opens the newest version of a table, by location or from another version.

`resolving` opens a version by number, tag, branch or time.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lance_stream.commit.commit_groups import check_can_commit_together, read_latest_together
from lance_stream.commit.opening import open_log
from lance_stream.commit.same_table import check_is_same_table
from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import NotFoundError
from lance_stream.snapshot.references import notes_on_missing_branch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.write_ahead_logs import warn_of_unmerged_rows
from lance_stream.table.detached import check_is_attached
from lance_stream.table.feature_flags import check_readable
from lance_stream.table.manifest import Manifest


def open_newest(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> TableVersion:
    """Return the newest version of the table at a location.

    Raises:
        NotFoundError: The table does not exist.
        InvalidInputError: The location is invalid.
        UnsupportedFeatureError: The table requires a feature that is not supported.
    """
    log = open_log(uri, storage_options)
    try:
        manifest = log.read_latest()
    except NotFoundError as error:
        for note in notes_on_missing_branch(log):
            error.add_note(note)
        raise
    return open_manifest(os.fspath(uri), log, manifest, storage_options)


def open_manifest(
    uri: str,
    log: VersionLog,
    manifest: Manifest,
    storage_options: Mapping[str, Any] | None,
) -> TableVersion:
    """Return the version that a manifest describes; warns if the table has unmerged rows.

    Args:
        uri: The table's location, as the user specified it.
        log: The table's version log.
        manifest: The manifest of the version.
        storage_options: Settings of the store.

    Raises:
        UnsupportedFeatureError: The table requires a feature that is not supported.
    """
    check_readable(manifest)
    warn_of_unmerged_rows(log, manifest)
    return TableVersion(
        uri=uri,
        storage_options=dict(storage_options or {}),
        store=log.store,
        log=log,
        manifest=manifest,
    )


def newest_version_of(table: TableVersion) -> TableVersion:
    """Return the newest version of the table that a version belongs to.

    Raises:
        NotFoundError: The table no longer exists.
        InvalidInputError: The version is detached.
        TableReplacedError: The location has another table: the table was deleted and re-created,
            or restored from a copy.
    """
    check_is_attached(table.version)
    try:
        state = table.log.read_state()
    except NotFoundError:
        if not table.version:
            return table  # not created yet
        raise
    if table.version:
        check_is_same_table(table.log, state, table.manifest)
    check_readable(state.newest)
    return table.at(state.newest)


def open_tables_together(
    uris: Sequence[str | os.PathLike[str]],
    storage_options: Mapping[str, Any] | None = None,
) -> list[TableVersion]:
    """Return the newest versions of several tables at one point in time.

    Args:
        uris: The locations of the tables.
        storage_options: Settings of the store of all tables.

    Raises:
        InvalidInputError: The tables are not in one manifest store, or a location is invalid.
        NotFoundError: A table does not exist.
        UnsupportedFeatureError: A table requires a feature that is not supported.
    """
    logs = {os.fspath(uri): open_log(uri, storage_options) for uri in uris}
    if not logs:
        return []
    check_can_commit_together(logs)
    manifests = read_latest_together(list(logs.values()))
    return [
        open_manifest(uri, log, manifest, storage_options)
        for (uri, log), manifest in zip(logs.items(), manifests, strict=True)
    ]
