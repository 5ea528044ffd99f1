"""Prepares a batch for an upsert: one row per key, in the table's types.

    batch     id=1 op=u seq=1    id=2 op=d seq=5    id=1 op=u seq=4
    keys      0                  1                  0
    winner    (late)             delete             upsert

The newest row of a key wins (`sequence_by`). Without an order, a key may occur only once. Rows that
delete need only the key. Rows of a change feed have their own order and their own change types
(`change_feeds`). Columns that the batch lacks keep their values in existing rows and are null in
new rows; the same is true of struct fields that the batch lacks (`partial_structs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arguments import repeated_names
from lance_stream.arrays import Positions
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import (
    Expression,
    evaluate_predicate,
    parse_predicate,
)
from lance_stream.keys.batch_keys import (
    NO_MATCH,
    KeyLookup,
    check_key_type,
    check_no_null_keys,
)
from lance_stream.keys.value_comparison import check_can_order
from lance_stream.row_updates.partial_structs import arriving_parts, partial_columns
from lance_stream.schema.column_paths import duplicate_name_problem
from lance_stream.schema.computed_columns import check_not_computed
from lance_stream.upsert.change_feeds import last_changes
from lance_stream.upsert.rules import (
    END_AT,
    IGNORE,
    INSERT,
    SEQUENCE,
    SOURCE,
    START_AT,
    TARGET,
    UPDATE,
    UpsertRules,
    check_can_remember,
)
from lance_stream.upsert.winners import newest_rows, only_rows
from lance_stream.write.casting import cast_batch, check_columns


@dataclass(frozen=True)
class IncomingRows:
    """The incoming rows to apply, one per key.

    Attributes:
        rules: The user's rules for them.
        lookup: Their keys.
        keys: (num_keys,) values of each key column, in the table's types.
        rows: (num_upserts,) the rows to store, in the table's types and column order; they have
            only the table's columns that the batch has.
        row_of_key: (num_keys,) i64, the row of each key in `rows`; -1 if the key is deleted.
        sequence: (num_keys,) the sequence of each key's row, in the stored column's type; None
            if the rows have no sequence, or it is not stored.
        order: (num_keys,) the sequence in its original type, stored or not; None if the rows have
            no sequence.
        num_rows: The number of incoming rows.
        num_late: The number of rows superseded by a newer row of the same batch; 0 for a change
            feed, whose earlier changes are not late.
        table: The table's columns that the rows were prepared for.
        partial: The columns of `rows` whose structs arrived incomplete, with their incoming types;
            the missing fields are null in `rows`.
        source: (num_upserts,) the incoming columns that the conditions reference, stored or not;
            stored columns have the table's types.
        matched_condition: The condition of `when_matched`, over `source` and `target`; None if
            `when_matched` is not a condition.
        not_matched_condition: The condition of `when_not_matched`, over `source`; None if
            `when_not_matched` is not a condition.
    """

    rules: UpsertRules
    lookup: KeyLookup
    keys: tuple[pa.Array, ...]
    rows: pa.RecordBatch
    row_of_key: Positions
    sequence: pa.Array | None
    order: pa.Array | None
    num_rows: int
    num_late: int
    table: pa.Schema
    partial: Mapping[str, pa.DataType]
    source: pa.RecordBatch
    matched_condition: Expression | None
    not_matched_condition: Expression | None

    @property
    def on(self) -> tuple[str, ...]:
        """The key columns."""
        return self.rules.on

    @property
    def compared_sequence(self) -> pa.Array | None:
        """The sequence to compare with remembered deletes: `sequence`, or `order` without one."""
        return self.order if self.sequence is None else self.sequence

    @property
    def scanned_columns(self) -> tuple[str, ...]:
        """The table's key columns, and its sequence column if there is one."""
        names = self.rules.on
        if self.sequence is None or self.rules.sequence_by in names:
            return names
        return (*names, str(self.rules.sequence_by))


