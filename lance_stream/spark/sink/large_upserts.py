"""Upserts that are too large for the driver: a shuffle brings rows and keys together.

    the batch's rows            split by their keys' parts    ┐ one frame of bundles,
    the keys of the table       the same                      ┘ by part
                                           │
                               repartitioned by the part
                                           │
    a task      gets all rows of its keys, of the batch and of the table. It determines their
                outcome, writes changed and new rows, and returns what it did
    the driver  builds one operation from the results: deletion files, row ids, one commit

Each task runs `upsert.in_parts`. For Spark a bundle is only a number and bytes, so Spark's casts,
comparisons and hashes do not affect which rows have the same key. No process holds the keys of the
whole table, or all rows of the batch.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, BooleanType, LongType, StructField, StructType

from lance_stream.errors import LanceStreamError
from lance_stream.read.scan import count_rows
from lance_stream.read.units import sizes_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arrow_jobs import (
    RECORDS_PER_BATCH,
    ArrowFunction,
    Size,
    map_in_arrow,
    measure,
    settings,
)
from lance_stream.spark.sink.bad_rows import Sorting
from lance_stream.spark.sink.replays import digest_by_tasks
from lance_stream.spark.spark_types import stored_schema
from lance_stream.spark.work_units import number_of_tasks, pack
from lance_stream.upsert.attempts import Upserted
from lance_stream.upsert.in_parts import Bundle, Part, PartedUpsert, upsert_in_parts
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.write.micro_batches import MicroBatch
from lance_stream.write.phases import Phases
from lance_stream.write.row_checks import BadRows, CheckedBatches, RowRules
from lance_stream.write.row_digests import NO_ROWS, RowsDigest, add_up

ROWS_PER_TASK: Final = 1 << 20
"""About how many rows, of the batch and the table together, a task holds at once, and ..."""

BYTES_PER_TASK: Final = 128 << 20
"""... how many bytes of the batch."""

_BUNDLES: Final = StructType(
    [
        StructField("part", LongType()),
        StructField("is_stored", BooleanType()),
        StructField("data", BinaryType()),
        StructField("bad", BinaryType()),
        StructField("error", BinaryType()),
    ]
)
_BUNDLES_SCHEMA: Final = pa.schema(
    [
        ("part", pa.int64()),
        ("is_stored", pa.bool_()),
        ("data", pa.binary()),
        ("bad", pa.binary()),
        ("error", pa.binary()),
    ]
)
_OUTCOME: Final = StructType(
    [
        StructField("part", BinaryType()),
        StructField("bad", BinaryType()),
        StructField("error", BinaryType()),
    ]
)
_OUTCOME_SCHEMA: Final = pa.schema(
    [("part", pa.binary()), ("bad", pa.binary()), ("error", pa.binary())]
)


def upsert_by_tasks(
    df: DataFrame,
    table: TableVersion,
    rules: UpsertRules,
    micro_batch: MicroBatch | None,
    phases: Phases,
    size: Size | None = None,
    helpers: Sequence[str] = (),
    sorting: Sorting | None = None,
) -> Upserted:
    """Run an upsert in Spark's tasks; `upsert.upsert.upsert` runs it in one process.

    Args:
        df: The rows; computed once each time the upsert is planned.
        table: Any version; the newest one is changed.
        rules: The user's rules for the upsert.
        micro_batch: The identity of the micro-batch. If it is already committed, nothing is done.
        phases: Records the duration of "write" (all work of the tasks) and "commit".
        size: The size of the batch; None if it has not been measured.
        helpers: Columns that are not part of the rows' digest.
        sorting: Sorts out bad rows; None if rows are not checked.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: The commit failed, or its outcome is unknown.
    """
    known = size
    left_out = NO_ROWS

    def run(parted: PartedUpsert) -> list[Part | LanceStreamError]:
        nonlocal known, left_out
        if known is None:
            known = measure(df)
        num_parts = number_of_parts(known, count_rows(parted.table))
        rules = None if sorting is None else sorting.rules(parted.table)
        outcomes = _run(df, replace(parted, num_parts=num_parts), rules)
        left_out = add_up(each.digest for each in outcomes if isinstance(each, _LeftOut))
        done = [each for each in outcomes if not isinstance(each, _LeftOut)]
        if sorting is None or any(isinstance(each, LanceStreamError) for each in done):
            return done
        num_good = sum(each.num_rows for each in done if isinstance(each, Part))
        try:
            bad = BadRows()
            for each in outcomes:
                if isinstance(each, _LeftOut):
                    bad.add_encoded(each.rows)
            sorting.settle(bad, num_good + left_out.num_rows)
        except LanceStreamError as error:
            return [*done, error]
        return done

    def identity(batch: MicroBatch) -> MicroBatch:
        if sorting is None:
            return batch
        good = NO_ROWS if batch.digest is None else batch.digest
        return sorting.identity(good + left_out)

    # Only this column: a helper column may have a type that cannot be stored.
    ordering = [each for each in df.schema.toNullable() if each.name == rules.sequence_by]
    sequence = stored_schema(StructType(ordering)).field(0).type if ordering else None
    return upsert_in_parts(
        table,
        run,
        rules,
        df.columns,
        sequence,
        micro_batch,
        phases,
        helpers=helpers,
        digest=lambda: digest_by_tasks(df.drop(*helpers)),
        identity=identity,
    )


def number_of_parts(size: Size, table_rows: int) -> int:
    """Return the number of parts of an upsert.

    Args:
        size: The size of the batch.
        table_rows: The number of rows of the table.
    """
    by_rows = -(-(size.num_rows + table_rows) // ROWS_PER_TASK)
    return max(by_rows, -(-size.num_bytes // BYTES_PER_TASK), 1)


@dataclass(frozen=True)
class _LeftOut:
    """Bad rows that a task found.

    Attributes:
        rows: The rows; see `BadRows.encode`.
        digest: The digest of the same rows, as received.
    """

    rows: bytes
    digest: RowsDigest


def _run(
    df: DataFrame, parted: PartedUpsert, rules: RowRules | None
) -> list[Part | LanceStreamError | _LeftOut]:
    splitting = _bundles_of(parted.split_rows) if rules is None else _sorted_bundles(parted, rules)
    with settings(df.sparkSession, RECORDS_PER_BATCH):
        rows = map_in_arrow(df, splitting, _BUNDLES)
        together = rows.union(_keys(df.sparkSession, parted))
        together = together.repartitionById(parted.num_parts, together["part"].cast("int"))
        outcomes = map_in_arrow(together, _deciding(parted), _OUTCOME).collect()
    return [pickle.loads(row.error or row.bad or row.part) for row in outcomes]


def _bundles_of(
    split: Callable[[Iterable[pa.RecordBatch]], Iterator[Bundle]],
) -> ArrowFunction:
    """Return the function of a task that splits rows.

    An error of lance-stream is returned as a row: a second attempt of the task would fail the same
    way, and the driver can raise the original error.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for bundle in split(batches):
                yield _row(_BUNDLES_SCHEMA, **bundle._asdict())
        except LanceStreamError as error:
            error.add_note("while a Spark task read its part of an upsert; nothing was committed")
            yield _row(_BUNDLES_SCHEMA, part=0, error=pickle.dumps(error))

    return run


