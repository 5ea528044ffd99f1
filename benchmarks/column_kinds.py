"""The columns that the benchmark of files writes and reads: common kinds of values.

A kind's group determines its target share of pylance's speed (`benchmarks.files`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

Random = np.random.Generator
Values = np.ndarray[Any, np.dtype[Any]]

MAX_BYTES: Final = 512 << 20
"""A column of wide rows has as many rows as fit into this."""

ALL_VERSIONS: Final = ("2.0", "2.1", "2.2")
TEXT: Final = (
    "the quick brown fox jumps over lazy dogs while seven wizards brew strong black coffee for "
    "travellers from distant towns who never learned how to say thank you in their own language"
)


@dataclass(frozen=True)
class ColumnKind:
    """A kind of column.

    Attributes:
        name: Its name.
        group: The group whose target applies.
        make: Returns a number of random values.
        bytes_per_row: About how many bytes a row has.
        versions: The file versions that support it.
        metadata: Its field's metadata.
    """

    name: str
    group: str
    make: Callable[[int, Random], pa.Array]
    bytes_per_row: int = 8
    versions: tuple[str, ...] = ALL_VERSIONS
    metadata: dict[str, str] = field(default_factory=dict)

    def num_rows(self, requested: int) -> int:
        """Return how many rows are measured, given the requested number."""
        return min(requested, max(1, MAX_BYTES // self.bytes_per_row))

    def table(self, num_rows: int) -> pa.Table:
        """Return a table of this one column; always the same."""
        array = self.make(num_rows, np.random.default_rng(7))
        schema = pa.schema([pa.field("column", array.type, metadata=self.metadata or None)])
        return pa.table([array], schema=schema)


def _nullable(count: int, random: Random) -> pa.Array:
    return pa.array(random.integers(0, 2**63, count), mask=random.random(count) < 0.1)


def _constant(count: int, _: Random) -> pa.Array:
    return pa.array(np.full(count, 42))


def _runs(count: int, random: Random) -> pa.Array:
    values = random.integers(0, 2**31, count // 200 + 1, np.int32)
    return pa.array(np.repeat(values, 200)[:count])


def _letters(lengths: Values, random: Random) -> pa.Array:
    """Random letters: strings that do not compress."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    letters = random.integers(ord("a"), ord("z") + 1, int(offsets[-1]), np.uint8)
    return _strings(offsets, letters)


def _strings(offsets: Values, letters: Values) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _texts(count: int, random: Random, words: tuple[int, int]) -> pa.Array:
    """Sentences of known words, cut from one long text."""
    text = np.frombuffer(" ".join(random.choice(TEXT.split(), 200_000)).encode(), np.uint8)
    lengths = random.integers(*words, count)
    starts = random.integers(0, len(text) - words[1], count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, lengths)
    return _strings(offsets, text[positions])


def _codes(count: int, random: Random) -> pa.Array:
    words = pa.array([f"category number {number}" for number in range(50)])
    return words.take(pa.array(random.integers(0, 50, count)))


def _coded(count: int, random: Random) -> pa.Array:
    words = pa.array([f"category number {number}" for number in range(50)])
    return pa.DictionaryArray.from_arrays(random.integers(0, 50, count, np.int32), words)


def _decimals(count: int, random: Random) -> pa.Array:
    words = np.zeros((count, 2), np.int64)
    words[:, 0] = random.integers(-(10**12), 10**12, count)
    words[:, 1] = words[:, 0] >> 63
    return pa.Array.from_buffers(pa.decimal128(20, 2), count, [None, pa.py_buffer(words)])


def _vectors(count: int, random: Random, size: int) -> pa.Array:
    items = random.standard_normal(count * size, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(items), size)


def _lists(count: int, random: Random, items: Callable[[int, Random], pa.Array]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 8, count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items(int(offsets[-1]), random))


