"""Vectors: lists of numbers that all have one length, stored as fixed-size lists.

Readers of vectors need the fixed size: pylance and LanceDB index no other lists. Spark has no such
type, so writers declare which columns are vectors.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import InvalidInputError, NotFoundError

SHORTEST_VECTOR: Final = 16
"""If all lists have the same length, and it is at least this, they are probably vectors."""


def with_vectors(schema: pa.Schema, sizes: Mapping[str, int]) -> pa.Schema:
    """Return a schema in which some columns are vectors.

    Args:
        schema: The columns as lists of any length.
        sizes: The number of items of each vector, by the column's name.

    Raises:
        NotFoundError: There is no such column.
        InvalidInputError: A column is not a list of numbers, or has another fixed size.
    """
    for name, size in sizes.items():
        index = schema.get_field_index(name)
        if index < 0:
            raise NotFoundError(
                f"there is no column {name!r} to store as a vector; there are: "
                f"{', '.join(schema.names)}"
            )
        field = schema.field(index)
        kind = field.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        is_list = is_list or (pa.types.is_fixed_size_list(kind) and kind.list_size == size)
        if not is_list or not _is_number(kind.value_type):
            raise InvalidInputError(
                f"column {name!r} cannot be stored as a vector of {size} items: it is {kind}, not "
                "a list of numbers. Cast it: array<float>"
            )
        vector = pa.list_(pa.field("item", kind.value_type), size)
        schema = schema.set(index, field.with_type(vector))
    return schema


def undeclared_vectors(schema: pa.Schema) -> list[str]:
    """Return the columns that could be vectors: lists of floats of any length."""
    return [
        field.name
        for field in schema
        if (pa.types.is_list(field.type) or pa.types.is_large_list(field.type))
        and pa.types.is_floating(field.type.value_type)
    ]


def common_vector_length(lists: pa.ChunkedArray) -> int | None:
    """Return the length of all lists; None if it differs, or is too short for vectors."""
    lengths = pc.unique(pc.list_value_length(lists.drop_null())).to_pylist()
    return lengths[0] if len(lengths) == 1 and lengths[0] >= SHORTEST_VECTOR else None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
