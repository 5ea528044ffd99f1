"""The columns of a resumed stream: a name refers to the same column as before the restart.

Each time a query starts, its reader gets the column names of the newest version. If columns have
been renamed since the query last read, a name could refer to another column, and a replica's column
would have values of two columns. So the checkpoint stores the field ids of the columns
(`Position.columns`). A column that can be followed from the checkpoint's version to the newest one
is still read under its earlier name, even if the newest version uses that name for another column.

A name refers to the column of the newest version if the name is new to the stream, or if its column
was dropped or has another type than the reader expects. If two names then refer to one column (x
was renamed to y, and another column to x), all names refer to the columns of the newest version,
because the query's columns have changed.
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
    """Return the columns of a resumed stream.

    Args:
        as_of: The version whose column names the reader uses.
        columns: Names or paths; None for all.
        table: The version after which the stream resumes.
        names: From the checkpoint: field ids of the columns in `table`, except for columns whose
            names match.

    Raises:
        NotFoundError: A column does not exist.
    """
    now = FeedColumns(as_of, columns)
    followed = inverted(FeedColumns(as_of, None, ancestry=now.ancestry).ids_in(table))
    by_path = ids_by_path(table.schema.fields)
    types = {field.id: field.logical_type for field in as_of.schema.walk()}
    resumed_ids: dict[int, int] = {}
    for field in now.schema.fields:
        resumed: dict[int, int] = {}
        for path, target in ids_by_path([field]).items():
            before = names.get(quote_path(path), by_path.get(path))
            there = None if before is None else followed.get(before)
            if there is not None and types[there] == types[target]:
                resumed[target] = there
        resumed_ids |= (
            resumed if _is_all_of(field, resumed) else {part.id: part.id for part in field.walk()}
        )
    if len(set(resumed_ids.values())) < len(resumed_ids):
        return now
    return FeedColumns(as_of, columns, resumed_ids, now.ancestry)


def _is_all_of(field: Field, resumed: Ids) -> bool:
    return all(descendant.id in resumed for descendant in field.walk())
