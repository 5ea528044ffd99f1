"""Encodes rows as JSON without loss, and decodes them.

A row is an object with its columns. The types are stored separately, as an Arrow schema in base64.

    integer                        number
    float                          number; "NaN", "Infinity", "-Infinity"
    decimal                        string of its digits: "12.50"
    string                         string; {"base64": ...} if it is not UTF-8
    binary                         string in base64
    date, time, timestamp          ISO 8601, with all digits of the unit; "Z" for an instant
    duration                       number, in the type's unit
    list; struct; map              array; object; array of [key, value]
    dictionary; extension          its value; its storage
    null                           null
"""

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lance_stream.arguments import repeated_names
from lance_stream.errors import CorruptDataError, InvalidInputError

CORRUPT_REMEDY: Final = (
    "Delete such rows, or select others by a condition on the quarantine's columns (where)"
)

_NOT_FINITE: Final = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


def rows_to_json(rows: pa.RecordBatch) -> tuple[list[str], str]:
    """Return rows as JSON, and the types of their columns.

    Raises:
        InvalidInputError: A column's values cannot be represented in JSON.
    """
    schema = pa.schema([(field.name, _plain_type(field.type)) for field in rows.schema])
    types = base64.b64encode(schema.serialize().to_pybytes()).decode()
    _check_distinct(schema.names)
    columns = [_to_plain(column) for column in rows.columns]
    return [
        json.dumps(dict(zip(schema.names, values, strict=True)), ensure_ascii=False)
        for values in zip(*columns, strict=True)
    ], types


def rows_from_json(texts: Sequence[str], types: str) -> pa.Table:
    """Return the rows that `rows_to_json` encoded.

    Raises:
        CorruptDataError: The texts are not valid rows.
    """
    try:
        buffer = pa.py_buffer(base64.b64decode(types, validate=True))
        schema = pa.ipc.read_schema(buffer)
        rows = [json.loads(text) for text in texts]
        columns = [_from_plain([row[field.name] for row in rows], field.type) for field in schema]
        table = pa.Table.from_arrays(columns, schema=schema)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        pa.ArrowException,
    ) as error:
        raise CorruptDataError(
            f"a row in quarantine is damaged: {str(error)[:200]}. {CORRUPT_REMEDY}"
        ) from None
    except RecursionError:
        raise CorruptDataError(
            f"a row in quarantine is nested too deeply. {CORRUPT_REMEDY}"
        ) from None
    if table.num_rows != len(texts):
        raise CorruptDataError(f"a row in quarantine has no columns. {CORRUPT_REMEDY}")
    return table


# --- types


