"""Derived columns: declared once, brought up to date by pieces, each one commit.

    1  read the progress, which the table keeps with the values, and the newest version
    2  choose the next rows that may have changed, the newest changes first (`candidates`)
    3  workers read their inputs, and compute those that are not current (`computing`)
    4  add the columns, if they are not there: not before the function has computed something
    5  rows that failed are set aside in the quarantine
    6  commit the values and the new progress: one version (`in_table`, `beside`)

A process that is killed leaves files that no version names; the next one begins the piece again.
Two that work at the same time do not disturb each other: the commit of the second one finds that
the progress is not the one it began with, commits nothing, and begins again.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from lance_stream.arguments import as_number
from lance_stream.backoff import Backoff
from lance_stream.commit.committer import ConfigEntries
from lance_stream.derived import beside, in_table, progress
from lance_stream.derived.candidates import (
    Changed,
    Ids,
    Piece,
    changed_since,
    count,
    count_changed,
    next_piece,
)
from lance_stream.derived.computing import Computed, Here, Runner, compute, compute_jobs
from lance_stream.derived.declaration import Declaration, Outputs, declare
from lance_stream.derived.ownership import check_columns, missing_columns
from lance_stream.derived.progress import Progress
from lance_stream.derived.reports import DerivedPiece, DerivedStatus
from lance_stream.derived.running import DerivedQuery
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CommitConflictError,
    DerivedFunctionError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    TableReplacedError,
)
from lance_stream.expressions.predicates import quote_path
from lance_stream.ledger.micro_batches import MicroBatch
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.quarantine.table import open_quarantine, quarantine_uri
from lance_stream.read.scan import count_rows
from lance_stream.schema.fields import Schema
from lance_stream.snapshot.opening import newest_of_same, open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.locations import text_of
from lance_stream.storage.options.names import as_options
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations import MapUpdate, UpdateConfig
from lance_stream.table.version_marks import mark_of
from lance_stream.upsert.staged_files import discard_files
from lance_stream.verbs.add_columns import add_columns
from lance_stream.verbs.configure import update_config
from lance_stream.verbs.delete import delete
from lance_stream.verbs.drop_columns import drop_columns
from lance_stream.write.planning import commit_planned
from lance_stream.write.row_checks import BadRows

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("lance_stream.derived")

_MAX_PLACINGS: Final = 20
"""How often values are placed again because of other writers before the piece is an error."""

_BACKOFF: Final = Backoff(_MAX_PLACINGS, first_delay_seconds=0.02, max_delay_seconds=1.0)


class OvertakenError(InvalidInputError):
    """Another process has committed progress of the same derivation.

    Not a conflict, after which an upsert would be planned again: the values may not be wanted.
    """


@dataclass(frozen=True)
class _Work:
    """A piece that is being worked off.

    Attributes:
        source: The version that is read.
        table: The table with the values; the source itself, or one beside.
        known: The entry of the progress as it was read; None if there was none.
        planned: The progress once the piece is done, if it is done at `source`.
        rows: The rows to check.
        is_first: Whether the function's version is new, or there is no progress yet.
        before: The version of the source that a table beside was made from, if it is left.
        num_changed: How many rows changed since the last piece.
        ends_backfill: Whether rows had been pending for longer, and none are any more.
        lacks_columns: Whether columns have to be added before values are committed.
    """

    source: TableVersion
    table: TableVersion
    known: str | None
    planned: Progress
    rows: Piece
    is_first: bool
    before: TableVersion | None
    num_changed: int
    ends_backfill: bool
    lacks_columns: bool


class Derivation:
    """Columns that a function computes from others; made by `derive`.

    Args:
        uri: The source.
        declaration: What is computed.
        target: The table beside that has the values; None for columns of the source.
        storage_options: Settings of the store.
        quarantine: The table for rows that failed; None for the one beside the table.
        runner: Runs the work.
        environment: The clock and randomness.
    """

    def __init__(
        self,
        uri: str,
        declaration: Declaration,
        target: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        quarantine: str | None = None,
        runner: Runner | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.uri = uri
        self.target = target
        self.declaration = declaration
        self._options = as_options(storage_options)
        self._quarantine = quarantine
        self._runner: Runner = Here() if runner is None else runner
        self._environment = environment
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        own = self.declaration
        where = "" if self.target is None else f" in {self.target!r}"
        return (
            f"<Derivation {own.name!r}{where} of {', '.join(own.inputs)} in {self.uri!r}, "
            f"function version {own.function_version!r}>"
        )

    # --- what users call

    def run(self, max_pieces: int | None = None) -> DerivedPiece:
        """Bring all rows of the source up to date, piece by piece; each piece is one commit.

        Rows that others change meanwhile are brought up to date, too, as long as pieces follow;
        what has changed after the last piece began is left for the next run.

        Args:
            max_pieces: How many pieces at most; None for as many as it takes.

        Returns:
            What was done, and how many rows are still pending.

        Raises:
            NotFoundError: There is no table, or an input does not exist.
            InvalidInputError: The table has no stable row ids; or it has an output that this
                derivation has not made, or one of another type.
            DerivedFunctionError: The function failed for too many rows, or for all of several
                before it succeeded for one; or it returned another number or type of values.
            CommitError: Others changed the table so often that no values could be committed.
        """
        if max_pieces is not None and (as_number(max_pieces) or 0) < 1:
            raise InvalidInputError(
                f"max_pieces is a whole number from 1, or None for all, not {max_pieces!r:.100}"
            )
        total = DerivedPiece()
        pieces = 0
        with self._lock:
            while max_pieces is None or pieces < max_pieces:
                done = self._piece()
                total = done if not pieces else total + done
                pieces += 1
                if not done.num_pending:
                    break
        return total

    def start(self, interval_seconds: float = 1.0) -> DerivedQuery:
        """Keep the values up to date in a thread, until the query is stopped.

        It keeps no checkpoint: the table has the progress. So it can be started again anywhere.

        Args:
            interval_seconds: How often it looks for a new version.

        Raises:
            InvalidInputError: The interval is not a number of seconds, from 0.
        """
        if (
            isinstance(interval_seconds, bool)
            or not isinstance(interval_seconds, int | float)
            or not 0 <= interval_seconds <= threading.TIMEOUT_MAX
        ):
            raise InvalidInputError(
                "interval_seconds must be a number of seconds, such as 0.5, not "
                f"{interval_seconds!r:.100}"
            )
        return DerivedQuery(self._follow, repr(self), interval_seconds)

    def status(self) -> DerivedStatus:
        """Return how far the values are those of their inputs.

        Read are manifests, and the column that says what each row was computed from.
        """
        source = open_table(self.uri, storage_options=self._options)
        table = self._existing_target(source)
        own = self.declaration
        kept = None if table is None else progress.read_progress(table.manifest.config, own.name)
        num_rows = count_rows(source)
        if table is None or kept is None:
            return DerivedStatus(source.version, None, None, False, num_rows, num_rows, 0)
        is_same = kept.function == own.fingerprint
        pending = num_rows
        if is_same and self._is_valid(source, table, kept):
            changed = self._changed(source, table, kept)
            pending = count_changed(source, changed)
            pending += sum(count(source, each) for each in kept.pending)
        failed = 0
        if own.state_column in table.schema.names:
            failed = count_rows(table, f"{quote_path((own.state_column,))} < 0")
        return DerivedStatus(
            source.version,
            kept.through,
            kept.function_version,
            is_same,
            num_rows,
            min(pending, num_rows),
            failed,
        )

    # --- one piece

    def _follow(self, seen: int | None) -> tuple[DerivedPiece | None, int]:
        """Do a piece if the source has news; see `running.DerivedQuery`."""
        newest = open_table(self.uri, storage_options=self._options).version
        if newest == seen:
            return None, newest
        with self._lock:
            done = self._piece()
        if done.num_pending:
            return done, -1  # go on at once
        is_own = self.target is None and done.version == done.source_version + 1
        return done, done.version or newest if is_own else done.source_version

    def _piece(self) -> DerivedPiece:
        for attempt in range(1, _MAX_PLACINGS + 1):
            try:
                return self._attempt()
            except OvertakenError as error:
                _log.info("a piece of %r is begun again: %s", self.declaration.name, error)
                _BACKOFF.wait(attempt, self._environment)
        raise CommitConflictError(
            f"other processes commit progress of the derived column {self.declaration.name!r} all "
            "the time; let one process work on it"
        )

    def _attempt(self) -> DerivedPiece:
        work = self._plan()
        piece = DerivedPiece(
            source_version=work.source.version,
            num_checked=work.rows.num_rows,
            num_pending=sum(count(work.source, each) for each in work.rows.left),
        )
        gone: Ids = np.empty(0, np.uint64)
        if self.target is not None:
            gone = beside.deleted_rows(work.table, work.source, work.before)
        if not work.rows.num_rows and not len(gone) and not self._has_news(work):
            return piece
        computed = self._compute(work)
        try:
            if work.lacks_columns:
                work = self._with_columns(work)
                pending = sum(count(work.table, each) for each in work.rows.left)
                piece = replace(piece, source_version=work.source.version, num_pending=pending)
            return self._commit(work, computed, gone, piece)
        finally:
            discard_files(work.table.store, [each.values for each in computed])

    def _has_news(self, work: _Work) -> bool:
        """Return whether the progress has to be stated although no row is to be checked."""
        return work.is_first or work.num_changed > 0

    def _plan(self) -> _Work:
        own = self.declaration
        source = open_table(self.uri, storage_options=self._options)
        self._check(source)
        table = source
        if self.target is not None:
            table = beside.open_beside(self.target, source, own, self._options)
        check_columns(table, own)
        lacks_columns = bool(missing_columns(table, own))
        key = progress.config_key(own.name)
        known = table.manifest.config.get(key)
        kept = progress.read_progress(table.manifest.config, own.name)
        wanted = Progress(
            own.fingerprint,
            own.function_version,
            source.version,
            fields=self._fields(source.schema, table.schema),
            mark="" if self.target is None else mark_of(source.manifest),
            outputs=in_table.output_ids(table.schema, own),
            source="" if self.target is None else source.store.uri,
        )
        if kept is not None:
            self._check_source(source, kept)
        if (
            kept is None
            or lacks_columns
            or not self._is_valid(source, table, kept)
            or (kept.function != wanted.function)
        ):
            planned = progress.all_pending(wanted)
            rows = next_piece(source, planned.pending, own.piece_rows)
            is_first, num_changed, before = True, rows.num_rows, None
        else:
            changed = self._changed(source, table, kept)
            num_changed = count_changed(source, changed)
            rows = next_piece(
                source, kept.pending, own.piece_rows, changed if num_changed else None
            )
            planned = replace(wanted, own=tuple(each for each in kept.own if each > source.version))
            is_first, before = False, self._before(source, kept)
        return _Work(
            source,
            table,
            known,
            replace(planned, pending=rows.left),
            rows,
            is_first,
            before,
            num_changed,
            (is_first or bool(kept is not None and kept.pending)) and not rows.left,
            lacks_columns,
        )

    def _changed(self, source: TableVersion, table: TableVersion, kept: Progress) -> Changed:
        ids = self._fields(source.schema, table.schema) if self.target is None else kept.fields
        in_same = self.target is None
        return changed_since(source, kept.through, ids, kept.own, is_restored_with=in_same)

    def _before(self, source: TableVersion, kept: Progress) -> TableVersion | None:
        """Return the version of the source that a table beside was made from, if it is left."""
        try:
            return source if kept.through == source.version else source.read_at(kept.through)
        except NotFoundError:
            return None

    def _fields(self, source: Schema, table: Schema) -> tuple[int, ...]:
        """Return the ids of the columns that matter: if they change, all rows are looked at."""
        inputs = in_table.input_ids(source, self.declaration)
        if self.target is not None:
            return inputs
        return tuple(sorted({*inputs, *in_table.output_ids(table, self.declaration)}))

    def _is_valid(self, source: TableVersion, table: TableVersion, kept: Progress) -> bool:
        """Return whether progress is about these columns of this table."""
        if kept.through > source.version or kept.fields != self._fields(
            source.schema, table.schema
        ):
            return False
        if self.target is None:
            return True
        if kept.outputs and kept.outputs != in_table.output_ids(table.schema, self.declaration):
            return False
        before = self._before(source, kept)
        return before is None or mark_of(before.manifest) == kept.mark

    def _check(self, source: TableVersion) -> None:
        own = self.declaration
        if not source.has_stable_row_ids:
            raise InvalidInputError(
                f"the table {self.uri} has no stable row ids, so it is unknown which rows change. "
                "Assign them with lance_stream.migrate_to_stable_row_ids(uri)"
            )
        names = source.schema.names
        for column in own.read_columns:
            if column not in names:
                raise NotFoundError(
                    f"the table {self.uri} has no column {column!r}; it has: {', '.join(names)}"
                )

    def _check_source(self, source: TableVersion, kept: Progress) -> None:
        """Raise if a table beside has the values of another source, which would be deleted."""
        if self.target is None or kept.source in ("", source.store.uri):
            return
        before = self._before(source, kept) if kept.through <= source.version else None
        if before is not None and mark_of(before.manifest) == kept.mark:
            return  # the same table, moved or copied
        key = progress.config_key(self.declaration.name)
        raise InvalidInputError(
            f"the table {self.target} has the derived column {self.declaration.name!r} of "
            f"{kept.source}, and {source.store.uri} is another table: its rows would replace "
            "those. Nothing was written. Give each source a target of its own. If the one has "
            "taken the place of the other, say so: "
            f"open_dataset(target).update_config({{{key!r}: None}})"
        )

    def _with_columns(self, work: _Work) -> _Work:
        """Add the columns that are not there, and forget what is known of those that are.

        A commit that adds or drops one states in the progress whose the others are, so that after a
        kill between two of them, the next process finds its own.
        """
        own = self.declaration
        key = progress.config_key(own.name)
        newest = newest_of_same(work.table)
        self._check_progress(work)(newest.manifest)
        check_columns(newest, own)
        claimed = ""

        def claim(schema: Schema, *, renews: bool = False) -> dict[str, str]:
            nonlocal claimed
            whole = replace(
                work.planned,
                fields=self._fields(schema, schema),
                outputs=in_table.output_ids(schema, own),
                renews=renews,
            )
            claimed = progress.encode(progress.all_pending(whole))
            return {key: claimed}

        if own.state_column in newest.schema.names and missing_columns(newest, own):
            newest = update_config(newest, claim(newest.schema, renews=True))
            newest = drop_columns(newest, [own.state_column])  # it says that the values are there
        made = add_columns(newest, own.written, claim)
        if made.manifest.config.get(key) != claimed:
            raise OvertakenError("another process has added the columns")
        known = progress.all_pending(
            replace(
                work.planned,
                through=made.version,
                fields=self._fields(made.schema, made.schema),
                outputs=in_table.output_ids(made.schema, own),
            )
        )
        work = replace(work, table=made, known=claimed, lacks_columns=False)
        if made.version == work.source.version + 1:  # no row has changed
            planned = replace(known, pending=work.planned.pending)
            return replace(work, source=made, planned=planned)
        # There was no progress that a restore meanwhile would have taken back: look at all again.
        return replace(work, planned=known, rows=Piece(left=known.pending), ends_backfill=False)

    def _existing_target(self, source: TableVersion) -> TableVersion | None:
        if self.target is None:
            return source
        try:
            return open_table(self.target, storage_options=self._options)
        except NotFoundError:
            return None

    def _compute(self, work: _Work) -> list[Computed]:
        """Let workers compute; delete what they have staged if one of them fails."""
        own = self.declaration
        known = None
        if self.target is not None:
            known = beside.known_states(work.table, own, work.rows.rows)
        elif work.lacks_columns:
            known = np.empty(0, np.uint64), np.empty(0, np.int64)
        jobs = compute_jobs(
            work.source,
            own,
            work.rows.rows,
            self._runner.num_workers,
            work.table.store,
            known,
        )
        done = self._runner(_Compute(own), jobs)
        computed = [each for each in done if isinstance(each, Computed)]
        errors = [each for each in done if not isinstance(each, Computed)]
        if errors:
            discard_files(work.table.store, [each.values for each in computed])
            raise errors[0]
        try:
            self._check_failures(work, computed)
        except DerivedFunctionError:
            discard_files(work.table.store, [each.values for each in computed])
            raise
        return computed

    def _check_failures(self, work: _Work, computed: Sequence[Computed]) -> None:
        """Raise if the function fails for all rows, and is not known to succeed for any."""
        own = self.declaration
        num_computed = sum(len(each.row_ids) for each in computed)
        num_failed = sum(each.num_failed for each in computed)
        if not num_failed:
            return
        messages = next(each.bad["message"] for each in computed if each.num_failed)
        message = messages[0].as_py()
        if 1 < num_failed == num_computed and (
            work.is_first or not count_rows(work.table, f"{quote_path((own.state_column,))} > 0")
        ):
            raise DerivedFunctionError(
                f"the function of the derived column {own.name!r}, version "
                f"{own.function_version!r}, failed for all {num_failed} rows that it got, and has "
                f"succeeded for none yet; nothing of this piece was committed. The error: {message}"
                ". Correct the function"
            )
        _log.warning(
            "the function of the derived column %r failed for %d of %d rows, which are set aside; "
            "for the first one: %s",
            own.name,
            num_failed,
            num_computed,
            message,
        )

    def _commit(
        self,
        work: _Work,
        computed: Sequence[Computed],
        gone: Ids,
        piece: DerivedPiece,
    ) -> DerivedPiece:
        """Commit values and progress, and set aside the rows that failed."""
        own = self.declaration
        piece = replace(
            piece,
            num_computed=sum(len(each.row_ids) for each in computed),
            num_failed=sum(each.num_failed for each in computed),
        )
        # Not a counter: also after a restore by another program it is one that was never used.
        at = work.table.version
        micro_batch = MicroBatch(own.app_id, at, planned_on=at)
        aside: QuarantineBatch | None = None
        if piece.num_failed:
            aside = self._set_aside(work, computed, micro_batch)
            micro_batch = replace(micro_batch, quarantined=aside.attempt)
        if self.target is None:
            done = self._commit_in_table(work, computed, micro_batch, piece)
        else:
            done = self._commit_beside(work, computed, gone, micro_batch, piece)
        if aside is not None:
            aside.end()
        if work.ends_backfill:
            self._forget_other_versions(work)
        return done

    def _commit_in_table(
        self,
        work: _Work,
        computed: Sequence[Computed],
        micro_batch: MicroBatch,
        piece: DerivedPiece,
    ) -> DerivedPiece:
        for attempt in range(1, _MAX_PLACINGS + 1):
            newest = newest_of_same(work.table)
            self._check_progress(work)(newest.manifest)
            placed = None
            if piece.num_computed:
                placed = in_table.place(
                    newest,
                    work.source,
                    self.declaration,
                    computed,
                    self._runner,
                    self._environment,
                )
            try:
                done = commit_planned(
                    newest,
                    UpdateConfig(config=MapUpdate()) if placed is None else placed.operation,
                    None if placed is None else placed.staged,
                    micro_batch,
                    config_entries=self._entries(work),
                    check=self._check_progress(work),
                    environment=self._environment,
                )
            except TableReplacedError:
                raise
            except CommitConflictError as error:
                if attempt == _MAX_PLACINGS:
                    raise
                _log.info("values are placed again: %s", error)
                _BACKOFF.wait(attempt, self._environment)
                continue
            if not done.is_new:
                raise OvertakenError("another process has committed this piece")
            return replace(
                piece,
                version=done.table.version,
                num_commits=1,
                num_written=0 if placed is None else placed.num_rows,
                num_in_place=0 if placed is None else placed.num_in_place,
            )
        raise AssertionError("the last attempt raises")

    def _commit_beside(
        self,
        work: _Work,
        computed: Sequence[Computed],
        gone: Ids,
        micro_batch: MicroBatch,
        piece: DerivedPiece,
    ) -> DerivedPiece:
        num_written, num_deleted = piece.num_computed, len(gone)
        if num_written or num_deleted:
            done = beside.write(
                work.table,
                self.declaration,
                work.table.store,
                computed,
                gone,
                micro_batch,
                self._entries(work),
                self._check_progress(work),
                self._environment,
            )
            if done.was_already_committed:
                raise OvertakenError("another process has committed this piece")
            if done.is_new:
                return replace(
                    piece,
                    version=done.table.version,
                    num_commits=1,
                    num_written=num_written,
                    num_deleted=done.num_deleted,
                )
        made = commit_planned(
            newest_of_same(work.table),
            UpdateConfig(config=MapUpdate()),
            None,
            micro_batch,
            config_entries=self._entries(work),
            check=self._check_progress(work),
            environment=self._environment,
        )
        if not made.is_new:
            raise OvertakenError("another process has committed this piece")
        return replace(piece, version=made.table.version, num_commits=1)

    def _entries(self, work: _Work) -> ConfigEntries:
        """Return what states the progress in the version that a commit makes."""
        own = self.declaration

        def entries(_newest: Manifest | None, version: int) -> dict[str, str]:
            made = work.planned
            if self.target is None:
                is_next = version == work.source.version + 1
                made = progress.committed(made, version, is_next=is_next)
            return {progress.config_key(own.name): progress.encode(made)}

        return entries

    def _check_progress(self, work: _Work) -> Callable[[Manifest], None]:
        key = progress.config_key(self.declaration.name)

        def check(newest: Manifest) -> None:
            if newest.config.get(key) != work.known:
                raise OvertakenError("another process has committed progress, or it was restored")
            if self.target is None and work.planned.fields != self._fields(
                newest.schema, newest.schema
            ):
                raise OvertakenError("columns were added, dropped or restored")

        return check

    # --- rows that failed

    def _set_aside(
        self, work: _Work, computed: Sequence[Computed], micro_batch: MicroBatch
    ) -> QuarantineBatch:
        bad = BadRows()
        for each in computed:
            for batch in each.bad.to_batches():
                bad.add(batch)
        table = work.table
        uri = self._quarantine or quarantine_uri(table.uri)
        aside = QuarantineBatch(
            uri, self._options, table.uri, micro_batch.app_id, micro_batch.batch_id
        )
        aside.begin(newest_of_same(table))
        aside.keep(bad, self._rules(), self._environment)
        return aside

    def _rules(self) -> dict[str, Any]:
        own = self.declaration
        return {
            "mode": "derive",
            "on": [],
            "except_columns": [],
            "sequence_by": None,
            "expect": {},
            "function_version": own.function_version,
        }

    def _forget_other_versions(self, work: _Work) -> None:
        """Delete what the quarantine has of other versions of the function; this one is done."""
        table = work.table
        uri = self._quarantine or quarantine_uri(table.uri)
        found = open_quarantine(uri, self._options)
        if found is None:
            return
        rules = json.dumps(self._rules(), sort_keys=True).replace("'", "''")
        app_id = self.declaration.app_id.replace("'", "''")
        where = f"app_id = '{app_id}' AND rules <> '{rules}'"
        if count_rows(found, where):
            delete(found, where)


@dataclass(frozen=True)
class _Compute:
    """What workers run. The function travels with it, which Spark pickles by value."""

    declaration: Declaration

    def __call__(self, job: Any) -> Computed | LanceStreamError:
        return compute(self.declaration, job)


def _without_session(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function say which one takes a session of Spark, if it is given one first."""

    @wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        if given and type(given[0]).__module__.startswith("pyspark."):
            raise InvalidInputError(
                "lance_stream.derive(uri, ...) takes no session: it computes in this process. To "
                "compute in Spark's workers, call lance_stream.spark.derive(spark, uri, ...)"
            )
        return function(*given, **named)

    return called


