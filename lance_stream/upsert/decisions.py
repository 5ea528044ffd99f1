"""Decides which rows of a batch update, insert or delete rows of the table, and which are late.

    decide              from the batch and its matches: late, changed, new and deleted rows
    _without_ignored    evaluates `when_matched` and `when_not_matched`
    _without_unchanged  drops updates that would change nothing (`skip_unchanged`)
    check_untouched     before the commit: have the untouched rows changed since the plan?

`_without_ignored` and `_without_unchanged` read stored rows only if the rules require it.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Positions, RowAddresses
from lance_stream.errors import RetryableConflictError
from lance_stream.expressions.predicates import Expression, evaluate_predicate
from lance_stream.keys.fragment_matches import Matches
from lance_stream.keys.value_comparison import are_less, same_rows
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.row_updates.changed_rows import by_fragment, deleted_rows, read_rows
from lance_stream.row_updates.partial_structs import with_stored_parts
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import decode_fragment
from lance_stream.table.lineage.ascending import are_among
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.incoming import IncomingRows
from lance_stream.upsert.rules import IGNORE, SOURCE, TARGET
from lance_stream.upsert.tombstones import RememberedDeletes


class Decision(NamedTuple):
    """The decisions about the rows of a batch.

    Attributes:
        changed: (n,) u64 addresses of the rows that change, ascending.
        changed_rows: (n,) i64, the incoming row for each.
        inserted_rows: (m,) i64, the incoming rows that are new.
        deleted: (k,) u64 addresses of the rows that are deleted, ascending.
        deleted_keys: (j,) i64, the deleted keys, whether or not the table has them.
        untouched: (u,) u64 addresses of the rows that have a key of the batch and do not change,
            in any order. The decision is valid until one of these rows changes.
        num_late: The number of incoming rows that are older than the stored row or a delete.
        num_ignored: The number of updates and inserts excluded by `when_matched` and
            `when_not_matched`.
        num_unchanged: The number of rows left untouched because their values would not change.
    """

    changed: RowAddresses
    changed_rows: Positions
    inserted_rows: Positions
    deleted: RowAddresses
    deleted_keys: Positions
    untouched: RowAddresses
    num_late: int
    num_ignored: int = 0
    num_unchanged: int = 0


def decide(
    incoming: IncomingRows, matches: Matches, is_undone: npt.NDArray[np.bool_] | None
) -> Decision:
    """Return the decisions about the rows of a batch.

    A row that is older than the stored one changes nothing. A delete of an absent key changes
    nothing, but may be remembered. If several rows of the table have a key, all of them are updated
    or deleted.

    Args:
        incoming: The incoming rows, one per key.
        matches: The table's rows that have their keys.
        is_undone: (num_keys,) whether a remembered delete of the key is at least as new as its
            row, so that the row is late.
    """
    num_keys = len(incoming.row_of_key)
    key_is_late = np.zeros(num_keys, np.bool_) if is_undone is None else is_undone.copy()
    is_late = _are_late(incoming, matches) | key_is_late[matches.keys]
    key_is_late[matches.keys[is_late]] = True
    # The incoming row of every match; -1 if it deletes.
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
        matches.addresses[is_late],
        int(np.count_nonzero(key_is_late)),
    )


def _are_late(incoming: IncomingRows, matches: Matches) -> npt.NDArray[np.bool_]:
    if incoming.sequence is None or matches.sequence is None:
        return np.zeros(len(matches.keys), np.bool_)
    ours = incoming.sequence.take(pa.array(matches.keys))
    # A stored row without a sequence is older than every incoming row.
    return are_less(ours, matches.sequence)


def decide_changes(
    table: TableVersion,
    incoming: IncomingRows,
    matches: Matches,
    remembered: RememberedDeletes | None,
    workers: Workers = THREADS,
) -> Decision:
    """Return the decisions about the rows of a batch, by the remembered deletes and the rules.

    Args:
        table: The version that the matches were found in.
        incoming: The incoming rows, one per key.
        matches: The table's rows that have their keys.
        remembered: The deletes that the version remembers.
        workers: What reads the table's data files.
    """
    is_undone = None
    if remembered is not None:
        sequence = incoming.compared_sequence
        is_undone = remembered.are_late(incoming.lookup, incoming.keys, sequence)
    decision = _without_ignored(table, incoming, decide(incoming, matches, is_undone), workers)
    if incoming.rules.skip_unchanged:
        return _without_unchanged(table, incoming, decision, workers)
    return decision


def _without_ignored(
    table: TableVersion, incoming: IncomingRows, decision: Decision, workers: Workers
) -> Decision:
    """Return the decision without the updates and inserts that the rules exclude."""
    updates = _updates(table, incoming, decision, workers)
    inserts = _inserts(incoming, decision.inserted_rows)
    return decision._replace(
        changed=decision.changed[updates],
        changed_rows=decision.changed_rows[updates],
        inserted_rows=decision.inserted_rows[inserts],
        untouched=np.concatenate([decision.untouched, decision.changed[~updates]]),
        num_ignored=int(np.count_nonzero(~updates) + np.count_nonzero(~inserts)),
    )


def _updates(
    table: TableVersion, incoming: IncomingRows, decision: Decision, workers: Workers
) -> npt.NDArray[np.bool_]:
    """Return (n,) which of the changed rows the rules update."""
    condition = incoming.matched_condition
    if condition is None:
        return np.full(len(decision.changed), incoming.rules.when_matched != IGNORE)
    names = list(dict.fromkeys(path[1] for path in condition.paths if path[0] == TARGET))
    if not names:
        return _are_true(condition, incoming.source, decision.changed_rows)
    updates: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    position = 0
    for stored in read_rows(table, decision.changed, names, workers.read):
        rows = decision.changed_rows[position : position + stored.num_rows]
        position += stored.num_rows
        updates.append(_are_true(condition, incoming.source, rows, stored))
    return np.concatenate(updates)


def _inserts(incoming: IncomingRows, rows: Positions) -> npt.NDArray[np.bool_]:
    """Return (m,) which of the new rows the rules insert."""
    condition = incoming.not_matched_condition
    if condition is None:
        return np.full(len(rows), incoming.rules.when_not_matched != IGNORE)
    return _are_true(condition, incoming.source, rows)


def _are_true(
    condition: Expression,
    source: pa.RecordBatch,
    rows: Positions,
    stored: pa.RecordBatch | None = None,
) -> npt.NDArray[np.bool_]:
    """Return (n,) whether a condition is true for incoming rows and their stored rows."""
    columns = {SOURCE: source.take(pa.array(rows)), TARGET: stored}
    inputs = pa.RecordBatch.from_pydict(
        {
            name: batch.to_struct_array()
            for name, batch in columns.items()
            if batch is not None and batch.num_columns
        }
    )
    if not inputs.num_columns:  # a constant
        inputs = pa.RecordBatch.from_pydict({SOURCE: pa.nulls(len(rows))})
    is_true = evaluate_predicate(condition, inputs).fill_null(False)
    chosen: npt.NDArray[np.bool_] = is_true.to_numpy(zero_copy_only=False)
    return chosen


def _without_unchanged(
    table: TableVersion, incoming: IncomingRows, decision: Decision, workers: Workers
) -> Decision:
    names = incoming.rows.schema.names
    differs: list[npt.NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    position = 0
    for stored in read_rows(table, decision.changed, names, workers.read):
        rows = pa.array(decision.changed_rows[position : position + stored.num_rows])
        position += stored.num_rows
        incoming_rows = with_stored_parts(incoming.rows.take(rows), stored, incoming.partial)
        differs.append(~same_rows(stored, incoming_rows))
    changes = np.concatenate(differs)
    return decision._replace(
        changed=decision.changed[changes],
        changed_rows=decision.changed_rows[changes],
        untouched=np.concatenate([decision.untouched, decision.changed[~changes]]),
        num_unchanged=int(np.count_nonzero(~changes)),
    )


def check_untouched(table: TableVersion, untouched: RowAddresses, newest: Manifest) -> None:
    """Raise unless the rows that an upsert leaves untouched are the same as when it was planned.

    Args:
        table: The version that the upsert was planned on.
        untouched: The addresses of the rows, in any order.
        newest: The newest version.

    Raises:
        RetryableConflictError: Another writer changed, deleted or moved a row.
    """
    if newest.version == table.version or not len(untouched):
        return
    fragments = table.manifest.fragments
    for fragment_id, offsets in by_fragment(np.sort(untouched)):
        raw = fragments.raw(fragments.index_by_id[fragment_id])
        index = newest.fragments.index_by_id.get(fragment_id)
        if index is not None and newest.fragments.raw(index) == raw:
            continue
        deleted = None
        if index is not None:
            now = newest.fragments[index]
            deleted = deleted_rows(table.at(newest), decode_fragment(raw), now)
        if deleted is None or bool(are_among(offsets, deleted).any()):
            raise RetryableConflictError(
                f"this upsert was planned on version {table.version} and leaves rows of "
                f"fragment {fragment_id} untouched, but another writer has since changed, "
                "deleted or moved them. Plan it again on the newest version",
                newest.version,
            )
