"""Random upserts with keys and sequences of every type: three paths and a model have to agree.

    python -m tests.upsert.key_histories --minutes 10

A history is a table and some batches. Each batch goes into one table by one process, into another
one in parts, into a third one from staged rows, and into a dictionary. All must be equal after
each: the rows, the row ids that changed rows keep, the counts, and whether the batch is refused.

Index and bounds of the keys are those of tables of millions of rows, by lowered limits; what the
process remembers is forgotten now and then, and the tables are compacted.

The kit of random lives (`tests.histories`) cannot do it: its model is a table with one integer key,
whose values it compares itself, and here it is the comparing that is tested.

The model knows no type. A key is a tuple of places in pools of values, a sequence is a place in a
pool that is written down in ascending order, so Arrow neither compares nor casts for it.
"""

import math
import random
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests import seeded_runs as histories
from tests.histories.thresholds import draw_limits, lowered
from tests.keys.index.small_runs import restart
from tests.upsert.large.running_parts import upsert_by_parts, upsert_staged_rows

# --- values of keys and sequences


@dataclass(frozen=True)
class Kind:
    """A type of column, and values of it.

    Attributes:
        stored: The table's type.
        values: (n,) of it, distinct, in ascending order.
        incoming: Types that a batch may have.
        unfit: For some of these types, values that do not fit the table: each with the place of
            the greatest value that is less than it.
    """

    stored: pa.DataType
    values: Sequence[Any]
    incoming: Sequence[pa.DataType] = ()
    unfit: Mapping[pa.DataType, Sequence[tuple[float, Any]]] = field(default_factory=dict)

    @property
    def types(self) -> list[pa.DataType]:
        return [self.stored, *self.incoming]


class Value(NamedTuple):
    """An incoming value and its rank in the pool; between two ranks if it is not in the pool."""

    rank: float
    array: pa.Array

    @property
    def fits(self) -> bool:
        return self.rank == int(self.rank)


def values_as(kind: Kind, arrow: pa.DataType) -> list[Value]:
    """Return the values of a kind that a type holds, and those that do not fit the table."""
    values = []
    for index in range(len(kind.values)):
        stored = array_of([kind.values[index]], kind.stored)
        try:
            came = stored if arrow.equals(kind.stored) else stored.cast(arrow)
            if came.cast(kind.stored).equals(stored):
                values.append(Value(index, came))
        except pa.ArrowException:
            continue
    for index, value in kind.unfit.get(arrow, ()):
        values.append(Value(index + 0.5, array_of([value], arrow)))
    return values


