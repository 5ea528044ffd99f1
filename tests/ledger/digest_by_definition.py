"""The digest of rows, computed value by value as docs/reference/row-digest.md defines it.

Slow, and without numpy: it shares nothing with `lance_stream.ledger.row_digests`.
"""

import hashlib
import struct
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

MASK = (1 << 64) - 1
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
BYTES = (pa.BinaryScalar, pa.LargeBinaryScalar, pa.BinaryViewScalar, pa.FixedSizeBinaryScalar)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def digest(table: pa.Table) -> tuple[int, str]:
    """Return the number of a table's rows, and their digest as text."""
    sums = [0, 0]
    columns = [
        (entry.name, entry.type, values_of(column))
        for entry, column in zip(table.schema, table.columns, strict=True)
    ]
    for row in range(table.num_rows):
        parts = [(name, arrow, values[row]) for name, arrow, values in columns]
        for lane in (0, 1):
            sums[lane] += struct_code(parts, lane)
    return table.num_rows, "".join(f"{value & MASK:016x}" for value in sums)


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return scalars; without nulls' types, which pyarrow does not need."""
    return [value for chunk in column.chunks for value in chunk]


def splitmix(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


@cache
def k(lane: int, index: int) -> int:
    section, index = divmod(index, 8192)
    number = splitmix(SEEDS[lane], index) | 1
    return number * (splitmix(SEEDS[lane] ^ 3, section) | 1 if section else 1) & MASK


@cache
def length(lane: int) -> int:
    return splitmix(SEEDS[lane] ^ 1, 0) | 1


@cache
def weight(index: int) -> int:
    return splitmix(SEEDS[0] ^ 2, index) | 1


def mix(code: int) -> int:
    code &= MASK
    for _ in range(2):
        code ^= code >> 32
        code = code * 0xD6E8FEB86659FD93 & MASK
    return code ^ (code >> 32)


def fold(word: int) -> int:
    word &= MASK
    return word ^ (word >> 32)


def field(name: str, arrow: pa.DataType, value: Any, lane: int) -> int:
    arrow, value = plain(arrow, value)
    if value is None or not value.is_valid:
        return 0
    kind, code = KINDS_AND_CODES(arrow, value, lane)
    a0, a1, b0, b1 = constants(kind, name)
    return ((a0, a1)[lane] | 1) * code + (b0, b1)[lane]


@cache
def constants(kind: str, name: str) -> tuple[int, ...]:
    numbers = hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=32).digest()
    return struct.unpack("<4Q", numbers)


def plain(arrow: pa.DataType, value: Any) -> tuple[pa.DataType, Any]:
    if isinstance(arrow, pa.BaseExtensionType):
        return plain(arrow.storage_type, value.value)
    if pa.types.is_dictionary(arrow):
        return plain(arrow.value_type, value.value)
    return arrow, value


def struct_code(parts: Iterable[tuple[str, pa.DataType, Any]], lane: int) -> int:
    return mix(sum(field(name, arrow, value, lane) for name, arrow, value in parts))


def KINDS_AND_CODES(arrow: pa.DataType, value: Any, lane: int) -> tuple[str, int]:  # noqa: N802  # a table
    types = pa.types
    if types.is_boolean(arrow):
        return "bool", int(value.as_py())
    if types.is_integer(arrow) or types.is_decimal(arrow):
        return "number", number(Decimal(value.as_py()))
    if types.is_floating(arrow):
        return "float", floating(float(value.as_py()))
    if types.is_string(arrow) or types.is_large_string(arrow) or arrow == pa.string_view():
        return "text", text(value.as_py().encode(), lane)
    if isinstance(value, BYTES):
        return "bytes", text(value.as_py(), lane)
    if types.is_date(arrow):
        days = value.value if types.is_date32(arrow) else value.value // 86_400_000
        return "date", fold(days)
    if types.is_time(arrow):
        return "time", fold(value.value * (10**9 // PER_SECOND[arrow.unit]))
    if types.is_timestamp(arrow) or types.is_duration(arrow):
        kind = "duration" if types.is_duration(arrow) else "instant" if arrow.tz else "timestamp"
        per_second = PER_SECOND[arrow.unit]
        seconds, rest = divmod(value.value, per_second)
        return kind, fold(seconds) + rest * (10**9 // per_second) * weight(0)
    if types.is_interval(arrow):
        months, days, nanos = value.as_py()
        return "interval", fold(months) + days * weight(0) + fold(nanos) * weight(1)
    if types.is_struct(arrow):
        parts = [(part.name, part.type, value[index]) for index, part in enumerate(arrow)]
        return "struct", struct_code(parts, lane)
    entries = value.values
    total = len(entries) * length(lane)
    if types.is_map(arrow):
        for entry in entries:
            parts = [("key", arrow.key_type, entry[0]), ("value", arrow.item_type, entry[1])]
            total += struct_code(parts, lane)
        return "map", mix(total)
    for index, item in enumerate(entries):
        total += k(lane, index) * field("item", arrow.value_type, item, lane)
    return "list", mix(total)


def number(value: Decimal) -> int:
    """Words of 64 bits of the unscaled two's complement, and the scale."""
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    assert isinstance(exponent, int)
    while exponent < 0 and unscaled % 10 == 0:
        unscaled, exponent = unscaled // 10, exponent + 1
    if exponent > 0:
        unscaled, exponent = unscaled * 10**exponent, 0
    words = [unscaled >> 64 * index & MASK for index in range(5)]
    signs = [MASK if word >> 63 else 0 for word in words]
    code = fold(words[0]) - exponent * weight(4)
    return code + sum((words[i + 1] ^ signs[i]) * weight(i) for i in range(3))


def floating(value: float) -> int:
    if value != value:
        return 0x7FC00000
    value += 0.0
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        if struct.unpack("<f", struct.pack("<f", value)) == (value,):
            return bits
    except OverflowError:
        pass
    return fold(struct.unpack("<Q", struct.pack("<d", value))[0])


def text(value: bytes, lane: int) -> int:
    total = len(value) * length(lane)
    for index in range(-(-len(value) // 8)):
        word = int.from_bytes(value[8 * index : 8 * index + 8], "little")
        total += k(lane, index) * fold(word)
    return mix(total)
