"""Upserts in parts, without Spark: a dictionary takes the place of the shuffle."""

import pickle
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import LanceStreamError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.attempts import Upserted
from lance_stream.upsert.in_parts import Bundle, Part, PartedUpsert, upsert_in_parts
from lance_stream.upsert.incoming import UpsertRules


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


def _done(
    parted: PartedUpsert, bundles: Iterable[Bundle], number: int
) -> Part | LanceStreamError | None:
    try:
        part = parted.do_part([each for each in bundles if each.part == number])
    except LanceStreamError as error:
        return error
    return None if part is None else pickle.loads(pickle.dumps(part))
