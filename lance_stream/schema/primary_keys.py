"""Checks that columns can form a table's (unenforced) primary key.

Source: lance-core/src/datatypes/schema.rs of release 14 (`verify_primary_key`): the reference does
        not read a table whose key breaks these rules.
"""

from collections.abc import Sequence

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT


def check_primary_key(fields: Sequence[Field], parents: Sequence[Field] = ()) -> None:
    """Raise if a column that is declared as part of the primary key cannot be part of it.

    Args:
        fields: Columns, as a table stores them; or the parts of a column.
        parents: The fields that contain them, from the outermost on.

    Raises:
        InvalidInputError: The column, or a struct that contains it, may be null; or it has parts,
            or is in a list or map.
    """
    for field in fields:
        path = (*parents, field)
        if field.primary_key_position is not None:
            _check_member(path)
        check_primary_key(field.children, path)


def _check_member(path: Sequence[Field]) -> None:
    name = ".".join(field.name for field in path)
    if any(field.nullable for field in path):
        raise InvalidInputError(
            f"the column {name!r} cannot be part of the primary key, because it, or a struct that "
            "contains it, may be null. Declare it as not nullable (pa.field(..., nullable=False)), "
            "or first call alter_columns({'path': ..., 'nullable': False})"
        )
    if path[-1].children or any(field.logical_type != STRUCT for field in path[:-1]):
        raise InvalidInputError(
            f"the column {name!r} cannot be part of the primary key, because it is a struct, a "
            "list or a map, or is in one of the latter two; choose columns with one value per row"
        )
