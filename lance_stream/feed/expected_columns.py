"""Compares the columns of a running reader with those of a later version."""

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
    """Raise unless a later version still has the columns of a reader.

    The version may have additional columns, and its columns may have other names. Earlier versions
    are not checked.

    Args:
        columns: The reader's columns, and the version whose names they have.
        table: The version to read.
        remedy: What the user should do if the columns have changed.
        type_of: Maps a column's type to the type in which the reader receives it.

    Raises:
        InvalidInputError: A column is missing, or its values may not fit its earlier type.
    """
    as_of = columns.as_of.version
    if table.version <= as_of:
        return
    missing = columns.missing_in(table)
    changes = [] if missing is None else [f"column {missing!r} no longer exists"]
    if missing is None:
        for expected, field in zip(columns.data_schema, columns.schema_in(table), strict=True):
            actual_type, expected_type = type_of(field.type), type_of(expected.type)
            if not _fits(actual_type, expected_type):
                changes.append(
                    f"column {expected.name!r} has type {actual_type} instead of {expected_type}"
                )
    if changes:
        raise InvalidInputError(
            f"the columns of {table.uri} have changed since version {as_of}, whose columns this "
            f"reader uses: in version {table.version}, {changes[0]}. {remedy}"
        )


def _fits(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether every value of a type fits the expected type."""
    if actual.equals(expected):
        return True
    if pa.types.is_struct(expected):
        return pa.types.is_struct(actual) and all(
            actual.get_field_index(part.name) >= 0
            and _fits(actual.field(actual.get_field_index(part.name)).type, part.type)
            for part in expected
        )
    if pa.types.is_map(expected):
        return (
            pa.types.is_map(actual)
            and _fits(actual.key_type, expected.key_type)
            and _fits(actual.item_type, expected.item_type)
        )
    if pa.types.is_list(expected):
        return pa.types.is_list(actual) and _fits(actual.value_type, expected.value_type)
    if pa.types.is_integer(actual) and pa.types.is_integer(expected):
        is_signed = pa.types.is_signed_integer(expected)
        gains_sign_bit = is_signed and pa.types.is_unsigned_integer(actual)
        if not is_signed and pa.types.is_signed_integer(actual):
            return False
        return bool(actual.bit_width + gains_sign_bit <= expected.bit_width)
    is_floating = pa.types.is_floating(actual) and pa.types.is_floating(expected)
    return bool(is_floating and actual.bit_width <= expected.bit_width)
