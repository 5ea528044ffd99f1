"""Upserts: existing rows are updated and keep their row ids, other rows are inserted.

    scan      find the rows that have a key of the batch    (workers)
    decide    which rows to change, to insert and to delete, and which are late
    write     the changed rows, in table order, then the new rows; or only the changed columns
    plan      deletion files for the old positions of changed and deleted rows
    commit    one Update: the changed rows keep row id and created-at version

After a conflict, the upsert is re-planned on the newest version: it searches only the fragments
added since, and reuses its data files if the decisions are the same. The transaction lists the
hashes of the inserted keys, so that two writers that insert the same new key conflict.

Source: transaction.proto; measured on the reference.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from lance_stream.commit.committer import ConfigEntries
from lance_stream.environment import MACHINE, Environment
from lance_stream.keys.key_matcher import KeyMatcher
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.attempts import Strategy, UpsertResult, upsert_by
from lance_stream.upsert.decisions import Decision, decide_changes
from lance_stream.upsert.histories.merge_history import BatchOfEvents
from lance_stream.upsert.incoming import IncomingRows, check_names, prepare, which_delete
from lance_stream.upsert.row_writer import UpsertPart, Written, remember_keys, write_rows
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.tombstones import remembered_deletes
from lance_stream.upsert.update_planner import Work
from lance_stream.write.arrow_input import ArrowInput, one_batch, read_input
from lance_stream.write.fragments import delete_files
from lance_stream.write.phases import Phases
from lance_stream.write.row_checks import REMEDY_OF_VERBS, BadRows, Check, RowRules, resolve_columns


def upsert(
    table: TableVersion,
    data: ArrowInput,
    rules: UpsertRules,
    micro_batch: PendingBatch | None = None,
    *,
    is_current: bool = False,
    workers: Workers = THREADS,
    phases: Phases | None = None,
    environment: Environment = MACHINE,
    checks: Sequence[Check] = (),
    config_entries: ConfigEntries | None = None,
    check: Callable[[Manifest], None] | None = None,
) -> UpsertResult:
    """Update the table's rows that have the keys of incoming rows, and insert the other rows.

    Args:
        table: Any version; the newest one is changed.
        data: The rows; collected in memory.
        rules: The user's rules for them.
        micro_batch: The micro-batch, if the rows come from a stream. If the table already contains
            it, nothing is done.
        is_current: Whether the version was opened for this upsert; see `attempts.upsert_by`.
        workers: Read the table's data files.
        phases: Receives the durations of "scan" (of keys), "write" and "commit".
        environment: Randomness for file names; the clock, for remembered deletes.
        checks: Conditions that every row must meet unless it deletes.
        config_entries: See `write.planning.commit_planned`.
        check: See `write.planning.commit_planned`.

    Raises:
        InvalidInputError: The rows do not fit the rules, the checks or the table, or the batch id
            belongs to another query's batch; nothing is changed.
        CommitError: The commit failed, or its outcome is unknown.
    """
    batch = one_batch(read_input(data).read_all())
    strategy: Strategy
    if rules.history is None:
        strategy = _BatchOfRows(table.store, batch, rules, workers, environment, checks)
    else:
        strategy = BatchOfEvents(table.store, batch, rules, workers, environment)
    return upsert_by(
        strategy,
        table,
        micro_batch,
        is_current=is_current,
        phases=phases,
        environment=environment,
        config_entries=config_entries,
        check=check,
    )


class _BatchOfRows:
    """Applies rows that are in the memory of one process; see `attempts.Strategy`.

    Args:
        store: The table's store.
        batch: The rows.
        rules: The user's rules for them.
        workers: Read the table's data files.
        environment: Randomness for file names; the clock, for remembered deletes.
        checks: Conditions that every row must meet unless it deletes.
    """

    def __init__(
        self,
        store: Store,
        batch: pa.RecordBatch,
        rules: UpsertRules,
        workers: Workers,
        environment: Environment,
        checks: Sequence[Check],
    ) -> None:
        self.rules = rules
        self._store = store
        self._batch = batch
        self._workers = workers
        self._environment = environment
        self._checks = checks
        self._matcher = KeyMatcher(workers)
        self._incoming: IncomingRows | None = None
        self._written: Written | None = None
        self._written_on: TableVersion | None = None

    def write(self, table: TableVersion, phases: Phases) -> Work:
        """Look up the keys, decide, and write; or reuse the files of the last attempt."""
        with phases("scan"):
            incoming = self._prepare(table)
            matches = self._matcher.look_up(table, incoming)
            sequence = incoming.compared_sequence
            remembered = remembered_deletes(
                table, self.rules, None if sequence is None else sequence.type, self._environment
            )
        with phases("write"):
            decision = decide_changes(table, incoming, matches, remembered, self._workers)
            if self._is_written(table, decision):
                assert self._written is not None
                self._written = self._written._replace(decision=decision)
            else:
                self.discard()
                self._written = write_rows(table, incoming, decision, remembered, self._workers)
                self._written_on = table
                remember_keys(table, self.rules, incoming.rows, self._written, self._workers)
        part = UpsertPart(self._written, incoming.num_rows, incoming.num_late + decision.num_late)
        return Work([part], incoming.rows.schema.names, remembered)

    def discard(self) -> None:
        """Delete the files of the last attempt."""
        if self._written is not None:
            delete_files(self._store, self._written.files)
            self._written = self._written_on = None

    def _prepare(self, table: TableVersion) -> IncomingRows:
        """Return the rows to apply, in the types of a version."""
        if self._incoming is None or self._incoming.table != table.arrow_schema:
            if self._checks:
                _refuse_bad_rows(self._batch, table, self.rules, self._checks)
            self._incoming = prepare(self._batch, table.arrow_schema, self.rules)
        return self._incoming

    def _is_written(self, table: TableVersion, decision: Decision) -> bool:
        """Return whether the files of the last attempt are valid for a newer version.

        Args:
            table: The version that this attempt plans on.
            decision: The decisions about the rows of the batch on that version.
        """
        before = self._written_on
        if self._written is None or before is None:
            return False
        if table.schema != before.schema or table.file_version != before.file_version:
            return False
        pairs = zip(self._written.decision[:5], decision[:5], strict=True)
        if not all(np.array_equal(one, other) for one, other in pairs):
            return False
        # Changed rows contain stored values, which other writers may have updated in place.
        touched = {int(fragment_id) for fragment_id in np.unique(decision.changed >> np.uint64(32))}
        return _files_of(before, touched) == _files_of(table, touched)


def _refuse_bad_rows(
    batch: pa.RecordBatch, table: TableVersion, rules: UpsertRules, checks: Sequence[Check]
) -> None:
    """Raise if rows do not fit the table or do not meet the checks."""
    columns = table.arrow_schema
    check_names(batch.schema, columns, rules)
    stored = set(batch.schema.names) - set(rules.except_columns)
    sorting = RowRules(
        pa.schema([column for column in columns if column.name in stored]),
        resolve_columns(batch.schema, checks),
        rules.on,
        rules.sequence_by,
        DELETES,
        casts=False,
        hidden=(DELETES,),
    )
    batch = batch.append_column(DELETES, pa.array(which_delete(batch, rules)))
    sorting.check_batch(batch.schema)
    bad = BadRows()
    bad.add(sorting.judge(batch).bad)
    if bad:
        raise bad.error(table.uri, batch.num_rows, REMEDY_OF_VERBS)


def _files_of(table: TableVersion, fragment_ids: set[int]) -> dict[int, object]:
    fragments = table.manifest.fragments
    positions = [
        index for index, fragment_id in enumerate(fragments.ids) if fragment_id in fragment_ids
    ]
    return {fragments.ids[index]: fragments[index].files for index in positions}
