"""Which columns can be a table's (unenforced) primary key.

Source: lance-core/src/datatypes/schema.rs of release 14 (`verify_primary_key`): the reference does
        not read a table with another key.
"""

from collections.abc import Sequence

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field
from lance_stream.schema.types.logical_types import STRUCT


def check_primary_key(fields: Sequence[Field], parents: Sequence[Field] = ()) -> None:
    """Raise if a column cannot be part of the primary key that it is declared to be part of.

    Args:
        fields: Columns, as a table stores them; or the parts of one.
        parents: What they are part of, from the outermost on.

    Raises:
        InvalidInputError: It may be null, has parts, or is in a list or map; or what it is part of
            may be null.
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
            f"the column {name!r} cannot be part of the primary key, because it, or what it is "
            "part of, may be null. Declare it as not nullable (pa.field(..., nullable=False)), or "
            "first alter_columns({'path': ..., 'nullable': False})"
        )
    if path[-1].children or any(field.logical_type != STRUCT for field in path[:-1]):
        raise InvalidInputError(
            f"the column {name!r} cannot be part of the primary key, because it has parts or a "
            "number of items; choose columns with one value per row"
        )
