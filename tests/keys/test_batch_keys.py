import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import InvalidInputError
from lance_stream.keys import batch_keys as keys
from lance_stream.keys.batch_keys import (
    KeyLookup,
    check_key_type,
    check_no_null_keys,
)

# The first and the last eight bytes are the same.
TWINS = ("12345678--middle--12345678", "12345678++middle++12345678")

values = {
    pa.int64(): st.integers(-3, 3),
    pa.uint8(): st.integers(0, 3),
    pa.string(): st.sampled_from(["", "a", "b", "\0", *TWINS]),
    pa.large_binary(): st.sampled_from([b"", b"a", b"\xff", *(twin.encode() for twin in TWINS)]),
    pa.binary(8): st.sampled_from([b"12345678", b"\0" * 8]),
    pa.binary(26): st.sampled_from([twin.encode() for twin in TWINS]),
    pa.binary(2): st.sampled_from([b"aa", b"\0\0"]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)),
    pa.timestamp("us", "UTC"): st.sampled_from(
        [datetime.datetime(2024, 1, day, tzinfo=datetime.UTC) for day in (1, 2)]
    ),
    pa.decimal128(9, 2): st.sampled_from([decimal.Decimal("1.00"), decimal.Decimal("-2.50")]),
    pa.decimal256(50, 2): st.sampled_from([decimal.Decimal("1.00"), decimal.Decimal("-2.50")]),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["x", "y"]),
}


@st.composite
def keys_and_rows(draw: st.DrawFn) -> tuple[list[pa.Array], list[pa.Array]]:
    types = draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=3))

    def rows(*, nulls: bool) -> list[pa.Array]:
        columns = [st.none() | values[type_] if nulls else values[type_] for type_ in types]
        drawn = draw(st.lists(st.tuples(*columns), max_size=12))
        return [pa.array([row[at] for row in drawn], type_) for at, type_ in enumerate(types)]

    return rows(nulls=False), rows(nulls=True)


def rows_of(keys: list[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(key.to_pylist() for key in keys), strict=True))


@given(keys_and_rows())
def test_all_key_columns_identify_a_row(
    drawn_keys: tuple[list[pa.Array], list[pa.Array]],
) -> None:
    """A lookup that ignores a column or a null would update the row of another key."""
    batch, table = drawn_keys
    lookup = KeyLookup(batch)
    distinct = list(dict.fromkeys(rows_of(batch)))
    assert lookup.num_keys == len(distinct)
    assert [distinct[number] for number in lookup.key_of_row.tolist()] == rows_of(batch)
    number_of = {key: number for number, key in enumerate(distinct)}
    expected = [number_of.get(key, -1) for key in rows_of(table)]
    assert lookup.find(table).tolist() == expected


@given(keys_and_rows(), st.integers(0, 3), st.booleans())
def test_lookups_find_any_number_of_rows(
    drawn_keys: tuple[list[pa.Array], list[pa.Array]], start: int, through_a_pickle: bool
) -> None:
    """Large tables use the filter and small ones do not, also after Spark has
    pickled the lookup.
    """
    batch, table = drawn_keys
    lookup = KeyLookup(batch)
    sliced = [column.slice(start) for column in table]
    expected = lookup.find(sliced)
    many = [pa.concat_arrays([column] * 20) for column in sliced]
    if through_a_pickle:
        lookup = pickle.loads(pickle.dumps(lookup))
    rows, numbers = lookup.find_rows(many)
    assert lookup.find(many).tolist() == expected.tolist() * 20
    assert rows.tolist() == [at for at, number in enumerate(expected.tolist() * 20) if number >= 0]
    assert numbers.tolist() == [number for number in expected.tolist() * 20 if number >= 0]


def test_similar_strings_are_distinguished() -> None:
    """Their first and last eight bytes are equal, from which the words are computed."""
    rows = pa.array([*TWINS, None, TWINS[0]])
    assert KeyLookup([pa.array(TWINS[:1])]).find([rows]).tolist() == [0, -1, -1, 0]
    assert KeyLookup([pa.array(TWINS)]).find([rows]).tolist() == [0, 1, -1, 0]


def test_large_batches_work_without_the_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The filter has a maximum size, beyond which lookups must still be exact."""
    monkeypatch.setattr("lance_stream.keys.batch_keys.MAX_KEYS", 3)
    keys = [pa.array([5, 6, 7, 8]), pa.array(list("aabb"))]
    lookup = KeyLookup(keys)
    assert lookup._search is None
    assert lookup.find([key[::-1] for key in keys]).tolist() == [3, 2, 1, 0]
    assert KeyLookup([pa.array([], pa.int64())]).find([pa.array([1])]).tolist() == [-1]


def test_composite_keys_do_not_overflow() -> None:
    """Numbering combinations of six columns by multiplication exceeds 64 bits."""
    dice = np.random.default_rng(1)
    columns = [pa.array(dice.permutation(5000)) for _ in range(6)]
    lookup = KeyLookup(columns)
    assert lookup.find([column.slice(4000) for column in columns]).tolist() == list(
        range(4000, 5000)
    )


@pytest.mark.floors
def test_lookups_know_their_keys_bounds() -> None:
    """The bounds of a batch select the fragments that have to be read."""
    lookup = KeyLookup([pa.array([3, 1, 2]), pa.array(["b", "c", "a"])])
    assert [(low.as_py(), high.as_py()) for low, high in lookup.bounds()] == [(1, 3), ("a", "c")]


@pytest.mark.parametrize("arrow_type", list(values))
def test_supported_key_types_are_accepted(arrow_type: pa.DataType) -> None:
    """Every type that the lookup compares correctly should be usable as a key."""
    check_key_type("k", arrow_type)


@pytest.mark.parametrize(
    "arrow_type", [pa.float64(), pa.list_(pa.int8()), pa.null(), pa.time32("s")]
)
def test_unsupported_key_types_are_refused(arrow_type: pa.DataType) -> None:
    """A type without one obvious equality, such as floats with NaN and two zeros, would make
    matches ambiguous.
    """
    with pytest.raises(InvalidInputError, match="'k' cannot be a key: its type is"):
        check_key_type("k", arrow_type)


@pytest.mark.floors
def test_null_keys_are_counted_and_refused() -> None:
    """A row without a key can be found by no later batch; the count and an example show how bad
    the batch is.
    """
    keys = [pa.array([1, 2, None, None]), pa.array(["a", None, "c", "d"])]
    with pytest.raises(InvalidInputError, match=r"3 of 4 rows .* \(a=2, b=None\)"):
        check_no_null_keys(["a", "b"], keys)
    check_no_null_keys(["a"], [pa.array([1, 2])])


def test_lookups_need_a_column() -> None:
    """Without one, all rows would have the same key."""
    with pytest.raises(InvalidInputError, match="a key needs at least one column"):
        KeyLookup([])


def test_keys_with_equal_hashes_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that all differ are recognized by their hashes, while duplicates and collisions are
    decided by values.
    """
    monkeypatch.setattr(keys, "hash_keys", lambda columns: np.zeros(len(columns[0]), np.uint64))
    assert KeyLookup([pa.array(["a", "b", "a"])]).key_of_row.tolist() == [0, 1, 0]
    assert KeyLookup([pa.array(["a", "b", "c"])]).key_of_row.tolist() == [0, 1, 2]
    monkeypatch.undo()
    assert KeyLookup([pa.array(["a", "b", "a"])]).key_of_row.tolist() == [0, 1, 0]
    assert KeyLookup([pa.array(["a", "b", "c"])]).distinct[0].to_pylist() == ["a", "b", "c"]