def array_of(values: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(arrow):
        return pa.array(values, arrow.value_type).dictionary_encode().cast(arrow)
    if pa.types.is_temporal(arrow):  # numbers, also those that Python has no date for
        numbers = pa.int32() if arrow.bit_width == 32 else pa.int64()
        return pa.array(values, numbers).cast(arrow)
    return pa.array(values, arrow)


def decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


WORDS = ["", "A", "a", "a\0", "a ", "ab", "b", "bb\0", "é", "日本"]
BYTES = [b"", b"\0", b"\0\0", b"a", b"a\0", b"b\0", b"\xff"]
INSTANTS = [-(10**9), -1, 0, 1, 1000, 10**6, 10**9, 1_700_000_000 * 10**6]
DAYS = [-719162, -1, 0, 1, 20000, 2932896]
KEYS: dict[str, Kind] = {
    "int8": Kind(pa.int8(), [-128, -1, 0, 1, 127]),
    "int32": Kind(pa.int32(), [-(2**31), -1, 0, 1, 2, 2**31 - 1], [pa.int8(), pa.int16()]),
    "int64": Kind(pa.int64(), [-(2**63), -1, 0, 1, 2**31, 2**63 - 1], [pa.int32(), pa.uint32()]),
    "uint8": Kind(
        pa.uint8(), [0, 1, 2, 254, 255], [pa.int16()], {pa.int16(): [(4, 256), (-1, -1)]}
    ),
    "uint32": Kind(pa.uint32(), [0, 1, 2**32 - 1], [pa.int64()], {pa.int64(): [(2, 2**32)]}),
    "uint64": Kind(
        pa.uint64(),
        [0, 1, 2**63, 2**64 - 1],
        [pa.decimal128(20, 0)],
        {pa.decimal128(20, 0): [(3, Decimal(2**64))]},
    ),
    "decimal": Kind(
        pa.decimal128(10, 2),
        decimals("-1.50", "-0.01", "0.00", "0.10", "1.50", "2.00", "99999999.99"),
        [pa.decimal128(12, 3), pa.decimal128(9, 1), pa.decimal128(38, 10), pa.int8()],
        {pa.decimal128(12, 3): [(-1, Decimal("-1.504")), (4, Decimal("1.504"))]},
    ),
    "wide decimal": Kind(
        pa.decimal128(38, 0), decimals("-1e30", "0", "1", "1e37"), [pa.decimal128(38, 1)]
    ),
    "text": Kind(
        pa.string(),
        WORDS,
        [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ),
    "large text": Kind(pa.large_string(), WORDS, [pa.string()]),
    "bytes": Kind(pa.binary(), BYTES, [pa.large_binary()]),
    "large bytes": Kind(pa.large_binary(), BYTES, [pa.binary()]),
    "two bytes": Kind(
        pa.binary(2), [b"\0\0", b"a\0", b"ab"], [pa.binary()], {pa.binary(): [(1, b"a")]}
    ),
    "bool": Kind(pa.bool_(), [False, True]),
    "date": Kind(pa.date32(), [-(2**31), *DAYS, 2**31 - 1], [pa.date64()]),
    "date64": Kind(pa.date64(), [day * 86_400_000 for day in DAYS], [pa.date32()]),
    "timestamp[s]": Kind(
        pa.timestamp("s"),
        INSTANTS,
        [pa.timestamp("us")],
        {pa.timestamp("us"): [(3, 1_000_001)]},
    ),
    "timestamp[ms, zone]": Kind(
        pa.timestamp("ms", "UTC"),
        INSTANTS,
        [pa.timestamp("us", "Asia/Kolkata"), pa.timestamp("ms", "Europe/Berlin")],
        {pa.timestamp("us", "Asia/Kolkata"): [(3, 1001)]},
    ),
    "timestamp[us]": Kind(
        pa.timestamp("us"),
        [-(2**63), *INSTANTS, 2**63 - 1],
        [pa.timestamp("ns"), pa.timestamp("ms")],
        {pa.timestamp("ns"): [(4, 1001)]},
    ),
    "timestamp[ns]": Kind(pa.timestamp("ns"), [*INSTANTS, 2**63 - 1], [pa.timestamp("us")]),
}
PAIR = pa.struct([("at", pa.timestamp("us")), ("lsn", pa.int64())])
SEQUENCES: dict[str, Kind] = {
    **{name: KEYS[name] for name in KEYS},
    "float64": Kind(pa.float64(), [-math.inf, -1.5, 0.0, 1.5, math.inf, math.nan], [pa.float32()]),
    "float32": Kind(pa.float32(), [-math.inf, -1.5, 0.0, math.nan]),
    "time": Kind(pa.time64("us"), [0, 1, 86_399_999_999]),
    "duration": Kind(pa.duration("us"), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "struct": Kind(
        PAIR,
        [
            {"at": None, "lsn": None},
            {"at": None, "lsn": 5},
            {"at": 1, "lsn": None},
            {"at": 1, "lsn": -3},
            {"at": 1, "lsn": 2},
            {"at": 2**62, "lsn": 0},
        ],
    ),
    "list": Kind(pa.list_(pa.int32()), [[], [None], [None, 1], [0], [0, None], [0, 1], [1]]),
}

# --- values of other columns

INNER = pa.struct([("x", pa.int64()), ("y", pa.string())])
ITEM = pa.struct([("p", pa.int64()), ("q", pa.float64())])
COLUMNS: dict[str, pa.DataType] = {
    "f": pa.float64(),
    "u": pa.uint8(),
    "s": pa.struct([("a", pa.int64()), ("b", INNER), ("c", pa.list_(pa.int64()))]),
    "l": pa.list_(ITEM),
}
PARTS: dict[str, list[pa.DataType]] = {
    "f": [pa.float64(), pa.float32()],
    "u": [pa.uint8(), pa.int16()],
    "s": [
        COLUMNS["s"],
        pa.struct([("b", INNER), ("a", pa.int32())]),
        pa.struct([("b", pa.struct([("y", pa.string())])), ("c", pa.list_(pa.int64()))]),
        pa.struct([("a", pa.int64()), ("b", pa.struct([("x", pa.int64())]))]),
    ],
    "l": [COLUMNS["l"], pa.large_list(ITEM), pa.list_(pa.struct([("p", pa.int64())]))],
}
LACKING = PARTS["l"][2]


def random_value(chance: random.Random, arrow: pa.DataType) -> Any:
    """Return a small value of a type, as Python has it."""
    if chance.random() < 0.2:
        return None
    if pa.types.is_struct(arrow):
        return {part.name: random_value(chance, part.type) for part in arrow}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return [random_value(chance, arrow.value_type) for _ in range(chance.randrange(3))]
    if pa.types.is_floating(arrow):
        return chance.choice([0.0, 1.5, math.nan])
    if pa.types.is_string(arrow):
        return chance.choice(["", "y"])
    if arrow.equals(pa.int16()) and chance.random() < 0.05:
        return 300  # does not fit the column u
    return chance.randrange(3)


def merged(stored: Any, came: Any, whole: pa.DataType, part: pa.DataType) -> Any:
    """Return what is stored for a value whose type may lack struct fields."""
    if not pa.types.is_struct(whole) or came is None:
        return came
    result = {}
    for column_field in whole:
        index = part.get_field_index(column_field.name)
        before = None if stored is None else stored[column_field.name]
        if index < 0:
            result[column_field.name] = before
        else:
            result[column_field.name] = merged(
                before, came[column_field.name], column_field.type, part.field(index).type
            )
    return result


def plain(value: Any) -> Any:
    """Return a value that compares as it should: NaN equals NaN, and 0 is not False."""
    if isinstance(value, dict):
        return tuple((name, plain(item)) for name, item in value.items())
    if isinstance(value, list):
        return ("list", *map(plain, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", value)
    return (type(value).__name__, value)


# --- the model

Counts = dict[str, int]


class Row(NamedTuple):
    """An incoming row, in the model's terms."""

    key: tuple[float | None, ...]
    sequence: float | None
    deletes: bool
    values: dict[str, Any]


@dataclass
class Stored:
    """A row of the table."""

    sequence: float
    values: dict[str, Any]
    row_ids: dict[str, int] = field(default_factory=dict)


OUTCOMES = ("inserted", "updated", "deleted", "unchanged", "remembered", "nothing")


class RefusedError(Exception):
    """The batch must be refused."""


@dataclass
class Model:
    """A table as a dictionary.

    Attributes:
        has_sequence: Whether rows have an order.
        stores_sequence: Whether it is a column of the table.
        remembers: Whether deletes are remembered.
        skips: Whether rows that stay the same are left alone.
    """

    has_sequence: bool
    stores_sequence: bool
    remembers: bool
    skips: bool
    rows: dict[tuple[int, ...], Stored] = field(default_factory=dict)
    deleted: dict[tuple[int, ...], float] = field(default_factory=dict)

    def apply(self, batch: Sequence[Row], types: Mapping[str, pa.DataType]) -> Counts:
        """Apply a batch, and return the counts.

        Raises:
            RefusedError: It has to be refused; nothing has changed.
        """
        winners = self._winners(batch)
        for row in winners.values():
            if not row.deletes and row.values.get("u") == 300:
                raise RefusedError("a value does not fit")
            if self.stores_sequence and row.sequence != int(row.sequence or 0):
                raise RefusedError("a sequence does not fit")
        if "l" in types and types["l"].equals(LACKING):
            raise RefusedError("an item lacks a part")
        counts = dict.fromkeys(OUTCOMES, 0)
        counts["rows"], counts["late"] = len(batch), len(batch) - len(winners)
        for key, row in winners.items():
            outcome = self._take(key, row, types)
            counts[outcome] += 1
            counts["remembered"] += self.remembers and row.deletes and outcome != "late"
        del counts["nothing"]
        return counts

    def _winners(self, batch: Sequence[Row]) -> dict[tuple[int, ...], Row]:
        by_key: dict[tuple[int, ...], list[Row]] = {}
        for row in batch:
            if any(part is None or part != int(part) for part in row.key):
                raise RefusedError("a key is null, or does not fit")
            if self.has_sequence and row.sequence is None:
                raise RefusedError("a sequence is null")
            by_key.setdefault(tuple(int(part or 0) for part in row.key), []).append(row)
        winners = {}
        for key, rows in by_key.items():
            if not self.has_sequence and len(rows) > 1:
                raise RefusedError("a key occurs twice")
            greatest = max(part.sequence or 0 for part in rows) if self.has_sequence else None
            best = [part for part in rows if part.sequence == greatest or not self.has_sequence]
            if len({"" if part.deletes else repr(plain(part.values)) for part in best}) > 1:
                raise RefusedError("which row is the newest cannot be determined")
            winners[key] = best[0]
        return winners

    def _take(self, key: tuple[int, ...], row: Row, types: Mapping[str, pa.DataType]) -> str:
        stored = self.rows.get(key)
        sequence = 0.0 if row.sequence is None else row.sequence
        if stored is not None and self.stores_sequence and sequence < stored.sequence:
            return "late"
        if self.deleted.get(key, -math.inf) >= sequence:
            return "late"
        if row.deletes:
            if self.remembers:
                self.deleted[key] = sequence
            if stored is None:
                return "nothing"
            del self.rows[key]
            return "deleted"
        before = dict.fromkeys(COLUMNS) if stored is None else stored.values
        values = {
            name: merged(before[name], row.values[name], COLUMNS[name], types[name])
            if name in types
            else before[name]
            for name in COLUMNS
        }
        if stored is None:
            self.rows[key] = Stored(sequence, values)
            return "inserted"
        is_same = plain(values) == plain(stored.values)
        if self.skips and is_same and (not self.stores_sequence or sequence == stored.sequence):
            return "unchanged"
        stored.sequence, stored.values = sequence, values
        return "updated"


# --- a history


Way = Callable[[TableVersion, pa.Table, UpsertRules, int], tuple[TableVersion, Counts | None]]
"""Takes a batch into a table, in so many parts if in parts at all, and returns the counts, if it
knows them."""


def by_one(
    table: TableVersion, data: pa.Table, rules: UpsertRules, _: int
) -> tuple[TableVersion, Counts]:
    result = upsert(table, data, rules)
    return result.table, counts_of(result)


def in_parts(
    table: TableVersion, data: pa.Table, rules: UpsertRules, num_parts: int
) -> tuple[TableVersion, Counts]:
    result = upsert_by_parts(table, data, rules, num_parts=num_parts)
    return result.table, counts_of(result)


def staged(
    table: TableVersion, data: pa.Table, rules: UpsertRules, num_parts: int
) -> tuple[TableVersion, Counts]:
    result = upsert_staged_rows(table, data, rules, num_parts=num_parts)
    return result.table, counts_of(result)


class History:
    """A table that is upserted in several ways, and its model.

    Args:
        seed: What is chosen.
        ways: The ways.
        folder: Where the tables lie; None for the memory.
        comes: Whether a batch may have a type.
    """

    def __init__(
        self,
        seed: int,
        ways: Mapping[str, Way],
        folder: str | None = None,
        comes: Callable[[pa.DataType], bool] = lambda _: True,
    ) -> None:
        self.ways, self.comes = ways, comes
        chance = self.chance = random.Random(seed)
        self.notes: list[str] = [f"seed {seed}"]
        names = [key for key in KEYS if any(map(comes, KEYS[key].types))]
        orders = [sequence for sequence in SEQUENCES if any(map(comes, SEQUENCES[sequence].types))]
        count = chance.choice([1, 1, 2, 3])
        self.keys = [KEYS[names[(seed + step * 7) % len(names)]] for step in range(count)]
        self.on = tuple(f"k{number}" for number in range(count))
        self.sequence = SEQUENCES[orders[seed % len(orders)]] if chance.random() < 0.75 else None
        stores = self.sequence is not None and chance.random() < 0.7
        deletes = chance.random() < 0.6
        remembers = (
            deletes
            and self.sequence is not None
            and not pa.types.is_nested(self.sequence.stored)
            and chance.random() < 0.6
        )
        self.model = Model(self.sequence is not None, stores, remembers, chance.random() < 0.4)
        self.rules = UpsertRules(
            on=self.on,
            sequence_by=None if self.sequence is None else "q",
            delete_when="op = 'd'" if deletes else None,
            except_columns=("op", *(["q"] if self.sequence is not None and not stores else [])),
            skip_unchanged=self.model.skips,
            tombstones=timedelta(days=9) if remembers else None,
        )
        fields = [(name, kind.stored) for name, kind in zip(self.on, self.keys, strict=True)]
        if stores and self.sequence is not None:
            fields.append(("q", self.sequence.stored))
        schema = pa.schema([*fields, *COLUMNS.items()])
        self.notes.append(f"{self.rules}\n{schema}")
        root = f"memory://{uuid.uuid4()}" if folder is None else f"{folder}/{seed}"
        self.tables: dict[str, TableVersion] = {
            way: lance_stream.create_dataset(f"{root}/{way}", schema).table for way in ways
        }
        self.num_batches = self.num_rows = self.num_refused = 0
        self.limits = draw_limits(chance)

    def step(self) -> None:
        """Apply a random batch, perhaps after a compaction, and check the outcome."""
        if self.chance.random() < 0.2:
            self.notes.append("compaction")
            for way, table in self.tables.items():
                self.tables[way] = lance_stream.Dataset(table).compact(10).table
        if self.chance.random() < 0.2:
            self.notes.append("restart")
            restart()
        rows, types, data = self._batch()
        num_parts = self.chance.randrange(1, 6)
        self.notes.append(f"batch in {num_parts} parts: {data.schema}\n{rows}")
        self.num_batches += 1
        self.num_rows += len(rows)
        expected: Counts | None
        try:
            expected = self.model.apply(rows, types)
        except RefusedError as why:
            self.notes.append(f"has to be refused: {why}")
            expected = None
            self.num_refused += 1
        for way in self.tables:
            self._take_in(way, data, num_parts, expected)

    def _take_in(self, way: str, data: pa.Table, num_parts: int, expected: Counts | None) -> None:
        before = self.tables[way]
        try:
            after, counts = self.ways[way](before, data, self.rules, num_parts)
        except InvalidInputError as error:
            self.notes.append(f"{way}: {error}")
            assert expected is None, f"{way}: refused without a reason"
            newest = lance_stream.open_dataset(before.uri)
            assert newest.version == before.version, way
            return
        assert expected is not None, f"{way}: not refused"
        assert counts in (None, expected), way
        self.tables[way] = after
        self._check_rows(way)

    def _check_rows(self, way: str) -> None:
        table = lance_stream.Dataset(self.tables[way]).scan(with_row_id=True).read_all()
        stored = dict(zip(self._stored_keys(table), self._stored_rows(table), strict=True))
        assert len(stored) == table.num_rows, way
        assert stored.keys() == self.model.rows.keys(), way
        for key, (sequence, values, row_id) in stored.items():
            expected = self.model.rows[key]
            if self.model.stores_sequence:
                assert sequence == expected.sequence, (way, key)
            assert plain(values) == plain(expected.values), (way, key)
            assert expected.row_ids.setdefault(way, row_id) == row_id, (way, key)

    def _stored_keys(self, table: pa.Table) -> list[tuple[int, ...]]:
        ranks = [
            rows_within(kind, table[name]) for name, kind in zip(self.on, self.keys, strict=True)
        ]
        return list(zip(*ranks, strict=True))

    def _stored_rows(self, table: pa.Table) -> list[tuple[int, dict[str, Any], int]]:
        sequences = [0] * table.num_rows
        if self.model.stores_sequence and self.sequence is not None:
            sequences = rows_within(self.sequence, table["q"])
        values = table.select(list(COLUMNS)).to_pylist()
        return list(zip(sequences, values, table["_rowid"].to_pylist(), strict=True))

    def _batch(self) -> tuple[list[Row], dict[str, pa.DataType], pa.Table]:
        chance = self.chance
        is_faulty = chance.random() < 0.25
        types = {
            name: chance.choice(kinds)
            for name in COLUMNS
            if chance.random() < 0.7
            for kinds in [self._kinds(name, is_faulty)]
        }
        pools = [self._pool(kind, is_faulty) for kind in self.keys]
        order = None if self.sequence is None else self._pool(self.sequence, is_faulty)
        rows: list[Row] = []
        arrays: list[list[pa.Array]] = []
        num_keys = chance.choice([1, 3, 8, 20])
        seen: set[tuple[float, ...]] = set()
        for _ in range(num_keys):
            if rows and chance.random() < 0.1 and (order is not None or is_faulty):
                again = chance.randrange(len(rows))  # the same row twice
                rows.append(rows[again])
                arrays.append(arrays[again])
                continue
            picked = [chance.choice(pool) for pool in pools]
            key = tuple(part.rank for part in picked)
            at = None if order is None else chance.choice(order)
            whole = key if at is None else (*key, at.rank)
            if whole in seen and not (is_faulty and chance.random() < 0.2):
                continue
            seen.add(whole)
            deletes = self.rules.delete_when is not None and chance.random() < 0.3
            values = {name: random_value(chance, kind) for name, kind in types.items()}
            rows.append(Row(key, None if at is None else at.rank, deletes, values))
            arrays.append([part.array for part in picked] + ([] if at is None else [at.array]))
        names = [*self.on, *([] if order is None else ["q"])]
        columns: dict[str, pa.Array] = {
            name: pa.concat_arrays([array[index] for array in arrays])
            for index, name in enumerate(names)
        }
        if is_faulty and chance.random() < 0.2:
            self._put_a_null(rows, columns)
        for name, kind in types.items():
            columns[name] = pa.array([row.values[name] for row in rows], kind)
        operations = (
            ["u", None] if order is None else ["u"]
        )  # where a row comes twice, it is the same
        columns["op"] = pa.array(
            ["d" if row.deletes else chance.choice(operations) for row in rows], pa.string()
        )
        return rows, types, pa.table(columns)

    def _kinds(self, name: str, is_faulty: bool) -> list[pa.DataType]:
        kinds = [candidate for candidate in PARTS[name] if self.comes(candidate)]
        return [kind for kind in kinds if is_faulty or not kind.equals(LACKING)]

    def _pool(self, kind: Kind, is_faulty: bool) -> list[Value]:
        """Return values of a kind in one of the types in which they may come."""
        is_stored = kind is not self.sequence or self.model.stores_sequence
        types = [arrow_type for arrow_type in kind.types if self.comes(arrow_type)]
        values = values_as(kind, self.chance.choice(types if is_stored else types[:1]))
        unfit = [value for value in values if not value.fits]
        values = [value for value in values if value.fits]
        return [*values, *unfit] if is_faulty else values

    def _put_a_null(self, rows: list[Row], columns: dict[str, pa.Array]) -> None:
        name = self.chance.choice(list(columns))
        at = self.chance.randrange(len(rows))
        column = columns[name]
        columns[name] = pa.concat_arrays(
            [column.slice(0, at), pa.nulls(1, column.type), column.slice(at + 1)]
        )
        row = rows[at]
        if name == "q":
            rows[at] = row._replace(sequence=None)
        else:
            index = self.on.index(name)
            rows[at] = row._replace(key=(*row.key[:index], None, *row.key[index + 1 :]))

    def finish(self) -> None:
        """Make the final checks."""
        for way, table in self.tables.items():
            assert verify(table) == [], way


def rows_within(kind: Kind, column: pa.ChunkedArray) -> list[int]:
    """Return which values of a kind a stored column has."""
    assert column.type.equals(kind.stored)
    rank_of = {
        canonical_text(array_of([value], kind.stored)): at for at, value in enumerate(kind.values)
    }
    flat = column.combine_chunks()
    return [rank_of[canonical_text(flat.slice(row, 1))] for row in range(len(flat))]


def canonical_text(array: pa.Array) -> str:
    """Return one value as something that only equal values have."""
    if pa.types.is_temporal(array.type):
        return str(array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist())
    if pa.types.is_struct(array.type) and not array.null_count:
        return str([canonical_text(part) for part in array.flatten()])
    if pa.types.is_list(array.type) and not array.null_count:
        items = array.flatten()
        return str([canonical_text(items.slice(index, 1)) for index in range(len(items))])
    return repr(array.to_pylist())


def counts_of(result: UpsertResult) -> Counts:
    """Return the counts that the model has, too."""
    return {
        "rows": result.num_rows,
        "inserted": result.num_inserted,
        "updated": result.num_updated,
        "deleted": result.num_deleted,
        "unchanged": result.num_unchanged,
        "late": result.num_late,
        "remembered": result.num_remembered,
    }


def run(seed: int, num_batches: int) -> History:
    """Make one history and check it.

    Raises:
        AssertionError: The check failed; its notes have the history.
    """
    history = History(seed, {"one": by_one, "parts": in_parts, "staged": staged})
    return play(history, num_batches)


def play(history: History, num_batches: int) -> History:
    """Apply random batches, and check the history.

    Raises:
        AssertionError: The check failed; its notes have the history.
    """
    try:
        with lowered(history.limits):
            for _ in range(num_batches):
                history.step()
        history.finish()
    except Exception as error:
        for line in history.notes:
            error.add_note(line)
        raise
    return history


def counted(seed: int, num_batches: int) -> dict[str, int]:
    """Make a history, and count what occurred."""
    history = run(seed, num_batches)
    return {
        "batches": history.num_batches,
        "batches refused": history.num_refused,
        "rows": history.num_rows,
    }


if __name__ == "__main__":
    sys.exit(histories.main(counted, steps=8, what="batches"))
