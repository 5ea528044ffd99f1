"""Merges events into the histories of their keys: the counterpart of `upsert` for SCD type 2.

    look up   the rows of the batch's keys, with their starts and ends
    read      the rows that an event may change: those that end at its sequence or later
    rebuild   compute the rows of the new history (`rebuild_history`)
    write     new and changed rows; shadowed events, in tombstone files (`shadowed_events`)
    commit    one Update

The Update lists the hashes of all keys whose rows or shadowed events change, not only of new keys.
If two writers change the history of one key, the later one therefore has to plan again.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lance_stream.arrays import Mask, Positions, RowAddresses
from lance_stream.environment import Environment
from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.keys.batch_keys import KeyLookup, show_key
from lance_stream.keys.fragment_matches import Matches
from lance_stream.keys.key_matcher import KeyMatcher
from lance_stream.keys.value_comparison import check_can_order, dense_ranks, same_rows, show_value
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.row_updates.changed_rows import read_rows
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.lineage.ascending import distinct
from lance_stream.upsert.decisions import Decision
from lance_stream.upsert.histories.rebuild_history import (
    NONE,
    Events,
    RebuiltHistory,
    StoredRows,
    covering_rows,
    first_bad_row,
    first_ranks,
    may_change,
    rebuild_history,
)
from lance_stream.upsert.histories.shadowed_events import (
    check_has_history,
    check_history_names,
    data_columns,
    lacking_columns,
    new_shadowed_events,
    open_shadowed_events,
    tracked_columns,
)
from lance_stream.upsert.incoming import key_rows, which_delete
from lance_stream.upsert.row_writer import (
    ChangedRows,
    UpsertPart,
    discard_parts,
    hashes_of,
    remember_keys,
    write_rows,
)
from lance_stream.upsert.rules import END_AT, START_AT, UpsertRules
from lance_stream.upsert.tombstone_files import VALUE_PREFIX, Deletes
from lance_stream.upsert.tombstones import RememberedDeletes
from lance_stream.upsert.update_planner import Work
from lance_stream.upsert.winners import check_no_null_sequences, check_same
from lance_stream.write.arrow_input import one_batch
from lance_stream.write.casting import cast_batch, check_columns
from lance_stream.write.phases import Phases

_LEAVE_OUT: Final = "Exclude the column with except_column_list, or add it to the table first"


class IncomingEvents(NamedTuple):
    """The events of a batch, in the table's types.

    Attributes:
        rules: The user's rules for them.
        lookup: Their keys.
        keys: (num_keys,) values of each key column.
        key_of_event: (n,) i64, the number of each event's key.
        sequence: (n,) their sequences.
        deletes: (n,) whether each event deletes.
        rows: (n,) the columns of the table without start and end; columns that the batch lacks are
            null.
        stored: The columns of the batch that are stored.
        tracked: The columns whose changes start a new row.
    """

    rules: UpsertRules
    lookup: KeyLookup
    keys: tuple[pa.Array, ...]
    key_of_event: Positions
    sequence: pa.Array
    deletes: Mask
    rows: pa.RecordBatch
    stored: tuple[str, ...]
    tracked: tuple[str, ...]

    @property
    def on(self) -> tuple[str, ...]:
        """The key columns."""
        return self.rules.on

    @property
    def scanned_columns(self) -> tuple[str, ...]:
        """The table's columns that are looked up."""
        return self.rules.on


def stored_columns(batch: pa.Schema, rules: UpsertRules) -> tuple[str, ...]:
    """Return the columns of a batch of events that are stored.

    Raises:
        InvalidInputError: A column has a name that histories reserve.
    """
    stored = tuple(name for name in batch.names if name not in rules.except_columns)
    check_history_names(stored)
    return stored


