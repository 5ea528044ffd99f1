"""Projections of a tree of fields: the columns that a reader selects.

A column is selected by its name, or by a path with dots into structs (`"address.city"`); a path
passes through lists (`"orders.price"` is the price of each item); a map is always whole. Names with
a dot or a backtick are quoted with backticks, as in Spark SQL. The name of a top-level column takes
precedence over a path.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import is_
from typing import TypeAlias

from lance_stream.arguments import no_column_error
from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_paths import split_path
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.identity import is_list
from lance_stream.schema.types.logical_types import MAP

Path: TypeAlias = tuple[str, ...]
"""The names of the fields from a column down to a part of it, including the items of lists."""


def project(schema: Schema, columns: Sequence[str] | None) -> Schema:
    """Return the schema of the selected columns, in the order of the selection.

    Several paths into one struct select one column, at the position of the first path; its parts
    have the schema's order.

    Args:
        schema: The whole schema.
        columns: Names or paths; None for all columns.

    Raises:
        NotFoundError: A column does not exist; the message lists those that do.
        InvalidInputError: A column is selected twice.
    """
    if columns is None:
        return schema
    by_name = {field.name: field for field in schema.fields}
    paths_by_column: dict[str, list[tuple[str, ...]]] = {}
    for column in columns:
        path = (column,) if column in by_name else _path_of(schema, column)
        paths = paths_by_column.setdefault(path[0], [])
        if path in paths:
            raise InvalidInputError(f"the column {column!r} is selected twice")
        paths.append(path)
    fields = tuple(
        _part(by_name[name], [path[1:] for path in paths])
        for name, paths in paths_by_column.items()
    )
    if len(fields) == len(schema.fields) and all(map(is_, fields, schema.fields)):
        return schema  # its Arrow schema may be cached
    return replace(schema, fields=fields)


def find(schema: Schema, column: str) -> tuple[Field, ...]:
    """Return the field of a name or path, preceded by the fields that contain it.

    These include lists that a path passes through, although the path does not name their items.

    Raises:
        NotFoundError: It does not exist; the message lists the existing ones.
        InvalidInputError: It is not a path.
    """
    fields_on_path: list[Field] = []
    fields: Sequence[Field] = schema.fields
    for name in _path_of(schema, column):
        while fields_on_path and _is_list(fields_on_path[-1]):
            fields_on_path.append(fields_on_path[-1].children[0])
            fields = fields_on_path[-1].children
        fields_on_path.append(next(field for field in fields if field.name == name))
        fields = fields_on_path[-1].children
    return tuple(fields_on_path)


def narrowed(path: Sequence[Field]) -> Field:
    """Return a column with only the parts that are on a path from `find`."""
    field = path[-1]
    for parent in reversed(path[:-1]):
        field = replace(parent, children=(field,))
    return field


def ids_by_path(fields: Sequence[Field], parents: Path = ()) -> dict[Path, int]:
    """Return the ids of fields and all their descendants, by path."""
    ids: dict[Path, int] = {}
    for field in fields:
        ids[*parents, field.name] = field.id
        ids |= ids_by_path(field.children, (*parents, field.name))
    return ids


def _path_of(schema: Schema, column: str) -> tuple[str, ...]:
    if column in schema.names:
        return (column,)
    path = split_path(column)
    fields: Sequence[Field] = schema.fields
    for depth, name in enumerate(path):
        match = next((field for field in fields if field.name == name), None)
        if match is None:
            names = [field.name for field in fields]
            raise no_column_error(path[: depth + 1], names)
        fields = _through_lists(match)
    return path


def _through_lists(field: Field) -> Sequence[Field]:
    while _is_list(field):
        field = field.children[0]
    return () if field.logical_type == MAP or field.is_blob else field.children


def _is_list(field: Field) -> bool:
    return bool(field.children) and is_list(field)


def _part(field: Field, paths: Sequence[tuple[str, ...]]) -> Field:
    if any(not path for path in paths) or not field.children:
        return field
    if _is_list(field):
        return replace(field, children=(_part(field.children[0], paths),))
    paths_by_child: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        paths_by_child.setdefault(path[0], []).append(path[1:])
    return replace(
        field,
        children=tuple(
            _part(child, paths_by_child[child.name])
            for child in field.children
            if child.name in paths_by_child
        ),
    )
