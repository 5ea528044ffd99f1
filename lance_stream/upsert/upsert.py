"""Upserts: existing rows are updated and keep their row ids, other rows are inserted.

    scan      the key columns of each fragment: which rows have a key of the batch    (workers)
    decide    rows to change, to insert, to delete, and rows that are late
    write     the changed rows, in table order, then the new ones; or the changed columns
    plan      deletion files for the old positions of changed and deleted rows
    commit    one Update: the changed rows keep row id and created-at version

If a batch no longer fits because the table changed, it is planned again on the newest version: only
fragments added since are searched for keys, and if the decisions are the same, the data files
written before are reused. The hashes of the inserted keys in the transaction reveal two writers
that insert the same new key.

Source: facts of the format, section 4; observed in the reference.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from lance_stream.commit.committer import ConfigEntries
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import CommitAbortedError, CommitConflictError, InvalidInputError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.apply_events import upsert_events
from lance_stream.upsert.attempts import Attempts, Upserted
from lance_stream.upsert.decisions import Decision, decide_changes
from lance_stream.upsert.incoming import (
    Incoming,
    UpsertRules,
    check_names,
    prepare,
    which_delete,
)
from lance_stream.upsert.matching import THREADS, Found, Workers
from lance_stream.upsert.planned_update import plan_update
from lance_stream.upsert.tombstones import remembered_deletes
from lance_stream.upsert.written_rows import Written, write_rows, written_order
from lance_stream.write.arrow_input import ArrowInput, one_batch, read_input
from lance_stream.write.fragments import delete_files, write_target
from lance_stream.write.phases import Phases
from lance_stream.write.row_checks import WAY_OUT_OF_VERBS, BadRows, Check, RowRules, settled_by


def upsert(
    table: TableVersion,
    data: ArrowInput,
    rules: UpsertRules,
    micro_batch: PendingBatch | None = None,
    *,
    workers: Workers = THREADS,
    phases: Phases | None = None,
    environment: Environment = MACHINE,
    checks: Sequence[Check] = (),
    config_entries: ConfigEntries | None = None,
    check: Callable[[Manifest], None] | None = None,
) -> Upserted:
    """Update the table's rows that have the keys of incoming rows, and insert the other rows.

    Args:
        table: Any version; the newest one is changed.
        data: The rows; collected in memory.
        rules: The user's rules for them.
        micro_batch: Which micro-batch they are, if they come from a stream. If the table already
            has it, nothing is done.
        workers: What reads the table's data files.
        phases: Receives the durations of "scan" (of keys), "write" and "commit".
        environment: Randomness for file names; the clock, for remembered deletes.
        checks: Conditions that each row that does not delete has to meet.
        config_entries: See `write.planning.commit_planned`.
        check: Likewise.

    Raises:
        InvalidInputError: The rows do not fit the rules, the checks or the table, or the batch id
            belongs to another query's batch; nothing is changed.
        CommitError: It was not committed, or the outcome is unknown.
    """
    batch = one_batch(read_input(data).read_all())
    if rules.history is not None:
        return upsert_events(
            table,
            batch,
            rules,
            micro_batch,
            workers=workers,
            phases=phases,
            environment=environment,
        )
    attempts = Attempts(table, micro_batch, phases or Phases(), environment)
    found = Found(workers)
    incoming: Incoming | None = None
    written: Written | None = None
    written_on = None

    def attempt() -> Upserted:
        nonlocal incoming, written, written_on
        if (known := attempts.begin()) is not None:
            return known
        newest = attempts.newest
        with attempts.phases("scan"):
            if incoming is None or incoming.table != newest.arrow_schema:
                if checks:
                    _refuse_bad_rows(batch, newest, rules, checks)
                incoming = prepare(batch, newest.arrow_schema, rules)
            matches = found.look_up(newest, incoming)
            remembered = remembered_deletes(newest, incoming, environment)
        with attempts.phases("write"):
            decision, num_unchanged = decide_changes(newest, incoming, matches, remembered, workers)
            if written is None or not _is_same_work(written, written_on, newest, decision):
                if written is not None:
                    delete_files(table.store, written.files)
                    written = None
                written_on = newest
                written = write_rows(
                    newest,
                    incoming,
                    decision,
                    write_target(newest),
                    num_unchanged,
                    remembered,
                    workers,
                )
                rows = incoming.rows.select(list(incoming.scanned_columns))
                rows = rows.take(written_order(decision, written))
                found.remember(newest, incoming.rules, written.fragments, rows)
            written = written._replace(decision=decision)
            plan = plan_update(
                newest,
                [written],
                incoming.rules,
                incoming.rows.schema.names,
                remembered,
                environment,
            )
        result = Upserted(
            newest,
            num_rows=incoming.num_rows,
            num_inserted=len(decision.inserted_rows),
            num_updated=len(decision.changed),
            num_deleted=len(decision.deleted),
            num_unchanged=num_unchanged,
            num_late=incoming.num_late + decision.num_late,
            num_ignored=decision.num_ignored,
            num_remembered=0 if written.deletes is None else written.deletes.rows.num_rows,
            fragments=written.files,
        )
        return attempts.commit(plan, result, config_entries=config_entries, check=check)

    try:
        result = attempts.until_committed(attempt)
    except (CommitAbortedError, CommitConflictError, InvalidInputError):  # known to have failed
        if written is not None:
            delete_files(table.store, written.files)
        raise
    if result.was_already_committed and written is not None:
        delete_files(table.store, written.files)
    return result


def _refuse_bad_rows(
    batch: pa.RecordBatch, table: TableVersion, rules: UpsertRules, checks: Sequence[Check]
) -> None:
    """Raise if rows fit neither the table nor the checks."""
    columns = table.arrow_schema
    check_names(batch.schema, columns, rules)
    stored = set(batch.schema.names) - set(rules.except_columns)
    sorting = RowRules(
        pa.schema([column for column in columns if column.name in stored]),
        settled_by(batch.schema, checks),
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
        raise bad.error(table.uri, batch.num_rows, WAY_OUT_OF_VERBS)


def _is_same_work(
    written: Written, on: TableVersion | None, newest: TableVersion, decision: Decision
) -> bool:
    """Return whether writing the rows again would give the same files.

    Args:
        written: What was written.
        on: The version that it was planned on.
        newest: The version that it is planned on now.
        decision: The decisions about the rows of the batch in it.
    """
    pairs = zip(written.decision[:5], decision[:5], strict=True)
    if on is None or newest.version < on.version or newest.schema != on.schema:
        return False
    if newest.file_version != on.file_version:
        return False
    if not all(np.array_equal(one, other) for one, other in pairs):
        return False
    # Changed rows also contain values of the table, which others may have updated in place.
    touched = {int(each) for each in np.unique(decision.changed >> np.uint64(32))}
    return _files_of(on, touched) == _files_of(newest, touched)


def _files_of(table: TableVersion, fragment_ids: set[int]) -> dict[int, object]:
    fragments = table.manifest.fragments
    places = [place for place, each in enumerate(fragments.ids) if each in fragment_ids]
    return {fragments.ids[place]: fragments[place].files for place in places}
