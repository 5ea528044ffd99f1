"""Rebuilds the history of keys: from events in any order to rows with a start and an end.

    events of a key      5 store A    9 store A    12 store B    20 delete
    rows                 A from 5 to 12            B from 12 to 20

A *run* is a sequence of consecutive events that store the same values in the tracked columns; it
becomes one row. The row starts at the first event of its run, has the values of the last event
(which may differ in untracked columns), and ends at the next event, if there is one. A delete
produces no row.

The rows do not reveal all events: the later events of a run, or a delete of a key without a row,
are not visible. Such *shadowed* events are remembered separately (`shadowed_events`). Rows and
shadowed events together determine all events:

    a row                store at its start; delete at its end, unless another row starts there
    a shadowed event     store or delete at its sequence

A late event is inserted at its position, and the rows around it are rebuilt: split, extended,
shortened, merged or deleted. The result does not depend on the order of arrival. If two events of a
key have the same sequence, a delete wins over a store, and a later store over an earlier one.

`rebuild_history` is a function of numbers: keys are numbered, sequences are ranks, and values are
rows of one batch, compared by a callback. Its input has only the rows that incoming events may
change: those that end at the first incoming event of their key, or later.

Source: Spark's AUTO CDC, stored as SCD type 2: its batch processor, and its tests.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from lance_stream.arrays import Mask, Positions

NONE: Final = -1

OPEN: Final = 0
"""The rank of an end that is null."""


class StoredRows(NamedTuple):
    """Rows of the table, in any order.

    Attributes:
        keys: (s,) i64, the number of each row's key.
        starts: (s,) i64, the rank of its start.
        ends: (s,) i64, the rank of its end; `OPEN` if it has no end.
        start_indices: (s,) i64, the position of its start among all sequences.
        end_indices: (s,) i64, the position of its end.
    """

    keys: Positions
    starts: Positions
    ends: Positions
    start_indices: Positions
    end_indices: Positions

    def take(self, chosen: Positions) -> "StoredRows":
        """Return some of them."""
        return StoredRows(
            self.keys[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.start_indices[chosen],
            self.end_indices[chosen],
        )


class Events(NamedTuple):
    """Events of keys, in any order.

    Attributes:
        keys: (n,) i64, the number of each event's key.
        ranks: (n,) i64, the rank of its sequence.
        deletes: (n,) whether it deletes; otherwise it stores.
        rows: (n,) i64, the row of its values among all values.
        positions: (n,) i64, the position of its sequence among all sequences.
    """

    keys: Positions
    ranks: Positions
    deletes: Mask
    rows: Positions
    positions: Positions

    def take(self, chosen: Positions | Mask) -> "Events":
        """Return some of them."""
        return Events(
            self.keys[chosen],
            self.ranks[chosen],
            self.deletes[chosen],
            self.rows[chosen],
            self.positions[chosen],
        )


class RebuiltHistory(NamedTuple):
    """The rows that the table should have for all events, and new shadowed events.

    Attributes:
        keys: (r,) i64, the number of each row's key; rows of a key are in order.
        starts: (r,) i64, the position of its start among all sequences.
        ends: (r,) i64, the position of its end; -1 if it has no end.
        start_ranks: (r,) i64, the rank of its start.
        end_ranks: (r,) i64, the rank of its end; `OPEN` if it has no end.
        rows: (r,) i64, the row of its values among all values.
        stored_rows: (r,) i64, the row with the values of columns that incoming events lack.
        stored: (r,) i64, the stored row that it replaces; -1 if it is new.
        removed: (d,) i64, the stored rows that are deleted, ascending.
        hidden: The shadowed events that are not remembered yet, in order.
        num_superseded: The number of incoming events that are ignored because another event of the
            key has the same sequence.
    """

    keys: Positions
    starts: Positions
    ends: Positions
    start_ranks: Positions
    end_ranks: Positions
    rows: Positions
    stored_rows: Positions
    stored: Positions
    removed: Positions
    hidden: Events
    num_superseded: int


def may_change(stored: StoredRows, incoming: Events, num_keys: int) -> Mask:
    """Return (s,) which stored rows incoming events may change.

    A row that ends before the first incoming event of its key cannot change.
    """
    first = first_ranks(incoming, num_keys)
    changing: Mask = (stored.ends == OPEN) | (stored.ends >= first[stored.keys])
    return changing


def first_ranks(incoming: Events, num_keys: int) -> Positions:
    """Return (num_keys,) the lowest rank of the events of each key."""
    first: Positions = np.full(num_keys, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, incoming.keys, incoming.ranks)
    return first


def first_bad_row(stored: StoredRows) -> int:
    """Return a row that makes the history of its key invalid; -1 if there is no such row.

    Such a row has no start, does not end after its start, or overlaps the next row.
    """
    order = np.lexsort((stored.starts, stored.keys))
    keys, starts, ends = stored.keys[order], stored.starts[order], stored.ends[order]
    bad = (starts <= OPEN) | ((ends != OPEN) & (ends <= starts))
    same_key = keys[1:] == keys[:-1]
    bad[:-1] |= same_key & ((ends[:-1] == OPEN) | (ends[:-1] > starts[1:]))
    return int(order[np.argmax(bad)]) if bad.any() else NONE


def covering_rows(stored: StoredRows, keys: Positions, ranks: Positions) -> Positions:
    """Return the stored row that covers the sequence of each event; -1 if there is none.

    Args:
        stored: (s,) rows that do not overlap.
        keys: (n,) the number of each event's key.
        ranks: (n,) the rank of its sequence.
    """
    if not len(stored.keys) or not len(keys):
        return np.full(len(keys), NONE, np.int64)
    # One number for key and rank, ordered by key, then by rank.
    factor = 1 + max(int(stored.starts.max()), int(ranks.max()))
    codes = stored.keys * factor + stored.starts
    order = np.argsort(codes)
    # The last row that starts at the event or before it covers the event if it has the same key
    # and ends after the event.
    at = np.searchsorted(codes[order], keys * factor + ranks, "right") - 1
    rows = order[np.maximum(at, 0)]
    ends = stored.ends[rows]
    is_in = (at >= 0) & (stored.keys[rows] == keys) & ((ends == OPEN) | (ranks < ends))
    covering: Positions = np.where(is_in, rows, NONE)
    return covering


def rebuild_history(
    stored: StoredRows,
    hidden: Events,
    is_whole: Mask,
    incoming: Events,
    same_tracked: Callable[[Positions, Positions], Mask],
    same_lacking: Callable[[Positions, Positions], Mask] | None,
    same_remembered: Callable[[Positions, Positions], Mask] | None,
) -> RebuiltHistory:
    """Return the rows for all events of some keys.

    Args:
        stored: (s,) the rows that incoming events may change. Their values are the first s of all
            values.
        hidden: (h,) the remembered shadowed events: stores within a row of `stored`, and deletes
            since the first row of `stored` or incoming event of their key.
        is_whole: (h,) whether all values of the event are remembered; other events are remembered
            again.
        incoming: The new events. All stores of a key with the same sequence have the same values,
            unless an event with that sequence deletes the key.
        same_tracked: Returns which pairs of values are equal in the tracked columns.
        same_lacking: Returns which pairs of values are equal in the columns that incoming events
            lack and that separate rows; None if there are no such columns.
        same_remembered: Returns which pairs of values are equal in the columns that are remembered
            with shadowed events; None if there are no such columns.
    """
    changes = _events_of(stored, hidden)
    # The events are sorted by key and sequence from here on.
    events, source_rows, is_incoming = _deduplicate(changes, incoming)
    stores = ~events.deletes
    # Whether an event has the same key as the event before it, ...
    follows = np.zeros(len(stores), np.bool_)
    follows[1:] = events.keys[1:] == events.keys[:-1]
    # ... and whether it continues the run of that event.
    continues = np.zeros(len(stores), np.bool_)
    pairs = 1 + np.flatnonzero(follows[1:] & stores[1:] & stores[:-1])
    continues[pairs] = same_tracked(events.rows[pairs - 1], events.rows[pairs])
    # Columns that incoming events lack get their values from the last event, up to this one and
    # within its run, that was stored or remembered before; otherwise from the head of the run.
    is_recorded = source_rows != NONE
    knows = np.where((stores & ~continues) | is_recorded, np.arange(len(stores)), 0)
    source = np.maximum.accumulate(knows) if len(knows) else knows
    rows_of_lacking = np.where(is_recorded, source_rows, events.rows)[source]
    if same_lacking is not None:
        # An incoming event has no values of its own there, so only a recorded one ends the run.
        pairs = pairs[continues[pairs] & is_recorded[pairs]]
        continues[pairs] = same_lacking(rows_of_lacking[pairs - 1], rows_of_lacking[pairs])
    is_head = stores & ~continues
    is_tail = stores.copy()
    is_tail[:-1] &= ~continues[1:]
    heads, tails = np.flatnonzero(is_head), np.flatnonzero(is_tail)
    # A row ends at the event after its run, if that event has the same key.
    after = np.minimum(tails + 1, len(stores) - 1)
    ends_there = (tails + 1 < len(stores)) & follows[after] if len(tails) else tails > 0
    starts = events.positions[heads]
    ends = np.where(ends_there, events.positions[after], NONE) if len(tails) else tails
    end_ranks = np.where(ends_there, events.ranks[after], OPEN) if len(tails) else tails
    keys = events.keys[heads]
    replaced = _replaced_rows(stored, keys, events.ranks[heads])
    used = np.zeros(len(stored.keys), np.bool_)
    used[replaced[replaced != NONE]] = True
    is_hidden = _is_hidden(
        events, follows, continues, is_tail, remembers_values=same_remembered is not None
    )
    # Remember a shadowed event unless it is already remembered with the same values.
    is_remembered = _are_among(events, hidden.take(is_whole))
    if same_remembered is not None:
        again = np.flatnonzero(is_remembered & is_incoming & stores & is_recorded)
        is_remembered[again] = same_remembered(source_rows[again], events.rows[again])
    return RebuiltHistory(
        keys,
        starts,
        ends,
        events.ranks[heads],
        end_ranks,
        events.rows[tails],
        rows_of_lacking[tails],
        replaced,
        np.flatnonzero(~used),
        events.take(is_hidden & ~is_remembered),
        len(incoming.keys) - int(np.count_nonzero(is_incoming)),
    )


def _events_of(stored: StoredRows, hidden: Events) -> Events:
    """Return the events that stored rows and shadowed events stand for."""
    num_rows = len(stored.keys)
    row_numbers = np.arange(num_rows)
    # Drop shadowed stores outside of the stored rows.
    covering = covering_rows(stored, hidden.keys, hidden.ranks)
    keeps = hidden.deletes | (covering != NONE)
    hidden, covering = hidden.take(keeps), covering[keeps]
    # The rank of the last event of every row.
    last = stored.starts.copy()
    inner = np.flatnonzero(~hidden.deletes)
    np.maximum.at(last, covering[inner], hidden.ranks[inner])
    # The last event of a run has the values of the row, even if other values were remembered.
    is_last = np.zeros(len(hidden.keys), np.bool_)
    is_last[inner] = hidden.ranks[inner] == last[covering[inner]]
    hidden = hidden._replace(rows=np.where(is_last, covering, hidden.rows))
    # A row that has an end stands for a delete there, unless another row of its key starts there.
    ended = np.flatnonzero(stored.ends != OPEN)
    factor = 1 + int(max(stored.starts.max(), stored.ends.max())) if num_rows else 1
    begins = stored.keys * factor + stored.starts
    ended = ended[~np.isin(stored.keys[ended] * factor + stored.ends[ended], begins)]
    never, always = np.zeros(num_rows, np.bool_), np.ones(len(ended), np.bool_)
    return _joined(
        Events(stored.keys, stored.starts, never, row_numbers, stored.start_indices),
        Events(stored.keys[ended], stored.ends[ended], always, ended, stored.end_indices[ended]),
        hidden,
    )


def _joined(*parts: Events) -> Events:
    return Events(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.ranks for part in parts]),
        np.concatenate([part.deletes for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.positions for part in parts]),
    )


def _deduplicate(changes: Events, incoming: Events) -> tuple[Events, Positions, Mask]:
    """Return the winning event of every key and sequence, in order.

    Returns:
        The events; the row of the values that were stored or remembered before for the same key and
        sequence, or -1; and which events are incoming.
    """
    events = _joined(changes, incoming)
    is_new = np.arange(len(events.keys)) >= len(changes.keys)
    # The last event of a group wins: a delete; otherwise the last incoming event; otherwise the
    # last event of the table.
    order = np.lexsort((np.arange(len(is_new)), is_new, events.deletes, events.ranks, events.keys))
    events, is_new = events.take(order), is_new[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (events.keys[1:] != events.keys[:-1]) | (events.ranks[1:] != events.ranks[:-1])
    is_recorded = ~is_new & ~events.deletes
    group: Positions = np.cumsum(last) - last
    source_rows: Positions = np.full(int(np.count_nonzero(last)), NONE, np.int64)
    source_rows[group[is_recorded]] = events.rows[is_recorded]
    return events.take(last), source_rows, is_new[last]


def _replaced_rows(stored: StoredRows, keys: Positions, starts: Positions) -> Positions:
    """Return the stored row that each rebuilt row replaces; -1 if it is new.

    A rebuilt row replaces the stored row of its key with the same start. The remaining rows of a
    key are paired in order.
    """
    num_rows, num_new = len(stored.keys), len(keys)
    replaced: Positions = np.full(num_new, NONE, np.int64)
    if not num_rows or not num_new:
        return replaced
    factor = 1 + int(max(stored.starts.max(), starts.max()))
    codes = stored.keys * factor + stored.starts
    order = np.argsort(codes)
    targets = keys * factor + starts
    at = np.minimum(np.searchsorted(codes[order], targets), num_rows - 1)
    hits = codes[order][at] == targets
    replaced[hits] = order[at[hits]]
    is_free = np.ones(num_rows, np.bool_)
    is_free[replaced[hits]] = False
    # Pair the n-th remaining rebuilt row of a key with its n-th remaining stored row.
    olds = order[is_free[order]]
    news = np.flatnonzero(~hits)
    pairs = _numbered(keys[news]), _numbered(stored.keys[olds])
    factor = 1 + num_rows + num_new
    rebuilt_numbers = keys[news] * factor + pairs[0]
    stored_numbers = stored.keys[olds] * factor + pairs[1]
    if len(olds) and len(news):
        at = np.minimum(np.searchsorted(stored_numbers, rebuilt_numbers), len(olds) - 1)
        hits = stored_numbers[at] == rebuilt_numbers
        replaced[news[hits]] = olds[at[hits]]
    return replaced


def _numbered(keys: Positions) -> Positions:
    """Return the number of each item within its key, from 0; equal keys must be adjacent."""
    begins = np.concatenate([[True], keys[1:] != keys[:-1]])
    firsts = np.flatnonzero(begins)
    numbers: Positions = np.arange(len(keys)) - firsts[np.cumsum(begins) - 1]
    return numbers


def _is_hidden(
    events: Events, follows: Mask, continues: Mask, is_tail: Mask, *, remembers_values: bool
) -> Mask:
    """Return which events are not visible in the rows."""
    stores = ~events.deletes
    after_row = np.zeros(len(stores), np.bool_)
    after_row[1:] = follows[1:] & stores[:-1]
    # The row's start reveals the first event of a longer run, but not its values in untracked
    # columns.
    is_first = stores & ~continues & ~is_tail
    in_run = continues | (is_first if remembers_values else np.zeros(len(stores), np.bool_))
    hidden: Mask = (events.deletes & ~after_row) | in_run
    return hidden


def _are_among(events: Events, others: Events) -> Mask:
    """Return which events are among others, by key, sequence and kind."""
    if not len(events.keys) or not len(others.keys):
        return np.zeros(len(events.keys), np.bool_)
    factor = 1 + int(max(events.ranks.max(), others.ranks.max()))

    def codes(of: Events) -> Positions:
        return 2 * (of.keys * factor + of.ranks) + of.deletes

    return np.isin(codes(events), codes(others))
