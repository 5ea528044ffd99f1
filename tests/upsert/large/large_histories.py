"""Random histories of large upserts: staged, by ranges, with attempts that die; beside small ones.

    python -m tests.upsert.large.large_histories --minutes 10 [--seed 1]

Two tables have the same past. Each batch goes into one of them as a large one: tasks stage its
rows, and ranges of them are processed by tasks that remember nothing, or by threads; attempts at
tasks die at any call to the store, and so does the driver, which then applies the batch again.
Into the other table it goes as a small batch. In between, others write to both: pylance and we,
before the batch, between staging and planning, and between planning and commit. Equal must be:

    the rows of both, as we and as pylance read them; and a dictionary's
    the counts, and whether a batch is refused
    snapshot(a) + feed(a, b) = snapshot(b); row ids and both row versions of each row
    after a cleanup, the files of the table and those that its versions name
"""

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import CommitError, InvalidInputError
from lance_stream.keys.index.shared_index import shared_index
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.row_updates import in_place_costs, staged_files
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.local_store import LocalFileWriter, LocalStore
from lance_stream.table.named_files import nameable, names_of
from lance_stream.table.paths import STAGED_ROWS_DIRECTORY
from lance_stream.upsert import attempts
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.change_rules import ChangeRules, history_schema
from lance_stream.upsert.incoming import IGNORE, INSERT, UPDATE, UpsertRules
from lance_stream.upsert.large import staged_rows
from lance_stream.upsert.large.staged_rows import RANGE_THREADS, discard_staged, upsert_staged
from lance_stream.upsert.upsert import upsert
from tests import seeded_runs as histories
from tests.keys.index.small_runs import restart
from tests.keys.keyed_tables import use_small_runs
from tests.upsert.large.running_parts import RangeProcesses

NUM_KEYS = 60
FIRST_DAY = datetime(1969, 12, 1)

Key = tuple[Any, ...]
Values = dict[str, Any]

