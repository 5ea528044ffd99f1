"""Checks that a version that was read earlier belongs to the table that exists now.

A table that was deleted and re-created, or restored from a copy, has versions with the same
numbers. A plan for the previous table does not fit the current one: columns have other ids,
fragments other files. So every commit compares the version that was read with the current state:

    the newest version is     then
    ---------------------     -----------------------------------------------------------------
    older                     the table is a different one
    the same number           both manifests are compared
    newer                     the manifest of the version that was read is compared. The listing
                              has just returned its ETag, so a cached one costs no request
    newer, and the version    the table counts as the same if the newest version has a data file or
    that was read no longer   all columns of the version that was read
    exists

A directory may have been restored to exactly the version on which an operation was planned. Then
the files that were written since are lost. On local disks, where this costs no request, a commit
checks that they exist.

Changes between this check and the publication are not detected. Neither are missing files on object
stores.
"""

from collections.abc import Iterator
from dataclasses import replace

from lance_stream.commit.version_log import LogState, VersionLog
from lance_stream.errors import NotFoundError, TableReplacedError
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.columns import Merge
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.table.operations.operation import Operation, operation_name
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update, UpdateMode
from lance_stream.table.paths import data_file_path, deletion_file_path
from lance_stream.table.version_marks import is_same_version, may_derive_from


def check_is_same_table(log: VersionLog, state: LogState, earlier: Manifest) -> None:
    """Raise unless a version that was read earlier belongs to the table that exists now.

    Args:
        log: The table's version log.
        state: The current state of the log.
        earlier: The version, as it was read.

    Raises:
        TableReplacedError: The version belongs to another table.
    """
    if not _is_same_table(log, state, earlier):
        raise table_replaced_error(log.store.uri, earlier.version, state.newest.version)


def check_files_exist(store: Store, operation: Operation) -> None:
    """Raise unless the files written for an operation exist; checked on local disks only.

    Args:
        store: The table's directory.
        operation: The operation to commit.

    Raises:
        TableReplacedError: A file no longer exists.
    """
    if store.local_path("") is None:
        return
    for path in _files_of(operation):
        if not store.exists(path):
            raise TableReplacedError(
                f"the file {path!r}, which was written for this {operation_name(operation)}, no "
                f"longer exists in {store.uri}: since then the table was deleted and re-created or "
                "restored from a copy, or a cleanup deleted the file as unreferenced. Nothing was "
                "committed. Open the table again and repeat the operation; a streaming query does "
                "so when it is restarted"
            )


def _files_of(operation: Operation) -> Iterator[str]:
    """Yield the paths of the files that an operation adds to the table's directory."""
    updated: tuple[Fragment, ...] = ()
    new: tuple[Fragment, ...] = ()
    if isinstance(operation, Append | Overwrite):
        new = operation.fragments
    elif isinstance(operation, Update):
        new, updated = operation.new_fragments, operation.updated_fragments
        if operation.update_mode is UpdateMode.REWRITE_COLUMNS:  # a new file is the last one
            new += tuple(replace(item, files=item.files[-1:]) for item in updated)
    elif isinstance(operation, Delete):
        updated = operation.updated_fragments
    elif isinstance(operation, Rewrite):
        new = updated = tuple(item for group in operation.groups for item in group.new_fragments)
    elif isinstance(operation, Merge):  # a new file is the last one of its fragment
        new = tuple(replace(item, files=item.files[-1:]) for item in operation.fragments)
    for fragment in new:
        yield from (data_file_path(item.path) for item in fragment.files if item.base_id is None)
    for fragment in updated:
        file = fragment.deletion_file
        if file is not None and file.base_id is None:
            yield deletion_file_path(fragment.id, file)


def table_replaced_error(uri: str, version: int, newest: int) -> TableReplacedError:
    """Return the error for a version that is not the one that was read before.

    Args:
        uri: The table's location.
        version: The version that was read before.
        newest: The current newest version.
    """
    return TableReplacedError(
        f"version {version} of {uri} is not the one that was read before (the newest version is "
        f"now {newest}): the table was deleted and re-created, or restored from a copy. Nothing "
        "was committed. To continue with the new table, open it again and repeat the operation; a "
        "streaming query continues there when it is restarted",
        newest,
    )


def table_deleted_error(uri: str, version: int) -> TableReplacedError:
    """Return the error for a table that no longer exists, although rows were written for it.

    Args:
        uri: The table's location.
        version: The version on which the write was planned.
    """
    return TableReplacedError(
        f"the rows were written for version {version} of {uri}, but the table has been deleted "
        "since. Write the rows again to re-create it",
        version,
    )


def _is_same_table(log: VersionLog, state: LogState, earlier: Manifest) -> bool:
    newest = state.newest
    if newest.version <= earlier.version:
        return is_same_version(newest, earlier)
    try:
        current = log.read(earlier.version, state.etags.get(earlier.version, ""))
    except NotFoundError:
        return may_derive_from(newest, earlier)
    return is_same_version(current, earlier)
