"""JSONB: a JSON value as bytes, as the column type `json` stores it.

    value      header u32, and what the header says it has
    header     0x20000000              a scalar: one entry, then its bytes
               0x80000000 | n          an array: n entries, then the bytes of its items
               0x40000000 | n          an object: n entries of keys, n entries of values, the bytes
                                       of the keys, the bytes of the values; keys ascend by bytes
    entry      type | number of bytes, u32
    type       0x00000000 null         0x30000000 false       0x40000000 true, none has bytes
               0x10000000 string       UTF-8
               0x20000000 number       see below
               0x50000000 container    an array or object, with its own header
    number     tag u8, and a big-endian number of the fewest bytes, of 1, 2, 4 and 8
               0x00 zero               0x40 a negative integer        0x50 a positive one, up to u64
               0x60 a double, of 8 bytes, for everything else
               0x10 NaN                0x20 infinity          0x30 minus infinity, read as null

All numbers are big-endian. A number without a point or exponent that fits neither i64 nor u64 is a
double, as in JavaScript. A text does not come back as it was written, but as the same value: keys
sorted, without spaces, `1e2` as `100.0`.

Source:  the crate jsonb 0.5 of databend, as used by lance-arrow's json.rs; files of pylance 14.
Differs: The reference accepts texts that are not JSON: an empty one, `{a:1}`, `[1,,2]`, NaN. It
         stores 1e309 as infinity, which it reads as null, and half of a surrogate pair as six
         other characters. Here they are refused. Dates, decimals and other values that JSON does
         not have, which the crate can store, are not read.
"""

import json
import math
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError

HEADER_BYTES: Final = 4

SCALAR: Final = 0x20000000
OBJECT: Final = 0x40000000
ARRAY: Final = 0x80000000
_KINDS: Final = 0xE0000000
_COUNT: Final = 0x1FFFFFFF

_NULL: Final = 0x00000000
_STRING: Final = 0x10000000
_NUMBER: Final = 0x20000000
_FALSE: Final = 0x30000000
_TRUE: Final = 0x40000000
_CONTAINER: Final = 0x50000000
_TYPES: Final = 0xF0000000
_LENGTH: Final = 0x0FFFFFFF

_ZERO, _NAN, _INFINITY, _MINUS_INFINITY, _NEGATIVE, _POSITIVE, _DOUBLE = range(0x00, 0x70, 0x10)
_NO_NUMBERS: Final = frozenset({_NAN, _INFINITY, _MINUS_INFINITY})
_SIZES: Final = (1, 2, 4, 8)

_U32: Final = struct.Struct(">I")
_F64: Final = struct.Struct(">d")

_MAX_QUOTED: Final = 80
_MAX_DEPTH: Final = 400

_quoted = json.encoder.encode_basestring
_Entry = tuple[int, bytes]


def encode_jsonb(text: str) -> bytes:
    """Return the JSONB of a JSON text.

    Raises:
        InvalidInputError: It is not JSON, an object has duplicate keys, a number is not a finite
            double, or a string is not Unicode.
    """
    try:
        kind, data = _encode(_parse(text), 0)
    except (ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, InvalidInputError):
            raise
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInputError(
            f"{text[:_MAX_QUOTED]!r} cannot be stored as JSON: {problem}"
        ) from None
    if kind == _CONTAINER:
        return data
    return _U32.pack(SCALAR) + _entry(kind, data) + data


def _parse(text: str) -> Any:
    return _DECODER.decode(text)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {duplicate[:_MAX_QUOTED]!r} twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant, strict=False
)


def _encode(value: Any, depth: int) -> _Entry:
    """Return the type and the bytes of a value."""
    if isinstance(value, str):
        return _STRING, value.encode()
    if value is None or value is True or value is False:
        return {None: _NULL, True: _TRUE, False: _FALSE}[value], b""
    if isinstance(value, int | float):
        return _NUMBER, _encode_number(value)
    if depth == _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    parts: list[_Entry] = []
    items, header = value, ARRAY
    if isinstance(value, dict):
        members = sorted((key.encode(), item) for key, item in value.items())
        parts += [(_STRING, key) for key, _ in members]
        items, header = [item for _, item in members], OBJECT
    for item in items:
        parts.append(_encode(item, depth + 1))  # one frame per level
    return _CONTAINER, _container(header | len(items), parts)


def _container(header: int, parts: Sequence[_Entry]) -> bytes:
    entries = (_entry(kind, data) for kind, data in parts)
    return b"".join(chain([_U32.pack(header)], entries, (data for _, data in parts)))


def _entry(kind: int, data: bytes) -> bytes:
    if len(data) > _LENGTH:
        raise ValueError(f"a part of it has more than {_LENGTH} bytes")
    return _U32.pack(kind | len(data))


def _encode_number(value: float) -> bytes:
    if isinstance(value, int):
        if value == 0:
            return bytes([_ZERO])
        if -(1 << 63) <= value < 0:
            size = next(num_bytes for num_bytes in _SIZES if value >= -(1 << (8 * num_bytes - 1)))
            return bytes([_NEGATIVE]) + value.to_bytes(size, signed=True)
        if 0 < value < 1 << 64:
            size = next(num_bytes for num_bytes in _SIZES if value < 1 << (8 * num_bytes))
            return bytes([_POSITIVE]) + value.to_bytes(size)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a double")
    return bytes([_DOUBLE]) + _F64.pack(number)


