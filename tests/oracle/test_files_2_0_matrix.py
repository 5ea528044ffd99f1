"""Files of version 2.0, each type in each shape of data: both programs read what either writes.

One column a file, so that a case that fails names the type and the shape.
"""

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter

from lance_stream.byte_ranges import answer, read_from
from lance_stream.file.metadata.columns import fields_with_column
from lance_stream.file.reader import open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids

pytestmark = pytest.mark.oracle

NUM_ROWS = 260
PACKED = {"lance-encoding:packed": "true"}

Value = Callable[[int], Any]
"""The value of a row; rows 0 and 1 have the extreme ones."""


def number(low: int, high: int) -> Value:
    return lambda n: (low, high)[n] if n < 2 else low + (n * 0x9E3779B97F4A7C15) % (high - low + 1)


def real(n: int) -> float:
    return (float("nan"), -0.0, float("inf"), 6.1e-5)[n] if n < 4 else (n - 99) / 8


def text(n: int) -> str:
    return ("", "é€𝄞" * 90)[n] if n < 2 else f"text number {n * 7919 % 1000} ü"


def one_of(values: list[Any]) -> Value:
    return lambda n: values[n % len(values)]


def sometimes_null(value: Value, every: int = 5) -> Value:
    return lambda n: None if n % every == 3 else value(n)


def several(value: Value, maximum: int) -> Value:
    """Lists of 0 to `maximum` items, some of them null."""
    inner = sometimes_null(value)
    return lambda n: [inner(n * 3 + k) for k in range(n * 5 % (maximum + 1))]


def just(count: int, value: Value) -> Value:
    return lambda n: [value(n * count + k) for k in range(count)]


SMALL = number(-100, 100)
DECIMALS = decimal.Context(prec=76)
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.int8()))])
POINT = pa.struct([("x", pa.int32()), ("v", pa.list_(pa.float32(), 2)), ("t", pa.int64())])


def struct(n: int) -> Any:
    return {
        "a": sometimes_null(SMALL)(n),
        "b": sometimes_null(text, 4)(n),
        "c": several(SMALL, 3)(n),
    }


def point(n: int) -> Any:
    return {"x": n, "v": [n / 2, -n], "t": n * 10**12}


TYPES: dict[str, tuple[pa.DataType, Value]] = {
    **{
        f"int{bits}": (
            pa.type_for_alias(f"int{bits}"),
            number(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        )
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": (pa.type_for_alias(f"uint{bits}"), number(0, 2**bits - 1))
        for bits in (8, 16, 32, 64)
    },
    "float16": (pa.float16(), lambda n: np.float16(real(n))),
    "float32": (pa.float32(), real),
    "float64": (pa.float64(), real),
    "bool": (pa.bool_(), lambda n: n % 3 == 0),
    "null": (pa.null(), lambda _: None),
    "date32": (pa.date32(), number(-(2**31), 2**31 - 1)),
    "date64": (pa.date64(), lambda n: SMALL(n) * 86_400_000),
    "time32[s]": (pa.time32("s"), number(0, 86_399)),
    "time32[ms]": (pa.time32("ms"), number(0, 86_399_999)),
    "time64[us]": (pa.time64("us"), number(0, 86_399_999_999)),
    "time64[ns]": (pa.time64("ns"), number(0, 86_399_999_999_999)),
    **{
        f"{kind}[{unit}]": (make(unit), number(-(2**63), 2**63 - 1))
        for unit in ("s", "ms", "us", "ns")
        for kind, make in (("timestamp", pa.timestamp), ("duration", pa.duration))
    },
    "timestamp with zone": (pa.timestamp("us", "Asia/Kolkata"), number(-(2**63), 2**63 - 1)),
    "decimal128": (
        pa.decimal128(38, 10),
        lambda n: decimal.Decimal(number(-(10**38) + 1, 10**38 - 1)(n)).scaleb(-10, DECIMALS),
    ),
    "decimal256": (
        pa.decimal256(76, 3),
        lambda n: decimal.Decimal(number(-(10**76) + 1, 10**76 - 1)(n)).scaleb(-3, DECIMALS),
    ),
    "binary(1)": (pa.binary(1), lambda n: bytes([n % 256])),
    "binary(11)": (pa.binary(11), lambda n: b"%011d" % n),
    "string": (pa.string(), text),
    "few strings": (pa.string(), one_of(["", "one", "zwei", "drei €"])),
    "large_string": (pa.large_string(), text),
    "binary": (pa.binary(), lambda n: bytes(range(n % 250))),
    "large_binary": (pa.large_binary(), lambda n: bytes(range(n % 250))),
    "vector": (pa.list_(pa.float32(), 4), just(4, real)),
    "half vector": (pa.list_(pa.float16(), 8), just(8, lambda n: np.float16(real(n)))),
    "vector with nulls": (pa.list_(pa.int64(), 3), just(3, sometimes_null(SMALL))),
    "flags": (pa.list_(pa.bool_(), 3), just(3, lambda n: n % 3 == 0)),
    "matrix": (pa.list_(pa.list_(pa.int16(), 2), 3), just(3, just(2, SMALL))),
    "decimal vector": (
        pa.list_(pa.decimal128(9, 2), 2),
        just(2, lambda n: decimal.Decimal(n % 100).scaleb(-2)),
    ),
    "dictionary of strings": (pa.dictionary(pa.int16(), pa.string()), text),
    "dictionary of few": (pa.dictionary(pa.uint8(), pa.string()), one_of(["a", "b", "c"])),
    "dictionary of large strings": (pa.dictionary(pa.int64(), pa.large_string()), text),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), SMALL),
    "list of numbers": (pa.list_(pa.int32()), several(SMALL, 4)),
    "large list of strings": (pa.large_list(pa.string()), several(text, 4)),
    "list of few strings": (pa.list_(pa.string()), several(one_of(["a", "b"]), 6)),
    "list of flags": (pa.list_(pa.bool_()), several(lambda n: n % 3 == 0, 4)),
    "list of vectors": (pa.list_(pa.list_(pa.float32(), 2)), several(just(2, float), 3)),
    "list of dictionaries": (
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        several(one_of(["a", "b"]), 3),
    ),
    "list of lists": (pa.list_(pa.list_(pa.string())), several(several(text, 3), 3)),
    "list of lists of lists": (
        pa.list_(pa.large_list(pa.list_(pa.int8()))),
        several(several(several(SMALL, 2), 2), 3),
    ),
    "list of structs": (pa.list_(STRUCT), lambda n: [struct(n + k) for k in range(n % 4)]),
    "struct": (STRUCT, struct),
    "struct of structs": (
        pa.struct([("s", STRUCT), ("n", pa.bool_())]),
        lambda n: {"s": struct(n), "n": n % 3 == 0},
    ),
    "packed struct": (POINT, point),
}

