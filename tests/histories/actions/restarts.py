"""Queries that lose their table: it is deleted, and nothing or another table takes its place.

The first batch of a query creates its table, so a later batch that finds none has lost the rows of
earlier ones. It creates a table only with `late_start`. A batch that was planned on a table must
not be committed to another one, and one that is refused leaves nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from lance_stream.dataset import Dataset
from lance_stream.errors import CommitError, InvalidInputError, NotFoundError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.snapshot.opening import open_newest
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.writer.upsert_writer import UpsertJob, plan_upsert
from lance_stream.verbs.create import plan_table
from lance_stream.verbs.jobs import WriteJob, plan_job
from tests.histories.actions.streams import MODES
from tests.histories.actions.versions import check_no_unnamed_files
from tests.histories.life import Life, Line, unchanged
from tests.histories.model import KEY, State, Values
from tests.histories.replacements import (
    check_is_alone,
    delete_table,
    draw_replacement,
    files_of,
    replace_table,
)
from tests.histories.steps import Choices, DoesNotFit, action
from tests.keys.index.small_runs import restart
from tests.spark.writer.writers_of_jobs import stream_writer

QUERY = "query"
FORMAT, FORMAT_UPSERT = "format", "upsert by the format"
WAYS = (FORMAT, FORMAT_UPSERT, "append", "upsert")
KINDS_IN_SPARK = {"int32", "int64", "float32", "float64", "string", "bool", "binary", "date"}
"""Kinds that a table which Spark's rows create has, too."""


@dataclass(frozen=True)
class QueryBatch:
    """A batch of a query.

    Attributes:
        line: What it is written to.
        number: Its batch id.
        rows: Its rows, by key.
        state: Their columns, as a table without rows.
        way: By the format's writer; or by a verb, as the sink writes.
        late_start: Whether a later batch than the first one may create the table.
    """

    line: Line
    number: int
    rows: Mapping[int, Values]
    state: State
    way: str
    late_start: bool

    @property
    def app_id(self) -> str:
        return f"restarted {self.line.name}"

    @property
    def data(self) -> pa.Table:
        return self.state.table(self.rows)

    @property
    def is_in_ledger(self) -> bool:
        entry = self.line.ours().ledger().get(self.app_id)
        return entry is not None and entry.batch_id >= self.number

    def plan(self) -> Callable[[], object]:
        """Plan on the newest version; return what commits the rows.

        Raises:
            NotFoundError: The sink finds no table, and may not create one.
        """
        uri, file_version = self.line.uri, self.line.life.file_version
        if self.way in (FORMAT, FORMAT_UPSERT):
            job: WriteJob | UpsertJob
            if self.way == FORMAT:
                job = plan_job(uri, self.data.schema, file_version=file_version)
            else:
                options = {"path": uri, "mode": "upsert", "on": KEY, "fileVersion": file_version}
                arguments = parse_writer_options(options, streaming=True)
                job = plan_upsert(arguments, spark_schema(carrier_schema(self.data.schema)))
            writer = stream_writer(job, self.app_id, late_start=self.late_start)
            result = replace(writer.write(iter(self.data.to_batches())), query_id=QUERY)
            return lambda: writer.commit([result], self.number)
        pending = PendingBatch.of(self.app_id, self.number, QUERY, digest=digest_of(self.data))
        try:
            table = open_newest(uri)
        except NotFoundError:
            pending.check_may_create(uri, late_start=self.late_start)
            table = plan_table(uri, self.data.schema, file_version=file_version)
        return lambda: MODES[self.way](table, self.data, pending)

    def applied(self, state: State, at: int) -> State:
        """Return the state of a table after the batch, which may have created it."""
        return self.line.life.upserted(state if state.columns else self.state, self.rows, at)