KEYS: Mapping[str, tuple[Sequence[pa.DataType], Callable[[int], Key]]] = {
    "number": ((pa.int64(),), lambda n: ((n - 30) * 2**40,)),
    "small number": ((pa.int32(),), lambda n: (n - 30,)),
    "text": ((pa.string(),), lambda n: ("" if n == 0 else f"é{n % 7}-{n}",)),
    "decimal": ((pa.decimal128(12, 2),), lambda n: (Decimal((n - 30) * 25).scaleb(-2),)),
    "instant": ((pa.timestamp("us"),), lambda n: (FIRST_DAY + timedelta(days=n, microseconds=n),)),
    "bytes": ((pa.binary(),), lambda n: (n.to_bytes(2 + n % 3, "little"),)),
    "two": ((pa.string(), pa.int64()), lambda n: ("abc"[n % 3], n // 3)),
    "three": ((pa.int64(), pa.date32(), pa.string()), lambda n: (n % 2, FIRST_DAY.date(), str(n))),
}
"""The types of a key's columns, and the n-th key."""

INNER = pa.struct([("x", pa.int64()), ("y", pa.string())])
PART = pa.struct([("y", pa.string())])
COLUMNS: dict[str, pa.DataType] = {
    "seq": pa.int64(),
    "a": pa.int64(),
    "b": pa.string(),
    "s": INNER,
    "l": pa.list_(pa.int64()),
    "w": pa.string(),
}
BLOB = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SMALL_STORED = "target.a < 4"
"""A condition on the stored row, which no batch has to have a column for."""

STAMPS = ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")


# --- processes that die


class DiedError(BaseException):
    """A process has died at a call to its store; what it does after that does not count."""


_CALLS = ("read_ranges", "read", "read_end", "list", "create_once", "open_writer", "write")


@contextlib.contextmanager
def dying(at: int, *, done: bool) -> Iterator[None]:
    """Let this process die at the n-th call to the store, which is done or not; or later."""
    remaining = [at]

    def dies(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            remaining[0] -= 1
            if remaining[0] < 0 or (remaining[0] == 0 and not done):
                remaining[0] = 0
                raise DiedError
            answer = inner(*arguments, **named)
            if remaining[0] <= 0:
                raise DiedError
            return answer

        return call

    with contextlib.ExitStack() as stack:
        for kind, names in ((LocalStore, (*_CALLS, "delete")), (LocalFileWriter, ("close",))):
            for name in names:
                original = dies(getattr(kind, name))
                stack.enter_context(mock.patch.object(kind, name, original))
        yield


@dataclass
class DyingTasks(RangeProcesses):
    """Processes ranges like Spark's tasks, of which attempts die, are late, or happen twice."""

    dice: random.Random
    num_died: int = 0
    repeats: int = 1

    def _call(self, function: Callable[..., object], item: object) -> object:
        while self.dice.random() < 0.2:
            with contextlib.suppress(DiedError):
                with dying(self.dice.randrange(1, 12), done=self.dice.random() < 0.5):
                    super()._call(function, item)
                continue
            self.num_died += 1
        self.repeats = 1 + (self.dice.random() < 0.2)
        return super()._call(function, item)


# --- the model


class RefusedError(Exception):
    """A batch has to be refused."""


@dataclass
class Model:
    """Rows of a table by key: what upserts, changes of a feed, and events make of them.

    Attributes:
        mode: "upsert", "changes", "scd1" or "scd2".
        has_sequence: Whether an upsert's rows have an order.
        remembers: Whether deletes are remembered.
        untracked: Columns of which a history keeps the last value.
        when_matched: Which rows update the stored row of their key; as in `UpsertRules`.
        when_not_matched: Which rows are inserted; likewise.
        rows: By key; by key and start in a history.
        nulls: Rows with a null in their key.
        deleted: The sequence of the last remembered delete of a key.
        events: A history's events by key and sequence.
        is_sure: Whether others have not written what a log of events does not tell.
    """

    mode: str
    has_sequence: bool
    remembers: bool
    untracked: tuple[str, ...] = ()
    when_matched: str = UPDATE
    when_not_matched: str = INSERT
    rows: dict[Key, Values] = field(default_factory=dict)
    nulls: list[Values] = field(default_factory=list)
    deleted: dict[Key, int] = field(default_factory=dict)
    events: dict[tuple[Key, int], Values | None] = field(default_factory=dict)
    is_sure: bool = True

    def copy(self) -> "Model":
        return replace(
            self,
            rows=dict(self.rows),
            nulls=list(self.nulls),
            deleted=dict(self.deleted),
            events=dict(self.events),
        )

    def apply(self, batch: Sequence[tuple[Key, Values]], columns: Sequence[str]) -> None:
        """Apply a batch; a row is its key and all other columns.

        Raises:
            RefusedError: It has to be refused.
        """
        for key, row in batch:
            if None in key or (self.has_sequence and row["seq"] is None):
                raise RefusedError
        if self.mode == "scd2":
            self._arrange(batch)
            return
        by_key: dict[Key, list[Values]] = {}
        for key, row in batch:
            by_key.setdefault(key, []).append(row)
        winners = {key: self._winner(rows) for key, rows in by_key.items()}
        for key, row in winners.items():
            self._take(key, row, columns)

    def _winner(self, rows: list[Values]) -> Values:
        if self.mode == "changes":
            return max(rows, key=lambda row: (row["_commit_version"], not deletes(row)))
        if not self.has_sequence:
            if len(rows) > 1:
                raise RefusedError
            return rows[0]
        newest = max(row["seq"] for row in rows)
        best = [row for row in rows if row["seq"] == newest]
        if self.mode == "scd1":
            best.sort(key=deletes, reverse=True)
            best = best[:1] if deletes(best[0]) else best
        if any(row != best[0] for row in best):
            raise RefusedError
        return best[0]

    def _take(self, key: Key, row: Values, columns: Sequence[str]) -> None:
        stored = self.rows.get(key)
        if self.has_sequence:
            if stored is not None and stored["seq"] is not None and row["seq"] < stored["seq"]:
                return
            if key in self.deleted and self.deleted[key] >= row["seq"]:
                return
        if deletes(row):
            self.rows.pop(key, None)
            if self.remembers:
                self.deleted[key] = row["seq"]
            return
        if self._is_ignored(stored):
            return
        merged = dict(stored or {})
        for name in columns:
            before = merged.get(name)
            value = row[name]
            if isinstance(value, dict) and "x" not in value:
                value = {"x": None if before is None else before["x"], **value}
            merged[name] = value
        self.rows[key] = merged

    def _is_ignored(self, stored: Values | None) -> bool:
        """Return whether a row that does not delete is left out."""
        if stored is None:
            return self.when_not_matched == IGNORE
        if self.when_matched == SMALL_STORED:
            return stored.get("a") is None or stored["a"] >= 4
        return self.when_matched == IGNORE

    def _arrange(self, batch: Sequence[tuple[Key, Values]]) -> None:
        heads: dict[tuple[Key, int], Values] = {}
        for key, row in sorted(batch, key=lambda each: not deletes(each[1])):
            head = heads.setdefault((key, row["seq"]), row)
            if not deletes(head) and head != row:
                raise RefusedError
        for place, row in heads.items():
            if self.events.get(place, row) is None:
                continue  # a delete of that sequence is known
            self.events[place] = None if deletes(row) else stored_of(row)
        keys = {key for key, _ in heads}
        self.rows = {place: row for place, row in self.rows.items() if place[:-1] not in keys}
        by_key: dict[Key, list[tuple[int, Values | None]]] = {}
        for (key, seq), values in self.events.items():
            if key in keys:
                by_key.setdefault(key, []).append((seq, values))
        for key, events in by_key.items():
            self._add_rows(key, sorted(events, key=lambda each: each[0]))

    def _add_rows(self, key: Key, events: list[tuple[int, Values | None]]) -> None:
        current: Values | None = None
        for seq, values in events:
            if current is not None and values is not None and self._same(current, values):
                current.update(values)
                continue
            if current is not None:
                current["__END_AT"] = seq
            if values is None:
                current = None
                continue
            current = {**values, "__START_AT": seq, "__END_AT": None}
            self.rows[(*key, seq)] = current

    def _same(self, row: Values, values: Values) -> bool:
        names = {*row, *values} - {"__START_AT", "__END_AT", *self.untracked}
        return all(row.get(name) == values.get(name) for name in names)


def deletes(row: Values) -> bool:
    """Return whether a row of a batch deletes."""
    kind = row.get("_change_type")
    return row.get("op") == "d" if kind is None else kind in ("delete", "update_preimage")


def stored_of(row: Values) -> Values:
    """Return the values of an event that a history stores."""
    return {name: value for name, value in row.items() if name not in ("op", "seq")}


def plain(value: Any) -> Any:
    """Return a value that can be sorted and counted."""
    return repr(value)


# --- a history


class History:
    """Two tables with the same past, and their model.

    Args:
        folder: Where they are made.
        seed: Of the dice.
    """

    def __init__(self, folder: str, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        self.notes = [f"seed {seed}"]
        self.counts: Counter[str] = Counter()
        self.stack = contextlib.ExitStack()
        self._use_small_limits()
        kind = dice.choice(list(KEYS))
        self.key_types, self.key_of = list(KEYS[kind][0]), KEYS[kind][1]
        self.on = tuple(f"k{place}" for place in range(len(self.key_types)))
        self.mode = dice.choice(["upsert", "upsert", "upsert", "changes", "scd1", "scd2"])
        has_sequence = self.mode in ("scd1", "scd2") or (
            self.mode == "upsert" and dice.random() < 0.7
        )
        self.can_delete = self.mode != "upsert" or dice.random() < 0.7
        remembers = self.mode == "scd1" or (
            self.mode == "upsert" and has_sequence and self.can_delete and dice.random() < 0.6
        )
        untracked = ("a",) if self.mode == "scd2" and dice.random() < 0.5 else ()
        self.model = Model(self.mode, has_sequence, remembers, untracked)
        if self.mode == "upsert":
            self.model.when_matched = dice.choice([UPDATE, UPDATE, IGNORE, SMALL_STORED])
            self.model.when_not_matched = dice.choice([INSERT, INSERT, IGNORE])
        self.skips = self.mode in ("upsert", "changes") and dice.random() < 0.4
        self.is_stable = dice.random() < 0.8
        self.file_version = dice.choice(["2.0", "2.1", "2.2"])
        self.columns = dict(COLUMNS)
        self.has_blob = self.mode != "scd2" and self.file_version != "2.2" and dice.random() < 0.3
        if self.mode == "scd2":
            del self.columns["seq"]
        if self.file_version == "2.0":
            del self.columns["s"]  # such files have no null structs
        self.num_columns = self.num_batches = 0
        self.branch: str | None = None
        self.notes.append(f"{kind=} {self.mode=} {has_sequence=} {remembers=} {untracked=}")
        self.notes.append(f"{self.skips=} {self.is_stable=} {self.file_version} {self.has_blob=}")
        self.rules = self._rules()
        self.tables: dict[str, TableVersion] = {}
        self.snapshots: list[tuple[dict[str, int], Model, dict[str, pa.DataType]]] = []
        self._create(folder)
        self._check()

    def _use_small_limits(self) -> None:
        def patch(where: Any, name: str, value: Any) -> None:
            self.stack.enter_context(mock.patch.object(where, name, value))

        use_small_runs(patch)
        patch(staged_files, "LEAST_ROWS", self.dice.choice([1, 3]))
        patch(staged_files, "BUNDLES_PER_BATCH", self.dice.choice([3, 128]))
        patch(staged_rows, "SORTED_BATCH_BYTES", self.dice.choice([1, 2000, 1 << 20]))
        patch(staged_rows, "MAX_BYTES", self.dice.choice([1000, 100_000]))
        patch(staged_rows, "_MAX_INLINE_BYTES", self.dice.choice([0, 0, 3000]))
        if self.dice.random() < 0.5:  # rows stay in place whatever that costs
            of_fragment = in_place_costs.FragmentCosts
            patch(of_fragment, "is_cheaper_in_place", property(lambda _: True))
        restart()

    def _rules(self) -> UpsertRules:
        model, on = self.model, self.on
        if self.mode == "changes":
            feed_columns = ("_change_type", "_commit_version")
            return UpsertRules(
                on, except_columns=feed_columns, skip_unchanged=self.skips, applies_changes=True
            )
        if self.mode in ("scd1", "scd2"):
            return ChangeRules(
                self.mode == "scd2",
                on,
                ("seq",),
                "op = 'd'",
                except_column_list=("op", "seq") if self.mode == "scd2" else ("op",),
                track_history_except_column_list=model.untracked,
            ).upsert_rules()
        return UpsertRules(
            on,
            "seq" if model.has_sequence else None,
            "op = 'd'" if self.can_delete else None,
            ("op",),
            skip_unchanged=self.skips,
            tombstones=timedelta(days=9) if model.remembers else None,
            when_matched=model.when_matched,
            when_not_matched=model.when_not_matched,
        )

    @property
    def schema(self) -> pa.Schema:
        keys = zip(self.on, self.key_types, strict=True)
        fields = [pa.field(*each) for each in (*keys, *self.columns.items())]
        return pa.schema([*fields, BLOB] if self.has_blob else fields)

    @property
    def names(self) -> list[str]:
        return [*self.columns, *(["blob"] if self.has_blob else [])]

    def _create(self, folder: str) -> None:
        dice, schema = self.dice, self.schema
        if self.mode == "scd2":
            schema = history_schema(schema, pa.int64())
        rows = [] if self.mode == "scd2" else self._new_rows(dice.randrange(40))
        for key, values in rows:
            self.model.rows[key] = values
        data = self._table(rows, self.names) if rows else None
        by_pylance = data is not None and dice.random() < 0.6
        self.notes.append(f"{len(rows)} rows, {by_pylance=}")
        for way in ("large", "small"):
            uri = str(Path(folder) / way)
            if by_pylance:
                lance.write_dataset(
                    data,
                    uri,
                    max_rows_per_file=7,
                    enable_stable_row_ids=self.is_stable,
                    data_storage_version=self.file_version,
                )
                ds = lance_stream.open_dataset(uri)
            else:
                ds = lance_stream.create_dataset(
                    uri, schema, self.file_version, stable_row_ids=self.is_stable
                )
                for start in range(0, len(rows), 9):
                    ds = ds.append(data.slice(start, 9).cast(schema))
            self.tables[way] = ds.table

    # --- rows

    def _new_rows(self, most: int) -> list[tuple[Key, Values]]:
        """Return rows with keys that the table does not have."""
        free = [key for key in map(self.key_of, range(NUM_KEYS)) if key not in self.model.rows]
        keys = self.dice.sample(free, min(most, len(free)))
        return [(key, self._values(self.names)) for key in keys]

    def _values(self, names: Sequence[str], *, has_part: bool = False) -> Values:
        dice = self.dice
        values: Values = {}
        for name in names:
            if name == "seq":
                values[name] = dice.randrange(40)
            elif dice.random() < 0.15:
                values[name] = None
            elif name == "b":
                values[name] = dice.choice(["", "x", "ü"])
            elif name == "s":
                values[name] = {"x": dice.randrange(3), "y": dice.choice([None, "y"])}
                if has_part:
                    del values[name]["x"]
            elif name == "l":
                values[name] = [dice.choice([None, 1, 2]) for _ in range(dice.randrange(3))]
            elif name == "w":
                values[name] = dice.choice("uvw") * 400
            elif name == "blob":
                values[name] = bytes([dice.randrange(9)]) * dice.choice([0, 5, 3000])
            else:
                values[name] = dice.randrange(9)
        return values

    def _table(
        self, rows: Sequence[tuple[Key, Values]], names: Sequence[str], *, has_part: bool = False
    ) -> pa.Table:
        schema = self.schema
        kinds = {each.name: each.type for each in schema}
        kinds |= {"op": pa.string(), "_change_type": pa.string(), "_commit_version": pa.int64()}
        kinds["seq"] = pa.int64()
        if has_part:
            kinds["s"] = PART
        columns = [
            pa.array([key[place] for key, _ in rows], kind)
            for place, kind in enumerate(self.key_types)
        ]
        columns += [pa.array([row[name] for _, row in rows], kinds[name]) for name in names]
        known = {each.name: each for each in schema}
        fields = [
            known[name] if name == "blob" else pa.field(name, column.type)
            for name, column in zip([*self.on, *names], columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _batch(self) -> tuple[list[tuple[Key, Values]], list[str], pa.Table]:
        """Return a random batch: its rows, which of the table's columns it has, and its table."""
        dice, mode = self.dice, self.mode
        is_faulty = dice.random() < 0.1
        names = [name for name in self.names if dice.random() < 0.6 or mode == "scd2"]
        if self.model.has_sequence and mode != "scd2" and "seq" not in names:
            names.append("seq")
        if not names:
            names = ["a"]
        has_part = "s" in names and mode != "scd2" and dice.random() < 0.3
        extra = ["_change_type", "_commit_version"] if mode == "changes" else ["op"]
        if mode == "scd2":
            extra.append("seq")
        rows: list[tuple[Key, Values]] = []
        seen: set[Any] = set()
        for _ in range(dice.choice([1, 4, 15, 50])):
            key = self.key_of(dice.randrange(NUM_KEYS))
            row = self._values(names, has_part=has_part)
            if mode == "changes":
                row["_change_type"] = dice.choice(
                    ["insert", "delete", "update_preimage", "update_postimage"]
                )
                row["_commit_version"] = dice.randrange(1, 30)
                place: Any = (key, row["_commit_version"], deletes(row))
            else:
                row["op"] = "d" if self.can_delete and dice.random() < 0.25 else "u"
                if mode == "scd2":
                    row["seq"] = dice.randrange(40)
                place = (key, row["seq"]) if self.model.has_sequence else key
                if mode in ("scd1", "scd2") and deletes(row):
                    place = (*place, "d")
            if place in seen and not (is_faulty and mode != "changes" and dice.random() < 0.3):
                continue
            seen.add(place)
            rows.append((key, row))
            if self.model.has_sequence and dice.random() < 0.1:
                rows.append((key, row))  # the same row twice
        if is_faulty and dice.random() < 0.3:
            at, column = dice.randrange(len(rows)), dice.randrange(len(self.on))
            key = rows[at][0]
            rows[at] = (*key[:column], None, *key[column + 1 :]), rows[at][1]
        if is_faulty and self.model.has_sequence and dice.random() < 0.3:
            at = dice.randrange(len(rows))
            rows[at] = rows[at][0], {**rows[at][1], "seq": None}
        dice.shuffle(rows)
        return rows, names, self._table(rows, [*names, *extra], has_part=has_part)

    # --- what is done

    def step(self) -> None:
        """Let others write, apply a batch in both ways, and check the outcome."""
        for _ in range(self.dice.choice([0, 0, 1, 2])):
            self._by_others(self.dice.choice(self._verbs()))
        if self.snapshots and self.dice.random() < 0.05:
            self._restore()
        if self.branch is None and self.dice.random() < 0.03:
            self._go_to_a_branch()
        rows, names, data = self._batch()
        self.counts["batches"] += 1
        self.counts["rows"] += len(rows)
        self.num_batches += 1
        self.notes.append(f"batch of {names}: {data.schema.names}\n{rows}")
        after_staging = self._some_verb(0.15)
        before_commit = self._some_verb(0.15, self._verbs_of_one_order())
        self.before = {way: self._open(way).version for way in self.tables}
        before = self.model
        try:
            large = self._apply_large(data, after_staging, before_commit)
        except InvalidInputError as error:
            large = None
            self.notes.append(f"refused: {error}")
        if large is not None:
            self.tables["large"] = large.table
        done = [each for each in (after_staging, before_commit) if each is not None and each.done]
        for each in done:
            self.notes.append(f"meanwhile: {each.name}")
            each.do("small")
            if each.on_model is not None:
                each.on_model()
        self.model = self.model.copy()
        try:
            self.model.apply(rows, names)
            expected = True
        except RefusedError:
            expected = False
            self.model = before
        small = None
        with contextlib.suppress(InvalidInputError):
            small = upsert(self.tables["small"], data, self.rules)
            self.tables["small"] = small.table
        assert (small is not None) == expected, "the small way"
        assert (large is not None) == expected, "the large way"
        if large is None or small is None:
            self.counts["batches refused"] += 1
            newest = {way: self._open(way).version for way in self.tables}
            assert done or newest == self.before
            return
        if not large.was_already_committed:
            counted = counts_of(large), counts_of(small)
            assert counted[0] == counted[1], counted
        self._check(had_news=large.is_new)

    def _some_verb(self, chance: float, verbs: Sequence[str] = ()) -> "Verb | None":
        if self.dice.random() >= chance:
            return None
        return self._verb(self.dice.choice(verbs or self._verbs(meanwhile=True)))

    def _verbs_of_one_order(self) -> list[str]:
        """Return what others may do between planning and commit, if the batch comes second.

        A key that the table lacks, and that the batch does not insert, is judged by the version
        that was planned on. Where another writer inserts it meanwhile, the two do not conflict, and
        the outcome is that of the other order.
        """
        may_leave_out_keys = self.can_delete or self.model.when_not_matched == IGNORE
        left_out = {"upsert"} if may_leave_out_keys else set()
        return [verb for verb in self._verbs(meanwhile=True) if verb not in left_out]

    def _apply_large(
        self, data: pa.Table, after_staging: "Verb | None", before_commit: "Verb | None"
    ) -> UpsertResult:
        """Apply a batch as a large one; if the driver dies, again."""
        dice = self.dice
        identity = PendingBatch.of("app", self.num_batches, digest=digest_of(data))
        for _ in range(2):
            if dice.random() < 0.3 and after_staging is None and before_commit is None:
                at, done = dice.randrange(1, dice.choice([20, 60, 200])), dice.random() < 0.5
                try:
                    with dying(at, done=done):
                        return self._run_large(data, identity, RANGE_THREADS, None, None)
                except DiedError:
                    self.counts["drivers that died"] += 1
                    self.notes.append(f"the driver died at call {at}, {done=}")
                    restart()
        workers = DyingTasks(dice) if dice.random() < 0.7 else RANGE_THREADS
        try:
            return self._run_large(data, identity, workers, after_staging, before_commit)
        finally:
            if isinstance(workers, DyingTasks):
                self.counts["tasks that died"] += workers.num_died

    def _run_large(
        self,
        data: pa.Table,
        identity: PendingBatch,
        workers: Any,
        after_staging: "Verb | None",
        before_commit: "Verb | None",
    ) -> UpsertResult:
        dice, table = self.dice, self._open("large").table
        seed = shared_index(table, self.on).seeds[0] if dice.random() < 0.9 else dice.randrange(9)
        staged: list[Any] = []
        commit = attempts.commit_planned
        pieces = dice.randrange(1, 5)
        size = -(-data.num_rows // pieces)

        def beaten_once(*arguments: Any, **named: Any) -> Any:
            if before_commit is not None and not before_commit.done:
                before_commit.do("large")
            return commit(*arguments, **named)

        try:
            for task, start in enumerate(range(0, data.num_rows, size)):
                own = data.slice(start, size).to_batches(max_chunksize=dice.choice([3, 1000]))
                for _ in range(1 + (dice.random() < 0.1)):  # the last attempt counts
                    made = staged_rows.stage_rows(
                        own, table.store, table.arrow_schema, self.rules, task=task, seed=seed
                    )
                staged.append(made)
            if after_staging is not None:
                after_staging.do("large")
            ordering = data.schema.get_field_index(self.rules.sequence_by or "")
            sequence = None if ordering < 0 else data.schema.field(ordering).type
            limit = max(data.num_rows // dice.randrange(1, 7), 0)
            with (
                mock.patch.object(staged_rows, "MAX_ROWS", min(limit, data.num_rows - 1)),
                mock.patch.object(attempts, "commit_planned", beaten_once),
            ):
                return upsert_staged(
                    table,
                    staged,
                    self.rules,
                    data.schema.names,
                    sequence,
                    identity,
                    workers=workers,
                )
        finally:
            discard_staged(table.store, staged)

    # --- other writers

    def _verbs(self, *, meanwhile: bool = False) -> list[str]:
        verbs = ["compact", "add column", "damage", "restart"]
        if self.branch is None:
            verbs.append("pylance compacts")
        if self.mode != "scd2":
            verbs += ["delete", "update", "upsert"]
            if not meanwhile:
                verbs += ["append", "cleanup"]
            if self.branch is None:
                verbs += ["pylance deletes", "pylance updates"]
                verbs += [] if meanwhile else ["pylance appends", "null keys"]
        if self.num_columns and not meanwhile:
            verbs.append("drop column")
        if pa.types.is_int32(self.key_types[0]):
            verbs.append("widen key")
        return verbs

    def _by_others(self, name: str) -> None:
        verb = self._verb(name)
        self.notes.append(name)
        for way in self.tables:
            verb.do(way)
        if verb.on_model is not None:
            verb.on_model()

    def _open(self, way: str) -> Dataset:
        return lance_stream.open_dataset(self._uri(way), branch=self.branch or "main")

    def _uri(self, way: str) -> str:
        return self.tables[way].uri.split("/tree/")[0]

    def _pylance(self, way: str) -> Any:
        ds = lance.dataset(self._uri(way))
        return ds if self.branch is None else ds.checkout_version((self.branch, None))

    def _verb(self, name: str) -> "Verb":
        """Return a verb of another writer, which does the same to either table."""
        dice, model = self.dice, self.model
        number = dice.randrange(4)
        predicate = f"a % 4 = {number}"

        def matching() -> list[Key]:
            items = self.model.rows.items()
            return [
                key for key, row in items if row.get("a") is not None and row["a"] % 4 == number
            ]

        def forget() -> None:
            for key in matching():
                del self.model.rows[key]
            self.model.nulls = [
                row for row in self.model.nulls if row["a"] is None or row["a"] % 4 != number
            ]

        def count_up() -> None:
            for key in matching():
                row = self.model.rows[key]
                self.model.rows[key] = {**row, "a": row["a"] + 1}
            self.model.nulls = [
                {**row, "a": row["a"] + 1}
                if row["a"] is not None and row["a"] % 4 == number
                else row
                for row in self.model.nulls
            ]

        if name in ("delete", "pylance deletes"):
            if name == "delete":
                return Verb(name, lambda way: self._open(way).delete(predicate), forget)
            return Verb(name, lambda way: self._pylance(way).delete(predicate), forget)
        if name in ("update", "pylance updates"):
            values = {"a": "a + 1"}
            if name == "update":
                return Verb(name, lambda way: self._open(way).update(values, predicate), count_up)
            return Verb(
                name, lambda way: self._pylance(way).update(values, where=predicate), count_up
            )
        if name in ("append", "pylance appends", "null keys"):
            rows = self._new_rows(dice.randrange(1, 12))
            if name == "null keys":
                rows = [((None, *key[1:]), row) for key, row in rows[:3]]
            if not rows:
                return Verb("nothing", lambda _: None)
            data = self._table(rows, self.names)

            def add() -> None:
                if name == "null keys":
                    self.model.nulls += [
                        {**row, **dict(zip(self.on, key, strict=True))} for key, row in rows
                    ]
                else:
                    self.model.rows.update(rows)

            def append(way: str) -> object:
                if name == "append":
                    return self._open(way).append(data)
                return lance.write_dataset(data, self._uri(way), mode="append", max_rows_per_file=5)

            return Verb(name, append, add)
        if name == "upsert":
            rows = [(self.key_of(dice.randrange(NUM_KEYS)), {"a": dice.randrange(9)})]
            data = self._table(rows, ["a"])

            def put() -> None:
                key, row = rows[0]
                none = dict.fromkeys(self.names)
                self.model.rows[key] = {**self.model.rows.get(key, none), **row}

            return Verb(name, lambda way: self._open(way).upsert(data, on=self.on), put)
        if name == "add column":
            self.num_columns += 1
            column = pa.field(f"c{self.num_columns}", pa.int64())

            def added() -> None:
                self.columns[column.name] = pa.int64()
                rows = self.model.rows.items()
                self.model.rows = {key: {**row, column.name: None} for key, row in rows}
                self.model.nulls = [{**row, column.name: None} for row in self.model.nulls]
                if self.mode == "scd2":
                    self.model.is_sure = False

            return Verb(name, lambda way: self._open(way).add_columns(column), added)
        if name == "drop column":
            extra_columns = [each for each in self.columns if each.startswith("c")]
            if not extra_columns or self.mode == "scd2":
                return Verb("nothing", lambda _: None)
            removed = dice.choice(extra_columns)

            def without(row: Values) -> Values:
                return {column: value for column, value in row.items() if column != removed}

            def dropped() -> None:
                del self.columns[removed]
                rows = self.model.rows.items()  # a restored snapshot shares them
                self.model.rows = {key: without(row) for key, row in rows}
                self.model.nulls = [without(row) for row in self.model.nulls]

            return Verb(name, lambda way: self._open(way).drop_columns(removed), dropped)
        if name == "widen key":

            def widened() -> None:
                self.key_types[0] = pa.int64()

            change = {"path": "k0", "data_type": pa.int64()}
            return Verb(name, lambda way: self._open(way).alter_columns(change), widened)
        if name == "cleanup":
            return Verb(name, lambda way: self._open(way).cleanup(retain_versions=10**6))
        if name == "compact":
            target = dice.choice([10, 1000])
            return Verb(name, lambda way: self._open(way).compact(target))
        if name == "pylance compacts":
            return Verb(name, lambda way: self._pylance(way).optimize.compact_files())
        if name == "damage":
            return Verb(name, self._damage)
        assert name == "restart", name
        assert model is self.model
        return Verb(name, lambda _: restart())

    def _damage(self, way: str) -> None:
        """Delete, cut or change runs of the index."""
        for path in sorted(Path(self.tables[way].uri).glob("_lance_stream/key_index/*")):
            how, data = self.dice.randrange(4), bytearray(path.read_bytes())
            if how == 0 or not data:
                path.unlink()
            elif how == 1:
                path.write_bytes(data[: self.dice.randrange(len(data))])
            elif how == 2:
                data[self.dice.randrange(len(data))] ^= 8
                path.write_bytes(data)

    def _restore(self) -> None:
        versions, model, columns = self.dice.choice(self.snapshots)
        self.notes.append(f"restore {versions}")
        self.counts["restores"] += 1
        for way in self.tables:
            self.tables[way] = self._open(way).restore(versions[way]).table
        self.model, self.columns = model.copy(), dict(columns)
        kinds = {each.name: each.type for each in self.tables["large"].arrow_schema}
        self.key_types = [kinds[each] for each in self.on]

    def _go_to_a_branch(self) -> None:
        self.notes.append("a branch")
        for way in self.tables:
            ds = self._open(way)
            ds.branches.create("side")
            self.tables[way] = ds.checkout(("side", None)).table
        self.branch = "side"
        self.snapshots.clear()
        self.counts["branches"] += 1

    # --- checks

    def _check(self, *, had_news: bool = False) -> None:
        datasets = {way: self._open(way) for way in self.tables}
        for way, ds in datasets.items():
            self.tables[way] = ds.table
        names = [*self.on, *self.names, *(["__START_AT", "__END_AT"] if self._is_history else [])]
        assert set(datasets["large"].schema.names) == set(names)
        rows = {way: ds.to_table(names).to_pylist() for way, ds in datasets.items()}
        assert sorted(map(plain, rows["large"])) == sorted(map(plain, rows["small"]))
        if self.model.is_sure:
            expected = [self._stored(key, row, names) for key, row in self.model.rows.items()]
            expected += [{name: row.get(name) for name in names} for row in self.model.nulls]
            assert sorted(map(plain, rows["large"])) == sorted(map(plain, expected))
        self._check_pylance(names, rows["large"])
        if self.is_stable and had_news:
            self._check_feed(datasets["large"], self.before["large"])
        versions = {way: ds.version for way, ds in datasets.items()}
        self.snapshots.append((versions, self.model.copy(), dict(self.columns)))

    @property
    def _is_history(self) -> bool:
        return self.mode == "scd2"

    def _stored(self, key: Key, row: Values, names: Sequence[str]) -> Values:
        key_values = dict(zip(self.on, key, strict=False))
        return {name: key_values[name] if name in key_values else row.get(name) for name in names}

    def _check_pylance(self, names: Sequence[str], rows: list[Values]) -> None:
        names = [column for column in names if column != "blob"]
        theirs = self._pylance("large").to_table(columns=list(names)).to_pylist()
        ours = [{name: row[name] for name in names} for row in rows]
        assert sorted(map(plain, theirs)) == sorted(map(plain, ours)), "as pylance reads it"

    def _check_feed(self, ds: Dataset, after: int) -> None:
        """Check that the feed leads from one version to the next, with ids and versions."""
        state = self._snapshot(ds.checkout((self.branch, after) if self.branch else after), ds)
        changes = ds.changes(after, column_backfills=False).read_all().to_pylist()
        created_in: dict[int, int] = {}
        for change in sorted(changes, key=lambda each: each["_commit_version"]):
            kind, version = change["_change_type"], change["_commit_version"]
            row = tuple(plain(change[name]) for name in self._common)
            row_id = change["_rowid"]
            if kind in ("delete", "update_preimage"):
                before = state.pop(row_id)
                assert before[0] == row, kind
                created_in[row_id] = before[1]
                assert change["_row_created_at_version"] == before[1]
            if kind in ("insert", "update_postimage"):
                assert row_id not in state
                created = version if kind == "insert" else created_in[row_id]
                assert change["_row_created_at_version"] == created
                assert change["_row_last_updated_at_version"] == version
                state[row_id] = row, created, version
        assert state == self._snapshot(ds, ds)
        theirs = self._pylance("large").to_table(columns=list(STAMPS)).to_pylist()
        stamps = {each[STAMPS[0]]: (each[STAMPS[1]], each[STAMPS[2]]) for each in theirs}
        assert stamps == {row_id: each[1:] for row_id, each in state.items()}

    def _snapshot(self, ds: Dataset, last: Dataset) -> dict[int, tuple[Any, int, int]]:
        names = set(ds.schema.names)
        self._common = [
            each for each in last.schema.names if not each.startswith("c") and each in names
        ]
        rows = ds.scan(with_row_id=True, with_row_versions=True).read_all().to_pylist()
        return {
            row["_rowid"]: (
                tuple(plain(row[name]) for name in self._common),
                row[STAMPS[1]],
                row[STAMPS[2]],
            )
            for row in rows
        }

    def finish(self) -> None:
        """Check both tables as a whole, and that a cleanup leaves nothing that is not named."""
        for way in self.tables:
            ds = self._open(way)
            assert ds.verify(deep=True) == [], way
        ds = self._open("large")
        if self.branch is None:
            ds.cleanup(timedelta(0), delete_unverified=True)
            table = self._open("large").table
            log = table.log
            named = {
                name for version in log.versions() for name in names_of(log.read(version), set())
            }
            assert not table.store.list(STAGED_ROWS_DIRECTORY)
            files = [(file.path, nameable(file.path)) for file in table.store.list("data")]
            unnamed = [path for path, what in files if what is None or what.name not in named]
            assert not unnamed, unnamed
            self._check()

    def close(self) -> None:
        """Undo what concerns the process."""
        self.stack.close()
        restart()


@dataclass
class Verb:
    """What another writer does, to either table and to the model."""

    name: str
    act: Callable[[str], object]
    on_model: Callable[[], None] | None = None
    done: bool = False

    def do(self, way: str) -> None:
        """Do it; the driver and its tasks, which may be dying, are others."""
        self.done = True
        with contextlib.suppress(CommitError):
            self.act(way)


def counts_of(done: UpsertResult) -> dict[str, int]:
    """Return the counts of an upsert."""
    names = ("rows", "inserted", "updated", "deleted", "unchanged", "late", "ignored", "remembered")
    return {name: getattr(done, f"num_{name}") for name in names}


def played(seed: int, num_steps: int) -> dict[str, int]:
    """Play a history, and count what occurred."""
    played_histories: list[History] = []

    class Kept(History):
        def __init__(self, folder: str, seed: int) -> None:
            played_histories.append(self)
            super().__init__(folder, seed)

    try:
        histories.run(Kept, seed, num_steps)
    finally:
        for history in played_histories:
            history.close()
    return {f"{played_histories[0].mode} histories": 1, **played_histories[0].counts}


if __name__ == "__main__":
    sys.exit(histories.main(played, steps=12))
