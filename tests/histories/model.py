"""What a table has to contain: the model of one line of versions, in plain Python.

A state is one version: its columns, by an identity that outlives renames, and its rows, by key.
States are immutable and share what they have in common, so each version keeps its own.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

import pyarrow as pa

KEY = "id"
NAMES = "abcde"
PAIR = pa.struct([("x", pa.int64()), ("y", pa.string())])

Value = Any
Values = Mapping[str, Value]
"""The values of a row's columns, by name."""


@dataclass(frozen=True)
class Kind:
    """A type of column.

    Attributes:
        arrow: Its Arrow type.
        draw: Draws a value; plain data that `repr` shows in full.
        wider: The kind that its values can be cast to.
        is_number: Whether SQL can add to it.
        lowest_file_version: Older files cannot store it.
        parse: Makes what Arrow takes of a value; None if that is the value itself.
    """

    arrow: pa.DataType
    draw: Callable[[random.Random], Value]
    wider: str = ""
    is_number: bool = False
    lowest_file_version: str = "2.0"
    parse: Callable[[Value], Any] | None = None


LENGTH_OF_VECTORS = 4

STRINGS = ["", "a", "ab", "b", "zebra", "ü", "𝄞", "B", "a" * 40]


def _one_of(*values: Value) -> Callable[[random.Random], Value]:
    return lambda dice: dice.choice(values)


def _list(dice: random.Random) -> Value:
    return [dice.choice([None, 0, 1, 7]) for _ in range(dice.randint(0, LENGTH_OF_VECTORS))]


def _vector(dice: random.Random) -> Value:
    return [float(dice.randrange(9)) for _ in range(LENGTH_OF_VECTORS)]


def _pair(dice: random.Random) -> Value:
    return {"x": dice.choice([None, 1, 2]), "y": dice.choice([None, "", "p"])}


KINDS: Mapping[str, Kind] = {
    "int32": Kind(pa.int32(), lambda dice: dice.randrange(100), "int64", is_number=True),
    "int64": Kind(pa.int64(), lambda dice: dice.randrange(100), is_number=True),
    "float32": Kind(
        pa.float32(), lambda dice: float(dice.randrange(100)), "float64", is_number=True
    ),
    "float64": Kind(pa.float64(), lambda dice: float(dice.randrange(100)), is_number=True),
    "string": Kind(pa.string(), lambda dice: f"s{dice.randrange(30)}"),
    "bool": Kind(pa.bool_(), lambda dice: dice.random() < 0.5),
    "list": Kind(pa.list_(pa.int64()), _list),
    "pair": Kind(PAIR, _pair, lowest_file_version="2.1"),
    "vector": Kind(pa.list_(pa.float32(), LENGTH_OF_VECTORS), _vector),
    "uuid": Kind(pa.uuid(), lambda dice: f"{dice.randrange(1 << 32):032x}", parse=bytes.fromhex),
}
SPECIAL_KINDS: Mapping[str, Kind] = {
    "int8": Kind(pa.int8(), _one_of(-128, 127, 0, 5, 7)),
    "uint64": Kind(pa.uint64(), _one_of(0, 1, 2**63, 2**64 - 1)),
    "real": Kind(
        pa.float64(), _one_of("nan", "inf", "-inf", 0.0, -0.0, 1.5, -2.25, 1e300), parse=float
    ),
    "large_string": Kind(pa.large_string(), _one_of(*STRINGS)),
    "binary": Kind(pa.binary(), _one_of("", "00", "ff", "6162"), parse=bytes.fromhex),
    "date": Kind(
        pa.date32(), _one_of("1969-12-30", "1970-01-01", "2024-01-03"), parse=date.fromisoformat
    ),
    "timestamp": Kind(
        pa.timestamp("us"),
        _one_of("2024-01-02T00:00:00", "2024-01-02T00:00:00.000001", "1969-12-31T23:59:59"),
        parse=datetime.fromisoformat,
    ),
    "zoned": Kind(
        pa.timestamp("ms", "UTC"),
        _one_of("2024-01-02T00:00:00+00:00", "2024-01-03T00:00:00+00:00"),
        parse=datetime.fromisoformat,
    ),
    "decimal": Kind(pa.decimal128(12, 2), _one_of("1.25", "-7.00", "99.99", "0.00"), parse=Decimal),
}
"""Kinds that are drawn less often: each has values at the edges of its type."""

DERIVED_KINDS: Mapping[str, Kind] = {
    "derived": Kind(pa.string(), _one_of(None)),
    "state": Kind(pa.int64(), _one_of(None)),
    "computed": Kind(pa.int64(), _one_of(None)),
}
"""Kinds of columns that a function computes; what else writes them leaves them null.

LanceDB's refresh fills those of the kind `computed`, which rows of other writers must not have.
"""

ALL_KINDS: Mapping[str, Kind] = {**KINDS, **SPECIAL_KINDS, **DERIVED_KINDS}

NUMBERS = {"int32", "int64", "float32", "float64"}
LISTS = {"list", "vector"}
"""The feed converts small whole numbers between `NUMBERS`, and lists of them between these."""


