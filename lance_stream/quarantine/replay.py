"""Writes quarantined rows to the table once they fit, each exactly once.

A replay moves rows by `claims`: it claims them, commits them to the table, and deletes them from
the quarantine. Rows are grouped by the rules that their sink recorded (`recorded_rules`), corrected
by the user (`corrections`), and checked like the rows of a batch.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from lance_stream.arguments import as_flag
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import CommitConflictError, InvalidInputError, OtherBatchError
from lance_stream.expressions.predicates import parse_predicate
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.value_comparison import dense_ranks
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of, row_hashes
from lance_stream.quarantine.claims import (
    APP_ID,
    UNCLAIMED,
    claim,
    delete_claimed,
    next_number,
    resolve_claims,
)
from lance_stream.quarantine.corrections import Fix, corrected
from lance_stream.quarantine.quarantine_writer import publish, unpublished_files
from lance_stream.quarantine.recorded_rules import RecordedRules, parse_rules
from lance_stream.quarantine.table import open_both
from lance_stream.read.scan import scan
from lance_stream.read.take import take
from lance_stream.schema.system_columns import DELETES, ROW_ID
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from lance_stream.write.arrow_input import one_batch
from lance_stream.write.casting import check_castable
from lance_stream.write.row_checks import Check, RowRules, as_checks
from lance_stream.write.rows_as_json import rows_from_json

ROWS_PER_COMMIT: Final = 10_000
"""The number of rows per commit of a replay."""


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a replay.

    Attributes:
        rows_replayed: The number of rows that left the quarantine: the table has them, or a newer
            row of their key (`sequence_by`).
        rows_remaining: The number of rows that stay in the quarantine, by reason.
    """

    rows_replayed: int = 0
    rows_remaining: Mapping[str, int] = field(default_factory=dict)


def replay_quarantine(
    uri: str | os.PathLike[str],
    *,
    branch: str | None = None,
    quarantine: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    where: str | None = None,
    fix: Fix | None = None,
    expect: object = None,
    replace_existing: bool = False,
    environment: Environment = MACHINE,
) -> ReplayResult:
    """Write the quarantined rows that now fit the table to it, each exactly once.

    Rows are appended, or upserted by the key of the sink that quarantined them, and removed from
    the quarantine. Rows that still do not fit stay there. An interrupted replay can be repeated.

    Args:
        uri: The table's location.
        branch: The branch that the sink writes; None for the main branch.
        quarantine: The location of the quarantine; by default, next to the table. Required for a
            branch.
        storage_options: Settings of the store.
        where: A SQL condition on the quarantine's columns, such as "reason = 'price'", that selects
            the rows to replay; None for all.
        fix: Corrects rows before they are checked: a mapping from columns to SQL expressions, such
            as {"price": "-price"}, or a function that takes a `pyarrow.Table` and returns one with
            the same number of rows, in the same order.
        expect: The conditions that rows must meet, as for `lance_sink`; by default the conditions
            with which the sink quarantined them. An empty mapping means no conditions.
        replace_existing: Whether upserted rows without an order (`sequence_by`) may replace rows of
            the table, even if those are newer. By default such rows stay in the quarantine.
        environment: The clock and randomness.

    Returns:
        The numbers of replayed and remaining rows.

    Raises:
        InvalidInputError: An argument is invalid, there is another table at the quarantine's
            location, or the location of a branch's quarantine is missing.
        CommitError: The rows were not committed, or another replay is running.
    """
    as_flag("replace_existing", replace_existing)
    checks = None if expect is None else as_checks(expect)
    table, bad, location = open_both(uri, branch, quarantine, storage_options)
    unpublished = unpublished_files(table, bad)
    for app_id in unpublished:
        publish(location, storage_options or {}, table, app_id)
    if unpublished:
        table, bad, _ = open_both(uri, branch, quarantine, storage_options)
    if bad is None:
        return ReplayResult()
    if where is not None:
        where = parse_predicate(where, bad.arrow_schema).text
    bad = resolve_claims(table, bad, environment)
    replay = _Replay(table, bad, checks, fix, replace_existing, environment)
    try:
        return replay.run(where)
    except OtherBatchError as error:
        raise CommitConflictError(
            f"another replay of the quarantine of {uri} ran at the same time. Rows that were not "
            "replayed are still in the quarantine: run it again"
        ) from error


