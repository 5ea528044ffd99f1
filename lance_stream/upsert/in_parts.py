"""Upserts in parts, each with all rows of its keys, for batches too large for one process.

    rows of the batch     split_rows    ┐  bundles (number of the part, rows as Arrow bytes),
    keys of the table     split_keys    ┘  grouped by the number
                                           │
    a part                do_part          the same functions as a single-process upsert
    all parts             plan_update      one operation, one commit

The part of a row is the hash of its key, after the same cast to the table's types as everywhere. So
equal keys meet, whatever types they arrive in: 1.50 as decimal(10, 2) and 1.500 as decimal(10, 3),
a text with and without a dictionary, an instant in two time zones. A key that the cast rejects is
rejected here. Rows travel in their original types, as Arrow's own bytes: what transports the
bundles neither sees nor changes a value.

What transports the bundles and runs the parts (Spark, in `spark.sink.large_upserts`) is passed to
`upsert_in_parts`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lance_stream.byte_ranges import Buffer
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import LanceStreamError
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments import Fragment
from lance_stream.upsert.attempts import Attempts, Upserted
from lance_stream.upsert.decisions import decide_changes
from lance_stream.upsert.incoming import (
    Incoming,
    UpsertRules,
    key_rows,
    prepare,
)
from lance_stream.upsert.keys import NOT_FOUND, hash_keys
from lance_stream.upsert.matching import Found, Matches, join_matches
from lance_stream.upsert.planned_update import plan_update
from lance_stream.upsert.tombstones import RememberedDeletes, remembered_by
from lance_stream.upsert.upsert import one_batch
from lance_stream.upsert.written_rows import Written, write_rows, written_order
from lance_stream.write.fragments import delete_files, write_target
from lance_stream.write.micro_batches import MicroBatch
from lance_stream.write.phases import Phases
from lance_stream.write.row_digests import NO_ROWS, RowsDigest, add_up, digest_of

BUNDLE_BYTES: Final = 32 << 20
"""About how many bytes of rows are buffered before they are split, for few, large bundles."""


class Bundle(NamedTuple):
    """Some rows of one part.

    Attributes:
        part: The number of the part.
        is_stored: Whether they are keys of the table; otherwise rows of the batch.
        data: One Arrow IPC stream.
    """

    part: int
    is_stored: bool
    data: bytes


@dataclass(frozen=True)
class Part:
    """The outcome of one part; picklable.

    Attributes:
        written: What was decided and written.
        num_rows: How many rows of the batch it had.
        num_late: How many of them were late.
        digest: The digest of its rows of the batch, as received.
    """

    written: Written
    num_rows: int
    num_late: int
    digest: RowsDigest = NO_ROWS


@dataclass(frozen=True)
class PartedUpsert:
    """An upsert planned on one version, to be executed in parts; picklable.

    Attributes:
        table: The version.
        rules: The user's rules for the rows.
        remembered: The remembered deletes of the version that apply.
        helpers: Columns of the batch that are not part of the digest of its rows.
        num_parts: How many parts there are.
    """

    table: TableVersion
    rules: UpsertRules
    remembered: RememberedDeletes | None = None
    helpers: tuple[str, ...] = ()
    num_parts: int = 1

    def split_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Bundle]:
        """Yield rows of the batch by their parts.

        Raises:
            InvalidInputError: A named column does not exist, or a key is null, or does not fit the
                table.
        """
        schema = self.table.arrow_schema
        for number, rows in divide_rows(batches, schema, self.rules, self.num_parts):
            yield Bundle(number, is_stored=False, data=encode_rows(rows))

    def key_units(self) -> list[WorkUnit]:
        """Return the work units that read the table: keys, the stored sequence, addresses."""
        sequence = self._stored_sequence
        columns = (*self.rules.on, *([] if sequence is None else [sequence]))
        return [
            unit_of(self.table, place, columns=columns, system_columns=(ROW_ADDRESS,))
            for place in range(len(self.table.manifest.fragments))
        ]

    def split_keys(self, unit: WorkUnit) -> Iterator[Bundle]:
        """Yield the keys of a fragment by their parts; without nulls, which match nothing."""
        on = list(self.rules.on)
        for batch in _joined(read_unit(unit)):
            rows = batch
            for name in on:
                if rows.column(name).null_count:
                    rows = rows.filter(rows.column(name).is_valid())
            for number, part in _divide(rows, rows.select(on).columns, self.num_parts):
                yield Bundle(number, is_stored=True, data=encode_rows(part))

    def do_part(self, bundles: Iterable[Bundle]) -> Part | None:
        """Decide what to do with the rows of a part, and write them.

        Args:
            bundles: All bundles of one part, in any order.

        Returns:
            None if none of them are rows of the batch.

        Raises:
            InvalidInputError: The rows do not fit the rules or the table; no file is left behind.
        """
        rows: list[pa.RecordBatch] = []
        stored: list[pa.RecordBatch] = []
        for bundle in bundles:
            (stored if bundle.is_stored else rows).extend(decode_rows(bundle.data))
        if not rows:
            return None
        batch = one_batch(pa.Table.from_batches(rows))
        part = self._apply(batch, lambda incoming: self._matches(incoming, stored))
        digest = digest_of(
            batch.select([each for each in batch.schema.names if each not in self.helpers])
        )
        return replace(part, digest=digest)

    def do_rows(self, rows: pa.Table) -> Part:
        """Do the same as `do_part`, in a process that looks up the keys of the table itself.

        Args:
            rows: All rows of the batch that have one of their keys. Their digest is not computed.

        Raises:
            InvalidInputError: The rows do not fit the rules or the table; no file is left behind.
        """
        found = Found()
        return self._apply(one_batch(rows), partial(found.look_up, self.table), found)

    def _apply(
        self,
        batch: pa.RecordBatch,
        find: Callable[[Incoming], Matches],
        found: Found | None = None,
    ) -> Part:
        incoming = prepare(batch, self.table.arrow_schema, self.rules)
        matches = find(incoming)
        decision, num_unchanged = decide_changes(self.table, incoming, matches, self.remembered)
        written = write_rows(
            self.table,
            incoming,
            decision,
            write_target(self.table),
            num_unchanged,
            self.remembered,
            may_stay=False,  # other parts change rows of the same fragments
        )
        if found is not None:
            rows = incoming.rows.select(list(incoming.scanned_columns))
            rows = rows.take(written_order(decision, written))
            found.remember(self.table, incoming.rules, written.fragments, rows)
        return Part(written, incoming.num_rows, incoming.num_late + decision.num_late)

    def _matches(self, incoming: Incoming, stored: Sequence[pa.RecordBatch]) -> Matches:
        found: list[Matches] = []
        name = self._stored_sequence
        for batch in stored:
            numbers = incoming.lookup.find(batch.select(list(self.rules.on)).columns)
            hit = np.flatnonzero(numbers != NOT_FOUND)
            addresses = batch.column(ROW_ADDRESS).to_numpy()[hit]
            sequence = None if name is None else batch.column(name).take(pa.array(hit))
            found.append(Matches(addresses, numbers[hit], sequence))
        return join_matches(found)

    @property
    def _stored_sequence(self) -> str | None:
        """The table's sequence column, unless it is part of the key."""
        name = self.rules.sequence_by
        if name is None or name in self.rules.except_columns or name in self.rules.on:
            return None
        return name if name in self.table.arrow_schema.names else None


