"""The batches of a table's life: scattered updates and some inserts, the same for every contender.

A row is a key, a float64, a string of 8 characters and, if asked for, a vector. Row number n has
the n-th key; a batch updates rows that are chosen at random among all before it, and inserts the
next ones.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]

KEY_KINDS: Final = ("ascending", "random", "strings")
"""int64 in the order of insertion; int64 that look random; strings of 32 hexadecimal digits."""

_HEX: Final = np.array([f"{number:02x}".encode() for number in range(256)])


@dataclass(frozen=True)
class Workload:
    """A table's life.

    Attributes:
        rows: Rows of the table before the first batch.
        updates: Rows that a batch changes.
        inserts: Rows that a batch adds.
        keys: One of `KEY_KINDS`.
        seed: Of all random choices.
        vector: The number of floats in a vector; 0 for no vector.
    """

    rows: int = 1_000_000
    updates: int = 18_000
    inserts: int = 2_000
    keys: str = "random"
    seed: int = 0
    vector: int = 0

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        kind = pa.string() if self.keys == "strings" else pa.int64()
        key = pa.field("key", kind, nullable=False)
        columns = [key, pa.field("value", pa.float64()), pa.field("text", pa.string())]
        if self.vector:
            columns.append(pa.field("vector", pa.list_(pa.float32(), self.vector)))
        return pa.schema(columns)

    def num_rows(self, batches: int) -> int:
        """Return how many rows the table has after some batches."""
        return self.rows + batches * self.inserts

    def first_rows(self) -> pa.Table:
        """Return the table before the first batch."""
        return self._table(np.arange(self.rows), 0)

    def batch(self, number: int) -> pa.Table:
        """Return the rows of a batch, by its number from 1, in random order."""
        order = np.random.default_rng((self.seed, number, 1))
        return self._table(order.permutation(self._rows_of(number)), number)

    def some_keys(self, count: int, batches: int) -> list[object]:
        """Return the keys of random rows of the table after some batches."""
        random = np.random.default_rng((self.seed, batches, count))
        keys: list[object] = self._keys(random.integers(0, self.num_rows(batches), count)).tolist()
        return keys

    def sum_of_values(self, batches: int) -> int:
        """Return the sum of the values after some batches."""
        values = np.zeros(self.num_rows(batches), np.int64)
        for number in range(1, batches + 1):
            values[self._rows_of(number)] = number
        return int(values.sum())

    def _rows_of(self, number: int) -> Numbers:
        random = np.random.default_rng((self.seed, number))
        before = self.num_rows(number - 1)
        old = random.choice(before, min(self.updates, before), replace=False, shuffle=False)
        return np.concatenate([old, np.arange(before, before + self.inserts)])

    def _table(self, rows: Numbers, number: int) -> pa.Table:
        values = np.full(len(rows), float(number))
        texts = pa.array((rows * 7919 + number) % 100_000_000).cast(pa.string())
        columns: list[pa.Array] = [self._keys(rows), pa.array(values), texts]
        if self.vector:
            random = np.random.default_rng((self.seed, number, 2))
            floats = random.random(len(rows) * self.vector, np.float32)
            columns.append(pa.FixedSizeListArray.from_arrays(floats, self.vector))
        return pa.table(columns, schema=self.schema)

    def _keys(self, rows: Numbers) -> pa.Array:
        if self.keys == "ascending":
            return pa.array(rows, pa.int64())
        if self.keys == "random":
            return pa.array(_scatter(rows.astype(np.uint64), self.seed).view(np.int64))
        halves = np.stack(
            [_scatter(rows.astype(np.uint64), self.seed + number) for number in (0, 1)]
        )
        digits = _HEX[np.ascontiguousarray(halves.T).view(np.uint8)]
        joined = np.ascontiguousarray(digits).view("S32").reshape(-1)
        return pa.array(joined, pa.binary()).cast(pa.string())


def _scatter(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Return a different random-looking number for each number: steps that can be reversed."""
    mixed = numbers + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
