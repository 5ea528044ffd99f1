"""Upserts that the driver cannot hold: rows and keys are brought together by a shuffle.

    the batch's rows                         key columns, with nulls for the address    ┐ one frame,
    the keys of the table's rows             key columns, address, sequence             ┘ by key
                                                    │
                                     repartitioned by the key columns
                                                    │
    a task      has all rows of its keys, of the batch and of the table: it decides what becomes
                of them, writes changed and new rows, and sends back what it did
    the driver  makes one operation of it: deletion files, row ids, one commit

A task does with its keys what the driver does with those of a small batch, by the same functions.
No process holds the keys of the whole table, or all rows of the batch.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import BinaryType, StructField, StructType

from lance_stream.dataset.append import write_target
from lance_stream.dataset.casting import cast_batch
from lance_stream.dataset.commit_verb import planning_again
from lance_stream.dataset.micro_batches import MicroBatch, find_taken_in
from lance_stream.dataset.opening import checkout
from lance_stream.dataset.phases import Phases
from lance_stream.dataset.read_fragment import read_unit
from lance_stream.dataset.scan import count_rows
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.unit_sizes import size_of
from lance_stream.dataset.upserts.incoming import Incoming, UpsertRules, prepare
from lance_stream.dataset.upserts.keys import NOWHERE
from lance_stream.dataset.upserts.matching import Matches, join_matches
from lance_stream.dataset.upserts.tombstones import RememberedDeletes, remembered_by
from lance_stream.dataset.upserts.upsert import (
    Upserted,
    Written,
    decide_changes,
    one_batch,
    plan_update,
    write_rows,
)
from lance_stream.dataset.write_fragments import delete_files
from lance_stream.errors import LanceStreamError
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.spark.arrow_jobs import ArrowFunction, map_in_arrow
from lance_stream.spark.spark_types import (
    carrier_schema,
    spark_schema,
    stored_schema,
    to_spark,
)
from lance_stream.spark.work_units import number_of_tasks, pack
from lance_stream.table.fragments import Fragment

ROWS_PER_TASK: Final = 1 << 20
"""About how many rows, of the batch and of the table together, a task holds at once."""

_ADDRESS: Final = "_lance_stream_address"
_SEQUENCE: Final = "_lance_stream_sequence"
_OUTCOME: Final = StructType(
    [StructField("part", BinaryType()), StructField("error", BinaryType())]
)
_OUTCOME_SCHEMA: Final = pa.schema([("part", pa.binary()), ("error", pa.binary())])


@dataclass(frozen=True)
class _Part:
    """What one task did."""

    written: Written
    num_rows: int
    num_late: int


def upsert_by_tasks(
    df: DataFrame,
    table: TableVersion,
    rules: UpsertRules,
    micro_batch: MicroBatch | None,
    phases: Phases,
) -> Upserted:
    """Do in Spark's tasks what `dataset.upsert.upsert` does in one process.

    Args:
        df: The rows; computed once for each time that the upsert is planned.
        table: Any version; the newest one is changed.
        rules: What the user says of them.
        micro_batch: Which micro-batch they are. If the table has it already, nothing is done.
        phases: Told how long it takes to "write", which is all that tasks do, and to "commit".

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: It did not become a version, or it is not known whether it did.
    """
    attempts = 0

    def attempt() -> Upserted:
        nonlocal attempts
        newest = checkout(table, None)
        attempts += 1
        if micro_batch is not None and (entry := find_taken_in(newest, micro_batch)) is not None:
            return Upserted(newest, taken_in_before=entry.version, was_known=True)
        with phases("write"):
            remembered = _remembered(df, newest, rules)
            parts = _write_parts(df, newest, rules, remembered)
            fragments = tuple(each for part in parts for each in part.written.fragments)
            try:
                stored = [name for name in df.columns if name not in rules.except_columns]
                written = [each.written for each in parts]
                plan = plan_update(newest, written, rules, stored, remembered)
            except LanceStreamError:
                delete_files(newest.store, fragments)
                raise
        result = _summed(newest, parts, fragments)
        if not plan.changes_anything:
            return replace(result, attempts=attempts)
        with phases("commit"):
            done = plan.commit(newest, micro_batch, fragments)
        attempts += done.attempts - 1
        if not done.is_new:
            return Upserted(done.table, taken_in_before=done.taken_in_before, was_known=True)
        return replace(result, table=done.table, is_new=True, attempts=attempts)

    return planning_again(attempt, micro_batch)


def _summed(
    table: TableVersion, parts: Iterable[_Part], fragments: tuple[Fragment, ...]
) -> Upserted:
    known = list(parts)
    decisions = [each.written.decision for each in known]
    return Upserted(
        table,
        num_rows=sum(each.num_rows for each in known),
        num_inserted=sum(len(each.inserted_rows) for each in decisions),
        num_updated=sum(len(each.changed) for each in decisions),
        num_deleted=sum(len(each.deleted) for each in decisions),
        num_unchanged=sum(each.written.num_unchanged for each in known),
        num_late=sum(each.num_late for each in known),
        num_remembered=sum(
            each.written.deletes.rows.num_rows for each in known if each.written.deletes is not None
        ),
        fragments=fragments,
    )


def _remembered(df: DataFrame, table: TableVersion, rules: UpsertRules) -> RememberedDeletes | None:
    """Return the deletes that the table remembers and that count for the rows; reads no file."""
    name = rules.sequence_by
    if name is None:
        return None
    is_stored = name not in rules.except_columns and name in table.arrow_schema.names
    schema = table.arrow_schema if is_stored else stored_schema(df.select(_column(name)).schema)
    return remembered_by(table, rules, schema.field(name).type)


def _write_parts(
    df: DataFrame, table: TableVersion, rules: UpsertRules, remembered: RememberedDeletes | None
) -> list[_Part]:
    keys = _keys_of_table(df.sparkSession, table, rules)
    types = {each.name: each.dataType for each in keys.schema.fields}
    rows = df
    for name in rules.on:  # the same values have the same type on both sides, and meet in one task
        rows = rows.withColumn(name, _column(name).cast(types[name]))
    together = rows.unionByName(keys, allowMissingColumns=True)
    num_tasks = -(-(df.count() + count_rows(table)) // ROWS_PER_TASK)
    together = together.repartition(max(num_tasks, 1), *[_column(name) for name in rules.on])
    outcomes = map_in_arrow(
        together, _deciding(table, rules, df.columns, remembered), _OUTCOME
    ).collect()
    parts = [pickle.loads(row.part) for row in outcomes if row.part is not None]
    for row in outcomes:
        if row.error is not None:
            for part in parts:
                delete_files(table.store, part.written.fragments)
            raise pickle.loads(row.error)
    return parts


def _column(name: str) -> Column:
    return functions.col("`" + name.replace("`", "``") + "`")


def _stored_sequence(table: TableVersion, rules: UpsertRules) -> str | None:
    """Return the column of the table that says how new a row is; None if there is none."""
    name = rules.sequence_by
    if name is None or name in rules.except_columns or name in rules.on:
        return None
    return name if name in table.arrow_schema.names else None


def _keys_of_table(spark: SparkSession, table: TableVersion, rules: UpsertRules) -> DataFrame:
    """Return the keys, the address and the sequence of each row of the table."""
    sequence = _stored_sequence(table, rules)
    fields = [table.arrow_schema.field(name) for name in rules.on]
    fields.append(pa.field(_ADDRESS, pa.int64()))
    if sequence is not None:
        fields.append(table.arrow_schema.field(sequence).with_name(_SEQUENCE))
    carried = carrier_schema(pa.schema(fields))
    columns = (*rules.on, *([] if sequence is None else [sequence]))
    units = [
        table.unit(place, columns=columns, system_columns=(ROW_ADDRESS,))
        for place in range(len(table.manifest.fragments))
    ]
    sized = [(unit, size_of(unit)[1]) for unit in units]
    portions = [
        pickle.dumps(each.units)
        for each in pack(sized, number_of_tasks(sum(size for _, size in sized)))
    ]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                for unit in pickle.loads(portions[place]):
                    for rows in read_unit(unit):
                        yield to_spark(_as_keys(rows, sequence), carried)

    frame = spark.range(0, len(portions), 1, max(len(portions), 1))
    return map_in_arrow(frame, read, spark_schema(carried))


def _as_keys(rows: pa.RecordBatch, sequence: str | None) -> pa.RecordBatch:
    names = {ROW_ADDRESS: _ADDRESS, sequence: _SEQUENCE}
    columns = [
        each.cast(pa.int64()) if name == ROW_ADDRESS else each
        for name, each in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        columns, [names.get(name, name) for name in rows.schema.names]
    )


def _deciding(
    table: TableVersion,
    rules: UpsertRules,
    columns: Sequence[str],
    remembered: RememberedDeletes | None,
) -> ArrowFunction:
    """Return what a task does with all rows, of the batch and of the table, of its keys."""

    def decide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches) if (batches := list(batches)) else None
        if rows is None:
            return
        try:
            is_new = pc.is_null(rows.column(_ADDRESS))
            part = _write_part(
                table,
                rules,
                rows.filter(is_new).select(columns),
                rows.filter(pc.invert(is_new)),
                remembered,
            )
            outcome = {"part": pickle.dumps(part)}
        except LanceStreamError as error:
            error.add_note("while a Spark task did its part of an upsert; nothing was committed")
            outcome = {"error": pickle.dumps(error)}
        yield pa.RecordBatch.from_pylist([outcome], schema=_OUTCOME_SCHEMA)

    return decide


def _write_part(
    table: TableVersion,
    rules: UpsertRules,
    incoming_rows: pa.Table,
    stored_rows: pa.Table,
    remembered: RememberedDeletes | None,
) -> _Part:
    incoming = prepare(one_batch(incoming_rows), table.arrow_schema, rules)
    matches = _matches(table, rules, incoming, one_batch(stored_rows))
    decision, num_unchanged = decide_changes(table, incoming, matches, remembered)
    written = write_rows(table, incoming, decision, write_target(table), num_unchanged, remembered)
    return _Part(written, incoming.num_rows, incoming.num_late + decision.num_late)


def _matches(
    table: TableVersion, rules: UpsertRules, incoming: Incoming, stored: pa.RecordBatch
) -> Matches:
    schema = pa.schema([table.arrow_schema.field(name) for name in rules.on])
    keys = cast_batch(stored.select(list(rules.on)), schema)
    numbers = incoming.lookup.find(keys.columns)
    hit = np.flatnonzero(numbers != NOWHERE)
    addresses = stored.column(_ADDRESS).to_numpy().view(np.uint64)[hit]
    sequence = None
    name = _stored_sequence(table, rules)
    if name is not None and incoming.sequence is not None:
        wanted = pa.schema([table.arrow_schema.field(name).with_name(_SEQUENCE)])
        values = cast_batch(stored.select([_SEQUENCE]), wanted).column(0)
        sequence = values.take(pa.array(hit))
    return join_matches([Matches(addresses, numbers[hit], sequence)])
