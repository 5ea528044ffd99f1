"""The keys of a batch, as a lookup: which rows of a table have one of them. Defines equal keys.

A key is one or more columns. A `KeyLookup` is built from the keys of a batch, and finds the key of
the batch that each row of the table has. Each key column is replaced by codes (indices into the
batch's distinct values, from an Arrow hash table), and the codes of several columns are combined
pair by pair. No value becomes a Python object.

    batch     1, a    2, a    2, b            row    1, b    2, b    3, a
    codes     0, 0    1, 0    1, 1            codes  0, 1    1, 1    -, 0
    key       0       1       2               key    none    2       none

Most rows of a table have no key of the batch. They are excluded first, by a word computed from
their key (`key_words`, `key_filter`). The remaining rows are looked up by their words, and matches
are compared exactly; if two keys of the batch share a word, the rows are looked up by code instead.

Keys of different types are not compared: the caller casts the batch to the table's types.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Positions, U64s
from lance_stream.errors import InvalidInputError
from lance_stream.keys.key_filter import MAX_KEYS, KeyFilter
from lance_stream.keys.key_words import are_exact, hash_keys, key_words, without_dictionary
from lance_stream.keys.value_comparison import show_value

NO_MATCH = -1
"""Index of a missing value."""

_MAX_SEARCHES_PER_KEY = 4
"""Above this number of candidate rows per key, a hash table of the keys pays off."""


def check_key_type(name: str, arrow_type: pa.DataType) -> None:
    """Raise unless a column can be a key, or part of one.

    Raises:
        InvalidInputError: Programs disagree about the equality of values of its type.
    """
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if not any(accepts(arrow_type) for accepts in _KEY_TYPES):
        raise InvalidInputError(
            f"the column {name!r} cannot be a key: its type is {arrow_type}. Keys are integers, "
            "strings, bytes, dates, timestamps, decimals or booleans"
        )


_KEY_TYPES = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_boolean,
)


def check_no_null_keys(names: Sequence[str], keys: Sequence[pa.Array]) -> None:
    """Raise if a key, or a part of one, is null.

    Args:
        names: The key columns.
        keys: (num_rows,) values of each key column.

    Raises:
        InvalidInputError: Some keys are null; the message has their number and an example.
    """
    bad = np.zeros(len(keys[0]), np.bool_)
    for key in keys:
        if key.null_count:
            bad |= pc.is_null(key).to_numpy(zero_copy_only=False)
    num_bad = int(np.count_nonzero(bad))
    if num_bad:
        text = show_key(names, keys, int(np.argmax(bad)))
        raise InvalidInputError(
            f"{num_bad} of {len(bad)} rows have no key, for example {text}: a null key never "
            "matches, so every batch would insert such a row again. Filter out these rows, or fill "
            "in the key"
        )


class KeyLookup:
    """The distinct keys of a batch, and which rows have them.

    Args:
        keys: (num_rows,) values of each key column, none of them null.

    Attributes:
        key_of_row: (num_rows,) i64, the number of each row's key, from 0 in order of first
            occurrence.
        num_keys: The number of distinct keys.
        distinct: The distinct values of each key column, in order of first occurrence.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self.distinct: list[pa.Array] = []
        self._pairs: list[tuple[int, pa.Array]] = []
        codes: Positions | None = None
        for values in map(without_dictionary, keys):
            if len(keys) == 1 and _are_distinct(values):
                distinct, indices = values, np.arange(len(values))
            else:
                distinct = pc.unique(values)
                indices = _index_in(values, distinct)
            self.distinct.append(distinct)
            if codes is None:
                codes = indices
            else:
                pairs = pa.array(codes * len(distinct) + indices)
                distinct_pairs = pc.unique(pairs)
                self._pairs.append((len(distinct), distinct_pairs))
                codes = _index_in(pairs, distinct_pairs)
        if codes is None:
            raise InvalidInputError("a key needs at least one column")
        self.key_of_row: Positions = codes
        self.num_keys = len(self._pairs[-1][1] if self._pairs else self.distinct[0])

    def find(self, keys: Sequence[pa.Array]) -> Positions:
        """Return the number of each row's key among the keys of the batch.

        Args:
            keys: (n,) values of each key column, in the batch's types; may be null.

        Returns:
            (n,) i64; -1 where the batch does not have the key.
        """
        numbers = np.full(len(keys[0]), NO_MATCH, np.int64)
        rows, positions = self.find_rows(keys)
        numbers[rows] = positions
        return numbers

    def find_rows(self, keys: Sequence[pa.Array]) -> tuple[Positions, Positions]:
        """Return the rows that have a key of the batch, ascending, and the numbers of their keys.

        Args:
            keys: As for `find`.
        """
        columns = [without_dictionary(key) for key in keys]
        search = self._search
        if search is None:
            numbers = self._numbers(columns)
            rows = np.flatnonzero(numbers >= 0)
            return rows, numbers[rows]
        rows, words = search.filter.candidates(columns)
        if not len(rows):
            return rows, rows
        if search.words is None or len(rows) > _MAX_SEARCHES_PER_KEY * self.num_keys:
            candidates = [column.take(pa.array(rows)) for column in columns]
            numbers = self._numbers(candidates)
            hits = numbers >= 0
            return rows[hits], numbers[hits]
        nearest = np.minimum(np.searchsorted(search.words, words), self.num_keys - 1)
        hits = search.words[nearest] == words
        rows, numbers = rows[hits], search.numbers[nearest[hits]]
        same = _are_same(columns, search.columns, rows, numbers)
        return rows[same], numbers[same]

    @cached_property
    def _search(self) -> "_Search | None":
        """The search structure; None if there are no keys, or too many."""
        if not 0 < self.num_keys <= MAX_KEYS:
            return None
        columns = self.key_columns
        words = key_words(columns)
        order = np.argsort(words)
        in_order = words[order]
        is_unique = bool((in_order[1:] > in_order[:-1]).all())
        return _Search(columns, KeyFilter(words), in_order if is_unique else None, order)

    def __getstate__(self) -> dict[str, Any]:
        # Workers rebuild these faster than they could receive them.
        cached = ("_search", "key_columns")
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    def _numbers(self, keys: Sequence[pa.Array]) -> Positions:
        numbers = _index_in(keys[0], self.distinct[0])
        for values, distinct, (factor, code_pairs) in zip(
            keys[1:], self.distinct[1:], self._pairs, strict=True
        ):
            indices = _index_in(values, distinct)
            has_both = (numbers >= 0) & (indices >= 0)
            pairs = np.where(has_both, numbers * factor + indices, NO_MATCH)
            numbers = _index_in(pa.array(pairs), code_pairs)
        return numbers

    @cached_property
    def key_columns(self) -> list[pa.Array]:
        """The (num_keys,) values of each key column, by the number of the key."""
        columns: list[pa.Array] = []
        codes: Positions | None = None
        for index in range(len(self._pairs), 0, -1):
            factor, code_pairs = self._pairs[index - 1]
            pairs = code_pairs.to_numpy() if codes is None else code_pairs.to_numpy()[codes]
            codes = pairs // factor
            columns.append(self.distinct[index].take(pa.array(pairs % factor)))
        first = self.distinct[0]
        columns.append(first if codes is None else first.take(pa.array(codes)))
        return columns[::-1]

    def bounds(self) -> list[tuple[pa.Scalar, pa.Scalar]]:
        """Return the smallest and the largest value of each key column."""
        extremes = [pc.min_max(values) for values in self.distinct]
        return [(extreme["min"], extreme["max"]) for extreme in extremes]


