"""Folding their change into ours: rows that others killed in fragments where we kill others.

Our Delete (or Update) was planned on one version, and states for each fragment it touches a
deletion file that holds what was dead then and what we kill. Others published a newer version in
which further rows of such a fragment are dead. The two belong together, unless both sides killed
the same row:

    ours              what was dead when we planned, and ours
    read              what was dead when we planned
    newest            what is dead now
    ours - read       what we kill; must not be in newest
    ours | newest     what will be dead

Reading and writing the deletion files is the caller's: `plan_rebase` says which, `unite` makes the
new contents, `rebased` the operation that states them.

Source:  facts of the format, section 5: different rows of one fragment merge, the same row
         conflicts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream.errors import RetryableConflictError
from lance_stream.table.ascending import difference, union
from lance_stream.table.fragments import DeletionFile
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import Delete, Update

Offsets: TypeAlias = npt.NDArray[np.uint32]

_NUM_EXAMPLES = 5


class DeletionFilesToUnite(NamedTuple):
    """The deletion files of one fragment that have to be read and made one.

    Attributes:
        fragment_id: The fragment.
        physical_rows: How many rows it has.
        ours: The file that our operation states.
        read: The file of the version that we planned on; None if no row was dead.
        newest: The file of the newest version; None if no row is dead.
    """

    fragment_id: int
    physical_rows: int
    ours: DeletionFile
    read: DeletionFile | None
    newest: DeletionFile | None


def plan_rebase(
    operation: Delete | Update, read: Manifest, newest: Manifest
) -> list[DeletionFilesToUnite]:
    """Return which deletion files have to be made one for ours to follow the newest version.

    Args:
        operation: Ours.
        read: The version that it was planned on.
        newest: The newest version; every version between was found to allow a rebase.

    Raises:
        RetryableConflictError: A fragment that ours changes is gone.
    """
    found: list[DeletionFilesToUnite] = []
    for fragment in operation.updated_fragments:
        before, now = read.fragments.by_id(fragment.id), newest.fragments.by_id(fragment.id)
        if before is None or now is None:
            raise RetryableConflictError(
                f"fragment {fragment.id}, in which rows were to be deleted, is not in version "
                f"{newest.version} any more. Plan the operation again on it",
                newest.version,
            )
        if before.deletion_file != now.deletion_file and fragment.deletion_file is not None:
            found.append(
                DeletionFilesToUnite(
                    fragment.id,
                    now.physical_rows,
                    fragment.deletion_file,
                    before.deletion_file,
                    now.deletion_file,
                )
            )
    return found


def unite(
    files: DeletionFilesToUnite, ours: Offsets, read: Offsets, newest: Offsets, version: int
) -> Offsets:
    """Return the offsets of all rows of a fragment that are dead once ours follows.

    Args:
        files: Which fragment and files these are.
        ours: What the file that our operation states holds.
        read: What the file of the version that we planned on holds; empty without one.
        newest: What the file of the newest version holds; empty without one.
        version: The newest version.

    Returns:
        (n,) u32, ascending.

    Raises:
        RetryableConflictError: A row that we kill was killed, or moved, by somebody else.
    """
    new = difference(ours, read)
    twice = difference(new, difference(new, newest))
    if len(twice):
        raise RetryableConflictError(
            f"{len(twice)} rows of fragment {files.fragment_id} were to be deleted or changed, "
            f"but others did so up to version {version}, for example the ones at offsets "
            f"{twice[:_NUM_EXAMPLES].tolist()}. Plan the operation again on that version",
            version,
        )
    return union(ours, newest).astype(np.uint32, copy=False)


def rebased(
    operation: Delete | Update, files: Mapping[int, DeletionFile | None]
) -> Delete | Update:
    """Return the operation with other deletion files.

    Args:
        operation: Ours.
        files: For the id of a fragment its new deletion file; None when every row of it is dead.
    """
    updated = tuple(
        replace(each, deletion_file=files[each.id]) if each.id in files else each
        for each in operation.updated_fragments
        if files.get(each.id, each) is not None
    )
    gone = tuple(fragment_id for fragment_id, file in files.items() if file is None)
    if isinstance(operation, Delete):
        return replace(
            operation,
            updated_fragments=updated,
            deleted_fragment_ids=operation.deleted_fragment_ids + gone,
        )
    return replace(
        operation,
        updated_fragments=updated,
        removed_fragment_ids=operation.removed_fragment_ids + gone,
    )
