"""Upserts of rows that arrive in tasks and are applied by ranges of their keys.

    every task   stage_rows       keeps a few rows in memory; writes more rows to a file in the
                                  table's directory, sorted by a word of the key (`staged_files`)
    commit       upsert_staged    few rows in total: one upsert of all of them. Many rows: reads,
                                  looks up, decides and writes one range of words after the other,
                                  within the limits of rows and bytes; then one commit
                 discard_staged   deletes the files, whatever the outcome

The word of a key is the one that the key index is sorted by (`key_words.first_words`), so that a
range of keys is looked up in a range of every run. This affects only speed. Correctness needs only
that equal keys have equal words, so that they share a range.

`upsert_staged` is passed what processes the ranges: threads of this process, or tasks. A range has
about `MAX_ROWS` at most, and all ranges of a process `MAX_BYTES`, or more if one key has more. The
committing process holds about 32 bytes per row for the decisions, and the rows that tasks kept in
memory: at most 32 MiB from the first tasks, and 16 KiB from each later task.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from lance_stream.arrays import U64s
from lance_stream.arrow_streams import decode_batches, encode_batches
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import LanceStreamError
from lance_stream.keys.key_words import first_words
from lance_stream.keys.workers import THREADS, Workers
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.row_updates.staged_files import (
    ALL_WORDS,
    SortedRows,
    WordRange,
    cut_ranges,
    discard_files,
    sort_rows,
    write_sorted,
)
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.incoming import key_rows
from lance_stream.upsert.large.in_parts import Outcome, PartedUpsert, upsert_in_parts
from lance_stream.upsert.row_writer import UpsertPart, discard_parts
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.write.arrow_input import one_batch, without_views
from lance_stream.write.phases import Phases

MAX_ROWS: Final = 500_000
"""The approximate maximum number of rows in a range."""

MAX_BYTES: Final = 128 << 20
"""The approximate maximum size of the ranges that a process holds, in bytes."""

SORTED_BATCH_BYTES: Final = 32 << 20
"""The approximate size of the portions in which rows are sorted, in bytes."""

_MANY_TASKS: Final = 32
"""A task does not know the number of tasks: the first ones may keep more rows in memory."""

_MAX_INLINE_BYTES: Final = 1 << 20
"""The most bytes of rows that one of the first `_MANY_TASKS` tasks keeps in memory."""

_MAX_INLINE_BYTES_OF_MANY: Final = 16 << 10
"""The most bytes of rows that a later task keeps in memory."""


@dataclass(frozen=True)
class StagedRows:
    """The rows of one task; picklable.

    Attributes:
        num_rows: The number of rows.
        num_bytes: Their size as Arrow streams.
        encoded: The rows as one Arrow stream, if they are few; empty otherwise.
        sorted_rows: The rows, if they are many.
        keys: The key columns of the table as the task saw it. Their types determine the words; the
            table may have wider types by the time of the commit.
        seed: The seed of the words.
    """

    num_rows: int = 0
    num_bytes: int = 0
    encoded: bytes = b""
    sorted_rows: SortedRows = field(default_factory=SortedRows)
    keys: pa.Schema = field(default_factory=lambda: pa.schema([]))
    seed: int = 0


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    store: Store,
    table: pa.Schema,
    rules: UpsertRules,
    *,
    task: int = 0,
    seed: int = 0,
) -> StagedRows:
    """Stage the rows of one task for the commit.

    Args:
        batches: The rows.
        store: The table's store.
        table: The table's columns.
        rules: The user's rules for the rows.
        task: The number of the task, from 0.
        seed: The first seed of the key index's hashes; the same for all tasks of a batch.

    Raises:
        InvalidInputError: A named column does not exist, or a key is null, or does not fit the
            table; no file is left behind.
    """
    limit = _MAX_INLINE_BYTES if task < _MANY_TASKS else _MAX_INLINE_BYTES_OF_MANY
    keys = pa.schema([table.field(name) for name in rules.on if name in table.names])
    first: list[pa.RecordBatch] = []
    num_bytes = 0
    rest = map(_plain, batches)
    for batch in rest:
        if batch.num_rows:
            first.append(batch)
            num_bytes += batch.nbytes
        if num_bytes > limit:
            sorted_rows = write_sorted(_with_words(chain(first, rest), table, rules, seed), store)
            return StagedRows(
                sorted_rows.num_rows, sorted_rows.num_bytes, b"", sorted_rows, keys, seed
            )
    if not first:
        return StagedRows()
    rows = one_batch(pa.Table.from_batches(first))
    key_rows(rows, table, rules)  # report invalid keys in the task
    encoded = encode_batches(rows.schema, [rows])
    return StagedRows(rows.num_rows, len(encoded), encoded, SortedRows(), keys, seed)


def _with_words(
    batches: Iterable[pa.RecordBatch], table: pa.Schema, rules: UpsertRules, seed: int
) -> Iterator[tuple[pa.RecordBatch, U64s]]:
    """Yield the same rows in portions, and the words of their keys."""
    for batch in _joined(batches):
        keys = key_rows(batch, table, rules).columns
        yield batch, first_words(keys, seed)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without views, whose size older versions of pyarrow cannot compute."""
    plain = without_views(batch.schema)
    return batch if plain.equals(batch.schema) else batch.cast(plain)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches as large as possible."""
    waiting: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(one_batch(pa.Table.from_batches([batch])))
            num_bytes += waiting[-1].nbytes
        if num_bytes >= SORTED_BATCH_BYTES:
            yield one_batch(pa.Table.from_batches(waiting))
            waiting, num_bytes = [], 0
    if waiting:
        yield one_batch(pa.Table.from_batches(waiting))


def discard_staged(store: Store, staged: Iterable[StagedRows]) -> None:
    """Delete the files of staged rows; best effort."""
    discard_files(store, [task_rows.sorted_rows for task_rows in staged])


class RangeWorkers(Protocol):
    """Processes the ranges of an upsert: in threads of this process, or in tasks."""

    @property
    def reading(self) -> Workers:
        """The workers that read the table's files for an upsert of few rows."""
        ...

    def prepare(self, planned: PartedUpsert) -> PartedUpsert:
        """Prepare the table for looking up keys in ranges; return the upsert for the workers."""
        ...

    def max_rows(self, num_rows: int) -> int:
        """Return the maximum number of rows in a range, given the total number of rows."""
        ...

    @property
    def ranges_at_once(self) -> int:
        """The number of ranges that one process holds, which share `MAX_BYTES`."""
        ...

    def run(
        self, function: Callable[[WordRange], Outcome], ranges: Sequence[WordRange]
    ) -> Iterator[Outcome]:
        """Yield the outcomes of a picklable function for the ranges; fewer if one fails.

        If the function raises an error, the error is raised after the other outcomes were yielded.
        """
        ...