def prepare_events(batch: pa.RecordBatch, table: pa.Schema, rules: UpsertRules) -> IncomingEvents:
    """Return the events of a batch, in the table's types.

    Args:
        batch: (n,) rows.
        table: The table's columns.
        rules: The user's rules for them.

    Raises:
        InvalidInputError: The table is not a history; a named column does not exist or does not
            fit; a key or a sequence is null; a value does not fit the table; or two different rows
            of a key have the same sequence, and no event with that sequence deletes the key.
    """
    check_has_history(table)
    stored = stored_columns(batch.schema, rules)
    keys = key_rows(batch, table, rules)
    by = str(rules.sequence_by)
    start = table.field(START_AT)
    check_can_order(START_AT, start.type)
    check_no_null_sequences(batch, rules.on, by)
    check_columns(stored, data_columns(table), remedy=_LEAVE_OUT)
    lookup = KeyLookup(keys.columns)
    deletes = which_delete(batch, rules)
    sequence = _cast_sequence(batch.column(by), by, start.type)
    stored_schema = pa.schema([field for field in table if field.name in stored])
    rows = _cast_rows(
        batch.select([field.name for field in stored_schema]), stored_schema, rules.on, deletes
    )
    columns = [
        rows.column(field.name) if field.name in stored else pa.nulls(rows.num_rows, field.type)
        for field in table
        if field.name not in (START_AT, END_AT)
    ]
    schema = pa.schema(
        [field.with_nullable(True) for field in table if field.name not in (START_AT, END_AT)]
    )
    events = IncomingEvents(
        rules,
        lookup,
        tuple(lookup_columns(keys, lookup)),
        lookup.key_of_row,
        sequence,
        deletes,
        pa.RecordBatch.from_arrays(columns, schema=schema),
        stored,
        tuple(tracked_columns(table, stored, rules)),
    )
    _check_unambiguous(events, batch)
    return events


def _cast_sequence(sequence: pa.Array, name: str, data_type: pa.DataType) -> pa.Array:
    try:
        return cast_batch(
            pa.RecordBatch.from_arrays([sequence], [name]), pa.schema([pa.field(name, data_type)])
        ).column(0)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the sequence {name!r} is {sequence.type}, but {START_AT} and {END_AT} of the table "
            f"are {data_type}: {error}"
        ) from error


def lookup_columns(keys: pa.RecordBatch, lookup: KeyLookup) -> list[pa.Array]:
    """Return the (num_keys,) values of each key column, in the types of the rows."""
    first = np.full(lookup.num_keys, len(lookup.key_of_row), np.int64)
    np.minimum.at(first, lookup.key_of_row, np.arange(len(lookup.key_of_row)))
    return list(keys.take(pa.array(first)).columns)


def _cast_rows(
    batch: pa.RecordBatch, target: pa.Schema, on: Sequence[str], deletes: Mask
) -> pa.RecordBatch:
    """Return rows in the table's types. Only the keys of deletes are cast and kept."""
    stores = ~deletes
    positions = np.cumsum(stores) - 1
    cast = cast_batch(batch.filter(pa.array(stores)), target)
    values = pa.array(positions, mask=deletes)
    keys = cast_batch(
        batch.select([field.name for field in target if field.name in on]),
        pa.schema([field for field in target if field.name in on]),
    )
    columns = [
        keys.column(field.name) if field.name in on else cast.column(field.name).take(values)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, names=target.names)


def _check_unambiguous(events: IncomingEvents, batch: pa.RecordBatch) -> None:
    """Raise if two events of a key have the same sequence and different rows, without a delete."""
    ranks = dense_ranks(events.sequence)
    # Groups of events with equal key and sequence; a delete is the first event of its group.
    order = np.lexsort((~events.deletes, ranks, events.key_of_event))
    keys, ranks = events.key_of_event[order], ranks[order]
    same = (keys[1:] == keys[:-1]) & (ranks[1:] == ranks[:-1])
    group = np.concatenate([[0], np.cumsum(~same)]) if len(order) else order
    first = np.concatenate([[True], ~same]) if len(order) else same
    heads = order[first]
    # Every other event of a group without a delete must store the same row as the first one.
    twins = np.flatnonzero(~first & ~events.deletes[heads][group])
    if len(twins):
        # Compare the stored columns as they arrived, before the cast.
        by = str(events.rules.sequence_by)
        columns = batch.select([*dict.fromkeys((*events.stored, *events.rules.on, by))])
        check_same(columns, events.rules.on, by, order[twins], heads[group[twins]])