def _sorted_bundles(parted: PartedUpsert, rules: RowRules) -> ArrowFunction:
    """Return the function of a task that sorts out bad rows, and splits the others."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checked = CheckedBatches(batches, rules, parted.helpers, digests_good=False)
        yield from _bundles_of(parted.split_rows)(checked)
        if checked.bad:
            left_out = _LeftOut(checked.bad.encode(), checked.digest)
            yield _row(_BUNDLES_SCHEMA, part=0, bad=pickle.dumps(left_out))

    return run


def _keys(spark: SparkSession, parted: PartedUpsert) -> DataFrame:
    """Return the keys of the table, split into parts."""
    units = parted.key_units()
    sized = [(unit, size) for unit, (_, size) in zip(units, sizes_of(units), strict=True)]
    num_tasks = number_of_tasks(sum(size for _, size in sized))
    portions = [pickle.dumps(each) for each in pack(sized, num_tasks)]

    def split(batches: Iterable[pa.RecordBatch]) -> Iterator[Bundle]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                for unit in pickle.loads(portions[place]):
                    yield from parted.split_keys(unit)

    frame = spark.range(0, len(portions), 1, max(len(portions), 1))
    return map_in_arrow(frame, _bundles_of(split), _BUNDLES)


def _deciding(parted: PartedUpsert) -> ArrowFunction:
    """Return the function of a task that decides the outcome of all bundles of its parts."""

    def decide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts: dict[int, list[Bundle]] = {}
        error: bytes | None = None
        for batch in batches:
            for number, is_stored, data, bad, failed in zip(*_values(batch), strict=True):
                error = error or failed
                if bad is not None:
                    yield _row(_OUTCOME_SCHEMA, bad=bad)
                if bad is not None or failed is not None:
                    continue
                parts.setdefault(number, []).append(Bundle(number, is_stored, data))
        if error is not None:
            yield _row(_OUTCOME_SCHEMA, error=error)
            return
        while parts:
            _, bundles = parts.popitem()
            try:
                part = parted.do_part(bundles)
                outcome = None if part is None else {"part": pickle.dumps(part)}
            except LanceStreamError as failure:
                failure.add_note(
                    "while a Spark task applied its part of an upsert; nothing was committed"
                )
                outcome = {"error": pickle.dumps(failure)}
            if outcome is not None:
                yield _row(_OUTCOME_SCHEMA, **outcome)

    return decide


def _values(batch: pa.RecordBatch) -> Sequence[Sequence[object]]:
    return [each.to_pylist() for each in batch.columns]


def _row(schema: pa.Schema, **values: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values], schema=schema)