def kinds_in_place_of(kind: str) -> list[str]:
    """Return the kinds that an overwrite may give to a column of a kind; values may convert."""
    group = NUMBERS | LISTS
    return sorted(group) if kind in group else [kind]


def to_arrow(values: Iterable[Value], kind: str) -> pa.Array:
    """Return plain values as an array of a kind."""
    parse, arrow = ALL_KINDS[kind].parse, ALL_KINDS[kind].arrow
    if parse is not None:
        values = [None if value is None else parse(value) for value in values]
    if kind == "uuid":
        return pa.ExtensionArray.from_storage(arrow, pa.array(values, pa.binary(16)))
    return pa.array(values, arrow)


def from_arrow(value: Any) -> Value:
    """Return a value that Arrow gave as plain data."""
    match value:
        case bytes():
            return value.hex()
        case UUID():
            return value.hex
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case float() if not isfinite(value):
            return str(value)
    return value


@dataclass(frozen=True)
class Column:
    """A column besides the key.

    Attributes:
        ident: Kept for the column's whole life: a rename keeps it, a cast or an overwrite does not.
        name: Its name.
        kind: One of `ALL_KINDS`.
        is_required: Whether it has no nulls.
        note: The value of the key "note" of its metadata; empty for none.
        computed_from: The name of the column that LanceDB computes it from; empty for none.
    """

    ident: int
    name: str
    kind: str
    is_required: bool = False
    note: str = ""
    computed_from: str = ""

    @property
    def arrow(self) -> pa.Field:
        metadata = {"note": self.note} if self.note else None
        return pa.field(self.name, ALL_KINDS[self.kind].arrow, not self.is_required, metadata)


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        serial: Kept for the row's whole life, as its row id is.
        values: By the columns' identities; no entry means null.
        created: The version that inserted it.
        touched: The version that last wrote it, other than by a value in a new column.
        filled: The version that last gave it a value in a new column.
        rewritten: The version that last may have changed it without a new row version.
    """

    serial: int
    values: Mapping[int, Value]
    created: int
    touched: int
    filled: int = 0
    rewritten: int = 0

    @property
    def updated(self) -> int:
        """Its last-updated-at version."""
        return max(self.touched, self.filled)


@dataclass(frozen=True)
class State:
    """One version.

    Attributes:
        columns: All but the key, in order.
        rows: By key.
        deletes: By key, the sequence of its last remembered delete.
        deletes_by: The name of that sequence, stored in a column or not; empty without deletes.
    """

    columns: tuple[Column, ...] = ()
    rows: Mapping[int, Row] = field(default_factory=dict)
    deletes: Mapping[int, int] = field(default_factory=dict)
    deletes_by: str = ""

    def by_serial(self) -> dict[int, Row]:
        return {row.serial: row for row in self.rows.values()}

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def row_columns(self) -> tuple[Column, ...]:
        """The columns that rows may have: all that LanceDB does not compute."""
        return tuple(column for column in self.columns if not column.computed_from)

    @property
    def row_names(self) -> list[str]:
        return [column.name for column in self.row_columns]

    @property
    def computed_from(self) -> set[str]:
        """The columns from which LanceDB computes others."""
        return {column.computed_from for column in self.columns} - {""}

    @property
    def plain_columns(self) -> tuple[Column, ...]:
        """The columns that no function computes."""
        return tuple(column for column in self.columns if column.kind not in DERIVED_KINDS)

    @property
    def schema(self) -> pa.Schema:
        key = pa.field(KEY, pa.int64(), nullable=False)
        return pa.schema([key, *(column.arrow for column in self.columns)])

    def table(self, rows: Mapping[int, Values], names: Iterable[str] | None = None) -> pa.Table:
        """Return rows as an Arrow table with the columns that rows of this version may have."""
        chosen = [c for c in self.row_columns if names is None or c.name in names]
        arrays = [pa.array(list(rows), pa.int64())]
        arrays += [to_arrow([row.get(c.name) for row in rows.values()], c.kind) for c in chosen]
        fields = [self.schema.field(KEY), *(column.arrow for column in chosen)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def stored(self, values: Values) -> dict[int, Value]:
        """Return values by identity instead of name."""
        return {c.ident: values[c.name] for c in self.columns if c.name in values}

    def values_by_name(self, row: Row) -> dict[str, Value]:
        """Return a row's values by name."""
        return {column.name: row.values.get(column.ident) for column in self.columns}

    # --- what verbs do

    def without(self, keys: Iterable[int]) -> "State":
        removed = set(keys)
        return replace(self, rows={k: row for k, row in self.rows.items() if k not in removed})

    def without_column(self, name: str) -> "State":
        return replace(self, columns=tuple(c for c in self.columns if c.name != name))

    def updated(self, rows: Mapping[int, Values], at: int) -> "State":
        """Return the state after the rows that exist have got values."""
        new = dict(self.rows)
        for key, values in rows.items():
            if key in new:
                row = new[key]
                new[key] = replace(row, values={**row.values, **self.stored(values)}, touched=at)
        return replace(self, rows=new)
