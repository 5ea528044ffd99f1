"""The format's names of types, and the corresponding Arrow types.

Types without parts are names (`"int32"`, `"halffloat"`, `"date32:day"`); some carry parameters
after a colon (`"decimal:128:10:2"`, `"timestamp:us:UTC"`, `"fixed_size_list:float:16"`). Nested
types (`"struct"`, `"list"`, `"list.struct"`, `"map"`) only name their kind: their parts are fields
below. A fixed-size list of structs has both: `"fixed_size_list:struct:4"`, and a field below.

Extension types are stored as their storage types; their names are in the field's metadata. Two also
have logical types: `"json"`, and `"fixed_size_list:lance.bfloat16:4"`.

Source:  file.proto, Field.logical_type; the names were taken from files that the reference wrote.
Differs: A fixed-size list of plain values has no field for its items, so the items' name and
         nullability are not stored: they are read as `item`, nullable. A dictionary is read as
         unordered, views as the plain type. The reference does not read dictionaries of values
         whose type name has a colon (dates, decimals); we read, but do not write them.
"""

from collections.abc import Callable

import pyarrow as pa

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError

EXTENSION_NAME = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"
"""The keys of an extension type's name and parameters in a field's metadata in Arrow."""

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

JSON = "json"
"""Binary JSON; Arrow sees its bytes. Its extension name in Arrow's metadata is `lance.json`."""

BFLOAT16_EXTENSION = "lance.bfloat16"
_BFLOAT16_ITEM = pa.field(
    "item",
    pa.binary(2),
    metadata={EXTENSION_NAME: BFLOAT16_EXTENSION, EXTENSION_METADATA: ""},
)

STRUCT = "struct"
LIST, LIST_OF_STRUCTS = "list", "list.struct"
LARGE_LIST, LARGE_LIST_OF_STRUCTS = "large_list", "large_list.struct"
MAP = "map"
FIXED_SIZE_LIST_PREFIX = "fixed_size_list:"
FIXED_SIZE_LIST_OF_STRUCTS_PREFIX = FIXED_SIZE_LIST_PREFIX + STRUCT + ":"


def is_list_type(arrow: pa.DataType) -> bool:
    """Return whether an Arrow type is a list, also of fixed size; list views are not included."""
    types = pa.types
    return bool(
        types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)
    )


LIST_KINDS = frozenset({LIST, LIST_OF_STRUCTS, LARGE_LIST, LARGE_LIST_OF_STRUCTS})
"""Logical types of lists of any length, with one field below them for the items."""

MAX_FIXED_SIZE_LIST_ITEMS = 2**31 - 1


def leaf_to_logical(arrow: pa.DataType) -> str:
    """Return the format's name of an Arrow type that has no fields below it.

    This includes fixed-size lists of plain values: they are one column of bytes.

    Raises:
        InvalidInputError: The format has no name for the type.
    """
    if arrow in _NAMES_OF_PLAIN_TYPES:
        return _NAMES_OF_PLAIN_TYPES[arrow]
    for accepts, name in _PARAMETRISED_NAMES:
        if accepts(arrow):
            return name(arrow)
    raise InvalidInputError(f"Lance has no type for Arrow's {arrow}; {_remedy(arrow)}")


def logical_to_leaf(logical_type: str) -> pa.DataType:
    """Return the Arrow type of a logical type that has no fields below it.

    Raises:
        UnsupportedFeatureError: The name is unknown.
        CorruptDataError: The parameters are invalid.
    """
    if logical_type in _PLAIN_TYPES:
        return _PLAIN_TYPES[logical_type]
    if logical_type == JSON:
        return pa.large_binary()
    kind, _, rest = logical_type.partition(":")
    parse = _PARSERS.get(kind)
    if parse is None:
        raise UnsupportedFeatureError(f"the logical type {logical_type!r} is unknown")
    try:
        return parse(rest)
    except (ValueError, pa.ArrowInvalid) as error:
        raise CorruptDataError(f"the logical type {logical_type!r} is malformed: {error}") from None


def is_fixed_size_list_of_structs(logical_type: str) -> bool:
    """Return whether a logical type is that of fixed-size lists of structs."""
    return logical_type.startswith(FIXED_SIZE_LIST_OF_STRUCTS_PREFIX)


