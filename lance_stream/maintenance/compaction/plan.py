"""Plans a compaction: chooses the fragments to merge.

    candidates    fragments with fewer live rows than the target, or too large a share of deleted
                  rows
    groups        adjacent candidates that the same indices cover, so that these can cover the new
                  fragments; up to the target number of rows, and the size of a data file. A group
                  of one fragment only if it has too many deleted rows. If files cannot store nulls,
                  the fragments of a group lack the same columns
    a round       all groups; or those with the largest gain per written row, up to a number of
                  rows and bytes

Repeated compaction while rows arrive goes *by steps*: the last group, which still receives rows, is
merged only if no fragment in it is larger than all others together. So a row is rewritten when its
fragment has doubled in size, and not whenever a few rows arrive.

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from lance_stream.arguments import as_count
from lance_stream.file.type_support import holds_only_nulls
from lance_stream.maintenance.compaction.row_order import has_disordered_lineage
from lance_stream.read.units import stored_bytes_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.index_coverage import coverage
from lance_stream.table.config.lineage_limits import is_misplaced
from lance_stream.table.indices import decode_index_section
from lance_stream.write.fragments import MAX_BYTES_PER_FILE
from lance_stream.write.lineage_files import limit_of

TARGET_ROWS: Final = 1 << 20
"""The desired number of rows of a fragment."""

MAX_DELETED_FRACTION: Final = 0.1
"""A fragment is rewritten if more than this share of its rows is deleted."""


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The goals of a compaction, and the limits of one round.

    Attributes:
        target_rows: The desired number of rows of a fragment.
        max_deleted_fraction: The share of a fragment's rows that may be deleted, 0 to 1.
        by_steps: Whether rows still arrive, so that small fragments wait for others of similar
            size.
        max_rows: The maximum number of rows written, unless one group has more; None for all.
        max_bytes: The approximate maximum size of the data files read, unless one fragment has
            more; None for all.
        max_file_bytes: The approximate maximum size of a data file. Fragments whose total size
            exceeds it are not merged: there would be as many new files.
        whole_groups: Whether `max_bytes` does not split groups: the first group may exceed it.
        newest_fragment: The largest id of the fragments to rewrite; None for any.
        fan_in: The minimum number of fragments that are merged because they are small.
        shortens_lineage: Whether a fragment is also rewritten only to make its row ids and row
            versions much shorter (`row_order`).
    """

    target_rows: int = TARGET_ROWS
    max_deleted_fraction: float = MAX_DELETED_FRACTION
    by_steps: bool = False
    max_rows: int | None = None
    max_bytes: int | None = None
    max_file_bytes: int = MAX_BYTES_PER_FILE
    whole_groups: bool = False
    newest_fragment: int | None = None
    fan_in: int = 2
    shortens_lineage: bool = False

    def __post_init__(self) -> None:
        as_count(self.target_rows, "a fragment has")
        as_count(self.fan_in, "a group has")


DEFAULT_RULES: Final = CompactionRules()


class _Candidate(NamedTuple):
    fragment_index: int
    live: int
    is_worthwhile: bool
    num_deleted: int
    num_bytes: int


def plan(table: TableVersion, rules: CompactionRules = DEFAULT_RULES) -> list[tuple[int, ...]]:
    """Return the groups of fragments to merge, as indices into the manifest, ascending."""
    if not table.schema.fields:  # no writer creates such a table
        return []
    groups = [
        part for group in _groups(table, rules) for part in group if _is_worthwhile(part, rules)
    ]
    if rules.max_rows is not None or rules.max_bytes is not None:
        groups = _groups_of_largest_gain(groups, rules)
    return [tuple(candidate.fragment_index for candidate in group) for group in groups]


def _groups(table: TableVersion, rules: CompactionRules) -> Iterator[list[list[_Candidate]]]:
    """Yield runs of adjacent candidates that can be merged, each divided into groups."""
    kind_of = _kinds(table)
    max_bytes = rules.max_file_bytes
    if rules.max_bytes is not None and not rules.whole_groups:
        max_bytes = min(max_bytes, rules.max_bytes)
    group: list[_Candidate] = []
    group_rows, group_bytes, group_kind = 0, 0, None
    for candidate in _candidates(table, rules):
        kind = kind_of(candidate.fragment_index)
        if group and (
            candidate.fragment_index > group[-1].fragment_index + 1
            or group_rows + candidate.live > rules.target_rows
            or group_bytes + candidate.num_bytes > max_bytes
            or group_kind != kind
        ):
            yield [group]
            group = []
        if not group:
            group_rows, group_bytes, group_kind = 0, 0, kind
        group.append(candidate)
        group_rows += candidate.live
        group_bytes += candidate.num_bytes
    is_last = bool(group) and group[-1].fragment_index == len(table.manifest.fragments) - 1
    yield list(_steps(group)) if rules.by_steps and is_last else [group]