class RangeThreads:
    """Processes ranges in threads of this process."""

    reading: Workers = THREADS
    ranges_at_once: int = 2

    def prepare(self, planned: PartedUpsert) -> PartedUpsert:
        """Return the upsert unchanged: the first range reads the keys that are not indexed yet."""
        return planned

    def max_rows(self, num_rows: int) -> int:
        """Return the maximum number of rows in a range, which the memory determines."""
        return min(num_rows, MAX_ROWS)

    def run(
        self, function: Callable[[WordRange], Outcome], ranges: Sequence[WordRange]
    ) -> Iterator[Outcome]:
        """Yield the outcomes of a function for the ranges; starts no range after a failure."""
        has_failed = threading.Event()

        def do(one: WordRange) -> Outcome | None:
            if has_failed.is_set():
                return None
            try:
                outcome = function(one)
            except BaseException:
                has_failed.set()
                raise
            if isinstance(outcome, LanceStreamError):
                has_failed.set()
            return outcome

        # The first range reads the keys that are not indexed yet, so that the others need not.
        first = [do(span) for span in ranges[:1]]
        with ThreadPoolExecutor(
            self.ranges_at_once, thread_name_prefix="lance-stream-parts"
        ) as threads:
            futures = [threads.submit(do, span) for span in ranges[1:]]
        errors = [error for future in futures if (error := future.exception()) is not None]
        results = [*first, *(future.result() for future in futures if future.exception() is None)]
        yield from (outcome for outcome in results if outcome is not None)
        if errors:
            raise errors[0]


RANGE_THREADS: Final = RangeThreads()
"""The default workers."""


