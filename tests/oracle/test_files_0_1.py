"""Tables of file version 0.1: what pylance writes we read, what we write pylance reads."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError

pytestmark = pytest.mark.oracle

Random = np.random.Generator
Make = Callable[[int, Random], pa.Array]

ROWS_PER_GROUP: Final = 64
SIZES: Final = (1, 200)
SECONDS_OF_A_DAY: Final = 86_400


def bits(arrow: pa.DataType) -> Make:
    """Any bits at all, for types that give a meaning to all of them."""

    def make(num_rows: int, random: Random) -> pa.Array:
        data = random.bytes(num_rows * arrow.bit_width // 8)
        return pa.Array.from_buffers(arrow, num_rows, [None, pa.py_buffer(data)])

    return make


def integers(arrow: pa.DataType, stop: int) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        stored = pa.int64() if arrow.bit_width == 64 else pa.int32()
        return pa.array(random.integers(0, stop, num_rows), stored).cast(arrow)

    return make


def floats(arrow: pa.DataType) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        values = random.standard_normal(num_rows).astype(arrow.to_pandas_dtype())
        return pa.array(values, arrow)

    return make


def booleans(num_rows: int, random: Random) -> pa.Array:
    return pa.array(random.random(num_rows) < 0.5)


def decimals(arrow: pa.DataType) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        numbers = random.integers(-(10**6), 10**6, num_rows).tolist()
        return pa.array([Decimal(number).scaleb(-2) for number in numbers], arrow)

    return make


def texts(arrow: pa.DataType, null_rate: float = 0.0) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        letters = np.array(list("abc ü€𝄞"))
        strings = ["".join(random.choice(letters, n)) for n in random.integers(1, 90, num_rows)]
        is_null = random.random(num_rows) < null_rate
        if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
            return pa.array([text.encode() for text in strings], arrow, mask=is_null)
        return pa.array(strings, arrow, mask=is_null)

    return make


def fixed_size_lists(items: Make, length: int) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(items(num_rows * length, random), length)

    return make


def lists(items: Make, kind: Any = pa.ListArray) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        lengths = random.integers(0, 5, num_rows) * (random.random(num_rows) < 0.7)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        offset_type = pa.int32() if kind is pa.ListArray else pa.int64()
        return kind.from_arrays(pa.array(offsets, offset_type), items(int(offsets[-1]), random))

    return make


def structs(**parts: Make) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        arrays = [part(num_rows, random) for part in parts.values()]
        return pa.StructArray.from_arrays(arrays, names=list(parts))

    return make


def dictionaries(index: pa.DataType, values: pa.Array) -> Make:
    def make(num_rows: int, random: Random) -> pa.Array:
        indices = pa.array(random.integers(0, len(values), num_rows), index)
        return pa.DictionaryArray.from_arrays(indices, values)

    return make


def nulls(num_rows: int, _: Random) -> pa.Array:
    return pa.nulls(num_rows)


WORDS: Final = pa.array(["alpha", "beta", "gamma", "delta", "ε"])

COLUMNS: Final[dict[str, Make]] = {
    **{
        str(arrow): bits(arrow)
        for arrow in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            pa.binary(5),
        )
    },
    **{str(arrow): floats(arrow) for arrow in (pa.float16(), pa.float32(), pa.float64())},
    **{
        str(arrow): integers(arrow, SECONDS_OF_A_DAY)
        for arrow in (
            *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
            *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
            *(pa.timestamp(unit, "Asia/Kolkata") for unit in ("s", "ms", "us", "ns")),
            *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        )
    },
    "date64": lambda n, random: (
        pa.array(random.integers(0, 9999, n), pa.int32()).cast(pa.date32()).cast(pa.date64())
    ),
    "bool": booleans,
    "decimal128": decimals(pa.decimal128(20, 2)),
    "decimal256": decimals(pa.decimal256(50, 2)),
    "null": nulls,
    **{
        str(arrow): texts(arrow)
        for arrow in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    },
    "string with nulls": texts(pa.string(), 0.3),
    "binary with nulls": texts(pa.binary(), 0.3),
    "large_string, all null": texts(pa.large_string(), 1.0),
    "fixed_size_list<float>": fixed_size_lists(floats(pa.float32()), 4),
    "fixed_size_list<fixed_size_list>": fixed_size_lists(fixed_size_lists(bits(pa.int16()), 3), 2),
    "list<int32>": lists(bits(pa.int32())),
    "large_list<int64>": lists(bits(pa.int64()), pa.LargeListArray),
    "list<bool>": lists(booleans),
    "list<string>": lists(texts(pa.string(), 0.2)),
    "list<list<int8>>": lists(lists(bits(pa.int8()))),
    "list<fixed_size_list>": lists(fixed_size_lists(floats(pa.float64()), 2)),
    "list<struct>": lists(structs(a=bits(pa.int16()), b=texts(pa.string()))),
    "list<null>": lists(nulls),
    "struct": structs(a=bits(pa.int64()), b=texts(pa.string(), 0.2), c=booleans),
    "struct<struct<list>>": structs(a=structs(b=lists(floats(pa.float32())), c=bits(pa.int8()))),
}
"""What version 0.1 holds without loss, created for each number of rows."""

DICTIONARIES: Final[dict[str, Make]] = {
    "dictionary<int8, string>": dictionaries(pa.int8(), WORDS),
    "dictionary<int32, string>": dictionaries(pa.int32(), WORDS),
    "dictionary<uint16, large_string>": dictionaries(pa.uint16(), WORDS.cast(pa.large_string())),
    "dictionary<int64, binary>": dictionaries(pa.int64(), WORDS.cast(pa.binary())),
    "dictionary<int16, int32>": dictionaries(pa.int16(), pa.array([7, -1, 9], pa.int32())),
    "dictionary<uint8, uint64>": dictionaries(pa.uint8(), pa.array([7, 2**63], pa.uint64())),
    "list<dictionary>": lists(dictionaries(pa.int8(), WORDS)),
    "struct<dictionary>": structs(d=dictionaries(pa.int8(), WORDS), i=bits(pa.int8())),
}
"""Dictionaries; a table of pylance's states them, one of ours cannot be made with them."""