def merge_history(
    table: TableVersion,
    events: IncomingEvents,
    remembered: RememberedDeletes,
    matcher: KeyMatcher,
    workers: Workers = THREADS,
    *,
    may_stay: bool = True,
    keeps_keys: bool = True,
) -> UpsertPart:
    """Look up the histories of the keys, rebuild them, and write the differences.

    Args:
        table: The version that is planned on.
        events: All events of their keys in the batch.
        remembered: The shadowed events that the version remembers.
        matcher: Looks up the keys.
        workers: Read the table's data files.
        may_stay: See `write_rows`.
        keeps_keys: Whether the process adds the keys of the written rows to its index.

    Raises:
        BadDataError: The table's rows of a key do not form a history.
        InvalidInputError: New rows lack a column that must not be null; no file is left behind.
    """
    rules = events.rules
    matches = matcher.look_up(table, events)
    versions_of_keys = _read_versions(table, events, remembered, matches, workers)
    names = remembered.values
    lacking = lacking_columns(table.arrow_schema, events.stored, rules)
    rebuilt = rebuild_history(
        versions_of_keys.stored,
        versions_of_keys.hidden,
        versions_of_keys.is_whole,
        versions_of_keys.incoming,
        partial(_same_values, versions_of_keys.values.select(list(events.tracked))),
        partial(_same_values, versions_of_keys.values.select(lacking)) if lacking else None,
        partial(_same_values, versions_of_keys.values.select(names)) if names else None,
    )
    rows = _rebuilt_rows(table, events, versions_of_keys, rebuilt)
    decision = _decided(versions_of_keys, rebuilt, rows)
    replaced = np.union1d(decision.changed, decision.deleted)
    decision = decision._replace(
        untouched=np.setdiff1d(matches.addresses, replaced),
        num_unchanged=len(versions_of_keys.addresses)
        - len(decision.changed)
        - len(decision.deleted),
    )
    written = write_rows(
        table, ChangedRows(rules, rows, {}), decision, workers=workers, may_stay=may_stay
    )
    if keeps_keys:
        remember_keys(table, rules, rows.select(list(rules.on)), written, workers)
    hidden = rebuilt.hidden
    changed = np.searchsorted(versions_of_keys.addresses, replaced)
    touched = [
        hidden.keys,
        versions_of_keys.stored.keys[changed],
        rebuilt.keys[decision.inserted_rows],
    ]
    deletes = new_shadowed_events(
        remembered,
        [key.take(pa.array(hidden.keys)) for key in events.keys],
        versions_of_keys.sequences.take(pa.array(hidden.positions)),
        ~hidden.deletes,
        _rows_at(versions_of_keys.values, hidden.rows),
    )
    touched_keys = pa.array(np.unique(np.concatenate(touched)))
    hashes = hashes_of(table, rules.on, [key.take(touched_keys) for key in events.keys])
    written = written._replace(
        inserted_keys=distinct(hashes),
        deletes=deletes if deletes.rows.num_rows else None,
    )
    return UpsertPart(written, events.rows.num_rows, rebuilt.num_superseded)


class _VersionsOfKeys(NamedTuple):
    """The stored and shadowed history of the keys of a batch, and the events of the batch.

    Attributes:
        stored: (s,) the rows that the events may change.
        addresses: (s,) u64 addresses of these rows, ascending.
        hidden: (h,) the shadowed events that affect the result.
        is_whole: (h,) whether a shadowed event has all values that are remembered today; always
            true for deletes.
        incoming: (n,) the events of the batch.
        values: (s + h + n,) the values of stored rows, shadowed events and incoming events.
        sequences: All sequences: of starts, ends, shadowed events and incoming events.
    """

    stored: StoredRows
    addresses: RowAddresses
    hidden: Events
    is_whole: Mask
    incoming: Events
    values: pa.RecordBatch
    sequences: pa.Array


