"""Upserts: existing rows are updated and keep their row ids, other rows are inserted.

    scan      the key columns of each fragment: which rows have a key of the batch    (workers)
    decide    rows to change, to insert, to delete, and rows that are late
    write     the changed rows, in table order, then the new ones
    plan      deletion files for the old positions of changed and deleted rows
    commit    one Update: the changed rows keep row id and created-at version

If a batch no longer fits because the table changed, it is planned again on the newest version: only
fragments added since are searched for keys, and if the decisions are the same, the data files
written before are reused. The hashes of the inserted keys in the transaction reveal two writers
that insert the same new key.

Source: facts of the format, section 4; observed in the reference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.read.changed_rows import (
    Addresses,
    read_rows,
    row_ids_of,
    with_row_ids,
    without_rows,
)
from lance_stream.snapshot.opening import checkout, newest_of_same
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply import check_may_write
from lance_stream.table.ascending import distinct
from lance_stream.table.fragments import Fragment
from lance_stream.table.operations import (
    BloomFilter,
    KeyExistenceFilter,
    Update,
    UpdateMode,
)
from lance_stream.upsert.comparing import are_less, same_rows
from lance_stream.upsert.incoming import Incoming, UpsertRules, prepare
from lance_stream.upsert.key_bounds import FileBounds, bounds_of_written, key_fields
from lance_stream.upsert.keys import Places, hash_keys
from lance_stream.upsert.known_key_bounds import key_bounds
from lance_stream.upsert.matching import THREADS, Found, Matches, Workers
from lance_stream.upsert.partial_structs import with_stored_parts
from lance_stream.upsert.tombstone_files import Deletes
from lance_stream.upsert.tombstones import (
    PlannedTombstones,
    RememberedDeletes,
    plan_tombstones,
    remembered_deletes,
)
from lance_stream.write.arrow_input import ArrowInput, read_input
from lance_stream.write.fragments import WriteTarget, delete_files, write_fragments, write_target
from lance_stream.write.micro_batches import MicroBatch, find_committed
from lance_stream.write.phases import Phases
from lance_stream.write.planning import Staged, commit_planned, planning_again

MAX_KEY_HASHES: Final = 1 << 18
"""Up to how many inserted keys are listed by their hashes; more count as any key."""

_ANY_KEY: Final = BloomFilter(b"\xff" * (16 << 10), (16 << 10) * 8, 8192, 0.00057)


class Decision(NamedTuple):
    """The decisions about the rows of a batch.

    Attributes:
        changed: (n,) u64 addresses of the rows that change, ascending.
        changed_rows: (n,) i64, the incoming row for each.
        inserted_rows: (m,) i64, the incoming rows that are new.
        deleted: (k,) u64 addresses of the rows that are deleted, ascending.
        deleted_keys: (j,) i64, the deleted keys, whether or not the table has them.
        num_late: How many incoming rows are older than the stored one, or than a delete.
    """

    changed: Addresses
    changed_rows: Places
    inserted_rows: Places
    deleted: Addresses
    deleted_keys: Places
    num_late: int


def decide(
    incoming: Incoming, matches: Matches, is_undone: npt.NDArray[np.bool_] | None = None
) -> Decision:
    """Return the decisions about the rows of a batch.

    A row that is older than the stored one changes nothing. Deletes of absent keys do nothing, but
    may be remembered. If several rows of the table have a key, all of them are changed or deleted.

    Args:
        incoming: The rows that count.
        matches: The table's rows that have their keys.
        is_undone: (num_keys,) whether a remembered delete of the key is at least as new, which
            makes its row late, too.
    """
    num_keys = len(incoming.row_of_key)
    key_is_late = np.zeros(num_keys, np.bool_) if is_undone is None else is_undone.copy()
    is_late = _are_late(incoming, matches) | key_is_late[matches.keys]
    key_is_late[matches.keys[is_late]] = True
    rows = incoming.row_of_key[matches.keys]
    changes, deletes = (rows >= 0) & ~is_late, (rows < 0) & ~is_late
    is_new = ~key_is_late
    is_new[matches.keys] = False
    return Decision(
        matches.addresses[changes],
        rows[changes],
        np.sort(incoming.row_of_key[is_new & (incoming.row_of_key >= 0)]),
        matches.addresses[deletes],
        np.flatnonzero((incoming.row_of_key < 0) & ~key_is_late),
        int(np.count_nonzero(key_is_late)),
    )


def _are_late(incoming: Incoming, matches: Matches) -> npt.NDArray[np.bool_]:
    if incoming.sequence is None or matches.sequence is None:
        return np.zeros(len(matches.keys), np.bool_)
    ours = incoming.sequence.take(pa.array(matches.keys))
    # A row without a sequence is older than any.
    return are_less(ours, matches.sequence)


class Written(NamedTuple):
    """A worker's result for (a part of) a batch; picklable.

    Attributes:
        fragments: New fragments: first the changed rows, in the order of their addresses, then
            the new ones.
        decision: The decisions about the rows.
        inserted_keys: (m,) u64 hashes of the keys of the new rows, and of the deletes.
        num_unchanged: How many rows would not have changed and were left untouched.
        deletes: The deletes to remember; None if none are.
        file_bounds: The key bounds of the new files.
    """

    fragments: tuple[Fragment, ...]
    decision: Decision
    inserted_keys: npt.NDArray[np.uint64]
    num_unchanged: int = 0
    deletes: Deletes | None = None
    file_bounds: tuple[FileBounds, ...] = ()


@dataclass(frozen=True)
class PlannedUpdate:
    """An Update planned on a version.

    Attributes:
        operation: What to commit.
        staged: The files that were written for it.
        tombstones: What else is remembered; None if the upsert remembers nothing.
    """

    operation: Update
    staged: Staged
    tombstones: PlannedTombstones | None = None

    @property
    def changes_anything(self) -> bool:
        """Whether there is anything to commit."""
        own = self.operation
        is_remembering = self.tombstones is not None and bool(self.tombstones.added.files)
        return is_remembering or bool(
            own.new_fragments or own.updated_fragments or own.removed_fragment_ids
        )


@dataclass(frozen=True)
class Upserted:
    """The outcome of an upsert.

    Attributes:
        table: The committed version; the newest one if none was committed.
        is_new: Whether a version was committed.
        already_committed_in: The version that had already applied the micro-batch; None if none
            had, or if unknown.
        attempts: The number of commit attempts of all plans.
        num_rows: How many rows came in.
        num_inserted: How many rows are new.
        num_updated: How many rows of the table have new values.
        num_deleted: How many rows of the table were deleted.
        num_unchanged: How many rows would not have changed and were left untouched.
        num_late: How many incoming rows are older than others, of the batch or the table, or
            than a delete that the table remembers.
        num_remembered: How many deletes of this batch the table remembers.
        fragments: The new fragments as they were written.
        was_already_committed: Whether the table already had the micro-batch; nothing was done.
    """

    table: TableVersion
    is_new: bool = False
    already_committed_in: int | None = None
    attempts: int = 0
    num_rows: int = 0
    num_inserted: int = 0
    num_updated: int = 0
    num_deleted: int = 0
    num_unchanged: int = 0
    num_late: int = 0
    num_remembered: int = 0
    fragments: tuple[Fragment, ...] = ()
    was_already_committed: bool = False


def commit_plan(
    plan: PlannedUpdate,
    result: Upserted,
    micro_batch: MicroBatch | None,
    phases: Phases,
    fragments: tuple[Fragment, ...] = (),
) -> Upserted:
    """Commit an upsert's plan, if it changes anything; see `commit_planned`.

    Args:
        plan: The operation.
        result: The upsert's outcome so far; its table is the version that was planned on.
        micro_batch: Which micro-batch it is, if it comes from a stream.
        phases: Receives the duration of "commit".
        fragments: New fragments whose files are deleted, too, if it is known that no version
            references them.
    """
    if not plan.changes_anything:
        return result
    remembering = plan.tombstones
    with phases("commit"):
        done = commit_planned(
            result.table,
            plan.operation,
            replace(plan.staged, fragments=fragments),
            micro_batch,
            properties=remembering.properties if remembering else None,
            config_entries=remembering.entries if remembering else None,
        )
    if not done.is_new:
        return Upserted(
            done.table, already_committed_in=done.already_committed_in, was_already_committed=True
        )
    attempts = result.attempts + done.attempts - 1
    return replace(result, table=done.table, is_new=True, attempts=attempts)


def upsert(
    table: TableVersion,
    data: ArrowInput,
    rules: UpsertRules,
    micro_batch: MicroBatch | None = None,
    *,
    workers: Workers = THREADS,
    phases: Phases | None = None,
    environment: Environment = MACHINE,
) -> Upserted:
    """Update the table's rows that have the keys of incoming rows, and insert the other rows.

    Args:
        table: Any version; the newest one is changed.
        data: The rows; collected in memory.
        rules: The user's rules for them.
        micro_batch: Which micro-batch they are, if they come from a stream. If the table already
            has it, nothing is done.
        workers: What reads the table's data files.
        phases: Receives the durations of "scan" (of keys), "write" and "commit".
        environment: Randomness for file names; the clock, for remembered deletes.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table, or the batch id
            belongs to another query's batch; nothing is changed.
        CommitError: It was not committed, or the outcome is unknown.
    """
    batch = one_batch(read_input(data).read_all())
    phases = phases or Phases()
    found = Found(workers)
    incoming: Incoming | None = None
    written: Written | None = None
    written_on = None
    attempts = 0
    newest = checkout(table, None)

    def attempt() -> Upserted:
        nonlocal attempts, incoming, newest, written, written_on
        if attempts:
            newest = newest_of_same(newest)
        attempts += 1
        if micro_batch is not None and (entry := find_committed(newest, micro_batch)) is not None:
            return Upserted(newest, already_committed_in=entry.version, was_already_committed=True)
        check_may_write(newest.manifest)
        with phases("scan"):
            if incoming is None or incoming.table != newest.arrow_schema:
                incoming = prepare(batch, newest.arrow_schema, rules)
            matches = found.look_up(newest, incoming)
            remembered = remembered_deletes(newest, incoming, environment)
        with phases("write"):
            decision, num_unchanged = decide_changes(newest, incoming, matches, remembered, workers)
            if written is None or not _is_same_work(written, written_on, newest, decision):
                if written is not None:
                    delete_files(table.store, written.fragments)
                    written = None
                written_on = newest
                written = write_rows(
                    newest,
                    incoming,
                    decision,
                    write_target(newest),
                    num_unchanged,
                    remembered,
                    workers,
                )
            plan = plan_update(
                newest,
                [written],
                incoming.rules,
                incoming.rows.schema.names,
                remembered,
                environment,
            )
        result = Upserted(
            newest,
            attempts=attempts,
            num_rows=incoming.num_rows,
            num_inserted=len(decision.inserted_rows),
            num_updated=len(decision.changed),
            num_deleted=len(decision.deleted),
            num_unchanged=num_unchanged,
            num_late=incoming.num_late + decision.num_late,
            num_remembered=0 if written.deletes is None else written.deletes.rows.num_rows,
            fragments=written.fragments,
        )
        return commit_plan(plan, result, micro_batch, phases)

    try:
        result = planning_again(attempt, micro_batch, environment)
    except (CommitConflictError, InvalidInputError):  # known to have failed
        if written is not None:
            delete_files(table.store, written.fragments)
        raise
    if result.was_already_committed and written is not None:
        delete_files(table.store, written.fragments)
    return result


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch.

    Raises:
        InvalidInputError: A column is too large for one.
    """
    plain = pa.schema([each.with_type(_without_views(each.type)) for each in rows.schema])
    table = (rows if plain.equals(rows.schema) else rows.cast(plain)).combine_chunks()
    batches = table.to_batches()
    if len(batches) > 1:
        raise InvalidInputError(
            f"{table.num_rows} rows are too many for one upsert: a text or binary column exceeds "
            "2 GiB. Split them into several upserts"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _without_views(arrow: pa.DataType) -> pa.DataType:
    """Return a type whose rows can be taken by index, which Arrow cannot do for views."""
    if pa.types.is_string_view(arrow):
        return pa.large_string()
    if pa.types.is_binary_view(arrow):
        return pa.large_binary()
    if pa.types.is_struct(arrow):
        return pa.struct([part.with_type(_without_views(part.type)) for part in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(arrow.value_field.with_type(_without_views(arrow.value_type)))
    if pa.types.is_large_list(arrow):
        return pa.large_list(arrow.value_field.with_type(_without_views(arrow.value_type)))
    return arrow


def _is_same_work(
    written: Written, on: TableVersion | None, newest: TableVersion, decision: Decision
) -> bool:
    """Return whether writing the rows again would give the same files.

    Args:
        written: What was written.
        on: The version that it was planned on.
        newest: The version that it is planned on now.
        decision: The decisions about the rows of the batch in it.
    """
    pairs = zip(written.decision[:5], decision[:5], strict=True)
    if on is None or newest.version < on.version or newest.schema != on.schema:
        return False
    if newest.file_version != on.file_version:
        return False
    if not all(np.array_equal(one, other) for one, other in pairs):
        return False
    # Changed rows also contain values of the table, which others may have updated in place.
    touched = {int(each) for each in np.unique(decision.changed >> np.uint64(32))}
    return _files_of(on, touched) == _files_of(newest, touched)


def _files_of(table: TableVersion, fragment_ids: set[int]) -> dict[int, object]:
    fragments = table.manifest.fragments
    places = [place for place, each in enumerate(fragments.ids) if each in fragment_ids]
    return {fragments.ids[place]: fragments[place].files for place in places}


def decide_changes(
    table: TableVersion,
    incoming: Incoming,
    matches: Matches,
    remembered: RememberedDeletes | None = None,
    workers: Workers = THREADS,
) -> tuple[Decision, int]:
    """Return the decisions about the rows of a batch, and how many are left untouched as unchanged.

    Args:
        table: The version that the matches were found in.
        incoming: The rows that count.
        matches: The table's rows that have their keys.
        remembered: The deletes that the version remembers.
        workers: What reads the table's data files.
    """
    is_undone = None if remembered is None else remembered.undone_keys(incoming)
    decision = decide(incoming, matches, is_undone)
    if not incoming.rules.skip_unchanged:
        return decision, 0
    changing = _without_unchanged(table, incoming, decision, workers)
    return changing, len(decision.changed) - len(changing.changed)


def write_rows(
    table: TableVersion,
    incoming: Incoming,
    decision: Decision,
    target: WriteTarget,
    num_unchanged: int = 0,
    remembered: RememberedDeletes | None = None,
    workers: Workers = THREADS,
) -> Written:
    """Write the changed rows, whole, and the new ones into new data files.

    Args:
        table: The version that was planned on.
        incoming: The rows that count.
        decision: The decisions about them.
        target: Where new data files go.
        num_unchanged: How many rows were left untouched.
        remembered: The deletes that the version remembers, if those of the batch are remembered,
            too.
        workers: What reads the table's data files.

    Raises:
        InvalidInputError: New rows lack a column that must not be null; no file is left behind.
    """
    fragments = write_fragments(_rows_to_write(table, incoming, decision, workers), target)
    new = pa.array(decision.inserted_rows)
    keys = [[incoming.rows.column(name).take(new) for name in incoming.rules.on]]
    deletes = None
    if remembered is not None and remembered.is_remembering:
        deletes = remembered.deletes_of(incoming, decision.deleted_keys)
        keys.append(deletes.keys)
    hashes = [_hashes(table, incoming.rules.on, each) for each in keys]
    fields = key_fields(table.schema, incoming.rules.on)
    own = incoming.rows.select(list(incoming.rules.on)).columns
    return Written(
        tuple(fragments),
        decision,
        distinct(np.concatenate(hashes)),
        num_unchanged,
        deletes,
        tuple(bounds_of_written(fragments, fields, own)),
    )


def _hashes(
    table: TableVersion, on: Sequence[str], keys: Sequence[pa.Array]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of keys; their columns are in the order of the table."""
    by_name = dict(zip(on, keys, strict=True))
    return hash_keys([by_name[name] for name in table.arrow_schema.names if name in by_name])


def plan_update(
    table: TableVersion,
    parts: Sequence[Written],
    rules: UpsertRules,
    stored: Sequence[str],
    remembered: RememberedDeletes | None = None,
    environment: Environment = MACHINE,
) -> PlannedUpdate:
    """Combine what workers have written into one operation, and write its deletion files.

    The deletes to remember are written, too.

    Args:
        table: The version that was planned on.
        parts: What was written; at most one part changes or deletes each row of the table.
        rules: The user's rules for the rows.
        stored: The incoming columns that are stored.
        remembered: The deletes that the version remembers.
        environment: Randomness, for file names.
    """
    new: list[Fragment] = []
    changed = np.sort(np.concatenate([_NO_ADDRESSES, *(each.decision.changed for each in parts)]))
    ids = row_ids_of(table, changed) if table.has_stable_row_ids else None
    for part in parts:
        if ids is None:
            new += part.fragments
        else:
            own = ids[np.searchsorted(changed, part.decision.changed)]
            new += with_row_ids(part.fragments, own)
    deleted = [each.decision.deleted for each in parts]
    updated, removed = without_rows(
        table, np.sort(np.concatenate([changed, *deleted])), environment
    )
    changed_fields = {
        part.id
        for field in table.schema.fields
        if field.name in stored and field.name not in rules.on
        for part in field.walk()
    }
    operation = Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=tuple(new),
        fields_for_preserving_frag_bitmap=tuple(sorted(changed_fields)),
        update_mode=UpdateMode.REWRITE_ROWS,
        inserted_rows=_inserted_keys(table, rules, [each.inserted_keys for each in parts]),
    )
    # Even if it is not committed: a file's bounds stay true.
    key_bounds(table, rules.on).learn(
        file_bounds for each in parts for file_bounds in each.file_bounds
    )
    if remembered is None or not remembered.is_remembering:
        return PlannedUpdate(operation, Staged(dying=updated))
    deletes = [each.deletes for each in parts if each.deletes is not None]
    tombstones = plan_tombstones(remembered, deletes, environment)
    return PlannedUpdate(operation, Staged(dying=updated, others=tombstones.paths), tombstones)


_NO_ADDRESSES: Final = np.empty(0, np.uint64)


def _rows_to_write(
    table: TableVersion, incoming: Incoming, decision: Decision, workers: Workers
) -> Iterator[pa.RecordBatch]:
    """Yield the changed rows, whole, and then the new ones."""
    own_names = incoming.rows.schema.names
    missing = [each for each in table.arrow_schema.names if each not in own_names]
    kept_columns = [*missing, *incoming.partial]
    done = 0
    if not kept_columns:
        yield incoming.rows.take(pa.array(decision.changed_rows))
    elif len(decision.changed):
        for kept in read_rows(table, decision.changed, kept_columns, workers.read):
            rows = decision.changed_rows[done : done + kept.num_rows]
            done += kept.num_rows
            own = incoming.rows.take(pa.array(rows))
            own = with_stored_parts(own, kept, incoming.partial)
            yield pa.RecordBatch.from_arrays(
                [*own.columns, *kept.select(missing).columns], [*own.schema.names, *missing]
            )
    if len(decision.inserted_rows):
        yield incoming.rows.take(pa.array(decision.inserted_rows))


def _without_unchanged(
    table: TableVersion, incoming: Incoming, decision: Decision, workers: Workers
) -> Decision:
    names = incoming.rows.schema.names
    differs: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    done = 0
    for stored in read_rows(table, decision.changed, names, workers.read):
        rows = pa.array(decision.changed_rows[done : done + stored.num_rows])
        done += stored.num_rows
        own = with_stored_parts(incoming.rows.take(rows), stored, incoming.partial)
        differs.append(~same_rows(stored, own))
    changes = np.concatenate(differs)
    return decision._replace(
        changed=decision.changed[changes], changed_rows=decision.changed_rows[changes]
    )


def _inserted_keys(
    table: TableVersion, rules: UpsertRules, hashes: Sequence[npt.NDArray[np.uint64]]
) -> KeyExistenceFilter:
    field_ids = tuple(each.id for each in table.schema.fields if each.name in rules.on)
    listed = distinct(np.concatenate(hashes))
    if len(listed) > MAX_KEY_HASHES:
        return KeyExistenceFilter(field_ids, bloom=_ANY_KEY)
    return KeyExistenceFilter(field_ids, key_hashes=tuple(listed.tolist()))