def _plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries and extensions."""
    kinds = pa.types
    if isinstance(arrow, pa.BaseExtensionType):
        return _plain_type(arrow.storage_type)
    if kinds.is_dictionary(arrow):
        return _plain_type(arrow.value_type)
    if kinds.is_struct(arrow):
        _check_distinct([part.name for part in arrow])
        return pa.struct([pa.field(part.name, _plain_type(part.type)) for part in arrow])
    if kinds.is_map(arrow):
        return pa.map_(_plain_type(arrow.key_type), _plain_type(arrow.item_type))
    if kinds.is_fixed_size_list(arrow):
        return pa.list_(_plain_type(arrow.value_type), arrow.list_size)
    if kinds.is_large_list(arrow):
        return pa.large_list(_plain_type(arrow.value_type))
    if kinds.is_list(arrow):
        return pa.list_(_plain_type(arrow.value_type))
    if any(is_kind(arrow) for is_kind, _, _ in _KINDS) or kinds.is_null(arrow):
        return arrow
    raise InvalidInputError(f"rows with a {arrow} cannot be quarantined: JSON cannot represent it")


def _as_plain_array(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _as_plain_array(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _as_plain_array(array.dictionary_decode())
    return array


def _check_distinct(names: Sequence[str]) -> None:
    repeated = repeated_names(list(names))
    if repeated:
        raise InvalidInputError(
            f"rows with two columns or fields {repeated[0]!r} cannot be quarantined"
        )


# --- values


def _to_plain(array: pa.Array) -> list[Any]:
    """Return the values of an array as JSON values."""
    kinds = pa.types
    array = _as_plain_array(array)
    arrow = array.type
    if kinds.is_null(arrow):
        return [None] * len(array)
    if kinds.is_struct(arrow):
        names = [part.name for part in arrow]
        parts = [_to_plain(array.field(index)) for index in range(arrow.num_fields)]
        rows = zip(*parts, strict=True) if parts else iter([()] * len(array))
        return [
            dict(zip(names, values, strict=True)) if is_valid else None
            for is_valid, values in zip(_validity(array), rows, strict=True)
        ]
    if kinds.is_map(arrow):
        return [
            None if not is_valid else _pairs(array.values.slice(start, stop - start))
            for is_valid, start, stop in _bounds(array)
        ]
    if kinds.is_fixed_size_list(arrow):
        size = arrow.list_size
        items = _to_plain(array.values.slice(array.offset * size, len(array) * size))
        return [
            items[index * size : (index + 1) * size] if is_valid else None
            for index, is_valid in enumerate(_validity(array))
        ]
    if kinds.is_list(arrow) or kinds.is_large_list(arrow):
        return [
            None if not is_valid else _to_plain(array.values.slice(start, stop - start))
            for is_valid, start, stop in _bounds(array)
        ]
    for is_kind, encode, _ in _KINDS:
        if is_kind(arrow):
            return encode(array)
    raise InvalidInputError(f"rows with a {arrow} cannot be quarantined: JSON cannot represent it")


def _pairs(entries: pa.Array) -> list[list[Any]]:
    keys, values = _to_plain(entries.field(0)), _to_plain(entries.field(1))
    return [list(pair) for pair in zip(keys, values, strict=True)]


def _validity(array: pa.Array) -> list[bool]:
    return list(array.is_valid().to_pylist())


def _bounds(array: pa.Array) -> list[tuple[bool, int, int]]:
    offsets = array.offsets.to_pylist()
    return list(zip(_validity(array), offsets[:-1], offsets[1:], strict=True))


def _from_plain(values: list[Any], arrow: pa.DataType) -> pa.Array:
    kinds = pa.types
    mask = pa.array([value is None for value in values], pa.bool_())
    if kinds.is_null(arrow):
        return pa.nulls(len(values))
    if kinds.is_struct(arrow):
        parts = [
            _from_plain(
                [None if value is None else value[part.name] for value in values], part.type
            )
            for part in arrow
        ]
        if not parts:
            return pa.array([None if value is None else {} for value in values], arrow)
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=mask)
    if kinds.is_map(arrow):
        entries = [pair for entry in values if entry is not None for pair in entry]
        keys = _from_plain([key for key, _ in entries], arrow.key_type)
        items = _from_plain([item for _, item in entries], arrow.item_type)
        return pa.MapArray.from_arrays(_offsets(values, pa.int32()), keys, items, arrow)
    if kinds.is_fixed_size_list(arrow):
        size = arrow.list_size
        if any(value is not None and len(value) != size for value in values):
            raise ValueError(f"a list does not have {size} items")
        flat = [item for value in values for item in ([None] * size if value is None else value)]
        return pa.FixedSizeListArray.from_arrays(
            _from_plain(flat, arrow.value_type), type=arrow, mask=mask
        )
    if kinds.is_list(arrow) or kinds.is_large_list(arrow):
        flat = [item for value in values if value is not None for item in value]
        items = _from_plain(flat, arrow.value_type)
        is_large = kinds.is_large_list(arrow)
        offsets = _offsets(values, pa.int64() if is_large else pa.int32())
        array = pa.LargeListArray if is_large else pa.ListArray
        return array.from_arrays(offsets, items, type=arrow)
    for is_kind, _, decode in _KINDS:
        if is_kind(arrow):
            return decode(values, arrow)
    raise ValueError(f"rows in quarantine have no {arrow}")


def _offsets(values: list[Any], width: pa.DataType) -> pa.Array:
    """Return the offsets of lists; null for null lists."""
    stops = np.cumsum([0, *(0 if value is None else len(value) for value in values)])
    is_null = [*(value is None for value in values), False]
    return pa.array(stops, width, mask=np.array(is_null))


def _plain_numbers(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


def _array_of(values: list[Any], arrow: pa.DataType) -> pa.Array:
    kind = bool if pa.types.is_boolean(arrow) else int
    wrong = [value for value in values if value is not None and type(value) is not kind]
    if wrong:  # Arrow would convert 1.5 to 1
        raise ValueError(f"{wrong[0]!r:.40} is not a {arrow}")
    return pa.array(values, arrow)


def _floats(array: pa.Array) -> list[Any]:
    numbers = array.cast(pa.float64()).to_pylist()
    return [_float(number) for number in numbers]


def _float(value: float | None) -> Any:
    if value is None or np.isfinite(value):
        return value
    if np.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _parse_floats(values: list[Any], arrow: pa.DataType) -> pa.Array:
    numbers = [_NOT_FINITE[value] if isinstance(value, str) else value for value in values]
    return pa.array(numbers, pa.float64()).cast(arrow, safe=False)


def _decimals(array: pa.Array) -> list[Any]:
    return [None if decimal is None else format(decimal, "f") for decimal in array.to_pylist()]


def _parse_decimals(values: list[Any], arrow: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else Decimal(value) for value in values], arrow)


def _texts(array: pa.Array) -> list[Any]:
    is_large = pa.types.is_large_string(array.type)
    data = array.cast(pa.large_binary() if is_large else pa.binary()).to_pylist()
    return [_text(text) for text in data]


def _text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _parse_texts(values: list[Any], arrow: pa.DataType) -> pa.Array:
    data = [
        base64.b64decode(value["base64"], validate=True)
        if isinstance(value, dict)
        else None
        if value is None
        else value.encode()
        for value in values
    ]
    is_large = pa.types.is_large_string(arrow)
    plain = pa.array(data, pa.large_binary() if is_large else pa.binary())
    return pa.Array.from_buffers(arrow, len(plain), plain.buffers(), plain.null_count)


def _bytes(array: pa.Array) -> list[Any]:
    return [
        None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()
    ]


def _parse_bytes(values: list[Any], arrow: pa.DataType) -> pa.Array:
    return pa.array(
        [None if value is None else base64.b64decode(value, validate=True) for value in values],
        arrow,
    )


def _numbers_of(array: pa.Array) -> list[Any]:
    """Return dates, times and durations as numbers of their units."""
    is_32 = array.type.bit_width == 32
    integers = array.cast(pa.int32()) if is_32 else array.cast(pa.int64())
    return list(integers.to_pylist())


def _parse_numbers(values: list[Any], arrow: pa.DataType) -> pa.Array:
    return _array_of(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).cast(arrow)


def _unit_of(arrow: pa.DataType) -> Any:
    if pa.types.is_date(arrow):
        return "D" if pa.types.is_date32(arrow) else "ms"
    return str(arrow.unit)


def _instants(array: pa.Array) -> list[Any]:
    unit = _unit_of(array.type)
    zone = "Z" if getattr(array.type, "tz", None) else ""
    return [
        None if instant is None else f"{np.datetime64(instant, unit)}{zone}"
        for instant in _numbers_of(array)
    ]


def _parse_instants(values: list[Any], arrow: pa.DataType) -> pa.Array:
    unit = _unit_of(arrow)
    numbers = [
        None
        if value is None
        else int(np.datetime64(value.removesuffix("Z"), unit).astype(np.int64))
        for value in values
    ]
    return _parse_numbers(numbers, arrow)


def _times(array: pa.Array) -> list[Any]:
    unit = _unit_of(array.type)
    return [
        None if time is None else str(np.datetime64(time, unit)).partition("T")[2]
        for time in _numbers_of(array)
    ]


def _parse_times(values: list[Any], arrow: pa.DataType) -> pa.Array:
    texts = [None if value is None else f"1970-01-01T{value}" for value in values]
    unit = _unit_of(arrow)
    numbers = [
        None if value is None else int(np.datetime64(value, unit).astype(np.int64))
        for value in texts
    ]
    return _parse_numbers(numbers, arrow)


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
        or pa.types.is_fixed_size_binary(arrow)
    )


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_boolean(arrow))


def _is_instant(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(arrow) or pa.types.is_date(arrow))


_KINDS: Final[
    tuple[
        tuple[
            Callable[[pa.DataType], bool],
            Callable[[pa.Array], list[Any]],
            Callable[[list[Any], pa.DataType], pa.Array],
        ],
        ...,
    ]
] = (
    (_is_number, _plain_numbers, _array_of),
    (pa.types.is_floating, _floats, _parse_floats),
    (pa.types.is_decimal, _decimals, _parse_decimals),
    (_is_text, _texts, _parse_texts),
    (_is_bytes, _bytes, _parse_bytes),
    (_is_instant, _instants, _parse_instants),
    (pa.types.is_time, _times, _parse_times),
    (pa.types.is_duration, _numbers_of, _parse_numbers),
)
"""The test, encoder and decoder for every kind of values."""
