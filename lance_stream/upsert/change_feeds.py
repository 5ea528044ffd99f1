"""Applies a change feed to another table: chooses the last change of each key.

    _commit_version  _change_type        key        effect on the key
    7                delete              a          removes it
    7                insert              a          adds it back: same version, different row
    8                update_preimage     b          removes it
    8                update_postimage    b          adds it back
    8                update_preimage     c          removes it: the update changed the key
    8                update_postimage    d          adds it

A key has at most one row in each version. Changes of a key are therefore ordered by version, and
within a version removals come before additions. The last change decides whether the key exists.
A pre-image must remove its key for two cases: the update changes the key, or the feed is filtered
and the updated row no longer matches the filter.

Delta's change feed and Spark's have the same columns and change types.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Positions
from lance_stream.errors import InvalidInputError
from lance_stream.keys.batch_keys import KeyLookup, show_key
from lance_stream.schema.system_columns import CHANGE_TYPE, COMMIT_VERSION, SYSTEM_COLUMNS
from lance_stream.table.lineage.ascending import distinct

BRINGS: Final[Mapping[str, bool]] = {
    "delete": False,
    "update_preimage": False,
    "update_postimage": True,
    "insert": True,
}
"""For each change type, whether the row exists after the change."""


def is_change_column(name: str) -> bool:
    """Return whether a column belongs to the feed and not to its source table."""
    return name in SYSTEM_COLUMNS


def check_has_changes(columns: Sequence[str]) -> None:
    """Raise unless data has the change feed's columns for change type and version.

    Raises:
        InvalidInputError: A column is missing.
    """
    for name in (CHANGE_TYPE, COMMIT_VERSION):
        if name not in columns:
            raise InvalidInputError(
                f"changes are applied in the order of {COMMIT_VERSION!r} and {CHANGE_TYPE!r}, but "
                f"the data has no column {name!r}; it has: {', '.join(columns)}. Read the changes "
                "with the option readChangeFeed, or with changes()"
            )


def last_changes(
    batch: pa.RecordBatch, names: Sequence[str], lookup: KeyLookup
) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """Return the last change of each key.

    Args:
        batch: The changes, in any order, with the change columns.
        names: The key columns.
        lookup: The keys of the batch.

    Returns:
        (num_keys,) i64, for each key the row of its last change; and (num_keys,) whether that
        change removes the key.

    Raises:
        InvalidInputError: A change column is missing, is null, or has an unknown change type; or
            two changes of one key have the same effect in one version.
    """
    check_has_changes(batch.schema.names)
    brings = _brings(batch)
    # By version; within a version, removals (0) before additions (1).
    order = (_versions(batch) << 1) | brings
    by_key = np.lexsort((order, lookup.key_of_row))
    keys, order = lookup.key_of_row[by_key], order[by_key]
    is_last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.empty(0, np.bool_)
    # Neighbors of one key with the same version and effect: their order is ambiguous.
    twins = np.flatnonzero(~is_last[:-1] & (order[1:] == order[:-1]))
    if len(twins):
        raise _not_a_key(batch, names, int(by_key[twins[0]]), len(distinct(keys[twins])))
    rows = by_key[is_last].astype(np.int64)
    return rows, ~brings[rows]


def _brings(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    types = _column(batch, CHANGE_TYPE, pa.string())
    change_types = pa.array(list(BRINGS))
    positions = pc.index_in(types, value_set=change_types)
    if positions.null_count:
        unknown = types.filter(pc.is_null(positions))[0].as_py()
        raise InvalidInputError(
            f"the change type {unknown!r} cannot be applied. Supported change types: "
            f"{', '.join(map(repr, BRINGS))}. Remove rows with other change types from the batch"
        )
    brings: npt.NDArray[np.bool_] = np.array(list(BRINGS.values()))[positions.to_numpy()]
    return brings


def _versions(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    versions: npt.NDArray[np.int64] = _column(batch, COMMIT_VERSION, pa.int64()).to_numpy()
    return versions


def _column(batch: pa.RecordBatch, name: str, arrow_type: pa.DataType) -> pa.Array:
    column = batch.column(name)
    try:
        column = column.cast(arrow_type)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"the column {name!r} does not have the change feed's type {arrow_type}: {error}"
        ) from None
    if column.null_count:
        raise InvalidInputError(
            f"{column.null_count} rows have a null {name!r}, so they do not come from a change feed"
        )
    return column


def _not_a_key(
    batch: pa.RecordBatch, names: Sequence[str], row: int, num_keys: int
) -> InvalidInputError:
    key = show_key(names, [batch.column(name) for name in names], row)
    change = batch.column(CHANGE_TYPE)[row].as_py()
    version = batch.column(COMMIT_VERSION)[row].as_py()
    return InvalidInputError(
        f"{num_keys} keys have two changes with the same effect in one version, for example {key}, "
        f"which has a second {change!r} or equivalent in version {version}: their order is "
        f"ambiguous. Either on={list(names)} is not a key of the source table, or the same changes "
        "occur twice. Name all columns of its key; or append the changes without applying them"
    )
