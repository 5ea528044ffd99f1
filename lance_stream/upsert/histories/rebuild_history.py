"""Histories of keys: from events in any order to rows with a start and an end.

    events of a key      5 store A    9 store A    12 store B    20 delete
    rows                 A from 5 to 12            B from 12 to 20

A *run* is events that follow each other and store the same values in the tracked columns; it is one
row. The row begins with the first event of its run, has the values of the last one (which may
differ in other columns), and ends with the next event, or not yet. A delete leaves no row.

The rows alone do not tell all events: a later one of a run, or a delete of a key that has no row,
shows in none. These *shadowed* events are remembered beside the table (`shadowed_events`). From the
rows and the shadowed events, the events can be told again:

    a row                store at its start; delete at its end, unless another row begins there
    a shadowed event       store or delete at its sequence

So an event that arrives late is put into its place, and the rows around it are made again: split,
prolonged, shortened, joined, or deleted. Whatever the order of arrival, the rows are those of all
events in order. Of two events of a key with the same sequence, a delete counts; of two that store,
the one that arrived later.

`rebuild_history` is a function of numbers: keys are numbered, sequences are ranks, and values are
rows of one table, compared by a function that it is passed. It sees only rows that incoming events
may change: those that end at the first of them or later.

Source: Spark's AUTO CDC, stored as SCD type 2: its processor of batches, and its tests.
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
        ends: (s,) i64, the rank of its end; `OPEN` if it has none.
        start_indices: (s,) i64, the place of its start among all sequences.
        end_indices: (s,) i64, the place of its end.
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
        positions: (n,) i64, the place of its sequence among all sequences.
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
    """The rows that the table should have for all events, and what shows in none.

    Attributes:
        keys: (r,) i64, the number of each row's key; rows of a key are in order.
        starts: (r,) i64, the place of its start among all sequences.
        ends: (r,) i64, the place of its end; -1 if it has none.
        start_ranks: (r,) i64, the ranks of these.
        end_ranks: (r,) i64; `OPEN` where there is no end.
        rows: (r,) i64, the row of its values among all values.
        stored_rows: (r,) i64, the row of the values of columns that no incoming event has.
        stored: (r,) i64, which stored row it takes the place of; -1 if it is new.
        removed: (d,) i64, the stored rows that are deleted, ascending.
        hidden: The events that show in no row and are not known yet, in order.
        num_superseded: How many incoming events do not count, because of another one of the key
            with the same sequence.
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

    A row that ended before the first of them is left alone: there was a delete at its end.
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
    """Return a row that has no place in the history of its key; -1 if all have one.

    It has no start, does not end after its start, or overlaps with another one.
    """
    order = np.lexsort((stored.starts, stored.keys))
    keys, starts, ends = stored.keys[order], stored.starts[order], stored.ends[order]
    bad = (starts <= OPEN) | ((ends != OPEN) & (ends <= starts))
    same_key = keys[1:] == keys[:-1]
    bad[:-1] |= same_key & ((ends[:-1] == OPEN) | (ends[:-1] > starts[1:]))
    return int(order[np.argmax(bad)]) if bad.any() else NONE


def covering_rows(stored: StoredRows, keys: Positions, ranks: Positions) -> Positions:
    """Return the stored row in whose time each event is; -1 if there is none.

    Args:
        stored: (s,) rows that do not overlap.
        keys: (n,) the number of each event's key.
        ranks: (n,) the rank of its sequence.
    """
    if not len(stored.keys) or not len(keys):
        return np.full(len(keys), NONE, np.int64)
    factor = 1 + max(int(stored.starts.max()), int(ranks.max()))
    codes = stored.keys * factor + stored.starts
    order = np.argsort(codes)
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
    same_remembered: Callable[[Positions, Positions], Mask] | None,
) -> RebuiltHistory:
    """Return the rows for all events of some keys.

    Args:
        stored: (s,) the rows that incoming events may change. Their values are the first s of all
            values.
        hidden: The known shadowed events: of those that store, the ones in the time of such a row;
            of those that delete, the ones since the first such row, or the first incoming event.
        is_whole: Of which of these all values are remembered; the others are remembered again.
        incoming: The new events. Of those of a key with the same sequence, all that store have the
            same values.
        same_tracked: Returns which pairs of values are the same in the tracked columns.
        same_remembered: The same for the columns that are remembered with shadowed events; None if
            none are.
    """
    changes = _events_of(stored, hidden)
    events, source_rows, is_incoming = _deduplicate(changes, incoming)
    stores = ~events.deletes
    follows = np.zeros(len(stores), np.bool_)
    follows[1:] = events.keys[1:] == events.keys[:-1]
    continues = np.zeros(len(stores), np.bool_)
    pairs = 1 + np.flatnonzero(follows[1:] & stores[1:] & stores[:-1])
    continues[pairs] = same_tracked(events.rows[pairs - 1], events.rows[pairs])
    is_head = stores & ~continues
    is_tail = stores.copy()
    is_tail[:-1] &= ~continues[1:]
    heads, tails = np.flatnonzero(is_head), np.flatnonzero(is_tail)
    after = np.minimum(tails + 1, len(stores) - 1)
    ends_there = (tails + 1 < len(stores)) & follows[after] if len(tails) else tails > 0
    starts = events.positions[heads]
    ends = np.where(ends_there, events.positions[after], NONE) if len(tails) else tails
    end_ranks = np.where(ends_there, events.ranks[after], OPEN) if len(tails) else tails
    # The last event before each one of which such values are known, within its run.
    knows = np.where(is_head | (source_rows != NONE), np.arange(len(stores)), 0)
    source = np.maximum.accumulate(knows) if len(knows) else knows
    before = source_rows
    source_rows = np.where(source_rows != NONE, source_rows, events.rows)[source]
    keys = events.keys[heads]
    taken = _replaced_rows(stored, keys, events.ranks[heads])
    used = np.zeros(len(stored.keys), np.bool_)
    used[taken[taken != NONE]] = True
    is_hidden = _is_hidden(
        events, follows, continues, is_tail, remembers_values=same_remembered is not None
    )
    is_recorded = _are_among(events, hidden.take(is_whole))
    if same_remembered is not None:
        again = np.flatnonzero(is_recorded & is_incoming & stores & (before != NONE))
        is_recorded[again] = same_remembered(before[again], events.rows[again])
    return RebuiltHistory(
        keys,
        starts,
        ends,
        events.ranks[heads],
        end_ranks,
        events.rows[tails],
        source_rows[tails],
        taken,
        np.flatnonzero(~used),
        events.take(is_hidden & ~is_recorded),
        len(incoming.keys) - int(np.count_nonzero(is_incoming)),
    )