def decode_jsonb(data: bytes) -> str:
    """Return the JSON text of JSONB: without spaces, the keys of objects in their stored order.

    Raises:
        CorruptDataError: The bytes are not JSONB.
        UnsupportedFeatureError: They contain a value that JSON does not have, or are nested too
            deeply.
    """
    try:
        return _text(data, 0, len(data), 0)
    except (struct.error, UnicodeDecodeError) as error:
        raise _corrupt(str(error)) from None
    except RecursionError:
        raise _too_deep() from None


def are_headers(
    headers: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return (n,) whether each number can be the header of a JSONB value of its size.

    Args:
        headers: (n,) the first four bytes of each value.
        sizes: (n,) the number of bytes of each value.
    """
    kinds, counts = headers & _KINDS, (headers & _COUNT).astype(np.int64)
    is_scalar, is_array, is_object = (kinds == kind for kind in (SCALAR, ARRAY, OBJECT))
    num_entries = np.select([is_scalar, is_array, is_object], [1, counts, 2 * counts])
    fits = HEADER_BYTES * (1 + num_entries) <= sizes
    result: npt.NDArray[np.bool_] = fits & ((is_scalar & (counts == 0)) | is_array | is_object)
    return result


def _text(data: bytes, start: int, stop: int, depth: int) -> str:
    """Return the JSON text of a value, which begins with a header."""
    (header,) = _U32.unpack_from(data, start)
    kind, count = header & _KINDS, header & _COUNT
    num_entries = {SCALAR: 1, ARRAY: count, OBJECT: 2 * count}.get(kind)
    position = start + 4
    if num_entries is None or (kind == SCALAR and count) or 4 * num_entries > stop - position:
        raise _corrupt(f"the header is {header:#010x}")
    if depth > _MAX_DEPTH:
        raise _too_deep()
    entries = struct.unpack_from(f">{num_entries}I", data, position)
    position += 4 * num_entries
    ends = list(_ends(entries, position))
    if (ends[-1] if ends else position) != stop:
        raise _corrupt(f"the sizes of its parts do not add up to its {stop - start} bytes")
    starts = [position, *ends]
    parts: list[str] = []
    for entry, begin, end in zip(entries, starts, ends, strict=False):
        if entry & _TYPES == _CONTAINER:  # not in a helper: one stack frame per level
            parts.append(_text(data, begin, end, depth + 1))
        else:
            parts.append(_leaf_text(entry & _TYPES, data[begin:end]))
    if kind == SCALAR:
        return parts[0]
    if kind == ARRAY:
        return f"[{','.join(parts)}]"
    if any(entry & _TYPES != _STRING for entry in entries[:count]):
        raise _corrupt("the key of an object is not a string")
    members = zip(parts[:count], parts[count:], strict=True)
    return "{" + ",".join(f"{key}:{value}" for key, value in members) + "}"


def _ends(entries: Sequence[int], position: int) -> Iterator[int]:
    for entry in entries:
        position += entry & _LENGTH
        yield position


def _leaf_text(kind: int, data: bytes) -> str:
    if kind == _STRING:
        return _quoted(data.decode())
    if kind == _NUMBER:
        return _number_text(data)
    if kind not in (_NULL, _TRUE, _FALSE):
        raise UnsupportedFeatureError(
            f"a JSONB value has the type {kind:#010x}, which JSON does not have, such as a date, a "
            "decimal or bytes. Read other columns, or write the value as a string"
        )
    if data:
        raise _corrupt("a null or a boolean has bytes")
    return {_NULL: "null", _TRUE: "true", _FALSE: "false"}[kind]


def _number_text(data: bytes) -> str:
    if not data:
        raise _corrupt("a number has no bytes")
    tag, value = data[0], data[1:]
    if tag == _ZERO and not value:
        return "0"
    if tag in _NO_NUMBERS and not value:
        return "null"
    if tag in (_NEGATIVE, _POSITIVE) and len(value) in _SIZES:
        return str(int.from_bytes(value, signed=tag == _NEGATIVE))
    if tag == _DOUBLE and len(value) == _F64.size:
        return _double_text(_F64.unpack(value)[0])
    if tag > _DOUBLE:
        raise UnsupportedFeatureError(
            f"a JSONB number has the tag {tag:#04x}, which is not supported, such as a decimal. "
            "Read other columns, or write the number as a double or a string"
        )
    raise _corrupt(f"a number has the tag {tag:#04x} and {len(value)} bytes")


def _double_text(value: float) -> str:
    """Return a double as the reference writes it: with an exponent below 1e-5 and from 1e16 on."""
    if not math.isfinite(value):
        return "null"
    text = repr(value)
    digits, has_exponent, exponent = text.partition("e")
    if not has_exponent:
        return text
    if exponent == "-05":
        sign, digits = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
        return f"{sign}0.0000{digits.replace('.', '')}"
    return f"{digits}e{exponent[0]}{exponent[1:].lstrip('0')}"


def _too_deep() -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"a value of a JSON column is nested more than {_MAX_DEPTH} levels deep, which is not "
        "supported. Read other columns"
    )


def _corrupt(problem: str) -> CorruptDataError:
    return CorruptDataError(f"a value of a JSON column is not JSONB: {problem}")
