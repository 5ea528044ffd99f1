"""Columns of data files that this process keeps as they are: those that order the rows of a key.

The stored sequence (`sequence_by`) of each row that an upsert finds is looked up in them.
"""

from typing import Final

import pyarrow as pa

from lance_stream.caches import Cache
from lance_stream.keys.file_columns import FileColumn, file_column
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Field
from lance_stream.table.fragments.fragment import Fragment

MAX_COLUMN_BYTES: Final = 128 << 20
"""How much memory these columns take at most, for all tables."""

_columns: Final[Cache[tuple[FileColumn, str], pa.Array]] = Cache(
    MAX_COLUMN_BYTES, lambda values: values.nbytes
)


def column_location(fragment: Fragment, field: Field) -> FileColumn | None:
    """Return where all values of a column are; None if they cannot be kept.

    Parts of a struct may lie in other files than the struct, which are replaced one by one.
    """
    is_nested = pa.types.is_nested(field_to_arrow(field).type)
    return None if is_nested else file_column(fragment, field.id)


def cached_column(location: FileColumn, field: Field) -> pa.Array | None:
    """Return the values of a column of a file, those of deleted rows too; None if not known."""
    return _columns.get((location, str(field_to_arrow(field).type)))


def cache_column(location: FileColumn, values: pa.Array) -> None:
    """Keep the values of a column of a file, of all its rows, for as long as there is room."""
    _columns.put((location, str(values.type)), values)


def clear_columns() -> None:
    """Forget the columns of all tables, as a new process would."""
    _columns.clear()