_AMBIGUOUS: Final = (
    "their batch has other rows of the same key and sequence; correct them, or delete all but one"
)

_BatchOrder: TypeAlias = tuple[int, str]
"""The batch id and the app id: the order of batches."""


@dataclass
class _Replay:
    """One replay, and its outcome so far.

    Attributes:
        table: The table.
        bad: Its quarantine, without claims of earlier replays.
        checks: The checks of all rows; None for those that were recorded with a row.
        fix: Corrects rows; None without corrections.
        replace_existing: Whether upserted rows without an order may replace rows of the table.
        environment: The clock and randomness.
    """

    table: TableVersion
    bad: TableVersion
    checks: tuple[Check, ...] | None
    fix: Fix | None
    replace_existing: bool
    environment: Environment
    _num_replayed: int = 0
    _remaining: Counter[str] = field(default_factory=Counter)

    def run(self, where: str | None) -> ReplayResult:
        """Replay the rows that a condition selects."""
        columns = ["app_id", "batch_id", "rules", "types"]
        condition = f"{UNCLAIMED} AND NOT stale"
        if where is not None:
            condition += f" AND ({where})"
        groups: dict[tuple[Any, ...], dict[int, _BatchOrder]] = {}
        for batch in scan(self.bad, columns, condition, with_row_id=True):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                app_id, batch_id, rules, types, row_id = values
                order = batch_id, app_id
                group = order if parse_rules(rules).needs_batch_order else ()
                groups.setdefault((group, rules, types), {})[row_id] = order
        for (_, rules, types), orders in sorted(groups.items(), key=lambda group: group[0][0]):
            self._move_group(orders, parse_rules(rules), types)
        return ReplayResult(self._num_replayed, dict(self._remaining.most_common()))

    def _move_group(
        self, orders: Mapping[int, "_BatchOrder"], rules: RecordedRules, types: str
    ) -> None:
        """Move those of some rows that fit to the table.

        Args:
            orders: The order of each row's batch, by row id.
            rules: The rules of their sink.
            types: Their types.
        """
        refusal = rules.refusal(replace_existing=self.replace_existing)
        if refusal is not None:
            self._remaining[refusal] += len(orders)
            return
        row_ids = sorted(orders, key=lambda row_id: orders[row_id])
        for start in range(0, len(row_ids), ROWS_PER_COMMIT):
            rows = self._fitting(row_ids[start : start + ROWS_PER_COMMIT], rules, types)
            if not rows.num_rows:
                continue
            parts = _in_batch_order(rows, orders, rules) if rules.is_upsert else [rows]
            num_ambiguous = rows.num_rows - sum(part.num_rows for part in parts)
            if num_ambiguous:
                self._remaining[_AMBIGUOUS] += num_ambiguous
            for part in parts:
                self._move(part, rules)

    def _move(self, rows: pa.Table, rules: RecordedRules) -> None:
        """Move rows that fit, with row ids, to the table."""
        number = next_number(self.table, self.environment)
        row_ids = rows[ROW_ID].to_pylist()
        bad, claimed_ids = claim(self.bad, row_ids, number, self.environment)
        is_claimed = pa.array([row_id in claimed_ids for row_id in row_ids])
        self._commit(rows.filter(is_claimed).drop_columns([ROW_ID]), rules, number)
        delete_claimed(bad, number, self.environment)
        self._num_replayed += len(claimed_ids)

    def _commit(self, rows: pa.Table, rules: RecordedRules, number: int) -> None:
        if not rows.num_rows:
            return
        hidden = [name for name in (*rules.except_columns, DELETES) if name in rows.column_names]
        batch = PendingBatch.of(APP_ID, number, digest=digest_of(rows))
        if rules.is_upsert:
            upsert(
                self.table, rows, rules.upsert_rules(hidden), batch, environment=self.environment
            )
        else:
            append(self.table, rows.drop_columns(hidden), batch, self.environment)

    def _fitting(self, row_ids: Sequence[int], rules: RecordedRules, types: str) -> pa.Table:
        """Apply the corrections to some rows, and return those that fit the table, with row ids."""
        stored = take(self.bad, row_ids=row_ids, columns=["row", "deletes"])
        rows = corrected(rows_from_json(stored["row"].to_pylist(), types), self.fix)
        needed = (*rules.on, *filter(None, [rules.sequence_by]))
        missing = [name for name in needed if name not in rows.column_names]
        if missing:
            reason = f"they have no column {missing[0]!r}, which an upsert needs"
            self._remaining[reason] += len(row_ids)
            return rows.slice(0, 0)
        self.table = newest_version_of(self.table)
        incoming = pa.schema(
            [field for field in rows.schema if field.name not in rules.except_columns]
        )
        table_columns = self.table.arrow_schema
        common = pa.schema([field for field in table_columns if field.name in incoming.names])
        try:
            check_castable(incoming, common if rules.is_upsert else table_columns)
        except InvalidInputError as error:
            self._remaining[str(error)] += rows.num_rows
            return rows.slice(0, 0)
        rows = rows.append_column(ROW_ID, pa.array(row_ids, pa.uint64()))
        rows = rows.append_column(DELETES, stored["deletes"])
        row_rules = RowRules(
            stored=common,
            checks=rules.checks() if self.checks is None else self.checks,
            keys=rules.on,
            sequence_by=rules.sequence_by,
            deletes=DELETES,
            casts=False,
            hidden=(DELETES, ROW_ID),
        )
        row_rules.check_batch(rows.schema)
        verdict = row_rules.judge(one_batch(rows))
        counts = zip(
            verdict.bad["reason"].to_pylist(), verdict.bad["rows"].to_pylist(), strict=True
        )
        for reason, num_rows in counts:
            self._remaining[reason] += num_rows
        return pa.Table.from_batches([verdict.good])


