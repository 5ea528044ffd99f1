"""Columns of every type in every shape of data, for the tests of whole files.

    COLUMNS     a column for each type, and for each encoding that is written only on request
    SHAPES      distributions of values: share of nulls, repetition, width

`column.array(shape, random)` returns the values; equal seeds return equal values. This module knows
neither writers nor readers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

Random = np.random.Generator

LETTERS: Final = np.array(list("abcdefghijklmnopqrstuvwxyz 0123456789-äß€𝄞"))
FLOATS: Final = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -1e-5, 6e4]
MILLISECONDS_OF_A_DAY: Final = 86_400_000
PACKED: Final = {"lance-encoding:packed": "true"}


@dataclass(frozen=True)
class Shape:
    """A distribution of the values of a column.

    Attributes:
        name: The name of the shape.
        num_rows: The number of values.
        null_rate: The share of nulls at each nullable level.
        values: "full" range, "small", "sequential", "special" floats, or "wide" byte strings.
        lie: "free", "constant" for one value, "runs" for long runs, "few" for few distinct values,
            or "sliced" for a slice of a larger array.
    """

    name: str
    num_rows: int
    null_rate: float = 0.0
    values: str = "full"
    lie: str = "free"

    def suits(self, arrow: pa.DataType) -> bool:
        """Say whether a type has such values."""
        leaves = list(leaf_types(arrow))
        if self.values == "special":
            return any(pa.types.is_floating(leaf) for leaf in leaves)
        if self.values == "wide":
            return any(has_variable_width(leaf) for leaf in leaves)
        if self.values in {"small", "sequential"}:
            return not all(pa.types.is_boolean(leaf) or pa.types.is_null(leaf) for leaf in leaves)
        return True


SHAPES: Final = (
    Shape("no row", 0),
    Shape("one row", 1),
    Shape("one null", 1, null_rate=1),
    Shape("no nulls", 500),
    Shape("some nulls", 500, null_rate=0.2),
    Shape("mostly null", 500, null_rate=0.97),
    Shape("all null", 300, null_rate=1),
    Shape("a slice", 470, null_rate=0.2, lie="sliced"),
    Shape("a slice without nulls", 470, lie="sliced"),
    Shape("constant", 500, lie="constant"),
    Shape("constant with nulls", 500, null_rate=0.3, lie="constant"),
    Shape("long runs", 600, lie="runs"),
    Shape("long runs with nulls", 600, null_rate=0.2, lie="runs"),
    Shape("few distinct", 600, lie="few"),
    Shape("few distinct with nulls", 600, null_rate=0.2, lie="few"),
    Shape("small", 500, values="small"),
    Shape("small with nulls", 500, null_rate=0.2, values="small"),
    Shape("sequential", 1200, values="sequential"),
    Shape("special floats", 200, values="special"),
    Shape("special floats with nulls", 200, null_rate=0.3, values="special"),
    Shape("wide", 60, values="wide"),
    Shape("wide with nulls", 60, null_rate=0.3, values="wide"),
)


SHAPES_OF_LIKES: Final = {"no row", "one row", "some nulls", "all null", "a slice", "few distinct"}


@dataclass(frozen=True)
class Column:
    """A column: a type, and what its field's metadata ask of the writer.

    Attributes:
        name: What it is called.
        arrow: Its type.
        metadata: Its field's metadata.
        nullable: Whether it may be null.
        like_another: Whether its values are stored as those of another column are, so that a few
            shapes are enough.
    """

    name: str
    arrow: pa.DataType
    metadata: Mapping[str, str] = field(default_factory=dict)
    nullable: bool = True
    like_another: bool = False

    @property
    def field(self) -> pa.Field:
        """The Arrow field."""
        return pa.field(self.name, self.arrow, self.nullable, metadata=dict(self.metadata) or None)

    def suits(self, shape: Shape) -> bool:
        """Say whether the column has values of such a shape."""
        if self.like_another and shape.name not in SHAPES_OF_LIKES:
            return False
        return shape.suits(self.arrow) and (self.nullable or shape.null_rate == 0)

    def array(self, shape: Shape, random: Random) -> pa.Array:
        """Return values of a shape."""
        return array_of(self.arrow, shape, random, nullable=self.nullable)


def array_of(
    arrow: pa.DataType, shape: Shape, random: Random, *, nullable: bool = True
) -> pa.Array:
    """Return values of a type in a shape."""
    plain, rate = without_views(arrow), shape.null_rate if nullable else 0
    count = shape.num_rows
    inner = 0 if rate == 1 else rate
    if shape.lie == "free":
        array = values_of(plain, count, random, shape.values, inner)
    elif shape.lie == "sliced":
        array = values_of(plain, count + 29, random, shape.values, inner)
        array = with_nulls(array, rate, random).slice(13, count)
    else:
        indices = {
            "constant": np.zeros(count, np.int64),
            "runs": np.repeat(np.arange(count // 40 + 1), 40)[:count],
            "few": random.integers(0, 7, count),
        }[shape.lie]
        pool = values_of(plain, int(indices.max(initial=0)) + 1, random, shape.values, inner)
        array = pool.take(pa.array(indices))
    if shape.lie != "sliced":
        array = with_nulls(array, rate, random)
    return array if plain == arrow else array.cast(arrow)


def with_nulls(array: pa.Array, rate: float, random: Random) -> pa.Array:
    """Return the values with a share of them made null."""
    if rate == 0 or pa.types.is_null(array.type):
        return array
    null = random.random(len(array)) < rate
    if isinstance(array, pa.ExtensionArray):
        storage = with_nulls(array.storage, rate, random)
        return pa.ExtensionArray.from_storage(array.type, storage)
    return array.take(pa.array(np.arange(len(array)), mask=null))


def values_of(
    arrow: pa.DataType, count: int, random: Random, kind: str, null_rate: float
) -> pa.Array:
    """Return values of a type, none of them null on the outermost level.

    Args:
        arrow: The type.
        count: How many.
        random: Where they come from.
        kind: As in `Shape.values`.
        null_rate: How many are null on the levels below.
    """
    for accepts, make in MAKERS:
        if accepts(arrow):
            array = make(arrow, count, random, kind, null_rate)
            assert array.type == arrow, f"{array.type} instead of {arrow}"
            return array
    raise NotImplementedError(str(arrow))


def leaf_types(arrow: pa.DataType) -> list[pa.DataType]:
    """Return the types of the values that a type holds in the end."""
    if isinstance(arrow, pa.BaseExtensionType):
        return leaf_types(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return leaf_types(arrow.value_type)
    if pa.types.is_map(arrow):
        return leaf_types(arrow.key_type) + leaf_types(arrow.item_type)
    if pa.types.is_struct(arrow):
        return [leaf for array in arrow for leaf in leaf_types(array.type)]
    if is_list_like(arrow):
        return leaf_types(arrow.value_type)
    return [arrow]


def is_list_like(arrow: pa.DataType) -> bool:
    """Say whether a type is a list of any kind but a map."""
    return bool(
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_fixed_size_list(arrow)
    )


def is_view(arrow: pa.DataType) -> bool:
    """Say whether a type is a view of byte strings."""
    return bool(pa.types.is_string_view(arrow) or pa.types.is_binary_view(arrow))


def has_shifted_offsets(array: pa.Array) -> bool:
    """Return whether some offsets of an array that is no slice do not start at 0.

    Before version 21, pyarrow writes such arrays wrongly as Arrow streams, and so hands them to
    Spark with other values.
    """
    if isinstance(array, pa.ExtensionArray):
        return has_shifted_offsets(array.storage)
    kind = array.type
    if pa.types.is_struct(kind):
        return any(has_shifted_offsets(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return has_shifted_offsets(array.values)
    if not len(array) or not has_offsets(kind):
        return False
    is_large = (
        pa.types.is_large_list(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
    )
    first = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)[0]
    is_nested = pa.types.is_nested(kind)
    return (array.offset == 0 and first != 0) or (is_nested and has_shifted_offsets(array.values))


def has_offsets(kind: pa.DataType) -> bool:
    """Return whether values of a type are ranges of other values."""
    types = pa.types
    checks = (
        types.is_string,
        types.is_binary,
        types.is_large_string,
        types.is_large_binary,
        types.is_list,
        types.is_large_list,
        types.is_map,
    )
    return any(check(kind) for check in checks)


def has_variable_width(arrow: pa.DataType) -> bool:
    """Say whether a type is byte strings of any length."""
    return is_view(arrow) or arrow in {
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
    }


def without_views(arrow: pa.DataType) -> pa.DataType:
    """Return the plain type for a view, which the format does not know."""
    if pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_binary_view(arrow):
        return pa.binary()
    return arrow


def holds_null_structs(array: pa.Array) -> bool:
    """Say whether a struct is null, on any level that counts."""
    if pa.types.is_struct(array.type):
        return array.null_count > 0 or any(map(holds_null_structs, array.flatten()))
    if is_list_like(array.type):
        return holds_null_structs(array.flatten())
    return False


def _bits(arrow: pa.DataType, words: np.ndarray[Any, Any]) -> pa.Array:
    data = np.ascontiguousarray(words)
    return pa.Array.from_buffers(
        arrow, data.nbytes * 8 // arrow.bit_width, [None, pa.py_buffer(data)]
    )


def _integers(arrow: pa.DataType, count: int, random: Random, kind: str, _: float) -> pa.Array:
    dtype = np.dtype(f"{'u' if 'uint' in str(arrow) else 'i'}{arrow.bit_width // 8}")
    if kind == "small":
        return _bits(arrow, random.integers(0, 100, count).astype(dtype))
    if kind == "sequential":
        return _bits(arrow, np.arange(count).astype(dtype))
    limits = np.iinfo(dtype)
    return _bits(arrow, random.integers(limits.min, limits.max, count, dtype, endpoint=True))


def _times(arrow: pa.DataType, count: int, random: Random, kind: str, _: float) -> pa.Array:
    if kind == "small":
        numbers = random.integers(0, 100, count)
    elif kind == "sequential":
        numbers = np.arange(count)
    elif pa.types.is_time(arrow):
        numbers = random.integers(0, 80_000, count)
    else:
        numbers = random.integers(-100_000, 100_000, count)
    if pa.types.is_date64(arrow):
        numbers = numbers * MILLISECONDS_OF_A_DAY
    return _bits(arrow, numbers.astype(f"i{arrow.bit_width // 8}"))


def _floats(arrow: pa.DataType, count: int, random: Random, kind: str, _: float) -> pa.Array:
    dtype = np.dtype(f"f{arrow.bit_width // 8}")
    if kind == "special":
        with np.errstate(over="ignore"):
            return _bits(arrow, random.choice(FLOATS, count).astype(dtype))
    if kind == "small":
        return _bits(arrow, random.integers(0, 100, count).astype(dtype))
    if kind == "sequential":
        return _bits(arrow, np.arange(count).astype(dtype))
    return _bits(arrow, random.standard_normal(count).astype(dtype))


def _decimals(arrow: pa.DataType, count: int, random: Random, kind: str, _: float) -> pa.Array:
    words = np.zeros((count, arrow.bit_width // 64), np.int64)
    if kind == "small":
        words[:, 0] = random.integers(0, min(100, 10**arrow.precision), count)
        return _bits(arrow, words)
    if kind == "sequential":
        words[:, 0] = np.arange(count) % min(2**40, 10**arrow.precision)
        return _bits(arrow, words)
    top, bits = divmod((10**arrow.precision).bit_length() - 2, 64)
    words[:, :top] = random.integers(-(2**63), 2**63 - 1, (count, top), endpoint=True)
    words[:, top] = random.integers(-(2**bits), 2**bits, count)
    words[:, top + 1 :] = (words[:, top] >> 63)[:, None]
    return _bits(arrow, words)


def _strings(arrow: pa.DataType, count: int, random: Random, kind: str, _: float) -> pa.Array:
    if kind == "sequential":
        texts = [f"item {number}" for number in range(count)]
    else:
        lengths = random.integers(0, 4 if kind == "small" else 24, count)
        if kind == "wide" and count:
            lengths = random.integers(100, 700, count)
            lengths[count // 2] = 40_000
        text = "".join(random.choice(LETTERS, 5000)) * (9 if kind == "wide" else 1)
        starts = random.integers(0, len(text) - lengths.max(initial=0), count)
        texts = [
            text[start : start + length]
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return pa.array(texts, arrow)
    return pa.array([text.encode("utf-16") for text in texts], arrow)


def _fixed_size_binary(
    arrow: pa.DataType, count: int, random: Random, kind: str, _: float
) -> pa.Array:
    rows = np.zeros((count, arrow.byte_width), np.uint8)
    if kind == "full":
        rows[:] = random.integers(0, 256, rows.shape, np.uint8)
    else:
        rows[:, 0] = np.arange(count) if kind == "sequential" else random.integers(0, 5, count)
    return pa.Array.from_buffers(arrow, count, [None, pa.py_buffer(rows)])


def _items(field: pa.Field, count: int, random: Random, kind: str, null_rate: float) -> pa.Array:
    rate = null_rate if field.nullable else 0
    return with_nulls(values_of(field.type, count, random, kind, rate), rate, random)


def _fixed_size_lists(
    arrow: pa.DataType, count: int, random: Random, kind: str, null_rate: float
) -> pa.Array:
    items = _items(arrow.value_field, count * arrow.list_size, random, kind, null_rate)
    return pa.FixedSizeListArray.from_arrays(items, type=arrow)


def _lengths(count: int, random: Random) -> np.ndarray[Any, Any]:
    lengths: np.ndarray[Any, Any] = random.integers(0, 5, count) * (random.random(count) < 0.8)
    return lengths


def _lists(arrow: pa.DataType, count: int, random: Random, kind: str, null_rate: float) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(_lengths(count, random))])
    items = _items(arrow.value_field, int(offsets[-1]), random, kind, null_rate)
    array = pa.LargeListArray if pa.types.is_large_list(arrow) else pa.ListArray
    width = pa.int64() if pa.types.is_large_list(arrow) else pa.int32()
    return array.from_arrays(pa.array(offsets, width), items, type=arrow)


def _maps(arrow: pa.DataType, count: int, random: Random, kind: str, null_rate: float) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(_lengths(count, random))])
    keys = values_of(arrow.key_type, int(offsets[-1]), random, "sequential", 0)
    items = _items(arrow.item_field, int(offsets[-1]), random, kind, null_rate)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, arrow)


def _structs(
    arrow: pa.DataType, count: int, random: Random, kind: str, null_rate: float
) -> pa.Array:
    parts = [_items(array, count, random, kind, null_rate) for array in arrow]
    return pa.StructArray.from_arrays(parts, fields=list(arrow))


def _dictionaries(arrow: pa.DataType, count: int, random: Random, kind: str, _: float) -> pa.Array:
    items = values_of(arrow.value_type, 40, random, "sequential" if kind == "full" else kind, 0)
    codes = random.integers(0, 40, count).astype(arrow.index_type.to_pandas_dtype())
    return pa.DictionaryArray.from_arrays(pa.array(codes, arrow.index_type), items)


def _extensions(
    arrow: pa.DataType, count: int, random: Random, kind: str, null_rate: float
) -> pa.Array:
    storage = values_of(arrow.storage_type, count, random, kind, null_rate)
    return pa.ExtensionArray.from_storage(arrow, storage)


Maker = Callable[[pa.DataType, int, Random, str, float], pa.Array]

MAKERS: Final[list[tuple[Callable[[pa.DataType], bool], Maker]]] = [
    (lambda arrow: isinstance(arrow, pa.BaseExtensionType), _extensions),
    (pa.types.is_null, lambda _, count, *__: pa.nulls(count)),
    (pa.types.is_boolean, lambda _, count, random, *__: pa.array(random.random(count) < 0.5)),
    (pa.types.is_integer, _integers),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_temporal, _times),
    (pa.types.is_fixed_size_binary, _fixed_size_binary),
    (has_variable_width, _strings),
    (pa.types.is_fixed_size_list, _fixed_size_lists),
    (pa.types.is_map, _maps),
    (is_list_like, _lists),
    (pa.types.is_struct, _structs),
    (pa.types.is_dictionary, _dictionaries),
]


def _plain_types() -> list[pa.DataType]:
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    integers += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    floats = [pa.float16(), pa.float32(), pa.float64()]
    days = [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms")]
    days += [pa.time64("us"), pa.time64("ns")]
    units = ("s", "ms", "us", "ns")
    instants = [pa.timestamp(unit) for unit in units]
    instants += [pa.timestamp(unit, "Asia/Kolkata") for unit in units]
    durations = [pa.duration(unit) for unit in units]
    decimals = [pa.decimal128(5, 2), pa.decimal128(18, 4), pa.decimal128(38, 10)]
    decimals += [pa.decimal256(30, 3), pa.decimal256(60, 10)]
    strings = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
    fixed = [pa.binary(1), pa.binary(7), pa.binary(16), pa.binary(300)]
    return [
        *(pa.null(), pa.bool_(), *integers, *floats, *days, *instants, *durations, *decimals),
        *(*strings, *fixed),
    ]


def _nested_types() -> dict[str, pa.DataType]:
    point = pa.struct([("x", pa.int32()), ("y", pa.string())])
    deep = pa.struct([("a", point), ("b", pa.list_(pa.int16())), ("c", pa.float64())])
    return {
        "fsl<halffloat, 4>": pa.list_(pa.float16(), 4),
        "fsl<float, 1>": pa.list_(pa.float32(), 1),
        "fsl<float, 16>": pa.list_(pa.float32(), 16),
        "fsl<float, 100>": pa.list_(pa.float32(), 100),
        "fsl<double, 3>": pa.list_(pa.float64(), 3),
        "fsl<int8, 8>": pa.list_(pa.int8(), 8),
        "fsl<uint8, 300>": pa.list_(pa.uint8(), 300),
        "fsl<bool, 9>": pa.list_(pa.bool_(), 9),
        "fsl<timestamp, 2>": pa.list_(pa.timestamp("us"), 2),
        "fsl<decimal, 2>": pa.list_(pa.decimal128(20, 2), 2),
        "fsl<fsl<float, 3>, 2>": pa.list_(pa.list_(pa.float32(), 3), 2),
        "fsl<struct, 2>": pa.list_(pa.struct([("x", pa.int32()), ("y", pa.float32())]), 2),
        "dict<int8, string>": pa.dictionary(pa.int8(), pa.string()),
        "dict<uint16, large_string>": pa.dictionary(pa.uint16(), pa.large_string()),
        "dict<int32, binary>": pa.dictionary(pa.int32(), pa.binary()),
        "dict<int32, int64>": pa.dictionary(pa.int32(), pa.int64()),
        "dict<int64, double>": pa.dictionary(pa.int64(), pa.float64()),
        "list<int32>": pa.list_(pa.int32()),
        "list<bool>": pa.list_(pa.bool_()),
        "list<string>": pa.list_(pa.string()),
        "list<decimal>": pa.list_(pa.decimal128(20, 2)),
        "list<fsl<float, 4>>": pa.list_(pa.list_(pa.float32(), 4)),
        "list<fsb<300>>": pa.list_(pa.binary(300)),
        "list<dict>": pa.list_(pa.dictionary(pa.int16(), pa.string())),
        "list<null>": pa.list_(pa.null()),
        "large_list<int64>": pa.large_list(pa.int64()),
        "large_list<string>": pa.large_list(pa.large_string()),
        "list<list<int64>>": pa.list_(pa.list_(pa.int64())),
        "list<list<list<string>>>": pa.list_(pa.list_(pa.list_(pa.string()))),
        "struct": point,
        "struct of structs": deep,
        "struct of one list": pa.struct([("items", pa.list_(pa.string()))]),
        "list<struct>": pa.list_(point),
        "large_list<struct>": pa.large_list(point),
        "list<struct of structs>": pa.list_(deep),
        "struct of vectors": pa.struct([("v", pa.list_(pa.float32(), 4)), ("n", pa.int8())]),
        "map<string, int64>": pa.map_(pa.string(), pa.int64()),
        "map<int32, struct>": pa.map_(pa.int32(), point),
        "map<string, list>": pa.map_(pa.string(), pa.list_(pa.int8())),
        "list<map>": pa.list_(pa.map_(pa.string(), pa.string())),
        "struct of map": pa.struct([("m", pa.map_(pa.int8(), pa.bool_()))]),
    }


def _view_types() -> dict[str, pa.DataType]:
    return {"string_view": pa.string_view(), "binary_view": pa.binary_view()}


def _extension_types() -> dict[str, pa.DataType]:
    """Arrow's own extension types that files store as such, as far as this pyarrow has them."""
    types: dict[str, pa.DataType] = {}
    for name, arguments in (("uuid", ()), ("bool8", ())):
        if hasattr(pa, name):
            types[f"extension {name.strip('_')}"] = getattr(pa, name)(*arguments)
    return types