def prepare(batch: pa.RecordBatch, table: pa.Schema, rules: UpsertRules) -> IncomingRows:
    """Return the rows of a batch to apply, one per key.

    Args:
        batch: The incoming rows.
        table: The table's columns.
        rules: The user's rules for them.

    Raises:
        InvalidInputError: A named column does not exist or cannot be a key; a key is null
            or occurs twice without an order; a value does not fit the table.
    """
    batch_keys = key_rows(batch, table, rules)
    matched, not_matched = _conditions(batch.schema, table, rules)
    stored_names = [name for name in batch.schema.names if name not in rules.except_columns]
    check_columns(stored_names, table.names)
    stored = pa.schema([field for field in table if field.name in stored_names])
    partial = partial_columns(batch.schema, stored)
    batch = _with_stored_order(batch, stored, rules.sequence_by, partial)
    lookup = KeyLookup(batch_keys.columns)
    by = rules.sequence_by
    if rules.applies_changes:
        winners, deletes = last_changes(batch, rules.on, lookup)
    elif by is None:
        winners = only_rows(rules.on, batch_keys.columns, lookup)
        deletes = which_delete(batch, rules)[winners]
    else:
        all_deletes = which_delete(batch, rules)
        winners = newest_rows(
            batch,
            rules.on,
            lookup,
            by,
            all_deletes,
            deletes_win=rules.deletes_win,
            except_columns=rules.except_columns,
        )
        deletes = all_deletes[winners]
    upserts = winners[~deletes]
    row_of_key = np.full(lookup.num_keys, NO_MATCH, np.int64)
    row_of_key[~deletes] = np.arange(len(upserts))
    rows = cast_batch(_chosen(batch.drop_columns(list(rules.except_columns)), upserts), stored)
    return IncomingRows(
        rules=rules,
        lookup=lookup,
        keys=tuple(_chosen(batch_keys, winners).columns),
        rows=rows,
        row_of_key=row_of_key,
        sequence=_stored_sequence(batch, table, rules, winners),
        order=None if by is None else _chosen(batch.select([by]), winners).column(0),
        num_rows=batch.num_rows,
        num_late=0 if rules.applies_changes else batch.num_rows - lookup.num_keys,
        table=table,
        partial=partial,
        source=_named_by_conditions(batch, rows, upserts, rules, (matched, not_matched)),
        matched_condition=matched,
        not_matched_condition=not_matched,
    )


def _with_stored_order(
    batch: pa.RecordBatch,
    stored: pa.Schema,
    sequence_by: str | None,
    partial: Mapping[str, pa.DataType],
) -> pa.RecordBatch:
    """Return a batch whose nested sequence has its fields in the stored order.

    Structs are compared field by field, and the batch may have them in another order.

    Raises:
        InvalidInputError: A field is missing, or a value does not fit.
    """
    if sequence_by is None or sequence_by not in stored.names:
        return batch
    target = stored.field(sequence_by)
    if not pa.types.is_nested(target.type):
        return batch
    if sequence_by in partial:
        raise InvalidInputError(
            f"the column of sequence_by, {sequence_by!r}, is {partial[sequence_by]}, but "
            f"{target.type} in the table: rows cannot be ordered without all fields of the struct. "
            "Supply the missing fields"
        )
    schema = pa.schema([pa.field(sequence_by, target.type)])
    values = cast_batch(batch.select([sequence_by]), schema).column(0)
    return batch.set_column(batch.schema.get_field_index(sequence_by), sequence_by, values)


def key_rows(batch: pa.RecordBatch, table: pa.Schema, rules: UpsertRules) -> pa.RecordBatch:
    """Return the key columns of incoming rows, in the table's types.

    All code that needs the key of a row calls this function: keys are equal if these values are.

    Args:
        batch: (n,) rows.
        table: The table's columns.
        rules: The user's rules for them.

    Raises:
        InvalidInputError: A named column does not exist or cannot be a key; a key is null, or
            does not fit the table.
    """
    check_names(batch.schema, table, rules)
    check_no_null_keys(rules.on, [batch.column(name) for name in rules.on])
    key_schema = pa.schema([table.field(name) for name in rules.on])
    return cast_batch(batch.select(list(rules.on)), key_schema)


def check_names(batch: pa.Schema, table: pa.Schema, rules: UpsertRules) -> None:
    """Raise unless the columns that the rules name exist and fit their roles.

    Raises:
        InvalidInputError: A column is missing or unsuitable.
    """
    if not rules.on:
        raise InvalidInputError("an upsert needs at least one key column: name it in `on`")
    repeated = repeated_names(batch.names)
    if repeated:
        raise InvalidInputError(f"the column {repeated[0]!r} occurs more than once")
    check_not_computed(sorted(set(batch.names) - set(rules.except_columns)), table)
    _check_there("the key column", rules.on, table, "the table")
    _check_there("the key column", rules.on, batch, "the data")
    twice = repeated_names(table.names)
    if twice:
        raise InvalidInputError(duplicate_name_problem(twice[0]))
    for name in rules.on:
        check_key_type(name, table.field(name).type)
    if rules.sequence_by is not None:
        name = rules.sequence_by
        _check_there("the column of sequence_by", [name], batch, "the data")
        check_can_order(name, batch.field(name).type)
    if SEQUENCE in table.names and rules.sequence_by not in (None, SEQUENCE):
        raise InvalidInputError(
            f"the rows of the table are ordered by its column {SEQUENCE} (scd1), which an upsert "
            f"ordered by {rules.sequence_by!r} does not set: an older change could later replace "
            "these rows. Use apply_scd1, or auto_cdc_sink, with the sequence_by and "
            "except_column_list that the table was written with; or upsert without sequence_by, to "
            "correct rows until their next change"
        )
    if (
        rules.history is None
        and START_AT not in batch.names
        and {START_AT, END_AT} <= {*table.names}
    ):
        raise InvalidInputError(
            f"the table is a history (scd2), with {START_AT} and {END_AT}: an upsert of rows "
            "without these columns would change all rows of a key, including past ones. Use "
            f"apply_scd2, or auto_cdc_sink; to change past rows, supply {START_AT} and name it in "
            "`on`, or use update or delete with a condition"
        )
    if rules.history is None:
        check_can_remember(rules.tombstones, rules.sequence_by, rules.delete_when)
    _check_there("the column of except_columns", rules.except_columns, batch, "the data")
    hidden = sorted(set(rules.on) & set(rules.except_columns))
    if hidden:
        raise InvalidInputError(f"the key column {hidden[0]!r} cannot be left out of the table")


