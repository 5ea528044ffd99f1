"""The columns of a resumed stream: their names keep their earlier meaning.

Each time a query starts, its reader gets column names of the version that is newest at that time.
If columns were renamed since the query last read, the same names could mean other columns: half of
a replica's column would be filled from one, half from the other. So a checkpoint keeps the field
ids of the columns (`Position.columns`), and a column that can be followed from there to the newest
version is that column, whatever has its name now.

A name that is new to the stream, or whose column is gone or has another type than the reader was
given, means what it means in the newest version. If two names would then mean one column (x was
renamed to y, and another column to x), all of them are taken from the newest version: the query was
given other columns than before.
"""

from collections.abc import Mapping, Sequence

from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.fields import Field
from lance_stream.schema.identity import Ids, inverted
from lance_stream.schema.projections import ids_by_path
from lance_stream.snapshot.table_version import TableVersion


def resumed_columns(
    as_of: TableVersion,
    columns: Sequence[str] | None,
    table: TableVersion,
    names: Mapping[str, int | None],
) -> FeedColumns:
    """Return the columns of a stream that resumes.

    Args:
        as_of: The version whose column names the reader was given.
        columns: Names or paths; None for all.
        table: The version after which the stream resumes.
        names: The checkpoint's ids of columns in that version, where names do not give them.

    Raises:
        NotFoundError: A column does not exist.
    """
    now = FeedColumns(as_of, columns)
    followed = inverted(FeedColumns(as_of, None, ancestry=now.ancestry).ids_in(table))
    by_path = ids_by_path(table.schema.fields)
    types = {field.id: field.logical_type for field in as_of.schema.walk()}
    meaning: dict[int, int] = {}
    for field in now.schema.fields:
        resumed: dict[int, int] = {}
        for path, target in ids_by_path([field]).items():
            before = names.get(quote_path(path), by_path.get(path))
            there = None if before is None else followed.get(before)
            if there is not None and types[there] == types[target]:
                resumed[target] = there
        meaning |= (
            resumed if _is_all_of(field, resumed) else {part.id: part.id for part in field.walk()}
        )
    if len(set(meaning.values())) < len(meaning):
        return now
    return FeedColumns(as_of, columns, meaning, now.ancestry)


def _is_all_of(field: Field, resumed: Ids) -> bool:
    return all(descendant.id in resumed for descendant in field.walk())
