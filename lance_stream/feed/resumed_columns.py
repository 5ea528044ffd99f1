"""The columns of a stream that goes on: what its words meant before, they mean still.

Each time that a query is started, its reader is told of columns in the words of the version that
is newest then. Where columns have changed names since the query read last, the same words would be
other columns: half of a replica's column would be filled from one, half from the other. So a
checkpoint keeps which field ids the columns have (`Position.columns`), and a column that can be
followed from there to the newest version is that column, whatever is called so now.

A column of a name that the stream did not have, or whose column is gone or has another type than
the reader was told of, is what the newest version calls so. And where two of the words would stand
for one column then (x was renamed to y, and another column to x), all of them are taken as the
newest version has them: the query was told of other columns than before.
"""

from collections.abc import Mapping, Sequence

from lance_stream.expressions.predicates import quote_path
from lance_stream.feed.columns_of_versions import FeedColumns, ids_by_path
from lance_stream.schema.fields import Field
from lance_stream.schema.identity import Ids, inverted
from lance_stream.snapshot.table_version import TableVersion


def resumed_columns(
    told: TableVersion,
    columns: Sequence[str] | None,
    table: TableVersion,
    names: Mapping[str, int | None],
) -> FeedColumns:
    """Return the columns of a stream that goes on.

    Args:
        told: The version in whose words the reader was told of its columns.
        columns: Names or paths; None for all.
        table: The version after which the stream goes on.
        names: What a checkpoint says of columns in that version, as far as names do not.

    Raises:
        NotFoundError: A column is not there.
    """
    now = FeedColumns(told, columns)
    followed = inverted(FeedColumns(told, None, lineage=now.lineage).ids_in(table))
    by_path = ids_by_path(table.schema.fields)
    types = {each.id: each.logical_type for each in told.schema.walk()}
    meaning: dict[int, int] = {}
    for each in now.wanted.fields:
        kept: dict[int, int] = {}
        for path, wanted in ids_by_path([each]).items():
            before = names.get(quote_path(path), by_path.get(path))
            there = None if before is None else followed.get(before)
            if there is not None and types[there] == types[wanted]:
                kept[wanted] = there
        meaning |= kept if _is_all_of(each, kept) else {part.id: part.id for part in each.walk()}
    if len(set(meaning.values())) < len(meaning):
        return now
    return FeedColumns(told, columns, meaning, now.lineage)


def _is_all_of(field: Field, kept: Ids) -> bool:
    return all(each.id in kept for each in field.walk())
