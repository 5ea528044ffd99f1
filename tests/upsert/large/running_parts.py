"""Upserts in parts, without Spark: function calls take the place of tasks."""

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pyarrow as pa

from lance_stream.environment import MACHINE, Environment
from lance_stream.keys.index.key_index import clear_key_indices
from lance_stream.keys.index.shared_index import index_keys, merge_runs, shared_index
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.row_updates import staged_files
from lance_stream.row_updates.staged_files import WordRange
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.large import staged_rows
from lance_stream.upsert.large.in_parts import Outcome, PartedUpsert
from lance_stream.upsert.large.staged_rows import (
    RANGE_THREADS,
    RangeWorkers,
    StagedRows,
    discard_staged,
    stage_rows,
    upsert_staged,
)
from lance_stream.upsert.rules import UpsertRules


class RangeProcesses:
    """Processes ranges like Spark's tasks, each in a process that remembers nothing.

    Args:
        repeats: How many attempts at each task there are; the last one counts.
    """

    reading: Workers = THREADS
    ranges_at_once: int = 1

    def __init__(self, repeats: int = 1) -> None:
        self.repeats = repeats

    def prepare(self, planned: PartedUpsert) -> PartedUpsert:
        table = planned.table
        index = shared_index(table, planned.rules.on)
        for fragment, _ in index.lacking(table):
            self._call(partial(index_keys, table, index.on, index.seeds), [fragment])
        for paths in index.to_merge():
            self._call(partial(merge_runs, table, index.on, index.seeds), paths)
        return replace(planned, keeps_keys=False)

    def max_rows(self, num_rows: int) -> int:
        return min(num_rows, staged_rows.MAX_ROWS)

    def run(
        self, function: Callable[[WordRange], Outcome], ranges: Sequence[WordRange]
    ) -> Iterator[Outcome]:
        for span in ranges:
            yield self._call(function, span)

    def _call(self, function: Callable[..., object], item: object) -> object:
        for _ in range(self.repeats):
            clear_key_indices()
            task, argument = pickle.loads(pickle.dumps((function, item)))
            outcome = pickle.loads(pickle.dumps(task(argument)))
        clear_key_indices()
        return outcome


class _Limits:
    """Lowers limits of the package for any number of threads; the last one restores them.

    If each thread restored what it had found, the lowered limits of another one would remain.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._patches = ExitStack()
        self._num_users = 0

    @contextmanager
    def lowered(self, max_rows: int) -> Iterator[None]:
        """Lower the limits in this block, unless another thread has.

        Args:
            max_rows: How many rows a range has.
        """
        with self._lock:
            if not self._num_users:
                for module, name, value in (
                    (staged_rows, "MAX_ROWS", max_rows),
                    (staged_rows, "_MANY_TASKS", 1),
                    (staged_rows, "_MAX_INLINE_BYTES_OF_MANY", 0),
                    (staged_files, "MIN_ROWS", 1),
                ):
                    self._patches.enter_context(patch.object(module, name, value))
            self._num_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_users -= 1
                if not self._num_users:
                    self._patches.close()


_LIMITS = _Limits()


def upsert_by_parts(
    table: TableVersion,
    rows: pa.Table,
    rules: UpsertRules,
    *,
    num_parts: int = 3,
    environment: Environment = MACHINE,
    repeats: int = 1,
) -> UpsertResult:
    """Upsert a table of rows as Spark's tasks upsert a DataFrame on a cluster."""
    return upsert_staged_rows(
        table,
        rows,
        rules,
        num_parts=num_parts,
        environment=environment,
        workers=RangeProcesses(repeats),
        seed=shared_index(table, rules.on).seeds[0],
    )


def upsert_staged_rows(
    table: TableVersion,
    rows: pa.Table,
    rules: UpsertRules,
    *,
    num_parts: int = 3,
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
    workers: RangeWorkers = RANGE_THREADS,
    seed: int = 0,
) -> UpsertResult:
    """Upsert a table of rows as the format upserts what its tasks have staged.

    The first task keeps its rows in memory if they are few, the others do not. The commit takes all
    rows at once if there is one part, and else about so many parts.
    """
    batches = rows.to_batches(max_chunksize=max(rows.num_rows // 3, 1))
    limit = rows.num_rows + 1 if num_parts == 1 else rows.num_rows // num_parts
    tasks = enumerate([batches[:1], batches[1:2], batches[2:]])
    with _LIMITS.lowered(limit):
        staged: list[StagedRows] = []
        others = {file.path for file in table.store.list(STAGED_ROWS_DIRECTORY)}
        try:
            for task, task_batches in tasks:
                result = stage_rows(
                    task_batches, table.store, table.arrow_schema, rules, task=task, seed=seed
                )
                staged.append(pickle.loads(pickle.dumps(result)))
            ordering = rows.schema.get_field_index(rules.sequence_by or "")
            sequence = None if ordering < 0 else rows.schema.field(ordering).type
            names = rows.schema.names
            return upsert_staged(
                table,
                staged,
                rules,
                names,
                sequence,
                micro_batch,
                environment,
                workers=workers,
            )
        finally:
            discard_staged(table.store, staged)
            paths = {file.path for file in table.store.list(STAGED_ROWS_DIRECTORY)}
            leftovers = paths - others  # of attempts that do not count; a cleanup removes them
            for path in leftovers:
                table.store.delete(path)
            assert not leftovers or getattr(workers, "repeats", 1) > 1
