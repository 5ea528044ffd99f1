"""Renames columns: only the schema changes, and no row.

One Project has the new schema. A column keeps its field id, by which data files, indices and the
change feed identify it; so it also keeps its index and its position in the primary key.

Source:  transaction.proto; measured on the reference.
Differs: The reference accepts empty names, names with a dot, and reserved prefixes.
"""

from collections.abc import Mapping

from lance_stream.arguments import as_mapping
from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_names import check_new_name
from lance_stream.schema.fields import Field
from lance_stream.schema.projections import find
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.verbs.columns.schema_changes import (
    change_schema,
    check_not_remembered_by,
    with_names,
)


def rename_columns(table: TableVersion, names: Mapping[str, str]) -> TableVersion:
    """Rename columns; see `Dataset.rename_columns`.

    Args:
        table: Any version; the columns of the newest one are renamed.
        names: Maps a column's name, or its path into a struct, to its new name. All columns are
            renamed at once, so two columns can swap names.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: A new name is invalid, or taken by another column; or the column is
            needed for tombstones.
        CommitError: Every attempt conflicted with other commits.
    """
    as_mapping(names, "new names must be a mapping from text to text, {'old': 'new'}")

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
            newest, [field.name for field in newest.schema.fields if field.id in name_of], "renamed"
        )
        return with_names(newest.schema.fields, name_of)

    return change_schema(table, renamed)
