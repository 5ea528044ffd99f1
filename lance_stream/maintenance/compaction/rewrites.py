"""The slow part of a compaction: writes live rows to new, unreferenced fragments.

    task        the work of one worker: rewrites one group; picklable
    group       the old fragments, their deleted rows, and the new fragments

Rows keep their order, or are written in one that makes their lineage shorter (`row_order`). A
driver creates the tasks, runs them itself or on Spark's workers, and adds the row ids and row
versions of the rows to the new fragments. `compact` then adapts the groups to concurrent changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from lance_stream.arrays import Positions, U64s
from lance_stream.errors import InvalidInputError
from lance_stream.keys.bounds.cached_key_bounds import inherit_key_bounds
from lance_stream.keys.index.key_index import MAX_SAVED_ROWS
from lance_stream.keys.index.remap_keys import RewrittenFiles, remap_keys
from lance_stream.maintenance.compaction.plan import DEFAULT_RULES, CompactionRules, plan
from lance_stream.maintenance.compaction.row_order import (
    Lineage,
    lineage_of,
    order_of,
    read_lineage,
    reordered,
)
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.conflicts.carried_rows import RewrittenRows
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.row_ids import encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.version import VERSION
from lance_stream.write.fragments import WriteTarget, delete_files, write_fragments, write_target
from lance_stream.write.lineage_files import with_lineage_files

_IDS_PER_STEP: Final = 1 << 16
"""The number of row ids that are encoded at once."""


@dataclass(frozen=True)
class RewriteTask:
    """Some fragments to rewrite, in order; picklable and self-contained.

    Attributes:
        units: The work units that read their live rows.
        target: Where and how to write the new files.
        release: The release that planned the task. Planner and worker determine the order of rows
            independently, so only the same release can execute it.
    """

    units: tuple[WorkUnit, ...]
    target: WriteTarget
    release: str = VERSION


WriteTasks: TypeAlias = Callable[[Sequence[RewriteTask]], Iterable[Sequence[Fragment]]]
"""Executes tasks, here or elsewhere; yields the results of `write_task` in order. If it raises, the
files of the tasks that it has not yielded are deleted, as far as possible.
"""


@dataclass(frozen=True)
class PreparedGroup:
    """Fragments of one version, and new ones that contain their live rows.

    Attributes:
        old: The fragments in the version on which the compaction was planned.
        rows: The number of rows of each old fragment, and its deleted rows.
        new: The new fragments, with the row ids and row versions of their rows, but without
            fragment ids.
        order: The order in which the live rows were written; None for their previous order.
    """

    old: tuple[Fragment, ...]
    rows: tuple[RewrittenRows, ...]
    new: tuple[Fragment, ...]
    order: Positions | None = None

    @property
    def rewritten_files(self) -> RewrittenFiles:
        """The new locations of the rows, for the key index."""
        return RewrittenFiles(self.old, self.rows, self.new, self.order)


@dataclass(frozen=True)
class PreparedCompaction:
    """A compaction whose files are written, but that is not committed.

    Attributes:
        table: The version on which it was planned.
        groups: The groups, with their new fragments.
    """

    table: TableVersion
    groups: tuple[PreparedGroup, ...]

    def delete_files(self, store: Store) -> None:
        """Delete the files of a compaction that is known not to have been committed."""
        delete_files(store, [fragment for group in self.groups for fragment in group.new])


def write_task(
    task: RewriteTask, before_batch: Callable[[], object] = lambda: None
) -> list[Fragment]:
    """Write the live rows of a task's fragments into new ones; runs on workers.

    Args:
        task: The task.
        before_batch: Called before each batch of rows; if it raises, the written files are deleted.

    Returns:
        The new fragments, without ids, row ids and row versions.

    Raises:
        BadDataError: A file is damaged, or uses an unsupported feature; no file is left behind.
        InvalidInputError: Another release planned the task.
    """
    if task.release != VERSION:
        raise InvalidInputError(
            f"a worker has lance-stream {VERSION}, but the driver {task.release}: they could write "
            "rows in different orders. Nothing was written; install the same release on the driver "
            "and all workers"
        )

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in read_units(task.units):
            before_batch()
            yield batch

    order = order_of(task.units, partial(read_lineage, task.units))
    rows = batches() if order is None else reordered(batches(), order)
    return write_fragments(rows, task.target)


def write_locally(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
    """Execute tasks in this process, one after another."""
    yield from map(write_task, tasks)


def prepare(
    table: TableVersion,
    rules: CompactionRules = DEFAULT_RULES,
    write: WriteTasks = write_locally,
) -> PreparedCompaction:
    """Plan a compaction of a version, and write its files.

    Args:
        table: The version.
        rules: The goals of the compaction.
        write: Executes the tasks.

    Raises:
        InvalidInputError: The rules are invalid.
        BadDataError: A file is damaged, or uses an unsupported feature; no file is left behind.
    """
    planned = plan(table, rules)
    target = replace(
        write_target(table),
        max_rows_per_file=rules.target_rows,
        max_bytes_per_file=rules.max_file_bytes,
    )
    tasks = [
        RewriteTask(
            tuple(unit_of(table, index, columns=tuple(table.schema.names)) for index in positions),
            target,
        )
        for positions in planned
    ]
    groups: list[PreparedGroup] = []
    written: list[Fragment] = []
    num_remapped = 0
    try:
        for positions, task, new in zip(planned, tasks, write(tasks) if tasks else (), strict=True):
            written += new
            groups.append(_prepared_group(table, positions, task, new))
            if _num_written(groups[num_remapped:]) >= MAX_SAVED_ROWS:
                remap_keys(table, [group.rewritten_files for group in groups[num_remapped:]])
                num_remapped = len(groups)
        remap_keys(table, [group.rewritten_files for group in groups[num_remapped:]])
    except BaseException:
        delete_files(
            table.store, [*written, *(fragment for group in groups for fragment in group.new)]
        )
        raise
    return PreparedCompaction(table, tuple(groups))


def _num_written(groups: Sequence[PreparedGroup]) -> int:
    return sum(row.num_written for group in groups for row in group.rows)


def _prepared_group(
    table: TableVersion, positions: Sequence[int], task: RewriteTask, new: Sequence[Fragment]
) -> PreparedGroup:
    old = tuple(table.manifest.fragments[index] for index in positions)
    inherit_key_bounds(table, old, new)
    deleted_by_fragment = table.deleted_offsets_of(old)
    rows = tuple(
        RewrittenRows(table.physical_rows(fragment), deleted)
        for fragment, deleted in zip(old, deleted_by_fragment, strict=True)
    )
    if not table.has_stable_row_ids:
        return PreparedGroup(old, rows, tuple(new))
    lineage = lineage_of(table, old)
    order = order_of(task.units, lambda: lineage)
    if order is not None:
        lineage = lineage.take(order)
    fragments = with_lineage_files(table, _with_lineage(new, lineage))
    return PreparedGroup(old, rows, tuple(fragments), order)


def _with_lineage(new: Sequence[Fragment], lineage: Lineage) -> list[Fragment]:
    """Return new fragments with the lineage of their rows, which is in the order of the rows."""
    results: list[Fragment] = []
    first = 0
    for fragment in new:
        rows_of_fragment = slice(first, first + fragment.physical_rows)
        first = rows_of_fragment.stop
        results.append(
            replace(
                fragment,
                row_ids=_encoded_ids(lineage.row_ids[rows_of_fragment]),
                created_at_versions=encode_row_versions(
                    RowVersionSequence.from_array(lineage.created[rows_of_fragment])
                ),
                last_updated_at_versions=encode_row_versions(
                    RowVersionSequence.from_array(lineage.updated[rows_of_fragment])
                ),
            )
        )
    return results


def _encoded_ids(row_ids: U64s) -> bytes:
    """Return encoded row ids, as a whole or in parts, whichever is shorter.

    Rows that many versions changed form short ascending runs, and each part has its own encoding.
    """
    whole = encode_row_ids(row_ids)
    if len(whole) <= len(row_ids):
        return whole
    in_parts = b"".join(
        encode_row_ids(row_ids[first : first + _IDS_PER_STEP])
        for first in range(0, len(row_ids), _IDS_PER_STEP)
    )
    return min(whole, in_parts, key=len)
