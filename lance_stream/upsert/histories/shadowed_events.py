"""Shadowed events: events of a history that are not visible in any of its rows.

They are stored like remembered deletes (`tombstones`), in files of the same kind, and become
visible with the commit that lists them. Events are never removed: an event that becomes visible
again, because a later event splits its row, may stay here. If the same event is remembered twice,
the last one is used.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.environment import Environment
from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.snapshot.store_clock import with_store_clock
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.rules import END_AT, FOR_GOOD, START_AT, UpsertRules
from lance_stream.upsert.tombstone_files import VALUE_PREFIX, Deletes, plain_values
from lance_stream.upsert.tombstones import RememberedDeletes, open_remembered


def check_has_history(table: pa.Schema) -> None:
    """Raise unless a table has the columns of a history.

    Raises:
        InvalidInputError: It does not.
    """
    missing = [name for name in (START_AT, END_AT) if name not in table.names]
    if missing:
        raise InvalidInputError(
            f"a history (scd2) has the columns {START_AT} and {END_AT}, in the type of the "
            f"sequence, but the table has no {' and no '.join(missing)}; it has: "
            f"{', '.join(table.names)}. Let the sink create the table, or create it with these "
            f"columns: lance_stream.history_schema(schema, pa.int64()). To turn a table of current "
            "rows (scd1) into a history, read it and apply its rows to a new table"
        )
    start, end = table.field(START_AT), table.field(END_AT)
    if start.type != end.type or not end.nullable:
        raise InvalidInputError(
            f"{START_AT} and {END_AT} of a history must have the same type, and {END_AT} must be "
            f"nullable, but {START_AT} is {start.type} and {END_AT} is {end.type}"
            f"{'' if end.nullable else ' and not nullable'}. Create the table with both columns in "
            "the type of the sequence"
        )


def check_history_names(stored: Iterable[str]) -> None:
    """Raise if a stored column has a name that histories reserve.

    Raises:
        InvalidInputError: One does.
    """
    for name in stored:
        if name in (START_AT, END_AT):
            raise InvalidInputError(
                f"the data has a column {name!r}, a name reserved for histories (scd2): rename "
                "it, or leave it out (except_column_list)"
            )


def data_columns(table: pa.Schema) -> list[str]:
    """Return the columns of a history without its start and end."""
    return [name for name in table.names if name not in (START_AT, END_AT)]


def tracked_columns(table: pa.Schema, stored: Sequence[str], rules: UpsertRules) -> list[str]:
    """Return the columns whose changes start a new row, in the table's order.

    Args:
        table: The table's columns.
        stored: The columns of the incoming events that are stored.
        rules: The user's rules, including those of a history.

    Raises:
        InvalidInputError: A column that the rules name is not stored.
    """
    history = rules.history
    assert history is not None
    for name in (*(history.tracked or ()), *history.untracked):
        if name not in stored:
            raise InvalidInputError(
                f"the history of {name!r} cannot be tracked or excluded, because the column is not "
                f"stored; stored columns: {', '.join(stored)}"
            )
    names = stored if history.tracked is None else history.tracked
    excluded = {*rules.on, *history.untracked}
    return [name for name in table.names if name in names and name not in excluded]


def lacking_columns(table: pa.Schema, stored: Sequence[str], rules: UpsertRules) -> list[str]:
    """Return the columns that incoming events lack and that may separate rows of the table.

    Batches that have these columns track them, unless the user names the tracked columns.

    Args:
        table: The table's columns.
        stored: The columns of the incoming events that are stored.
        rules: The user's rules, including those of a history.
    """
    assert rules.history is not None
    if rules.history.tracked is not None:
        return []
    return [name for name in data_columns(table) if name not in stored]


def column_cache(table: pa.Schema, stored: Sequence[str], rules: UpsertRules) -> list[str]:
    """Return the stored columns whose values are remembered with shadowed events."""
    tracked = tracked_columns(table, stored, rules)
    return [
        data_column
        for data_column in data_columns(table)
        if data_column in stored and data_column not in tracked and data_column not in rules.on
    ]


def open_shadowed_events(
    table: TableVersion,
    rules: UpsertRules,
    stored: Sequence[str],
    environment: Environment,
) -> RememberedDeletes:
    """Return the shadowed events that a version remembers; reads no file.

    Args:
        table: The version.
        rules: The user's rules for incoming events.
        stored: Their columns that are stored.
        environment: The clock.

    Raises:
        InvalidInputError: The table is not a history, or remembers events by other columns.
        UnsupportedFeatureError: The table has blobs.
        CorruptDataError: The config's entry is damaged.
    """
    schema = table.arrow_schema
    check_has_history(schema)
    blobs = [field.name for field in table.schema.fields if field.is_blob]
    if blobs:
        raise UnsupportedFeatureError(
            f"the column {blobs[0]!r} holds blobs, which a history (scd2) cannot compare. Store "
            "the blobs in a separate table, and their keys in the history"
        )
    values = column_cache(schema, stored, rules)
    age = FOR_GOOD if rules.tombstones is None else rules.tombstones
    if age != FOR_GOOD:
        environment = with_store_clock(table.store, environment)
    return open_remembered(
        table,
        rules.on,
        START_AT,
        schema.field(START_AT).type,
        age=age,
        now_ms=environment.now_nanos() // 1_000_000,
        values=values,
    )


def new_shadowed_events(
    remembered: RememberedDeletes,
    keys: Sequence[pa.Array],
    sequence: pa.Array,
    stores: npt.NDArray[np.bool_],
    values: pa.RecordBatch,
) -> Deletes:
    """Return shadowed events at the current time.

    Args:
        remembered: What the version remembers.
        keys: (n,) values of each key column.
        sequence: (n,) their sequences.
        stores: (n,) whether each event stored a row.
        values: (n,) the rows that they stored; values of deletes are not remembered.
    """
    mask = pa.array(stores)
    columns = [*remembered.new_columns(keys, sequence), mask]
    for name in remembered.values or ():
        data_type = remembered.schema.field(VALUE_PREFIX + name).type
        column = plain_values(values.column(name))
        positions = pa.array(np.arange(len(stores)), mask=~stores)
        columns.append(column.take(positions).cast(data_type))
    return Deletes(pa.RecordBatch.from_arrays(columns, schema=remembered.schema))
