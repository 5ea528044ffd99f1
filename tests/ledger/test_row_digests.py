"""Digests of rows: equal for equal rows, and as the note defines them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.ledger import row_digests
from lance_stream.ledger.row_digests import (
    NO_ROWS,
    ROWS_PER_STEP,
    RowsDigest,
    add_up,
    digest_of,
    row_hashes,
)
from tests.ledger.digest_by_definition import digest
from tests.oracle.type_cases import COLUMNS, SHAPES, Column

ROWS = 16


def digest_of_column(values: Any, arrow: pa.DataType | None = None, name: str = "x") -> str:
    array = values if isinstance(values, pa.Array) else pa.array(values, arrow)
    return digest_of(pa.record_batch([array], [name])).text


def table_of_many_types() -> pa.Table:
    return pa.table(
        {
            "id": pa.array([1, 2, 3, None], pa.int64()),
            "value": pa.array([0.5, -0.0, float("nan"), 0.1], pa.float64()),
            "name": pa.array(["", "a", "Straße", "longer than eight bytes"]),
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0], None, [5.0, 6.0]], pa.list_(pa.float32())),
            "price": pa.array([Decimal("1.50"), Decimal("-3.00"), None, Decimal("0.01")]),
            "at": pa.array([0, 1, -1, 10**15], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(1970, 1, 1), None, dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
            "point": pa.array([{"x": 1, "y": None}, {"x": None, "y": None}, None, {"x": 2}]),
            "tags": pa.array([[("a", 1)], [], None, [("b", 2), ("c", 3)]], pa.map_("str", "i8")),
        }
    )


@pytest.mark.floors
def test_digests_never_change() -> None:
    """Ledgers and users keep digests, so a failure here means that the definition was changed."""
    row_digest = digest_of(table_of_many_types())
    assert str(row_digest) == "4 rows, b9e75fa3f93d7084d404bf673cc8dc20"
    assert digest(table_of_many_types()) == (4, row_digest.text)
    assert digest_of_column([1, 2, 3]) == "32520ceef98ce47d75fe11c7b59c60cf"
    assert digest_of_column(["abc", None]) == "8c78058ebca638fdc428e07da0d42092"
    assert (
        digest_of_column([[0.1, 0.2]], pa.list_(pa.float32())) == "a341e395fa23516ce2eb72488f456ff2"
    )


PLAIN = [
    column for column in COLUMNS.values() if not any("encoding" in key for key in column.metadata)
]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.floors
@pytest.mark.parametrize("column", PLAIN, ids=lambda column: column.name)
def test_digests_match_the_definition(column: Column) -> None:
    """The vectorized code must agree with the short definition for every type and shape, slices
    included.
    """
    shapes = [shape for shape in SHAPES if column.suits(shape)]
    assert shapes
    for shape in shapes:
        array = column.array(shape, np.random.default_rng(1))
        table = pa.table({"x": array.slice(3, ROWS) if len(array) > ROWS else array})
        row_digest = digest_of(table)
        assert (row_digest.num_rows, row_digest.text) == digest(table), shape.name


@pytest.mark.parametrize(
    "lists",
    [
        [[1, 2], [3], [4, 5, 6]],  # as many items as if all had two
        [[1, 2], [], [3, 4]],
        [[1, 2], None, [3, 4, 5]],
        [[1], [2, 3]],
        [[1, None], [2, 3]],
    ],
)
def test_uneven_lists_match_the_definition(lists: list[list[int] | None]) -> None:
    """Lists of one length have a faster way to the same digest."""
    table = pa.table({"x": pa.array(lists, pa.list_(pa.int8()))})
    for rows in table, table.slice(1):
        assert digest_of(rows).text == digest(rows)[1]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["", ""]),
        pa.array([b"", None], pa.binary(0)),
        pa.array(["a", ""]).slice(1),
    ],
)
def test_texts_may_have_no_bytes(array: pa.Array) -> None:
    """Arrow may omit the buffer of their bytes."""
    table = pa.table({"x": array})
    assert digest_of(table).text == digest(table)[1]


def test_digests_ignore_row_and_column_order() -> None:
    """A replay may have its rows and columns in another order."""
    table = table_of_many_types()
    others = table.take(pa.array([2, 0, 3, 1])).select(sorted(table.column_names))
    assert digest_of(others) == digest_of(table)


def test_digests_of_parts_add_up() -> None:
    """Tasks digest their own rows, and the driver adds the results in any order."""
    table = table_of_many_types()
    parts = [digest_of(table.slice(start, 1)) for start in range(4)]
    assert add_up(parts) == digest_of(table)
    assert add_up([]) == NO_ROWS == digest_of(table.slice(0, 0))


def test_rows_beyond_one_chunk_count() -> None:
    """Long columns are digested in chunks, and the last incomplete one is easily lost."""
    ids = pa.array(range(ROWS_PER_STEP + 5))
    whole = pa.record_batch([ids], ["id"])
    assert digest_of(whole) == digest_of(whole.slice(0, 7)) + digest_of(whole.slice(7))


def test_repeated_rows_count_every_time() -> None:
    """With XOR instead of a sum two equal rows would cancel out."""
    once, twice = (digest_of(pa.table({"x": [7] * count})) for count in (1, 2))
    assert twice == once + once != once


def test_swapped_values_change_the_digest() -> None:
    """A digest per column or element alone would not notice values that change places."""
    one = pa.table({"x": [1, 2], "y": [3, 4]})
    assert digest_of(pa.table({"x": [2, 1], "y": [3, 4]})) != digest_of(one)
    assert digest_of(pa.table({"x": [3, 2], "y": [1, 4]})) != digest_of(one)
    assert digest_of(pa.table({"y": [1, 2], "x": [3, 4]})) != digest_of(one)
    nested = [[[1, 2], [3, 4]], [[1, 3], [2, 4]], [[1, 2, 3], [4]], [[2, 1], [3, 4]]]
    assert len({digest_of_column([value]) for value in nested}) == 4
    words = ["aaaaaaaabbbbbbbb", "bbbbbbbbaaaaaaaa", "aaaaaaaabbbbbbbb\0", "\0aaaaaaaabbbbbbb"]
    assert len({digest_of_column([word]) for word in words}) == 4


def test_null_columns_equal_missing_ones() -> None:
    """A column that the stream added later is null in earlier batches, which
    must remain replays.
    """
    one = pa.table({"x": [1, 2]})
    for arrow in (pa.null(), pa.string(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())])):
        assert digest_of(one.append_column("y", pa.nulls(2, arrow))) == digest_of(one)
    part = [{"x": 1, "y": None}, {"x": 2, "y": None}]
    assert digest_of_column(part) == digest_of_column([{"x": 1}, {"x": 2}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([None], [0]),
        ([None], [{"a": None}]),
        ([None], [[]]),
        ([[]], [[None]]),
        ([[0]], [[None]]),
        ([[0, None]], [[None, 0]]),
        ([""], [None]),
        (["1"], [b"1"]),
        ([1], [True]),
        ([0], [dt.date(1970, 1, 1)]),
        ([dt.datetime(2024, 1, 1)], [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
        ([1], [-1]),
        ([1 << 62], [-(1 << 62)]),
        ([Decimal("1.5")], [Decimal("15")]),
        ([Decimal("1.5")], [Decimal("-1.5")]),
        ([0.1], [float(np.float32(0.1))]),
        ([float("inf")], [float("nan")]),
    ],
)
def test_different_values_have_different_digests(one: list[Any], other: list[Any]) -> None:
    """Nulls, empty lists, signs, zones and similar types are easily confused in raw bytes."""
    assert digest_of_column(one) != digest_of_column(other)


def test_names_are_part_of_values() -> None:
    """Two columns that exchange their names hold other data."""
    assert digest_of_column([1], name="x") != digest_of_column([1], name="y")
    assert digest_of_column([{"x": 1}]) != digest_of_column([{"y": 1}])


NUMBERS = [0, 1, 100, 127]
SAME_VALUES: dict[str, list[pa.Array]] = {
    "numbers": [
        *(pa.array(NUMBERS, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(
            pa.array(map(Decimal, NUMBERS), arrow)
            for arrow in (pa.decimal128(5, 2), pa.decimal128(38, 20), pa.decimal256(76, 30))
        ),
        *(
            pa.array(map(Decimal, NUMBERS), getattr(pa, name)(5, 2))
            for name in ("decimal32", "decimal64")
            if hasattr(pa, name)
        ),
        pa.array(NUMBERS, pa.int64()).dictionary_encode(),
        pc.run_end_encode(pa.array(NUMBERS, pa.int64())),
    ],
    "extensions": [
        pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), [2]),
            pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        ),
    ],
    "large numbers": [
        pa.array([(1 << 64) - 1, 1 << 63], pa.uint64()),
        pa.array([Decimal((1 << 64) - 1), Decimal(1 << 63)], pa.decimal128(20, 0)),
        pa.array([Decimal((1 << 64) - 1), Decimal(1 << 63)], pa.decimal256(40, 5)),
    ],
    "large decimals": [
        pa.array([Decimal(10**30), Decimal(-(10**30)) / 4], pa.decimal128(38, 6)),
        pa.array([Decimal(10**30), Decimal(-(10**30)) / 4], pa.decimal256(70, 9)),
    ],
    "powers of ten": [
        pa.array([Decimal(500), Decimal(-1200)], pa.decimal128(5, 1)),
        pa.array([Decimal(500), Decimal(-1200)], pa.decimal128(5, -2)),
    ],
    "floats": [
        pa.array(np.array([0.5, -0.0, np.nan, np.inf], dtype)) for dtype in ("f2", "f4", "f8")
    ]
    + [pa.array(np.array([0.5, 0.0, -np.nan, np.inf], "f8"))],
    "texts": [
        pa.array(["a", "", "a longer text"], arrow)
        for arrow in (pa.string(), pa.large_string(), pa.string_view())
    ]
    + [pa.array(["a", "", "a longer text"]).dictionary_encode()],
    "bytes": [
        pa.array([b"abc", b"def"], arrow)
        for arrow in (pa.binary(), pa.large_binary(), pa.binary(3), pa.binary_view())
    ],
    "lists": [
        pa.array([[1.0, 2.5], [3.0, None], [0.1, 0.1]], arrow).cast(wide)
        for arrow, wide in (
            (pa.list_(pa.float32()), pa.list_(pa.float32())),
            (pa.list_(pa.float32()), pa.large_list(pa.float64())),
            (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 2)),
        )
    ],
    "dates": [
        pa.array([0, -1, 19000], pa.date32()),
        pa.array([0, -1, 19000], pa.date32()).cast("date64"),
    ],
    "times": [
        pa.array([0, 86_399], pa.time32("s")),
        pa.array([0, 86_399_000], pa.time32("ms")),
        pa.array([0, 86_399 * 10**6], pa.time64("us")),
        pa.array([0, 86_399 * 10**9], pa.time64("ns")),
    ],
    "timestamps": [
        pa.array([-1, 0, 10**9], pa.timestamp("s")).cast(pa.timestamp(unit))
        for unit in ("s", "ms", "us", "ns")
    ],
    "instants": [
        pa.array([-1, 0, 10**9], pa.timestamp("s", zone)).cast(pa.timestamp(unit, zone))
        for unit, zone in (("s", "UTC"), ("us", "UTC"), ("ns", "Asia/Kolkata"))
    ],
    "durations": [
        pa.array([-1, 0, 10**9], pa.duration("s")).cast(pa.duration(unit))
        for unit in ("s", "ms", "us", "ns")
    ],
    "structs": [
        pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None]),
        pa.array(
            [{"b": "x", "a": 1}, {"b": "y", "a": None}, None],
            pa.struct([("b", pa.large_string()), ("a", pa.int8())]),
        ),
    ],
    "maps": [
        pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int8())),
        pa.array([[("b", None), ("a", 1)], []], pa.map_(pa.large_string(), pa.int64())),
    ],
}


@pytest.mark.floors
@pytest.mark.parametrize("arrays", SAME_VALUES.values(), ids=SAME_VALUES.keys())
def test_equal_values_digest_alike_across_types(arrays: list[pa.Array]) -> None:
    """The table may widen a column between a batch and its replay."""
    assert len({digest_of_column(array) for array in arrays}) == 1


def test_long_values_match_the_definition() -> None:
    """Long texts and lists are digested by other code than short ones."""
    lengths = [0, 7, 8, 9, 63, 64, 65, 500, 65_537]
    random = np.random.default_rng(2)
    texts = pa.table({"x": [random.bytes(length) for length in lengths]})
    assert digest_of(texts).text == digest(texts)[1]
    for lengths in ([0, 3, 8192, 8193], [8193, 8193]):
        lists = pa.table({"x": [random.integers(0, 99, length).tolist() for length in lengths]})
        assert digest_of(lists).text == digest(lists)[1]


def test_digests_do_not_depend_on_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts and lists are digested in steps of limited memory."""
    random = np.random.default_rng(3)
    texts = [random.bytes(length) for length in (70, 900, 0, 70, 3, 500)]
    lists = [random.integers(0, 99, length).tolist() for length in (7, 0, 90, 7, 3, 50)]
    table = pa.table({"x": texts, "y": lists, "z": [[1.5, 2.5]] * 6})
    expected = digest_of(table)
    for num_elements in (1, 20, 100):
        monkeypatch.setattr(row_digests, "_ELEMENTS_PER_STEP", num_elements)
        assert digest_of(table) == expected


