"""The format's names of types, and the Arrow types that they stand for.

Types without parts are names (`"int32"`, `"halffloat"`, `"date32:day"`); some carry parameters
after a colon (`"decimal:128:10:2"`, `"timestamp:us:UTC"`, `"fixed_size_list:float:16"`). Nested
types (`"struct"`, `"list"`, `"list.struct"`) say only their kind: their parts are fields below.

Source:  file.proto, Field.logical_type; the names were read off files that the reference wrote.
Differs: A fixed-size list of plain values has no field for its items, so the items' own name and
         nullability are not stored: they come back as `item`, nullable. A dictionary comes back
         unordered. Views come back as the plain type.
"""

from collections.abc import Callable

import pyarrow as pa

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError

_PLAIN_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "large_string": pa.large_string(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "duration:s": pa.duration("s"),
    "duration:ms": pa.duration("ms"),
    "duration:us": pa.duration("us"),
    "duration:ns": pa.duration("ns"),
}
_NAMES_OF_PLAIN_TYPES = {arrow: name for name, arrow in _PLAIN_TYPES.items()}

STRUCT = "struct"
LIST, LIST_OF_STRUCTS = "list", "list.struct"
LARGE_LIST, LARGE_LIST_OF_STRUCTS = "large_list", "large_list.struct"
MAP = "map"
FIXED_SIZE_LIST_PREFIX = "fixed_size_list:"

NESTED_KINDS = frozenset(
    {STRUCT, LIST, LIST_OF_STRUCTS, LARGE_LIST, LARGE_LIST_OF_STRUCTS, MAP},
)
"""Logical types whose parts are fields below them."""

MAX_FIXED_SIZE_LIST_ITEMS = 2**31 - 1


def leaf_to_logical(arrow: pa.DataType) -> str:
    """Return the format's name of an Arrow type that has no fields below it.

    Fixed-size lists of plain values count among them: they are one column of bytes.

    Raises:
        InvalidInputError: The format has no name for the type.
    """
    if arrow in _NAMES_OF_PLAIN_TYPES:
        return _NAMES_OF_PLAIN_TYPES[arrow]
    for accepts, name in _PARAMETRISED_NAMES:
        if accepts(arrow):
            return name(arrow)
    raise InvalidInputError(
        f"Lance has no type for Arrow's {arrow}; cast the column to another type first"
    )


def logical_to_leaf(logical_type: str) -> pa.DataType:
    """Return the Arrow type that a name without fields below it stands for.

    Raises:
        UnsupportedFeatureError: The name is not known.
        CorruptDataError: The name's parameters make no sense.
    """
    if logical_type in _PLAIN_TYPES:
        return _PLAIN_TYPES[logical_type]
    kind, _, rest = logical_type.partition(":")
    parse = _PARSERS.get(kind)
    if parse is None:
        raise UnsupportedFeatureError(f"the logical type {logical_type!r} is not known")
    try:
        return parse(rest)
    except (ValueError, pa.ArrowInvalid) as error:
        raise CorruptDataError(f"the logical type {logical_type!r} is malformed: {error}") from None


def fixed_size_list_length(logical_type: str) -> int:
    """Return the number of items in `"fixed_size_list:<items>:<length>"`.

    Raises:
        CorruptDataError: The length is missing, not a number, or not positive.
    """
    length = logical_type.rpartition(":")[2]
    if not length.isdecimal() or not 0 < int(length) <= MAX_FIXED_SIZE_LIST_ITEMS:
        raise CorruptDataError(f"the logical type {logical_type!r} has no valid length")
    return int(length)


def _plain_item(arrow: pa.DataType) -> str:
    name = leaf_to_logical(arrow)
    if pa.types.is_dictionary(arrow) or pa.types.is_null(arrow) or _has_variable_width(arrow):
        raise InvalidInputError(
            f"Lance has no fixed-size list of {arrow}; use a list, or items of a fixed width"
        )
    return name


def _has_variable_width(arrow: pa.DataType) -> bool:
    return arrow in {pa.string(), pa.binary(), pa.large_string(), pa.large_binary()} or bool(
        pa.types.is_string_view(arrow) or pa.types.is_binary_view(arrow)
    )


_PARAMETRISED_NAMES: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]]] = [
    (pa.types.is_string_view, lambda _: "string"),
    (pa.types.is_binary_view, lambda _: "binary"),
    (pa.types.is_decimal128, lambda t: f"decimal:128:{t.precision}:{t.scale}"),
    (pa.types.is_decimal256, lambda t: f"decimal:256:{t.precision}:{t.scale}"),
    (pa.types.is_timestamp, lambda t: f"timestamp:{t.unit}:{t.tz or '-'}"),
    (pa.types.is_fixed_size_binary, lambda t: f"fixed_size_binary:{t.byte_width}"),
    (
        pa.types.is_dictionary,
        lambda t: f"dict:{leaf_to_logical(t.value_type)}:{leaf_to_logical(t.index_type)}:false",
    ),
    (
        pa.types.is_fixed_size_list,
        lambda t: f"{FIXED_SIZE_LIST_PREFIX}{_plain_item(t.value_type)}:{t.list_size}",
    ),
]


def _parse_decimal(rest: str) -> pa.DataType:
    bits, precision, scale = rest.split(":")
    make = {"128": pa.decimal128, "256": pa.decimal256}.get(bits)
    if make is None:
        raise ValueError(f"no decimal of {bits} bits")
    return make(int(precision), int(scale))


def _parse_timestamp(rest: str) -> pa.DataType:
    unit, _, zone = rest.partition(":")
    return pa.timestamp(unit, tz=None if zone in {"-", ""} else zone)


def _parse_fixed_size_binary(rest: str) -> pa.DataType:
    width = int(rest)
    if width <= 0:
        raise ValueError("the width is not positive")
    return pa.binary(width)


def _parse_dictionary(rest: str) -> pa.DataType:
    value, _, tail = rest.rpartition(":")[0].rpartition(":")
    if not value:
        raise ValueError("the value or index type is missing")
    index = logical_to_leaf(tail)
    if not pa.types.is_integer(index):
        raise ValueError(f"{tail!r} is not an integer type")
    return pa.dictionary(index, logical_to_leaf(value))


def _parse_fixed_size_list(rest: str) -> pa.DataType:
    items, _, _ = rest.rpartition(":")
    if items == STRUCT:
        raise UnsupportedFeatureError("fixed-size lists of structs are not supported yet")
    if items == "lance.bfloat16":
        raise UnsupportedFeatureError("fixed-size lists of bfloat16 are not supported yet")
    return pa.list_(logical_to_leaf(items), fixed_size_list_length(rest))


_PARSERS: dict[str, Callable[[str], pa.DataType]] = {
    "decimal": _parse_decimal,
    "timestamp": _parse_timestamp,
    "fixed_size_binary": _parse_fixed_size_binary,
    "dict": _parse_dictionary,
    "fixed_size_list": _parse_fixed_size_list,
}