def _requested_encodings() -> list[Column]:
    """Columns whose fields' metadata ask for an encoding."""
    compressible = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int64": pa.int64(),
        "int16": pa.int16(),
        "double": pa.float64(),
        "fsl<float, 16>": pa.list_(pa.float32(), 16),
        "fsl<float, 100>": pa.list_(pa.float32(), 100),
        "list<string>": pa.list_(pa.string()),
        "list<int32>": pa.list_(pa.int32()),
    }
    columns = []
    for scheme in ("zstd", "lz4", "fsst", "none"):
        for name, arrow in compressible.items():
            if scheme == "fsst" and "string" not in name and name != "binary":
                continue
            metadata = {"lance-encoding:compression": scheme}
            columns.append(Column(f"{scheme} {name}", arrow, metadata))
    level = {"lance-encoding:compression": "zstd", "lance-encoding:compression-level": "9"}
    columns += [Column(f"zstd 9 {name}", compressible[name], level) for name in ("string", "int64")]
    split = {"lance-encoding:bss": "on", "lance-encoding:compression": "lz4"}
    columns += [Column(f"split {number}", number, split) for number in (pa.float32(), pa.float64())]
    runs = {"lance-encoding:rle-threshold": "1.0"}
    columns += [
        Column(f"runs {number}", number, runs) for number in (pa.int8(), pa.int32(), pa.int64())
    ]
    columns.append(Column("runs of list<int32>", pa.list_(pa.int32()), runs))
    items = {"lance-encoding:dict-divisor": "1", "lance-encoding:dict-size-ratio": "1.0"}
    columns += [
        Column(f"coded {number}", number, items)
        for number in (pa.string(), pa.int64(), pa.float64())
    ]
    for structure in ("miniblock", "fullzip"):
        metadata = {"lance-encoding:structural-encoding": structure}
        columns += [
            Column(f"{structure} {name}", arrow, metadata)
            for name, arrow in compressible.items()
            if "zstd" not in name
        ]
    # pylance packs no nulls in most versions.
    narrow = pa.struct([("x", pa.int32()), ("y", pa.float64()), ("z", pa.uint8())])
    vectors = pa.struct([("v", pa.list_(pa.float32(), 4)), ("n", pa.int16())])
    texts = pa.struct([("n", pa.int32()), ("t", pa.string())])
    inside = pa.list_(pa.field("item", narrow, metadata=PACKED))
    columns += [
        Column("packed", narrow, PACKED, nullable=False),
        Column("packed vectors", vectors, PACKED, nullable=False),
        Column("packed texts", texts, PACKED, nullable=False),
        Column("list<packed>", inside, nullable=False),
    ]
    return columns


def _is_like(arrow: pa.DataType) -> bool:
    """Say whether values are stored as plain integers are, and are not the example of those."""
    examples = (pa.timestamp("us", "Asia/Kolkata"), pa.date32(), pa.time64("ns"))
    return pa.types.is_temporal(arrow) and arrow not in examples


def _columns() -> dict[str, Column]:
    named = {str(plain_type): plain_type for plain_type in _plain_types()}
    named |= _nested_types() | _view_types() | _extension_types()
    columns = [Column(name, arrow, like_another=_is_like(arrow)) for name, arrow in named.items()]
    columns += [
        Column("strict int32", pa.int32(), nullable=False),
        Column("strict string", pa.string(), nullable=False),
        Column(
            "strict parts",
            pa.list_(pa.field("item", pa.struct([pa.field("x", pa.int8(), False)]), False)),
            nullable=False,
        ),
        Column("labelled", pa.int64(), {"unit": "m", "note": "größer"}),
        Column(
            "extension by metadata",
            pa.binary(16),
            {"ARROW:extension:name": "acme.address", "ARROW:extension:metadata": "{}"},
        ),
        *_requested_encodings(),
    ]
    return {entry.name: entry for entry in columns}


COLUMNS: Final = _columns()
