"""What a table has to contain: the model of one line of versions, in plain Python.

A state is one version: its columns, by an identity that outlives renames, and its rows, by key.
States are immutable and share what they have in common, so each version keeps its own.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
    """

    arrow: pa.DataType
    draw: Callable[[random.Random], Value]
    wider: str = ""
    is_number: bool = False
    lowest_file_version: str = "2.0"


def _list(dice: random.Random) -> Value:
    return [dice.choice([None, 0, 1, 7]) for _ in range(dice.randrange(4))]


def _vector(dice: random.Random) -> Value:
    return [float(dice.randrange(9)) for _ in range(4)]


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
    "vector": Kind(pa.list_(pa.float32(), 4), _vector),
    "uuid": Kind(pa.uuid(), lambda dice: f"{dice.randrange(1 << 32):032x}"),
}


def to_arrow(values: Iterable[Value], kind: str) -> pa.Array:
    """Return plain values as an array of a kind."""
    if kind == "uuid":
        stored = [None if value is None else bytes.fromhex(value) for value in values]
        return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(stored, pa.binary(16)))
    return pa.array(values, KINDS[kind].arrow)


def from_arrow(value: Any) -> Value:
    """Return a value that Arrow gave as plain data."""
    if isinstance(value, bytes):
        return value.hex()
    return value.hex if hasattr(value, "hex") and not isinstance(value, float) else value


@dataclass(frozen=True)
class Column:
    """A column besides the key.

    Attributes:
        ident: Kept for the column's whole life: a rename keeps it, a cast or an overwrite does not.
        name: Its name.
        kind: One of `KINDS`.
        is_required: Whether it has no nulls.
        note: The value of the key "note" of its metadata; empty for none.
    """

    ident: int
    name: str
    kind: str
    is_required: bool = False
    note: str = ""

    @property
    def arrow(self) -> pa.Field:
        metadata = {"note": self.note} if self.note else None
        return pa.field(self.name, KINDS[self.kind].arrow, not self.is_required, metadata)


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        serial: Kept for the row's whole life, as its row id is.
        values: By the columns' identities; no entry means null.
        created: The version that inserted it.
        touched: The version that last wrote it.
        filled: The version that last gave it a value in a new column.
    """

    serial: int
    values: Mapping[int, Value]
    created: int
    touched: int
    filled: int = 0


@dataclass(frozen=True)
class State:
    """One version.

    Attributes:
        columns: All but the key, in order.
        rows: By key.
    """

    columns: tuple[Column, ...] = ()
    rows: Mapping[int, Row] = field(default_factory=dict)

    def by_serial(self) -> dict[int, Row]:
        return {row.serial: row for row in self.rows.values()}

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def schema(self) -> pa.Schema:
        key = pa.field(KEY, pa.int64(), nullable=False)
        return pa.schema([key, *(column.arrow for column in self.columns)])

    def table(self, rows: Mapping[int, Values], names: Iterable[str] | None = None) -> pa.Table:
        """Return rows as an Arrow table with the columns of this version."""
        chosen = [c for c in self.columns if names is None or c.name in names]
        arrays = [pa.array(list(rows), pa.int64())]
        arrays += [to_arrow([row.get(c.name) for row in rows.values()], c.kind) for c in chosen]
        fields = [self.schema.field(KEY), *(column.arrow for column in chosen)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def stored(self, values: Values) -> dict[int, Value]:
        """Return values by identity instead of name."""
        return {c.ident: values[c.name] for c in self.columns if c.name in values}

    def shown(self, row: Row) -> dict[str, Value]:
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
