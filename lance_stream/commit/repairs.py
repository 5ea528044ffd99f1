"""Adds information that old writers omitted from a manifest, in the next commit.

    row count of a fragment          missing in 0.4 to 0.7; read from the data file
    row count of a deletion file     missing in 0.4 to 0.7; read from the deletion file
    wrong row counts of 0.8          treated as missing (see `table.manifest`)
    a field in two files, by 0.10    see `table.apply.field_twice`

No file is read if a version has all counts, as with later writers.

An Update needs the row ids and row versions of the fragments from which it moves rows. If they are
in a separate file, they are read from it, and the next version has them in the manifest.

Source:  the reference's crate lance, io/commit, migrate_manifest.
"""

from dataclasses import replace

import numpy as np

from lance_stream.byte_ranges import answer
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.file.reader import open_file
from lance_stream.storage.store import Store
from lance_stream.table.fragments.deletion_vectors import decode_deletion_vector
from lance_stream.table.fragments.fragment import ExternalFile, Fragment, StoredSequence
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Update
from lance_stream.table.paths import check_stored_path, data_file_path, deletion_file_path


def with_counts(store: Store, manifest: Manifest) -> Manifest:
    """Return a version with the numbers of rows and deleted rows of all fragments.

    Args:
        store: The table's directory.
        manifest: The version; returned unchanged if it has them.

    Raises:
        BadDataError: A file is damaged, or is below a base path, which old writers did not use.
        NotFoundError: A file does not exist.
    """
    numbers = manifest.fragments.numbers
    unknown = (numbers.physical_rows == 0) | (
        numbers.has_deletion_file & (numbers.num_deleted_rows == 0)
    )
    changes = {
        index: _count_rows(store, manifest.fragments[index])
        for index in np.flatnonzero(unknown).tolist()
    }
    return (
        replace(manifest, fragments=manifest.fragments.replaced(changes)) if changes else manifest
    )


def with_sequences(store: Store, manifest: Manifest, operation: Operation) -> Manifest:
    """Return a version whose manifest has the row ids and row versions that an operation needs.

    Args:
        store: The table's directory.
        manifest: The version; returned unchanged if it has them.
        operation: The operation that will be applied to it.

    Raises:
        CorruptDataError: A file of sequences is truncated.
        NotFoundError: The file does not exist.
    """
    if not isinstance(operation, Update):
        return manifest
    touched = {fragment.id for fragment in operation.updated_fragments}
    touched.update(operation.removed_fragment_ids)
    indices = manifest.fragments.index_by_id if touched else {}
    changes = {}
    for index in sorted(indices[fragment_id] for fragment_id in touched if fragment_id in indices):
        fragment = manifest.fragments[index]
        inline = inline_sequences(store, fragment)
        if inline != fragment:
            changes[index] = inline
    return (
        replace(manifest, fragments=manifest.fragments.replaced(changes)) if changes else manifest
    )


def inline_sequences(store: Store, fragment: Fragment) -> Fragment:
    """Return a fragment with its sequences in the manifest instead of separate files.

    Args:
        store: The table's directory.
        fragment: The fragment.

    Raises:
        CorruptDataError: A file of sequences is truncated.
        NotFoundError: The file does not exist.
    """
    return replace(
        fragment,
        row_ids=_inline(store, fragment.row_ids),
        created_at_versions=_inline(store, fragment.created_at_versions),
        last_updated_at_versions=_inline(store, fragment.last_updated_at_versions),
    )


def _inline(store: Store, stored: StoredSequence | None) -> StoredSequence | None:
    return read_external(store, stored) if isinstance(stored, ExternalFile) else stored


def read_external(store: Store, stored: ExternalFile) -> bytes:
    """Return the bytes of a sequence that is stored in a separate file.

    Raises:
        CorruptDataError: The file is truncated.
        NotFoundError: The file does not exist.
    """
    data = store.read(check_stored_path(stored.path))
    part = data[stored.offset : stored.offset + stored.size]
    if len(part) != stored.size:
        raise CorruptDataError(
            f"the manifest names a sequence of {stored.size} bytes at byte {stored.offset} of "
            f"{stored.path!r}, which has {len(data)} bytes: the file is truncated"
        )
    return part


def _count_rows(store: Store, fragment: Fragment) -> Fragment:
    if not fragment.files:
        return fragment
    file = fragment.files[0]
    deletion_file = fragment.deletion_file
    if file.base_id is not None or (deletion_file and deletion_file.base_id is not None):
        raise UnsupportedFeatureError(
            f"the manifest lacks the row count of fragment {fragment.id}, which is stored below a "
            "base path. Compact the table with the program that wrote it"
        )
    physical_rows = fragment.physical_rows
    if not physical_rows:
        path = data_file_path(file.path)
        request = open_file(store.size(path), store.bytes_per_request)
        reader = answer(request, lambda ranges: store.read_ranges(path, ranges))
        physical_rows = reader.metadata.num_rows
    if deletion_file is not None and not deletion_file.num_deleted_rows:
        deleted = decode_deletion_vector(
            store.read(deletion_file_path(fragment.id, deletion_file)),
            deletion_file.file_type,
            physical_rows,
        )
        deletion_file = replace(deletion_file, num_deleted_rows=len(deleted))
    return replace(fragment, physical_rows=physical_rows, deletion_file=deletion_file)
