"""Which rows of a batch change, insert or delete rows of the table, and which are late.

`decide` is a function of the batch and of what was found; `decide_changes` also reads the stored
rows, if rows that would not change are to be left untouched.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.read.changed_rows import Addresses, read_rows
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.comparing import are_less, same_rows
from lance_stream.upsert.incoming import Incoming
from lance_stream.upsert.keys import Places
from lance_stream.upsert.matching import THREADS, Matches, Workers
from lance_stream.upsert.partial_structs import with_stored_parts
from lance_stream.upsert.tombstones import RememberedDeletes


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
