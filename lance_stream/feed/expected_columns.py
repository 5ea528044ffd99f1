"""The columns that a reader was given at its start, compared with those of a later version."""

from collections.abc import Callable

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.snapshot.table_version import TableVersion


def _same(arrow: pa.DataType) -> pa.DataType:
    return arrow


def check_columns(
    columns: FeedColumns,
    table: TableVersion,
    remedy: str,
    type_of: Callable[[pa.DataType], pa.DataType] = _same,
) -> None:
    """Raise unless a later version still has the columns that a reader was given.

    It may have more columns, and other columns may have taken their names. Earlier versions are not
    checked: the reader was given the columns of a later one.

    Args:
        columns: The columns, and the version whose names they have.
        table: The version to be read.
        remedy: What the reader should do if the columns have changed.
        type_of: Maps a column's type to the type in which the reader receives it.

    Raises:
        InvalidInputError: A column is missing, or its values may not fit the type that it had.
    """
    as_of = columns.as_of.version
    if table.version <= as_of:
        return
    missing = columns.missing_in(table)
    changes = [] if missing is None else [f"column {missing!r} no longer exists"]
    if missing is None:
        for expected, field in zip(columns.data_schema, columns.as_in(table), strict=True):
            now, was = type_of(field.type), type_of(expected.type)
            if not _fits(now, was):
                changes.append(f"column {expected.name!r} is {now}, and was {was}")
    if changes:
        raise InvalidInputError(
            f"the columns of {table.uri} have changed since version {as_of}, whose columns are "
            f"read: as of version {table.version} {changes[0]}. {remedy}"
        )


def _fits(now: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether every value of a type fits the type that the reader was given."""
    if now.equals(expected):
        return True
    if pa.types.is_struct(expected):
        return pa.types.is_struct(now) and all(
            now.get_field_index(part.name) >= 0
            and _fits(now.field(now.get_field_index(part.name)).type, part.type)
            for part in expected
        )
    if pa.types.is_map(expected):
        return (
            pa.types.is_map(now)
            and _fits(now.key_type, expected.key_type)
            and _fits(now.item_type, expected.item_type)
        )
    if pa.types.is_list(expected):
        return pa.types.is_list(now) and _fits(now.value_type, expected.value_type)
    if pa.types.is_integer(now) and pa.types.is_integer(expected):
        was_signed = pa.types.is_signed_integer(expected)
        gains_sign_bit = was_signed and pa.types.is_unsigned_integer(now)
        if not was_signed and pa.types.is_signed_integer(now):
            return False
        return bool(now.bit_width + gains_sign_bit <= expected.bit_width)
    is_floating = pa.types.is_floating(now) and pa.types.is_floating(expected)
    return bool(is_floating and now.bit_width <= expected.bit_width)
