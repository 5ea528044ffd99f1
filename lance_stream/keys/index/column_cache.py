"""A cache of the columns that order the rows of a key (`sequence_by`), by data file.

An upsert looks up the stored sequence of the matching rows in them.
"""

from typing import Final

import pyarrow as pa

from lance_stream.caches import Cache
from lance_stream.keys.file_columns import FileColumn, file_column
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.table.fragments.fragment import Fragment

MAX_COLUMN_BYTES: Final = 128 << 20
"""The maximum size of the cached columns of all tables, in bytes."""

_columns: Final[Cache[tuple[FileColumn, str], pa.Array]] = Cache(
    MAX_COLUMN_BYTES, lambda values: values.nbytes
)


def column_location(fragment: Fragment, field: Field) -> FileColumn | None:
    """Return the file column that stores all values of a column; None if it cannot be cached.

    The fields of a struct may be stored in several files, which are replaced independently.
    """
    is_nested = pa.types.is_nested(field_to_arrow(field).type)
    return None if is_nested else file_column(fragment, field.id)


def cached_column(location: FileColumn, field: Field) -> pa.Array | None:
    """Return the values of a file's column, including deleted rows; None if not cached."""
    return _columns.get((location, str(field_to_arrow(field).type)))


def cache_column(location: FileColumn, values: pa.Array) -> None:
    """Cache the values of a file's column, for all rows of the file."""
    _columns.put((location, str(values.type)), values)


def clear_columns() -> None:
    """Clear the cache, as if the process had just started."""
    _columns.clear()