def test_rows_have_hashes_of_their_values() -> None:
    """Replanned rows are found by their hashes, without a comparison of every pair."""
    batch = pa.record_batch({"x": [1, 2, 1, None], "y": ["a", "a", "a", "a"]})
    first, second, third, fourth = row_hashes(batch).tolist()
    assert first == third
    assert len({first, second, fourth}) == 3
    assert row_hashes(batch.slice(2)).tolist() == [third, fourth]
    assert row_hashes(batch.slice(4)).tolist() == []


def test_values_under_nulls_do_not_count() -> None:
    """Arrow leaves arbitrary bytes where a value is null."""
    hidden = pa.array([1, 2, 3]).to_numpy()
    mask = np.array([False, True, False])
    assert digest_of_column(pa.array(hidden, mask=mask)) == digest_of_column([1, None, 3])
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2]), pa.array([5, 6]), mask=pa.array([False, True])
    )
    assert digest_of_column(lists) == digest_of_column([[5], None])


@pytest.mark.parametrize("item", [pa.string(), pa.large_binary(), pa.binary(2), pa.int8()])
def test_digests_ignore_values_outside_slices(item: pa.DataType) -> None:
    """Arrow's slices keep the bytes of all rows, even if no value of theirs is in the slice."""
    text = [b"ab", b"cd"] if item != pa.int8() else [1, 2]
    items = pa.array([text, [], [], None], pa.list_(item))
    assert digest_of_column(items.slice(1, 2)) == digest_of_column([[], []], pa.list_(item))
    assert digest_of_column(items.slice(1)) == digest_of_column([[], [], None], pa.list_(item))


def test_digests_are_parsed_from_their_text() -> None:
    """The text is stored in ledgers, so damaged text must be refused."""
    row_digest = digest_of(table_of_many_types())
    assert RowsDigest.parse(row_digest.num_rows, row_digest.text) == row_digest
    for text in ("", "0" * 31, "G" * 32, "A" * 32):
        with pytest.raises(InvalidInputError, match="not a digest"):
            RowsDigest.parse(1, text)
    with pytest.raises(InvalidInputError, match="-1 rows"):
        RowsDigest.parse(-1, row_digest.text)
    assert RowsDigest.parse(0, NO_ROWS.text) == NO_ROWS


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 131_073])
def test_long_texts_end_where_they_end(length: int) -> None:
    """A text is digested in sections of 64 KiB; the last one must not reach into the next text."""
    texts = ["a" * length, "b" * length]
    parts = [digest_of(pa.record_batch({"s": [text]})) for text in texts]
    assert digest_of(pa.record_batch({"s": texts})) == parts[0] + parts[1]