NEVER_NULL = {"struct", "struct of structs", "packed struct"}
"""Version 2.0 has no nulls for them."""


def array_of(kind: str, rows: range, null_every: int = 0) -> pa.Array:
    arrow, value = TYPES[kind]
    if null_every and kind not in NEVER_NULL:
        value = sometimes_null(value, null_every)
    values = [value(n) for n in rows]
    plain = _without_dictionaries(arrow)
    array = pa.array(values, plain)
    return array if plain == arrow else _encoded(array, arrow)


def _without_dictionaries(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(arrow):
        return arrow.value_type
    if pa.types.is_list(arrow):
        return pa.list_(_without_dictionaries(arrow.value_type))
    return arrow


def _encoded(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(arrow):
        return array.dictionary_encode().cast(arrow)
    items = _encoded(array.values, arrow.value_type)
    return pa.ListArray.from_arrays(array.offsets, items, mask=array.is_null())


SHAPES: dict[str, Callable[[str], list[pa.Array]]] = {
    "no nulls": lambda kind: [array_of(kind, range(NUM_ROWS))],
    "some nulls": lambda kind: [array_of(kind, range(NUM_ROWS), 4)],
    "all nulls": lambda kind: (
        [pa.nulls(120, TYPES[kind][0])] if kind not in NEVER_NULL else [array_of(kind, range(120))]
    ),
    "one row": lambda kind: [array_of(kind, range(2, 3))],
    "sliced": lambda kind: [array_of(kind, range(NUM_ROWS), 6).slice(13, 201)],
    "few distinct values": lambda kind: [
        pa.concat_arrays([array_of(kind, range(5), 4)] * 40)
        if not _has_dictionary(TYPES[kind][0])
        else array_of(kind, range(200))
    ],
    "many batches": lambda kind: [
        array_of(kind, range(start, start + 26), 5) for start in range(0, NUM_ROWS, 26)
    ],
    "nulls at first": lambda kind: [
        array_of(kind, range(40), 1),
        array_of(kind, range(40, 150)),
    ],
}


def _has_dictionary(arrow: pa.DataType) -> bool:
    return arrow != _without_dictionaries(arrow)


def schema_of(kind: str, arrow: pa.DataType) -> pa.Schema:
    metadata = PACKED if kind == "packed struct" else None
    return pa.schema([pa.field("c", arrow, metadata=metadata)])


def write_by_pylance(schema: pa.Schema, arrays: list[pa.Array], path: Path) -> None:
    # No cache: each batch makes a page.
    with LanceFileWriter(str(path), schema, version="2.0", data_cache_bytes=1) as writer:
        for array in arrays:
            writer.write_batch(pa.record_batch([array], schema=schema))


def write_by_us(schema: pa.Schema, arrays: list[pa.Array], path: Path, max_page_bytes: int) -> None:
    writer = FileWriter(
        assign_ids(from_arrow(schema)), FileVersion.V2_0, max_page_bytes=max_page_bytes
    )
    parts: list[memoryview] = []
    for array in arrays:
        parts += writer.write(pa.record_batch([array], schema=schema))
    path.write_bytes(b"".join([*parts, *writer.finish()[0]]))


class Ours:
    """Our reading of a file of one column."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self._ranges = read_from(data)
        self.reader = answer(open_file(len(data)), self._ranges)
        self.fields = self.reader.metadata.schema.fields
        stored_fields = [
            value for field in self.fields for value in fields_with_column(field, FileVersion.V2_0)
        ]
        self.column_of = {field.id: column for column, field in enumerate(stored_fields)}

    def read(self, start: int, stop: int) -> pa.Array:
        (array,) = answer(self.reader.read(self.fields, self.column_of, start, stop), self._ranges)
        array.validate(full=True)
        return array

    def take(self, offsets: list[int]) -> pa.Array:
        row_offsets = np.array(offsets, np.uint64)
        (array,) = answer(self.reader.take(self.fields, self.column_of, row_offsets), self._ranges)
        array.validate(full=True)
        return array


def values_of(array: pa.Array | pa.ChunkedArray) -> str:
    """Values as text: there not-a-numbers are equal, and zeros of different signs are not."""
    arrow = array.type
    if pa.types.is_temporal(arrow) and not pa.types.is_date64(arrow):
        # Python has no dates as extreme as these.
        array = array.cast(pa.int32() if arrow.bit_width == 32 else pa.int64())
    return repr(array.to_pylist())


@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TYPES)
def test_pylances_files_are_read(tmp_path: Path, kind: str, shape: str) -> None:
    """Each type has other encodings, which depend on the shape of its data."""
    arrays = SHAPES[shape](kind)
    schema = schema_of(kind, arrays[0].type)
    if kind == "struct of structs" and shape == "sliced":
        # pylance panics where it is given a slice of these.
        arrays = [array.take(pa.array(range(len(array)))) for array in arrays]
    write_by_pylance(schema, arrays, tmp_path / "theirs.lance")
    expected = pa.chunked_array(arrays)
    ours = Ours(tmp_path / "theirs.lance")
    num_rows = len(expected)
    whole = ours.read(0, num_rows)
    assert whole.type == expected.type
    assert values_of(whole) == values_of(expected)
    start, stop = num_rows // 3, num_rows // 2 + 1
    assert values_of(ours.read(start, stop)) == values_of(expected[start:stop])
    offsets = list(range(num_rows // 5, num_rows, 7))
    assert values_of(ours.take(offsets)) == values_of(expected.take(offsets))


@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TYPES)
def test_our_files_are_read_by_pylance(tmp_path: Path, kind: str, shape: str) -> None:
    """pylance must read whole columns and single rows of each type and shape."""
    arrays = SHAPES[shape](kind)
    schema = schema_of(kind, arrays[0].type)
    max_page_bytes = 200 if shape == "many batches" else 8 << 20
    write_by_us(schema, arrays, tmp_path / "ours.lance", max_page_bytes)
    expected = pa.chunked_array(arrays)
    theirs = LanceFileReader(str(tmp_path / "ours.lance"))
    whole = theirs.read_all().to_table()["c"]
    assert whole.type == expected.type
    assert values_of(whole) == values_of(expected)
    offsets = list(range(len(expected) // 5, len(expected), 7))
    taken = theirs.take_rows(offsets).to_table()["c"]
    assert values_of(taken) == values_of(expected.take(offsets))


TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


@pytest.mark.parametrize("compression", ["zstd", "lz4", "fsst", "none"])
@pytest.mark.parametrize("arrow", TEXTS, ids=str)
@pytest.mark.parametrize("null_every", [0, 4, 1])
def test_both_read_requested_compression(
    tmp_path: Path, arrow: pa.DataType, compression: str, null_every: int
) -> None:
    """Compressed strings have other buffers, with and without nulls."""
    values = [
        None if null_every and n % null_every == 0 else f"https://example.org/page/{n % 777}"
        for n in range(4000)
    ]
    array = pa.array(values).cast(arrow)
    metadata = {"lance-encoding:compression": compression, "lance-encoding:compression-level": "5"}
    schema = pa.schema([pa.field("c", arrow, metadata=metadata)])
    write_by_us(schema, [array], tmp_path / "ours.lance", 8 << 20)
    theirs = LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table()["c"]
    assert theirs.combine_chunks().equals(array)
    if compression == "fsst" and (arrow not in {pa.string(), pa.binary()} or null_every == 1):
        # Where pylance writes strings of 64-bit offsets or nothing but nulls, it panics.
        return
    write_by_pylance(schema, [array], tmp_path / "theirs.lance")
    assert Ours(tmp_path / "theirs.lance").read(0, 4000).equals(array)
    sizes = [(tmp_path / name).stat().st_size for name in ("ours.lance", "theirs.lance")]
    assert sizes[0] <= 1.05 * sizes[1]
