"""Fingerprints of the inputs that each row was computed from: the `state` column.

    null        never computed
    n > 0       computed; n is made from the inputs and the function's version
    n < 0       the function failed for these inputs; -n is made in the same way

A row is current if its number is that of its inputs now. So a row that was updated in other columns
is not computed again, one that failed is not tried again until its inputs or the function change,
and a restored row has the number that belongs to the restored value. Two values of one row have the
same number by chance once in 2**63.

A function sees more than what makes rows equal: the sign of a zero, the bits of a NaN, the order of
a map's entries, and the types, which a change of the table's columns may make others. All of it is
part of the number.
"""

import hashlib
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.ledger.row_digests import row_hashes

Fingerprints: TypeAlias = npt.NDArray[np.int64]

_MASK = np.uint64((1 << 63) - 1)
_INTEGERS: Final = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def fingerprints_of(inputs: pa.RecordBatch, function: str) -> Fingerprints:
    """Return (n,) i64, each more than 0: the numbers of rows.

    Args:
        inputs: (n,) the rows.
        function: `Declaration.fingerprint`.
    """
    mixed = row_hashes(_as_seen(inputs)) ^ np.uint64(int(function, 16)) ^ _types_of(inputs.schema)
    # Two rounds: the function's number must not cancel out against a difference of the inputs.
    for _ in range(2):
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    fingerprints = (mixed & _MASK).astype(np.int64)
    return np.where(fingerprints == 0, 1, fingerprints)


def _types_of(schema: pa.Schema) -> np.uint64:
    text = "\0".join(str(field.type) for field in schema)
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))


def _as_seen(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that are equal only if a function sees no difference."""
    if not any(_hides(field.type) for field in rows.schema):
        return rows
    return pa.RecordBatch.from_arrays(list(map(_bits, rows.columns)), rows.schema.names)


def _hides(kind: pa.DataType) -> bool:
    """Return whether values of a type that count as equal may differ."""
    if isinstance(kind, pa.BaseExtensionType):
        return _hides(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _hides(kind.value_type)
    if pa.types.is_floating(kind) or pa.types.is_map(kind):
        return True
    return any(_hides(kind.field(index).type) for index in range(kind.num_fields))


def _bits(values: pa.Array) -> pa.Array:
    """Return floats as the integers of their bits, and maps as lists, at any depth."""
    kind = values.type
    if not _hides(kind):
        return values
    if isinstance(values, pa.ExtensionArray):
        return _bits(values.storage)
    if pa.types.is_dictionary(kind):
        return _bits(values.dictionary_decode())
    if pa.types.is_floating(kind):
        return values.view(_INTEGERS[kind.bit_width])
    mask = values.is_null()
    if pa.types.is_struct(kind):
        parts = [_bits(values.field(index)) for index in range(kind.num_fields)]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(parts, names, mask=mask)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        items = _bits(values.values.slice(values.offset * size, len(values) * size))
        return pa.FixedSizeListArray.from_arrays(items, size, mask=mask)
    if pa.types.is_map(kind):
        names = [kind.key_field.name, kind.item_field.name]
        items = pa.StructArray.from_arrays([_bits(values.keys), _bits(values.items)], names)
    else:
        items = _bits(values.values)
    arrays: Any = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    offsets = pa.array(values.offsets.to_numpy())  # a mask goes with no slice
    return arrays.from_arrays(offsets, items, mask=mask)


def are_stale(stored: pa.Array, expected: Fingerprints) -> npt.NDArray[np.bool_]:
    """Return (n,) which rows have to be computed.

    Args:
        stored: (n,) i64 the state column; null where a row was never computed.
        expected: (n,) the numbers of their inputs.
    """
    actual = stored.fill_null(0).to_numpy(zero_copy_only=False)
    stale: npt.NDArray[np.bool_] = np.abs(actual) != expected
    return stale
