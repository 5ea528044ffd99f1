"""Upserts of rows that arrive in tasks, applied by a process that receives only their results.

    each task    stage_rows       few rows stay in memory; more are written to a file in the table's
                                  directory, divided by the hash of their key into `NUM_PARTS`
    commit       upsert_staged    few rows together: one upsert of all of them. More: adjacent
                                  parts, as many at a time as fit the limits, are read, looked up
                                  in the table, decided and written; then one commit
                 discard_staged   deletes the files, whatever the outcome

    file     bundle  bundle  ...   of one portion of the task's rows, by part
             bundle  bundle  ...   of the next portion
    bundle   an Arrow stream with the rows of one part, in the types in which they arrived

No version ever names a staged file. A file left by a killed process or a lost attempt at a task is
removed by a cleanup, like every old file without a version.

The committing process holds the rows of two groups of parts: each of at most `MAX_ROWS` and
`MAX_BYTES`, or the largest part if that is larger (one part in `NUM_PARTS` of all rows, if keys are
distributed evenly). It also holds about 32 bytes per row for the decisions, and the rows that tasks
have kept in memory: at most 32 MiB of the first tasks, and 16 KiB of each of the others.
"""

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import ByteRange
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import LanceStreamError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.paths import staged_rows_path
from lance_stream.upsert.attempts import Upserted
from lance_stream.upsert.in_parts import (
    Part,
    PartedUpsert,
    decode_rows,
    divide_rows,
    encode_rows,
    upsert_in_parts,
)
from lance_stream.upsert.incoming import UpsertRules, key_rows
from lance_stream.upsert.upsert import one_batch, upsert
from lance_stream.write.fragments import delete_files
from lance_stream.write.micro_batches import MicroBatch
from lance_stream.write.phases import Phases

NUM_PARTS: Final = 256
"""Into how many parts staged rows are divided."""

MAX_ROWS: Final = 500_000
"""A group has at most so many rows, ..."""

MAX_BYTES: Final = 128 << 20
"""... and so many bytes of them."""

_GROUPS_AT_ONCE: Final = 2
"""How many groups are looked up, decided and written at once."""

_MANY_TASKS: Final = 32
"""A task cannot know how many others there are. So many of them ..."""

_KEPT_BYTES: Final = 1 << 20
"""... keep rows of up to this many bytes in memory, ..."""

_KEPT_BYTES_OF_MANY: Final = 16 << 10
"""... and the others up to this many."""

_Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StagedRows:
    """The rows of one task; picklable.

    Attributes:
        num_rows: How many.
        num_bytes: Their size as Arrow streams.
        kept: The rows, if they are few: one Arrow stream; empty otherwise.
        path: The file with the rows, if they are many; empty otherwise.
        bundles: (n, 4) i64, of each bundle in the file: its part, its number of rows, and where it
            starts and stops.
        keys: The key columns of the table as the task knew it, whose types decide the part of a
            row. By the time of the commit, the table may have wider ones.
    """

    num_rows: int = 0
    num_bytes: int = 0
    kept: bytes = b""
    path: str = ""
    bundles: _Numbers = field(default_factory=lambda: np.empty((0, 4), np.int64))
    keys: pa.Schema = field(default_factory=lambda: pa.schema([]))


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    store: Store,
    table: pa.Schema,
    rules: UpsertRules,
    *,
    task: int = 0,
) -> StagedRows:
    """Keep the rows of one task for the commit.

    Args:
        batches: The rows.
        store: The table's.
        table: The table's columns.
        rules: The user's rules for the rows.
        task: The number of the task, from 0.

    Raises:
        InvalidInputError: A named column does not exist, or a key is null, or does not fit the
            table; no file is left behind.
    """
    limit = _KEPT_BYTES if task < _MANY_TASKS else _KEPT_BYTES_OF_MANY
    first: list[pa.RecordBatch] = []
    num_bytes = 0
    rest = iter(batches)
    for batch in rest:
        if batch.num_rows:
            first.append(batch)
            num_bytes += batch.nbytes
        if num_bytes > limit:
            return _write(chain(first, rest), store, table, rules)
    if not first:
        return StagedRows()
    rows = one_batch(pa.Table.from_batches(first))
    key_rows(rows, table, rules)  # the task reports invalid keys
    kept = encode_rows(rows)
    return StagedRows(rows.num_rows, len(kept), kept, keys=_keys(table, rules))


def _write(
    batches: Iterable[pa.RecordBatch], store: Store, table: pa.Schema, rules: UpsertRules
) -> StagedRows:
    path = staged_rows_path(secrets.token_bytes(16))
    bundles: list[tuple[int, int, int, int]] = []
    place = 0
    with store.open_writer(path) as file:
        for part, rows in divide_rows(batches, table, rules, NUM_PARTS):
            data = encode_rows(rows)
            file.write(data)
            bundles.append((part, rows.num_rows, place, place + len(data)))
            place += len(data)
    num_rows = sum(each[1] for each in bundles)
    places = np.array(bundles, np.int64)
    return StagedRows(num_rows, place, path=path, bundles=places, keys=_keys(table, rules))


def _keys(table: pa.Schema, rules: UpsertRules) -> pa.Schema:
    return pa.schema([table.field(name) for name in rules.on])


def discard_staged(store: Store, staged: Iterable[StagedRows]) -> None:
    """Delete the files of staged rows; best effort."""
    for each in staged:
        if each.path:
            with suppress(OSError, LanceStreamError):
                store.delete(each.path)


