"""Upserts: rows that are there are changed in place of their row id, others are inserted.

    scan      of each fragment the key columns: which rows have a key of the batch    (workers)
    decide    rows to change, to insert, to delete, and rows that come too late
    write     the changed rows, in the order they stand in the table, then the new ones
              deletion files for the places that the changed and deleted rows leave
    commit    one Update: the changed rows keep row id and created-at version

A batch that no longer fits, because others changed the same rows meanwhile, is planned again on
the newest version. Two writers that insert the same new key are told apart by the hashes of the
inserted keys in the transaction, if the key columns are the table's primary key.

Source: facts of the format, section 4; measured on the reference.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.commit.committer import Skipped
from lance_stream.commit.world import REAL_WORLD, World
from lance_stream.dataset.append import write_target
from lance_stream.dataset.arrow_input import ArrowInput, read_input
from lance_stream.dataset.changed_rows import (
    Addresses,
    delete_deletion_files,
    read_rows,
    row_ids_of,
    with_row_ids,
    without_rows,
)
from lance_stream.dataset.commit_verb import commit_operation, planning_again
from lance_stream.dataset.incoming import Incoming, UpsertRules, prepare
from lance_stream.dataset.keys import KeyLookup, Places, hash_keys
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.read_fragment import WorkUnit, read_unit
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.write_fragments import WriteTarget, delete_files, write_fragments
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.storage.store import Store
from lance_stream.table.operations import KeyExistenceFilter, Update, UpdateMode


class Matches(NamedTuple):
    """Rows of the table that have a key of the batch.

    Attributes:
        addresses: (n,) u64 row addresses, ascending within a fragment.
        keys: (n,) i64, the number of each row's key.
        sequence: (n,) the stored sequence of each row; None if none is stored.
    """

    addresses: Addresses
    keys: Places
    sequence: pa.Array | None = None


class Decision(NamedTuple):
    """What becomes of the rows of a batch.

    Attributes:
        changed: (n,) u64 addresses of the rows that are changed, ascending.
        changed_rows: (n,) i64, for each its row among the incoming ones.
        inserted_rows: (m,) i64, the incoming rows that are new.
        deleted: (k,) u64 addresses of the rows that are deleted, ascending.
        num_late: How many incoming rows are older than the stored one.
    """

    changed: Addresses
    changed_rows: Places
    inserted_rows: Places
    deleted: Addresses
    num_late: int


def find_matches(unit: WorkUnit, lookup: KeyLookup, num_keys: int) -> Matches:
    """Return the rows of a fragment that have a key of the batch.

    Args:
        unit: Reads the key columns, then the sequence if one is stored, then the row addresses.
        lookup: The keys of the batch.
        num_keys: How many of the columns are key columns.
    """
    found: list[Matches] = []
    for batch in read_unit(unit):
        keys = lookup.find(batch.columns[:num_keys])
        hit = np.flatnonzero(keys >= 0)
        if len(hit):
            addresses = batch.column(batch.num_columns - 1).to_numpy()
            has_sequence = batch.num_columns > num_keys + 1
            sequence = batch.column(num_keys).take(pa.array(hit)) if has_sequence else None
            found.append(Matches(addresses[hit], keys[hit], sequence))
    return join_matches(found)


def join_matches(parts: Iterable[Matches]) -> Matches:
    """Return the matches of several fragments, in the order of their addresses."""
    known = [each for each in parts if len(each.addresses)]
    if not known:
        return Matches(np.empty(0, np.uint64), np.empty(0, np.int64))
    addresses = np.concatenate([each.addresses for each in known])
    keys = np.concatenate([each.keys for each in known])
    sequences = [each.sequence for each in known if each.sequence is not None]
    sequence = pa.concat_arrays(sequences) if sequences else None
    order = np.argsort(addresses, kind="stable")
    if bool((order[1:] > order[:-1]).all()):
        return Matches(addresses, keys, sequence)
    taken = None if sequence is None else sequence.take(pa.array(order))
    return Matches(addresses[order], keys[order], taken)


def decide(incoming: Incoming, matches: Matches) -> Decision:
    """Return what becomes of the rows of a batch.

    A row that is older than the stored one changes nothing. Deletes of keys that are not there do
    nothing. A key that several rows of the table have changes, or deletes, all of them.
    """
    is_late = _are_late(incoming, matches)
    rows = incoming.row_of_key[matches.keys]
    changes, deletes = (rows >= 0) & ~is_late, (rows < 0) & ~is_late
    is_known = np.zeros(len(incoming.row_of_key), np.bool_)
    is_known[matches.keys] = True
    inserted = incoming.row_of_key[~is_known & (incoming.row_of_key >= 0)]
    return Decision(
        matches.addresses[changes],
        rows[changes],
        np.sort(inserted),
        matches.addresses[deletes],
        len(np.unique(matches.keys[is_late])),
    )


def _are_late(incoming: Incoming, matches: Matches) -> npt.NDArray[np.bool_]:
    if incoming.sequence is None or matches.sequence is None:
        return np.zeros(len(matches.keys), np.bool_)
    ours = incoming.sequence.take(pa.array(matches.keys))
    # A row without a sequence is older than any.
    late = pc.fill_null(pc.less(ours, matches.sequence), False)
    found: npt.NDArray[np.bool_] = late.to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class PlannedUpsert:
    """An upsert that was planned on a version, its files written.

    Attributes:
        operation: What is to be committed.
        decision: What becomes of the rows.
    """

    operation: Update
    decision: Decision

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        own = self.operation
        return bool(own.new_fragments or own.updated_fragments or own.removed_fragment_ids)

    def delete_files(self, store: Store) -> None:
        """Delete the files of a plan that is known not to have been committed, best effort."""
        delete_files(store, self.operation.new_fragments)
        delete_deletion_files(store, self.operation.updated_fragments)


@dataclass(frozen=True)
class Upserted:
    """What became of an upsert.

    Attributes:
        table: The version that was made; where none was, the newest one.
        num_inserted: How many rows are new.
        num_updated: How many rows of the table have other values.
        num_deleted: How many rows of the table are gone.
        num_late: How many rows came in that are older than others, of the batch or the table.
    """

    table: TableVersion
    num_inserted: int = 0
    num_updated: int = 0
    num_deleted: int = 0
    num_late: int = 0


def upsert(
    table: TableVersion, data: ArrowInput, rules: UpsertRules, world: World = REAL_WORLD
) -> Upserted:
    """Change the rows of the table whose keys come in, and insert the others.

    Args:
        table: Any version; the newest one is changed.
        data: The rows.
        rules: What the user says of them.
        world: Chance, for the names of deletion files.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: It did not become a version, or it is not known whether it did.
    """
    rows = read_input(data).read_all().combine_chunks()
    batches = rows.to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)

    def attempt() -> Upserted:
        newest = checkout(table, None)
        incoming = prepare(batch, newest.arrow_schema, rules)
        matches = join_matches(
            find_matches(unit, incoming.lookup, len(rules.on))
            for unit in key_units(newest, incoming)
        )
        plan = plan_upsert(newest, incoming, matches, write_target(newest), world)
        decision = plan.decision
        num_late = incoming.num_late + decision.num_late
        if not plan.changes_anything:
            return Upserted(newest, num_late=num_late)
        try:
            result = commit_operation(table.log, newest.version, plan.operation)
        except CommitConflictError:
            plan.delete_files(table.store)  # known to have failed
            raise
        if isinstance(result, Skipped):
            raise InvalidInputError(f"nothing was changed: {result.reason}")
        return Upserted(
            table.at(result.manifest),
            len(decision.inserted_rows),
            len(decision.changed),
            len(decision.deleted),
            num_late,
        )

    return planning_again(attempt)


def key_units(table: TableVersion, incoming: Incoming) -> list[WorkUnit]:
    """Return what reads the keys of the table's rows, fragment by fragment."""
    return [
        table.unit(place, columns=incoming.scanned_columns, system_columns=(ROW_ADDRESS,))
        for place in range(len(table.manifest.fragments))
    ]


