"""Merges sorted keys of several sources into one run, and renumbers their rows.

    source      rows 0 1 2 | 3 4                two files
    numbers          0 1 2 | REMOVED REMOVED    the merged run has only the first file

A source numbers its rows in the order of its files. A table gives the number of every row in the
merged run, both for whole files and for rows that a compaction has moved. Merging proceeds in the
order of the words, a few chunks of every source at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from lance_stream.arrays import U64s
from lance_stream.keys.index.run_format import CHUNK_ROWS, CoveredFile, Keys, U32s

T = TypeVar("T")

RUNS_OF_A_TIER: Final = 4
"""The number of runs of similar size, within a factor of four, that triggers a merge."""

REMOVED: Final = np.uint32(0xFFFFFFFF)
"""The number of a row that the merged run omits; no run has this many rows."""

_CHUNKS_AT_ONCE: Final = 32


class KeySource(Protocol):
    """Keys that can be merged.

    Attributes:
        words: (n,) u64, ascending.
        others: (n,) u32; None if words are exact.
        rows: (n,) u32 numbers of rows, which `starts` assign to files.
    """

    @property
    def words(self) -> U64s:
        """The words of the keys."""
        ...

    @property
    def others(self) -> U32s | None:
        """Further bits of the keys."""
        ...

    @property
    def rows(self) -> U32s:
        """The rows of the keys."""
        ...


class RenumberedKeys(NamedTuple):
    """Keys to merge, and the new numbers of their rows.

    Attributes:
        source: The keys.
        numbers: (num_rows,) u32, the number of each row of the source in the merged run; `REMOVED`
            if the merged run omits it. None if all rows keep their numbers.
    """

    source: KeySource
    numbers: U32s | None


def groups_to_merge(
    runs: Iterable[tuple[T, int]], *, min_keys: int, max_keys: int, merges_all: bool = False
) -> list[tuple[T, ...]]:
    """Return the groups of runs to merge: the policy of every merge.

    Args:
        runs: The runs, with their numbers of keys.
        min_keys: Runs with fewer keys share the lowest tier.
        max_keys: The maximum number of keys in a merged run.
        merges_all: Whether to merge tiers with few runs, too, because most keys belong to files
            that no longer exist.
    """
    tiers: dict[int, list[tuple[T, int]]] = {}
    for run, num_keys in sorted(runs, key=lambda sized: sized[1]):
        tier = max(num_keys // min_keys, 1).bit_length() // 2
        tiers.setdefault(tier, []).append((run, num_keys))
    return [
        group
        for tier_runs in tiers.values()
        if merges_all or len(tier_runs) >= RUNS_OF_A_TIER
        for group in in_groups(tier_runs, max_keys)
    ]


def in_groups(sized: Iterable[tuple[T, int]], max_size: int) -> list[tuple[T, ...]]:
    """Group items in order, as many per group as their sizes allow.

    Args:
        sized: The items, with their sizes.
        max_size: The maximum size of a group; a larger item is a group by itself.
    """
    groups: list[list[T]] = []
    total = 0
    for item, size in sized:
        if not groups or total + size > max_size:
            groups.append([])
            total = 0
        groups[-1].append(item)
        total += size
    return [tuple(group) for group in groups]


def planned_parts(
    sources: Sequence[tuple[KeySource, Sequence[CoveredFile]]], table_files: set[CoveredFile]
) -> tuple[list[CoveredFile], list[RenumberedKeys]]:
    """Return the files of a merged run, and the new numbers of its sources' rows.

    Args:
        sources: Keys, and the files whose rows they number.
        table_files: The files to keep. A file comes from the first source that has it.
    """
    remaining = set(table_files)
    files: list[CoveredFile] = []
    parts: list[RenumberedKeys] = []
    first = 0
    for source, source_files in sources:
        numbers = np.full(sum(file.num_rows for file in source_files), REMOVED, np.uint32)
        start = 0
        for file in source_files:
            stop = start + file.num_rows
            if file in remaining:
                remaining.remove(file)
                files.append(file)
                numbers[start:stop] = np.arange(first, first + file.num_rows, dtype=np.uint32)
                first += file.num_rows
            start = stop
        parts.append(RenumberedKeys(source, numbers))
    return files, parts


def merged(parts: Sequence[RenumberedKeys]) -> Iterator[Keys]:
    """Yield the keys of several sources in order, some at a time."""
    # Every `_CHUNKS_AT_ONCE`-th first word of a chunk separates two steps; the edges are the
    # positions of these words in every source.
    samples = np.sort(np.concatenate([part.source.words[::CHUNK_ROWS] for part in parts]))
    bounds = samples[_CHUNKS_AT_ONCE::_CHUNKS_AT_ONCE]
    edges = [
        np.concatenate([[0], np.searchsorted(part.source.words, bounds), [len(part.source.words)]])
        for part in parts
    ]
    for step in range(len(bounds) + 1):
        some = [
            _renumbered(part, int(edges_of_part[step]), int(edges_of_part[step + 1]))
            for part, edges_of_part in zip(parts, edges, strict=True)
        ]
        yield some[0] if len(some) == 1 else _in_order(some)


def _in_order(some: Sequence[Keys]) -> Keys:
    words = np.concatenate([keys.words for keys in some])
    order = np.argsort(words, kind="stable")
    others = [keys.others for keys in some if keys.others is not None]
    return Keys(
        words[order],
        np.concatenate(others)[order] if others else None,
        np.concatenate([keys.rows for keys in some])[order],
    )


def _renumbered(part: RenumberedKeys, start: int, stop: int) -> Keys:
    source = part.source
    words, rows = source.words[start:stop], source.rows[start:stop]
    others = None if source.others is None else source.others[start:stop]
    if part.numbers is None:
        return Keys(words, others, rows)
    rows = part.numbers[rows]
    is_used = rows != REMOVED
    if bool(is_used.all()):
        return Keys(words, others, rows)
    return Keys(words[is_used], None if others is None else others[is_used], rows[is_used])