def table_of(make: Make, num_rows: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng([seed, num_rows])
    return pa.table({"id": pa.array(np.arange(num_rows)), "x": make(num_rows, random)})


def by_pylance(path: Path, table: pa.Table, mode: str = "create") -> Any:
    return lance.write_dataset(
        table,
        str(path),
        mode=mode,
        data_storage_version="legacy",
        max_rows_per_group=ROWS_PER_GROUP,
    )


def ours(path: Path) -> Dataset:
    return lance_stream.open_dataset(str(path))


def check_takes(path: Path, num_rows: int, want: pa.Table) -> None:
    """Take scattered rows by both; the order of the offsets asked for is kept."""
    offsets = sorted({0, num_rows // 3, num_rows // 2, num_rows - 1})
    expected = want.take(pa.array(offsets))
    assert ours(path).take(offsets).combine_chunks() == expected.combine_chunks()
    assert lance.dataset(str(path)).take(offsets).combine_chunks() == expected.combine_chunks()


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("name", [*COLUMNS, *DICTIONARIES])
def test_pylances_files_are_read(name: str, num_rows: int, tmp_path: Path) -> None:
    """Tables of version 0.1 are still in use, and pylance still writes them."""
    table = table_of({**COLUMNS, **DICTIONARIES}[name], num_rows)
    theirs = by_pylance(tmp_path / "t", table)
    assert ours(tmp_path / "t").to_table() == theirs.to_table() == table
    assert ours(tmp_path / "t").to_table(columns=["x"]) == table.select(["x"])
    check_takes(tmp_path / "t", num_rows, table)


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("name", COLUMNS)
def test_our_files_are_read_by_pylance(name: str, num_rows: int, tmp_path: Path) -> None:
    """An append to an old table has to write its version."""
    table = table_of(COLUMNS[name], num_rows)
    ds = lance_stream.create_dataset(
        str(tmp_path / "t"), table.schema, file_version="legacy", stable_row_ids=False
    )
    ds.append(table)
    theirs = lance.dataset(str(tmp_path / "t"))
    assert theirs.data_storage_version == "0.1"
    assert theirs.to_table() == table == ours(tmp_path / "t").to_table()
    (data_file,) = theirs.get_fragments()[0].data_files()
    assert (data_file.file_major_version, data_file.file_minor_version) == (0, 2)
    assert data_file.column_indices == []
    check_takes(tmp_path / "t", num_rows, table)


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("name", [*COLUMNS, *DICTIONARIES])
def test_both_append_to_one_table(name: str, tmp_path: Path) -> None:
    """Fragments of both writers stand next to each other in one table."""
    make = {**COLUMNS, **DICTIONARIES}[name]
    tables = [table_of(make, num_rows, seed) for seed, num_rows in enumerate((70, 40, 30, 5))]
    by_pylance(tmp_path / "t", tables[0])
    ours(tmp_path / "t").append(tables[1])
    by_pylance(tmp_path / "t", tables[2], mode="append")
    ours(tmp_path / "t").append(tables[3])
    lance.dataset(str(tmp_path / "t")).delete("id = 3")
    want = pa.concat_tables(tables).filter(
        pa.array(np.concatenate([np.arange(len(table)) != 3 for table in tables]))
    )
    assert decoded(lance.dataset(str(tmp_path / "t")).to_table()) == decoded(want)
    assert decoded(ours(tmp_path / "t").to_table()) == decoded(want)


def decoded(table: pa.Table) -> list[Any]:
    """Return the values: equal dictionaries may stand in other chunks."""
    rows: list[Any] = table.to_pydict()["x"]
    return rows


NULLED: Final = [
    *(name for name in COLUMNS if name not in {"null", "list<null>"} and "null" not in name),
]


@pytest.mark.parametrize("name", NULLED)
def test_nulls_lost_by_pylance_read_alike(name: str, tmp_path: Path) -> None:
    """Version 0.1 cannot store some nulls, and both must show the same values instead."""
    table = table_of(COLUMNS[name], 150)
    indices = pa.array([None if number % 3 == 0 else number for number in range(150)])
    theirs = by_pylance(tmp_path / "t", table.set_column(1, "x", table["x"].take(indices)))
    assert ours(tmp_path / "t").to_table() == theirs.to_table()


@pytest.mark.parametrize(
    "name",
    [
        value
        for value in NULLED
        if value not in {"string", "binary", "large_string", "large_binary"}
    ],
)
def test_unsupported_nulls_are_refused(name: str, tmp_path: Path) -> None:
    """A silent loss of nulls would be noticed only by wrong results."""
    table = table_of(COLUMNS[name], 10)
    ds = lance_stream.create_dataset(str(tmp_path / "t"), table.schema, file_version="0.1")
    indices = pa.array([0, None, *range(2, 10)])
    with pytest.raises(InvalidInputError, match=r"nulls, which files of version 0\.1 do not"):
        ds.append(table.set_column(1, "x", table["x"].take(indices)))
    assert ours(tmp_path / "t").count_rows() == 0


def test_empty_strings_for_nulls_are_refused(tmp_path: Path) -> None:
    """In version 0.1 an empty string reads as null, unless the column declares no nulls."""
    table = pa.table({"s": ["a", ""]})
    ds = lance_stream.create_dataset(str(tmp_path / "t"), table.schema, file_version="0.1")
    with pytest.raises(InvalidInputError, match="'s' has an empty value"):
        ds.append(table)
    strict = pa.schema([pa.field("s", pa.string(), nullable=False)])
    strict_ds = lance_stream.create_dataset(str(tmp_path / "u"), strict, file_version="0.1")
    strict_ds.append(table.cast(strict))
    assert lance.dataset(str(tmp_path / "u")).to_table() == table.cast(strict)
    assert ours(tmp_path / "u").to_table() == table.cast(strict)


def test_dictionaries_of_a_table_are_fixed(tmp_path: Path) -> None:
    """The schema of the manifest holds the items, so new ones would have no index."""
    table = pa.table({"d": pa.array(["x", "y"]).dictionary_encode()})
    by_pylance(tmp_path / "t", table)
    ours(tmp_path / "t").append(pa.table({"d": pa.array(["y", "x", "x"]).dictionary_encode()}))
    with pytest.raises(InvalidInputError, match="has 2 values and cannot grow"):
        ours(tmp_path / "t").append(pa.table({"d": pa.array(["z"]).dictionary_encode()}))
    with pytest.raises(InvalidInputError, match="but None is to be written"):
        ours(tmp_path / "t").append(pa.table({"d": pa.array(["x", None]).dictionary_encode()}))
    want = ["x", "y", "y", "x", "x"]
    assert lance.dataset(str(tmp_path / "t")).to_table()["d"].to_pylist() == want
    assert ours(tmp_path / "t").to_table()["d"].to_pylist() == want


FILTERS: Final = [
    "i = 12345",
    "i > 19990",
    "i BETWEEN 100 AND 110",
    "i IN (5, 19999, 70000)",
    "s = 's000100'",
    "s > 's019950'",
    "s IS NULL AND i < 20",
    "f > 3.5",
    "f < -3.5 OR i = 7",
    "st.a = 777",
    "b AND i < 10",
    "d >= DATE '2024-06-01'",
    "z = 0.0",
    "NOT (i < 19995)",
]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same rows, ascending, in pages of ours and of pylance's."""
    count, random = 20_000, np.random.default_rng(5)
    numbers = np.arange(count)
    table = pa.table(
        {
            "i": numbers,
            "s": pa.array([f"s{n:06d}" if n % 7 else None for n in range(count)]),
            "f": random.standard_normal(count),
            "st": pa.StructArray.from_arrays([pa.array(numbers)], names=["a"]),
            "b": random.random(count) < 0.5,
            "d": pa.array(numbers // 10 + 18_000, pa.int32()).cast(pa.date32()),
            "z": np.where(numbers % 2, 0.0, -0.0),
        }
    )
    folder = tmp_path_factory.mktemp("filtered")
    ds = lance_stream.create_dataset(str(folder / "ours"), table.schema, file_version="0.1")
    ds.append(table)
    lance.write_dataset(table, str(folder / "theirs"), data_storage_version="legacy")
    return folder / "ours", folder / "theirs"


@pytest.mark.parametrize("predicate", FILTERS)
def test_page_bounds_exclude_no_matches(predicate: str, filtered: tuple[Path, Path]) -> None:
    """Bounds of pages that either program wrote must not exclude matches."""
    counted = []
    for path in filtered:
        theirs = lance.dataset(str(path))
        by_bounds = theirs.to_table(filter=predicate)
        assert by_bounds == theirs.scanner(filter=predicate, use_stats=False).to_table()
        assert ours(path).to_table(filter=predicate) == by_bounds
        counted.append(by_bounds.num_rows)
    assert counted[0] == counted[1] > 0


def test_pylance_adds_columns_next_to_ours(tmp_path: Path) -> None:
    """Fragments then have files of both writers."""
    table = table_of(texts(pa.string()), 20_000)
    lance_stream.create_dataset(str(tmp_path / "t"), table.schema, file_version="0.1").append(table)
    theirs = lance.dataset(str(tmp_path / "t"))
    theirs.add_columns({"twice": "id * 2"})
    assert ours(tmp_path / "t").to_table() == lance.dataset(str(tmp_path / "t")).to_table()
    assert ours(tmp_path / "t").to_table(filter="twice = 30000")["id"].to_pylist() == [15_000]
    lance.dataset(str(tmp_path / "t")).drop_columns(["x"])
    ours(tmp_path / "t").append(pa.table({"id": [-1], "twice": [-2]}))
    now = lance.dataset(str(tmp_path / "t")).to_table()
    assert now["twice"].to_pylist()[-2:] == [39_998, -2]
    assert ours(tmp_path / "t").to_table() == now
