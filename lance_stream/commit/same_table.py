"""Is a version that was read a while ago still the one that stands under its number?

Versions are told by their numbers, and a table that was deleted and made anew, or put back from a
copy, has the same ones. What was planned on the table before does not fit the one that is there:
its columns have other ids, its fragments other files. So what a commit has read is compared with
what a look finds now:

    the newest version is     then
    ---------------------     -----------------------------------------------------------------
    an older one              it is another table
    that very number          its manifest is compared
    a newer one               the manifest of that number is compared. The listing has just given
                              its ETag, so that one that is remembered costs no request
    a newer one, and that     a table whose newest version has a data file, or all columns, in
    number has been removed   common with what was read is taken for the same

A directory may have been put back with the very version that was planned on. Then the files that
were written since are gone with the old directory. On disks, where that costs no request, a commit
looks whether they are there.

What happens between this look and the publication is not seen; nor is, on object stores, that files
are gone.
"""

from collections.abc import Iterator
from dataclasses import replace

from lance_stream.commit.version_log import Look, VersionLog
from lance_stream.errors import NotFoundError, TableReplacedError
from lance_stream.storage.store import Store
from lance_stream.table.fragments import Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import (
    Append,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Rewrite,
    Update,
    operation_name,
)
from lance_stream.table.paths import data_file_path, deletion_file_path
from lance_stream.table.version_marks import is_same_version, may_derive_from


def check_is_still_there(log: VersionLog, look: Look, known: Manifest) -> None:
    """Check that a version which was read before belongs to the table that is there now.

    Args:
        log: The table's history.
        look: What there is now.
        known: The version, as it was read.

    Raises:
        TableReplacedError: It does not.
    """
    if not _is_still_there(log, look, known):
        raise replaced(log.store.uri, known.version, look.newest.version)


def check_files_are_there(store: Store, operation: Operation) -> None:
    """Check that the files which were written for an operation are there, on a disk.

    Args:
        store: The table's directory.
        operation: What is to be done.

    Raises:
        TableReplacedError: One is gone.
    """
    if not store.uri.startswith("file:"):
        return
    for path in _files_of(operation):
        if not store.exists(path):
            raise TableReplacedError(
                f"the file {path!r}, which was written for this {operation_name(operation)}, is "
                f"not in {store.uri} any more: the table was deleted and re-created meanwhile, or "
                "put back from a copy; or a cleanup took the file for one that nobody needs. "
                "Nothing was committed. Open the table again and repeat the operation; a streaming "
                "query does so when it is started again"
            )


def _files_of(operation: Operation) -> Iterator[str]:
    """Yield the paths of files in the table's own directory that an operation brings."""
    dying: tuple[Fragment, ...] = ()
    new: tuple[Fragment, ...] = ()
    if isinstance(operation, Append | Overwrite):
        new = operation.fragments
    elif isinstance(operation, Update):
        new, dying = operation.new_fragments, operation.updated_fragments
    elif isinstance(operation, Delete):
        dying = operation.updated_fragments
    elif isinstance(operation, Rewrite):
        new = dying = tuple(each for group in operation.groups for each in group.new_fragments)
    elif isinstance(operation, Merge):  # a new file is the last one of its fragment
        new = tuple(replace(each, files=each.files[-1:]) for each in operation.fragments)
    for fragment in new:
        yield from (data_file_path(each.path) for each in fragment.files if each.base_id is None)
    for fragment in dying:
        file = fragment.deletion_file
        if file is not None and file.base_id is None:
            yield deletion_file_path(fragment.id, file)


def replaced(uri: str, known: int, newest: int) -> TableReplacedError:
    """Return the error that says that a version is no longer the one that was read.

    Args:
        uri: Where the table lies.
        known: The version.
        newest: The newest version that is there now.
    """
    return TableReplacedError(
        f"version {known} of {uri} is not the one that was read before (the newest version is "
        f"{newest} now): the table was deleted and re-created meanwhile, or put back from a copy. "
        "Nothing was committed. To go on in the table that is there now, open it again and repeat "
        "the operation; a streaming query goes on there when it is started again",
        newest,
    )


def _is_still_there(log: VersionLog, look: Look, known: Manifest) -> bool:
    newest = look.newest
    if newest.version <= known.version:
        return is_same_version(newest, known)
    try:
        there = log.read(known.version, look.etags.get(known.version, ""))
    except NotFoundError:
        return may_derive_from(newest, known)
    return is_same_version(there, known)
