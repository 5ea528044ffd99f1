"""Renaming columns: the schema says another name, and no row changes.

One Project states the schema. A column keeps its field id, by which data files, indices and the
change feed know it; so it also keeps its index, and its place in the primary key.

Source:  facts of the format, section 4; measured on the reference.
Differs: The reference takes an empty name, one with a dot, and one that begins like its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lance_stream.arguments import as_mapping
from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_names import check_new_name
from lance_stream.schema.fields import Field
from lance_stream.schema.projections import find
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.schema_changes import change_schema, check_not_remembered_by


def rename_columns(table: TableVersion, names: Mapping[str, str]) -> TableVersion:
    """Give columns other names; see `Dataset.rename_columns`.

    Args:
        table: Any version; the columns of the newest one are renamed.
        names: For a name, or a path into a struct, the new name of the column itself. All are
            renamed at once, so that two columns can change names.

    Raises:
        NotFoundError: A column is not there.
        InvalidInputError: A new name cannot be had, or another column has it; or deletes are
            remembered by a column.
        CommitError: Others were in the way each time.
    """
    as_mapping(names, "new names are a mapping of texts, {'old': 'new'}")

    def renamed(newest: TableVersion) -> tuple[Field, ...]:
        name_of: dict[int, str] = {}
        for column, name in names.items():
            *parents, field = find(newest.schema, column)
            if field.id in name_of:
                raise InvalidInputError(f"the column {column!r} is renamed twice")
            check_new_name(name, is_part=bool(parents))
            if field.name != name:
                name_of[field.id] = name
        check_not_remembered_by(
            newest, [each.name for each in newest.schema.fields if each.id in name_of], "renamed"
        )
        return _with_names(newest.schema.fields, name_of)

    return change_schema(table, renamed)


def _with_names(fields: Sequence[Field], name_of: Mapping[int, str]) -> tuple[Field, ...]:
    renamed = tuple(
        replace(
            each,
            name=name_of.get(each.id, each.name),
            children=_with_names(each.children, name_of),
        )
        for each in fields
    )
    taken: set[str] = set()
    for each in renamed:
        if each.name in taken:
            raise InvalidInputError(
                f"two columns would be called {each.name!r}; rename or drop the other one first"
            )
        taken.add(each.name)
    return renamed
