"""The stored sequences of matching rows, which order them before or after incoming rows.

The sequence is the column of `sequence_by`. The columns of files that were read as a whole are
cached.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.caches import Cache
from lance_stream.keys.file_columns import FileColumn, file_column
from lance_stream.read.fragment import read_unit
from lance_stream.read.units import WorkUnit
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.table.fragments.fragment import Fragment

MAX_COLUMN_BYTES: Final = 128 << 20
"""The maximum size of the cached columns of all tables, in bytes."""

_columns: Final[Cache[tuple[FileColumn, str], pa.Array]] = Cache(
    MAX_COLUMN_BYTES, lambda values: values.nbytes
)


def _location_of(fragment: Fragment, field: Field) -> FileColumn | None:
    """Return the file column that stores all values of a column; None if it cannot be cached.

    The fields of a struct may be stored in several files, which are replaced independently.
    """
    is_nested = pa.types.is_nested(field_to_arrow(field).type)
    return None if is_nested else file_column(fragment, field.id)


def cache_sequences(fragment: Fragment, field: Field, values: pa.Array) -> None:
    """Cache the sequences of all rows of a fragment, deleted ones included, if possible."""
    location = _location_of(fragment, field)
    if location is not None:
        _columns.put((location, str(values.type)), values)


def clear_sequences() -> None:
    """Clear the cache, as if the process had just started."""
    _columns.clear()


_MIN_ROWS_PER_MATCH: Final = 256
"""If fewer than one row in this number matches, only the matching rows are read."""


def read_sequences(
    unit: WorkUnit, fragment: Fragment, offsets: npt.NDArray[np.uint64], *, use_cache: bool
) -> pa.Array:
    """Return the sequence of each row; reads the whole column unless there are few rows.

    Args:
        unit: Names the sequence as the last of its columns.
        fragment: The fragment.
        offsets: (n,) u64 offsets of rows, ascending.
        use_cache: Whether to use the cache of sequence columns.
    """
    (field,) = unit.schema.fields_named(unit.columns[-1:])
    location = _location_of(fragment, field) if use_cache else None
    kind = str(field_to_arrow(field).type)
    cached = None if location is None else _columns.get((location, kind))
    if cached is not None and len(cached) == fragment.physical_rows:
        return cached.take(pa.array(offsets))
    rows = replace(unit, columns=unit.columns[-1:], system_columns=())
    if len(offsets) * _MIN_ROWS_PER_MATCH < fragment.physical_rows:
        rows = replace(rows, offsets=offsets.astype(np.uint32))
        return pa.concat_arrays([batch.column(0) for batch in read_unit(rows)])
    parts: list[pa.Array] = []
    column: list[pa.Array] = []
    position = first = 0
    for batch in read_unit(replace(rows, include_deleted=True)):
        stop = int(np.searchsorted(offsets, first + batch.num_rows))
        parts.append(batch.column(0).take(pa.array(offsets[position:stop] - np.uint64(first))))
        if location is not None:
            column.append(batch.column(0))
        position, first = stop, first + batch.num_rows
    if location is not None and first == fragment.physical_rows:
        cache_sequences(fragment, field, pa.concat_arrays(column))
    return pa.concat_arrays(parts)
