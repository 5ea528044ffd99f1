"""Upserts in parts, for batches too large for one process. A part has all rows of its keys.

    a part        do_rows          the same functions as an upsert in one process
                  do_changes       the changed rows of some fragments, if they may stay in place
    all parts     plan_update      one operation, one commit

Parts are ranges of keys (`staged_rows`), after the usual cast to the table's types. Equal keys
therefore share a part, whatever types they arrive in: 1.50 as decimal(10, 2) and 1.500 as
decimal(10, 3), a string with and without a dictionary, an instant in two time zones.

Several parts may change rows of one fragment. If these rows may stay in place (`in_place`), one
part cannot make that decision. The parts then stage their changed rows for a second round, whose
parts are ranges of fragments: each has all changed rows of its fragments.

`upsert_in_parts` is passed the function that runs the parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lance_stream.arrays import RowAddresses
from lance_stream.environment import Environment
from lance_stream.errors import LanceStreamError
from lance_stream.keys.key_matcher import KeyMatcher
from lance_stream.keys.key_words import without_dictionary
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.row_updates.in_place import columns_that_may_stay
from lance_stream.row_updates.staged_files import SortedRows, discard_files, write_sorted
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.upsert.attempts import UpsertResult, upsert_by
from lance_stream.upsert.decisions import Decision, decide_changes
from lance_stream.upsert.histories.merge_history import merge_history, prepare_events
from lance_stream.upsert.histories.shadowed_events import open_shadowed_events
from lance_stream.upsert.incoming import IncomingRows, prepare
from lance_stream.upsert.row_writer import (
    ChangedRows,
    UpsertPart,
    discard_parts,
    remember_keys,
    write_rows,
)
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.tombstones import RememberedDeletes, remembered_deletes
from lance_stream.upsert.update_planner import Work
from lance_stream.write.arrow_input import one_batch
from lance_stream.write.casting import cast_batch
from lance_stream.write.phases import Phases

Outcome: TypeAlias = UpsertPart | LanceStreamError
"""The outcome of a part, or the error of a part that failed; a failed part leaves no files."""


@dataclass(frozen=True)
class PartedUpsert:
    """An upsert planned on one version, to be executed in parts; picklable.

    Attributes:
        table: The version.
        rules: The user's rules for the rows.
        remembered: The remembered deletes of the version that apply.
        keeps_keys: Whether the process adds the keys of the written rows to its index.
    """

    table: TableVersion
    rules: UpsertRules
    remembered: RememberedDeletes | None
    keeps_keys: bool = True

    def do_rows(self, rows: pa.Table) -> UpsertPart:
        """Look up the keys of rows, decide, and write the rows.

        Args:
            rows: Some rows of the batch; all rows that have one of their keys are included.

        Raises:
            InvalidInputError: The rows do not fit the rules or the table; no file is left behind.
        """
        batch = one_batch(rows)
        del rows  # the caller keeps none, so that there is one copy
        matcher = KeyMatcher()
        if self.rules.history is not None:
            return self._do_events(batch, matcher)
        incoming = prepare(batch, self.table.arrow_schema, self.rules)
        matches = matcher.look_up(self.table, incoming)
        decision = decide_changes(self.table, incoming, matches, self.remembered)
        staged = SortedRows()
        if self._may_stay(incoming, decision):
            staged = _staged_changes(self.table.store, incoming, decision)
            decision = decision._replace(changed=_NO_ADDRESSES, changed_rows=_NO_ROWS)
        try:
            written = write_rows(
                self.table,
                incoming,
                decision,
                self.remembered,
                may_stay=False,  # other parts change rows of the same fragments
            )
        except BaseException:
            discard_files(self.table.store, [staged])
            raise
        if self.keeps_keys:
            remember_keys(self.table, self.rules, incoming.rows, written)
        num_late = incoming.num_late + decision.num_late
        return UpsertPart(written, incoming.num_rows, num_late, staged, incoming.partial)

    def _do_events(self, batch: pa.RecordBatch, matcher: KeyMatcher) -> UpsertPart:
        """Do the same for events of a history."""
        assert self.remembered is not None  # always set for a history
        return merge_history(
            self.table,
            prepare_events(batch, self.table.arrow_schema, self.rules),
            self.remembered,
            matcher,
            may_stay=False,  # other parts change rows of the same fragments
            keeps_keys=self.keeps_keys,
        )

    def do_changes(
        self, rows: pa.Table, addresses: RowAddresses, partial: Mapping[str, pa.DataType]
    ) -> UpsertPart:
        """Write staged changed rows, or only their new columns.

        Args:
            rows: (n,) all changed rows of some fragments.
            addresses: (n,) u64 addresses of the rows.
            partial: The columns whose structs are incomplete.

        Raises:
            BadDataError: The stored values cannot be read; no file is left behind.
        """
        order = np.argsort(addresses)
        stored = [field for field in self.table.arrow_schema if field.name in rows.schema.names]
        changed = cast_batch(one_batch(rows).take(pa.array(order)), pa.schema(stored))
        decision = Decision(
            addresses[order],
            np.arange(len(order)),
            inserted_rows=_NO_ROWS,
            deleted=_NO_ADDRESSES,
            deleted_keys=_NO_ROWS,
            untouched=_NO_ADDRESSES,
            num_late=0,
        )
        written = write_rows(self.table, ChangedRows(self.rules, changed, partial), decision)
        if self.keeps_keys:
            remember_keys(self.table, self.rules, changed, written)
        return UpsertPart(written)

    def _may_stay(self, incoming: IncomingRows, decision: Decision) -> bool:
        """Return whether changed rows may stay in place, judged only by their columns."""
        names = incoming.rows.schema.names
        changing = [name for name in names if name not in self.rules.on]
        return bool(len(decision.changed) and columns_that_may_stay(self.table, changing, names, 0))


def _staged_changes(store: Store, incoming: IncomingRows, decision: Decision) -> SortedRows:
    """Write the changed rows to a file, sorted by their addresses."""
    rows = incoming.rows.take(pa.array(decision.changed_rows))
    # Every bundle of the file would repeat the whole dictionary.
    columns = [without_dictionary(column) for column in rows.columns]
    plain = pa.RecordBatch.from_arrays(columns, rows.schema.names)
    return write_sorted([(plain, decision.changed)], store)


_NO_ADDRESSES = np.empty(0, np.uint64)
_NO_ROWS = np.empty(0, np.int64)

Run: TypeAlias = Callable[[PartedUpsert], Sequence[Outcome]]
"""Executes the parts of an upsert, and returns their outcomes."""


def upsert_in_parts(
    table: TableVersion,
    run: Run,
    rules: UpsertRules,
    columns: Sequence[str],
    sequence: pa.DataType | None,
    micro_batch: PendingBatch | None,
    phases: Phases | None,
    environment: Environment,
    *,
    is_current: bool = False,
) -> UpsertResult:
    """Execute an upsert in parts, with the same result as `upsert.upsert`.

    Args:
        table: Any version; the newest one is changed.
        run: Executes the parts; called once per attempt.
        rules: The user's rules for the rows.
        columns: The columns of the batch.
        sequence: The type of the column that orders rows; None if the rows have no order.
        micro_batch: The micro-batch of the rows. If the table already contains it, nothing is done.
        phases: Receives the durations of "write", which includes all work of the parts, and
            "commit".
        environment: Randomness for file names; the clock, for remembered deletes.
        is_current: Whether the version was opened for this upsert; see `attempts.upsert_by`.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: The commit failed, or its outcome is unknown.
    """
    strategy = _Parts(table.store, run, rules, columns, sequence, environment)
    return upsert_by(
        strategy,
        table,
        micro_batch,
        is_current=is_current,
        phases=phases,
        environment=environment,
    )


class _Parts:
    """Applies rows in parts; see `attempts.Strategy`.

    Args:
        store: The table's store.
        run: Executes the parts.
        rules: The user's rules for the rows.
        columns: The columns of the batch.
        sequence: The type of the column that orders rows; None if the rows have no order.
        environment: The clock, for remembered deletes.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        rules: UpsertRules,
        columns: Sequence[str],
        sequence: pa.DataType | None,
        environment: Environment,
    ) -> None:
        self.rules = rules
        self._store = store
        self._run = run
        self._stored = [name for name in columns if name not in rules.except_columns]
        self._sequence = sequence
        self._environment = environment
        self._parts: list[UpsertPart] = []

    def write(self, table: TableVersion, phases: Phases) -> Work:
        """Execute the parts for a version."""
        self.discard()
        with phases("write"):
            if self.rules.history is None:
                by, columns, sequence = self.rules.sequence_by, table.arrow_schema, self._sequence
                if sequence is not None and by in self._stored and by in columns.names:
                    sequence = columns.field(by).type
                remembered = remembered_deletes(table, self.rules, sequence, self._environment)
                stored = self._stored
            else:
                remembered = open_shadowed_events(
                    table, self.rules, self._stored, self._environment
                )
                stored = table.arrow_schema.names
            outcomes = self._run(PartedUpsert(table, self.rules, remembered))
        self._parts = [outcome for outcome in outcomes if isinstance(outcome, UpsertPart)]
        for outcome in outcomes:
            if not isinstance(outcome, UpsertPart):
                raise outcome
        return Work(self._parts, stored, remembered)

    def discard(self) -> None:
        """Delete the files of the last attempt."""
        discard_parts(self._store, self._parts)
        self._parts = []