def plan_upsert(
    table: TableVersion, incoming: Incoming, matches: Matches, target: WriteTarget, world: World
) -> PlannedUpsert:
    """Decide what becomes of the rows, and write the files that say so.

    Args:
        table: The version that the matches were found in.
        incoming: The rows that count.
        matches: The table's rows that have their keys.
        target: Where new data files go.
        world: Chance, for the names of deletion files.

    Raises:
        InvalidInputError: New rows lack a column that must not be null; no file is left behind.
    """
    decision = decide(incoming, matches)
    if incoming.rules.skip_unchanged:
        decision = _without_unchanged(table, incoming, decision)
    new = write_fragments(_rows_to_write(table, incoming, decision), target)
    if table.has_stable_row_ids:
        new = with_row_ids(new, row_ids_of(table, decision.changed))
    leaving = np.sort(np.concatenate([decision.changed, decision.deleted]))
    updated, removed = without_rows(table, leaving, world)
    changed_fields = {
        part.id
        for field in table.schema.fields
        if field.name in incoming.rows.schema.names and field.name not in incoming.rules.on
        for part in field.walk()
    }
    operation = Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=tuple(new),
        fields_for_preserving_frag_bitmap=tuple(sorted(changed_fields)),
        update_mode=UpdateMode.REWRITE_ROWS,
        inserted_rows=_inserted_keys(table, incoming, decision),
    )
    return PlannedUpsert(operation, decision)