Run: TypeAlias = Callable[[PartedUpsert], Sequence[Part | LanceStreamError]]
"""Executes the parts of an upsert, as many as it chooses (it replaces `num_parts`). Returns the
outcomes of parts that have rows of the batch; for a part that failed, the error."""


def divide_rows(
    batches: Iterable[pa.RecordBatch], table: pa.Schema, rules: UpsertRules, num_parts: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows of a batch by the parts of their keys, each with the number of the part.

    Args:
        batches: The rows; about `BUNDLE_BYTES` of them are divided at a time.
        table: The table's columns.
        rules: The user's rules for the rows.
        num_parts: How many parts there are.

    Raises:
        InvalidInputError: A named column does not exist, or a key is null, or does not fit the
            table.
    """
    for batch in _joined(batches):
        yield from _divide(batch, key_rows(batch, table, rules).columns, num_parts)


def _divide(
    rows: pa.RecordBatch, keys: Sequence[pa.Array], num_parts: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    parts = (hash_keys(keys) % np.uint64(num_parts)).astype(np.int64)
    order = np.argsort(parts, kind="stable")
    numbers, firsts = np.unique(parts[order], return_index=True)
    sorted_rows = rows.take(pa.array(order))
    stops = [*firsts[1:].tolist(), len(parts)]
    for number, start, stop in zip(numbers.tolist(), firsts.tolist(), stops, strict=False):
        yield number, sorted_rows.slice(start, stop - start)


def upsert_in_parts(
    table: TableVersion,
    run: Run,
    rules: UpsertRules,
    columns: Sequence[str],
    sequence: pa.DataType | None,
    micro_batch: MicroBatch | None = None,
    phases: Phases | None = None,
    environment: Environment = MACHINE,
    *,
    helpers: Sequence[str] = (),
    digest: Callable[[], RowsDigest] | None = None,
    identity: Callable[[MicroBatch], MicroBatch] | None = None,
) -> Upserted:
    """Execute in parts what `upsert.upsert` does in one process.

    Args:
        table: Any version; the newest one is changed.
        run: Executes the parts; called again each time the upsert is planned.
        rules: The user's rules for the rows.
        columns: The columns of the batch.
        sequence: The type of the column that orders rows; None if the batch has none.
        micro_batch: Which micro-batch they are. If the table already has it, nothing happens.
        phases: Receives the durations of "write", which is all the parts' work, and "commit".
        environment: Randomness for file names; the clock, for remembered deletes.
        helpers: Columns of the batch that are not part of the digest of its rows.
        digest: Computes that digest if it is unknown and the table already has the batch id.
        identity: Completes the micro-batch after each run, if `run` left out some of its rows.

    Raises:
        InvalidInputError: The rows do not fit the rules or the table; nothing is changed.
        CommitError: It was not committed, or the outcome is unknown.
    """
    attempts = Attempts(table, micro_batch, phases or Phases(), environment, digest)

    def attempt() -> Upserted:
        if (known := attempts.begin()) is not None:
            return known
        newest = attempts.newest
        with attempts.phases("write"):
            remembered = _remembered(sequence, newest, rules, environment)
            parts = _done(newest, run(PartedUpsert(newest, rules, remembered, tuple(helpers))))
            digest_of_parts = add_up(each.digest for each in parts)
            if identity is not None and attempts.micro_batch is not None:
                digested = replace(attempts.micro_batch, digest=digest_of_parts)
                attempts.micro_batch = identity(digested)
            elif attempts.micro_batch is not None and attempts.micro_batch.digest is None:
                attempts.know_digest(digest_of_parts)
            fragments = tuple(each for part in parts for each in part.written.fragments)
            try:
                stored = [name for name in columns if name not in rules.except_columns]
                written = [each.written for each in parts]
                plan = plan_update(newest, written, rules, stored, remembered, environment)
            except LanceStreamError:
                delete_files(newest.store, fragments)
                raise
        return attempts.commit(plan, _summed(newest, parts, fragments), fragments)

    return attempts.until_committed(attempt)


def _done(table: TableVersion, outcomes: Sequence[Part | LanceStreamError]) -> list[Part]:
    """Return the parts; if one failed, raise its error and delete the files of all."""
    parts = [each for each in outcomes if isinstance(each, Part)]
    for outcome in outcomes:
        if not isinstance(outcome, Part):
            for part in parts:
                delete_files(table.store, part.written.fragments)
            raise outcome
    return parts


def _summed(
    table: TableVersion, parts: Sequence[Part], fragments: tuple[Fragment, ...]
) -> Upserted:
    decisions = [each.written.decision for each in parts]
    return Upserted(
        table,
        num_rows=sum(each.num_rows for each in parts),
        num_inserted=sum(len(each.inserted_rows) for each in decisions),
        num_updated=sum(len(each.changed) for each in decisions),
        num_deleted=sum(len(each.deleted) for each in decisions),
        num_unchanged=sum(each.written.num_unchanged for each in parts),
        num_late=sum(each.num_late for each in parts),
        num_remembered=sum(
            each.written.deletes.rows.num_rows for each in parts if each.written.deletes is not None
        ),
        fragments=fragments,
    )


def _remembered(
    sequence: pa.DataType | None, table: TableVersion, rules: UpsertRules, environment: Environment
) -> RememberedDeletes | None:
    """Return the table's remembered deletes that apply to the rows; reads no file."""
    name = rules.sequence_by
    if name is None or sequence is None:
        return None
    is_stored = name not in rules.except_columns and name in table.arrow_schema.names
    kept = table.arrow_schema.field(name).type if is_stored else sequence
    return remembered_by(table, rules, kept, environment)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches as large as possible."""
    held: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        if batch.num_rows:
            # Without views, whose bytes older releases of Arrow cannot count.
            held.append(one_batch(pa.Table.from_batches([batch])))
            num_bytes += held[-1].nbytes
        if num_bytes >= BUNDLE_BYTES:
            yield one_batch(pa.Table.from_batches(held))
            held, num_bytes = [], 0
    if held:
        yield one_batch(pa.Table.from_batches(held))


def encode_rows(rows: pa.RecordBatch) -> bytes:
    """Return rows as one Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_rows(data: bytes | Buffer) -> list[pa.RecordBatch]:
    """Return the rows of an Arrow stream."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)