def _read_versions(
    table: TableVersion,
    events: IncomingEvents,
    remembered: RememberedDeletes,
    matches: Matches,
    workers: Workers,
) -> _VersionsOfKeys:
    """Read the stored and shadowed history of the keys of a batch.

    Raises:
        BadDataError: The table's rows of a key do not form a history.
    """
    bounds = _read(table, matches.addresses, [START_AT, END_AT], workers)
    shadowed, shadowed_keys = remembered.of_keys(events.lookup, events.keys)
    # Rank all sequences together, so that ranks are comparable: starts and ends of rows, shadowed
    # events, and incoming events. `indices` holds the positions of each of these four groups.
    parts = [*bounds.columns, shadowed.sequence.cast(events.sequence.type), events.sequence]
    sequences = pa.concat_arrays(parts)
    ranks = dense_ranks(sequences)
    ends_of_parts = np.cumsum([0, *map(len, parts)])
    indices = [np.arange(first, stop) for first, stop in pairwise(ends_of_parts.tolist())]
    history = StoredRows(matches.keys, ranks[indices[0]], ranks[indices[1]], indices[0], indices[1])
    _check_histories(table, events, history, sequences)
    num_events = len(indices[3])
    incoming = Events(
        events.key_of_event, ranks[indices[3]], events.deletes, np.arange(num_events), indices[3]
    )
    # Only rows that end at the first event of their key, or later, may change: read all columns.
    num_keys = events.lookup.num_keys
    changing = np.flatnonzero(may_change(history, incoming, num_keys))
    stored = history.take(changing)
    addresses = matches.addresses[changing]
    stored_values = _read(table, addresses, events.rows.schema.names, workers)
    # A shadowed store matters if it lies within a stored row. A shadowed delete matters from the
    # first such row or incoming event of its key on: `since` is the rank of the earlier one.
    since = first_ranks(incoming, num_keys)
    np.minimum.at(since, stored.keys, stored.starts)
    shadowed_ranks = ranks[indices[2]]
    covering = covering_rows(stored, shadowed_keys, shadowed_ranks)
    matters = np.where(shadowed.stores, covering != NONE, shadowed_ranks >= since[shadowed_keys])
    # If an event was remembered more than once, use the last one.
    matters &= _are_last(shadowed_keys, shadowed_ranks, shadowed.stores)
    chosen = np.flatnonzero(matters)
    shadowed_values = _shadowed_values(stored_values, shadowed, chosen, covering[chosen])
    is_whole = np.ones(len(chosen), np.bool_)
    for is_missing in shadowed.missing.values():
        is_whole &= ~is_missing[chosen]
    # Put all values into one batch: stored rows, shadowed events, incoming events.
    first_incoming = stored_values.num_rows + len(chosen)
    schema = events.rows.schema
    batches = (stored_values, shadowed_values, events.rows)
    return _VersionsOfKeys(
        stored,
        addresses,
        Events(
            shadowed_keys[chosen],
            shadowed_ranks[chosen],
            ~shadowed.stores[chosen],
            stored_values.num_rows + np.arange(len(chosen)),
            indices[2][chosen],
        ),
        is_whole | ~shadowed.stores[chosen],
        incoming._replace(rows=first_incoming + incoming.rows),
        one_batch(pa.Table.from_batches([_in_schema(batch, schema) for batch in batches])),
        sequences,
    )


def _read(
    table: TableVersion, addresses: RowAddresses, names: Sequence[str], workers: Workers
) -> pa.RecordBatch:
    """Return some columns of rows, in the order of their addresses."""
    columns = pa.schema([table.arrow_schema.field(name).with_nullable(True) for name in names])
    batches = read_rows(table, addresses, names, workers.read) if len(addresses) else ()
    return one_batch(
        pa.Table.from_batches([_in_schema(batch, columns) for batch in batches], schema=columns)
    )


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with its columns in the order of a schema whose fields are all nullable."""
    columns = [batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_histories(
    table: TableVersion, events: IncomingEvents, rows: StoredRows, sequences: pa.Array
) -> None:
    bad = first_bad_row(rows)
    if bad != NONE:
        key_text = show_key(events.rules.on, events.keys, int(rows.keys[bad]))
        start, end = (
            sequences[int(positions[bad])] for positions in (rows.start_indices, rows.end_indices)
        )
        raise BadDataError(
            f"the rows of {key_text} do not form a history: the row from {show_value(start)} to "
            f"{show_value(end)} has no start, does not end after its start, or overlaps another "
            f"row of the key. Correct or delete the key's rows in {table.uri}, or apply the events "
            "to a new table"
        )


def _are_last(keys: Positions, ranks: Positions, stores: Mask) -> Mask:
    """Return (n,) whether no later event has the same key, sequence and kind."""
    order = np.lexsort((stores, ranks, keys))  # stable
    last = np.ones(len(order), np.bool_)
    if len(order):
        last[:-1] = False
    for array in (keys, ranks, stores):
        last[:-1] |= array[order[1:]] != array[order[:-1]]
    are_last: Mask = np.zeros(len(order), np.bool_)
    are_last[order[last]] = True
    return are_last


def _shadowed_values(
    batch: pa.RecordBatch, deletes: Deletes, chosen: Positions, covering: Positions
) -> pa.RecordBatch:
    """Return the values of shadowed events, completed with those of the row that covers them.

    If a value was not remembered, its column was tracked, or missing in the data, so the covering
    row has the value of the event.
    """
    rows = pa.array(covering, mask=covering == NONE)
    columns = {name: batch.column(name).take(rows) for name in batch.schema.names}
    for name in deletes.rows.schema.names:
        value_name = name.removeprefix(VALUE_PREFIX)
        if value_name != name:
            data_type = batch.schema.field(value_name).type
            values = _as_stored(deletes.rows.column(name).take(pa.array(chosen)), data_type)
            if name in deletes.missing:
                # Select from the remembered values, followed by those of the covering rows.
                positions = np.arange(len(chosen)) + len(chosen) * deletes.missing[name][chosen]
                values = pa.concat_arrays([values, columns[value_name]]).take(pa.array(positions))
            columns[value_name] = values
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def _as_stored(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return remembered values in the type of their column."""
    return (
        values.dictionary_encode() if pa.types.is_dictionary(data_type) else values.cast(data_type)
    )