def _rows_to_write(
    table: TableVersion, incoming: Incoming, decision: Decision
) -> Iterator[pa.RecordBatch]:
    """Yield the changed rows, whole, and then the new ones."""
    missing = [each for each in table.arrow_schema.names if each not in incoming.rows.schema.names]
    done = 0
    if not missing:
        yield incoming.rows.take(pa.array(decision.changed_rows))
    elif len(decision.changed):
        for kept in read_rows(table, decision.changed, missing):
            rows = decision.changed_rows[done : done + kept.num_rows]
            done += kept.num_rows
            own = incoming.rows.take(pa.array(rows))
            yield pa.RecordBatch.from_arrays(
                [*own.columns, *kept.columns], [*own.schema.names, *kept.schema.names]
            )
    if len(decision.inserted_rows):
        yield incoming.rows.take(pa.array(decision.inserted_rows))


def _without_unchanged(table: TableVersion, incoming: Incoming, decision: Decision) -> Decision:
    names = incoming.rows.schema.names
    differs: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    done = 0
    for stored in read_rows(table, decision.changed, names):
        rows = pa.array(decision.changed_rows[done : done + stored.num_rows])
        done += stored.num_rows
        differs.append(differing_rows(stored, incoming.rows.take(rows)))
    changes = np.concatenate(differs)
    return decision._replace(
        changed=decision.changed[changes], changed_rows=decision.changed_rows[changes]
    )


def differing_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows of two batches of one schema differ; null equals null, NaN equals NaN."""
    differs = np.zeros(left.num_rows, np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        if one.equals(other):
            continue
        differs |= _differs(one, other)
    return differs


def _differs(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_nested(one.type) or pa.types.is_dictionary(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([repr(left) != repr(right) for left, right in pairs], np.bool_)
    unequal = pc.fill_null(pc.not_equal(one, other), False)
    nulls = pc.xor(pc.is_null(one), pc.is_null(other))
    found = pc.or_(unequal, nulls)
    if pa.types.is_floating(one.type):
        both = pc.and_(pc.fill_null(pc.is_nan(one), False), pc.fill_null(pc.is_nan(other), False))
        found = pc.and_not(found, both)
    differs: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return differs


def _inserted_keys(
    table: TableVersion, incoming: Incoming, decision: Decision
) -> KeyExistenceFilter | None:
    """Return the keys of the new rows, where the table's primary key makes them unique."""
    key = {each.name for each in table.schema.fields if each.primary_key_position is not None}
    if key != set(incoming.rules.on):
        return None
    fields = [each for each in table.schema.fields if each.name in key]
    new = incoming.rows.select([each.name for each in fields]).take(
        pa.array(decision.inserted_rows)
    )
    hashes = hash_keys(new.columns)
    return KeyExistenceFilter(
        tuple(each.id for each in fields), key_hashes=tuple(np.unique(hashes).tolist())
    )