def _are_distinct(values: pa.Array) -> bool:
    """Return whether no value occurs twice. May return False because of a hash collision.

    Args:
        values: (n,) without nulls.
    """
    words = np.sort(key_words([values]) if are_exact([values]) else hash_keys([values]))
    return bool((words[1:] > words[:-1]).all())


def _are_same(
    columns: Sequence[pa.Array], keys: Sequence[pa.Array], rows: Positions, numbers: Positions
) -> npt.NDArray[np.bool_]:
    """Return which rows equal the key with the same word."""
    same = np.ones(len(rows), np.bool_)
    is_exact = are_exact(columns)
    if is_exact and not columns[0].null_count:
        return same
    for values, stored in zip(columns, keys, strict=True):
        row_values = values.take(pa.array(rows))
        if is_exact:
            equal = pc.is_valid(row_values)
        else:
            equal = pc.equal(row_values, stored.take(pa.array(numbers)))
        same &= pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
    return same


class _Search(NamedTuple):
    """The search structure.

    Attributes:
        columns: (num_keys,) values of each key column.
        filter: Excludes most rows.
        words: (num_keys,) the words of the keys, ascending; None if two keys share a word.
        numbers: (num_keys,) the numbers of the keys in that order.
    """

    columns: list[pa.Array]
    filter: KeyFilter
    words: U64s | None
    numbers: Positions


def _index_in(values: pa.Array, distinct: pa.Array) -> Positions:
    """Return the index of each value in `distinct`, or -1."""
    indices = pc.fill_null(pc.index_in(values, value_set=distinct), NO_MATCH)
    if values.null_count:
        indices = pc.if_else(pc.is_null(values), NO_MATCH, indices)
    numbers: Positions = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def show_key(names: Sequence[str], keys: Sequence[pa.Array], row: int) -> str:
    """Format the key of a row for messages."""
    parts = [f"{name}={show_value(key[row])}" for name, key in zip(names, keys, strict=True)]
    return "(" + ", ".join(parts) + ")"
