"""Prepares the key index of a table for tasks: the tasks complete it before they look up keys.

    driver    shared_index     reads the footers of the runs, but no data files and no keys
              lacking          the fragments whose keys are in no run
              to_merge         the runs to merge
    tasks     index_keys       read the keys of some fragments, and write them as a run
              merge_runs       merge some runs

Tasks that look up ranges of keys then find the keys of all fragments in the index, and copy only
the chunks of their range. A run that cannot be written, is damaged, or no longer exists is
harmless: a task that needs it reads the key columns of its files.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from lance_stream.caches import Cache
from lance_stream.keys.index import run_files
from lance_stream.keys.index.key_index import (
    MAX_MERGED_KEYS,
    MAX_SAVED_ROWS,
    MIN_SAVED_ROWS,
    KeyIndex,
)
from lance_stream.keys.index.run_format import RunFooter
from lance_stream.keys.index.run_merging import groups_to_merge
from lance_stream.keys.key_words import new_seeds
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import unit_of
from lance_stream.snapshot.table_version import TableVersion

T = TypeVar("T")

_MAX_FOOTER_BYTES: Final = 64 << 20
_FILE_BYTES: Final = 400


class SharedIndex(NamedTuple):
    """The saved runs of a table's index, as their footers describe them.

    Attributes:
        on: Names of the key columns.
        seeds: The seeds of the hashes of all runs.
        runs: The footers by path, without runs that have other seeds.
    """

    on: tuple[str, ...]
    seeds: tuple[int, int]
    runs: dict[str, RunFooter]

    def lacking(self, table: TableVersion) -> list[tuple[int, int]]:
        """Return the indexable fragments whose keys are in no run, with their numbers of rows.

        Args:
            table: The version.
        """
        indexed = {file for footer in self.runs.values() for file in footer.files}
        keys = KeyIndex(table.schema.fields_named(self.on), self.seeds)
        missing: list[tuple[int, int]] = []
        for index, fragment in enumerate(table.manifest.fragments):
            file = keys.covered_by(fragment)
            is_new = file is not None and file not in indexed
            if is_new and 0 < fragment.physical_rows <= MAX_SAVED_ROWS:
                missing.append((index, fragment.physical_rows))
        return missing

    def to_merge(self) -> list[tuple[str, ...]]:
        """Return the groups of runs to merge."""
        sized = [(path, footer.num_keys) for path, footer in self.runs.items()]
        groups = groups_to_merge(sized, min_keys=MIN_SAVED_ROWS, max_keys=MAX_MERGED_KEYS)
        return [group for group in groups if len(group) > 1]


def shared_index(table: TableVersion, on: Sequence[str]) -> SharedIndex:
    """Return the saved runs of the index of a table's keys; reads only their footers.

    Args:
        table: Any version.
        on: Names of the key columns.
    """
    expected = KeyIndex(table.schema.fields_named(on)).columns((0, 0))
    footers: dict[str, RunFooter] = {}
    num_keys: dict[tuple[int, int], int] = {}
    for path in run_files.list_runs(table.store, expected.field_ids) or ():
        footer = _footer_of(table, path)
        if footer is not None and footer.columns._replace(seeds=expected.seeds) == expected:
            footers[path] = footer
            seeds = footer.columns.seeds
            num_keys[seeds] = num_keys.get(seeds, 0) + footer.num_keys
    seeds = max(num_keys, key=lambda candidate: num_keys[candidate], default=new_seeds())
    runs = {path: footer for path, footer in footers.items() if footer.columns.seeds == seeds}
    return SharedIndex(tuple(on), seeds, runs)


def _footer_of(table: TableVersion, path: str) -> RunFooter | None:
    name = table.store.uri, path
    footer = _footers.get(name)
    if footer is None:
        footer = run_files.footer_if_sound(table.store, path)
        if footer is not None:
            _footers.put(name, footer)
    return footer


_footers: Final[Cache[tuple[str, str], RunFooter]] = Cache(
    _MAX_FOOTER_BYTES,
    lambda footer: footer.firsts.nbytes + footer.checks.nbytes + _FILE_BYTES * len(footer.files),
)


def index_keys(
    table: TableVersion, on: Sequence[str], seeds: tuple[int, int], positions: Sequence[int]
) -> None:
    """Read the keys of some fragments, and write them as one run of the index; best effort.

    Args:
        table: The version.
        on: Names of the key columns.
        seeds: The seeds of the index.
        positions: The positions of the fragments in the version; about `MAX_SAVED_ROWS` rows.

    Raises:
        BadDataError: Keys cannot be read.
    """
    keys = KeyIndex(table.schema.fields_named(on), seeds)
    for index in positions:
        fragment = table.manifest.fragments[index]
        file = keys.file_of(fragment)
        if file is None:
            continue
        collector = keys.collector(file, fragment.physical_rows)
        for batch in read_unit(unit_of(table, index, columns=tuple(on), include_deleted=True)):
            collector.add_keys(batch.columns)
        keys.add([collector])
    keys.save(table, min_rows=1)


def merge_runs(
    table: TableVersion, on: Sequence[str], seeds: tuple[int, int], paths: Sequence[str]
) -> None:
    """Merge some runs into one, and drop the files that the table no longer has; best effort.

    Args:
        table: The version.
        on: Names of the key columns.
        seeds: The seeds of the index.
        paths: The runs.
    """
    KeyIndex(table.schema.fields_named(on), seeds).merge(table, paths)