@action(weight=0.7)
def restarted_query(life: Life, choose: Choices) -> None:
    """The table of a query is deleted before its batch, or between its plan and its commit."""
    line = life.line(choose)
    check_is_alone(line)
    if not life.is_stable or "ahead" in line.memory:
        raise DoesNotFit("a new table has stable row ids, and no pending commits")
    empty, result = State(line.now.row_columns), life.memory.setdefault("restarted", [])
    if choose.happens("repeats", 0.3):
        if not result or result[-1].state != empty:
            raise DoesNotFit("no batch, or other columns")
        batch: QueryBatch = result[-1]
    else:
        drawn = choose("rows", lambda dice: life.draw_new_rows(line.now, dice))
        rows = life.fitting_new_rows(line.now, drawn)
        if any({*line.now.row_names} != values.keys() for values in rows.values()):
            raise DoesNotFit("columns")
        columns = line.now.row_columns
        fits_spark = all(c.kind in KINDS_IN_SPARK and not c.note for c in columns)
        ways = tuple(way for way in WAYS if way != FORMAT_UPSERT or fits_spark)
        way, late_start = choose.one_of("way", ways), choose.happens("late_start", 0.5)
        batch = QueryBatch(line, len(result), rows, empty, way, late_start)
    successor = choose(
        "successor", lambda dice: draw_replacement(line, dice) if dice.random() < 0.5 else None
    )
    old, commit = line.ours(), batch.plan() if choose.happens("is_planned", 0.5) else None
    if successor:
        replace_table(line, *successor)
    else:
        delete_table(line)
    if result[-1:] != [batch]:
        result.append(batch)
    if commit is not None and _commit_to_another_table(batch, commit, old):
        return
    restart()
    if not _exists(line):
        _create(batch)
    elif line.now.columns == empty.columns and "restored by pylance" not in line.memory:
        _commit(batch)


def _exists(line: Line) -> bool:
    return Path(line.root, "_versions").exists()


def _commit_to_another_table(batch: QueryBatch, commit: Callable[[], object], old: Dataset) -> bool:
    """Commit a batch that was planned on the table that is gone; return whether that succeeds.

    It may succeed where a copy of the table has the version that was planned on, or had it; and an
    upsert by the format is planned by its commit.
    """
    line = batch.line
    may_commit = _exists(line) and (batch.way == FORMAT_UPSERT or line.may_have_had_version_of(old))
    before = files_of(line)  # possibly with files of tasks that died
    try:
        commit()
    except (CommitError, InvalidInputError, NotFoundError):
        line.life.counts["batches refused by another table"] += 1
        if _exists(line):
            line.advance(unchanged, may_stay=True)
        new_files = files_of(line) - before
        assert not new_files, f"left: {new_files}"
        return False
    assert may_commit, f"batch {batch.number} was committed to another table"
    line.advance(batch.applied, may_stay=True)
    return True


def _create(batch: QueryBatch) -> None:
    """Restart the query, for which two drivers create the table, unless that would lose rows."""
    line = batch.line
    if batch.number and not batch.late_start:
        with pytest.raises(NotFoundError, match="first batch"):
            batch.plan()()
        assert not files_of(line), f"left: {files_of(line)}"
        line.life.counts["queries that lost their table"] += 1
        line.states[0] = batch.state
        replace_table(line, "new", [])
        return _commit(batch)
    commits = batch.plan(), batch.plan()
    for commit in commits:
        commit()
    line.life.counts["tables created by a batch"] += 1
    line.advance(batch.applied)
    return check_no_unnamed_files(line)


def _commit(batch: QueryBatch) -> None:
    """Let two drivers commit a batch to the table that exists, unless it is there."""
    line = batch.line
    is_replay = batch.is_in_ledger
    if not is_replay and not line.now.rows.keys().isdisjoint(batch.rows):
        return  # the keys of another table
    commits = batch.plan(), batch.plan()
    for commit in commits:
        commit()
    line.life.counts["batches found in a copy"] += is_replay
    line.advance(unchanged if is_replay else batch.applied)
