"""Plans one Update from the written files: deletion files, new columns, and inserted keys.

The transaction lists the hashes of the inserted keys, so that two writers that insert the same new
key conflict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import RowAddresses
from lance_stream.environment import MACHINE, Environment
from lance_stream.keys.bounds.cached_key_bounds import key_bounds
from lance_stream.row_updates.changed_rows import moved_lineage, with_moved_lineage, without_rows
from lance_stream.row_updates.in_place import changed_offsets, ids_of, with_new_columns
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.lineage.ascending import distinct
from lance_stream.table.operations.key_filters import BloomFilter, KeyExistenceFilter
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.upsert.row_writer import UpsertPart, Written
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.tombstones import (
    PlannedTombstones,
    RememberedDeletes,
    plan_tombstones,
)
from lance_stream.write.lineage_files import lineage_paths, with_lineage_files
from lance_stream.write.planning import StagedFiles

MAX_KEY_HASHES: Final = 1 << 18
"""The maximum number of inserted keys listed by hash; a larger insert conflicts with any key."""

_ANY_KEY: Final = BloomFilter(b"\xff" * (16 << 10), (16 << 10) * 8, 8192, 0.00057)


class Work(NamedTuple):
    """What a strategy wrote for a version.

    Attributes:
        parts: The outcomes of all parts; at most one of them touches each row of the table.
        stored: The incoming columns that are stored.
        remembered: The deletes, or shadowed events, that the version remembers; None if there are
            none to honor or to add.
    """

    parts: Sequence[UpsertPart]
    stored: Sequence[str]
    remembered: RememberedDeletes | None


@dataclass(frozen=True)
class PlannedUpdate:
    """An Update planned on a version.

    Attributes:
        operation: The operation to commit.
        staged: The files that were written for it.
        untouched: u64 addresses of the rows that it leaves untouched; see `Decision`.
        tombstones: The deletes to remember; None if the upsert does not remember deletes.
    """

    operation: Update
    staged: StagedFiles
    untouched: RowAddresses
    tombstones: PlannedTombstones | None

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        operation = self.operation
        is_remembering = self.tombstones is not None and bool(self.tombstones.added.files)
        return is_remembering or bool(
            operation.new_fragments or operation.updated_fragments or operation.removed_fragment_ids
        )


def plan_update(
    table: TableVersion, work: Work, rules: UpsertRules, environment: Environment = MACHINE
) -> PlannedUpdate:
    """Combine what a strategy wrote into one operation; write its deletion and tombstone files.

    Args:
        table: The version that was planned on.
        work: What was written.
        rules: The user's rules for the rows.
        environment: Randomness, for file names.
    """
    parts = [part.written for part in work.parts]
    remembered = work.remembered
    changed = np.sort(np.concatenate([_NO_ADDRESSES, *(part.changed for part in parts)]))
    new = _new_fragments(table, parts, changed)
    deleted = [part.decision.deleted for part in parts]
    updated, removed = without_rows(
        table, np.sort(np.concatenate([changed, *deleted])), environment
    )
    placed = with_lineage_files(table, new)
    paths = lineage_paths(new, placed)
    changed_fields = ids_of(
        field
        for field in table.schema.fields
        if field.name in work.stored and field.name not in rules.on
    )
    in_place = [fragment for part in parts for fragment in part.in_place]
    operation = Update(
        removed_fragment_ids=removed,
        updated_fragments=with_new_columns(table, updated, in_place),
        new_fragments=tuple(placed),
        fields_modified=changed_fields if in_place else (),
        fields_for_preserving_frag_bitmap=changed_fields,
        update_mode=UpdateMode.REWRITE_COLUMNS if in_place else UpdateMode.REWRITE_ROWS,
        updated_fragment_offset_bitmaps={
            fragment_id: offsets
            for part in parts
            for fragment_id, offsets in changed_offsets(
                part.decision.changed, part.in_place
            ).items()
        },
        inserted_rows=_inserted_keys(table, rules, [part.inserted_keys for part in parts]),
    )
    # Files are immutable: their bounds are valid even if the commit fails.
    key_bounds(table, rules.on).add_bounds(
        file_bounds for part in parts for file_bounds in part.file_bounds
    )
    untouched = np.concatenate([_NO_ADDRESSES, *(part.decision.untouched for part in parts)])
    tombstones = None
    if remembered is not None and remembered.is_remembering:
        deletes = [part.deletes for part in parts if part.deletes is not None]
        tombstones = plan_tombstones(remembered, deletes, table.schema, environment)
        paths = (*paths, *tombstones.paths)
    staged = StagedFiles(with_deletion_files=updated, others=paths)
    return PlannedUpdate(operation, staged, untouched, tombstones)


_NO_ADDRESSES: Final = np.empty(0, np.uint64)


def _new_fragments(
    table: TableVersion, parts: Sequence[Written], changed: RowAddresses
) -> list[Fragment]:
    """Return the new fragments of all parts, with the lineage of the rows that moved there.

    Args:
        table: The version that was planned on.
        parts: What was written.
        changed: u64 addresses of all rows that moved, ascending.
    """
    if not table.has_stable_row_ids:
        return [fragment for part in parts for fragment in part.fragments]
    lineage = moved_lineage(table, changed)
    return [
        fragment
        for part in parts
        for fragment in with_moved_lineage(
            part.fragments, lineage.at(np.searchsorted(changed, part.changed))
        )
    ]


def _inserted_keys(
    table: TableVersion, rules: UpsertRules, hashes: Sequence[npt.NDArray[np.uint64]]
) -> KeyExistenceFilter:
    field_ids = tuple(field.id for field in table.schema.fields if field.name in rules.on)
    listed = distinct(np.concatenate(hashes))
    if len(listed) > MAX_KEY_HASHES:
        return KeyExistenceFilter(field_ids, bloom=_ANY_KEY)
    return KeyExistenceFilter(field_ids, key_hashes=tuple(listed.tolist()))