def _same_values(values: pa.RecordBatch, left: Positions, right: Positions) -> Mask:
    """Return which pairs of rows have equal values."""
    same: Mask = left == right
    others = np.flatnonzero(~same)
    same[others] = same_rows(_rows_at(values, left[others]), _rows_at(values, right[others]))
    return same


def _rows_at(batch: pa.RecordBatch, rows: Positions) -> pa.RecordBatch:
    return batch.take(pa.array(rows))


def _rebuilt_rows(
    table: TableVersion,
    events: IncomingEvents,
    versions_of_keys: _VersionsOfKeys,
    rebuilt: RebuiltHistory,
) -> pa.RecordBatch:
    """Return the rows of the rebuilt history, in the table's columns."""
    values = {
        name: versions_of_keys.values.column(name).take(
            pa.array(rebuilt.rows if name in events.stored else rebuilt.stored_rows)
        )
        for name in versions_of_keys.values.schema.names
    }
    values[START_AT] = versions_of_keys.sequences.take(pa.array(rebuilt.starts))
    values[END_AT] = versions_of_keys.sequences.take(
        pa.array(rebuilt.ends, mask=rebuilt.ends == NONE)
    )
    columns = [values[field.name] for field in table.arrow_schema]
    return pa.RecordBatch.from_arrays(columns, names=table.arrow_schema.names)


def _decided(
    versions_of_keys: _VersionsOfKeys, rebuilt: RebuiltHistory, rows: pa.RecordBatch
) -> Decision:
    """Return which rebuilt rows are changed or new, and which stored rows are deleted."""
    taking = np.flatnonzero(rebuilt.stored != NONE)
    olds = rebuilt.stored[taking]
    values = versions_of_keys.values
    # A row that replaces a stored row is unchanged if values, start and end are equal.
    same = same_rows(
        _rows_at(values, olds),
        _in_schema(_rows_at(rows, taking).select(values.schema.names), values.schema),
    )
    ranks = versions_of_keys.stored.starts[olds], versions_of_keys.stored.ends[olds]
    same &= rebuilt.start_ranks[taking] == ranks[0]
    same &= rebuilt.end_ranks[taking] == ranks[1]
    changed, olds = taking[~same], olds[~same]
    order = np.argsort(olds)
    return Decision(
        versions_of_keys.addresses[olds[order]],
        changed[order],
        np.flatnonzero(rebuilt.stored == NONE),
        versions_of_keys.addresses[rebuilt.removed],
        np.empty(0, np.int64),
        np.empty(0, np.uint64),
        0,
    )


class BatchOfEvents:
    """Merges events that are in the memory of one process; see `attempts.Strategy`.

    Args:
        store: The table's store.
        batch: The events.
        rules: The user's rules for them, including those of a history.
        workers: Read the table's data files.
        environment: The clock, for shadowed events.
    """

    def __init__(
        self,
        store: Store,
        batch: pa.RecordBatch,
        rules: UpsertRules,
        workers: Workers,
        environment: Environment,
    ) -> None:
        self.rules = rules
        self._store = store
        self._batch = batch
        self._workers = workers
        self._environment = environment
        self._matcher = KeyMatcher(workers)
        self._parts: list[UpsertPart] = []

    def write(self, table: TableVersion, phases: Phases) -> Work:
        """Look up the histories of the keys, rebuild them, and write the differences."""
        self.discard()
        with phases("write"):
            events = prepare_events(self._batch, table.arrow_schema, self.rules)
            remembered = open_shadowed_events(table, self.rules, events.stored, self._environment)
            self._parts = [merge_history(table, events, remembered, self._matcher, self._workers)]
        return Work(self._parts, table.arrow_schema.names, remembered)

    def discard(self) -> None:
        """Delete the files of the last attempt."""
        discard_parts(self._store, self._parts)
        self._parts = []