def upsert_staged(
    table: TableVersion,
    staged: Sequence[StagedRows],
    rules: UpsertRules,
    columns: Sequence[str],
    sequence: pa.DataType | None,
    micro_batch: MicroBatch | None = None,
    environment: Environment = MACHINE,
    phases: Phases | None = None,
) -> Upserted:
    """Execute the upsert of all staged rows, in this process, and commit it.

    Args:
        table: Any version; the newest one is changed.
        staged: The rows of all tasks.
        rules: The user's rules for the rows.
        columns: The columns of the rows.
        sequence: The type of the column that orders rows; None if the rows have none.
        micro_batch: Which micro-batch they are, with their digest. If the table already has it,
            nothing happens.
        environment: Randomness for file names; the clock, for remembered deletes.
        phases: Receives the durations of "write", with the look-up of keys, and "commit".

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: It was not committed, or the outcome is unknown.
    """
    num_rows = sum(each.num_rows for each in staged)
    if not num_rows:
        return Upserted(table)
    if num_rows <= MAX_ROWS and sum(each.num_bytes for each in staged) <= MAX_BYTES:
        rows = pa.Table.from_batches(_all_rows(table.store, staged))
        return upsert(table, rows, rules, micro_batch, phases=phases, environment=environment)

    def run(planned: PartedUpsert) -> list[Part | LanceStreamError]:
        # The first group reads the keys that are not known yet, so the others need not.
        first, *others = _groups(planned, staged)
        done = _do_groups(planned, [first], [])
        return _do_groups(planned, others, done)

    return upsert_in_parts(table, run, rules, columns, sequence, micro_batch, phases, environment)


def _do_groups(
    planned: PartedUpsert,
    groups: Sequence[Callable[[], pa.Table]],
    done: Sequence[Part | LanceStreamError],
) -> list[Part | LanceStreamError]:
    """Return the outcome of all groups, some at once; none is begun once one has failed.

    Args:
        planned: The upsert.
        groups: What reads the rows of each.
        done: The outcome of others.
    """
    has_failed = threading.Event()
    if any(isinstance(each, LanceStreamError) for each in done):
        has_failed.set()

    def do(read: Callable[[], pa.Table]) -> Part | LanceStreamError | None:
        if has_failed.is_set():
            return None
        try:
            return planned.do_rows(read())
        except LanceStreamError as error:
            has_failed.set()
            return error
        except BaseException:
            has_failed.set()
            raise

    with ThreadPoolExecutor(_GROUPS_AT_ONCE, thread_name_prefix="lance-stream-parts") as threads:
        futures = [threads.submit(do, each) for each in groups]
    errors = [error for each in futures if (error := each.exception()) is not None]
    outcomes = [*done, *(each.result() for each in futures if each.exception() is None)]
    if errors:
        for made in outcomes:
            if isinstance(made, Part):
                delete_files(planned.table.store, made.written.fragments)
        raise errors[0]
    return [each for each in outcomes if each is not None]


def _all_rows(store: Store, staged: Iterable[StagedRows]) -> Iterator[pa.RecordBatch]:
    for each in staged:
        yield from decode_rows(each.kept) if each.kept else ()
        yield from _read(store, each, each.bundles)


def _read(store: Store, staged: StagedRows, bundles: _Numbers) -> Iterator[pa.RecordBatch]:
    if len(bundles):
        ranges = [ByteRange(start, stop) for start, stop in bundles[:, 2:].tolist()]
        for data in store.read_ranges(staged.path, ranges):
            yield from decode_rows(data)


def _groups(
    planned: PartedUpsert, staged: Sequence[StagedRows]
) -> Iterator[Callable[[], pa.Table]]:
    """Yield what reads all rows, as many at a time as fit the limits; rows of one key together."""
    store = planned.table.store
    if len({each.keys for each in staged if each.num_rows}) > 1:  # their parts are not the same
        yield lambda: pa.Table.from_batches(_all_rows(store, staged))
        return
    kept = [
        part
        for each in staged
        if each.kept
        for part in divide_rows(decode_rows(each.kept), each.keys, planned.rules, NUM_PARTS)
    ]
    sizes = np.zeros((NUM_PARTS, 2), np.int64)
    for number, rows in kept:
        sizes[number] += (rows.num_rows, rows.nbytes)
    for each in staged:
        own = each.bundles
        np.add.at(sizes, own[:, 0], np.stack([own[:, 1], own[:, 3] - own[:, 2]], axis=1))

    def read(start: int, stop: int) -> pa.Table:
        batches = [rows for number, rows in kept if start <= number < stop]
        for each in staged:
            own = each.bundles
            chosen = own[(own[:, 0] >= start) & (own[:, 0] < stop)]
            batches += _read(store, each, chosen)
        return pa.Table.from_batches(batches)

    for start, stop in _ranges_within(sizes):
        if sizes[start:stop, 0].any():
            yield partial(read, start, stop)


def _ranges_within(sizes: _Numbers) -> Iterator[tuple[int, int]]:
    """Yield ranges of adjacent parts that fit the limits, or are a single part.

    Args:
        sizes: (n, 2) rows and bytes of each part.
    """
    start, total = 0, np.zeros(2, np.int64)
    limits = np.array([MAX_ROWS, MAX_BYTES])
    for part, size in enumerate(sizes):
        if part > start and bool((total + size > limits).any()):
            yield start, part
            start, total = part, np.zeros(2, np.int64)
        total = total + size
    yield start, len(sizes)