def _integers(count: int, random: Random) -> pa.Array:
    return pa.array(random.integers(-(2**63), 2**63, count))


def _names(count: int, random: Random) -> pa.Array:
    return _letters(np.full(count, 12), random)


def _running_sums(count: int, random: Random) -> pa.Array:
    """Doubles of similar size, which pylance packs in the bits below their common ones."""
    return pa.array(np.cumsum(random.standard_normal(count)))


def _structs(count: int, random: Random) -> pa.Array:
    parts = [_integers(count, random), pa.array(random.random(count)), _codes(count, random)]
    return pa.StructArray.from_arrays(parts, ["a", "b", "c"], mask=pa.array(parts[1].is_null()))


def _points(count: int, random: Random) -> pa.Array:
    parts = [pa.array(random.random(count, np.float32)) for _ in range(3)]
    return pa.StructArray.from_arrays(parts, ["x", "y", "z"])


def _maps(count: int, random: Random) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, count))]).astype(np.int32)
    keys, items = _codes(int(offsets[-1]), random), _integers(int(offsets[-1]), random)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


def _times(count: int, random: Random) -> pa.Array:
    steps = random.integers(0, 2_000_000, count)
    return pa.array(1_700_000_000_000_000 + np.cumsum(steps)).cast(pa.timestamp("us"))


KINDS: Final = {
    kind.name: kind
    for kind in (
        ColumnKind("ids", "bit-packed", lambda n, _: pa.array(np.arange(n))),
        ColumnKind("small ints", "bit-packed", lambda n, r: pa.array(r.integers(0, 1000, n))),
        ColumnKind("int64", "flat", _integers),
        ColumnKind(
            "int32", "flat", lambda n, r: pa.array(r.integers(-(2**31), 2**31, n, np.int32))
        ),
        ColumnKind("float64", "flat", lambda n, r: pa.array(r.standard_normal(n))),
        ColumnKind("running sums", "bit-packed", _running_sums),
        ColumnKind("float32", "flat", lambda n, r: pa.array(r.standard_normal(n, np.float32))),
        ColumnKind("nullable int64", "flat", _nullable),
        ColumnKind(
            "few ints",
            "dictionary",
            lambda n, r: pa.array(r.integers(0, 2**60, 20)[r.integers(0, 20, n)]),
        ),
        ColumnKind("few strings", "dictionary", _codes, 20),
        ColumnKind("dictionary", "dictionary", _coded, 4),
        ColumnKind("runs", "runs", _runs),
        ColumnKind("constant", "constant", _constant),
        ColumnKind("bools", "flat", lambda n, r: pa.array(r.random(n) < 0.5), 1),
        ColumnKind("timestamps", "bit-packed", _times),
        ColumnKind("decimals", "flat", _decimals, 16),
        ColumnKind("names", "strings", _names, 16),
        ColumnKind("words", "strings", lambda n, r: _texts(n, r, (5, 30)), 20),
        ColumnKind("text", "strings", lambda n, r: _texts(n, r, (50, 200)), 130),
        ColumnKind("wide text", "strings", lambda n, r: _texts(n, r, (900, 1100)), 1000),
        ColumnKind("binary", "strings", lambda n, r: _names(n, r).cast(pa.binary()), 16),
        ColumnKind("vectors of 16", "vectors", lambda n, r: _vectors(n, r, 16), 64),
        ColumnKind("vectors of 768", "vectors", lambda n, r: _vectors(n, r, 768), 3072),
        ColumnKind("lists of ints", "nested", lambda n, r: _lists(n, r, _integers), 32),
        ColumnKind("lists of names", "nested", lambda n, r: _lists(n, r, _names), 60),
        ColumnKind("structs", "nested", _structs, 40),
        ColumnKind("maps", "nested", _maps, 50, versions=("2.2",)),
        ColumnKind(
            "packed structs", "flat", _points, 12, metadata={"lance-encoding:packed": "true"}
        ),
    )
}
