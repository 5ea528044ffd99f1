"""Finds the rows of a table that have a key of a batch: chooses the fragments to search.

Fragments whose key bounds exclude the batch are skipped (`key_bounds`); `workers` search the
others, and report their bounds. When a batch is planned again because the table changed, only
fragments that were added or changed since are searched: addresses are valid until the files of
their fragment change.
"""

import numpy as np

from lance_stream.keys.bounds.cached_key_bounds import key_bounds, save_key_bounds
from lance_stream.keys.fragment_matches import KeyedRows, Matches, join_matches
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.read.units import unit_of
from lance_stream.row_updates.changed_rows import deleted_rows
from lance_stream.schema.fields import Field
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import decode_fragment
from lance_stream.table.lineage.ascending import are_among
from lance_stream.table.lineage.row_addresses import unpack_addresses


class KeyMatcher:
    """The matches of one batch, cached for later attempts of its upsert.

    Args:
        workers: The workers that read.
    """

    def __init__(self, workers: Workers = THREADS) -> None:
        self._workers = workers
        self._matches_of: dict[int, tuple[bytes, Matches]] = {}
        self._fields_read: tuple[Field, ...] = ()

    def look_up(self, table: TableVersion, incoming: KeyedRows) -> Matches:
        """Return the rows of a version that have a key of the batch.

        Args:
            table: The version.
            incoming: The batch; the same rows in every call.
        """
        columns = incoming.scanned_columns
        fields_read = table.schema.fields_named(columns)
        if fields_read != self._fields_read:  # the first call, or the key columns have changed
            self._fields_read, self._matches_of = fields_read, {}
        valid: list[Matches] = []
        positions: list[int] = []
        fragments = table.manifest.fragments
        bounds = key_bounds(table, incoming.on)
        for index in np.flatnonzero(bounds.may_hold(fragments, incoming.lookup)).tolist():
            cached = self._matches_of.get(fragments.ids[index])
            still_valid = None if cached is None else _live_matches(table, index, *cached)
            if still_valid is None:
                positions.append(index)
            else:
                valid.append(still_valid)
        are_unknown = bounds.are_unknown(fragments)
        units = [
            unit_of(
                table,
                index,
                columns=columns,
                system_columns=(ROW_ADDRESS,),
                include_deleted=bool(are_unknown[index]),
            )
            for index in positions
        ]
        was_looked_up = any(column.saved_work for column in bounds.columns)
        results = self._workers.find_matches(table, incoming, units, was_looked_up=was_looked_up)
        for index, unit, result in zip(positions, units, results, strict=True):
            self._matches_of[fragments.ids[index]] = (unit.fragment, result)
        bounds.add_bounds(file_bounds for result in results for file_bounds in result.file_bounds)
        save_key_bounds(table, bounds)
        return join_matches([*valid, *results])


def _live_matches(table: TableVersion, index: int, raw: bytes, matches: Matches) -> Matches | None:
    """Return the matches in a fragment that are still live; None if it must be read again.

    Args:
        table: The current version.
        index: The fragment's index in the version.
        raw: The fragment as it was when it was read.
        matches: The matches at that time.
    """
    now = table.manifest.fragments.raw(index)
    if now == raw:
        return matches
    deleted = deleted_rows(table, decode_fragment(raw), decode_fragment(now))
    if deleted is None:
        return None
    _, offsets = unpack_addresses(matches.addresses)
    return matches.where(np.flatnonzero(~are_among(offsets, deleted)))
