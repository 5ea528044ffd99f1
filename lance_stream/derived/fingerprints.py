"""Of each row, a number that says what it was computed from: the `state` column.

    null        never computed
    n > 0       computed; n is made from the inputs and the function's version
    n < 0       the function failed for these inputs; -n is made in the same way

A row is current if its number is that of its inputs now. So a row that was updated in other columns
is not computed again, one that failed is not tried again until its inputs or the function change,
and a restored row has the number that belongs to the restored value. Two values of one row have the
same number by chance once in 2**63.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.write.row_digests import row_hashes

Fingerprints: TypeAlias = npt.NDArray[np.int64]

_MASK = np.uint64((1 << 63) - 1)


def fingerprints_of(inputs: pa.RecordBatch, function: str) -> Fingerprints:
    """Return (n,) i64, each more than 0: the numbers of rows.

    Args:
        inputs: (n,) the rows.
        function: `Declaration.fingerprint`.
    """
    mixed = row_hashes(inputs) ^ np.uint64(int(function, 16))
    # Two rounds: the function's number must not cancel out against a difference of the inputs.
    for _ in range(2):
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    found = (mixed & _MASK).astype(np.int64)
    return np.where(found == 0, 1, found)


def are_stale(stored: pa.Array, wanted: Fingerprints) -> npt.NDArray[np.bool_]:
    """Return (n,) which rows have to be computed.

    Args:
        stored: (n,) i64 the state column; null where a row was never computed.
        wanted: (n,) the numbers of their inputs.
    """
    known = stored.fill_null(0).to_numpy(zero_copy_only=False)
    stale: npt.NDArray[np.bool_] = np.abs(known) != wanted
    return stale