def _candidates(table: TableVersion, rules: CompactionRules) -> Iterator[_Candidate]:
    """Yield the fragments that may be rewritten, in order; decodes only a few of them."""
    fragments, rows = table.manifest.fragments, table.row_counts
    physical, live = rows
    is_worthwhile = live < (1 - rules.max_deleted_fraction) * physical
    if rules.shortens_lineage:
        sizes = np.fromiter(map(len, fragments.raws), np.int64, len(fragments))
        may_be_long = ~is_worthwhile & (live >= rules.target_rows // 8) & (sizes > physical)
        for index in np.flatnonzero(may_be_long).tolist():
            is_worthwhile[index] = has_disordered_lineage(table, fragments[index])
    is_worthwhile[_misplaced(table)] = True
    is_candidate = (live < rules.target_rows) | is_worthwhile
    if rules.newest_fragment is not None:
        is_candidate &= fragments.numbers.ids <= rules.newest_fragment
    positions = np.flatnonzero(is_candidate)
    columns = (live, is_worthwhile, physical - live, stored_bytes_of(table))
    yield from map(
        _Candidate, positions.tolist(), *(column[positions].tolist() for column in columns)
    )


def _misplaced(table: TableVersion) -> list[int]:
    """Return the indices of fragments whose lineage is not where the table's config puts it."""
    fragments, limit = table.manifest.fragments, limit_of(table)
    if limit is None:
        return np.flatnonzero(fragments.numbers.has_hidden_lineage).tolist()
    long = [index for index, raw in enumerate(fragments.raws) if len(raw) > limit]
    return [index for index in long if is_misplaced(fragments[index], limit)]


def _steps(group: Sequence[_Candidate]) -> Iterator[list[_Candidate]]:
    """Split a group at each fragment that is larger than all others together."""
    waiting = [list(group)]
    while waiting:
        part = waiting.pop()
        largest = max(range(len(part)), key=lambda index: part[index].live, default=0)
        if len(part) < 2 or 2 * part[largest].live <= sum(candidate.live for candidate in part):
            yield part
            continue
        waiting += [part[largest + 1 :], [part[largest]], part[:largest]]


def _is_worthwhile(group: Sequence[_Candidate], rules: CompactionRules) -> bool:
    return len(group) >= rules.fan_in or any(candidate.is_worthwhile for candidate in group)


def _groups_of_largest_gain(
    groups: Sequence[list[_Candidate]], rules: CompactionRules
) -> list[list[_Candidate]]:
    """Return the groups with the best ratio of gain to cost, within the limits of a round."""

    def gain(group: list[_Candidate]) -> float:
        saved = (
            len(group) - 1 + sum(candidate.num_deleted for candidate in group) / rules.target_rows
        )
        return saved / (1 + sum(candidate.live for candidate in group))

    chosen: list[list[_Candidate]] = []
    num_rows = num_bytes = 0
    for group in sorted(groups, key=gain, reverse=True):
        num_rows += sum(candidate.live for candidate in group)
        num_bytes += sum(candidate.num_bytes for candidate in group)
        has_too_many_rows = rules.max_rows is not None and num_rows > rules.max_rows
        is_too_large = rules.max_bytes is not None and num_bytes > rules.max_bytes
        if chosen and (has_too_many_rows or is_too_large):
            break
        chosen.append(group)
    return sorted(chosen, key=lambda group: group[0].fragment_index)


def _kinds(table: TableVersion) -> Callable[[int], Hashable]:
    """Return a function of a fragment's index; fragments can be merged if its values are equal."""
    covered_by = coverage_of(table)
    fragments, ids = table.manifest.fragments, table.manifest.fragments.ids
    never_null = [
        frozenset(part.id for part in field.walk())
        for field in table.schema.fields
        if not holds_only_nulls(field, table.file_version)
    ]
    if not never_null:
        return lambda index: covered_by(ids[index])

    def kind(index: int) -> Hashable:
        stored_ids = {field_id for file in fragments[index].files for field_id in file.field_ids}
        return covered_by(ids[index]), tuple(
            columns.isdisjoint(stored_ids) for columns in never_null
        )

    return kind


def coverage_of(table: TableVersion) -> Callable[[int], frozenset[bytes]]:
    """Return a function from a fragment id to the uuids of the indices that cover it."""
    section = table.manifest.index_section
    coverage_by_fragment = {
        index.uuid: coverage(index)
        for index in (() if section is None else decode_index_section(section))
        if index.fragment_bitmap
    }
    if not coverage_by_fragment:
        return lambda _: frozenset()
    return lambda fragment_id: frozenset(
        uuid for uuid, fragment_ids in coverage_by_fragment.items() if fragment_id in fragment_ids
    )
