"""Compaction: rows of small fragments, and of those with many dead rows, in fewer new fragments.

No row changes: row ids and version stamps go with the rows, the dead rows are left behind, and
readers of the feed see nothing. Fragments are put together with their neighbours only, and only
with those that the same indices cover, so that indices can follow them.

    candidates    fewer rows than wanted, or more than a tenth of them dead
    groups        neighbours among the candidates, up to the number of rows wanted; one alone only
                  if it has dead rows to leave behind
    commit        one Rewrite for all groups; who changes one of the fragments meanwhile wins, and
                  the group is planned again

Source: facts of the format, section 4; measured on the reference.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lance_stream.commit.committer import Skipped
from lance_stream.dataset.append import write_target
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.scan import read_units
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.write_fragments import delete_files, write_fragments
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.table.apply.index_coverage import coverage
from lance_stream.table.fragments import Fragment
from lance_stream.table.indices import decode_index_section
from lance_stream.table.operations import Rewrite, RewriteGroup
from lance_stream.table.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.row_versions import (
    RowVersionSequence,
    decode_row_versions,
    encode_row_versions,
)

TARGET_ROWS: Final = 1 << 20
"""How many rows a fragment is to have."""

MOST_DEAD: Final = 0.1
"""A fragment of which more than this part of the rows is dead is written anew."""


@dataclass(frozen=True)
class Compacted:
    """What became of a compaction.

    Attributes:
        table: The version that was made; where there was nothing to do, the newest one.
        num_removed: How many fragments are gone.
        num_added: How many have come.
    """

    table: TableVersion
    num_removed: int = 0
    num_added: int = 0


def compact(table: TableVersion, target_rows: int = TARGET_ROWS) -> Compacted:
    """Write small fragments, and those with many dead rows, anew; see `Dataset.compact`.

    Args:
        table: Any version; the newest one is compacted.
        target_rows: How many rows a fragment is to have.
    """
    if target_rows < 1:
        raise InvalidInputError(f"a fragment has at least one row, not {target_rows}")

    def attempt() -> Compacted:
        newest = checkout(table, None)
        groups = [rewrite_group(newest, each, target_rows) for each in plan(newest, target_rows)]
        if not groups:
            return Compacted(newest)
        new = [each for group in groups for each in group.new_fragments]
        try:
            result = commit_operation(table.log, newest.version, Rewrite(tuple(groups)))
        except CommitConflictError:
            delete_files(table.store, new)  # known to have failed
            raise
        if isinstance(result, Skipped):
            raise InvalidInputError(f"nothing was compacted: {result.reason}")
        num_removed = sum(len(each.old_fragments) for each in groups)
        return Compacted(table.at(result.manifest), num_removed, len(new))

    return planning_again(attempt)


def plan(table: TableVersion, target_rows: int = TARGET_ROWS) -> list[tuple[int, ...]]:
    """Return which fragments are to be put together, as places in the manifest."""
    fragments = table.manifest.fragments
    live = [table.num_live_rows(each) for each in fragments]
    physical = [table.physical_rows(each) for each in fragments]
    covered_by = _coverage_of(table)
    groups: list[list[int]] = []
    open_group: list[int] = []
    for place, fragment in enumerate(fragments):
        many_dead = live[place] < (1 - MOST_DEAD) * physical[place]
        if live[place] >= target_rows and not many_dead:
            open_group = []
            continue
        fits = (
            open_group
            and sum(live[each] for each in open_group) + live[place] <= target_rows
            and covered_by(fragments[open_group[0]].id) == covered_by(fragment.id)
        )
        if not fits:
            open_group = []
            groups.append(open_group)
        open_group.append(place)

    def pays(group: Sequence[int]) -> bool:
        return len(group) > 1 or any(
            live[each] < (1 - MOST_DEAD) * physical[each] for each in group
        )

    return [tuple(each) for each in groups if pays(each)]


def rewrite_group(
    table: TableVersion, places: Sequence[int], target_rows: int = TARGET_ROWS
) -> RewriteGroup:
    """Write the live rows of some fragments into new ones.

    Args:
        table: The version that the fragments are of.
        places: Where they stand in its manifest.
        target_rows: How many rows a new fragment has at most.

    Raises:
        BadDataError: A file is damaged, or has what is not supported; no file is left behind.
    """
    old = [table.manifest.fragments[place] for place in places]
    units = [table.unit(place, columns=tuple(table.schema.names)) for place in places]
    new = write_fragments(
        read_units(units), replace(write_target(table), max_rows_per_file=target_rows)
    )
    if table.has_stable_row_ids:
        new = list(_with_lineage(table, old, new))
    return RewriteGroup(tuple(old), tuple(new))


def _with_lineage(
    table: TableVersion, old: Sequence[Fragment], new: Sequence[Fragment]
) -> Iterator[Fragment]:
    """Yield new fragments with the row ids and stamps of their rows, in the order of the old."""
    dead = [table.dead_offsets(each) for each in old]
    ids = [table.row_ids(each).without(gone) for each, gone in zip(old, dead, strict=True)]
    row_ids = RowIdSequence.concat(ids).to_array()
    created, updated = (
        RowVersionSequence.concat(
            _stamps(table, each, name).without(gone) for each, gone in zip(old, dead, strict=True)
        ).to_array()
        for name in ("created_at_versions", "last_updated_at_versions")
    )
    first = 0
    for fragment in new:
        rows = slice(first, first + fragment.physical_rows)
        first = rows.stop
        yield replace(
            fragment,
            row_ids=encode_row_ids(row_ids[rows]),
            created_at_versions=encode_row_versions(RowVersionSequence.from_array(created[rows])),
            last_updated_at_versions=encode_row_versions(
                RowVersionSequence.from_array(updated[rows])
            ),
        )


def _stamps(table: TableVersion, fragment: Fragment, name: str) -> RowVersionSequence:
    stored = getattr(fragment, name)
    data = None if stored is None else table.files.sequence(stored)
    return decode_row_versions(data, table.physical_rows(fragment))


def _coverage_of(table: TableVersion) -> Callable[[int], frozenset[bytes]]:
    """Return what says which indices cover a fragment, by their uuids."""
    section = table.manifest.index_section
    known = {
        each.uuid: coverage(each)
        for each in (() if section is None else decode_index_section(section))
        if each.fragment_bitmap
    }
    return lambda fragment_id: frozenset(
        uuid for uuid, fragment_ids in known.items() if fragment_id in fragment_ids
    )
