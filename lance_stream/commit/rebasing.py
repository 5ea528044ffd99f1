"""Rebases a transaction: reads its deletion files, and writes merged ones under new names."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import (
    BadDataError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
    UnsupportedFeatureError,
)
from lance_stream.storage.store import Store
from lance_stream.table.conflicts.rebase import plan_rebase, rebased, rebased_indices, unite
from lance_stream.table.fragments.deletion_vectors import (
    decode_deletion_vector,
    encode_deletion_vector,
)
from lance_stream.table.fragments.fragment import DeletionFile, Fragment
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.rows import Delete, Update
from lance_stream.table.operations.transaction import Transaction
from lance_stream.table.operations.versions import CreateIndex
from lance_stream.table.paths import deletion_file_path


def rebase_transaction(
    log: VersionLog,
    transaction: Transaction,
    newest: Manifest,
    random_id: Callable[[], int],
    written: list[Fragment],
) -> Transaction:
    """Rebase a transaction on the newest version, and write its new deletion files.

    Args:
        log: The table's version log.
        transaction: A Delete, Update or CreateIndex that can be rebased.
        newest: The newest version.
        random_id: Returns a random u64, for the names of the new deletion files.
        written: Receives a fragment for every new file, even if this raises an error.

    Returns:
        A transaction that reads the newest version.

    Raises:
        RetryableConflictError: Both writers deleted the same row; the version on which the
            transaction was planned no longer exists; or a deletion file is below a base path.
        UnsupportedFeatureError: The operation cannot be rebased.
        BadDataError: A deletion file is damaged.
    """
    operation = transaction.operation
    if not isinstance(operation, Delete | Update | CreateIndex):
        raise UnsupportedFeatureError(f"{type(operation).__name__} cannot be rebased")
    try:
        planned_on = log.read(transaction.read_version)
    except NotFoundError as error:
        raise RetryableConflictError(
            f"version {transaction.read_version}, on which the operation was planned, was cleaned "
            f"up. Plan it again on version {newest.version}",
            newest.version,
        ) from error
    if isinstance(operation, CreateIndex):
        indices = rebased_indices(operation, planned_on, newest)
        return replace(transaction, read_version=newest.version, operation=indices)
    files: dict[int, DeletionFile | None] = {}
    for merge in plan_rebase(operation, planned_on, newest):
        ours, planned, current = (
            _read(log.store, merge.fragment_id, file, merge.physical_rows)
            for file in (merge.ours, merge.read, merge.newest)
        )
        deleted = unite(merge, ours, planned, current, newest.version)
        if len(deleted) == merge.physical_rows:
            files[merge.fragment_id] = None
            continue
        file = write_deletion_file(
            log.store, merge.fragment_id, deleted, newest.version, random_id()
        )
        written.append(Fragment(merge.fragment_id, (), merge.physical_rows, deletion_file=file))
        files[merge.fragment_id] = file
    return replace(transaction, read_version=newest.version, operation=rebased(operation, files))


def write_deletion_file(
    store: Store,
    fragment_id: int,
    deleted: npt.NDArray[np.uint32],
    read_version: int,
    file_id: int,
) -> DeletionFile:
    """Write the deletion file of a fragment, and return its description for the manifest.

    Args:
        store: The table's directory.
        fragment_id: The fragment.
        deleted: The offsets of all deleted rows, including those deleted earlier.
        read_version: The version that the deletion is based on.
        file_id: A random u64.
    """
    file_type, data = encode_deletion_vector(deleted)
    file = DeletionFile(file_type, read_version, file_id, num_deleted_rows=len(deleted))
    store.write(deletion_file_path(fragment_id, file), data)
    return file


def delete_deletion_files(store: Store, fragments: Iterable[Fragment]) -> None:
    """Delete deletion files that no version names; best effort."""
    for fragment in fragments:
        if fragment.deletion_file is not None:
            with suppress(OSError, LanceStreamError):
                store.delete(deletion_file_path(fragment.id, fragment.deletion_file))


def _read(
    store: Store, fragment_id: int, file: DeletionFile | None, physical_rows: int
) -> npt.NDArray[np.uint32]:
    if file is None:
        return np.empty(0, np.uint32)
    if file.base_id is not None:
        raise RetryableConflictError(
            f"the deletion file of fragment {fragment_id} is stored below a base path of the "
            "table, and another writer has deleted rows of the fragment. Plan the operation again"
        )
    path = deletion_file_path(fragment_id, file)
    try:
        return decode_deletion_vector(
            store.read(path), file.file_type, physical_rows, file.num_deleted_rows
        )
    except BadDataError as error:
        error.add_note(f"deletion file {store.uri}/{path}")
        raise