def fixed_size_list_length(logical_type: str) -> int:
    """Return the number of items in `"fixed_size_list:<items>:<length>"`.

    Raises:
        CorruptDataError: The length is missing, not a number, or not positive.
    """
    length = logical_type.rpartition(":")[2]
    if not length.isdecimal() or not 0 < int(length) <= MAX_FIXED_SIZE_LIST_ITEMS:
        raise CorruptDataError(f"the logical type {logical_type!r} has no valid length")
    return int(length)


def _remedy(arrow: pa.DataType) -> str:
    types = pa.types
    for accepts, remedy in (
        (types.is_decimal, "cast the column to decimal128"),
        (types.is_interval, "split it into columns of whole months, days and a duration"),
        (types.is_run_end_encoded, "decode it first (pyarrow.compute.run_end_decode)"),
        (types.is_list_view, "cast the column to a list"),
        (types.is_large_list_view, "cast the column to a large_list"),
        (types.is_union, "store it as a struct with a field for each of its types"),
    ):
        if accepts(arrow):
            return remedy
    return "cast the column to another type first"


def _dictionary_name(arrow: pa.DataType) -> str:
    value = arrow.value_type
    if value not in _NAMES_OF_PLAIN_TYPES or ":" in _NAMES_OF_PLAIN_TYPES[value]:
        raise InvalidInputError(
            f"Lance has no dictionary of {value} (only of strings, binary, numbers and booleans); "
            "decode the column (`column.dictionary_decode()`)"
        )
    return f"dict:{_NAMES_OF_PLAIN_TYPES[value]}:{leaf_to_logical(arrow.index_type)}:false"


def _fixed_size_list_name(arrow: pa.DataType) -> str:
    item = arrow.value_field
    extension = (item.metadata or {}).get(EXTENSION_NAME.encode())
    if extension == BFLOAT16_EXTENSION.encode() and item.type == _BFLOAT16_ITEM.type:
        name = BFLOAT16_EXTENSION
    elif extension is not None:
        raise InvalidInputError(
            f"Lance cannot store that the items of a fixed-size list are of the extension type "
            f"{extension.decode(errors='replace')!r}: pass their storage, {item.type}, or a list "
            "of any length"
        )
    else:
        name = _plain_item(item.type)
    return f"{FIXED_SIZE_LIST_PREFIX}{name}:{length_of(arrow)}"


def length_of(arrow: pa.DataType) -> int:
    """Return the number of items of a fixed-size list, or of bytes of a fixed-size binary.

    Raises:
        InvalidInputError: It is 0, which no file can hold.
    """
    length: int = arrow.byte_width if pa.types.is_fixed_size_binary(arrow) else arrow.list_size
    if length < 1:
        raise InvalidInputError(
            f"Lance has no type for Arrow's {arrow}, whose values are all empty; omit the column, "
            "or use a list or binary of any length"
        )
    return length


def _plain_item(arrow: pa.DataType) -> str:
    if pa.types.is_nested(arrow) and not pa.types.is_fixed_size_list(arrow):
        raise InvalidInputError(
            f"Lance has no fixed-size list of {arrow} inside of another one; use a list"
        )
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
    (pa.types.is_fixed_size_binary, lambda t: f"fixed_size_binary:{length_of(t)}"),
    (pa.types.is_dictionary, _dictionary_name),
    (pa.types.is_fixed_size_list, _fixed_size_list_name),
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
    if width == 0:
        raise UnsupportedFeatureError(
            "columns of fixed_size_binary[0], whose values are all empty, are not supported: drop "
            "the column with the program that wrote it"
        )
    if width < 0:
        raise ValueError("the width is negative")
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
    length = fixed_size_list_length(rest)
    if items == BFLOAT16_EXTENSION:
        return pa.list_(_BFLOAT16_ITEM, length)
    return pa.list_(logical_to_leaf(items), length)


_PARSERS: dict[str, Callable[[str], pa.DataType]] = {
    "decimal": _parse_decimal,
    "timestamp": _parse_timestamp,
    "fixed_size_binary": _parse_fixed_size_binary,
    "dict": _parse_dictionary,
    "fixed_size_list": _parse_fixed_size_list,
}