def upsert_staged(
    table: TableVersion,
    staged: Sequence[StagedRows],
    rules: UpsertRules,
    columns: Sequence[str],
    sequence: pa.DataType | None,
    micro_batch: PendingBatch | None = None,
    environment: Environment = MACHINE,
    phases: Phases | None = None,
    workers: RangeWorkers = RANGE_THREADS,
    *,
    is_current: bool = False,
) -> UpsertResult:
    """Execute the upsert of all staged rows, and commit it.

    Args:
        table: Any version; the newest one is changed.
        staged: The rows of all tasks.
        rules: The user's rules for the rows.
        columns: The columns of the rows.
        sequence: The type of the column that orders rows; None if the rows have no order.
        micro_batch: The micro-batch of the rows, with their digest. If the table already contains
            it, nothing is done.
        environment: Randomness for file names; the clock, for remembered deletes.
        phases: Receives the durations of "write", including the lookup of keys, and "commit".
        workers: Process the ranges.
        is_current: Whether the version was opened for this upsert; see `attempts.upsert_by`.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: The commit failed, or its outcome is unknown.
    """
    num_rows = sum(task_rows.num_rows for task_rows in staged)
    if not num_rows:
        return UpsertResult(table)
    if num_rows <= MAX_ROWS and sum(task_rows.num_bytes for task_rows in staged) <= MAX_BYTES:
        rows = pa.Table.from_batches(_all_rows(table.store, staged))
        return upsert(
            table,
            rows,
            rules,
            micro_batch,
            is_current=is_current,
            workers=workers.reading,
            phases=phases,
            environment=environment,
        )
    sorted_rows = _by_words(staged, rules)
    # Equal keys of different types have different words.
    can_be_cut = len({task_rows.keys for task_rows in staged if task_rows.num_rows}) == 1

    def run(planned: PartedUpsert) -> list[Outcome]:
        planned = workers.prepare(planned)
        max_rows = workers.max_rows(num_rows)
        max_bytes = MAX_BYTES // workers.ranges_at_once
        ranges = cut_ranges(sorted_rows, max_rows, max_bytes) if can_be_cut else [ALL_WORDS]
        results: list[Outcome] = []
        try:
            results.extend(workers.run(partial(_do_range, planned, sorted_rows), ranges))
            parts = [outcome for outcome in results if isinstance(outcome, UpsertPart)]
            if len(parts) == len(results):
                results.extend(workers.run(*_staged_parts(planned, parts, max_rows, max_bytes)))
        except BaseException:
            discard_parts(
                table.store, [outcome for outcome in results if isinstance(outcome, UpsertPart)]
            )
            raise
        finally:
            discard_files(
                table.store,
                [outcome.changes for outcome in results if isinstance(outcome, UpsertPart)],
            )
        return results

    return upsert_in_parts(
        table,
        run,
        rules,
        columns,
        sequence,
        micro_batch,
        phases,
        environment,
        is_current=is_current,
    )


def _staged_parts(
    planned: PartedUpsert, parts: Sequence[UpsertPart], max_rows: int, max_bytes: int
) -> tuple[Callable[[WordRange], Outcome], list[WordRange]]:
    """Return the function that writes the staged changes of parts, and the ranges of fragments."""
    changes = [part.changes for part in parts]
    lacking = next((part.partial for part in parts), {})
    ranges = cut_ranges(changes, max_rows, max_bytes, multiple=1 << 32)
    return partial(_do_changes, planned, changes, lacking), ranges


def _all_rows(store: Store, staged: Iterable[StagedRows]) -> Iterator[pa.RecordBatch]:
    for task_rows in staged:
        yield from decode_batches(task_rows.encoded) if task_rows.encoded else ()
        yield from task_rows.sorted_rows.read(store)


def _by_words(staged: Sequence[StagedRows], rules: UpsertRules) -> list[SortedRows]:
    """Return all rows, sorted by the words of their keys."""
    result: list[SortedRows] = []
    for task_rows in staged:
        if task_rows.encoded:
            batches = _with_words(
                decode_batches(task_rows.encoded), task_rows.keys, rules, task_rows.seed
            )
            result.append(sort_rows(batches))
        result.append(task_rows.sorted_rows)
    return result


def _do_range(
    planned: PartedUpsert, sorted_rows: Sequence[SortedRows], word_range: WordRange
) -> Outcome:
    """Look up, decide and write the rows of a range of keys."""
    try:
        return planned.do_rows(_read_range(planned.table.store, sorted_rows, word_range))
    except LanceStreamError as error:
        return error


def _read_range(store: Store, sorted_rows: Sequence[SortedRows], word_range: WordRange) -> pa.Table:
    return pa.Table.from_batches(
        batch for rows_of_task in sorted_rows for batch in rows_of_task.read(store, word_range)
    )


def _do_changes(
    planned: PartedUpsert,
    sorted_rows: Sequence[SortedRows],
    lacking: Mapping[str, pa.DataType],
    word_range: WordRange,
) -> Outcome:
    """Write the changed rows of a range of fragments."""
    store = planned.table.store
    try:
        batches = [
            batch_and_words
            for one in sorted_rows
            for batch_and_words in one.read_with_words(store, word_range)
        ]
        rows = pa.Table.from_batches([batch for batch, _ in batches])
        return planned.do_changes(rows, np.concatenate([words for _, words in batches]), lacking)
    except LanceStreamError as error:
        return error