@_without_session
def derive(
    uri: str | os.PathLike[str],
    outputs: Outputs,
    function: Callable[..., Any],
    inputs: Sequence[str] | str,
    *,
    function_version: str,
    target: str | os.PathLike[str] | None = None,
    name: str | None = None,
    setup: Callable[[], Any] | None = None,
    kept: Sequence[str] = (),
    batch_rows: int = 1024,
    piece_rows: int = 100_000,
    max_failures: int = 1000,
    on_error: str = "quarantine",
    quarantine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Derivation:
    """Declare columns that a function computes from other columns.

    Nothing is computed before `run` or `start`. Then the function runs for the rows whose inputs
    changed, and for all rows if its version is another one.

    Args:
        uri: The table with the inputs. It has stable row ids.
        outputs: The columns that are computed: a mapping from names to types, a `pyarrow.Field`, or
            several. They become new, nullable columns of the table.
        function: Takes a `pyarrow.RecordBatch` of the inputs, n rows at once, and returns n values:
            an array, a numpy array with one row for each, or a list; for several outputs, a mapping
            or a RecordBatch. It should not depend on which rows it gets together.
        inputs: The columns that it gets. No others are read.
        function_version: A text. If it changes, all rows are computed anew, piece by piece.
        target: The location of a table beside that has the values; None for the same table.
        name: Identifies the derivation in its table; the first output's name by default.
        setup: Called once in each process that computes: loads a model, for example. The function
            gets what it returns as its second argument.
        kept: Columns of the source that a table beside has as well: its key, for example.
        batch_rows: How many rows the function gets at once, at most.
        piece_rows: How many rows one commit checks, at most.
        max_failures: If the function fails for more rows of a piece, that is an error.
        on_error: "quarantine": rows that the function raises for are null, and set aside; "raise":
            the first one ends the run.
        quarantine: The location of the table for rows that fail; by default beside the table.
        storage_options: Settings of the store.

    Raises:
        InvalidInputError: An argument is invalid.
    """
    declaration = declare(
        outputs,
        function,
        inputs,
        function_version=function_version,
        name=name,
        setup=setup,
        kept=kept,
        batch_rows=batch_rows,
        piece_rows=piece_rows,
        max_failures=max_failures,
        on_error=on_error,
    )
    check_kept(declaration, target)
    beside_uri = None if target is None else text_of(target)
    return Derivation(text_of(uri), declaration, beside_uri, storage_options, quarantine)


def check_kept(declaration: Declaration, target: object | None) -> None:
    """Raise if columns are to be kept in a table beside, and there is none.

    Raises:
        InvalidInputError: They are.
    """
    if declaration.kept and target is None:
        raise InvalidInputError("kept columns are copied to a table beside: give target=..., too")
