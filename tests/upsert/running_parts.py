"""Upserts in parts, without Spark: a dictionary takes the place of the shuffle, or of the tasks."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import LanceStreamError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY
from lance_stream.upsert import staged_rows
from lance_stream.upsert.attempts import Upserted
from lance_stream.upsert.in_parts import Bundle, Part, PartedUpsert, upsert_in_parts
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.staged_rows import StagedRows, discard_staged, stage_rows, upsert_staged
from lance_stream.write.micro_batches import MicroBatch


def upsert_by_parts(
    table: TableVersion,
    rows: pa.Table,
    rules: UpsertRules,
    *,
    num_parts: int = 3,
    environment: Environment = MACHINE,
) -> Upserted:
    """Upsert a table of rows as Spark tasks upsert a DataFrame."""
    batches = rows.to_batches(max_chunksize=max(rows.num_rows // 2, 1))

    def run(planned: PartedUpsert) -> list[Part | LanceStreamError]:
        parted: PartedUpsert = pickle.loads(pickle.dumps(replace(planned, num_parts=num_parts)))
        try:
            bundles = [bundle for each in batches for bundle in parted.split_rows([each])]
            for unit in parted.key_units():
                bundles += parted.split_keys(unit)
        except LanceStreamError as error:
            return [error]
        done = [_done(parted, bundles, number) for number in range(num_parts)]
        return [each for each in done if each is not None]

    ordering = rows.schema.get_field_index(rules.sequence_by or "")
    sequence = None if ordering < 0 else rows.schema.field(ordering).type
    return upsert_in_parts(table, run, rules, rows.schema.names, sequence, environment=environment)


def upsert_staged_rows(
    table: TableVersion,
    rows: pa.Table,
    rules: UpsertRules,
    *,
    num_parts: int = 3,
    micro_batch: MicroBatch | None = None,
    environment: Environment = MACHINE,
) -> Upserted:
    """Upsert a table of rows as the format upserts what its tasks have staged.

    The first task keeps its rows in memory if they are few, the others do not. The commit takes all
    rows at once if there is one part, and else about so many parts.
    """
    batches = rows.to_batches(max_chunksize=max(rows.num_rows // 3, 1))
    limit = rows.num_rows + 1 if num_parts == 1 else rows.num_rows // num_parts
    tasks = enumerate([batches[:1], batches[1:2], batches[2:]])
    with (
        patch.object(staged_rows, "MAX_ROWS", limit),
        patch.object(staged_rows, "_MANY_TASKS", 1),
        patch.object(staged_rows, "_KEPT_BYTES_OF_MANY", 0),
    ):
        staged: list[StagedRows] = []
        try:
            for task, each in tasks:
                done = stage_rows(each, table.store, table.arrow_schema, rules, task=task)
                staged.append(pickle.loads(pickle.dumps(done)))
            ordering = rows.schema.get_field_index(rules.sequence_by or "")
            sequence = None if ordering < 0 else rows.schema.field(ordering).type
            names = rows.schema.names
            return upsert_staged(table, staged, rules, names, sequence, micro_batch, environment)
        finally:
            discard_staged(table.store, staged)
            assert not table.store.list(STAGED_ROWS_DIRECTORY)


def _done(
    parted: PartedUpsert, bundles: Iterable[Bundle], number: int
) -> Part | LanceStreamError | None:
    try:
        part = parted.do_part([each for each in bundles if each.part == number])
    except LanceStreamError as error:
        return error
    return None if part is None else pickle.loads(pickle.dumps(part))