def _events_of(stored: StoredRows, hidden: Events) -> Events:
    """Return the events that stored rows and shadowed events tell."""
    num_rows = len(stored.keys)
    row_numbers = np.arange(num_rows)
    covering = covering_rows(stored, hidden.keys, hidden.ranks)
    keeps = hidden.deletes | (covering != NONE)
    hidden, covering = hidden.take(keeps), covering[keeps]
    last = stored.starts.copy()
    inner = np.flatnonzero(~hidden.deletes)
    np.maximum.at(last, covering[inner], hidden.ranks[inner])
    # The last event of a run has the row's values, whatever was remembered of it.
    is_last = np.zeros(len(hidden.keys), np.bool_)
    is_last[inner] = hidden.ranks[inner] == last[covering[inner]]
    hidden = hidden._replace(rows=np.where(is_last, covering, hidden.rows))
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
    """Return the event of each key and sequence that counts, in order.

    Returns:
        The events; the row of values that were stored or remembered before, or -1; and which are
        incoming.
    """
    events = _joined(changes, incoming)
    is_new = np.arange(len(events.keys)) >= len(changes.keys)
    # A delete comes last; of others an incoming one, and then a remembered one.
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
    """Return the stored row that each new one takes the place of; -1 for none.

    One of the same start; of those that are left, the next one of the key, in order.
    """
    num_rows, num_new = len(stored.keys), len(keys)
    taken: Positions = np.full(num_new, NONE, np.int64)
    if not num_rows or not num_new:
        return taken
    factor = 1 + int(max(stored.starts.max(), starts.max()))
    codes = stored.keys * factor + stored.starts
    order = np.argsort(codes)
    targets = keys * factor + starts
    at = np.minimum(np.searchsorted(codes[order], targets), num_rows - 1)
    hits = codes[order][at] == targets
    taken[hits] = order[at[hits]]
    is_free = np.ones(num_rows, np.bool_)
    is_free[taken[hits]] = False
    olds = order[is_free[order]]
    news = np.flatnonzero(~hits)
    pairs = _numbered(keys[news]), _numbered(stored.keys[olds])
    factor = 1 + num_rows + num_new
    mine, theirs = keys[news] * factor + pairs[0], stored.keys[olds] * factor + pairs[1]
    if len(olds) and len(news):
        at = np.minimum(np.searchsorted(theirs, mine), len(olds) - 1)
        hits = theirs[at] == mine
        taken[news[hits]] = olds[at[hits]]
    return taken


def _numbered(keys: Positions) -> Positions:
    """Return the number of each item among those of its key; equal keys are together."""
    if not len(keys):
        return keys
    begins = np.concatenate([[True], keys[1:] != keys[:-1]])
    firsts = np.flatnonzero(begins)
    numbers: Positions = np.arange(len(keys)) - firsts[np.cumsum(begins) - 1]
    return numbers


def _is_hidden(
    events: Events, follows: Mask, continues: Mask, is_tail: Mask, *, remembers_values: bool
) -> Mask:
    """Return which events rows do not tell."""
    stores = ~events.deletes
    after_row = np.zeros(len(stores), np.bool_)
    after_row[1:] = follows[1:] & stores[:-1]
    # Of a run of several, the first one is told by the row's start, unless its values differ.
    is_first = stores & ~continues & ~is_tail
    in_run = continues | (is_first if remembers_values else np.zeros(len(stores), np.bool_))
    hidden: Mask = (events.deletes & ~after_row) | in_run
    return hidden


def _are_among(events: Events, others: Events) -> Mask:
    """Return which events are among known ones: by key, sequence and kind."""
    if not len(events.keys) or not len(others.keys):
        return np.zeros(len(events.keys), np.bool_)
    factor = 1 + int(max(events.ranks.max(), others.ranks.max()))

    def codes(of: Events) -> Positions:
        return 2 * (of.keys * factor + of.ranks) + of.deletes

    return np.isin(codes(events), codes(others))