def _conditions(
    batch: pa.Schema, table: pa.Schema, rules: UpsertRules
) -> tuple[Expression | None, Expression | None]:
    """Return the conditions of `when_matched` and `when_not_matched`.

    Raises:
        InvalidInputError: A condition is invalid.
        NotFoundError: A condition names a column that does not exist.
    """
    source = pa.field(SOURCE, pa.struct([_as_stored(field, table, rules) for field in batch]))
    target = pa.field(TARGET, pa.struct(list(table)))
    conditions: list[Expression | None] = []
    for argument, default, schema in (
        ("when_matched", UPDATE, pa.schema([source, target])),
        ("when_not_matched", INSERT, pa.schema([source])),
    ):
        value = getattr(rules, argument)
        if value in (default, IGNORE):
            conditions.append(None)
            continue
        example = " > ".join(f"{field.name}.{rules.on[0]}" for field in schema)
        try:
            condition = parse_predicate(value, schema)
            if any(len(path) < 2 for path in condition.paths):
                raise InvalidInputError(
                    f"{value!r} compares whole rows, but only columns can be compared"
                )
            conditions.append(condition)
        except (InvalidInputError, NotFoundError) as error:
            error.add_note(
                f"{argument} is {default!r}, {IGNORE!r} or a condition that names columns of "
                f"{' and '.join(schema.names)}, such as {example!r}"
            )
            raise
    return conditions[0], conditions[1]


def _as_stored(field: pa.Field, table: pa.Schema, rules: UpsertRules) -> pa.Field:
    """Return a column of the batch as conditions see it: stored columns have the table's type."""
    is_stored = field.name in table.names and field.name not in rules.except_columns
    return arriving_parts(table.field(field.name), field.type) if is_stored else field


def _named_by_conditions(
    batch: pa.RecordBatch,
    rows: pa.RecordBatch,
    upserts: Positions,
    rules: UpsertRules,
    conditions: Sequence[Expression | None],
) -> pa.RecordBatch:
    """Return the incoming columns that conditions reference, for the rows that do not delete."""
    paths = [path for condition in conditions if condition is not None for path in condition.paths]
    names = list(dict.fromkeys(path[1] for path in paths if path[0] == SOURCE))
    unstored = _chosen(
        batch.select([name for name in names if name in rules.except_columns]), upserts
    )
    columns = [(unstored if name in rules.except_columns else rows).column(name) for name in names]
    return pa.RecordBatch.from_arrays(columns, names)


def _check_there(what: str, names: Sequence[str], schema: pa.Schema, where: str) -> None:
    for name in names:
        if name not in schema.names:
            raise InvalidInputError(
                f"{what}, {name!r}, is not in {where}, which has: {', '.join(schema.names)}"
            )


def which_delete(batch: pa.RecordBatch, rules: UpsertRules) -> npt.NDArray[np.bool_]:
    """Return (n,) whether each incoming row deletes its key, as `delete_when` states."""
    if rules.delete_when is None:
        return np.zeros(batch.num_rows, np.bool_)
    condition = parse_predicate(rules.delete_when, batch.schema)
    chosen = evaluate_predicate(condition, batch).fill_null(False)
    deletes: npt.NDArray[np.bool_] = chosen.to_numpy(zero_copy_only=False)
    return deletes


def _stored_sequence(
    batch: pa.RecordBatch, table: pa.Schema, rules: UpsertRules, rows: Positions
) -> pa.Array | None:
    name = rules.sequence_by
    if name is None or name in rules.except_columns:
        return None
    chosen = _chosen(batch.select([name]), rows)
    return cast_batch(chosen, pa.schema([table.field(name)])).column(0)


def _chosen(batch: pa.RecordBatch, rows: Positions) -> pa.RecordBatch:
    if len(rows) == batch.num_rows and bool((rows == np.arange(len(rows))).all()):
        return batch
    return batch.take(pa.array(rows))
