"""The index of keys of a table whose files many processes read: kept by tasks.

    driver    shared_index     the footers of the index's runs; reads no data file, and no key
              lacking          the fragments whose keys are in no run
              to_merge         runs that are better one
    tasks     index_keys       read the keys of some fragments, and write them as a run
              merge_runs       merge some runs

Tasks that look up ranges of keys then find the keys of all fragments in the index, and each copies
the chunks of its range only. A run that cannot be written, or is damaged or gone by then, is
harmless: a task that needs it reads the key columns of its files.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from lance_stream.caches import Cache
from lance_stream.keys.bounds.key_bounds import key_fields
from lance_stream.keys.index import key_index
from lance_stream.keys.index.key_runs import RunFooter
from lance_stream.keys.index.memory_runs import new_seeds
from lance_stream.keys.index.remembered_keys import (
    LEAST_SAVED_ROWS,
    MOST_MERGED_KEYS,
    MOST_SAVED_ROWS,
    RememberedKeys,
)
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import unit_of
from lance_stream.snapshot.table_version import TableVersion

T = TypeVar("T")

_RUNS_OF_A_SIZE: Final = 4
_MAX_FOOTER_BYTES: Final = 64 << 20
_FILE_BYTES: Final = 400


class SharedIndex(NamedTuple):
    """What the footers of an index's runs state.

    Attributes:
        on: Names of the key columns.
        seeds: The seeds of the hashes of all runs.
        runs: The footers, by the path; without runs that have other seeds.
    """

    on: tuple[str, ...]
    seeds: tuple[int, int]
    runs: dict[str, RunFooter]

    def lacking(self, table: TableVersion) -> list[tuple[int, int]]:
        """Return the fragments whose keys are in no run, and could be; each with its rows.

        Args:
            table: The version.
        """
        indexed = {each for footer in self.runs.values() for each in footer.files}
        keys = RememberedKeys(key_fields(table.schema, self.on), self.seeds)
        found: list[tuple[int, int]] = []
        for place, fragment in enumerate(table.manifest.fragments):
            file = keys.covered_by(fragment)
            is_new = file is not None and file not in indexed
            if is_new and 0 < fragment.physical_rows <= MOST_SAVED_ROWS:
                found.append((place, fragment.physical_rows))
        return found

    def to_merge(self) -> list[tuple[str, ...]]:
        """Return groups of runs of a similar size that are each better one run."""
        by_size: dict[int, list[str]] = {}
        for path, footer in sorted(self.runs.items(), key=lambda each: each[1].num_keys):
            size = max(footer.num_keys // LEAST_SAVED_ROWS, 1).bit_length() // 2
            by_size.setdefault(size, []).append(path)
        groups: list[tuple[str, ...]] = []
        for paths in by_size.values():
            if len(paths) >= _RUNS_OF_A_SIZE:
                sized = [(each, self.runs[each].num_keys) for each in paths]
                groups += in_groups(sized, MOST_MERGED_KEYS)
        return [group for group in groups if len(group) > 1]


def in_groups(sized: Iterable[tuple[T, int]], most: int) -> list[tuple[T, ...]]:
    """Return things in their order, as many together as their sizes allow.

    Args:
        sized: Each with its size.
        most: The size of a group; one thing that is larger is a group of its own.
    """
    groups: list[list[T]] = []
    held = most
    for each, size in sized:
        if not groups or held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(each)
        held += size
    return [tuple(group) for group in groups]


def shared_index(table: TableVersion, on: Sequence[str]) -> SharedIndex:
    """Return the index of a table's keys, as far as its footers show.

    Args:
        table: Any version.
        on: Names of the key columns.
    """
    wanted = RememberedKeys(key_fields(table.schema, on)).columns((0, 0))
    found: dict[str, RunFooter] = {}
    num_keys: dict[tuple[int, int], int] = {}
    for path in key_index.list_runs(table.store, wanted.field_ids) or ():
        footer = _footer_of(table, path)
        if footer is not None and footer.columns._replace(seeds=wanted.seeds) == wanted:
            found[path] = footer
            seeds = footer.columns.seeds
            num_keys[seeds] = num_keys.get(seeds, 0) + footer.num_keys
    seeds = max(num_keys, key=lambda each: num_keys[each], default=new_seeds())
    own = {path: each for path, each in found.items() if each.columns.seeds == seeds}
    return SharedIndex(tuple(on), seeds, own)


def _footer_of(table: TableVersion, path: str) -> RunFooter | None:
    name = table.store.uri, path
    footer = _footers.get(name)
    if footer is None:
        footer = key_index.footer_if_sound(table.store, path)
        if footer is not None:
            _footers.put(name, footer)
    return footer


_footers: Final[Cache[tuple[str, str], RunFooter]] = Cache(
    _MAX_FOOTER_BYTES,
    lambda each: each.firsts.nbytes + each.checks.nbytes + _FILE_BYTES * len(each.files),
)


def index_keys(
    table: TableVersion, on: Sequence[str], seeds: tuple[int, int], places: Sequence[int]
) -> None:
    """Read the keys of some fragments, and write them as one run of the index; best effort.

    Args:
        table: The version.
        on: Names of the key columns.
        seeds: The seeds of the index.
        places: The fragments, by their place in the version; `MOST_SAVED_ROWS` together.

    Raises:
        BadDataError: Keys cannot be read.
    """
    keys = RememberedKeys(key_fields(table.schema, on), seeds)
    for place in places:
        fragment = table.manifest.fragments[place]
        file = keys.file_of(fragment)
        if file is None:
            continue
        collector = keys.collector(file, fragment.physical_rows)
        for batch in read_unit(unit_of(table, place, columns=tuple(on), include_deleted=True)):
            collector.see(batch.columns)
        keys.learn([collector])
    keys.save(table, least_rows=1)


def merge_runs(
    table: TableVersion, on: Sequence[str], seeds: tuple[int, int], paths: Sequence[str]
) -> None:
    """Merge some runs into one, without the files that the table no longer has; best effort.

    Args:
        table: The version.
        on: Names of the key columns.
        seeds: The seeds of the index.
        paths: The runs.
    """
    RememberedKeys(key_fields(table.schema, on), seeds).merge(table, paths)
