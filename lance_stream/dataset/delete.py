"""Deleting rows: what a condition chooses dies, in new deletion files; no data file is touched.

Only the columns of the condition are read. A deletion file is complete: it holds the rows that
were dead before, too. A fragment of which every row is dead leaves the table.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lance_stream.commit.committer import Skipped
from lance_stream.commit.rebasing import write_deletion_file
from lance_stream.commit.world import REAL_WORLD, World
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.scan import check_filter, read_units
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import CommitConflictError, InvalidInputError, LanceStreamError
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.storage.store import Store
from lance_stream.table.fragments import Fragment
from lance_stream.table.operations import Delete
from lance_stream.table.paths import deletion_file_path
from lance_stream.table.row_addresses import unpack_addresses

Offsets = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class PlannedDelete:
    """A delete that was planned on a version, its deletion files written.

    Attributes:
        operation: What is to be committed.
        num_rows: How many rows die by it.
    """

    operation: Delete
    num_rows: int

    def delete_files(self, store: Store) -> None:
        """Delete the files of a plan that is known not to have been committed, best effort."""
        for fragment in self.operation.updated_fragments:
            if fragment.deletion_file is not None:
                with suppress(OSError, LanceStreamError):
                    store.delete(deletion_file_path(fragment.id, fragment.deletion_file))


def delete(table: TableVersion, predicate: str, world: World = REAL_WORLD) -> TableVersion:
    """Delete the rows for which a condition is true; see `Dataset.delete`.

    Args:
        table: Any version; the rows of the newest one are deleted.
        predicate: A SQL expression.
        world: Clock and chance.
    """

    def attempt() -> TableVersion:
        newest = checkout(table, None)
        plan = plan_delete(newest, predicate, world)
        if not plan.num_rows:
            return newest
        try:
            result = commit_operation(table.log, newest.version, plan.operation)
        except CommitConflictError:
            plan.delete_files(table.store)  # known to have failed
            raise
        if isinstance(result, Skipped):
            raise InvalidInputError(f"nothing was deleted: {result.reason}")
        return table.at(result.manifest)

    return planning_again(attempt)


def plan_delete(table: TableVersion, predicate: str, world: World) -> PlannedDelete:
    """Find the rows for which a condition is true, and write the deletion files that say so.

    Raises:
        NotFoundError: The condition names a column that is not there.
        InvalidInputError: The condition is not understood.
    """
    check_filter(table, predicate)
    dying: list[tuple[Fragment, Offsets]] = []
    removed: list[int] = []
    num_rows = 0
    for place, offsets in _chosen_rows(table, predicate):
        fragment = table.manifest.fragments[place]
        num_rows += len(offsets)
        dead = np.union1d(table.dead_offsets(fragment), offsets)
        if len(dead) == table.physical_rows(fragment):
            removed.append(fragment.id)
        else:
            dying.append((fragment, dead))
    # nothing is written before all has been read
    updated = tuple(_with_dead_rows(table, *each, world) for each in dying)
    return PlannedDelete(Delete(updated, tuple(removed), predicate), num_rows)


def _chosen_rows(table: TableVersion, predicate: str) -> Iterator[tuple[int, Offsets]]:
    """Yield the place of each fragment that has rows to delete, with their offsets."""
    fragments = table.manifest.fragments
    units = [
        table.unit(place, columns=(), system_columns=(ROW_ADDRESS,), filter=predicate)
        for place in range(len(fragments))
    ]
    found: list[npt.NDArray[np.uint64]] = [
        batch.column(0).to_numpy(zero_copy_only=False) for batch in read_units(units)
    ]
    if not found:
        return
    fragment_ids, offsets = unpack_addresses(np.concatenate(found))
    for fragment_id in np.unique(fragment_ids).tolist():
        chosen = offsets[fragment_ids == fragment_id].astype(np.uint32)
        yield fragments.place_of[fragment_id], chosen


def _with_dead_rows(
    table: TableVersion, fragment: Fragment, dead: Offsets, world: World
) -> Fragment:
    file = write_deletion_file(table.store, fragment.id, dead, table.version, world.random_id())
    return replace(fragment, deletion_file=file, physical_rows=table.physical_rows(fragment))