def _in_batch_order(
    rows: pa.Table, orders: Mapping[int, _BatchOrder], rules: RecordedRules
) -> list[pa.Table]:
    """Return rows of upserts in parts to be committed one after the other, without ambiguous ones.

    Different rows of a key with equal sequences are ambiguous within a batch, but of two batches
    the later one counts. So a part has rows of one batch for each key and sequence.

    Args:
        rows: The rows, with row ids; at least one.
        orders: The order of each row's batch, by row id.
        rules: The rules of their sink.
    """
    batch = one_batch(rows)
    keys = KeyLookup([batch.column(name) for name in rules.on]).key_of_row.tolist()
    values = np.arange(batch.num_rows, dtype=np.uint64)  # a key may occur once
    ranks = [0] * batch.num_rows
    if rules.sequence_by is not None:
        ranks = dense_ranks(batch.column(rules.sequence_by)).tolist()
        hidden = {*rules.except_columns, ROW_ID}
        values = row_hashes(
            batch.select([name for name in batch.schema.names if name not in hidden])
        )
        values[batch.column(DELETES).fill_null(False).to_numpy(zero_copy_only=False)] = 0
    row_orders = [orders[row_id] for row_id in batch.column(ROW_ID).to_pylist()]
    batches: dict[tuple[int, int], dict[_BatchOrder, set[int]]] = {}
    for key, rank, order, value in zip(keys, ranks, row_orders, values.tolist(), strict=True):
        batches.setdefault((key, rank), {}).setdefault(order, set()).add(value)
    parts: list[int] = []
    for key, rank, order in zip(keys, ranks, row_orders, strict=True):
        is_ambiguous = len(batches[key, rank][order]) > 1
        parts.append(-1 if is_ambiguous else sorted(batches[key, rank]).index(order))
    return [rows.filter(pa.array(np.equal(parts, part))) for part in range(max(parts) + 1)]
