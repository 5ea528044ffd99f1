"""Fingerprints of the inputs from which each row was computed: the `state` column.

    null        never computed
    n > 0       computed; n is the fingerprint of the inputs and the function's version
    n < 0       the function failed for these inputs; -n is their fingerprint

A row is current if its state is the fingerprint of its current inputs. So a row that was updated in
other columns is not computed again, a row that failed is not tried again until its inputs or the
function change, and a restored row has the fingerprint of its restored inputs. Two different inputs
have the same fingerprint with a probability of 1 in 2**63.

A function can distinguish rows that compare as equal: by the sign of a zero, the bits of a NaN, the
order of a map's entries, and the types of columns, which may change. Fingerprints include all of
these.
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
    """Return the fingerprints of rows, (num_rows,) i64, greater than 0.

    Args:
        inputs: The rows.
        function: `Declaration.fingerprint`.
    """
    mixed = (
        row_hashes(_distinguishable(inputs))
        ^ np.uint64(int(function, 16))
        ^ _hash_of_types(inputs.schema)
    )
    # Two rounds, so that a change of the function cannot cancel out a change of the inputs.
    for _ in range(2):
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    fingerprints = (mixed & _MASK).astype(np.int64)
    return np.where(fingerprints == 0, 1, fingerprints)


def _hash_of_types(schema: pa.Schema) -> np.uint64:
    text = "\0".join(str(field.type) for field in schema)
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))


def _distinguishable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose values compare as equal only if a function cannot distinguish them."""
    if not any(_may_differ_if_equal(field.type) for field in rows.schema):
        return rows
    return pa.RecordBatch.from_arrays(list(map(_as_bits, rows.columns)), rows.schema.names)


def _may_differ_if_equal(kind: pa.DataType) -> bool:
    """Return whether values of a type may compare as equal although they differ."""
    if pa.types.is_dictionary(kind):
        return _may_differ_if_equal(kind.value_type)
    if pa.types.is_floating(kind) or pa.types.is_map(kind):
        return True
    return any(_may_differ_if_equal(kind.field(index).type) for index in range(kind.num_fields))


def _as_bits(values: pa.Array) -> pa.Array:
    """Return floats as the integers of their bits, and maps as lists, at any depth."""
    kind = values.type
    if not _may_differ_if_equal(kind):
        return values
    if pa.types.is_dictionary(kind):
        return _as_bits(values.dictionary_decode())
    if pa.types.is_floating(kind):
        return values.view(_INTEGERS[kind.bit_width])
    mask = values.is_null()
    if pa.types.is_struct(kind):
        parts = [_as_bits(values.field(index)) for index in range(kind.num_fields)]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(parts, names, mask=mask)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        items = _as_bits(values.values.slice(values.offset * size, len(values) * size))
        return pa.FixedSizeListArray.from_arrays(items, size, mask=mask)
    if pa.types.is_map(kind):
        names = [kind.key_field.name, kind.item_field.name]
        items = pa.StructArray.from_arrays([_as_bits(values.keys), _as_bits(values.items)], names)
    else:
        items = _as_bits(values.values)
    arrays: Any = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    offsets = pa.array(values.offsets.to_numpy())  # a mask cannot be combined with a slice
    return arrays.from_arrays(offsets, items, mask=mask)


def are_stale(stored: pa.Array, expected: Fingerprints) -> npt.NDArray[np.bool_]:
    """Return which rows have to be computed, (num_rows,) booleans.

    Args:
        stored: (num_rows,) i64, the state column; null for rows that were never computed.
        expected: (num_rows,) i64, the fingerprints of the current inputs.
    """
    actual = stored.fill_null(0).to_numpy(zero_copy_only=False)
    stale: npt.NDArray[np.bool_] = np.abs(actual) != expected
    return stale
