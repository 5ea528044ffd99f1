"""Assigns field ids, also to new columns.

Ids are assigned depth first, parents before children, from 0. They are never reused within a table,
so a data file of an old version can never be mistaken for a new column.

Source: the reference's manifests; "Fields" in the table format's document.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from lance_stream.schema.fields import UNASSIGNED_ID, Field, Schema


def assign_ids(schema: Schema, first_id: int = 0) -> Schema:
    """Return the schema with all fields without ids numbered, depth first, from `first_id` on."""
    numbers = count(first_id)
    return replace(schema, fields=tuple(_numbered(field, numbers) for field in schema.fields))


def _numbered(field: Field, numbers: Iterator[int]) -> Field:
    field_id = next(numbers) if field.id == UNASSIGNED_ID else field.id
    children = tuple(_numbered(child, numbers) for child in field.children)
    return replace(field, id=field_id, children=children)
